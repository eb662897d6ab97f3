// Package remote makes a [cardvault.KeyWrapper] of a key that a service or a device holds.
//
// All such wrappers have these rules. A call ends after [Timeout]. The first call of Wrap checks
// that its result unwraps, and that the service refuses it with other associated data: some
// services ignore associated data, and say nothing.
package remote

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/cardvault/cardvault"
)

// Timeout limits a call of Wrap or Unwrap, so that a vault which opens does not wait for ever.
const Timeout = 10 * time.Second

// A Func encrypts a text, or decrypts it, bound to aad. It neither changes nor keeps its
// arguments, and is called concurrently. A Func that decrypts returns an error that wraps
// [cardvault.ErrWrongKey] only if the key refuses the text.
type Func func(ctx context.Context, text, aad []byte) ([]byte, error)

// New returns a wrapper of a key. The name is as [cardvault.KeyWrapper] says.
func New(keyID string, encrypt, decrypt Func) cardvault.KeyWrapper {
	return &wrapper{keyID: keyID, encrypt: encrypt, decrypt: decrypt}
}

type wrapper struct {
	keyID            string
	encrypt, decrypt Func
	checked          atomic.Bool
}

// KeyID implements [cardvault.KeyWrapper].
func (w *wrapper) KeyID() string { return w.keyID }

// Wrap implements [cardvault.KeyWrapper].
func (w *wrapper) Wrap(ctx context.Context, plaintext, aad []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	if err := ctx.Err(); err != nil {
		return nil, err
	}

	wrapped, err := w.encrypt(ctx, plaintext, aad)
	if err != nil {
		return nil, ended(ctx, err)
	}
	if len(wrapped) == 0 || len(wrapped) > cardvault.MaxWrapped {
		return nil, fmt.Errorf("kms: key %s wrapped a text in %d bytes", w.keyID, len(wrapped))
	}
	if !w.checked.Load() {
		if err := w.check(ctx, wrapped, plaintext, aad); err != nil {
			return nil, ended(ctx, err)
		}
		w.checked.Store(true)
	}
	return wrapped, nil
}

// check returns an error unless wrapped is unwrapped to plaintext, and only with aad. The
// error is not ErrWrongKey: an operator who looks for another key would find none.
func (w *wrapper) check(ctx context.Context, wrapped, plaintext, aad []byte) error {
	got, err := w.decrypt(ctx, wrapped, aad)
	defer clear(got)
	switch {
	case errors.Is(err, cardvault.ErrWrongKey):
		return fmt.Errorf("kms: key %s refuses a text that it has just wrapped", w.keyID)
	case err != nil:
		return err
	case subtle.ConstantTimeCompare(got, plaintext) != 1:
		return fmt.Errorf("kms: key %s unwraps another text than it has just wrapped", w.keyID)
	}

	other, err := w.decrypt(ctx, wrapped, append(bytes.Clone(aad), 0))
	defer clear(other)
	switch {
	case err == nil:
		return fmt.Errorf("kms: key %s ignores associated data", w.keyID)
	case !errors.Is(err, cardvault.ErrWrongKey):
		return err
	}
	return nil
}

// Unwrap implements [cardvault.KeyWrapper].
func (w *wrapper) Unwrap(ctx context.Context, wrapped, aad []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	if err := ctx.Err(); err != nil {
		return nil, err
	}

	if len(wrapped) == 0 || len(wrapped) > cardvault.MaxWrapped {
		return nil, cardvault.ErrWrongKey
	}
	plaintext, err := w.decrypt(ctx, wrapped, aad)
	if err != nil {
		return nil, ended(ctx, err)
	}
	if len(plaintext) == 0 { // clients take an answer without a plaintext for an empty one
		return nil, fmt.Errorf("kms: key %s unwrapped nothing", w.keyID)
	}
	return plaintext, nil
}

// ended returns err, or the error of a context that has ended: a call that was cut off
// reports nothing of the key.
func ended(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("kms: %w", ctx.Err())
	}
	return err
}

// WrongKey returns an error that wraps ErrWrongKey and err.
func WrongKey(err error) error { return fmt.Errorf("%w: %w", cardvault.ErrWrongKey, err) }

// Opaque returns decrypt for a service whose errors do not distinguish a refused text from
// an outage. Such a service refuses the text if it fails twice, while the key encrypts and
// decrypts another text between the two calls.
func Opaque(encrypt, decrypt Func) Func {
	works := func(ctx context.Context, aad []byte) bool {
		probe := make([]byte, 32)
		rand.Read(probe)
		text, err := encrypt(ctx, probe, aad)
		if err != nil {
			return false
		}
		got, err := decrypt(ctx, text, aad)
		return err == nil && bytes.Equal(got, probe)
	}

	return func(ctx context.Context, text, aad []byte) ([]byte, error) {
		plaintext, err := decrypt(ctx, text, aad)
		if err == nil || ctx.Err() != nil || !works(ctx, aad) {
			return plaintext, err
		}
		plaintext, err = decrypt(ctx, text, aad)
		if err != nil && ctx.Err() == nil {
			return nil, WrongKey(err)
		}
		return plaintext, err
	}
}

// Calls bounds the calls of a library that takes no context. A call may outlast its
// caller, and holds its place until it returns.
type Calls chan struct{}

// Do calls f, which must not use memory of its caller. The result of a call that outlasts
// ctx is erased.
func (c Calls) Do(ctx context.Context, f func() ([]byte, error)) ([]byte, error) {
	select {
	case c <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}

	type result struct {
		text []byte
		err  error
	}
	results := make(chan result)
	go func() {
		defer func() { <-c }()
		text, err := f()
		select {
		case results <- result{text, err}:
		case <-ctx.Done():
			clear(text)
		}
	}()
	select {
	case r := <-results:
		return r.text, r.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
