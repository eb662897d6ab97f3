package backup_test

import (
	"path/filepath"
	"testing"

	"github.com/cardvault/cardvault/internal/backuptest"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/boltstore"
	"github.com/cardvault/cardvault/store/memstore"
)

func bolt(t testing.TB) store.Store {
	t.Helper()
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
}

// A backup that is made beside writes has the records of one instant.
func TestBesideWrites(t *testing.T) {
	for name, most := range map[string]int{"changes one by one": 0, "changes in spans": 300} {
		t.Run(name+", memory", func(t *testing.T) {
			backuptest.BesideWrites(t, memstore.New(), most, memstore.New(), bolt(t))
		})
		t.Run(name+", bbolt", func(t *testing.T) {
			backuptest.BesideWrites(t, bolt(t), most, bolt(t), memstore.New())
		})
	}
}
