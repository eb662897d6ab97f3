package storetest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/cardvault/cardvault/store"
)

var isolationRules = []rule{{
	"Snapshot",
	`A View reads one consistent state: values that Updates keep equal are never seen unequal,
between records, between a page and its total, or between two reads.`,
	snapshot,
}, {
	"LostUpdate",
	`An fn that reads, computes and puts needs no guard of its own: whatever runs at the same time,
no write is lost and none conflicts.`,
	lostUpdate,
}, {
	"CompareAndSwap",
	`When several writers read a version outside and put the next one, one of them wins and the
others get ErrConflict. Sealed data is changed in this way.`,
	compareAndSwap,
}, {
	"WriteSkew",
	`Updates are serializable, which is more than snapshot isolation: two Updates that read the
same records and write different ones cannot both rely on records that the other changes.`,
	writeSkew,
}, {
	"Phantom",
	`Serializable also covers absent records. When several Updates find no record with a hash, or a
list below its limit, and add a record, only as many succeed as in sequence.`,
	phantom,
}, {
	"PhantomChild",
	`Children and Scan are reads like any other. When several Updates find less than a limit and
add a record, only as many succeed as in sequence.`,
	phantomChild,
}, {
	"ChildOrParent",
	`One Update deletes a parent because it has no children, and another puts a child because the
parent exists: both never succeed.`,
	childOrParent,
}, {
	"FirstOne",
	`When several Updates find the store empty and put a record, only one succeeds. Two keys of one
vault would each be wrong for half of its cards.`,
	firstOne,
}}

func number(r *store.Record) int64 { return int64(binary.BigEndian.Uint64(r.Shown)) }

func numbered(n int64) func(*store.Record) {
	return func(r *store.Record) { r.Shown = binary.BigEndian.AppendUint64(nil, uint64(n)) }
}

// add returns an fn that adds to the number of row n.
func add(tx store.Tx, n int, amount int64) error {
	r, err := tx.Get(kindA, idOf(n))
	if err != nil {
		return err
	}
	tx.Put(row(n, version(r.Version+1), class(r.Class), numbered(number(r)+amount)))
	return nil
}

func snapshot(t testing.TB, s store.Store) {
	const accounts, moves, amount = 8, 60, 1000
	for n := range accounts {
		put(t, s, row(1+n, numbered(amount)))
	}

	done := make(chan struct{})
	readers := make(chan error, 2)
	for range cap(readers) {
		go func() {
			var err error
			var seen [accounts]uint64
			for running := true; running && err == nil; {
				select {
				case <-done:
					running = false // one last look
				default:
				}
				err = s.View(background, func(tx store.ReadTx) error { return consistent(tx, accounts*amount, seen[:]) })
			}
			readers <- err
		}()
	}

	parallel(t, 4, func(w int) error {
		for i := range moves {
			from, to := 1+(w+i)%accounts, 1+(w+3*i+1)%accounts
			extra := 1000 + w*moves + i // records that come and go, in changing classes
			err := s.Update(background, func(tx store.Tx) error {
				tx.Put(row(extra, class(uint8(2+i%3)), numbered(0)))
				if i >= 5 {
					tx.Delete(kindA, idOf(extra-5))
				}
				if from == to {
					return nil
				}
				return errors.Join(add(tx, from, -7), add(tx, to, 7))
			})
			if err != nil {
				return fmt.Errorf("Update = %w", err)
			}
		}

		return nil
	})

	close(done)
	for range cap(readers) {
		if err := await(t, readers, "readers"); err != nil {
			t.Errorf("View during Updates: %v", err)
		}
	}
}

// consistent checks the sum of the first len(seen) records, that no version is
// below that last seen, and the totals of the list they are in.
func consistent(tx store.ReadTx, want int64, seen []uint64) error {
	var sum int64
	for i := range seen {
		r, err := tx.Get(kindA, idOf(1+i))
		if err != nil {
			return err
		}
		if r.Version < seen[i] {
			return errors.New("an older version than an earlier View saw")
		}
		seen[i] = r.Version
		sum += number(r)
		runtime.Gosched()
	}

	if sum != want {
		return fmt.Errorf("sum over records is %d, want %d", sum, want)
	}
	q := store.Query{Kind: kindA, Account: alice, Limit: 10000, Count: true}
	whole, err := tx.List(&q)
	if err != nil {
		return err
	}

	sum = 0
	for _, r := range whole.Records {
		sum += number(r)
	}
	if sum != want {
		return fmt.Errorf("sum over the list is %d, want %d", sum, want)
	}

	if whole.Total != int64(len(whole.Records)) {
		return fmt.Errorf("total is %d with %d records", whole.Total, len(whole.Records))
	}

	var total int64
	for c := range uint8(5) {
		q.Classes = set(c)
		part, err := tx.List(&q)
		if err != nil {
			return err
		}
		total += part.Total
	}

	if total != whole.Total {
		return fmt.Errorf("totals of the classes make %d, Total is %d", total, whole.Total)
	}
	return nil
}

func lostUpdate(t testing.TB, s store.Store) {
	const workers, each, counters = 16, 20, 3
	for n := range counters {
		put(t, s, row(1+n, numbered(0)))
	}
	parallel(t, workers, func(w int) error {
		for i := range each {
			err := s.Update(background, func(tx store.Tx) error {
				runtime.Gosched()
				return add(tx, 1+(w+i)%counters, 1)
			})
			if err != nil {
				return fmt.Errorf("Update = %w", err)
			}
		}
		return nil
	})

	var sum int64
	for n := range counters {
		r := get(t, s, row(1+n))
		if r == nil {
			t.Fatal("counter not found")
		}
		if r.Version != uint64(number(r))+1 {
			t.Errorf("%d additions in version %d", number(r), r.Version)
		}
		sum += number(r)
	}

	if sum != workers*each {
		t.Errorf("%d additions kept of %d", sum, workers*each)
	}
}

func compareAndSwap(t testing.TB, s store.Store) {
	const workers, rounds = 8, 20
	for round := range uint64(rounds) {
		var won atomic.Int64
		parallel(t, workers, func(w int) error {
			err := s.Update(background, putting(row(1, version(round+1), numbered(int64(w)))))
			switch {
			case err == nil:
				won.Add(1)
				return s.View(background, func(tx store.ReadTx) error {
					r, err := tx.Get(kindA, idOf(1))
					if err == nil && number(r) != int64(w) {
						return errors.New("the winner's record differs from the one it put")
					}
					return err
				})
			case !errors.Is(err, store.ErrConflict):
				return fmt.Errorf("Update = %w, want nil or ErrConflict", err)
			}
			return nil
		})

		if won := won.Load(); won != 1 {
			t.Errorf("%d of %d writers of one version won, want 1", won, workers)
			return
		}
	}
}

func writeSkew(t testing.TB, s store.Store) {
	const rounds = 40
	for round := range rounds {
		a, b := 2*round+1, 2*round+2
		put(t, s, row(a, numbered(1)), row(b, numbered(1)))
		parallel(t, 2, func(i int) error {
			// Leave only while the other stays.
			return s.Update(background, func(tx store.Tx) error {
				on := int64(0)
				for _, n := range []int{a, b} {
					r, err := tx.Get(kindA, idOf(n))
					if err != nil {
						return err
					}
					on += number(r)
					runtime.Gosched()
				}
				if on == 2 {
					return add(tx, a+i, -1)
				}
				return nil
			})
		})

		left := int64(0)
		for _, n := range []int{a, b} {
			if r := get(t, s, row(n)); r != nil {
				left += number(r)
			}
		}

		if left != 1 {
			t.Errorf("%d of 2 left, want 1: no order of the two Updates explains it", left)
			return
		}
	}
}

func phantom(t testing.TB, s store.Store) {
	const rounds, workers, limit = 15, 6, 2
	for round := range rounds {
		hash, family := fmt.Sprint(round), idOf(100000+round)
		parallel(t, workers, func(i int) error {
			return s.Update(background, func(tx store.Tx) error {
				sharing, err := tx.Lookup(kindA, []byte(hash), 1)
				if err != nil {
					return err
				}
				l, err := tx.List(&store.Query{Kind: kindB, Account: alice, Parent: family, Count: true})
				if err != nil {
					return err
				}

				runtime.Gosched()
				n := 1 + round*workers + i
				if len(sharing) == 0 {
					tx.Put(row(n, hashes(hash)))
				}
				if l.Total < limit {
					tx.Put(row(n, ofKind(kindB), ofParent(family)))
				}
				return nil
			})
		})

		view(t, s, func(tx store.ReadTx) error {
			sharing, err := tx.Lookup(kindA, []byte(hash), workers)
			if err == nil && len(sharing) != 1 {
				t.Errorf("%d records with a hash that each writer wanted for itself, want 1", len(sharing))
			}
			return err
		})

		if total := list(t, s, store.Query{Kind: kindB, Account: alice, Parent: family, Count: true}).Total; total != limit {
			t.Errorf("%d records in a list limited to %d", total, limit)
		}
		if t.Failed() {
			return
		}
	}
}
