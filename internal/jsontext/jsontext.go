// Package jsontext reads JSON that may hold card numbers: it copies no value,
// and its error repeats none.
package jsontext

import (
	"bytes"
	"errors"
	"strings"
	"unicode/utf8"
)

// ErrMalformed is the only error for text that cannot be read, and has no details: the text
// may hold a card number.
var ErrMalformed = errors.New("jsontext: malformed object")

// Limits of a text.
const (
	MaxDepth  = 8   // the outer object counts
	MaxValues = 256 // members and list items, the outer object not among them
)

// A Value is a value of a text. In a slice of values each is followed by those
// inside it. Name and Text point into the text that was parsed, so that
// clearing it erases the card everywhere.
type Value struct {
	Kind       byte   // its first byte: { [ " t f n; the digit 0 for any number
	Mark       byte   // for the caller's use; zero after Parse
	Size       int    // in values, itself included
	Start, End int    // of the value in the text, as it was received
	Name       []byte // of a member, unescaped
	Text       []byte // of a string, unescaped; of a number, as it is written
}

// Parse parses one JSON object as RFC 8259 has it, and stricter: UTF-8 without
// a byte order mark, no name twice in an object, no lone surrogate. The object
// is the first value. The only error is ErrMalformed.
//
// It unescapes strings in place: take the fingerprint of a text before.
func Parse(text []byte) ([]Value, error) {
	p := parser{data: text, values: make([]Value, 0, 8)}
	p.space()
	if p.peek() != '{' || !p.value(nil, 1) {
		return nil, ErrMalformed
	}
	p.space()
	if p.pos < len(text) {
		return nil, ErrMalformed
	}
	return p.values, nil
}

// Find returns the index of a member, or -1. The members of an object are the
// values after it, up to its size.
func Find[T ~string | ~[]byte](members []Value, name T) int {
	for i := 0; i < len(members); i += members[i].Size {
		if string(members[i].Name) == string(name) {
			return i
		}
	}
	return -1
}

// The methods of a parser that return a bool report whether they have found their token;
// nothing is read after the first failure.
type parser struct {
	data   []byte
	pos    int
	values []Value
}

// peek returns the next byte. The 0 at the end begins nothing in JSON.
func (p *parser) peek() byte {
	if p.pos == len(p.data) {
		return 0
	}
	return p.data[p.pos]
}

func (p *parser) take(c byte) bool {
	if p.peek() != c {
		return false
	}
	p.pos++
	return true
}

func (p *parser) space() {
	for p.pos < len(p.data) {
		switch p.data[p.pos] {
		case ' ', '\t', '\r', '\n':
			p.pos++
		default:
			return
		}
	}
}

func (p *parser) value(name []byte, depth int) (ok bool) {
	i := len(p.values)
	if i > MaxValues || depth > MaxDepth && (p.peek() == '{' || p.peek() == '[') {
		return false
	}

	p.values = append(p.values, Value{Kind: p.peek(), Size: 1, Start: p.pos, Name: name})
	switch p.peek() {
	case '{':
		ok = p.inside(i, depth, '}')
	case '[':
		ok = p.inside(i, depth, ']')
	case '"':
		p.values[i].Text, ok = p.str()
	case 't':
		ok = p.literal("true")
	case 'f':
		ok = p.literal("false")
	case 'n':
		ok = p.literal("null")
	default:
		p.values[i].Kind = '0'
		p.values[i].Text, ok = p.number()
	}

	p.values[i].Size, p.values[i].End = len(p.values)-i, p.pos
	return ok
}

// inside reads the object or list of value i up to its end.
func (p *parser) inside(i, depth int, end byte) bool {
	p.pos++
	p.space()
	if p.take(end) {
		return true
	}

	for {
		var name []byte
		if end == '}' {
			var ok bool
			if name, ok = p.str(); !ok || Find(p.values[i+1:], name) >= 0 {
				return false
			}
			p.space()
			if !p.take(':') {
				return false
			}
			p.space()
		}

		if !p.value(name, depth+1) {
			return false
		}

		p.space()
		if p.take(end) {
			return true
		}
		if !p.take(',') {
			return false
		}
		p.space()
	}
}

func (p *parser) literal(s string) bool {
	if !bytes.HasPrefix(p.data[p.pos:], []byte(s)) {
		return false
	}
	p.pos += len(s)
	return true
}

func (p *parser) number() ([]byte, bool) {
	start := p.pos
	p.take('-')
	if !p.take('0') && !p.digits() {
		return nil, false
	}
	if p.take('.') && !p.digits() {
		return nil, false
	}
	if p.take('e') || p.take('E') {
		_ = p.take('+') || p.take('-')
		if !p.digits() {
			return nil, false
		}
	}
	return p.data[start:p.pos:p.pos], true
}

func (p *parser) digits() bool {
	start := p.pos
	for c := p.peek(); '0' <= c && c <= '9'; c = p.peek() {
		p.pos++
	}
	return p.pos > start
}

// str reads a string and unescapes it in place: no escape is shorter than its replacement.
func (p *parser) str() ([]byte, bool) {
	if !p.take('"') {
		return nil, false
	}

	start := p.pos
	for i, c := range p.data[start:] {
		if c < ' ' || c == '"' || c == '\\' || c >= utf8.RuneSelf {
			p.pos += i // most strings end here
			break
		}
	}

	end := p.pos
	for p.pos < len(p.data) {
		switch c := p.data[p.pos]; {
		case c == '"':
			p.pos++
			return p.data[start:end:end], true
		case c < ' ':
			return nil, false
		case c == '\\':
			r, ok := p.escape()
			if !ok {
				return nil, false
			}
			end = len(utf8.AppendRune(p.data[:end], r))
		case c < utf8.RuneSelf:
			p.data[end] = c
			end++
			p.pos++
		default:
			r, n := utf8.DecodeRune(p.data[p.pos:])
			if r == utf8.RuneError && n == 1 {
				return nil, false
			}
			end += copy(p.data[end:], p.data[p.pos:p.pos+n])
			p.pos += n
		}
	}

	return nil, false
}

func (p *parser) escape() (rune, bool) {
	p.pos++
	c := p.peek()
	if c == 'u' {
		return p.unicode()
	}
	i := strings.IndexByte(`"\/bfnrt`, c)
	if i < 0 {
		return 0, false
	}
	p.pos++
	return rune("\"\\/\b\f\n\r\t"[i]), true
}

func (p *parser) unicode() (rune, bool) {
	r, ok := p.hex4()
	switch {
	case !ok || 0xDC00 <= r && r <= 0xDFFF:
		return 0, false
	case 0xD800 <= r && r <= 0xDBFF:
		if !p.take('\\') {
			return 0, false
		}
		low, ok := p.hex4()
		if !ok || low < 0xDC00 || low > 0xDFFF {
			return 0, false
		}
		r = 0x10000 + (r-0xD800)<<10 + (low - 0xDC00)
	}
	return r, true
}

func (p *parser) hex4() (r rune, ok bool) {
	if !p.take('u') {
		return 0, false
	}
	for range 4 {
		c := p.peek()
		switch {
		case '0' <= c && c <= '9':
			c -= '0'
		case 'a' <= c|0x20 && c|0x20 <= 'f':
			c = c | 0x20 - 'a' + 10
		default:
			return 0, false
		}
		r = r<<4 | rune(c)
		p.pos++
	}
	return r, true
}
