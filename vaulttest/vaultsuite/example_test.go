package vaultsuite_test

import (
	"path/filepath"
	"testing"

	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/storetest"
	"github.com/cardvault/cardvault/vaulttest/vaultsuite"
)

// The test of a store, after storetest.Run, with the same harness.
func ExampleRun() {
	_ = func(t *testing.T) {
		vaultsuite.Run(t, storetest.Harness{
			Open: func(t testing.TB) store.Store {
				s, err := openFile(t, filepath.Join(t.TempDir(), "cardvault.db"))
				if err != nil {
					t.Fatal(err)
				}
				return s
			},
			Reopen: func(t testing.TB, s store.Store) (store.Store, error) { return openFile(t, s.(file).path) },
		})
	}
}
