package keyfile

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/sha256"
	"encoding/hex"

	"github.com/cardvault/cardvault/internal/ledger"
)

// Size is the size of a key, in bytes.
const Size = 32

var _ ledger.Wrapper = (*Key)(nil)

// A Key is a key-encryption key in memory.
type Key struct {
	aead cipher.AEAD
	id   string
}

// NewKey returns the Key of Size bytes, which are not kept.
func NewKey(secret []byte) *Key { return &Key{newAEAD(secret), keyID(secret)} }

// KeyID names the key.
func (k *Key) KeyID() string { return k.id }

// Wrap encrypts plaintext, bound to aad.
func (k *Key) Wrap(_ context.Context, plaintext, aad []byte) ([]byte, error) {
	return k.aead.Seal(nil, nil, plaintext, aad), nil
}

// Unwrap returns what Wrap was given, or ledger.ErrWrongKey.
func (k *Key) Unwrap(_ context.Context, wrapped, aad []byte) ([]byte, error) {
	plaintext, err := k.aead.Open(nil, nil, wrapped, aad)
	if err != nil {
		return nil, ledger.ErrWrongKey
	}
	return plaintext, nil
}

func newAEAD(key []byte) cipher.AEAD {
	block, err := aes.NewCipher(key)
	if err != nil {
		panic(err) // only for a key that is not of an AES size
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		panic(err) // only for a block that is not AES
	}
	return aead
}

// keyID names a key by a hash. It reveals nothing of a key of 256 random bits.
func keyID(key []byte) string {
	sum := sha256.Sum256(append([]byte("cardvault key id\x00"), key...))
	return hex.EncodeToString(sum[:8])
}
