package cardvault_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/boltstore"
	"github.com/cardvault/cardvault/vaulttest"
	"github.com/google/uuid"
)

// TestVaultScrub looks for what deleted tokens have left in the file of a vault: the sealed parts of
// their records, and the hashes by which they were found.
func TestVaultScrub(t *testing.T) {
	deleted, kept := 10_000, 500
	if testing.Short() {
		deleted = 1000
	}
	path := filepath.Join(t.TempDir(), "vault.db")
	s, err := boltstore.Open(t.Context(), path, nil)
	noErr(t, err)
	v, err := cardvault.New(t.Context(), s, mustKeyBytes(t, make([]byte, cardvault.KeySize)), &cardvault.Options{Mode: cardvault.Sandbox})
	noErr(t, err)
	each := func(n int, call func(i int) error) {
		t.Helper()
		var next atomic.Int64
		var group sync.WaitGroup
		for range 32 {
			group.Go(func() {
				for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
					if err := call(i); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		group.Wait()
	}

	ids := make([]uuid.UUID, deleted+kept)
	each(len(ids), func(i int) error {
		c := cardvault.Card{PAN: card.NewPAN([]byte(secretNumber)), Expiry: card.Expiry{Month: 12, Year: 2030}}
		token, err := v.Import(t.Context(), c, &cardvault.ImportOptions{BusinessKey: fmt.Sprint("order ", i)})
		if err == nil {
			ids[i] = token.ID
		}
		return err
	})
	before := tracesIn(t, s)
	each(deleted, func(i int) error { return v.Delete(t.Context(), ids[i]) })
	noErr(t, v.Drain(t.Context()))
	noErr(t, v.Scrub(t.Context()))

	after := tracesIn(t, s)
	file, err := os.ReadFile(path)
	noErr(t, err)
	found := map[trace]bool{}
	for i := range len(file) - len(trace{}) {
		if at := trace(file[i:]); before[at] {
			found[at] = true
		}
	}
	gone, there, left := 0, 0, 0
	for part := range before {
		switch {
		case after[part] && found[part]:
			there++
		case !after[part]:
			gone++
			if found[part] {
				left++
			}
		}
	}
	t.Logf("%d sealed parts and hashes of %d deleted tokens: %d in the file, which has %d others", gone, deleted, left, there)
	if left > 0 || gone < 3*deleted || there < 3*kept {
		t.Errorf("%d traces are gone and %d there, want two parts and a hash of %d and %d tokens", gone, there, deleted, kept)
	}
	if err := errors.Join(v.Close(), s.Close()); err != nil {
		t.Error(err)
	}

	if err := vaulttest.New(t).Scrub(t.Context()); !errors.Is(err, cardvault.ErrNotEnabled) {
		t.Errorf("Scrub of a store in memory: %v", err)
	}
}

// A trace is the end of a sealed part, its tag, or of a hash.
type trace [16]byte

// tracesIn returns the traces of the sealed parts and hashes of all records.
func tracesIn(t *testing.T, s store.Store) map[trace]bool {
	t.Helper()
	all := map[trace]bool{}
	noErr(t, s.View(t.Context(), func(tx store.ReadTx) error {
		for kind := 1; kind < 256; kind++ {
			for after, more := uuid.Nil, true; more; {
				records, err := tx.Scan(store.Kind(kind), after, 1000)
				if err != nil {
					return err
				}
				for _, r := range records {
					after = r.ID
					for _, part := range append([][]byte{r.Shown, r.Secret}, r.Lookup...) {
						if n := len(part); n >= len(trace{}) {
							all[trace(part[n-len(trace{}):])] = true
						}
					}
				}
				more = len(records) == 1000
			}
		}
		return nil
	}))
	return all
}
