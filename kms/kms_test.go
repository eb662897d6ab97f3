package kms_test

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/sha256"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/keytest"
	"github.com/cardvault/cardvault/kms"
	"github.com/cardvault/cardvault/store/memstore"
)

// gcm returns a cipher whose key is made from a name.
func gcm(name string) cipher.AEAD {
	sum := sha256.Sum256([]byte(name))
	block, err := aes.NewCipher(sum[:])
	if err != nil {
		panic(err)
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		panic(err)
	}
	return aead
}

var errOpaque = errors.New("decryption failed")

// A primitive has the shape of tink.AEAD.
type primitive struct {
	aead cipher.AEAD
	down atomic.Bool
}

func (p *primitive) Encrypt(plaintext, associatedData []byte) ([]byte, error) {
	if p.down.Load() {
		return nil, errOpaque
	}
	return p.aead.Seal(nil, nil, plaintext, associatedData), nil
}

func (p *primitive) Decrypt(ciphertext, associatedData []byte) ([]byte, error) {
	plaintext, err := p.aead.Open(nil, nil, ciphertext, associatedData)
	if err != nil || p.down.Load() {
		return nil, errOpaque
	}
	return plaintext, nil
}

// A contextual has both shapes. Its calls without a context must not be used.
type contextual struct {
	primitive
}

func (*contextual) Encrypt(_, _ []byte) ([]byte, error) { panic("a call without a context") }
func (*contextual) Decrypt(_, _ []byte) ([]byte, error) { panic("a call without a context") }

func (c *contextual) EncryptWithContext(ctx context.Context, plaintext, associatedData []byte) ([]byte, error) {
	text, err := c.primitive.Encrypt(plaintext, associatedData)
	return text, errors.Join(err, ctx.Err())
}

func (c *contextual) DecryptWithContext(ctx context.Context, ciphertext, associatedData []byte) ([]byte, error) {
	text, err := c.primitive.Decrypt(ciphertext, associatedData)
	return text, errors.Join(err, ctx.Err())
}

func TestAEAD(t *testing.T) {
	for what, open := range map[string]func(name string) cardvault.KeyWrapper{
		"without a context": func(name string) cardvault.KeyWrapper { return kms.FromAEAD("key", &primitive{aead: gcm(name)}) },
		"with both": func(name string) cardvault.KeyWrapper {
			return kms.FromAEAD("key", &contextual{primitive{aead: gcm(name)}})
		},
		"with a context only": func(name string) cardvault.KeyWrapper {
			return kms.FromAEADWithContext("key", &contextual{primitive{aead: gcm(name)}})
		},
	} {
		t.Run(what, func(t *testing.T) {
			keytest.Run(t, keytest.Harness{
				Open:  func(testing.TB) cardvault.KeyWrapper { return open("ours") },
				Other: func(testing.TB) cardvault.KeyWrapper { return open("other") },
			})
		})
	}
}

// TestAEADDown: a key that does nothing is not a wrong key.
func TestAEADDown(t *testing.T) {
	p := &primitive{aead: gcm("ours")}
	w := kms.FromAEAD("key", p)
	wrapped, err := w.Wrap(t.Context(), bytes.Repeat([]byte{7}, 32), nil)
	if err != nil {
		t.Fatal(err)
	}
	p.down.Store(true)
	if _, err := w.Unwrap(t.Context(), wrapped, nil); !errors.Is(err, errOpaque) || errors.Is(err, cardvault.ErrWrongKey) {
		t.Error(err)
	}
}

// A Tink keyset, AWS KMS and Google Cloud KMS through Tink all have the shape of this AEAD.
func ExampleFromAEAD() {
	var aead kms.AEAD = &primitive{aead: gcm("cards")} // or aead.New of Tink

	keys := cardvault.WrappedBy(kms.FromAEAD("tink/cards", aead))
	v, err := cardvault.New(context.Background(), memstore.New(), keys, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer v.Close()
	fmt.Println(v.Mode())
	// Output: live
}
