// Package hiding keeps values out of texts, logs and encodings: the types of the product
// that hide their value embed its Bytes.
package hiding

import (
	"bytes"
	"encoding"
	"fmt"
	"log/slog"
)

// Bytes keeps a value where fmt, reflection and encoders cannot reach it. They
// cannot look into a closure, even in an unexported field, where they would not
// call a method. It also makes == on a type that embeds it fail to compile.
//
// A package embeds it by an alias that is not exported, so that no other package can name
// the field and replace the value.
type Bytes struct{ bytes func() []byte }

var (
	_ fmt.Formatter          = Bytes{}
	_ slog.LogValuer         = Bytes{}
	_ encoding.TextMarshaler = Bytes{}
)

// New returns Bytes of a copy of b.
func New(b []byte) Bytes {
	if len(b) == 0 {
		return Bytes{}
	}
	b = bytes.Clone(b)
	return Bytes{func() []byte { return b }}
}

func (h Bytes) get() []byte {
	if h.bytes == nil {
		return nil
	}
	return h.bytes()
}

// Of returns the value itself of a type that embeds Bytes, nil if there is none.
func Of(h interface{ get() []byte }) []byte { return h.get() }

// IsZero reports whether there is no value.
func (h Bytes) IsZero() bool { return h.bytes == nil }

// Expose calls f with the value, the one way to get it. f must not keep or
// change the slice. It is called with nil if there is no value.
func (h Bytes) Expose(f func(value []byte)) { f(h.get()) }

// Wipe overwrites the value with zeros, here and in every copy.
func (h Bytes) Wipe() { clear(h.get()) }

// String returns a text of fixed length, "" if there is no value.
func (h Bytes) String() string {
	if len(h.get()) == 0 {
		return ""
	}
	return "***"
}

// Format, LogValue and MarshalText exist so that no verb, flag or encoder falls back to
// reflection.

func (h Bytes) Format(s fmt.State, _ rune)   { fmt.Fprint(s, h.String()) }
func (h Bytes) LogValue() slog.Value         { return slog.StringValue(h.String()) }
func (h Bytes) MarshalText() ([]byte, error) { return []byte(h.String()), nil }
