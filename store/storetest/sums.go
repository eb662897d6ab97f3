package storetest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"

	"github.com/cardvault/cardvault/store"
)

// An adder is a store.Sums that knows which versions of records there are, and writes their
// number into a record.
type adder struct {
	resting bool // Begin returns false
	loses   bool // its next records follow no stored version, unless they are new

	versions map[store.Key]uint64 // as committed
	pending  map[store.Key]uint64 // in the transaction; 0: deleted
	record   int                  // the number of the record
	version  uint64               // of that, as committed
	wrote    uint64               // likewise, in the transaction
	faults   []string
}

const kindSum store.Kind = 200

func (a *adder) Begin() bool {
	if a.resting {
		return false
	}
	if a.pending != nil || a.record == 0 { // the last transaction may be written or not
		a.record, a.version = a.record+1, 0
	}
	a.pending, a.wrote = map[store.Key]uint64{}, 0
	return true
}

func (a *adder) Change(from, to *store.Record) {
	k := store.Key{}
	for _, r := range []*store.Record{from, to} {
		if r != nil {
			k = store.Key{Kind: r.Kind, ID: r.ID}
		}
	}
	was, changed := a.pending[k]
	if !changed {
		was = a.versions[k]
	}

	switch {
	case from == nil && was != 0, from != nil && from.Version != was:
		a.faults = append(a.faults, "a change shows another former record than there was")
	case from != nil && from.Account != alice || to != nil && to.Account != alice:
		a.faults = append(a.faults, "a change shows a record without its account")
	case to != nil && (string(to.Shown) != "shown" || string(to.Secret) != "secret"):
		a.faults = append(a.faults, "a change shows a record without its parts")
	}
	a.pending[k] = 0
	if to != nil {
		a.pending[k] = to.Version
	}
}

// all returns the records that there are after the transaction.
func (a *adder) all() map[store.Key]uint64 {
	all := maps.Clone(a.versions)
	maps.Copy(all, a.pending)
	maps.DeleteFunc(all, func(_ store.Key, last uint64) bool { return last == 0 })
	return all
}

func (a *adder) Records(anew bool) []*store.Record {
	follows := a.version + 1
	switch {
	case anew:
		a.record, follows = a.record+1, 1
	case a.loses:
		follows += 7
	}
	a.loses = a.loses && anew
	a.wrote = follows
	n := binary.BigEndian.AppendUint32(nil, uint32(len(a.all())))
	return []*store.Record{{Kind: kindSum, ID: idOf(a.record), Version: follows, Shown: n}}
}

func (a *adder) Committed() {
	a.versions, a.version, a.pending = a.all(), a.wrote, nil
}

// Sums is the part of Run about sums, for a [store.Summer] that its harness wraps. It calls no more
// of the harness than Open.
func Sums(t *testing.T, h Harness) {
	for _, check := range []func(testing.TB, store.Store){summed, summedAtOnce} {
		s := h.Open(t)
		check(t, s)
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	}
}

// summed checks a store.Summer. Others have nothing to prove.
func summed(t testing.TB, s store.Store) {
	summer, ok := s.(store.Summer)
	if !ok {
		t.Log("This store does not show changes to sums.")
		return
	}
	a := &adder{versions: map[store.Key]uint64{}, resting: true}
	stop := summer.Sum(a)
	idle := &adder{versions: map[store.Key]uint64{}}
	put(t, s, row(1000, ofKind(kindB)))
	update(t, s, deleting(row(1000, ofKind(kindB))))
	a.resting = false
	defer summer.Sum(idle)()
	named := watchedSums(s)

	put(t, s, row(1), row(2), row(3))
	put(t, s, row(1, version(2)))
	update(t, s, deleting(row(2)))
	update(t, s, deleting(row(2)))
	refused(t, s, store.ErrConflict, putting(row(4), row(1, version(2))))
	update(t, s, func(tx store.Tx) error {
		tx.Put(row(5))
		tx.Put(row(5, version(2)))
		tx.Delete(kindA, idOf(3))
		tx.Put(row(3))
		tx.Put(row(6))
		tx.Delete(kindA, idOf(6))
		return nil
	})
	agrees(t, s, a, 1)
	if !named() {
		t.Error("a Watcher does not name what sums return")
	}
	records := a.record
	if records != 1 {
		t.Errorf("%d transactions that were written are not said to be committed", records-1)
	}
	update(t, s, func(store.Tx) error { return nil })

	a.loses = true
	put(t, s, row(7))
	if agrees(t, s, a, a.record); a.record == records {
		t.Error("a record was put that does not follow its stored version")
	}

	parallel(t, 40, func(i int) error {
		fn := putting(row(100 + i))
		if i%8 == 7 {
			fn = putting(row(200+i), row(1, version(2))) // a conflict
		}
		if err := s.Update(background, fn); err != nil && i%8 != 7 {
			return err
		}
		return nil
	})
	agrees(t, s, a, a.record)
	if idle.record > 0 {
		t.Error("a transaction was shown to two sums")
	}

	stop()
	put(t, s, row(8)) // the one under way may still be shown
	before := len(a.versions)
	put(t, s, row(9))
	if len(a.versions) != before || idle.record == 0 {
		t.Error("changes are shown after stop, or not to the next sums")
	}
	for _, fault := range a.faults {
		t.Error(fault)
	}
}

// watchedSums watches a store.Watcher. named reports whether it has named a record of sums since.
func watchedSums(s store.Store) (named func() bool) {
	w, ok := s.(store.Watcher)
	if !ok {
		return func() bool { return true }
	}
	var sum atomic.Bool
	stop := w.Watch(func(keys []store.Key) func() {
		if slices.ContainsFunc(keys, func(k store.Key) bool { return k.Kind == kindSum }) {
			sum.Store(true)
		}
		return func() {}
	})
	return func() bool { stop(); return sum.Load() }
}

// agrees checks that an adder knows what the store holds, and that the last of its records says so.
func agrees(t testing.TB, s store.Store, a *adder, last int) {
	t.Helper()
	view(t, s, func(tx store.ReadTx) error {
		stored := map[store.Key]uint64{}
		for _, kind := range []store.Kind{kindA, kindB} {
			all, err := tx.Scan(kind, uuid.Nil, 1000)
			if err != nil {
				return err
			}
			for _, r := range all {
				stored[store.Key{Kind: kind, ID: r.ID}] = r.Version
			}
		}

		if !maps.Equal(stored, a.versions) {
			t.Errorf("the store has %d records, and the changes have left %d, or other versions", len(stored), len(a.versions))
		}
		r, err := tx.Get(kindSum, idOf(last))
		if err == nil && (len(r.Shown) != 4 || int(binary.BigEndian.Uint32(r.Shown)) != len(stored)) {
			err = errors.New("the record of a sum is not of the last transaction")
		}
		return err
	})
}

// summedAtOnce checks that what sums add shows with the changes.
func summedAtOnce(t testing.TB, s store.Store) {
	summer, ok := s.(store.Summer)
	if !ok {
		t.Log("This store does not show changes to sums.")
		return
	}
	a := &adder{versions: map[store.Key]uint64{}}
	defer summer.Sum(a)()
	put(t, s, row(0))
	look := func() error {
		return s.View(background, func(tx store.ReadTx) error {
			all, err := tx.Scan(kindA, uuid.Nil, 1000)
			if err != nil {
				return err
			}
			sums, err := tx.Scan(kindSum, uuid.Nil, 1000)
			if err != nil || len(sums) == 0 {
				return fmt.Errorf("no record of a sum: %w", err)
			}
			if n := binary.BigEndian.Uint32(sums[len(sums)-1].Shown); int(n) != len(all) {
				return fmt.Errorf("a View has %d records and a sum of %d", len(all), n)
			}
			return nil
		})
	}

	parallel(t, 40, func(i int) error {
		if i%4 == 3 {
			return look()
		}
		return errors.Join(s.Update(background, putting(row(100+i))), look())
	})
	for _, fault := range a.faults {
		t.Error(fault)
	}
}
