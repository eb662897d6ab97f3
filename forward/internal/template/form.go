package template

import (
	"bytes"

	"github.com/cardvault/cardvault/internal/rule"
)

// form finds the placeholders in the values of a form.
func (t *Template) form(s Syntax) *rule.Broken {
	for start := 0; start <= len(t.text); {
		end := len(t.text)
		if i := bytes.IndexByte(t.text[start:], '&'); i >= 0 {
			end = start + i
		}
		value := end
		if i := bytes.IndexByte(t.text[start:end], '='); i >= 0 {
			value = start + i + 1
		}
		if broken := t.refuse(s, span{start, value}, true, "in the name of a form value"); broken != nil {
			return broken
		}
		if broken := t.fill(s, span{value, end}, inForm); broken != nil {
			return broken
		}
		start = end + 1
	}
	return nil
}

// appendForm appends a value as a form has it: every byte is percent-encoded except the
// unreserved characters of RFC 3986.
func appendForm(to, value []byte) []byte {
	const digits = "0123456789ABCDEF"
	for _, c := range value {
		if 'a' <= c|' ' && c|' ' <= 'z' || '0' <= c && c <= '9' || c == '-' || c == '.' || c == '_' || c == '~' {
			to = append(to, c)
		} else {
			to = append(to, '%', digits[c>>4], digits[c&15])
		}
	}
	return to
}
