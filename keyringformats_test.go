package cardvault_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/boltstore"
	"github.com/google/uuid"
)

// A goldenVault is what testdata/keyrings has of a vault: its keyring is of one format, and its
// tokens were sealed under two terms.
type goldenVault struct {
	Format      byte
	Tokens      []uuid.UUID // all of one card
	Fingerprint cardvault.Fingerprint
	BusinessKey string // of the first

	reprinted bool // the fingerprint key was rotated, perhaps
}

const goldenVaults = "testdata/keyrings"

// toFormat are the steps by which the keyring of a new vault has come to a format.
var toFormat = map[byte]func(t *testing.T, dir string){
	2: func(*testing.T, string) {},
	3: func(t *testing.T, dir string) {
		v := openGolden(t, dir)
		_, err := v.RotateSeries(t.Context(), cardvault.SeriesLookup, nil)
		noErr(t, err)
		noErr(t, v.Close())
	},
	4: func(t *testing.T, dir string) {
		from := filepath.Join(dir, "cardvault.db")
		moved := filepath.Join(t.TempDir(), "moved.db")
		stores := make([]store.Store, 2)
		for i, name := range []string{from, moved} {
			var err error
			stores[i], err = boltstore.Open(t.Context(), name, nil)
			noErr(t, err)
		}
		_, err := cardvault.Move(t.Context(), stores[0], stores[1], mustKeyBytes(t, goldenKey()), nil)
		noErr(t, err)
		for _, s := range stores {
			noErr(t, s.Close())
		}
		data, err := os.ReadFile(moved)
		noErr(t, err)
		noErr(t, os.WriteFile(from, data, 0o600))
	},
	5: func(t *testing.T, dir string) {
		v := openGolden(t, dir)
		noErr(t, v.BeginSums(t.Context(), nil))
		noErr(t, v.Close())
	},
}

func openGolden(t *testing.T, dir string) *cardvault.Vault {
	t.Helper()
	v, err := cardvault.Open(t.Context(), dir, mustKeyBytes(t, goldenKey()), testPurpose)
	noErr(t, err)
	return v
}

// writeGoldenVault writes a vault anew, which only a format needs that is not in testdata yet:
//
//	GOLDEN=6 go test -run TestKeyringFormats .
func writeGoldenVault(t *testing.T, format byte) {
	t.Helper()
	dir := t.TempDir()
	v := openGolden(t, dir)
	g := goldenVault{Format: format, BusinessKey: "order 1"}
	for i := range 2 {
		opts := new(cardvault.ImportOptions)
		if i == 0 {
			opts.BusinessKey = g.BusinessKey
		}
		token, err := v.Import(t.Context(), visa, opts)
		noErr(t, err)
		g.Tokens, g.Fingerprint = append(g.Tokens, token.ID), token.Fingerprint
		_, err = v.RotateKeys(t.Context(), nil)
		noErr(t, err)
	}
	noErr(t, v.Close())
	toFormat[format](t, dir)

	data, err := os.ReadFile(filepath.Join(dir, "cardvault.db"))
	noErr(t, err)
	var packed bytes.Buffer
	w, err := gzip.NewWriterLevel(&packed, gzip.BestCompression)
	noErr(t, err)
	_, err = w.Write(data)
	noErr(t, err)
	noErr(t, w.Close())
	text, err := json.MarshalIndent(g, "", "\t")
	noErr(t, err)
	noErr(t, os.MkdirAll(goldenVaults, 0o755))
	noErr(t, os.WriteFile(goldenName(format, "json"), append(text, '\n'), 0o644))
	noErr(t, os.WriteFile(goldenName(format, "db.gz"), packed.Bytes(), 0o644))
}

func goldenName(format byte, kind string) string {
	return filepath.Join(goldenVaults, fmt.Sprintf("format%d.%s", format, kind))
}

// readGolden reads what a golden vault has.
func readGolden(t *testing.T, format byte) *goldenVault {
	t.Helper()
	text, err := os.ReadFile(goldenName(format, "json"))
	noErr(t, err)
	g := new(goldenVault)
	noErr(t, json.Unmarshal(text, g))
	return g
}

// TestKeyringFormats: every later version opens a vault whose keyring is of any format, reads and
// finds all of it, and goes on with it.
func TestKeyringFormats(t *testing.T) {
	for format := range toFormat {
		t.Run(fmt.Sprint(format), func(t *testing.T) {
			if os.Getenv("GOLDEN") == fmt.Sprint(format) {
				writeGoldenVault(t, format)
			}
			g := readGolden(t, format)
			dir := unpacked(t, goldenName(format, "db.gz"))
			stored := func() []byte { return fieldsOf(storedKeyring(t, dir))[7] }
			if is := stored(); g.Format != format || !bytes.Equal(is, []byte{format}) {
				t.Fatalf("the keyring is of format %v", is)
			}

			v := openGolden(t, dir)
			g.check(t, v)
			noErr(t, errorOf(v.RotateKeys(t.Context(), nil)))
			g.check(t, v)
			report, err := v.Verify(t.Context(), nil)
			if err != nil || len(report.Problems) > 0 || report.Sums != (format == 5) {
				t.Errorf("verified: %+v, %v", report, err)
			}
			noErr(t, v.Close())
			if is := stored(); !bytes.Equal(is, []byte{format}) { // a program that does not know it goes on refusing it
				t.Errorf("the keyring is of format %v after a rotation", is)
			}
		})
	}
}

// check reads and finds all of the vault.
func (g *goldenVault) check(t *testing.T, v *cardvault.Vault) {
	t.Helper()
	want := g.Fingerprint
	if g.reprinted {
		token, err := v.Get(t.Context(), g.Tokens[0])
		noErr(t, err)
		want = token.Fingerprint
	}
	for _, id := range g.Tokens {
		noErr(t, v.Use(t.Context(), id, "test", func(_ context.Context, used *cardvault.UsedCard) error {
			used.PAN.Expose(func(number []byte) {
				if string(number) != "4242424242424242" {
					t.Errorf("token %v has another number", id)
				}
			})
			return nil
		}))
		token, err := v.Get(t.Context(), id)
		noErr(t, err)
		if token.Fingerprint != want {
			t.Errorf("token %v has another fingerprint", id)
		}
	}
	found, err := v.List(t.Context(), &cardvault.TokenListOptions{BusinessKey: g.BusinessKey})
	noErr(t, err)
	if len(found.Items) != 1 || found.Items[0].ID != g.Tokens[0] {
		t.Errorf("by its business key: %d tokens", len(found.Items))
	}
	if again := imported(t, v); again.Fingerprint != want {
		t.Error("the same card has another fingerprint")
	}
	shop, err := v.PrimaryMerchant(t.Context())
	noErr(t, err)
	if named, err := v.EnsureMerchant(t.Context(), shop.Name, nil); err != nil || named.ID != shop.ID {
		t.Errorf("a merchant by its name: %v", err)
	}
}
