package storetest

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cardvault/cardvault/store"
)

// checked returns what a store.Checker finds, and whether the store is one.
func checked(t testing.TB, s store.Store, limit int) (all []store.Disagreement, able bool) {
	t.Helper()
	var place []byte
	for range 10_000 {
		view(t, s, func(tx store.ReadTx) error {
			c, ok := tx.(store.Checker)
			if able = ok; !ok {
				place = nil
				return nil
			}
			faults, after, err := c.Check(place, limit)
			all, place = append(all, faults...), after
			return err
		})
		if place == nil {
			return all, able
		}
	}
	t.Fatal("Check does not end")
	return nil, false
}

// repaired has a store repair itself, and calls between with the number of each step.
func repaired(t testing.TB, s store.Repairer, limit int, between func(step int)) {
	t.Helper()
	var place []byte
	for step := range 1000 {
		after, err := s.Repair(background, place, limit)
		if err != nil {
			t.Fatalf("Repair: %v", err)
		}
		if place = after; place == nil {
			return
		}
		between(step)
	}
	t.Fatal("Repair does not end")
}

// repairs checks a store.Repairer that is whole. Others have nothing to prove.
func repairs(t testing.TB, s store.Store) {
	r, ok := s.(store.Repairer)
	if !ok {
		t.Log("This store does not repair its indexes.")
		return
	}
	repaired(t, r, 10, func(int) {})
	w := &reader{t: t, s: s, versions: map[int]uint64{}}
	w.fill()
	repaired(t, r, 3, w.write)
	w.compare()
	repaired(t, r, 1<<20, w.write)
	w.compare()
	if _, err := r.Repair(background, []byte("no place of Repair, which is longer than any of them: no place of Repair, which is longer than any of them"), 1); !errors.Is(err, store.ErrInvalid) {
		t.Errorf("Repair from a place that it did not return = %v, want ErrInvalid", err)
	}
}

const repairRows = 40

// A reader compares the answers of a store with the records that were put.
type reader struct {
	t        testing.TB
	s        store.Store
	versions map[int]uint64 // of the records that are there
	lost     int            // the number of the unreadable record
}

func (w *reader) at(n int) *store.Record {
	v := w.versions[n]
	r := row(n, version(v), class(uint8(1+(uint64(n)+v)%3)), hashes("all", fmt.Sprint(n, v)), due(time.UnixMicro(int64(n)+1000*int64(v)).UTC()))
	if n%4 == 0 {
		r.Parent = idOf(1000)
	}
	return r
}

func (w *reader) fill() {
	for n := 1; n <= repairRows; n++ {
		w.versions[n] = 1
		put(w.t, w.s, w.at(n))
	}
}

// write changes, deletes or adds a record. A Repair may have reached it by now, or not.
func (w *reader) write(step int) {
	n := 1 + step*7%repairRows
	switch {
	case n == w.lost:
	case w.versions[n] == 0:
		w.versions[n] = 1
		put(w.t, w.s, w.at(n))
	case step%3 == 0:
		update(w.t, w.s, deleting(w.at(n)))
		delete(w.versions, n)
	default:
		w.versions[n]++
		put(w.t, w.s, w.at(n))
	}
}

// compare compares lists, totals, hashes, due times and children.
func (w *reader) compare() {
	w.t.Helper()
	if faults, _ := checked(w.t, w.s, 5); len(faults) > 0 {
		w.t.Errorf("after Repair, Check finds %d faults, the first is %v", len(faults), faults[0])
	}

	var all, mine, below []int // without and with the unreadable record
	for n := 1; n <= repairRows; n++ {
		switch {
		case w.versions[n] == 0:
			continue
		case n%4 == 0:
			below = append(below, n)
		default:
			mine = append(mine, n)
		}
		if n != w.lost {
			all = append(all, n)
			found(w.t, w.s, kindA, fmt.Sprint(n, w.versions[n]), 9, n)
			found(w.t, w.s, kindA, fmt.Sprint(n, w.versions[n]-1), 9)
		}
	}

	lists(w.t, w.s, "the list of the account", store.Query{Kind: kindA, Account: alice}, mine...)
	lists(w.t, w.s, "the list of the parent", store.Query{Kind: kindA, Account: alice, Parent: idOf(1000)}, below...)

	view(w.t, w.s, func(tx store.ReadTx) error {
		ready, err := tx.Due(kindA, store.AllShards, time.UnixMicro(1e9), 100)
		if len(ready) != len(all) {
			w.t.Errorf("Due finds %d records, want %d", len(ready), len(all))
		}
		keys, failed := tx.Children(idOf(1000), 100)
		if len(keys) != len(below) {
			w.t.Errorf("Children finds %d records, want %d", len(keys), len(below))
		}
		return errors.Join(err, failed)
	})
	if w.lost == 0 {
		found(w.t, w.s, kindA, "all", 100, all...)
	}
}

func repairsItself(s *stand) {
	for lost := range 2 {
		open := s.fresh()
		r, ok := open.(store.Repairer)
		if !ok {
			s.Log("This store does not repair its indexes.")
			return
		}
		w := &reader{t: s, s: open, versions: map[int]uint64{}}
		w.fill()
		if _, ok := s.fault(open, Fault{Kind: DamagedIndexes, Record: store.Key{Kind: kindA, ID: idOf(9)}}); !ok {
			return
		}
		if faults, able := checked(s, open, 100); able && len(faults) == 0 {
			s.Error("Check finds nothing in damaged indexes")
		}
		if lost > 0 {
			w.lost = 11
			if _, ok := s.fault(open, Fault{Kind: DamagedRecord, Record: store.Key{Kind: kindA, ID: idOf(w.lost)}}); !ok {
				return
			}
		}
		// A write may meet the damage until it is mended, as long as that is not reached.
		repaired(s, r, 5, func(int) {})
		w.compare()
		repaired(s, r, 5, w.write)
		w.compare()

		err := open.View(background, func(tx store.ReadTx) error { _, err := tx.Get(kindA, uuid.UUID{1: 9}); return err })
		if !errors.Is(err, store.ErrNotFound) {
			s.Errorf("Get of a record that is not there = %v", err)
		}
	}
}
