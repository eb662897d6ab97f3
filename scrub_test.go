package cardvault_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/boltstore"
	"github.com/cardvault/cardvault/vaulttest"
	"github.com/google/uuid"
)

// TestVaultScrub looks for what deleted tokens have left in the file of a vault.
func TestVaultScrub(t *testing.T) {
	path := filepath.Join(t.TempDir(), "vault.db")
	s, err := boltstore.Open(t.Context(), path, nil)
	if err != nil {
		t.Fatal(err)
	}
	keys, err := cardvault.KeyBytes(make([]byte, cardvault.KeySize))
	if err != nil {
		t.Fatal(err)
	}
	v, err := cardvault.New(t.Context(), s, keys, &cardvault.Options{Mode: cardvault.Sandbox})
	if err != nil {
		t.Fatal(err)
	}
	// sealed returns the sealed parts of all records.
	sealed := func() map[string]bool {
		t.Helper()
		all := map[string]bool{}
		err := s.View(t.Context(), func(tx store.ReadTx) error {
			for kind := 1; kind < 256; kind++ {
				records, err := tx.Scan(store.Kind(kind), uuid.Nil, 1000)
				if err != nil {
					return err
				}
				for _, r := range records {
					for _, part := range [][]byte{r.Shown, r.Secret} {
						if len(part) >= 32 {
							all[string(part)] = true
						}
					}
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return all
	}

	var ids []uuid.UUID
	for range 200 {
		token, err := v.Import(t.Context(), cardvault.Card{PAN: card.NewPAN([]byte(secretNumber)), Expiry: card.Expiry{Month: 12, Year: 2030}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, token.ID)
	}
	before := sealed()
	for _, id := range ids[:150] {
		if err := v.Delete(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	if err := v.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := v.Scrub(t.Context()); err != nil {
		t.Fatal(err)
	}
	after := sealed()
	file, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	gone, there := 0, 0
	for part := range before {
		switch found := bytes.Contains(file, []byte(part)); {
		case after[part] && found:
			there++
		case !after[part]:
			gone++
			if found {
				t.Error("a sealed part of a deleted token is in the file")
			}
		}
	}
	if gone < 300 || there < 100 {
		t.Errorf("%d sealed parts are gone and %d there, want both parts of 150 and 50 tokens", gone, there)
	}
	if err := errors.Join(v.Close(), s.Close()); err != nil {
		t.Error(err)
	}

	if err := vaulttest.New(t).Scrub(t.Context()); !errors.Is(err, cardvault.ErrNotEnabled) {
		t.Errorf("Scrub of a store in memory: %v", err)
	}
}
