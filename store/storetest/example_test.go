package storetest_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/boltstore"
	"github.com/cardvault/cardvault/store/storetest"
)

// A located store is your store, here from package boltstore, with its path.
type located struct {
	store.Store
	path string
}

func openAt(path string) (store.Store, error) {
	s, err := boltstore.Open(context.Background(), path, &boltstore.Options{LockTimeout: -1})
	if err != nil {
		return nil, err
	}
	return located{s, path}, nil
}

// The whole test of a store on a file that only one process can open at a time. If several
// processes can share your store, return another one from Second.
func ExampleRun() {
	_ = func(m *testing.M) { // TestMain
		storetest.Child(openAt)
		os.Exit(m.Run())
	}

	again := func(_ testing.TB, s store.Store) (store.Store, error) { return openAt(s.(located).path) }
	_ = func(t *testing.T) { // TestStore
		storetest.Run(t, storetest.Harness{
			Open: func(t testing.TB) store.Store {
				s, err := openAt(filepath.Join(t.TempDir(), "vault.db"))
				if err != nil {
					t.Fatal(err)
				}
				return s
			},
			Reopen: again,
			Second: again,
			Crash: func(t testing.TB, s store.Store) (store.Store, error) {
				dir, name := filepath.Split(s.(located).path)
				return openAt(filepath.Join(storetest.AfterPowerCut(t, dir), name))
			},
			Place: func(s store.Store) string { return s.(located).path },
			Fault: func(testing.TB, store.Store, storetest.Fault) (mend func()) {
				return nil // until it can fill the file, lose an answer and damage a record
			},
		})
	}
}
