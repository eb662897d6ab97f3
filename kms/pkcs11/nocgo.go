//go:build !cgo

package pkcs11

import (
	"context"
	"errors"
)

var errNoCgo = errors.New("pkcs11: this program was built without cgo")

// A Key cannot be had without cgo.
type Key struct{ _ struct{} }

// Open returns an error.
func Open(_ context.Context, module, token, key string, pin PIN, o *Options) (*Key, error) {
	if _, _, err := checked(module, token, key, pin, o); err != nil {
		return nil, err
	}
	return nil, errNoCgo
}

// Close does nothing.
func (*Key) Close() error { return nil }

// KeyID returns "".
func (*Key) KeyID() string { return "" }

// Wrap returns an error.
func (*Key) Wrap(context.Context, []byte, []byte) ([]byte, error) { return nil, errNoCgo }

// Unwrap returns an error.
func (*Key) Unwrap(context.Context, []byte, []byte) ([]byte, error) { return nil, errNoCgo }
