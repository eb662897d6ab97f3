package vaultsuite_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cardvault/cardvault/internal/goroutines"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/boltstore"
	"github.com/cardvault/cardvault/store/memstore"
	"github.com/cardvault/cardvault/store/storetest"
	"github.com/cardvault/cardvault/vaulttest/vaultsuite"
	"github.com/google/uuid"
)

func TestMain(m *testing.M) { goroutines.Verify(m) }

func mem(testing.TB) store.Store { return memstore.New() }

// A file is a store that knows its path.
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
			// Nothing writes the file while it is copied: the next scrub is half a minute away.
			if err := s.(file).Scrub(t.Context()); err != nil {
				t.Fatal(err)
			}
			dir, name := filepath.Split(s.(file).path)
			return openFile(t, filepath.Join(storetest.AfterPowerCut(t, dir), name))
		},
	})
}

// The vault names the right account wherever it names one. That a caller asks in its account
// for what another account has is what tests of isolation do.
func TestApart(t *testing.T) {
	t.Parallel()
	vaultsuite.Run(t, storetest.Harness{Open: func(t testing.TB) store.Store {
		return storetest.Apart(memstore.New(), func(r *store.Record, in uuid.UUID) {
			if r.Account == uuid.Nil || in == uuid.Nil {
				t.Errorf("a record of kind %d, account %v, is asked for in account %v", r.Kind, r.Account, in)
			}
		})
	}})
}

const forgetful = "VAULTSUITE_FORGETFUL"

// TestForgetful is run by TestLastingCanFail: whenever its store is opened again, it is
// empty.
func TestForgetful(t *testing.T) {
	if os.Getenv(forgetful) == "" {
		return
	}
	again := func(t testing.TB, _ store.Store) (store.Store, error) { return mem(t), nil }
	vaultsuite.Run(t, storetest.Harness{Open: mem, Reopen: again, Crash: again, Second: again})
}

// A forgetful store fails every test of lasting records.
func TestLastingCanFail(t *testing.T) {
	names := []string{"OutlivesClose", "DeletedStaysDeleted", "OutlivesPowerCut", "DeletedBeforePowerCut", "SecondProcess"}
	cmd := exec.Command(os.Args[0], "-test.short", "-test.v", "-test.run=^TestForgetful$/^Audited$/^("+strings.Join(names, "|")+")$")
	cmd.Env = append(os.Environ(), forgetful+"=1")
	out, err := cmd.CombinedOutput()
	if err == nil {
		t.Errorf("a forgetful store passes:\n%s", out)
	}
	for _, name := range names {
		if !strings.Contains(string(out), "--- FAIL: TestForgetful/Audited/"+name+" ") {
			t.Errorf("%s does not notice that the store forgets:\n%s", name, out)
		}
	}
}
