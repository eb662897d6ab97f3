package boltstore_test

import (
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/boltstore"
	"github.com/cardvault/cardvault/store/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestStore(t *testing.T) {
	storetest.Run(t, func(t testing.TB) store.Store {
		s, err := boltstore.Open(t.Context(), filepath.Join(t.TempDir(), "vault.db"), nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
		return s
	})
}
