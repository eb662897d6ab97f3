package redact

import (
	"bytes"
	"unicode/utf8"
)

// A layer is the text, or a part of it, with some of its encodings decoded.
type layer struct {
	text []byte
	at   []int32 // place of each byte and of the end in the raw text; nil: base and so on
	base int
}

// place returns where byte i is in the raw text.
func (l *layer) place(i int) int {
	if l.at == nil {
		return l.base + i
	}
	return int(l.at[i])
}

// decode decodes escapes of JSON, percent-encoding and entities, once. ok is false for a text without
// any.
func (l *layer) decode() (decoded layer, ok bool) {
	var char [utf8.UTFMax]byte
	start := 0 // of the text that is not copied yet
	for i := 0; i < len(l.text); {
		next := bytes.IndexAny(l.text[i:], `\%&`)
		if next < 0 {
			break
		}
		i += next
		value, size := escape(l.text[i:], char[:0])
		if size == 0 {
			i++
			continue
		}

		if !ok {
			ok, decoded.text, decoded.at = true, make([]byte, 0, len(l.text)), make([]int32, 0, len(l.text)+1)
		}
		decoded.copy(l, start, i)
		for range value[1:] {
			decoded.at = append(decoded.at, int32(l.place(i))) // a part without a place of its own
		}
		decoded.text = append(decoded.text, value...)
		decoded.at = append(decoded.at, int32(l.place(i)))
		i += size
		start = i
	}
	if ok {
		decoded.copy(l, start, len(l.text))
		decoded.at = append(decoded.at, int32(l.place(len(l.text))))
	}
	return decoded, ok
}

// copy appends a part of another layer.
func (l *layer) copy(from *layer, start, end int) {
	l.text = append(l.text, from.text[start:end]...)
	for i := start; i < end; i++ {
		l.at = append(l.at, int32(from.place(i)))
	}
}

// minLine is the length of the shortest line of base64 that is in lines, which have 60 to 76
// characters.
const minLine = 60

// unbroken returns the text without the line breaks of base64 that is in lines. ok is false if
// there are none.
func (l *layer) unbroken() (u layer, ok bool) {
	start, run := 0, 0 // of the text that is not copied yet; characters of base64
	for i := 0; i < len(l.text); i++ {
		switch c := l.text[i]; {
		case isBase64(c):
			run++
			continue
		case run >= minLine && (c == '\r' || c == '\n'):
			u.copy(l, start, i)
			for i+1 < len(l.text) && (l.text[i+1] == '\r' || l.text[i+1] == '\n') {
				i++
			}
			start = i + 1
		}
		run = 0
	}

	if start == 0 {
		return u, false
	}
	u.copy(l, start, len(l.text))
	u.at = append(u.at, int32(l.place(len(l.text))))
	return u, true
}

// escape appends the text for the escape at the beginning of text. size is the length of the
// escape, 0 for none.
func escape(text, to []byte) (value []byte, size int) {
	switch text[0] {
	case '%':
		if c, ok := hexadecimal(text, 1, 2); ok {
			return append(to, byte(c)), 3
		}
		if c, ok := hexadecimal(text, 2, 4); ok && text[1]|' ' == 'u' {
			return utf8.AppendRune(to, c), 6
		}
	case '\\':
		return backslash(text, to)
	case '&':
		return entity(text, to)
	}
	return nil, 0
}

func backslash(text, to []byte) ([]byte, int) {
	if len(text) < 2 {
		return nil, 0
	}
	switch text[1] {
	case 'u':
		if c, ok := hexadecimal(text, 2, 4); ok {
			return utf8.AppendRune(to, c), 6
		}
	case 'x':
		if c, ok := hexadecimal(text, 2, 2); ok {
			return append(to, byte(c)), 4
		}
	case '/', '\\', '"', '\'':
		return append(to, text[1]), 2
	case 'n', 'r':
		return append(to, '\n'), 2
	case 't', 'b', 'f':
		return append(to, ' '), 2
	}
	return nil, 0
}

var entities = []struct {
	name  string
	value byte
}{{"&amp;", '&'}, {"&quot;", '"'}, {"&apos;", '\''}, {"&lt;", '<'}, {"&gt;", '>'}, {"&nbsp;", ' '}}

const maxEntity = 8 // digits of a numeric one, without leading zeros

func entity(text, to []byte) ([]byte, int) {
	for _, e := range entities {
		if bytes.HasPrefix(text, []byte(e.name)) {
			return append(to, e.value), len(e.name)
		}
	}
	if len(text) < 3 || text[1] != '#' {
		return nil, 0
	}

	i, base := 2, rune(10)
	if text[i]|' ' == 'x' {
		i, base = 3, 16
	}
	first, c := i, rune(0)
	for i < len(text) && text[i] == '0' {
		i++
	}
	for end := min(len(text), i+maxEntity); i < end && c <= utf8.MaxRune; i++ {
		d, ok := digitOf(text[i])
		if !ok || rune(d) >= base {
			break
		}
		c = c*base + rune(d)
	}
	if i == first || c > utf8.MaxRune {
		return nil, 0
	}
	if i < len(text) && text[i] == ';' {
		i++
	}
	return utf8.AppendRune(to, c), i
}

// hexadecimal reads n hexadecimal digits of text from an offset on.
func hexadecimal(text []byte, from, n int) (c rune, ok bool) {
	if len(text) < from+n {
		return 0, false
	}
	for _, b := range text[from : from+n] {
		d, ok := digitOf(b)
		if !ok {
			return 0, false
		}
		c = c<<4 | rune(d)
	}
	return c, true
}

// digitOf returns the value of a hexadecimal digit.
func digitOf(c byte) (byte, bool) {
	switch {
	case '0' <= c && c <= '9':
		return c - '0', true
	case 'a' <= c|' ' && c|' ' <= 'f':
		return c | ' ' - 'a' + 10, true
	}
	return 0, false
}
