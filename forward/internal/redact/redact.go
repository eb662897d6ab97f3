// Package redact masks card data in answers from outside.
//
// A card number is found by its shape and never by equality: every number of its length
// with its first six and last four digits is masked, so that an answer with all numbers that
// can be behind a mask does not show which of them is the card's. A [Redactor] does not keep the other digits of the number. A security code is found
// by its length, where it stands by itself. Secrets that cannot be guessed are found by
// equality.
//
// Each is found as it is and in these forms, also one inside another: escaped as in JSON,
// percent-encoded, as entities of HTML and XML, in hexadecimal digits, in base64 and
// base64url. The digits of a number may be grouped.
package redact

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
)

// A Redactor knows what to mask. It may be used concurrently once it is set up.
type Redactor struct {
	numbers []shape
	codes   []code
	secrets [][]byte // in lower case
}

// A shape is the part of a card number that its mask shows.
type shape struct {
	length int
	first  [6]byte
	last   [4]byte
}

// Number adds the shape of a card number.
func (r *Redactor) Number(digits []byte) {
	n := shape{length: len(digits)}
	if n.length < len(n.first)+len(n.last) {
		return
	}
	copy(n.first[:], digits)
	copy(n.last[:], digits[n.length-len(n.last):])
	r.numbers = append(r.numbers, n)
}

// A code is the part of a security code that is known.
type code struct {
	digits   int
	anywhere bool // in JSON not in strings alone
}

// Code adds security codes of as many digits. In JSON they are looked for in the strings that
// are values, or anywhere.
func (r *Redactor) Code(digits int, anywhere bool) {
	if digits > 0 {
		r.codes = append(r.codes, code{digits, anywhere})
	}
}

// MinSecret is the shortest secret, in bytes: shorter ones would be found by chance, and
// could be tried out.
const MinSecret = 8

// Secret adds a secret, which is a text that may be base64 or hexadecimal digits. It is found
// in any case of its letters. A shorter one than MinSecret is not added.
func (r *Redactor) Secret(text []byte) {
	if len(text) < MinSecret {
		return
	}
	r.add(bytes.Clone(text))
	r.encodings(text)
	trimmed := bytes.TrimRight(text, "=")
	for _, decode := range []func(dst, src []byte) (int, error){hex.Decode, base64.RawStdEncoding.Decode, base64.RawURLEncoding.Decode} {
		plain := make([]byte, len(text))
		if n, err := decode(plain, trimmed); err == nil && n >= MinSecret {
			r.encodings(plain[:n])
			r.add(plain[:n])
		}
	}
}

// encodings adds the encodings of bytes.
func (r *Redactor) encodings(plain []byte) {
	r.add(hex.AppendEncode(nil, plain))
	r.add(base64.RawStdEncoding.AppendEncode(nil, plain))
	r.add(base64.RawURLEncoding.AppendEncode(nil, plain))
}

// add adds a text to find, which it keeps.
func (r *Redactor) add(secret []byte) {
	appendLower(secret[:0], secret)
	for _, known := range r.secrets {
		if bytes.Equal(known, secret) {
			clear(secret)
			return
		}
	}
	r.secrets = append(r.secrets, secret)
}

// Wipe erases the secrets.
func (r *Redactor) Wipe() {
	for _, s := range r.secrets {
		clear(s)
	}
}

// Text returns a text with everything masked that must not show, and whether there was any.
// If json, a number of JSON with something masked becomes a string, and a security code is
// looked for in the strings alone that are values. raw is returned if nothing was found.
func (r *Redactor) Text(raw []byte, json bool) (_ []byte, redacted bool) {
	f := finder{Redactor: r, raw: raw, scratch: make([]byte, 0, len(raw))}
	if len(r.secrets) > 0 {
		f.lower = make([]byte, 0, len(raw))
	}
	defer func() {
		clear(f.scratch[:cap(f.scratch)])
		clear(f.lower[:cap(f.lower)])
	}()
	f.search(layer{text: raw}, f.layer)
	for _, c := range r.codes {
		f.code = c.digits
		if !json || c.anywhere {
			f.search(layer{text: raw}, f.codesOf)
			continue
		}
		for value := range stringValues(raw) {
			f.search(value, f.codesOf)
		}
	}

	switch {
	case f.marks == nil:
		return raw, false
	case json:
		return f.renderJSON(), true
	}
	return f.render(make([]byte, 0, len(raw)), 0, len(raw)), true
}

// A finder marks what must not show in a text.
type finder struct {
	*Redactor
	raw     []byte
	marks   []mark // of each byte; nil until one is set
	code    int    // digits of the codes that codesOf looks for
	scratch []byte // for decoded text
	lower   []byte // for text in lower case
}

// A mark is the fate of a byte.
type mark uint8

const (
	kept mark = iota
	masked
	dropped // of several that stand for one character
)

// hide marks a part of a layer: each of its bytes becomes an asterisk.
func (f *finder) hide(l *layer, start, end int) {
	if f.marks == nil {
		f.marks = make([]mark, len(f.raw))
	}
	for i := start; i < end; i++ {
		from, to := l.place(i), l.place(i+1)
		for j := from; j < to; j++ {
			if f.marks[j] == kept {
				f.marks[j] = dropped
			}
		}
		if from < to {
			f.marks[from] = masked
		}
	}
}

// render appends a part of the text, masked.
func (f *finder) render(to []byte, start, end int) []byte {
	for i := start; i < end; i++ {
		switch f.marks[i] {
		case kept:
			to = append(to, f.raw[i])
		case masked:
			to = append(to, '*')
		}
	}
	return to
}

// maxDepth bounds how many encodings inside each other are decoded.
const maxDepth = 4

// search calls look with a text, and with the text at each level of decoding.
func (f *finder) search(l layer, look func(*layer)) {
	look(&l)
	for range maxDepth {
		decoded, ok := l.decode()
		if !ok {
			return
		}
		defer clear(decoded.text)
		l = decoded
		look(&l)
	}
}

// layer looks for numbers and secrets.
func (f *finder) layer(l *layer) {
	f.plain(l.text, func(start, end int) { f.hide(l, start, end) })
	f.hex(l)
	f.base64(l)
	if unbroken, ok := l.unbroken(); ok {
		f.base64(&unbroken)
		clear(unbroken.text)
	}
}

// plain calls hide for each part of text to be masked that is not encoded.
func (f *finder) plain(text []byte, hide func(start, end int)) {
	f.digits(text, hide)
	if len(f.secrets) == 0 {
		return
	}
	f.lower = appendLower(f.lower[:0], text)
	for _, secret := range f.secrets {
		for from := 0; ; {
			i := bytes.Index(f.lower[from:], secret)
			if i < 0 {
				break
			}
			hide(from+i, from+i+len(secret))
			from += i + len(secret)
		}
	}
}

// appendLower appends text with ASCII letters in lower case. to may be the beginning of text.
func appendLower(to, text []byte) []byte {
	for _, c := range text {
		if 'A' <= c && c <= 'Z' {
			c |= ' '
		}
		to = append(to, c)
	}
	return to
}
