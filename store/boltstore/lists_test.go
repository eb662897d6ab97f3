package boltstore

import (
	"errors"
	"testing"

	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
	bolt "go.etcd.io/bbolt"
)

// A list does not give a row that says it belongs elsewhere.
func TestListOfForeignRow(t *testing.T) {
	s := openSmall(t, small)
	good := numbered(1)
	if err := s.Update(t.Context(), putOne(good)); err != nil {
		t.Fatal(err)
	}
	replace := func(r *store.Record) {
		err := s.h.db.Update(func(tx *bolt.Tx) error {
			name := rowsBucket(r.Kind)
			return tx.Bucket(name[:]).Put(r.ID[:], encodeRow(r))
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	list := func() error {
		return s.View(t.Context(), func(tx store.ReadTx) error {
			_, err := tx.List(&store.Query{Kind: 1, Limit: 1, Classes: store.Classes{1 << 1}})
			return err
		})
	}
	if err := list(); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*store.Record){
		"another account": func(r *store.Record) { r.Account = uuid.UUID{1} },
		"a parent":        func(r *store.Record) { r.Parent = uuid.UUID{1} },
		"another class":   func(r *store.Record) { r.Class = 2 },
	} {
		r := *good
		change(&r)
		replace(&r)
		if err := list(); !errors.Is(err, store.ErrDamaged) {
			t.Errorf("%s: %v", name, err)
		}
	}
	replace(good)
}

// Where the first blocks below a node were removed, the node begins before the
// first block that it has. What is put in between belongs to that block, also
// when the block before it was used last.
func TestGapBetweenNodes(t *testing.T) {
	for first := 2; first <= 28; first++ {
		for width := 1; width <= 4; width++ {
			s := openSmall(t, config{fanout: fanout{block: 2, node: 2}, noSync: true})
			do := func(fn func(store.Tx)) {
				t.Helper()
				if err := s.Update(t.Context(), func(tx store.Tx) error { fn(tx); return nil }); err != nil {
					t.Fatalf("%d to %d: %v", first, first+width, err)
				}
			}
			do(func(tx store.Tx) {
				for i := 1; i <= 32; i++ {
					tx.Put(numbered(10 * i))
				}
			})
			do(func(tx store.Tx) {
				for i := range width {
					tx.Delete(1, number(10*(first+i)))
				}
			})
			for gap := 10*first - 5; gap < 10*(first+width); gap += 5 {
				do(func(tx store.Tx) {
					tx.Put(numbered(10*first - 9))
					tx.Put(numbered(gap))
				})
				do(func(tx store.Tx) {
					tx.Delete(1, number(gap))
					tx.Delete(1, number(10*first-9))
				})
			}
		}
	}
}
