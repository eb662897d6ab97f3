package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cardvault/cardvault/store"
)

var powerRules = []rule{{
	"Load",
	`Load writes a record that is not there, whatever its version, so that all reads find it and the
next Put follows that version. A vault that is restored from a backup has the same records.`,
	loads,
}, {
	"Watch",
	`A Watcher names each record that is put or deleted before a View sees it, and says when later
Views see it. A backup reads the named records again: one that is not named is in it as it was.`,
	watched,
}, {
	"Sum",
	`A Summer shows each change of a record, from one state to the next, and writes what sums return in
the same transaction. A change that is not shown has an operator look for a record that was lost.`,
	summed,
}, {
	"SumAtOnce",
	`What sums return shows with the changes to which it belongs, and not before or after. A vault that
is killed, or backed up, in between would have sums that are not those of its records.`,
	summedAtOnce,
}, {
	"KeptState",
	`A Snapshotter keeps one state for as long as fn lasts, while others read and write. A backup
that is made of two states has deleted cards, or half of a change.`,
	keptState,
}, {
	"Check",
	`A Checker finds no fault in a store that is whole, after any writes, and goes on from each
place in another transaction. A false alarm has an operator restore an older state for nothing.`,
	checksItself,
}, {
	"Repair",
	`A Repairer makes its indexes anew, a part at a time, while others write. They are as before in
a store that is whole, and Repair goes on from each place in another call.`,
	repairs,
}}

// checksItself checks a ReadTx that is a store.Checker. Others have nothing to prove.
func checksItself(t testing.TB, s store.Store) {
	able := false
	check := func(limit int) {
		t.Helper()
		var place []byte
		for step := 0; step == 0 || place != nil; step++ {
			view(t, s, func(tx store.ReadTx) error {
				c, ok := tx.(store.Checker)
				if able = ok; !ok {
					place = nil
					return nil
				}
				faults, after, err := c.Check(place, limit)
				if len(faults) > 0 {
					t.Errorf("Check finds %v in a store that is whole", faults)
				}
				place = after
				return err
			})
			if step > 10_000 {
				t.Fatal("Check does not end")
			}
		}
	}
	check(1)
	if !able {
		t.Log("This store does not check its indexes.")
		return
	}

	at := time.UnixMicro(1e15).UTC()
	var all []*store.Record
	for n := range 200 {
		r := row(n+1, class(uint8(n%4)), hashes("h", fmt.Sprint(n%7)))
		if n%3 == 0 {
			r.Due = at.Add(time.Duration(n%11) * time.Second)
		}
		if n%5 == 0 {
			r.Parent = idOf(1000)
		}
		if n%50 == 0 {
			r.Lookup = append(r.Lookup, r.Lookup[0]) // the same twice
		}
		all = append(all, r)
	}
	put(t, s, all...)
	check(3)
	check(1 << 20)
	for n := range 150 {
		if n%2 == 0 {
			update(t, s, deleting(all[n]))
			continue
		}
		r := all[n].Clone()
		r.Version, r.Class, r.Due, r.Lookup = 2, uint8(n%3), at.Add(time.Duration(n)*time.Hour), r.Lookup[:1]
		put(t, s, r)
	}
	check(7)
}

// loads checks a transaction that is store.Loader. Others have nothing to prove.
func loads(t testing.TB, s store.Store) {
	at := time.UnixMicro(1e15).UTC()
	first := row(1, version(7), due(at), hashes("h", "i"), class(3))
	child := row(2, version(1), ofKind(kindB), ofParent(idOf(1)))
	bobs := row(3, version(1<<62), account(bob))
	there := row(4)
	put(t, s, there)

	yes := false
	load := func(rs ...*store.Record) func(tx store.Tx) error {
		return func(tx store.Tx) error {
			for _, r := range rs {
				tx.(store.Loader).Load(r)
			}
			return nil
		}
	}
	update(t, s, func(tx store.Tx) error { _, yes = tx.(store.Loader); return nil })
	if !yes {
		t.Log("No backup can be restored into this store.")
		return
	}

	update(t, s, load(first, child, bobs))
	holds(t, s, first, child, bobs, there)
	lists(t, s, "the list of an account", store.Query{Kind: kindA, Account: alice, Classes: classesOf(3)}, 1)
	lists(t, s, "the list of a parent", store.Query{Kind: kindB, Account: alice, Parent: idOf(1)}, 2)
	view(t, s, func(tx store.ReadTx) error {
		hits, err := tx.Lookup(kindA, []byte("i"), 9)
		is(t, "Lookup", hits, 1)
		dues, failed := tx.Due(kindA, store.AllShards, at, 9)
		is(t, "Due", dues, 1)
		return errors.Join(err, failed)
	})

	refused(t, s, store.ErrConflict, load(row(5), row(4, version(2))))
	refused(t, s, store.ErrConflict, load(row(5), row(6, version(0))))
	refused(t, s, store.ErrInvalid, load(row(5), row(6, ofKind(0))))
	refused(t, s, store.ErrConflict, putting(row(1, version(7), class(3))))
	lacks(t, s, row(5), row(6))
	holds(t, s, first, there)

	second := row(1, version(8), class(2))
	put(t, s, second)
	again := row(4, version(9), account(bob))
	update(t, s, func(tx store.Tx) error {
		tx.Delete(kindA, again.ID)
		return load(again)(tx)
	})
	holds(t, s, second, again)
	lists(t, s, "the list of its account", store.Query{Kind: kindA, Account: bob}, 3, 4)

	update(t, s, func(tx store.Tx) error {
		if _, yes = tx.(store.Divided); yes {
			return load(row(8, version(2)))(within(tx, alice))
		}
		return nil
	})
	if yes {
		holds(t, s, row(8, version(2)))
		refused(t, s, store.ErrInvalid, func(tx store.Tx) error { return load(row(9, version(2)))(within(tx, bob)) })
	}
}

func classesOf(cs ...uint8) (all store.Classes) {
	for _, c := range cs {
		all.Add(c)
	}
	return all
}

// An observer watches a store, and compares what Views see.
type observer struct {
	s store.Store

	mu    sync.Mutex
	named []store.Key
	open  int // calls of changing without their changed
	errs  []error

	key  store.Key // the record to look at
	want [2]uint64 // its version before and after the change; 0: absent
}

func (o *observer) changing(keys []store.Key) func() {
	o.mu.Lock()
	o.named, o.open = append(o.named, keys...), o.open+1
	o.mu.Unlock()
	o.look(0)
	return func() {
		o.look(1)
		o.mu.Lock()
		defer o.mu.Unlock()
		o.open--
	}
}

// look notes an error if a View sees another version than expected.
func (o *observer) look(when int) {
	o.mu.Lock()
	key, want := o.key, o.want[when]
	o.mu.Unlock()
	if key.Kind == 0 {
		return
	}

	seen := make(chan error, 1)
	go func() {
		var seenVersion uint64
		err := o.s.View(background, func(tx store.ReadTx) error {
			seenVersion = 0
			r, err := tx.Get(key.Kind, key.ID)
			if err == nil {
				seenVersion = r.Version
			}
			if errors.Is(err, store.ErrNotFound) {
				err = nil
			}
			return err
		})
		if err == nil && seenVersion != want {
			err = fmt.Errorf("a View sees version %d %s, want %d", seenVersion, []string{"when the change is announced", "when it is made"}[when], want)
		}
		seen <- err
	}()

	var err error
	select {
	case err = <-seen:
	case <-time.After(patience):
		err = errors.New("a View waits while a change is announced")
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.errs = append(o.errs, err)
}

// ended returns the keys named since the last call, and fails the test for noted errors.
func (o *observer) ended(t testing.TB) []store.Key {
	t.Helper()
	o.mu.Lock()
	defer o.mu.Unlock()
	if err := errors.Join(o.errs...); err != nil {
		t.Error(err)
	}
	named := o.named
	o.named, o.errs, o.key = nil, nil, store.Key{}
	return named
}

// settled waits until all changes are settled: a store may answer an Update before that.
func (o *observer) settled(t testing.TB) {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		o.mu.Lock()
		open := o.open
		o.mu.Unlock()
		if open == 0 {
			return
		}
		if time.Now().After(end) {
			t.Fatal("a change was announced, and never settled")
		}
	}
}

// watched checks a store.Watcher. Others have nothing to prove.
func watched(t testing.TB, s store.Store) {
	w, ok := s.(store.Watcher)
	if !ok {
		t.Log("This store does not name changed records.")
		return
	}
	first, gone := row(1), row(2, ofKind(kindB))
	put(t, s, first, gone)
	o := &observer{s: s}
	stop := w.Watch(o.changing)

	names := func(what string, want ...*store.Record) {
		t.Helper()
		o.settled(t)
		named := o.ended(t)
		for _, r := range want {
			if !slices.Contains(named, store.Key{Kind: r.Kind, ID: r.ID}) {
				t.Errorf("%s: record %v of kind %d was not named", what, numbersOf([]*store.Record{r}), r.Kind)
			}
		}
	}
	expect := func(r *store.Record, before, after uint64) {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.key, o.want = store.Key{Kind: r.Kind, ID: r.ID}, [2]uint64{before, after}
	}

	expect(first, 1, 2)
	put(t, s, row(1, version(2)), row(3))
	names("Put", first, row(3))
	expect(gone, 1, 0)
	update(t, s, deleting(gone))
	names("Delete", gone)
	if yes := isLoader(t, s); yes {
		expect(row(4), 0, 5)
		update(t, s, func(tx store.Tx) error { tx.(store.Loader).Load(row(4, version(5))); return nil })
		names("Load", row(4))
	}
	expect(first, 2, 2)
	refused(t, s, store.ErrConflict, putting(row(1, version(2))))
	names("a conflict")

	for n := range 50 {
		expect(row(100+n), 0, 1)
		put(t, s, row(100+n))
		names("one of many", row(100+n))
	}
	watchedTogether(t, s, o)
	stop()
	put(t, s, row(99))
	if named := o.ended(t); len(named) > 0 {
		t.Errorf("%d records were named after stop", len(named))
	}
}

// watchedTogether checks that calls which are written together are named.
func watchedTogether(t testing.TB, s store.Store, o *observer) {
	parallel(t, 20, func(i int) error { return s.Update(background, putting(row(1000+i))) })
	o.settled(t)
	named := o.ended(t)
	for i := range 20 {
		if !slices.Contains(named, store.Key{Kind: kindA, ID: idOf(1000 + i)}) {
			t.Errorf("record %d, which was put beside others, was not named", 1000+i)
		}
	}
}

func isLoader(t testing.TB, s store.Store) (yes bool) {
	t.Helper()
	update(t, s, func(tx store.Tx) error { _, yes = tx.(store.Loader); return nil })
	return yes
}

// keptState checks a store.Snapshotter. Others have nothing to prove.
func keptState(t testing.TB, s store.Store) {
	k, ok := s.(store.Snapshotter)
	if !ok {
		t.Log("This store does not keep a state.")
		return
	}
	at := time.UnixMicro(1e15).UTC()
	old := []*store.Record{row(1, due(at), hashes("h")), row(2), row(3)}
	put(t, s, old...)

	calls, failure := 0, errors.New("of fn")
	err := k.Snapshot(background, func(tx store.ReadTx) error {
		calls++
		for n := range 3 {
			if n > 0 { // others write, and see it
				v := uint64(n + 1)
				put(t, s, row(1, version(v), shown("new")), row(10+n))
				holds(t, s, row(1, version(v), shown("new")), row(10+n))
			}
			if n == 1 {
				update(t, s, deleting(row(2)))
				lacks(t, s, row(2))
			}
			keeps(t, tx, at, old)
		}
		return failure
	})
	if calls != 1 || !errors.Is(err, failure) {
		t.Errorf("Snapshot = %v after %d calls of fn, want the error of the one", err, calls)
	}

	ctx, cancel := context.WithCancel(background)
	cancel()
	if err := k.Snapshot(ctx, func(store.ReadTx) error { return nil }); !errors.Is(err, context.Canceled) {
		t.Errorf("Snapshot after the end of its context = %v", err)
	}
	err = k.Snapshot(background, func(tx store.ReadTx) error {
		all, err := tx.Scan(kindA, uuid.Nil, 9)
		is(t, "the next Snapshot", all, 1, 3, 11, 12)
		return err
	})
	if err != nil {
		t.Errorf("Snapshot = %v", err)
	}
}

// keeps checks that a transaction sees the first state of keptState.
func keeps(t testing.TB, tx store.ReadTx, at time.Time, old []*store.Record) {
	t.Helper()
	all, err := tx.Scan(kindA, uuid.Nil, 9)
	is(t, "Scan of the kept state", all, 1, 2, 3)
	for i, r := range all[:min(len(all), len(old))] {
		if field := differs(r, old[i]); field != "" {
			t.Errorf("record %d of the kept state: other %s than was put", i+1, field)
		}
	}

	page, failed := tx.List(&store.Query{Kind: kindA, Account: alice, Limit: 9, Count: true})
	if failed == nil {
		is(t, "List of the kept state", page.Records, 1, 2, 3)
		if page.Total != 3 {
			t.Errorf("Total of the kept state = %d, want 3", page.Total)
		}
	}

	dues, unread := tx.Due(kindA, store.AllShards, at, 9)
	is(t, "Due of the kept state", dues, 1)
	if err := errors.Join(err, failed, unread); err != nil {
		t.Error(err)
	}
}
