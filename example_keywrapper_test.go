package cardvault_test

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"fmt"
	"log"

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

// This vault's keys are wrapped by a key held elsewhere. Package keytest tests a KeyWrapper.
func ExampleKeyWrapper() {
	block, err := aes.NewCipher(make([]byte, 32)) // use a random key
	if err != nil {
		log.Fatal(err)
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		log.Fatal(err)
	}

	ctx := context.Background()
	v, err := cardvault.New(ctx, memstore.New(), cardvault.WrappedBy(localKey{aead}), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer v.Close()
	fmt.Println(v.Mode())
	// Output: live
}
