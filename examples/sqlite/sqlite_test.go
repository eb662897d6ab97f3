package sqlite

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/storetest"
	"github.com/cardvault/cardvault/vaulttest/vaultsuite"
)

func TestMain(m *testing.M) {
	storetest.Child(func(path string) (store.Store, error) { return Open(context.Background(), path) })
	os.Exit(m.Run())
}

func TestStore(t *testing.T) { storetest.Run(t, harness) }

func TestVault(t *testing.T) { vaultsuite.Run(t, harness) }

// harness opens and reopens a file for the suites, also from a second process and as a
// power loss leaves it, and makes it fail.
var harness = storetest.Harness{
	Open: func(t testing.TB) store.Store {
		s, err := Open(t.Context(), filepath.Join(t.TempDir(), "vault.db"))
		if err != nil {
			t.Fatal(err)
		}
		return s
	},
	Reopen: again,
	Second: again,
	Crash: func(t testing.TB, s store.Store) (store.Store, error) {
		dir, name := filepath.Split(s.(*Store).path)
		return Open(t.Context(), filepath.Join(storetest.AfterPowerCut(t, dir), name))
	},
	Place: func(s store.Store) string { return s.(*Store).path },
	Fault: fault,
}

func again(t testing.TB, s store.Store) (store.Store, error) {
	return Open(t.Context(), s.(*Store).path)
}

func fault(t testing.TB, s store.Store, f storetest.Fault) (mend func()) {
	exec := func(query string, args ...any) {
		if _, err := s.(*Store).writes.Exec(query, args...); err != nil {
			t.Fatal(err)
		}
	}
	switch f.Kind {
	case storetest.NoRoom:
		exec("PRAGMA max_page_count = 1") // SQLite never goes below the present number
		return func() { exec(fmt.Sprint("PRAGMA max_page_count = ", 1<<30)) }
	case storetest.DamagedRecord:
		exec("UPDATE records SET hashes = '[' WHERE kind = ? AND id = ?", f.Record.Kind, f.Record.ID[:])
		return func() {
			exec("UPDATE records SET hashes = '[]' WHERE kind = ? AND id = ?", f.Record.Kind, f.Record.ID[:])
		}
	}
	return nil
}
