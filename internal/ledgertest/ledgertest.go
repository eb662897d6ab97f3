// Package ledgertest makes ledgers for tests.
package ledgertest

import (
	"bytes"
	"context"
	"log/slog"
	"testing"

	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/memstore"
	"github.com/google/uuid"
)

// A wrapper keeps the keys as they are.
type wrapper struct{}

func (wrapper) KeyID() string { return "test" }

func (wrapper) Wrap(_ context.Context, b, _ []byte) ([]byte, error) { return bytes.Clone(b), nil }

func (wrapper) Unwrap(_ context.Context, b, _ []byte) ([]byte, error) { return bytes.Clone(b), nil }

// Ring returns the key-encryption key of the ledgers.
func Ring() ledger.Ring { return ledger.Ring{{Wrapper: wrapper{}}} }

// New returns the ledger of a new vault in memory, whose kinds belong together as families
// says. An answer of the store that cannot be right fails the test.
func New(t testing.TB, families ledger.Families) *ledger.Ledger {
	t.Helper()
	return On(t, memstore.New(), families)
}

// On is New for a vault in a store.
func On(t testing.TB, s store.Store, families ledger.Families) *ledger.Ledger {
	t.Helper()
	return on(t, ledger.Config{Store: s, Families: families, Mistrust: func(answer string) { t.Error("the store returned", answer) }})
}

// OnRing is On under a key-encryption key.
func OnRing(t testing.TB, s store.Store, ring ledger.Ring) *ledger.Ledger {
	t.Helper()
	return on(t, ledger.Config{Store: s, Ring: ring, Mistrust: func(answer string) { t.Error("the store returned", answer) }})
}

// OnLiar is On for a store whose answers may be wrong.
func OnLiar(t testing.TB, s store.Store, families ledger.Families) *ledger.Ledger {
	t.Helper()
	return on(t, ledger.Config{Store: s, Families: families, Mistrust: func(string) {}})
}

// Mover is On for a ledger that moves the vault.
func Mover(t testing.TB, s store.Store) *ledger.Ledger {
	t.Helper()
	return on(t, ledger.Config{Store: s, Moving: true, Mistrust: func(string) {}})
}

// Back is On for a ledger that takes a move back, or the error of Load.
func Back(t testing.TB, s store.Store, move uuid.UUID) (*ledger.Ledger, error) {
	t.Helper()
	return load(t, ledger.Config{Store: s, Thaw: move, Mistrust: func(string) {}})
}

func on(t testing.TB, c ledger.Config) *ledger.Ledger {
	t.Helper()
	l, err := load(t, c)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func load(t testing.TB, c ledger.Config) (*ledger.Ledger, error) {
	c.Log = slog.New(slog.DiscardHandler)
	if c.Ring == nil {
		c.Ring = Ring()
	}
	c.ModeName = func(uint8) string { return "test" }
	c.Wrote = func(context.Context, ledger.Operation, uuid.UUID, uuid.UUID, error) {}
	l := ledger.New(c)

	first := func() (uuid.UUID, []*store.Record, error) {
		whole := l.In(uuid.Nil)
		row, err := l.NewRow()
		if err != nil {
			return uuid.Nil, nil, err
		}
		r := whole.NewRecord(ledger.KindAccount, row)
		return whole.Mask(ledger.KindAccount, row), []*store.Record{r}, l.SealShown(r, nil)
	}
	return l, l.Load(t.Context(), first)
}
