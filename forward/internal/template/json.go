package template

import (
	stdjson "encoding/json"
	"unicode/utf8"

	"github.com/cardvault/cardvault/internal/rule"
)

// json finds the placeholders in the strings of JSON that are values.
func (t *Template) json(s Syntax) *rule.Broken {
	if !stdjson.Valid(t.text) {
		return malformed("JSON")
	}

	for i := 0; i < len(t.text); i++ {
		if t.text[i] != '"' {
			continue
		}
		str := span{i + 1, stringEnd(t.text, i+1)}
		i = str.end
		broken := t.jsonString(s, str)
		if broken != nil {
			return broken
		}
	}
	return nil
}

func (t *Template) jsonString(s Syntax, str span) *rule.Broken {
	// In valid JSON a colon follows the name of a member, and no value.
	for _, c := range t.text[str.end+1:] {
		switch c {
		case ' ', '\t', '\r', '\n':
			continue
		case ':':
			return t.refuse(s, str, false, "in the name of a member of JSON")
		}
		break
	}
	return t.fill(s, str, inJSON)
}

// stringEnd returns the place of the quotation mark that ends a string of valid JSON.
func stringEnd(text []byte, i int) int {
	for ; text[i] != '"'; i++ {
		if text[i] == '\\' {
			i++
		}
	}
	return i
}

// appendJSON appends a value as it is inside a string of JSON, in ASCII.
func appendJSON(to, value []byte) []byte {
	const digits = "0123456789abcdef"
	unit := func(c rune) {
		to = append(to, '\\', 'u', digits[c>>12&15], digits[c>>8&15], digits[c>>4&15], digits[c&15])
	}

	for len(value) > 0 {
		r, n := utf8.DecodeRune(value)
		value = value[n:]
		switch {
		case r == '"' || r == '\\':
			to = append(to, '\\', byte(r))
		case r >= ' ' && r < 0x7f:
			to = append(to, byte(r))
		case r < 0x10000:
			unit(r)
		default: // a surrogate pair
			r -= 0x10000
			unit(0xD800 + r>>10)
			unit(0xDC00 + r&0x3ff)
		}
	}
	return to
}

// appendNumber appends digits as a number of JSON, which does not begin with a zero.
func appendNumber(to, digits []byte) []byte {
	for len(digits) > 1 && digits[0] == '0' {
		digits = digits[1:]
	}
	return append(to, digits...)
}
