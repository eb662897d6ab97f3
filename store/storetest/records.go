package storetest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cardvault/cardvault/store"
)

var recordRules = []rule{{
	"RoundTrip",
	`Get returns every field of a record exactly as it was put. The vault binds all of them to its
ciphertexts, so a record with a single changed bit can never be opened again.`,
	roundTrip,
}, {
	"NotFound",
	`Get returns ErrNotFound for an absent record, and ids are unique only within a kind: a token
and its session may have the same id.`,
	notFound,
}, {
	"Versions",
	`Put carries version 1 for a new record, else one more than the stored version; otherwise
Update returns ErrConflict. Only this keeps two writers from undoing each other's work.`,
	versions,
}, {
	"WritesInOrder",
	`The writes of an Update are applied in order: a record may be put, deleted and put again in
one Update, and each Put is checked against the result of the writes before it.`,
	writesInOrder,
}, {
	"Invalid",
	`Update returns ErrInvalid for a record that breaks a rule of Record. Kind, ID, Account and
Parent never change. All backends have the same size limits, so that a vault that works on one
works on another.`,
	invalid,
}, {
	"AllOrNone",
	`Update applies all of its writes or none. A token stored without its job, event or index row
would be lost to the vault.`,
	allOrNone,
}, {
	"DeleteAbsent",
	`Deleting an absent record does nothing. Deletions are repeated after a crash.`,
	deleteAbsent,
}, {
	"Delete",
	`Deleting a record removes it, with everything by which it could be found, and nothing else:
its children and their children stay in their lists, lookups, due times and totals. Otherwise
an attacker could make a deletion as expensive as he likes.`,
	deletes,
}, {
	"DeleteWithinUpdate",
	`A deletion also leaves children that were put in the same Update, before or after it.`,
	deleteWithinUpdate,
}, {
	"DeleteOfSharedID",
	`A deletion removes only the record of its kind. Records of other kinds with the same id stay,
and so do its children, even if a record is its own parent or the child of its own child.`,
	deleteOfSharedID,
}, {
	"Orphans",
	`A child needs no parent: it can be put, changed, listed and deleted like any other record even
if its parent never existed. A Put that waited for the deletion of its parent must not fail
the vault.`,
	orphans,
}, {
	"PutKeepsNothing",
	`The store keeps no reference to a record or its slices after Update returns. The vault
wipes and reuses its buffers.`,
	putKeepsNothing,
}, {
	"ReadsAreCopies",
	`Records returned by a ReadTx belong to the caller and stay valid after the transaction,
whatever is written, changed or unmapped later. Callers open and wipe them outside.`,
	readsAreCopies,
}}

func roundTrip(t testing.TB, s store.Store) {
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	largest := row(3, ofKind(kindC), class(255), func(r *store.Record) {
		for i := range store.MaxLookups {
			r.Lookup = append(r.Lookup, []byte(strings.Repeat(string(rune('a'+i)), store.MaxLookup)))
		}
		r.Shown = []byte(strings.Repeat("s", 1000))
		r.Secret = make([]byte, store.MaxRecord-len(r.Shown)-store.MaxLookups*store.MaxLookup)
	})

	records := []*store.Record{
		row(1, ofParent(idOf(100)), due(time.UnixMicro(1700000000123456)), hashes("z", "a", "\x00\xff"), func(r *store.Record) {
			r.Shown, r.Secret = every, every[100:]
		}),
		{Kind: kindB, ID: idOf(2), Version: 1}, // the least that is a record
		largest,
		row(4, func(r *store.Record) { r.ID = uuid.Max }),
		row(5, func(r *store.Record) { r.ID = uuid.UUID{15: 1} }),
	}

	put(t, s, records...)
	holds(t, s, records...)
	for _, r := range records {
		r.Version++
	}
	put(t, s, records...)
	holds(t, s, records...)

	bare := row(1, ofParent(idOf(100)), class(0), version(3), func(r *store.Record) { r.Shown, r.Secret = nil, nil })
	put(t, s, bare)
	holds(t, s, bare)
}

func notFound(t testing.TB, s store.Store) {
	isAbsent := func(k store.Kind, u uuid.UUID) {
		t.Helper()
		view(t, s, func(tx store.ReadTx) error {
			if r, err := tx.Get(k, u); r != nil || !errors.Is(err, store.ErrNotFound) {
				t.Errorf("Get = %v, %v, want nil and ErrNotFound", r, err)
			}
			return nil
		})
	}

	isAbsent(kindA, idOf(1))
	a, b := row(1, shown("of kind A")), row(1, ofKind(kindB), shown("of kind B"))
	put(t, s, a)
	isAbsent(kindB, idOf(1))
	isAbsent(kindA, idOf(2))
	put(t, s, b)
	holds(t, s, a, b)
	update(t, s, deleting(a))
	isAbsent(kindA, idOf(1))
	holds(t, s, b)
}

func versions(t testing.TB, s store.Store) {
	for _, v := range []uint64{0, 2, 7} {
		refused(t, s, store.ErrConflict, putting(row(1, version(v))))
		lacks(t, s, row(1))
	}
	for v := range uint64(5) {
		put(t, s, row(1, version(v+1), shown(fmt.Sprint(v+1))))
	}
	for _, v := range []uint64{0, 1, 4, 5, 7} {
		refused(t, s, store.ErrConflict, putting(row(1, version(v), shown("wrong"))))
		holds(t, s, row(1, version(5), shown("5")))
	}
	update(t, s, deleting(row(1)))
	refused(t, s, store.ErrConflict, putting(row(1, version(6))))
	put(t, s, row(1))
	holds(t, s, row(1))
}

func writesInOrder(t testing.TB, s store.Store) {
	put(t, s, row(1), row(1, version(2)), row(1, version(3), shown("third")))
	holds(t, s, row(1, version(3), shown("third")))
	refused(t, s, store.ErrConflict, putting(row(2), row(2)))
	lacks(t, s, row(2))

	update(t, s, func(tx store.Tx) error {
		tx.Delete(kindA, idOf(1))
		tx.Put(row(1, shown("again"), account(bob), hashes("h")))
		tx.Put(row(3, hashes("h")))
		tx.Delete(kindA, idOf(3))
		return nil
	})

	holds(t, s, row(1, shown("again"), account(bob), hashes("h")))
	lacks(t, s, row(3))
	refused(t, s, store.ErrConflict, func(tx store.Tx) error {
		tx.Delete(kindA, idOf(1))
		tx.Put(row(1, version(2), account(bob)))
		return nil
	})

	holds(t, s, row(1, shown("again"), account(bob), hashes("h")))
	lists(t, s, "list of the new account", store.Query{Kind: kindA, Account: bob}, 1)
	lists(t, s, "list of the old account", store.Query{Kind: kindA, Account: alice})
}

func invalid(t testing.TB, s store.Store) {
	size := func(public, secret int) func(*store.Record) {
		return func(r *store.Record) { r.Shown, r.Secret = make([]byte, public), make([]byte, secret) }
	}

	child := row(2, ofParent(idOf(1)))
	put(t, s, row(1), child)
	for _, c := range []struct {
		name string
		bad  *store.Record
	}{
		{"no kind", row(3, ofKind(0))},
		{"no id", row(3, func(r *store.Record) { r.ID = uuid.Nil })},
		{"another account", row(1, version(2), account(bob))},
		{"no account any more", row(1, version(2), account(uuid.Nil))},
		{"a parent later", row(1, version(2), ofParent(idOf(9)))},
		{"another parent", row(2, version(2), ofParent(idOf(9)))},
		{"no parent any more", row(2, version(2))},
		{"a ninth hash", row(3, hashes("1", "2", "3", "4", "5", "6", "7", "8", "9"))},
		{"a hash too long", row(3, hashes(strings.Repeat("h", store.MaxLookup+1)))},
		{"Shown too long", row(3, size(store.MaxRecord+1, 0))},
		{"Secret too long", row(3, size(0, store.MaxRecord+1))},
		{"together too long", row(3, size(store.MaxRecord/2, store.MaxRecord/2), hashes("h"))},
		{"new version too long", row(1, version(2), size(1, store.MaxRecord))},
	} {
		err := s.Update(background, putting(row(10), c.bad, row(11)))
		if !errors.Is(err, store.ErrInvalid) {
			t.Errorf("%s: Update = %v, want ErrInvalid", c.name, err)
		}
		holds(t, s, row(1), child)
		lacks(t, s, row(3), row(10), row(11))
	}

	lists(t, s, "list after", store.Query{Kind: kindA, Account: alice}, 1)
}

func allOrNone(t testing.TB, s store.Store) {
	at := time.UnixMicro(5)
	kept := row(1, hashes("kept"), due(at))
	put(t, s, kept, row(2, ofParent(idOf(1))), row(3))
	good := func(tx store.Tx) {
		tx.Put(row(4, hashes("new"), due(at)))
		tx.Put(row(3, version(2), hashes("new"), class(9)))
		tx.Delete(kindA, idOf(1))
	}

	for want, bad := range map[error]*store.Record{
		store.ErrConflict: row(3, version(9)),
		store.ErrInvalid:  row(9, ofKind(0)),
	} {
		refused(t, s, want, func(tx store.Tx) error { tx.Put(bad); good(tx); return nil })
		refused(t, s, want, func(tx store.Tx) error { good(tx); tx.Put(bad); return nil })
	}

	holds(t, s, kept, row(2, ofParent(idOf(1))), row(3))
	lacks(t, s, row(4))
	lists(t, s, "list", store.Query{Kind: kindA, Account: alice}, 1, 3)
	lists(t, s, "children", store.Query{Kind: kindA, Account: alice, Parent: idOf(1)}, 2)
	view(t, s, func(tx store.ReadTx) error {
		got, err := tx.Lookup(kindA, []byte("new"), 9)
		is(t, "Lookup of a hash never written", got)
		if err != nil {
			return err
		}
		ready, err := tx.Due(kindA, store.AllShards, at, 9)
		is(t, "Due", ready, 1)
		return err
	})
}

func deleteAbsent(t testing.TB, s store.Store) {
	orphan := row(2, ofParent(idOf(1)))
	put(t, s, orphan)
	update(t, s, deleting(row(1)))
	update(t, s, deleting(row(2, ofKind(kindB))))
	holds(t, s, orphan)
	update(t, s, deleting(orphan))
	update(t, s, deleting(orphan))
	lacks(t, s, orphan)
}

func deletes(t testing.TB, s store.Store) {
	at := time.UnixMicro(7)
	of := func(n int) func(*store.Record) { return ofParent(idOf(n)) }
	doomed := row(1, hashes("h"), due(at))
	family := []*store.Record{
		row(2, of(1), hashes("h"), due(at)),
		row(3, of(1), ofKind(kindB), account(bob), class(0), hashes("h"), due(at)),
		row(4, of(3), ofKind(kindC), hashes("h"), due(at)),
		row(5, of(4), class(7)),
	}

	others := []*store.Record{row(6), row(7, of(6), ofKind(kindB)), row(8, ofKind(kindB), hashes("h"), due(at))}
	put(t, s, doomed)
	put(t, s, family...)
	put(t, s, others...)
	update(t, s, deleting(doomed))
	left := func(doomed ...*store.Record) {
		t.Helper()
		lacks(t, s, doomed...)
		holds(t, s, family...)
		holds(t, s, others...)
		lists(t, s, "list of the account", store.Query{Kind: kindA, Account: alice}, 6)
		lists(t, s, "list of the deleted parent", store.Query{Kind: kindA, Account: alice, Parent: idOf(1)}, 2)
		lists(t, s, "list of a grandchild", store.Query{Kind: kindA, Account: alice, Parent: idOf(4), Classes: set(7)}, 5)
		lists(t, s, "list of another parent", store.Query{Kind: kindB, Account: alice, Parent: idOf(6)}, 7)
		childrenAre(t, s, idOf(1), 9, family[0], family[1])
		childrenAre(t, s, idOf(3), 9, family[2])
		for k, want := range map[store.Kind][]int{kindA: {2}, kindB: {3, 8}, kindC: {4}} {
			found(t, s, k, "h", 9, want...)
			overdue(t, s, k, at, 9, want...)
			next(t, s, k, at)
		}
	}

	left(doomed)
	update(t, s, deleting(doomed)) // again
	left(doomed)

	put(t, s, doomed) // back, as the parent of the records that stayed
	put(t, s, row(1, hashes("h"), due(at), version(2)))
	update(t, s, deleting(doomed))
	left(doomed)

	// The children of a record that is there go one by one as well.
	put(t, s, doomed)
	update(t, s, deleting(family[1]))
	lacks(t, s, family[1])
	holds(t, s, doomed, family[0], family[2], family[3])
	childrenAre(t, s, idOf(1), 9, family[0])
	childrenAre(t, s, idOf(3), 9, family[2])
	for _, r := range slices.Concat(family, others) {
		update(t, s, deleting(r))
	}

	update(t, s, deleting(doomed))
	for _, k := range []store.Kind{kindA, kindB, kindC} {
		scans(t, s, k, uuid.Nil, 9)
		found(t, s, k, "h", 9)
		next(t, s, k, time.Time{})
	}
}

func deleteWithinUpdate(t testing.TB, s store.Store) {
	put(t, s, row(1), row(2, ofParent(idOf(1))))
	update(t, s, func(tx store.Tx) error {
		tx.Put(row(3, ofParent(idOf(1))))
		tx.Put(row(4, ofParent(idOf(3)), ofKind(kindB)))
		tx.Put(row(5))
		tx.Put(row(6, ofParent(idOf(5))))
		tx.Delete(kindA, idOf(1))
		tx.Delete(kindA, idOf(5))
		tx.Put(row(1, shown("again")))
		tx.Put(row(7, ofParent(idOf(1))))
		tx.Put(row(8, ofParent(idOf(5))))
		return nil
	})

	holds(t, s, row(1, shown("again")), row(2, ofParent(idOf(1))), row(3, ofParent(idOf(1))), row(4, ofParent(idOf(3)), ofKind(kindB)))
	lacks(t, s, row(5))
	lists(t, s, "children", store.Query{Kind: kindA, Account: alice, Parent: idOf(1)}, 2, 3, 7)
	lists(t, s, "children of a record that was put and deleted", store.Query{Kind: kindA, Account: alice, Parent: idOf(5)}, 6, 8)

	rewrite := func(tx store.Tx) error {
		tx.Delete(kindA, idOf(1))
		tx.Put(row(7, ofParent(idOf(1)), version(2)))
		return nil
	}

	update(t, s, rewrite)
	lacks(t, s, row(1))
	holds(t, s, row(7, ofParent(idOf(1)), version(2)))
	refused(t, s, store.ErrConflict, rewrite)
}

func deleteOfSharedID(t testing.TB, s store.Store) {
	token, twin, child := row(1), row(1, ofKind(kindB)), row(2, ofParent(idOf(1)))
	put(t, s, token, twin, child)
	update(t, s, deleting(twin))
	holds(t, s, token, child)
	lacks(t, s, twin)

	part := row(1, ofKind(kindB), ofParent(idOf(1))) // a child with the id of its parent
	put(t, s, part)
	update(t, s, deleting(token))
	lacks(t, s, token)
	holds(t, s, part, child)
	childrenAre(t, s, idOf(1), 9, child, part)

	own := row(9, ofParent(idOf(9)))
	put(t, s, row(3, ofParent(idOf(4))), row(4, ofParent(idOf(3))), own)
	childrenAre(t, s, idOf(9), 9, own)
	update(t, s, deleting(row(3)))
	update(t, s, deleting(own))
	lacks(t, s, row(3), own)
	holds(t, s, row(4, ofParent(idOf(3))))
	childrenAre(t, s, idOf(3), 9, row(4))
	childrenAre(t, s, idOf(4), 9)
	childrenAre(t, s, idOf(9), 9)
}

func orphans(t testing.TB, s store.Store) {
	at := time.UnixMicro(7)
	orphan := row(2, ofParent(idOf(1)), hashes("h"), due(at))
	put(t, s, orphan, row(3, ofParent(idOf(2)), class(0)))
	holds(t, s, orphan, row(3, ofParent(idOf(2)), class(0)))
	lists(t, s, "list of a parent that never existed", store.Query{Kind: kindA, Account: alice, Parent: idOf(1)}, 2)
	found(t, s, kindA, "h", 9, 2)
	overdue(t, s, kindA, at, 9, 2)
	childrenAre(t, s, idOf(1), 9, orphan)

	put(t, s, row(2, ofParent(idOf(1)), version(2), class(5)))
	lists(t, s, "list afterwards", store.Query{Kind: kindA, Account: alice, Parent: idOf(1), Classes: set(5)}, 2)
	found(t, s, kindA, "h", 9)
	update(t, s, deleting(row(1)))
	holds(t, s, row(2, ofParent(idOf(1)), version(2), class(5)))
	update(t, s, deleting(orphan))
	lacks(t, s, orphan)
	childrenAre(t, s, idOf(1), 9)
	lists(t, s, "list of a parent without children", store.Query{Kind: kindA, Account: alice, Parent: idOf(1)})
}

func putKeepsNothing(t testing.TB, s store.Store) {
	r := row(1, hashes("hash"), due(time.UnixMicro(1)))
	want := r.Clone()
	put(t, s, r)
	spoil(r)
	r.Version, r.Class, r.Due = 9, 9, time.Time{}
	holds(t, s, want)
	view(t, s, func(tx store.ReadTx) error {
		got, err := tx.Lookup(kindA, []byte("hash"), 9)
		is(t, "Lookup", got, 1)
		return err
	})
}

// spoil overwrites what the slices of r hold.
func spoil(r *store.Record) {
	for _, b := range append([][]byte{r.Shown, r.Secret}, r.Lookup...) {
		for i := range b {
			b[i] = '!'
		}
	}
}

func readsAreCopies(t testing.TB, s store.Store) {
	at := time.UnixMicro(1)
	want := row(1, hashes("hash"), due(at), func(r *store.Record) { r.Secret = make([]byte, 3000) })
	put(t, s, want)
	read := func() []*store.Record {
		var all []*store.Record
		err := s.View(background, func(tx store.ReadTx) error {
			r, err := tx.Get(kindA, idOf(1))
			if err != nil {
				return err
			}
			got, err := tx.Lookup(kindA, []byte("hash"), 1)
			if err != nil {
				return err
			}

			ready, err := tx.Due(kindA, store.AllShards, at, 1)
			if err != nil {
				return err
			}
			l, err := tx.List(&store.Query{Kind: kindA, Account: alice, Limit: 1})
			if err != nil {
				return err
			}

			all = slices.Concat([]*store.Record{r}, got, ready, l.Records)
			return nil
		})
		if err != nil || len(all) != 4 {
			t.Errorf("read %d records of 4: %v", len(all), err)
		}
		return all
	}

	parallel(t, 4, func(int) error {
		for _, r := range read() {
			spoil(r)
		}
		return nil
	})

	holds(t, s, want)

	kept := read()
	for v := range uint64(50) {
		put(t, s, row(1, version(v+2), shown("other"), func(r *store.Record) { r.Secret = make([]byte, 1000*v) }), row(int(10+v), shown("third")))
	}

	update(t, s, deleting(row(1)))
	for i, r := range kept {
		if i == len(kept)-1 {
			r.Secret = want.Secret // a list has none
		}
		if field := differs(r, want); field != "" {
			t.Errorf("record %d, read before later writes, has another %s now", i, field)
		}
	}
}
