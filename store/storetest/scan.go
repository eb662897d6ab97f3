package storetest

import (
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"testing"

	"github.com/google/uuid"

	"github.com/cardvault/cardvault/store"
)

var scanRules = []rule{{
	"Scan",
	`Scan returns at most limit records of a kind whose ids come after an id, complete and in the
order of their ids, whatever their account, parent and class. A walk through all records of a
kind must not miss records outside lists.`,
	scanned,
}, {
	"ScanPages",
	`Scans that each begin after the last id of the previous one see every record of the kind once,
whatever is put or deleted elsewhere meanwhile.`,
	scanPages,
}, {
	"Children",
	`Children returns the keys of at most limit records whose Parent is the id, of every kind, in
the order of their kinds and ids, whatever their account and class. The parent need not exist.
Only Children finds the records that a deletion leaves behind.`,
	children,
}, {
	"ChildrenOfMany",
	`A family of any size is found and erased a few at a time.`,
	childrenOfMany,
}, {
	"Empty",
	`Empty reports whether the store holds no record of any kind. A vault makes its keys only in an
empty store.`,
	empty,
}, {
	"ScanSeesTheStateBefore",
	`Scan, Children and Empty in an Update do not see the writes of the same fn.`,
	scanSeesTheStateBefore,
}}

// scans checks what a Scan returns.
func scans(t testing.TB, s store.Store, k store.Kind, after uuid.UUID, limit int, want ...int) {
	t.Helper()
	view(t, s, func(tx store.ReadTx) error {
		records, err := tx.Scan(k, after, limit)
		is(t, fmt.Sprintf("Scan after %v, limit %d", after, limit), records, want...)
		return err
	})
}

func scanned(t testing.TB, s store.Store) {
	scans(t, s, kindA, uuid.Nil, 9)
	records := []*store.Record{
		row(30, hashes("h")), row(10, class(0)), row(40, account(bob)), row(20, ofParent(idOf(10)), class(0)),
		row(50, account(uuid.Nil)), row(60, func(r *store.Record) { r.ID = uuid.Max }),
		row(15, ofKind(kindB)), row(70, ofKind(kindC)),
	}

	put(t, s, records...)
	highest := uint32(math.MaxUint32)
	last := int(highest) // the number of uuid.Max; -1 where int has 32 bits
	for _, c := range []struct {
		after uuid.UUID
		limit int
		want  []int
	}{
		{uuid.Nil, 9, []int{10, 20, 30, 40, 50, last}},
		{uuid.Nil, math.MaxInt, []int{10, 20, 30, 40, 50, last}},
		{uuid.Nil, 6, []int{10, 20, 30, 40, 50, last}},
		{uuid.Nil, 2, []int{10, 20}},
		{uuid.Nil, 1, []int{10}},
		{uuid.Nil, 0, nil},
		{uuid.Nil, -1, nil},
		{uuid.Nil, math.MinInt, nil},
		{idOf(10), 2, []int{20, 30}},
		{idOf(11), 2, []int{20, 30}},
		{idOf(9), 1, []int{10}},
		{idOf(50), 2, []int{last}},
		{idOf(60), 2, []int{last}},
		{uuid.Max, 9, nil},
	} {
		scans(t, s, kindA, c.after, c.limit, c.want...)
	}

	scans(t, s, kindB, uuid.Nil, 9, 15)
	scans(t, s, kindB, idOf(15), 9)
	scans(t, s, kindC, idOf(15), 9, 70)
	scans(t, s, 7, uuid.Nil, 9)
	view(t, s, func(tx store.ReadTx) error {
		got, err := tx.Scan(kindA, uuid.Nil, 9)
		slices.SortFunc(records, byID)
		want := slices.DeleteFunc(slices.Clone(records), func(r *store.Record) bool { return r.Kind != kindA })
		if e := alike(got, want, false); e != nil {
			t.Errorf("Scan: %v", e)
		}
		return err
	})

	put(t, s, row(10, class(7), version(2)))
	update(t, s, deleting(row(30)))
	scans(t, s, kindA, idOf(1), 3, 10, 20, 40)
}

func scanPages(t testing.TB, s store.Store) {
	const n = 2500
	update(t, s, func(tx store.Tx) error {
		for i := range n {
			r := row(2+2*(i*7%n), class(uint8(i%4)))
			switch i % 3 {
			case 0:
				r.Account = bob
			case 1:
				r.Parent = idOf(9)
			}
			tx.Put(r)
			tx.Put(row(3+2*i, ofKind(kindB)))
		}
		return nil
	})

	for _, limit := range []int{1, 97, n, n + 1} {
		var got []int
		for after := uuid.Nil; ; {
			var page []*store.Record
			view(t, s, func(tx store.ReadTx) (err error) {
				page, err = tx.Scan(kindA, after, limit)
				return err
			})
			if len(page) > limit {
				t.Fatalf("Scan returns %d records, limit %d", len(page), limit)
			}
			got = append(got, numbersOf(page)...)
			if len(page) < limit || limit == 1 && len(got) == 50 {
				break
			}
			after = page[len(page)-1].ID
		}

		want := n
		if limit == 1 {
			want = 50
		}
		if len(got) != want || !slices.IsSorted(got) || len(slices.Compact(got)) != want {
			t.Errorf("%d records, %d of them different, scanned %d at a time, want %d in order", len(got), len(slices.Compact(got)), limit, want)
		}
	}
}

// childrenAre checks what a Children returns.
func childrenAre(t testing.TB, s store.Store, parent uuid.UUID, limit int, want ...*store.Record) {
	t.Helper()
	view(t, s, func(tx store.ReadTx) error {
		keys, err := tx.Children(parent, limit)
		if !slices.Equal(keys, keysOf(want)) {
			t.Errorf("Children of %v, limit %d = %v, want %v", parent, limit, keys, keysOf(want))
		}
		return err
	})
}

func keysOf(rs []*store.Record) []store.Key {
	var keys []store.Key
	for _, r := range rs {
		keys = append(keys, store.Key{Kind: r.Kind, ID: r.ID})
	}
	return keys
}

func children(t testing.TB, s store.Store) {
	childrenAre(t, s, idOf(1), 9)
	of := ofParent(idOf(1))
	family := []*store.Record{ // in order
		row(3, of), row(5, of, class(0), hashes("h")), row(9, of, class(255), account(bob)),
		row(2, of, ofKind(kindB)), row(3, of, ofKind(kindB), class(0)),
		row(1, of, ofKind(kindC)), row(4, of, ofKind(kindC)),
	}

	put(t, s, row(1), row(2), row(6, ofParent(idOf(3))), row(7, ofParent(alice)), row(8, ofKind(kindB)), row(10, ofParent(idOf(2)), ofKind(kindB)),
		row(11, account(uuid.Nil)), row(12, account(uuid.Nil), class(0)))
	for _, i := range []int{4, 0, 6, 2, 5, 1, 3} {
		put(t, s, family[i])
	}
	for limit := range len(family) + 2 {
		childrenAre(t, s, idOf(1), limit, family[:min(limit, len(family))]...)
	}
	childrenAre(t, s, idOf(1), math.MaxInt, family...)
	childrenAre(t, s, idOf(1), -1)
	childrenAre(t, s, idOf(1), math.MinInt)
	childrenAre(t, s, idOf(3), 9, row(6))
	childrenAre(t, s, idOf(2), 9, row(10, ofKind(kindB)))
	childrenAre(t, s, idOf(99), 9)
	childrenAre(t, s, uuid.Max, 9)
	childrenAre(t, s, uuid.Nil, 9)
	childrenAre(t, s, alice, 9, row(7)) // the id of an account is one like any other
	childrenAre(t, s, bob, 9)

	// In and out of lists, and gone.
	for v, c := range []uint8{0, 7, 0, 1} {
		put(t, s, row(3, of, class(c), version(uint64(v+2))), row(5, of, class(c), version(uint64(v+2))))
		childrenAre(t, s, idOf(1), 9, family...)
	}

	update(t, s, deleting(family[1]))
	update(t, s, deleting(family[5]))
	family = slices.Delete(slices.Delete(family, 5, 6), 1, 2)
	childrenAre(t, s, idOf(1), 9, family...)

	// Children of absent records.
	strays := []*store.Record{row(20, ofParent(idOf(50))), row(21, ofParent(idOf(50)), ofKind(kindB), class(0))}
	put(t, s, strays...)
	holds(t, s, strays...)
	childrenAre(t, s, idOf(50), 9, strays...)
	lists(t, s, "list of an absent parent", store.Query{Kind: kindA, Account: alice, Parent: idOf(50)}, 20)
}

func childrenOfMany(t testing.TB, s store.Store) {
	const n, batch = 10_500, 700
	kinds := []store.Kind{kindA, kindB, kindC}
	for from := 0; from < n; from += n / 3 {
		update(t, s, func(tx store.Tx) error {
			for i := from; i < from+n/3; i++ {
				tx.Put(row(10+i, ofParent(idOf(1)), ofKind(kinds[i%3]), class(uint8(i%2))))
			}
			return nil
		})
	}

	put(t, s, row(9, ofParent(idOf(2)), ofKind(kindA)))
	childrenAre(t, s, idOf(1), 2, row(10), row(13))
	seen := make(map[store.Key]bool)
	var last store.Key

	for round := 0; len(seen) < n; round++ {
		var keys []store.Key
		update(t, s, func(tx store.Tx) (err error) {
			if keys, err = tx.Children(idOf(1), batch); err != nil {
				return err
			}
			for _, k := range keys {
				tx.Delete(k.Kind, k.ID)
			}
			return nil
		})

		for _, k := range keys {
			if k.Kind < last.Kind || k.Kind == last.Kind && byID(&store.Record{ID: k.ID}, &store.Record{ID: last.ID}) <= 0 {
				t.Fatalf("%v comes after %v", k, last)
			}
			seen[k], last = true, k
		}

		if len(keys) != batch {
			t.Fatalf("%d children in round %d, want %d", len(keys), round, batch)
		}
	}

	childrenAre(t, s, idOf(1), 9)
	childrenAre(t, s, idOf(2), 9, row(9))
}

// isEmpty checks what Empty returns, in a View and in an Update.
func isEmpty(t testing.TB, s store.Store, want bool) {
	t.Helper()
	look := func(tx store.ReadTx) error {
		got, err := tx.Empty()
		if got != want {
			t.Errorf("Empty = %v, want %v", got, want)
		}
		return err
	}
	view(t, s, look)
	update(t, s, func(tx store.Tx) error { return look(tx) })
}

func empty(t testing.TB, s store.Store) {
	isEmpty(t, s, true)
	no := errors.New("no")
	refused(t, s, no, func(tx store.Tx) error { tx.Put(row(1)); return no })
	isEmpty(t, s, true)

	for _, r := range []*store.Record{
		row(1), row(1, ofKind(kindC), class(0)), row(1, ofKind(kindB), ofParent(idOf(5))), row(1, ofKind(7), account(uuid.Nil), class(0)),
	} {
		put(t, s, r)
		isEmpty(t, s, false)
		update(t, s, deleting(r))
		isEmpty(t, s, true)
	}

	update(t, s, func(tx store.Tx) error {
		for i := range 1000 {
			tx.Put(row(1 + i))
		}
		return nil
	})

	update(t, s, func(tx store.Tx) error {
		for i := range 999 {
			tx.Delete(kindA, idOf(1+i))
		}
		return nil
	})

	isEmpty(t, s, false)
	update(t, s, deleting(row(1000)))
	isEmpty(t, s, true)
}

func scanSeesTheStateBefore(t testing.TB, s store.Store) {
	update(t, s, func(tx store.Tx) error {
		tx.Put(row(2, ofParent(idOf(1))))
		if none, err := tx.Empty(); err != nil || !none {
			t.Errorf("Empty beside a record just put = %v, %v, want true", none, err)
		}
		return nil
	})

	update(t, s, func(tx store.Tx) error {
		tx.Delete(kindA, idOf(2))
		tx.Put(row(3, ofParent(idOf(1))))
		if none, err := tx.Empty(); err != nil || none {
			t.Errorf("Empty beside a record just deleted = %v, %v, want false", none, err)
		}
		records, err := tx.Scan(kindA, uuid.Nil, 9)
		if err != nil {
			return err
		}
		is(t, "Scan", records, 2)
		keys, err := tx.Children(idOf(1), 9)
		if want := keysOf([]*store.Record{row(2)}); !slices.Equal(keys, want) {
			t.Errorf("Children = %v, want %v", keys, want)
		}
		return err
	})

	scans(t, s, kindA, uuid.Nil, 9, 3)
	childrenAre(t, s, idOf(1), 9, row(3))
}

// phantomChild: what Scan, Children and Empty did not find is not added by another Update
// in between.
func phantomChild(t testing.TB, s store.Store) {
	const rounds, workers, limit = 15, 6, 2
	for round := range rounds {
		family := idOf(100_000 + round)
		first := 1 + round*workers
		parallel(t, workers, func(i int) error {
			return s.Update(background, func(tx store.Tx) error {
				keys, err := tx.Children(family, limit)
				if err != nil {
					return err
				}
				records, err := tx.Scan(kindB, idOf(first-1), limit)
				if err != nil {
					return err
				}

				runtime.Gosched()
				if len(keys) < limit {
					tx.Put(row(first+i, ofKind([]store.Kind{kindA, kindC}[i%2]), ofParent(family), class(uint8(i%2))))
				}
				if len(records) < limit {
					tx.Put(row(first+i, ofKind(kindB), class(0)))
				}
				return nil
			})
		})

		view(t, s, func(tx store.ReadTx) error {
			keys, err := tx.Children(family, workers)
			if err == nil && len(keys) != limit {
				t.Errorf("%d children of a family limited to %d", len(keys), limit)
			}
			return err
		})

		view(t, s, func(tx store.ReadTx) error {
			records, err := tx.Scan(kindB, idOf(first-1), workers)
			if err == nil && len(records) != limit {
				t.Errorf("%d records after an id, limited to %d", len(records), limit)
			}
			return err
		})

		if t.Failed() {
			return
		}
	}
}

// childOrParent: some Updates delete a parent that has no children, others add a child to
// a parent that is there.
func childOrParent(t testing.TB, s store.Store) {
	const rounds, workers = 40, 6
	for round := range rounds {
		p := row(1 + round)
		put(t, s, p)
		parallel(t, workers, func(i int) error {
			return s.Update(background, func(tx store.Tx) error {
				if i%2 == 0 {
					keys, err := tx.Children(p.ID, 1)
					runtime.Gosched()
					if len(keys) == 0 {
						tx.Delete(p.Kind, p.ID)
					}
					return err
				}
				_, err := tx.Get(p.Kind, p.ID)
				runtime.Gosched()
				if errors.Is(err, store.ErrNotFound) {
					return nil
				}
				tx.Put(row(1+round*workers+i, ofKind(kindB), ofParent(p.ID), class(0)))
				return err
			})
		})

		there := get(t, s, p) != nil
		view(t, s, func(tx store.ReadTx) error {
			keys, err := tx.Children(p.ID, workers)
			if there != (len(keys) > 0) {
				t.Errorf("parent there: %v, with %d children: no order of the Updates explains it", there, len(keys))
			}
			return err
		})

		if t.Failed() {
			return
		}
	}
}

// firstOne checks that exactly one Update succeeds of several that find the store empty and
// put a record.
func firstOne(t testing.TB, s store.Store) {
	const rounds, workers = 15, 6
	for range rounds {
		parallel(t, workers, func(i int) error {
			return s.Update(background, func(tx store.Tx) error {
				none, err := tx.Empty()
				runtime.Gosched()
				if none {
					tx.Put(row(1, ofKind(store.Kind(1+i))))
				}
				return err
			})
		})

		n := 0
		for i := range workers {
			if r := row(1, ofKind(store.Kind(1+i))); get(t, s, r) != nil {
				n++
				update(t, s, deleting(r))
			}
		}

		if n != 1 {
			t.Errorf("%d records were put into an empty store, want 1", n)
			return
		}
	}
}
