// Package vaulttest helps to test programs that keep cards in a vault.
//
// [New] returns the real vault, in memory:
//
//	v := vaulttest.New(t)
//
// [NewNetwork] returns one with a simulated network, so that cards get network tokens.
//
// A vault starts no goroutine and reads the clock of package time only, so a test that
// runs in a bubble of testing/synctest decides what time it is. Sockets stop the clock of
// a bubble: webhooks are received in memory there, with webhooktest.NewSender.
//
// [AssertNoLeak] proves of logs, errors, answers and files that the card data
// that a test has used is not in them. [AssertNoCardNumber] looks for any card
// number.
//
// Package vaultsuite below is for authors of a store: it tests the behaviour of a
// vault on it.
package vaulttest

import (
	"crypto/rand"
	"testing"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/store/memstore"
)

// New returns a new sandbox vault in memory, under a key of its own, that is
// closed when the test ends.
func New(t testing.TB) *cardvault.Vault {
	t.Helper()
	return NewWith(t, nil)
}

// NewWith is New with options, which are taken as they are: their zero Mode is
// Live. If opts is nil the vault is a sandbox.
func NewWith(t testing.TB, opts *cardvault.Options) *cardvault.Vault {
	t.Helper()
	if opts == nil {
		opts = &cardvault.Options{Mode: cardvault.Sandbox}
	}

	key := make([]byte, cardvault.KeySize)
	rand.Read(key)
	keys, err := cardvault.KeyBytes(key)
	if err != nil {
		t.Fatal(err)
	}
	v, err := cardvault.New(t.Context(), memstore.New(), keys, opts)
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() {
		if err := v.Close(); err != nil {
			t.Errorf("closing the vault: %v", err)
		}
	})
	return v
}
