package seal_test

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"slices"
	"testing"

	"github.com/cardvault/cardvault/internal/hiding"
	"github.com/cardvault/cardvault/internal/seal"
	"github.com/google/uuid"
)

func TestCode(t *testing.T) {
	keys := seal.NewKeys(made)
	account, token := uuid.New(), uuid.New()
	plain := []byte("4711")
	other := seal.NewCodeKey()
	b := boxOf(keys)
	for name, secret := range map[string]*seal.CodeKey{"own": seal.NewCodeKey(), "shared": nil} {
		sealed := b.SealCode(secret, account, token, plain)
		try := func(secret *seal.CodeKey, account, token uuid.UUID, sealed []byte) error {
			got, err := b.OpenCode(secret, account, token, slices.Clone(sealed))
			if err == nil && !bytes.Equal(got, plain) {
				t.Errorf("%s: opens to another text", name)
			}
			return err
		}
		if err := try(secret, account, token, sealed); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if bytes.Contains(sealed, plain) || bytes.Equal(sealed, b.SealCode(secret, account, token, plain)) {
			t.Errorf("%s: not sealed, or sealed twice to the same bytes", name)
		}
		for what, err := range map[string]error{
			"another token":   try(secret, account, uuid.New(), sealed),
			"another account": try(secret, uuid.New(), token, sealed),
			"another secret":  try(other, account, token, sealed),
			"cut short":       try(secret, account, token, sealed[:len(sealed)-1]),
			"only a header":   try(secret, account, token, sealed[:37]),
			"nothing":         try(secret, account, token, nil),
		} {
			if !errors.Is(err, seal.ErrIntegrity) {
				t.Errorf("%s, %s: %v, want ErrIntegrity", name, what, err)
			}
		}
		for i := range sealed {
			sealed[i] ^= 1
			if try(secret, account, token, sealed) == nil {
				t.Errorf("%s: opens with byte %d changed", name, i)
			}
			sealed[i] ^= 1
		}
	}

	// Another vault does not open the code. This vault does, under a later term.
	sealed := b.SealCode(nil, account, token, plain)
	if _, err := boxOf(seal.NewKeys(made)).OpenCode(nil, account, token, slices.Clone(sealed)); !errors.Is(err, seal.ErrIntegrity) {
		t.Errorf("another vault: %v, want ErrIntegrity", err)
	}
	next := boxOf(keys.Next(made, seal.MaxTerms))
	if _, err := next.OpenCode(nil, account, token, slices.Clone(sealed)); err != nil {
		t.Errorf("after the keys were rotated: %v", err)
	}
	if _, err := b.OpenCode(nil, account, token, next.SealCode(nil, account, token, plain)); !errors.Is(err, seal.ErrUnknownTerm) {
		t.Errorf("before a rotation is known: %v, want ErrUnknownTerm", err)
	}
}

// TestCodeFormat opens a code with crypto/hkdf, following the comment on the format.
func TestCodeFormat(t *testing.T) {
	keys := seal.NewKeys(made)
	account, token := uuid.New(), uuid.New()
	sealed := boxOf(keys).SealCode(nil, account, token, []byte("4711"))
	m := keys.Masters[0]
	if sealed[0] != 1 || binary.BigEndian.Uint32(sealed[1:]) != m.Number {
		t.Fatalf("header %x", sealed[:5])
	}

	info := "cardvault 1 security code\x00" + string(keys.Vault[:]) + string(account[:]) + string(token[:]) + string(sealed[5:37])
	key, err := hkdf.Expand(sha256.New, hiding.Of(m.Key), info, 32)
	if err != nil {
		t.Fatal(err)
	}

	block, err := aes.NewCipher(key)
	if err != nil {
		t.Fatal(err)
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		t.Fatal(err)
	}

	if got, err := aead.Open(nil, nil, sealed[37:], sealed[:5]); err != nil || string(got) != "4711" {
		t.Errorf("opens to %q, %v", got, err)
	}
}

// BenchmarkCode measures the cost of a security code in an import, without the cache.
func BenchmarkCode(b *testing.B) {
	box := boxOf(seal.NewKeys(made))
	key, account, token, plain := seal.NewCodeKey(), uuid.New(), uuid.New(), make([]byte, 32)
	for b.Loop() {
		box.SealCode(key, account, token, plain)
	}
}
