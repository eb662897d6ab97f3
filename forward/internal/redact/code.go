package redact

import (
	"bytes"

	"github.com/cardvault/cardvault/internal/rule"
)

// codesOf marks each run of as many digits as a security code has that stands alone, also if
// it is encoded.
func (f *finder) codesOf(l *layer) {
	for start, end := range runs(l.text, isBase64, f.code) {
		token := l.text[start:end]
		switch {
		case !alone(l.text, start, end):
		case len(token) == f.code && rule.AllDigits(token),
			len(token) == (f.code*4+2)/3 && f.isBase64Code(token),
			len(token) == f.code*2 && f.isHexCode(token):
			f.hide(l, start, end)
			continue
		}
		f.codesIn(l, start, end)
	}
}

// codesIn marks the codes in a run of characters of base64, which has a few separators.
func (f *finder) codesIn(l *layer, start, end int) {
	for i := start; i < end; i++ {
		from := i
		for i < end && classes[l.text[i]] == digit {
			i++
		}
		if i-from == f.code && alone(l.text, from, i) {
			f.hide(l, from, i)
		}
	}
}

func (f *finder) isBase64Code(token []byte) bool {
	f.scratch = appendBase64(f.scratch[:0], token)
	return len(f.scratch) == f.code && rule.AllDigits(f.scratch)
}

func (f *finder) isHexCode(token []byte) bool {
	for i := 0; i < len(token); i += 2 {
		if c, ok := hexadecimal(token, i, 2); !ok || c < '0' || c > '9' {
			return false
		}
	}
	return true
}

// alone reports whether nothing joins a part of a text to the text beside it. So that it
// stands alone in an answer, the placeholder of a security code is a whole value.
func alone(text []byte, start, end int) bool {
	before, after := text[:start], text[end:]
	if n := len(before); n > 0 {
		if joins(before[n-1]) || n > 1 && links(before[n-1]) && joins(before[n-2]) {
			return false
		}
	}
	return len(after) == 0 || !joins(after[0]) && (len(after) == 1 || !links(after[0]) || !joins(after[1]))
}

// joins reports whether c belongs to the same word as the character beside it.
func joins(c byte) bool {
	return 'a' <= c|' ' && c|' ' <= 'z' || '0' <= c && c <= '9' || c == '_'
}

// links reports whether c makes one word of the texts on both of its sides.
func links(c byte) bool { return bytes.IndexByte([]byte("-./"), c) >= 0 }
