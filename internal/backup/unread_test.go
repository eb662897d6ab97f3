package backup

import (
	"context"
	"errors"
	"testing"

	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/internal/ledgertest"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/memstore"
	"github.com/google/uuid"
)

// A blind store cannot read the records with one id.
type blind struct {
	store.Store
	id uuid.UUID
}

func (s *blind) View(ctx context.Context, fn func(store.ReadTx) error) error {
	return s.Store.View(ctx, func(tx store.ReadTx) error { return fn(blindTx{tx, s.id}) })
}

type blindTx struct {
	store.ReadTx
	id uuid.UUID
}

func (tx blindTx) Scan(kind store.Kind, after uuid.UUID, limit int) ([]*store.Record, error) {
	found, err := tx.ReadTx.Scan(kind, after, limit)
	for i, r := range found {
		if r.ID == tx.id {
			found[i] = &store.Record{Kind: kind, ID: r.ID}
		}
	}
	return found, err
}

// TestCompareUnreadable: a record of the new place that cannot be read is a difference, also if the
// former place has none of its id.
func TestCompareUnreadable(t *testing.T) {
	from := memstore.New()
	l := ledgertest.Mover(t, from)
	records := func(ids ...byte) func(store.Tx) error {
		return func(tx store.Tx) error {
			for _, id := range ids {
				tx.Put(&store.Record{Kind: 9, ID: uuid.UUID{id, 15: 1}, Version: 1, Shown: []byte{id}})
			}
			return nil
		}
	}
	if err := from.Update(t.Context(), records(1, 2, 5)); err != nil {
		t.Fatal(err)
	}
	to := &blind{Store: memstore.New()}
	if err := to.Update(t.Context(), records(1, 2, 3, 5)); err != nil {
		t.Fatal(err)
	}
	to.id = uuid.UUID{3, 15: 1}

	all, _, err := (&scanner{from.View, blockEnd}).blocks(t.Context(), place{kind: 9})
	if err != nil || len(all) != 1 {
		t.Fatalf("%d blocks, %v", len(all), err)
	}
	if has, err := walkOf(to).has(t.Context(), &all[0].block); has || err != nil {
		t.Errorf("the new place has the block: %t, %v", has, err)
	}
	m := &Mover{From: l, To: to, last: agreed{written: []block{all[0].block}}}
	if _, err := m.Compare(t.Context()); !errors.Is(err, ledger.ErrDamaged) {
		t.Errorf("Compare = %v, want ErrDamaged", err)
	}

	to.id = uuid.Nil
	if err := to.Update(t.Context(), func(tx store.Tx) error { tx.Delete(9, uuid.UUID{3, 15: 1}); return nil }); err != nil {
		t.Fatal(err)
	}
	if has, err := walkOf(to).has(t.Context(), &all[0].block); !has || err != nil {
		t.Errorf("without it: %t, %v", has, err)
	}
	if _, err := m.Compare(t.Context()); err != nil {
		t.Errorf("without it: %v", err)
	}
}
