package payone

import (
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/cardvault/cardvault/internal/erase"
	"github.com/cardvault/cardvault/ppan"
)

// A form is the body of a request. The transport may still read it after the call that
// sends it has ended, in a goroutine of its own.
type form struct {
	mu    sync.Mutex
	text  []byte
	wiped bool
}

var errWiped = errors.New("payone: request has ended")

// newForm encodes a request into one buffer: what the hash covers as it was
// hashed, then the hash and the card.
func newForm(r *ppan.Request, travelCard bool) *form {
	list := HashParameters{r.Account.AID, r.Account.MID, r.Account.PortalID, r.Sandbox, travelCard}.list()
	expiry := fmt.Appendf(nil, "%02d%02d", r.Expiry.Year%100, r.Expiry.Month)
	var text []byte
	r.Account.Hash.Expose(func(hash []byte) {
		r.PAN.Expose(func(pan []byte) {
			r.SecurityCode.Expose(func(code []byte) {
				text = encode(append(list,
					parameter{"hash", hash},
					parameter{"cardpan", pan},
					parameter{"cardexpiredate", expiry},
					parameter{"cardcvc2", code},
				))
			})
		})
	})
	return &form{text: text}
}

// encode never grows its buffer: that would leave a copy behind.
func encode(list []parameter) []byte {
	size := 0
	for _, p := range list {
		size += len(p.name) + len("=&") + len("%00")*len(p.value)
	}

	text := make([]byte, 0, size)
	for _, p := range list {
		if len(p.value) == 0 {
			continue
		}
		if len(text) > 0 {
			text = append(text, '&')
		}
		text = append(text, p.name...)
		text = append(text, '=')

		for _, c := range p.value {
			if unreserved(c) {
				text = append(text, c)
			} else {
				const digits = "0123456789ABCDEF"
				text = append(text, '%', digits[c>>4], digits[c&15])
			}
		}
	}
	return text
}

func unreserved(c byte) bool {
	return '0' <= c && c <= '9' || 'A' <= c && c <= 'Z' || 'a' <= c && c <= 'z' ||
		c == '-' || c == '.' || c == '_' || c == '~'
}

// body returns a reader of the form from its beginning.
func (f *form) body() (io.ReadCloser, error) { return &formReader{form: f}, nil }

// wipe overwrites the form. Who is still reading it fails.
func (f *form) wipe() {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.text)
	f.wiped = true
}

type formReader struct {
	form *form
	read int
}

// Read fails only before the end. Once it has read everything, the transport flushes its
// buffer, even if the call has failed, and so erases it.
func (b *formReader) Read(p []byte) (int, error) {
	f := b.form
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case b.read == len(f.text):
		return 0, io.EOF
	case f.wiped:
		return 0, errWiped
	}
	n := copy(p, f.text[b.read:])
	erase.Registers()
	b.read += n
	return n, nil
}

func (b *formReader) Close() error { return nil }
