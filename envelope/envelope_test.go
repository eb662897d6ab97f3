package envelope_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/envelope"
	"github.com/cardvault/cardvault/internal/bubble"
	"github.com/cardvault/cardvault/keytest"
	"github.com/cardvault/cardvault/store/memstore"
)

// An hsm decrypts with RSA-OAEP, like a module behind PKCS #11. It has no associated data,
// and encrypts at most 190 bytes.
type hsm struct{ key *rsa.PrivateKey }

func (h *hsm) encrypt(_ context.Context, key, _ []byte) ([]byte, error) {
	return rsa.EncryptOAEP(sha256.New(), rand.Reader, &h.key.PublicKey, key, nil)
}

func (h *hsm) decrypt(_ context.Context, encrypted, _ []byte) ([]byte, error) {
	key, err := rsa.DecryptOAEP(sha256.New(), nil, h.key, encrypted, nil)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", cardvault.ErrWrongKey, err)
	}
	return key, nil
}

func newHSM() *hsm {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		panic(err)
	}
	return &hsm{key}
}

func ExampleNew() {
	kms := newHSM() // or a client of a service

	ctx := context.Background()
	v, err := cardvault.New(ctx, memstore.New(), cardvault.WrappedBy(envelope.New("hsm/cards", kms.encrypt, kms.decrypt)), nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer v.Close()
	fmt.Println(v.Mode())
	// Output: live
}

func TestContract(t *testing.T) {
	ours, other := newHSM(), newHSM()
	open := func(h *hsm) func(testing.TB) cardvault.KeyWrapper {
		return func(testing.TB) cardvault.KeyWrapper { return envelope.New("hsm/cards", h.encrypt, h.decrypt) }
	}
	keytest.Run(t, keytest.Harness{Open: open(ours), Other: open(other)})
}

var errDown = errors.New("down")

// TestFailures: ErrWrongKey means that the KMS refuses the text, or that the text contains
// no key.
func TestFailures(t *testing.T) {
	keep := func(_ context.Context, text, _ []byte) ([]byte, error) { return bytes.Clone(text), nil }
	fail := func(context.Context, []byte, []byte) ([]byte, error) { return nil, errDown }
	wrapped, err := envelope.New("kms", keep, keep).Wrap(t.Context(), []byte("keys"), nil)
	if err != nil {
		t.Fatal(err)
	}

	if _, err := envelope.New("kms", fail, keep).Wrap(t.Context(), []byte("keys"), nil); !errors.Is(err, errDown) {
		t.Errorf("Wrap without a KMS: %v", err)
	}
	if _, err := envelope.New("kms", keep, fail).Unwrap(t.Context(), wrapped, nil); !errors.Is(err, errDown) || errors.Is(err, cardvault.ErrWrongKey) {
		t.Errorf("Unwrap without a KMS: %v", err)
	}
	long := func(context.Context, []byte, []byte) ([]byte, error) { return make([]byte, 1<<16), nil }
	if wrapped, err := envelope.New("kms", long, keep).Wrap(t.Context(), []byte("keys"), nil); err == nil {
		t.Errorf("a key that is encrypted in 65,536 bytes is wrapped in %d", len(wrapped))
	}
	none := func(context.Context, []byte, []byte) ([]byte, error) { return nil, nil }
	if wrapped, err := envelope.New("kms", none, keep).Wrap(t.Context(), []byte("keys"), nil); err == nil {
		t.Errorf("a key that is not encrypted is wrapped in %d bytes", len(wrapped))
	}
	for _, text := range [][]byte{nil, {0}, {0, 0}, {0, 1}, append([]byte{0, 0}, wrapped...)} {
		if _, err := envelope.New("kms", keep, fail).Unwrap(t.Context(), text, nil); !errors.Is(err, cardvault.ErrWrongKey) {
			t.Errorf("Unwrap of %x: %v", text, err)
		}
	}
	if _, err := envelope.New("kms", keep, long).Unwrap(t.Context(), wrapped, nil); !errors.Is(err, cardvault.ErrWrongKey) {
		t.Errorf("a key of 65,536 bytes: %v", err)
	}
}

// TestWipes: a KMS may modify its arguments.
func TestWipes(t *testing.T) {
	wipe := func(_ context.Context, text, aad []byte) ([]byte, error) {
		kept := bytes.Clone(text)
		clear(text)
		clear(aad)
		return kept, nil
	}
	w, aad := envelope.New("kms", wipe, wipe), []byte("aad")
	wrapped, err := w.Wrap(t.Context(), []byte("keys"), aad)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if plain, err := w.Unwrap(t.Context(), wrapped, aad); err != nil || string(plain) != "keys" || string(aad) != "aad" {
			t.Fatalf("Unwrap = %q, %v", plain, err)
		}
	}
}

// TestDeadline: a hanging KMS ends the call, not the vault.
func TestDeadline(t *testing.T) {
	hang := func(ctx context.Context, _, _ []byte) ([]byte, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	bubble.Test(t, func(t *testing.T) {
		begin := time.Now()
		w := envelope.New("kms", hang, hang)
		_, wrapping := w.Wrap(t.Context(), []byte("keys"), nil)
		_, unwrapping := w.Unwrap(t.Context(), bytes.Repeat([]byte{0, 1}, 100), nil)
		if !errors.Is(wrapping, context.DeadlineExceeded) || !errors.Is(unwrapping, context.DeadlineExceeded) || time.Since(begin) != 20*time.Second {
			t.Errorf("after %v: %v, %v", time.Since(begin), wrapping, unwrapping)
		}
	})
}
