package storetest_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/memstore"
	"github.com/cardvault/cardvault/store/storetest"
)

// A lie changes exactly the answers that it applies to.
func TestLiar(t *testing.T) {
	now := time.UnixMicro(1e15).UTC()
	alice, bob := uuid.UUID{0xa1}, uuid.UUID{0xb0}
	record := func(n byte, edit func(r *store.Record)) *store.Record {
		r := &store.Record{
			Kind: 1, ID: uuid.UUID{n}, Account: alice, Class: 1, Version: 1, Due: now.Add(time.Duration(n) * time.Second),
			Lookup: [][]byte{[]byte("h")}, Shown: []byte{n}, Secret: []byte{n},
		}
		edit(r)
		return r
	}
	none := func(*store.Record) {}
	records := []*store.Record{
		record(1, none), record(2, none), record(3, none), record(4, none), record(5, none),
		record(6, func(r *store.Record) { r.Kind = 2 }),
		record(7, func(r *store.Record) { r.Account = bob; r.Lookup = [][]byte{[]byte("b")} }),
		record(8, func(r *store.Record) { r.Lookup = nil }),
		record(9, func(r *store.Record) { r.Class = 2 }),
		record(10, func(r *store.Record) { r.Due = now.Add(-time.Hour) }),
		record(11, func(r *store.Record) { r.Parent = uuid.UUID{99} }),
		record(12, func(r *store.Record) { r.Parent = uuid.UUID{99}; r.Kind = 2 }),
		record(13, func(r *store.Record) { r.Parent = uuid.UUID{99}; r.Kind = 2 }),
	}
	inner := memstore.New()
	s := storetest.Liar(inner)
	update := func(fn func(tx store.Tx)) {
		t.Helper()
		if err := s.Update(background, func(tx store.Tx) error { fn(tx); return nil }); err != nil {
			t.Fatal(err)
		}
	}
	update(func(tx store.Tx) {
		for _, r := range records {
			tx.Put(r)
		}
		tx.Put(record(0x10, none))
	})
	update(func(tx store.Tx) {
		tx.Delete(1, uuid.UUID{0x10})
		tx.Put(record(1, func(r *store.Record) { r.Version, r.Shown = 2, []byte("second") }))
	})

	query := store.Query{
		Kind: 1, Account: alice, Classes: classes(1), Lookup: []byte("h"), Min: uuid.UUID{2}, Max: uuid.UUID{0x10},
		Live: now, Limit: 3, Count: true,
	}
	about := func(r *store.Record) string { return fmt.Sprint(*r) }
	all := func(rs []*store.Record, err error) []string {
		if err != nil {
			t.Fatal(err)
		}
		var texts []string
		for _, r := range rs {
			texts = append(texts, about(r))
		}
		return texts
	}
	reads := []struct {
		name string
		ask  func(tx store.ReadTx) any
		lies []storetest.Lie
	}{
		{"Get", func(tx store.ReadTx) any {
			r, err := tx.Get(1, uuid.UUID{1})
			return all([]*store.Record{r}, err)
		}, []storetest.Lie{storetest.OtherID, storetest.OtherKind, storetest.OtherAccount, storetest.Dressed, storetest.Stale}},
		{"Get of a record that was deleted", func(tx store.ReadTx) any {
			r, err := tx.Get(1, uuid.UUID{0x10})
			if errors.Is(err, store.ErrNotFound) {
				return "none"
			}
			return all([]*store.Record{r}, err)
		}, []storetest.Lie{storetest.OtherID, storetest.OtherKind, storetest.Dressed, storetest.Stale}},
		{"List", func(tx store.ReadTx) any {
			l, err := tx.List(&query)
			return append(all(l.Records, err), fmt.Sprint(l.Total))
		}, []storetest.Lie{storetest.OtherKind, storetest.OtherAccount, storetest.OtherParent, storetest.OtherClass,
			storetest.OtherHash, storetest.OutOfRange, storetest.Lapsed, storetest.Dressed, storetest.Stale, storetest.Disorder,
			storetest.Repeated, storetest.TooMany, storetest.WrongTotal}},
		{"List, descending", func(tx store.ReadTx) any {
			q := query
			q.Desc = true
			l, err := tx.List(&q)
			return append(all(l.Records, err), fmt.Sprint(l.Total))
		}, []storetest.Lie{storetest.OtherKind, storetest.OtherAccount, storetest.OtherParent, storetest.OtherClass,
			storetest.OtherHash, storetest.OutOfRange, storetest.Lapsed, storetest.Dressed, storetest.Stale, storetest.Disorder,
			storetest.Repeated, storetest.TooMany, storetest.WrongTotal}},
		{"Lookup", func(tx store.ReadTx) any { return all(tx.Lookup(1, []byte("h"), 3)) },
			[]storetest.Lie{storetest.OtherKind, storetest.OtherAccount, storetest.OtherHash, storetest.Dressed, storetest.Stale,
				storetest.Disorder, storetest.Repeated, storetest.TooMany}},
		{"Lookup that finds nothing", func(tx store.ReadTx) any { return all(tx.Lookup(1, []byte("x"), 3)) },
			[]storetest.Lie{storetest.OtherKind, storetest.OtherHash, storetest.Dressed}},
		{"Due", func(tx store.ReadTx) any { return all(tx.Due(1, store.AllShards, now.Add(3*time.Second), 3)) },
			[]storetest.Lie{storetest.OtherKind, storetest.NotDue, storetest.Dressed, storetest.Stale, storetest.Disorder,
				storetest.Repeated, storetest.TooMany}},
		{"Next", func(tx store.ReadTx) any {
			at, err := tx.Next(1, store.AllShards)
			return fmt.Sprint(at, err)
		}, []storetest.Lie{storetest.NextEarlier, storetest.NextLater}},
		{"Scan", func(tx store.ReadTx) any { return all(tx.Scan(1, uuid.UUID{2}, 3)) },
			[]storetest.Lie{storetest.OtherKind, storetest.OutOfRange, storetest.Stale, storetest.Disorder, storetest.Repeated,
				storetest.TooMany}},
		{"Children", func(tx store.ReadTx) any {
			keys, err := tx.Children(uuid.UUID{99}, 2)
			return fmt.Sprint(keys, err)
		}, []storetest.Lie{storetest.OtherParent, storetest.Disorder, storetest.Repeated, storetest.TooMany}},
	}
	asked := func(ask func(tx store.ReadTx) any) (inView, inUpdate string) {
		t.Helper()
		if err := s.View(background, func(tx store.ReadTx) error { inView = fmt.Sprint(ask(tx)); return nil }); err != nil {
			t.Fatal(err)
		}
		update(func(tx store.Tx) { inUpdate = fmt.Sprint(ask(tx)) })
		return inView, inUpdate
	}
	for _, read := range reads {
		s.Tell(0)
		truth, _ := asked(read.ask)
		for _, lie := range storetest.Lies() {
			s.Tell(lie)
			inView, inUpdate := asked(read.ask)
			if inView != inUpdate {
				t.Errorf("%s, lie %d: a View reads %s, an Update %s", read.name, lie, inView, inUpdate)
			}
			want := 0
			if slices.Contains(read.lies, lie) {
				want = 2
			}
			if s.Told() != want || (inView != truth) != (want > 0) {
				t.Errorf("%s, lie %d: applied %d times, want %d: %s instead of %s", read.name, lie, s.Told(), want, inView, truth)
			}
			s.Tell(lie, 7)
			if inView, _ := asked(read.ask); read.name != "Children" && (s.Told() != 0 || inView != truth) {
				t.Errorf("%s, lie %d: applied to another kind", read.name, lie)
			}
		}
	}
	s.Tell(0)
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

func classes(of ...uint8) (s store.Classes) {
	for _, c := range of {
		s.Add(c)
	}
	return s
}

// Without a lie, a liar behaves like any other store.
func TestHonestLiar(t *testing.T) {
	storetest.Run(t, storetest.Harness{Open: func(testing.TB) store.Store { return storetest.Liar(memstore.New()) }})
}
