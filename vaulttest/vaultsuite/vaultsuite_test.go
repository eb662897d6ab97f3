package vaultsuite_test

import (
	"path/filepath"
	"testing"

	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/boltstore"
	"github.com/cardvault/cardvault/store/memstore"
	"github.com/cardvault/cardvault/vaulttest/vaultsuite"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func mem(testing.TB) store.Store { return memstore.New() }

func bolt(t testing.TB) store.Store {
	t.Helper()
	s, err := boltstore.Open(t.Context(), filepath.Join(t.TempDir(), "cardvault.db"), nil)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestMem(t *testing.T)  { t.Parallel(); vaultsuite.Run(t, mem) }
func TestBolt(t *testing.T) { t.Parallel(); vaultsuite.Run(t, bolt) }
