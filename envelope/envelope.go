// Package envelope makes a [cardvault.KeyWrapper] of a KMS that encrypts no more than a key.
//
// A wrapper takes up to [cardvault.MaxWrapped] bytes, bound to associated data. AWS KMS encrypts
// 4 KiB, RSA a few hundred bytes, and some services know no associated data. So the KMS encrypts
// a random key for each text, and that key seals the text with AES-256-GCM.
package envelope

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/internal/keyfile"
)

// timeout bounds a call to the KMS, so that a vault which opens does not wait for ever.
const timeout = 10 * time.Second

const prefix = 2 // bytes that hold the length of the encrypted key

// A Func encrypts a text by the key of a KMS, or decrypts it. It may be called concurrently,
// and its context ends after 10 seconds at most.
type Func func(ctx context.Context, text, aad []byte) ([]byte, error)

// New returns a wrapper of the key of a KMS, whose name is as [cardvault.KeyWrapper] says.
//
// encrypt encrypts a key of 32 bytes, in up to 65,535 bytes. It may bind that to aad too,
// such as for the log of the KMS. The wrapper's result is bound to aad in any case.
//
// decrypt returns the plaintext of encrypt. If the KMS refuses the text, or aad, its error
// wraps [cardvault.ErrWrongKey]. Any other error is transient, such as when the KMS is out
// of reach or denies access.
func New(keyID string, encrypt, decrypt Func) cardvault.KeyWrapper {
	return &wrapper{keyID, encrypt, decrypt}
}

type wrapper struct {
	keyID            string
	encrypt, decrypt Func
}

// KeyID implements [cardvault.KeyWrapper].
func (w *wrapper) KeyID() string { return w.keyID }

// Wrap implements [cardvault.KeyWrapper].
func (w *wrapper) Wrap(ctx context.Context, plaintext, aad []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if err := ctx.Err(); err != nil {
		return nil, err
	}

	key := make([]byte, keyfile.Size)
	defer clear(key)
	rand.Read(key)
	sealer := keyfile.NewKey(key) // before the KMS, which may wipe the key
	encrypted, err := w.encrypt(ctx, key, slices.Clone(aad))
	switch {
	case err != nil:
		return nil, err
	case len(encrypted) == 0 || len(encrypted) > math.MaxUint16:
		return nil, fmt.Errorf("envelope: KMS encrypted a key in %d bytes", len(encrypted))
	}

	sealed, err := sealer.Wrap(ctx, plaintext, aad)
	if err != nil {
		return nil, err
	}
	return slices.Concat(binary.BigEndian.AppendUint16(nil, uint16(len(encrypted))), encrypted, sealed), nil
}

// Unwrap implements [cardvault.KeyWrapper].
func (w *wrapper) Unwrap(ctx context.Context, wrapped, aad []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if err := ctx.Err(); err != nil {
		return nil, err
	}

	if len(wrapped) < prefix {
		return nil, cardvault.ErrWrongKey
	}
	end := prefix + int(binary.BigEndian.Uint16(wrapped))
	if end == prefix || end > len(wrapped) {
		return nil, cardvault.ErrWrongKey
	}
	key, err := w.decrypt(ctx, slices.Clone(wrapped[prefix:end]), slices.Clone(aad))
	if err != nil {
		return nil, err
	}
	defer clear(key)
	if len(key) != keyfile.Size {
		return nil, cardvault.ErrWrongKey
	}
	return keyfile.NewKey(key).Unwrap(ctx, wrapped[end:], aad)
}
