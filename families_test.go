package cardvault_test

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/cardvault/cardvault/internal/familytest"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/boltstore"
	"github.com/cardvault/cardvault/store/memstore"
)

// familySize is how many records families have in tests: CARDVAULT_FAMILY, by default a
// number that takes seconds.
func familySize(t *testing.T) int {
	t.Helper()
	text := os.Getenv("CARDVAULT_FAMILY")
	if text == "" {
		return 4000
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 2001 {
		t.Fatal("CARDVAULT_FAMILY must be a number above 2000")
	}
	return n
}

// What ends a family takes as long whatever hangs below.
func TestFamilies(t *testing.T) {
	t.Run("Mem", func(t *testing.T) {
		familytest.Run(t, func(testing.TB) store.Store { return memstore.New() }, 4000)
	})
	t.Run("Bolt", func(t *testing.T) {
		familytest.Run(t, func(t testing.TB) store.Store {
			s, err := boltstore.Open(t.Context(), filepath.Join(t.TempDir(), "store.db"), nil)
			if err != nil {
				t.Fatal(err)
			}
			return s
		}, familySize(t))
	})
}
