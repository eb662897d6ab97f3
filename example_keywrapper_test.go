package cardvault_test

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/store/memstore"
)

// A localKey is the skeleton of a KeyWrapper. It holds its key itself, where a real one
// calls a KMS.
type localKey struct{ aead cipher.AEAD }

var _ cardvault.KeyWrapper = localKey{}

func (localKey) KeyID() string { return "local/1" }

func (k localKey) Wrap(ctx context.Context, key, aad []byte) ([]byte, error) {
	return k.aead.Seal(nil, nil, key, aad), ctx.Err()
}

// Unwrap distinguishes a data key that is not wrapped by this key from a call that may succeed
// later.
func (k localKey) Unwrap(ctx context.Context, wrapped, aad []byte) ([]byte, error) {
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	key, err := k.aead.Open(nil, nil, wrapped, aad)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", cardvault.ErrWrongKey, err)
	}
	return key, nil
}

// A vault that began with a key file moves to a KMS while it is open. Open does the same when
// it gets both keys: see ExampleJoinKeyrings.
func ExampleVault_ChangeKeyring() {
	ctx, dir := context.Background(), temporary()
	defer os.RemoveAll(dir)
	file, err := cardvault.KeyFile(filepath.Join(dir, "vault.key"), nil)
	if err != nil {
		log.Fatal(err)
	}
	s := memstore.New()
	v, err := cardvault.New(ctx, s, file, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer v.Close()

	kms := cardvault.WrappedBy(newLocalKey())
	if err := v.ChangeKeyring(ctx, kms); err != nil {
		log.Fatal(err)
	}
	_, err = cardvault.New(ctx, s, file, nil)
	fmt.Println("with the key file:", errors.Is(err, cardvault.ErrWrongKey))
	// Output: with the key file: true
}

// A program that is started with the new key and the former one moves its vault to the new
// one. From the next start on it needs the new one alone.
func ExampleJoinKeyrings() {
	ctx, dir := context.Background(), temporary()
	defer os.RemoveAll(dir)
	former, err := cardvault.KeyFile(filepath.Join(dir, "keys", "vault.key"), nil)
	if err != nil {
		log.Fatal(err)
	}
	kms := cardvault.WrappedBy(newLocalKey())
	for _, keys := range []*cardvault.Keyring{former, cardvault.JoinKeyrings(kms, former), kms} {
		v, err := cardvault.Open(ctx, filepath.Join(dir, "vault"), keys, nil)
		if err != nil {
			log.Fatal(err)
		}
		if err := v.Close(); err != nil {
			log.Fatal(err)
		}
	}
	_, err = cardvault.Open(ctx, filepath.Join(dir, "vault"), former, nil)
	fmt.Println("with the former key:", errors.Is(err, cardvault.ErrWrongKey))
	// Output: with the former key: true
}

func temporary() string {
	dir, err := os.MkdirTemp("", "cardvault")
	if err != nil {
		log.Fatal(err)
	}
	return dir
}

func newLocalKey() localKey {
	block, err := aes.NewCipher(make([]byte, 32)) // use a random key
	if err != nil {
		log.Fatal(err)
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		log.Fatal(err)
	}
	return localKey{aead}
}

// This vault's keys are wrapped by a key held elsewhere. Package keytest tests a KeyWrapper.
func ExampleKeyWrapper() {
	ctx := context.Background()
	v, err := cardvault.New(ctx, memstore.New(), cardvault.WrappedBy(newLocalKey()), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer v.Close()
	fmt.Println(v.Mode())
	// Output: live
}
