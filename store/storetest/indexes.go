package storetest

import (
	"cmp"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cardvault/cardvault/store"
)

var indexRules = []rule{{
	"Lookup",
	`Lookup returns at most limit records of a kind with the hash, complete and in the order of
their ids. Several records may share a hash.`,
	lookup,
}, {
	"LookupChange",
	`A record is found by the hashes of its last write and by no others, and not after its
deletion. A stale hash finds the wrong card.`,
	lookupChange,
}, {
	"LookupOfSimilar",
	`Hashes are bytes of any length. A hash is never mistaken for another with the same beginning,
or because hash and id look alike when joined.`,
	lookupOfSimilar,
}, {
	"Due",
	`Due returns at most limit records of a kind with a Due at or before until, in the order of
Due; Next returns the earliest Due. Expiry and all retries depend on these.`,
	dueOrder,
}, {
	"DueChange",
	`A record is due as of its last write. Finished work must not come back, and postponed work
must not be lost.`,
	dueChange,
}, {
	"DueByShard",
	`Due and Next look only at the given shards, in the order of Due across all of them. Records of
other shards do not use up the limit. Processes divide the work by shards, and each must see
its own work whatever the others have to do.`,
	dueByShard,
}, {
	"DueEver",
	`Due is any time: 1970-01-01 is not "never", and earlier and far later ones keep their order.`,
	dueEver,
}, {
	"DueMicroseconds",
	`Times are in whole microseconds: finer parts are cut off, never rounded up, both in stored
times and in queries. A record that is due too early, by however little, expired early.`,
	dueMicroseconds,
}}

// found checks what a Lookup returns.
func found(t testing.TB, s store.Store, k store.Kind, hash string, limit int, want ...int) {
	t.Helper()
	view(t, s, func(tx store.ReadTx) error {
		records, err := tx.Lookup(k, []byte(hash), limit)
		is(t, "Lookup", records, want...)
		return err
	})
}

// overdue checks what a Due returns.
func overdue(t testing.TB, s store.Store, k store.Kind, until time.Time, limit int, want ...int) {
	t.Helper()
	view(t, s, func(tx store.ReadTx) error {
		records, err := tx.Due(k, store.AllShards, until, limit)
		is(t, "Due", records, want...)
		return err
	})
}

// sharded returns the n-th record of kind A, in a shard.
func sharded(shard uint8, n int, edits ...func(*store.Record)) *store.Record {
	r := row(n, edits...)
	r.ID[15] = 0xa0 | shard
	return r
}

// next checks what a Next returns.
func next(t testing.TB, s store.Store, k store.Kind, want time.Time) {
	t.Helper()
	view(t, s, func(tx store.ReadTx) error {
		got, err := tx.Next(k, store.AllShards)
		if !got.Equal(want) || got.IsZero() != want.IsZero() {
			t.Errorf("Next = %v, want %v", got, want)
		}
		return err
	})
}

func lookup(t testing.TB, s store.Store) {
	records := []*store.Record{
		row(5, hashes("h")), row(2, hashes("h"), class(0)), row(4, hashes("x", "h", "h"), account(bob)),
		row(3, hashes("h"), ofParent(idOf(9)), due(time.UnixMicro(1))), row(1, hashes("x")), row(6),
		row(7, ofKind(kindB), hashes("h")),
	}

	put(t, s, records...)
	found(t, s, kindA, "h", 100, 2, 3, 4, 5)
	found(t, s, kindA, "h", math.MaxInt, 2, 3, 4, 5)
	found(t, s, kindA, "h", 4, 2, 3, 4, 5)
	found(t, s, kindA, "h", 3, 2, 3, 4)
	found(t, s, kindA, "h", 1, 2)
	found(t, s, kindA, "h", 0)
	found(t, s, kindA, "x", 100, 1, 4)
	found(t, s, kindB, "h", 100, 7)
	found(t, s, kindB, "x", 100)
	found(t, s, kindC, "h", 100)
	view(t, s, func(tx store.ReadTx) error {
		got, err := tx.Lookup(kindA, []byte("h"), 2)
		if len(got) == 2 && differs(got[1], records[3]) != "" {
			t.Errorf("Lookup returns another %s than was put", differs(got[1], records[3]))
		}
		return err
	})
}

func lookupChange(t testing.TB, s store.Store) {
	put(t, s, row(1, hashes("a", "b")), row(2, hashes("b")))
	put(t, s, row(1, hashes("b", "c"), version(2)))
	found(t, s, kindA, "a", 9)
	found(t, s, kindA, "b", 9, 1, 2)
	found(t, s, kindA, "c", 9, 1)
	put(t, s, row(1, version(3)), row(2, hashes("b"), version(2), class(7)))
	found(t, s, kindA, "b", 9, 2)
	found(t, s, kindA, "c", 9)
	put(t, s, row(1, hashes("a"), version(4)))
	found(t, s, kindA, "a", 9, 1)
	update(t, s, deleting(row(1)))
	found(t, s, kindA, "a", 9)
	put(t, s, row(1, hashes("z")))
	found(t, s, kindA, "a", 9)
	found(t, s, kindA, "z", 9, 1)
}

func lookupOfSimilar(t testing.TB, s store.Store) {
	first := func(b byte) string { u := idOf(int(b) << 24); return string(u[:]) }
	put(t, s,
		row(1, hashes("a")), row(2, hashes("aa")), row(3, hashes("a\x00")), row(4, hashes("\x00")),
		row(5, hashes("\xff")), row(6, hashes("\xff\xff")), row(7, hashes("b")),
		row('k'<<24, hashes("pre")), row(8, hashes("pre"+first('k'))), row(9, hashes("prek")),
	)

	found(t, s, kindA, "a", 9, 1)
	found(t, s, kindA, "aa", 9, 2)
	found(t, s, kindA, "a\x00", 9, 3)
	found(t, s, kindA, "\x00", 9, 4)
	found(t, s, kindA, "\xff", 9, 5)
	found(t, s, kindA, "\xff\xff", 9, 6)
	found(t, s, kindA, "pre", 9, 'k'<<24)
	found(t, s, kindA, "prek", 9, 9)
	found(t, s, kindA, "pre"+first('k'), 9, 8)
	found(t, s, kindA, "pr", 9)
}

func dueOrder(t testing.TB, s store.Store) {
	at := func(n int64) time.Time { return time.UnixMicro(1e15 + n) }
	next(t, s, kindA, time.Time{})
	records := []*store.Record{
		row(1, due(at(50))), row(2, due(at(20)), class(0)), row(3), row(4, due(at(40)), ofParent(idOf(9))),
		row(5, due(at(10)), account(bob), hashes("h")), row(6, due(at(5)), ofKind(kindB)),
	}
	put(t, s, records...)
	overdue(t, s, kindA, at(100), 9, 5, 2, 4, 1)
	overdue(t, s, kindA, at(100), math.MaxInt, 5, 2, 4, 1)
	overdue(t, s, kindA, at(100), 2, 5, 2)
	overdue(t, s, kindA, at(100), 0)
	overdue(t, s, kindA, at(40), 9, 5, 2, 4)
	overdue(t, s, kindA, at(39), 9, 5, 2)
	overdue(t, s, kindA, at(9), 9)
	overdue(t, s, kindB, at(100), 9, 6)
	overdue(t, s, kindC, at(100), 9)
	next(t, s, kindA, at(10))
	next(t, s, kindB, at(5))
	next(t, s, kindC, time.Time{})
	view(t, s, func(tx store.ReadTx) error {
		got, err := tx.Due(kindA, store.AllShards, at(10), 1)
		if len(got) == 1 && differs(got[0], records[4]) != "" {
			t.Errorf("Due returns another %s than was put", differs(got[0], records[4]))
		}
		return err
	})

	// Many at one instant are all returned, and none is ahead of an earlier one.
	update(t, s, func(tx store.Tx) error {
		for i := range 100 {
			tx.Put(row(100+i, ofKind(kindC), due(at(int64(i%2)))))
		}
		return nil
	})

	view(t, s, func(tx store.ReadTx) error {
		got, err := tx.Due(kindC, store.AllShards, at(1), 1000)
		seen := make(map[uuid.UUID]bool)
		for i, r := range got {
			seen[r.ID] = true
			if i > 0 && r.Due.Before(got[i-1].Due) {
				t.Error("Due is out of order")
			}
		}
		if len(got) != 100 || len(seen) != 100 {
			t.Errorf("Due returns %d records, %d of them different, want 100", len(got), len(seen))
		}
		return err
	})
}

func dueByShard(t testing.TB, s store.Store) {
	at := func(n int64) time.Time { return time.UnixMicro(1e15 + n) }
	var records []*store.Record
	for n := range 40 { // two records in each of the lower shards; the latest is in shard 7
		shard := uint8(n % 8)
		records = append(records, sharded(shard, n, due(at(int64(n+100*(n%8/7))))))
	}
	records = append(records, sharded(9, 50, due(at(60)), class(0)), sharded(9, 51), sharded(9, 52, due(at(1)), ofKind(kindB)))
	put(t, s, records...)

	check := func(tx store.ReadTx, shards store.Shards, until int64, limit int) error {
		var want []*store.Record
		for _, r := range records {
			if r.Kind == kindA && shards.Has(store.ShardOf(r.ID)) && !r.Due.IsZero() && !r.Due.After(at(until)) {
				want = append(want, r)
			}
		}
		slices.SortStableFunc(want, func(a, b *store.Record) int { return a.Due.Compare(b.Due) })
		first, err := tx.Next(kindA, shards)
		if earliest := slices.MinFunc(append(want, &store.Record{Due: at(1e6)}), byDue).Due; err == nil && until == 1000 && len(want) > 0 && !first.Equal(earliest) {
			t.Errorf("Next of shards %b = %v, want %v", shards, first, earliest)
		}
		got, dueErr := tx.Due(kindA, shards, at(until), limit)
		if e := alike(got, want[:min(limit, len(want))], false); e != nil {
			t.Errorf("Due of shards %b until %d, at most %d: %v", shards, until, limit, e)
		}
		return cmp.Or(err, dueErr)
	}
	all := func(tx store.ReadTx) error {
		for _, shards := range []store.Shards{store.AllShards, 1, 1 << 7, 1 << 9, 1 << 15, 1<<1 | 1<<7 | 1<<9, 0xff, 0xff00, 0xffff} {
			for _, until := range []int64{0, 20, 1000} {
				for _, limit := range []int{1, 3, 100} {
					if err := check(tx, shards, until, limit); err != nil {
						return err
					}
				}
			}
		}
		return nil
	}
	view(t, s, all)
	view(t, s, func(tx store.ReadTx) error {
		at, err := tx.Next(kindA, 1<<15)
		if !at.IsZero() {
			t.Errorf("Next of a shard without records = %v", at)
		}
		return err
	})
	update(t, s, func(tx store.Tx) error { return check(tx, 1<<1|1<<9, 1000, 3) })

	update(t, s, deleting(records[7]))
	records[0] = sharded(0, 0, due(at(500)), version(2))
	put(t, s, records[0])
	records = slices.Delete(records, 7, 8)
	view(t, s, all)
}

func dueChange(t testing.TB, s store.Store) {
	at := func(n int64) time.Time { return time.UnixMicro(1e15 + n) }
	put(t, s, row(1, due(at(10))), row(2, due(at(20))), row(3))
	put(t, s, row(1, due(at(30)), version(2)))
	overdue(t, s, kindA, at(100), 9, 2, 1)
	next(t, s, kindA, at(20))
	put(t, s, row(2, version(2)), row(3, version(2), due(at(5))))
	overdue(t, s, kindA, at(100), 9, 3, 1)
	next(t, s, kindA, at(5))
	put(t, s, row(3, version(3), due(at(5)), shown("other")))
	overdue(t, s, kindA, at(5), 9, 3)
	update(t, s, deleting(row(3)))
	overdue(t, s, kindA, at(100), 9, 1)
	next(t, s, kindA, at(30))
	update(t, s, deleting(row(1)))
	next(t, s, kindA, time.Time{})
	put(t, s, row(1))
	overdue(t, s, kindA, at(100), 9)
}

func dueEver(t testing.TB, s store.Store) {
	times := []time.Time{
		time.Date(1583, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(1969, 12, 31, 23, 59, 59, 999999000, time.UTC),
		time.UnixMicro(0), time.UnixMicro(1), time.Date(2038, 1, 19, 3, 14, 8, 0, time.UTC),
		time.Date(2262, 4, 12, 0, 0, 0, 0, time.UTC), time.Date(9999, 12, 31, 23, 59, 59, 999999000, time.UTC),
	}

	for _, i := range []int{3, 6, 0, 4, 2, 5, 1} {
		put(t, s, row(1+i, due(times[i])))
		holds(t, s, row(1+i, due(times[i])))
	}

	for i, at := range times {
		overdue(t, s, kindA, at, 9, []int{1, 2, 3, 4, 5, 6, 7}[:i+1]...)
		overdue(t, s, kindA, at.Add(-time.Microsecond), 9, []int{1, 2, 3, 4, 5, 6, 7}[:i]...)
	}

	for i, at := range times {
		next(t, s, kindA, at)
		update(t, s, deleting(row(1+i)))
	}
}

func dueMicroseconds(t testing.TB, s store.Store) {
	for _, at := range []time.Time{time.UnixMicro(1e15), time.UnixMicro(-1e15)} {
		put(t, s, row(1, due(at.Add(time.Microsecond-1))), row(2, due(at.Add(time.Microsecond))))
		holds(t, s, row(1, due(at)), row(2, due(at.Add(time.Microsecond))))
		next(t, s, kindA, at)
		overdue(t, s, kindA, at, 9, 1)
		overdue(t, s, kindA, at.Add(time.Microsecond-1), 9, 1)
		overdue(t, s, kindA, at.Add(time.Microsecond), 9, 1, 2)
		update(t, s, deleting(row(1)))
		update(t, s, deleting(row(2)))
	}
}
