package boltstore

import (
	"context"
	"errors"
	"reflect"
	"testing"
	"time"

	"github.com/google/uuid"
	bolt "go.etcd.io/bbolt"

	"github.com/cardvault/cardvault/store"
)

// TestForeignRow changes rows in the file and leaves the indexes unchanged. A list returns
// the key of such a row, and its account and parent as the row has them.
func TestForeignRow(t *testing.T) {
	s := openSmall(t, small)
	good := numbered(2)
	good.Parent, good.Account, good.Due = number(1), uuid.UUID{7}, time.UnixMicro(0).UTC()
	if err := s.Update(t.Context(), func(tx store.Tx) error {
		tx.Put(numbered(1))
		tx.Put(good)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	replace := func(r *store.Record) {
		err := alter(s, func(tx *bolt.Tx) error {
			name := rowsBucket(r.Kind)
			return tx.Bucket(name[:]).Put(r.ID[:], encodeRow(r, new(slab)))
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	view := func(fn func(store.ReadTx) error) func() error {
		return func() error { return s.View(t.Context(), fn) }
	}
	var got *store.List
	query := func(q store.Query) func() error {
		q.Account, q.Count = good.Account, true
		q.Kind, q.Parent, q.Limit = 1, good.Parent, 1
		return view(func(tx store.ReadTx) (err error) { got, err = tx.List(&q); return err })
	}
	list, live := query(store.Query{}), query(store.Query{Live: good.Due.Add(-time.Microsecond)})
	shared := query(store.Query{Lookup: good.Lookup[0]})
	hashed := query(store.Query{Lookup: good.Lookup[0], Live: good.Due.Add(-time.Microsecond), Classes: classesOf(good.Class)})
	for _, test := range []struct {
		name   string
		read   func() error
		change func(*store.Record)
	}{
		{"list, another parent", list, func(r *store.Record) { r.Parent = number(3) }},
		{"list, no parent", list, func(r *store.Record) { r.Parent = uuid.Nil }},
		{"list, another class", list, func(r *store.Record) { r.Class = 2 }},
		{"list of live records, due earlier", live, func(r *store.Record) { r.Due = r.Due.Add(-time.Microsecond) }},
		{"list by a hash, another parent", shared, func(r *store.Record) { r.Parent = number(3) }},
		{"list by a hash, no parent", shared, func(r *store.Record) { r.Parent = uuid.Nil }},
		{"list by a hash and class, another class", hashed, func(r *store.Record) { r.Class ^= 1 << 6 }},
		{"list by a hash and class, no class", hashed, func(r *store.Record) { r.Class = 0 }},
		{"list by a hash of live records, due earlier", hashed, func(r *store.Record) { r.Due = r.Due.Add(-time.Microsecond) }},
	} {
		if err := test.read(); err != nil || got.Records[0].Version != 1 {
			t.Fatalf("%s: %v", test.name, err)
		}
		r := *good
		test.change(&r)
		replace(&r)
		bare := &store.Record{Kind: r.Kind, ID: r.ID, Account: r.Account, Parent: r.Parent}
		if err := test.read(); err != nil || got.Total != 1 || !reflect.DeepEqual(got.Records, []*store.Record{bare}) {
			t.Errorf("%s: %+v, %v", test.name, got, err)
		}
		replace(good)
	}

	lapsed := query(store.Query{Lookup: good.Lookup[0], Live: good.Due})
	for what, read := range map[string]func() error{
		"lapsed":           lapsed,
		"of another class": query(store.Query{Lookup: good.Lookup[0], Classes: classesOf(good.Class + 1)}),
	} {
		if err := read(); err != nil || got.Total != 0 || len(got.Records) > 0 {
			t.Errorf("list by a hash of a record that is %s: %+v, %v", what, got, err)
		}
	}

	bare := &store.Record{Kind: good.Kind, ID: good.ID, Account: good.Account, Parent: good.Parent}
	for what, row := range map[string][]byte{"rubbish": []byte("rubbish"), "nothing": nil} {
		inFile(t, s, func(rows *bolt.Bucket) error {
			if row == nil {
				return rows.Delete(good.ID[:])
			}
			return rows.Put(good.ID[:], row)
		})
		if err := list(); err != nil || got.Total != 1 || !reflect.DeepEqual(got.Records, []*store.Record{bare}) {
			t.Errorf("list of %s: %+v, %v", what, got, err)
		}
		if row != nil { // a hash without a row is repaired
			if err := shared(); err != nil || got.Total != 1 || !reflect.DeepEqual(got.Records, []*store.Record{bare}) {
				t.Errorf("list by a hash of %s: %+v, %v", what, got, err)
			}
		}
		replace(good)
	}
}

// classesOf returns the set of one class.
func classesOf(class uint8) (set store.Classes) {
	set.Add(class)
	return set
}

// After its first blocks are removed, a node begins before the first block that is left.
// New rows in the gap belong to that block, even if the previous block was used last.
func TestGapBetweenNodes(t *testing.T) {
	for first := 2; first <= 28; first++ {
		for width := 1; width <= 4; width++ {
			c := small
			c.fanout, c.noSync = fanout{block: 2, node: 2}, true
			s := openSmall(t, c)
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

// Long walks of a View end with its ctx.
func TestWalkEnds(t *testing.T) {
	s := openSmall(t, small)
	lapsed := time.UnixMicro(1).UTC()
	if err := s.Update(t.Context(), func(tx store.Tx) error {
		for n := range 1000 {
			tx.Put(&store.Record{Kind: 1, ID: number(n + 1), Class: 1, Version: 1, Due: lapsed, Lookup: [][]byte{{1}}})
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	for name, q := range map[string]store.Query{
		"by a hash":   {Lookup: []byte{1}},
		"of the live": {Live: lapsed},
	} {
		q.Kind, q.Limit = 1, 1
		ctx, cancel := context.WithCancel(t.Context())
		read := func(tx store.ReadTx) error { _, err := tx.List(&q); return err }
		if err := s.View(ctx, read); err != nil {
			t.Errorf("list %s: %v", name, err)
		}
		if err := s.View(ctx, func(tx store.ReadTx) error { cancel(); return read(tx) }); !errors.Is(err, context.Canceled) {
			t.Errorf("list %s with a cancelled context: %v", name, err)
		}
	}
}
