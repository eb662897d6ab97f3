package redact

import (
	"bytes"
	"iter"
)

// stringValues iterates over the strings of JSON that are not names of members. The text
// may be malformed.
func stringValues(raw []byte) iter.Seq[layer] {
	return func(yield func(layer) bool) {
		for i := 0; i < len(raw); i++ {
			if raw[i] != '"' {
				continue
			}
			start := i + 1
			for i = start; i < len(raw) && raw[i] != '"'; i++ {
				if raw[i] == '\\' {
					i++
				}
			}

			end := min(i, len(raw))
			rest := bytes.TrimLeft(raw[min(end+1, len(raw)):], " \t\r\n")
			if len(rest) > 0 && rest[0] == ':' {
				continue
			}
			if !yield(layer{text: raw[start:end], base: start}) {
				return
			}
		}
	}
}

// renderJSON returns the text, masked, with quotes around numbers that are masked.
func (f *finder) renderJSON() []byte {
	to := make([]byte, 0, len(f.raw)+64)
	inString := false

	for i := 0; i < len(f.raw); {
		end := i + 1
		switch c := f.raw[i]; {
		case f.marks[i] == kept && c == '"':
			inString = !inString
		case inString && f.marks[i] == kept && c == '\\':
			end = min(i+2, len(f.raw))
		case !inString && f.ofNumber(i):
			hidden := false
			for end = i; end < len(f.raw) && f.ofNumber(end); end++ {
				hidden = hidden || f.marks[end] != kept
			}
			if hidden {
				to = append(f.render(append(to, '"'), i, end), '"')
				i = end
				continue
			}
		}

		to = f.render(to, i, end)
		i = end
	}
	return to
}

// ofNumber reports whether a byte belongs to a number of JSON.
func (f *finder) ofNumber(i int) bool {
	return f.marks[i] != kept || bytes.IndexByte([]byte("0123456789+-.eE"), f.raw[i]) >= 0
}
