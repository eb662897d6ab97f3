package storetest

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/cardvault/cardvault/store"
)

var secondRules = []harnessRule[*stand]{{
	"Second", "Second",
	`A store that another process has open is ErrLocked, and the first process is not disturbed.
Alternatively both see each other's writes at once: a client asks one replica after another.`,
	secondSees,
}, {
	"SecondConflicts", "Second",
	`When several processes change a record or claim due work, one succeeds at a time. If two did a
job at once, a receiver would be notified twice, or a card charged twice.`,
	secondConflicts,
}, {
	"SecondCloses", "Second",
	`When one process closes the store, the others continue.`,
	secondCloses,
}}

// two returns a store and a second one on the same data, or the first alone if the store is
// for one process.
func (s *stand) two() (first, second store.Store) {
	s.Helper()
	first = s.fresh()
	put(s, first, row(1, due(time.UnixMicro(1))))
	second, err := s.Second(s, first)
	if errors.Is(err, store.ErrLocked) {
		holds(s, first, row(1, due(time.UnixMicro(1))))
		put(s, first, row(2))
		return first, nil
	}
	return first, s.opened("Second", second, err)
}

func secondSees(s *stand) {
	first, second := s.two()
	if second == nil {
		return
	}

	holds(s, second, row(1, due(time.UnixMicro(1))))
	stores := []store.Store{first, second}
	for n := 2; n < 40; n++ {
		put(s, stores[n%2], row(n, hashes("h")))
		holds(s, stores[1-n%2], row(n, hashes("h")))
		if l := list(s, stores[1-n%2], store.Query{Kind: kindA, Account: alice, Count: true}); l.Total != int64(n) {
			s.Errorf("List of the other = %d records, want %d", l.Total, n)
		}
	}
	for n := 2; n < 40; n++ {
		update(s, stores[n%2], deleting(row(n)))
		lacks(s, stores[1-n%2], row(n))
	}
	found(s, second, kindA, "h", 9)
}

func secondConflicts(s *stand) {
	const workers, each = 6, 20
	first, second := s.two()
	if second == nil {
		return
	}
	stores := []store.Store{first, second}
	refused(s, second, store.ErrConflict, putting(row(1)))

	// Each claims a job by deleting it, and counts it in the record.
	for n := 100; n < 100+workers*each; n++ {
		put(s, stores[n%2], row(n, ofKind(kindB), due(time.UnixMicro(int64(n)))))
	}
	var claimed atomic.Int64
	parallel(s, workers, func(i int) error {
		for idle := 0; idle < 3; {
			n := 0
			err := stores[i%2].Update(background, func(tx store.Tx) error {
				jobs, err := tx.Due(kindB, store.AllShards, time.UnixMicro(1e6), 3)
				if n = len(jobs); n == 0 || err != nil {
					return err
				}
				for _, r := range jobs {
					tx.Delete(r.Kind, r.ID)
				}
				r, err := tx.Get(kindA, idOf(1))
				if err != nil {
					return err
				}
				r.Version++
				tx.Put(r)
				return nil
			})
			switch {
			case errors.Is(err, store.ErrConflict): // it reads again
			case err != nil:
				return fmt.Errorf("Update: %w", err)
			case n == 0:
				idle++
			default:
				claimed.Add(1<<32 + int64(n))
			}
		}
		return nil
	})

	updates, jobs := uint64(claimed.Load()>>32), claimed.Load()&(1<<32-1)
	if jobs != workers*each {
		s.Errorf("%d jobs were claimed of %d", jobs, workers*each)
	}
	if r := get(s, first, row(1)); r == nil || r.Version != 1+updates {
		s.Errorf("the record that %d Updates have changed is %+v", updates, r)
	}
}

func secondCloses(s *stand) {
	first, second := s.two()
	if second == nil {
		return
	}
	s.closes(first)
	holds(s, second, row(1, due(time.UnixMicro(1))))
	put(s, second, row(2))
	holds(s, second, row(2))
}
