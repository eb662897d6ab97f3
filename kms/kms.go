// Package kms wraps the keys of a vault under a key that a key management service holds.
//
// [FromAEAD] takes the AEAD of a library such as Tink, through which AWS KMS and Google Cloud
// KMS are reached. [Transit] is a client of the transit engine of OpenBao and HashiCorp
// Vault. The modules below this one have their own dependencies: package gocloud takes a
// Keeper of gocloud.dev/secrets, package pkcs11 a key in an HSM, and package shares a key
// that several custodians hold together.
//
// The service never sees a card, and is called when a vault is opened and when keys are
// rotated. Every call ends after 10 seconds. The first call of Wrap checks that its result
// unwraps, and that the service does not ignore associated data. So the log of a service shows
// one refused request for each process that wraps.
package kms

import (
	"bytes"
	"context"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/kms/internal/remote"
)

// maxCalls limits the calls of an AEAD that are under way.
const maxCalls = 4

// AEAD is authenticated encryption with associated data, as tink.AEAD of Tink has it.
type AEAD interface {
	Encrypt(plaintext, associatedData []byte) ([]byte, error)
	Decrypt(ciphertext, associatedData []byte) ([]byte, error)
}

// AEADWithContext is an [AEAD] whose calls end with a context, as tink.AEADWithContext of
// Tink has it.
type AEADWithContext interface {
	EncryptWithContext(ctx context.Context, plaintext, associatedData []byte) ([]byte, error)
	DecryptWithContext(ctx context.Context, ciphertext, associatedData []byte) ([]byte, error)
}

// FromAEAD returns a wrapper of the key behind a. The key may be in memory or in a service.
// It encrypts 32 bytes, and binds associated data.
//
// The name must be the same whenever the vault is opened, and has 1 to 255 bytes. It is
// stored in clear, such as the ARN of a key.
//
// The errors of an AEAD do not say whether the key refuses a text. So after an error the key
// encrypts and decrypts a text of its own: ErrWrongKey means that it does so, and still refuses
// the text. The process therefore needs permission to encrypt too.
//
// If a is an [AEADWithContext] too, calls end with their context. Otherwise calls may outlast
// their context: four at a time are under way, and more wait.
func FromAEAD(keyID string, a AEAD) cardvault.KeyWrapper {
	if c, ok := a.(AEADWithContext); ok {
		return FromAEADWithContext(keyID, c)
	}
	return FromAEADWithContext(keyID, contextless{a, make(remote.Calls, maxCalls)})
}

// FromAEADWithContext is [FromAEAD] of an AEAD that has only the calls with a context.
func FromAEADWithContext(keyID string, a AEADWithContext) cardvault.KeyWrapper {
	return remote.New(keyID, a.EncryptWithContext, remote.Opaque(a.EncryptWithContext, a.DecryptWithContext))
}

// A contextless AEAD works on copies, because its calls may outlast a call of the wrapper.
type contextless struct {
	aead  AEAD
	calls remote.Calls
}

func (c contextless) EncryptWithContext(ctx context.Context, plaintext, aad []byte) ([]byte, error) {
	return c.do(ctx, c.aead.Encrypt, plaintext, aad)
}

func (c contextless) DecryptWithContext(ctx context.Context, ciphertext, aad []byte) ([]byte, error) {
	return c.do(ctx, c.aead.Decrypt, ciphertext, aad)
}

func (c contextless) do(ctx context.Context, f func(text, aad []byte) ([]byte, error), text, aad []byte) ([]byte, error) {
	text, aad = bytes.Clone(text), bytes.Clone(aad)
	return c.calls.Do(ctx, func() ([]byte, error) {
		defer clear(text)
		return f(text, aad)
	})
}
