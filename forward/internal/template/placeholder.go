package template

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"strings"

	"github.com/cardvault/cardvault/internal/rule"
	"github.com/cardvault/cardvault/invalid"
)

// A Syntax says what a placeholder looks like. The zero Syntax is {{ account_number }}.
type Syntax struct {
	// Marker, if it is not "", has to stand before the name: {{ MARKER.account_number }}.
	Marker string

	// Bare is for a random Marker, which the name follows at once: no braces.
	Bare bool
}

// Random returns a Bare Syntax that cannot be guessed.
func Random() Syntax { return Syntax{rand.Text(), true} }

// The length of a marker that a caller chooses.
const minMarker, maxMarker = 16, 64

// Check returns how the marker of a caller breaks its rule, or nil.
func (s Syntax) Check() *rule.Broken {
	if s.Marker == "" {
		return nil
	}
	for _, c := range []byte(s.Marker) {
		if (c|' ' < 'a' || c|' ' > 'z') && (c < '0' || c > '9') {
			return &rule.Broken{Code: invalid.Format, Message: "must contain letters and digits only"}
		}
	}
	switch n := len(s.Marker); {
	case n < minMarker:
		return &rule.Broken{Code: invalid.TooShort, Message: fmt.Sprintf("must have at least %d characters", minMarker)}
	case n > maxMarker:
		return &rule.Broken{Code: invalid.TooLong, Message: fmt.Sprintf("must have at most %d characters", maxMarker)}
	}
	return nil
}

// Placeholder returns the placeholder of a name other than Credential.
func (s Syntax) Placeholder(n Name) string {
	switch {
	case s.Bare:
		return s.Marker + words[n].bare
	case s.Marker != "":
		return "{{ " + s.Marker + "." + words[n].fixed + " }}"
	}
	return "{{ " + words[n].fixed + " }}"
}

// A found is a placeholder in a text.
type found struct {
	start, end int
	name       Name
	known      bool
	number     bool   // | number
	credential string // the name behind "destination.", for Credential
}

// find returns the first placeholder of text from an offset on. Braces, spaces and the bar
// may be percent-encoded if escapes is true, as in a form.
func (s Syntax) find(text []byte, from int, escapes bool) (found, bool) {
	if s.Bare {
		return s.findBare(text, from)
	}
	brace := from - 1 // the last one found, looked for once, whatever comes before it
	for i := from; i < len(text); i++ {
		if brace < i {
			brace = len(text)
			if next := bytes.IndexByte(text[i:], '{'); next >= 0 {
				brace = i + next
			}
		}

		next := brace
		if escapes {
			if percent := bytes.IndexByte(text[i:brace], '%'); percent >= 0 {
				next = i + percent
			}
		}
		if next == len(text) {
			break
		}
		i = next
		if f, ok := s.at(text, i, escapes); ok {
			return f, true
		}
	}
	return found{}, false
}

func (s Syntax) findBare(text []byte, from int) (found, bool) {
	for i := from; i < len(text); {
		next := bytes.Index(text[i:], []byte(s.Marker))
		if next < 0 {
			break
		}
		start := i + next
		i = start + len(s.Marker)
		for n := range Credential {
			if bytes.HasPrefix(text[i:], []byte(words[n].bare)) {
				return found{start: start, end: i + len(words[n].bare), name: n, known: true}, true
			}
		}
	}
	return found{}, false
}

// at returns the placeholder that begins at an offset.
func (s Syntax) at(text []byte, start int, escapes bool) (found, bool) {
	c := cursor{text, start, escapes}
	if !c.twice('{') {
		return found{}, false
	}
	c.spaces()
	if s.Marker != "" && !(c.literal(s.Marker) && c.literal(".")) {
		return found{}, false
	}

	f := found{start: start}
	word := c.word(isNameByte)
	if len(word) == 0 {
		return found{}, false
	}
	if string(word) == words[Credential].fixed && c.literal(".") {
		f.name, f.known, f.credential = Credential, true, string(c.word(isCredentialByte))
		if f.credential == "" {
			return found{}, false
		}
	} else {
		f.name, f.known = named(word)
	}

	c.spaces()
	if c.take('|') {
		c.spaces()
		if f.number = c.literal("number"); !f.number {
			return found{}, false
		}
		c.spaces()
	}
	ok := c.twice('}')
	f.end = c.pos
	return f, ok
}

func isNameByte(c byte) bool { return 'a' <= c && c <= 'z' || c == '_' }

func isCredentialByte(c byte) bool {
	return 'a' <= c|' ' && c|' ' <= 'z' || '0' <= c && c <= '9' || c == '_' || c == '-'
}

// IsCredentialName reports whether a name can stand behind "destination.".
func IsCredentialName(name string) bool {
	return name != "" && !strings.ContainsFunc(name, func(r rune) bool { return r > '~' || !isCredentialByte(byte(r)) })
}

// A cursor reads a placeholder.
type cursor struct {
	text    []byte
	pos     int
	escapes bool // bytes may be percent-encoded
}

// take reads a byte, which may be percent-encoded in a form.
func (c *cursor) take(b byte) bool {
	rest := c.text[c.pos:]
	if len(rest) > 0 && rest[0] == b {
		c.pos++
		return true
	}
	if d, ok := escaped(rest); c.escapes && ok && d == b {
		c.pos += 3
		return true
	}
	return false
}

func (c *cursor) twice(b byte) bool {
	for range 2 {
		if !c.take(b) {
			return false
		}
	}
	return true
}

func (c *cursor) literal(s string) bool {
	if !bytes.HasPrefix(c.text[c.pos:], []byte(s)) {
		return false
	}
	c.pos += len(s)
	return true
}

func (c *cursor) spaces() {
	for c.take(' ') || c.escapes && c.literal("+") {
	}
}

func (c *cursor) word(in func(byte) bool) []byte {
	start := c.pos
	for c.pos < len(c.text) && in(c.text[c.pos]) {
		c.pos++
	}
	return c.text[start:c.pos]
}

// escaped returns the byte that %XX at the beginning of text stands for.
func escaped(text []byte) (byte, bool) {
	if len(text) < 3 || text[0] != '%' {
		return 0, false
	}
	const digits = "0123456789abcdef"
	high, low := strings.IndexByte(digits, lower(text[1])), strings.IndexByte(digits, lower(text[2]))
	if high < 0 || low < 0 {
		return 0, false
	}
	return byte(high<<4 | low), true
}

func lower(c byte) byte {
	if 'A' <= c && c <= 'Z' {
		return c | ' '
	}
	return c
}
