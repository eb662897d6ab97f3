//go:build unix

package pgstore_test

import (
	"os"
	"strconv"
	"testing"

	"github.com/cardvault/cardvault/internal/familytest"
	"github.com/cardvault/cardvault/store"
)

// Ending a family takes the same time, however many records it has: CARDVAULT_FAMILY.
func TestFamilies(t *testing.T) {
	n := 4000
	if testing.Short() {
		n = 2500
	}
	if text := os.Getenv("CARDVAULT_FAMILY"); text != "" {
		var err error
		if n, err = strconv.Atoi(text); err != nil || n < 2001 {
			t.Fatal("CARDVAULT_FAMILY must be a number above 2000")
		}
	}
	p := pool(t, postgres.Get(t).URL("postgres"))
	familytest.Run(t, func(t testing.TB) store.Store { return open(t, p, schema(t, p)) }, n)
}
