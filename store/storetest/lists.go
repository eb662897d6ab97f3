package storetest

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cardvault/cardvault/store"
)

var listRules = []rule{{
	"Listed",
	`A record with a class is in exactly one list: its parent's if it has a parent, else its
account's. A list that shows records of another account is a breach.`,
	listed,
}, {
	"ClassChange",
	`A record is listed under the class of its last write, and in no list if that is zero. Statuses
are classes: a token must not be counted under an old status.`,
	classChange,
}, {
	"Classes",
	`A query selects the classes of its set, every class if the set is empty.`,
	classes,
}, {
	"Range",
	`Min and Max are bounds of ID, both inclusive; a zero Max is no bound. Date filters become
bounds, and a bound that is off by one hides a record.`,
	idRange,
}, {
	"Order",
	`A list is ordered by ID, by unsigned bytes, in either direction, in whatever order the records
were put.`,
	order,
}, {
	"Pages",
	`Pages of any size, one after the other, are the whole list without gap or overlap.`,
	pages,
}, {
	"Totals",
	`With Count, Total is the number of all selected records, whatever Offset and Limit are;
without Count it is 0. Clients compute the number of pages from it.`,
	totals,
}, {
	"Live",
	`Live omits records whose Due is set and not after it, exactly to the microsecond, from pages
at any offset and from totals. An expired card must neither be seen nor leave a gap.`,
	live,
}, {
	"WithoutSecret",
	`Listed records have every field except Secret. Lists must not carry card data around.`,
	withoutSecret,
}, {
	"ListByHash",
	`With Lookup a query selects only records that have the hash, together with all its other
conditions.`,
	listByHash,
}}

var sharedRules = []rule{{
	"Shared",
	`A list by a hash that more than MaxShared records of the kind and account share is ErrTooMany,
whatever the rest of the query; up to that number the list is exact. One account must not be able to
create lists that keep the store busy for all.`,
	shared,
}}

func shared(t testing.TB, s store.Store) {
	const batch = 500
	for from := 0; from < store.MaxShared; from += batch {
		update(t, s, func(tx store.Tx) error {
			for n := from; n < from+batch; n++ {
				r := row(1+n, hashes("h"), class(uint8(n%3)))
				if n%5 == 1 {
					r.Parent = idOf(77)
				}
				tx.Put(r)
			}
			return nil
		})
	}

	put(t, s, row(1, ofKind(kindB), hashes("h")), row(1<<20, hashes("x")))
	total := int64(0)
	for n := range store.MaxShared {
		if n%5 != 1 && n%3 > 0 {
			total++
		}
	}

	q := store.Query{Kind: kindA, Account: alice, Lookup: []byte("h"), Limit: 2, Count: true}
	exact := func() {
		t.Helper()
		l := list(t, s, q)
		is(t, "the first of many", l.Records, 3, 5)
		if l.Total != total {
			t.Errorf("Total = %d, want %d", l.Total, total)
		}
	}

	exact()

	more := row(1<<21, hashes("h"), class(0)) // of no list that is asked for
	put(t, s, more)
	for _, edit := range []func(q *store.Query){
		func(q *store.Query) {},
		func(q *store.Query) { q.Limit, q.Count = 1, false },
		func(q *store.Query) { q.Limit, q.Count = 0, false },
		func(q *store.Query) { q.Min, q.Max = idOf(1), idOf(2) },
		func(q *store.Query) { q.Parent = idOf(77) },
	} {
		q := q
		edit(&q)
		for _, call := range []func(fn func(store.ReadTx) error) error{
			func(fn func(store.ReadTx) error) error { return s.View(background, fn) },
			func(fn func(store.ReadTx) error) error {
				return s.Update(background, func(tx store.Tx) error { return fn(tx) })
			},
		} {
			var l *store.List
			if err := call(func(tx store.ReadTx) (err error) { l, err = tx.List(&q); return err }); !errors.Is(err, store.ErrTooMany) || l != nil {
				t.Errorf("List by a hash of too many = %v, %v, want nil and ErrTooMany", l, err)
			}
		}
	}

	found(t, s, kindA, "h", 2, 1, 2)
	lists(t, s, "another kind", store.Query{Kind: kindB, Account: alice, Lookup: []byte("h")}, 1)
	lists(t, s, "another hash", store.Query{Kind: kindA, Account: alice, Lookup: []byte("x")}, 1<<20)
	if l := list(t, s, store.Query{Kind: kindA, Account: alice, Limit: 1}); len(l.Records) != 1 {
		t.Error("a list without the hash is empty")
	}
	put(t, s, row(1<<22, hashes("h"))) // may be put all the same

	update(t, s, deleting(row(1<<22)))
	put(t, s, row(1<<21, hashes("x"), class(0), version(2)))
	exact()
}

func listed(t testing.TB, s store.Store) {
	put(t, s,
		row(1), row(2, class(255)), row(3, class(0)),
		row(4, account(bob)), row(5, account(uuid.Nil)), row(6, ofKind(kindB)),
		row(7, ofParent(idOf(1))), row(8, ofParent(idOf(1))), row(9, ofParent(idOf(1)), class(0)),
		row(10, ofParent(idOf(99))), row(11, ofParent(alice)),
		row(12, ofParent(idOf(1)), ofKind(kindB)),
	)

	lists(t, s, "account", store.Query{Kind: kindA, Account: alice}, 1, 2)
	lists(t, s, "another account", store.Query{Kind: kindA, Account: bob}, 4)
	lists(t, s, "no account", store.Query{Kind: kindA}, 5)
	lists(t, s, "another kind", store.Query{Kind: kindB, Account: alice}, 6)
	lists(t, s, "empty kind", store.Query{Kind: kindC, Account: alice})
	lists(t, s, "parent", store.Query{Kind: kindA, Account: alice, Parent: idOf(1)}, 7, 8)
	lists(t, s, "parent of another kind", store.Query{Kind: kindB, Account: alice, Parent: idOf(1)}, 12)
	lists(t, s, "absent parent", store.Query{Kind: kindA, Account: alice, Parent: idOf(99)}, 10)
	lists(t, s, "parent with the id of an account", store.Query{Kind: kindA, Account: alice, Parent: alice}, 11)
	lists(t, s, "account with the id of a parent", store.Query{Kind: kindA, Account: idOf(1)})
	lists(t, s, "no children", store.Query{Kind: kindA, Account: alice, Parent: idOf(2)})
}

func classChange(t testing.TB, s store.Store) {
	put(t, s, row(1), row(2), row(3, ofParent(idOf(1))))
	for v, c := range []uint8{1, 2, 0, 0, 255, 1} {
		if v > 0 {
			put(t, s, row(1, class(c), version(uint64(v+1))), row(3, ofParent(idOf(1)), class(c), version(uint64(v+1))))
		}
		for _, of := range []uint8{1, 2, 255} {
			var want, below []int
			if of == c {
				want, below = []int{1}, []int{3}
			}
			if of == 1 {
				want = append(want, 2)
			}
			lists(t, s, "list", store.Query{Kind: kindA, Account: alice, Classes: set(of)}, want...)
			lists(t, s, "children", store.Query{Kind: kindA, Account: alice, Parent: idOf(1), Classes: set(of)}, below...)
		}
	}

	update(t, s, deleting(row(1)))
	lists(t, s, "list after deletion", store.Query{Kind: kindA, Account: alice}, 2)
}

// set returns a set of classes.
func set(of ...uint8) store.Classes {
	var s store.Classes
	for _, c := range of {
		s.Add(c)
	}
	return s
}

func classes(t testing.TB, s store.Store) {
	var all []int
	update(t, s, func(tx store.Tx) error {
		for c := range 256 {
			tx.Put(row(1+c, class(uint8(c))))
		}
		return nil
	})

	for c := 1; c < 256; c++ {
		all = append(all, 1+c)
	}

	q := store.Query{Kind: kindA, Account: alice}
	lists(t, s, "every class", q, all...)
	for _, cs := range [][]uint8{{1}, {63}, {64}, {127, 128}, {255}, {2, 64, 65, 191, 192, 254}, {0}, {0, 7}} {
		q.Classes = set(cs...)
		var want []int
		for _, c := range cs {
			if c != 0 {
				want = append(want, 1+int(c))
			}
		}
		lists(t, s, "some classes", q, want...)
	}
}

func idRange(t testing.TB, s store.Store) {
	for n := 10; n <= 50; n += 10 {
		put(t, s, row(n))
	}

	for _, c := range []struct {
		name     string
		min, max uuid.UUID
		want     []int
	}{
		{"no bound", uuid.Nil, uuid.Nil, []int{10, 20, 30, 40, 50}},
		{"bounds that are ids", idOf(20), idOf(40), []int{20, 30, 40}},
		{"bounds between ids", idOf(15), idOf(45), []int{20, 30, 40}},
		{"lower bound", idOf(40), uuid.Nil, []int{40, 50}},
		{"upper bound", uuid.Nil, idOf(20), []int{10, 20}},
		{"one id", idOf(30), idOf(30), []int{30}},
		{"between two ids", idOf(31), idOf(39), nil},
		{"below all", uuid.Nil, idOf(9), nil},
		{"above all", idOf(51), uuid.Nil, nil},
		{"up to the highest", idOf(10), uuid.Max, []int{10, 20, 30, 40, 50}},
		{"nothing: Min above Max", idOf(40), idOf(20), nil},
	} {
		q := store.Query{Kind: kindA, Account: alice, Min: c.min, Max: c.max}
		lists(t, s, c.name, q, c.want...)
		q.Desc = true
		slices.Reverse(c.want)
		lists(t, s, c.name+", descending", q, c.want...)
	}
}

func order(t testing.TB, s store.Store) {
	ids := []uuid.UUID{
		{15: 1}, {14: 1}, {0: 1}, {0: 1, 15: 1}, {0: 1, 8: 0x7f}, {0: 1, 8: 0x80}, {0: 1, 8: 0xff},
		{0: 0x7f}, {0: 0x7f, 15: 0xff}, {0: 0x80}, {0: 0xff}, uuid.Max,
	}
	for _, i := range rand.New(rand.NewPCG(1, 2)).Perm(len(ids)) {
		put(t, s, row(1, func(r *store.Record) { r.ID = ids[i] }))
	}

	for _, desc := range []bool{false, true} {
		var got []uuid.UUID
		for _, r := range list(t, s, store.Query{Kind: kindA, Account: alice, Desc: desc, Limit: 100}).Records {
			got = append(got, r.ID)
		}
		if !slices.Equal(got, ids) {
			t.Errorf("Desc %v: got %v, want %v", desc, got, ids)
		}
		slices.Reverse(ids)
	}
}

func pages(t testing.TB, s store.Store) {
	const n = 53
	update(t, s, func(tx store.Tx) error {
		for i := range n {
			tx.Put(row(1+i*7%n, class(uint8(1+i%3))))
		}
		return nil
	})

	for _, q := range []store.Query{
		{},
		{Desc: true},
		{Classes: set(2)},
		{Classes: set(1, 3), Desc: true},
		{Min: idOf(5), Max: idOf(40)},
		{Min: idOf(5), Max: idOf(40), Classes: set(3), Desc: true},
	} {
		q.Kind, q.Account = kindA, alice
		q.Limit = math.MaxInt
		whole := numbersOf(list(t, s, q).Records)
		for _, q.Limit = range []int{1, 2, 7, n - 1, n, n + 1} {
			var got []int
			for q.Offset = 0; q.Offset <= n; q.Offset += int64(q.Limit) {
				page := numbersOf(list(t, s, q).Records)
				if len(page) > q.Limit {
					t.Errorf("%d records on a page of %d", len(page), q.Limit)
				}
				got = append(got, page...)
			}
			if !slices.Equal(got, whole) {
				t.Errorf("pages of %d: got %v, want %v", q.Limit, got, whole)
			}
		}

		for _, q.Offset = range []int64{n, n + 1, 1 << 40, math.MaxInt64} {
			q.Limit = math.MaxInt
			is(t, "page behind the end", list(t, s, q).Records)
		}
	}
}

func totals(t testing.TB, s store.Store) {
	update(t, s, func(tx store.Tx) error {
		for i := range 40 {
			tx.Put(row(1+i, class(uint8(1+i%4))))
		}
		return nil
	})

	for _, c := range []struct {
		q    store.Query
		want int64
	}{
		{store.Query{}, 40},
		{store.Query{Classes: set(2)}, 10},
		{store.Query{Classes: set(2, 4, 9)}, 20},
		{store.Query{Classes: set(9)}, 0},
		{store.Query{Min: idOf(5), Max: idOf(24)}, 20},
		{store.Query{Min: idOf(5), Max: idOf(24), Classes: set(1)}, 5},
		{store.Query{Min: idOf(33)}, 8},
	} {
		q := c.q
		q.Kind, q.Account = kindA, alice
		for _, q.Limit = range []int{0, 1, 100} {
			for _, q.Offset = range []int64{0, 3, 1000} {
				for _, q.Desc = range []bool{false, true} {
					q.Count = true
					l := list(t, s, q)
					if l.Total != c.want {
						t.Errorf("Limit %d, Offset %d: Total = %d, want %d", q.Limit, q.Offset, l.Total, c.want)
					}
					if want := min(int64(q.Limit), max(0, c.want-q.Offset)); int64(len(l.Records)) != want {
						t.Errorf("Limit %d, Offset %d: %d records, want %d", q.Limit, q.Offset, len(l.Records), want)
					}
					q.Count = false
					if l := list(t, s, q); l.Total != 0 {
						t.Errorf("without Count: Total = %d, want 0", l.Total)
					}
				}
			}
		}
	}
}

func live(t testing.TB, s store.Store) {
	const second, micro = time.Second, time.Microsecond
	now := time.Date(2030, 1, 2, 3, 4, 5, 678901000, time.UTC)
	for n, at := range []time.Time{
		{}, now.Add(-second), now.Add(-micro), now, now.Add(micro), now.Add(second), {}, time.UnixMicro(-1), time.UnixMicro(0),
	} {
		put(t, s, row(1+n, due(at), class(uint8(1+n%2))))
	}

	q := store.Query{Kind: kindA, Account: alice}
	lists(t, s, "without Live", q, 1, 2, 3, 4, 5, 6, 7, 8, 9)
	for _, c := range []struct {
		name string
		live time.Time
		want []int
	}{
		{"at the microsecond", now, []int{1, 5, 6, 7}},
		{"in another zone", now.In(time.FixedZone("east", 3600)), []int{1, 5, 6, 7}},
		{"one before", now.Add(-micro), []int{1, 4, 5, 6, 7}},
		{"one after", now.Add(micro), []int{1, 6, 7}},
		{"between two", now.Add(micro - 1), []int{1, 5, 6, 7}},
		{"long after", now.Add(1000 * time.Hour), []int{1, 7}},
		{"1970", time.UnixMicro(0), []int{1, 2, 3, 4, 5, 6, 7}},
		{"before 1970", time.UnixMicro(-1), []int{1, 2, 3, 4, 5, 6, 7, 9}},
		{"well before 1970", time.UnixMicro(-2), []int{1, 2, 3, 4, 5, 6, 7, 8, 9}},
	} {
		q := store.Query{Kind: kindA, Account: alice, Live: c.live}
		lists(t, s, c.name, q, c.want...)
		for offset := range len(c.want) + 1 {
			q.Offset, q.Limit = int64(offset), 2
			is(t, c.name+", a page", list(t, s, q).Records, c.want[offset:min(offset+2, len(c.want))]...)
		}
	}

	q.Live = now
	lists(t, s, "with classes", store.Query{Kind: kindA, Account: alice, Live: now, Classes: set(1)}, 1, 5, 7)
	lists(t, s, "with a range", store.Query{Kind: kindA, Account: alice, Live: now, Min: idOf(2), Max: idOf(6)}, 5, 6)

	put(t, s, row(1, version(2), due(now)), row(2, version(2), due(now.Add(micro))), row(3, version(2), class(1)))
	update(t, s, deleting(row(4)))
	lists(t, s, "after changes", q, 2, 3, 5, 6, 7)
	lists(t, s, "after changes, without Live", store.Query{Kind: kindA, Account: alice}, 1, 2, 3, 5, 6, 7, 8, 9)
	liveAmongMany(t, s, now)
}

// liveAmongMany puts many records that have lapsed among many that have not.
func liveAmongMany(t testing.TB, s store.Store, now time.Time) {
	t.Helper()
	update(t, s, func(tx store.Tx) error {
		for i := range 900 {
			r := row(1000+i, ofParent(idOf(999)), class(uint8(1+i%2)))
			switch i % 3 {
			case 0:
				r.Due = now.Add(-time.Duration(i) * time.Microsecond)
			case 1:
				r.Due = now.Add(time.Duration(i) * time.Microsecond)
			}
			tx.Put(r)
		}
		return nil
	})

	many := store.Query{Kind: kindA, Account: alice, Parent: idOf(999), Live: now, Limit: 4, Count: true}
	var want []int
	for i := range 900 {
		if i%3 != 0 {
			want = append(want, 1000+i)
		}
	}

	for _, many.Desc = range []bool{false, true} {
		for _, many.Offset = range []int64{0, 1, 301, 598, 600} {
			l := list(t, s, many)
			is(t, "page among lapsed", l.Records, want[many.Offset:min(many.Offset+4, 600)]...)
			if l.Total != 600 {
				t.Errorf("Total among lapsed = %d, want 600", l.Total)
			}
		}
		slices.Reverse(want)
	}
}

func withoutSecret(t testing.TB, s store.Store) {
	want := row(1, ofParent(idOf(9)), due(time.UnixMicro(12)), hashes("b", "a"), class(200))
	put(t, s, want)
	l := list(t, s, store.Query{Kind: kindA, Account: alice, Parent: idOf(9), Limit: 1})
	is(t, "list", l.Records, 1)
	for _, r := range l.Records {
		if len(r.Secret) != 0 {
			t.Error("a listed record has a Secret")
		}
		r.Secret = want.Secret
		if field := differs(r, want); field != "" {
			t.Errorf("a listed record has another %s than was put", field)
		}
	}
}

func listByHash(t testing.TB, s store.Store) {
	now := time.UnixMicro(1e15)
	put(t, s,
		row(1, hashes("h")), row(2, hashes("x", "h"), class(2)), row(3, hashes("x")), row(4),
		row(5, hashes("h"), due(now)), row(6, hashes("h", "x"), due(now.Add(time.Microsecond))),
		row(7, hashes("h"), class(0)), row(8, hashes("h"), account(bob)), row(9, hashes("h"), ofKind(kindB)),
		row(10, hashes("h"), ofParent(idOf(1))), row(11, hashes("hh")), row(12, hashes("h"), class(2)),
	)

	h := []byte("h")
	base := store.Query{Kind: kindA, Account: alice, Lookup: h}
	for _, c := range []struct {
		name string
		edit func(q *store.Query)
		want []int
	}{
		{"hash", func(q *store.Query) {}, []int{1, 2, 5, 6, 12}},
		{"descending", func(q *store.Query) { q.Desc = true }, []int{12, 6, 5, 2, 1}},
		{"classes", func(q *store.Query) { q.Classes = set(2, 3) }, []int{2, 12}},
		{"range", func(q *store.Query) { q.Min, q.Max = idOf(2), idOf(6) }, []int{2, 5, 6}},
		{"live", func(q *store.Query) { q.Live = now }, []int{1, 2, 6, 12}},
		{"all", func(q *store.Query) { q.Live, q.Min, q.Classes = now, idOf(2), set(1) }, []int{6}},
		{"another account", func(q *store.Query) { q.Account = bob }, []int{8}},
		{"parent", func(q *store.Query) { q.Parent = idOf(1) }, []int{10}},
		{"another kind", func(q *store.Query) { q.Kind = kindB }, []int{9}},
		{"another hash", func(q *store.Query) { q.Lookup = []byte("x") }, []int{2, 3, 6}},
		{"unknown hash", func(q *store.Query) { q.Lookup = []byte("y") }, nil},
	} {
		q := base
		c.edit(&q)
		lists(t, s, c.name, q, c.want...)
	}

	base.Offset, base.Limit, base.Count = 1, 2, true
	l := list(t, s, base)
	is(t, "page", l.Records, 2, 5)
	if l.Total != 5 {
		t.Errorf("page: Total = %d, want 5", l.Total)
	}
}
