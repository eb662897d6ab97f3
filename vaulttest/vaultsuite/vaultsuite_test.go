package vaultsuite_test

import (
	"path/filepath"
	"testing"

	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/boltstore"
	"github.com/cardvault/cardvault/store/memstore"
	"github.com/cardvault/cardvault/store/storetest"
	"github.com/cardvault/cardvault/vaulttest/vaultsuite"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func mem(testing.TB) store.Store { return memstore.New() }

// A file is a store that knows where it is.
type file struct {
	*boltstore.Store
	path string
}

func openFile(t testing.TB, path string) (store.Store, error) {
	s, err := boltstore.Open(t.Context(), path, &boltstore.Options{LockTimeout: -1})
	return file{s, path}, err
}

func bolt(t testing.TB) store.Store {
	t.Helper()
	s, err := openFile(t, filepath.Join(t.TempDir(), "cardvault.db"))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func reopen(t testing.TB, s store.Store) (store.Store, error) { return openFile(t, s.(file).path) }

func TestMem(t *testing.T) {
	t.Parallel()
	vaultsuite.Run(t, storetest.Harness{Open: mem})
}

func TestBolt(t *testing.T) {
	t.Parallel()
	vaultsuite.Run(t, storetest.Harness{
		Open:   bolt,
		Reopen: reopen,
		Second: reopen,
		Crash: func(t testing.TB, s store.Store) (store.Store, error) {
			dir, name := filepath.Split(s.(file).path)
			return openFile(t, filepath.Join(storetest.AfterPowerCut(t, dir), name))
		},
	})
}
