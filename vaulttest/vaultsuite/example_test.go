package vaultsuite_test

import (
	"path/filepath"
	"testing"

	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/boltstore"
	"github.com/cardvault/cardvault/vaulttest/vaultsuite"
)

// The test of a store, after storetest.Run.
func ExampleRun() {
	_ = func(t *testing.T) {
		vaultsuite.Run(t, func(t testing.TB) store.Store {
			s, err := boltstore.Open(t.Context(), filepath.Join(t.TempDir(), "cardvault.db"), nil)
			if err != nil {
				t.Fatal(err)
			}
			return s
		})
	}
}
