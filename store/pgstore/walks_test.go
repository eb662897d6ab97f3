//go:build unix

package pgstore_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/google/uuid"

	"github.com/cardvault/cardvault/store"
)

func child(n, of int) *store.Record {
	r := record(n)
	r.Kind, r.Parent, r.Class = kind+1, id(of), 0
	return r
}

func remove(s store.Store, r *store.Record) error {
	return s.Update(context.Background(), func(tx store.Tx) error { tx.Delete(r.Kind, r.ID); return nil })
}

// An Update that has read children, a kind, or that a store is empty runs again if another
// Store changes that before its commit. It does not run again for any other change.
func TestWalksAreChecked(t *testing.T) {
	p := pool(t, postgres.Get(t).URL("postgres"))
	children := func(tx store.ReadTx) (string, error) {
		keys, err := tx.Children(id(1), 2)
		return fmt.Sprint(keys), err
	}
	scan := func(tx store.ReadTx) (found string, err error) {
		rs, err := tx.Scan(kind+1, id(9), 2)
		for _, r := range rs {
			found += fmt.Sprint(numberOf(r.ID), " version ", r.Version, ", ")
		}
		return found, err
	}
	empty := func(tx store.ReadTx) (string, error) {
		e, err := tx.Empty()
		return fmt.Sprint(e), err
	}
	byHash := func(tx store.ReadTx) (string, error) {
		l, err := tx.List(&store.Query{Kind: kind, Account: account, Lookup: []byte("hash"), Limit: 1, Count: true})
		return fmt.Sprint(l), err
	}
	with := func(n int, hash string, class uint8) *store.Record {
		r := record(n)
		r.Lookup, r.Class = [][]byte{[]byte(hash)}, class
		return r
	}
	left := with(10, "hash", 0)
	left.Version = 2
	second := *child(10, 1)
	second.Version = 2
	for name, test := range map[string]struct {
		before []*store.Record
		read   func(store.ReadTx) (string, error)
		act    func(store.Store) error
		again  bool
	}{
		"a child is added":                  {nil, children, func(s store.Store) error { return put(s, child(10, 1)) }, true},
		"a child is added between":          {[]*store.Record{child(10, 1), child(12, 1)}, children, func(s store.Store) error { return put(s, child(11, 1)) }, true},
		"a child is removed":                {[]*store.Record{child(10, 1)}, children, func(s store.Store) error { return remove(s, child(10, 1)) }, true},
		"a child beyond the limit":          {[]*store.Record{child(10, 1), child(11, 1)}, children, func(s store.Store) error { return put(s, child(12, 1)) }, false},
		"a child of another":                {nil, children, func(s store.Store) error { return put(s, child(10, 2)) }, false},
		"a record is added":                 {nil, scan, func(s store.Store) error { return put(s, child(10, 1)) }, true},
		"a record is changed":               {[]*store.Record{child(10, 1)}, scan, func(s store.Store) error { return put(s, &second) }, true},
		"a record is removed":               {[]*store.Record{child(10, 1)}, scan, func(s store.Store) error { return remove(s, child(10, 1)) }, true},
		"a record before the scan":          {nil, scan, func(s store.Store) error { return put(s, child(9, 1)) }, false},
		"a record of another kind":          {nil, scan, func(s store.Store) error { return put(s, record(10)) }, false},
		"the first record":                  {nil, empty, func(s store.Store) error { return put(s, record(10)) }, true},
		"the last record":                   {[]*store.Record{record(10)}, empty, func(s store.Store) error { return remove(s, record(10)) }, true},
		"one with the hash is added":        {nil, byHash, func(s store.Store) error { return put(s, with(10, "hash", 1)) }, true},
		"one with the hash leaves the list": {[]*store.Record{with(10, "hash", 1)}, byHash, func(s store.Store) error { return put(s, left) }, true},
		"one with another hash":             {nil, byHash, func(s store.Store) error { return put(s, with(10, "other", 1)) }, false},
		"one more record":                   {[]*store.Record{record(10)}, empty, func(s store.Store) error { return put(s, record(11)) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			schema := schema(t, p)
			s, other := open(t, p, schema), open(t, p, schema)
			if err := put(other, test.before...); err != nil {
				t.Fatal(err)
			}
			var found []string
			err := s.Update(t.Context(), func(tx store.Tx) error {
				f, err := test.read(tx)
				if err != nil {
					return err
				}
				if found = append(found, f); len(found) == 1 {
					if err := test.act(other); err != nil {
						return err
					}
				}
				tx.Put(record(1))
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			if again := len(slices.Compact(found)) > 1; again != test.again {
				t.Errorf("the runs have read %q; want another answer at last: %t", found, test.again)
			}
		})
	}
}

// Several Stores add a record unless Children, Scan or Empty finds one: exactly one adds
// its record. None relies on a record that another has removed.
func TestWalksHold(t *testing.T) {
	p := pool(t, postgres.Get(t).URL("postgres"))
	name := schema(t, p)
	stores := []store.Store{open(t, p, name), open(t, p, name), open(t, p, name)}
	at := func(act func(s store.Store, i int) error) {
		t.Helper()
		start := make(chan bool)
		var group sync.WaitGroup
		for i, s := range stores {
			group.Go(func() {
				<-start
				if err := act(s, i); err != nil {
					t.Error(err)
				}
			})
		}
		close(start)
		group.Wait()
	}
	total := func(parent uuid.UUID) (n int) {
		t.Helper()
		if err := stores[0].View(t.Context(), func(tx store.ReadTx) error {
			keys, err := tx.Children(parent, 10)
			n = len(keys)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		return n
	}
	for range 30 {
		at(func(s store.Store, i int) error {
			return s.Update(context.Background(), func(tx store.Tx) error {
				if empty, err := tx.Empty(); err != nil || !empty {
					return err
				}
				tx.Put(child(i, -1))
				return nil
			})
		})
		if n := total(id(-1)); n != 1 {
			t.Fatalf("%d stores added the first record", n)
		}
		for i := range stores {
			if err := remove(stores[0], child(i, -1)); err != nil {
				t.Fatal(err)
			}
		}
	}
	for n := range 30 {
		at(func(s store.Store, i int) error {
			return s.Update(context.Background(), func(tx store.Tx) error {
				if keys, err := tx.Children(id(n), 1); err != nil || len(keys) > 0 {
					return err
				}
				tx.Put(child(10_000+10*n+i, n))
				return nil
			})
		})
		if got := total(id(n)); got != 1 {
			t.Fatalf("%d children, want one, from one store", got)
		}
		of := 100_000 + n
		at(func(s store.Store, i int) error {
			return s.Update(context.Background(), func(tx store.Tx) error {
				if rs, err := tx.Scan(kind+1, id(20_000+10*n), 1); err != nil || len(rs) > 0 {
					return err
				}
				tx.Put(child(20_000+10*n+1+i, of))
				return nil
			})
		})
		if got := total(id(of)); got != 1 {
			t.Fatalf("%d records after an id, want one, from one store", got)
		}

		hash := fmt.Append(nil, n)
		byHash := &store.Query{Kind: kind, Account: account, Lookup: hash, Limit: 1, Count: true}
		at(func(s store.Store, i int) error {
			return s.Update(context.Background(), func(tx store.Tx) error {
				if l, err := tx.List(byHash); err != nil || l.Total > 0 {
					return err
				}
				r := record(200_000 + 10*n + i)
				r.Lookup = [][]byte{hash}
				tx.Put(r)
				return nil
			})
		})
		if got := list(t, stores[1], byHash).Total; got != 1 {
			t.Fatalf("%d records with a hash, want one, from one store", got)
		}

		// One store removes the child unless there is a mark. The others set the mark if
		// there is a child.
		mark := record(n)
		at(func(s store.Store, i int) error {
			return s.Update(context.Background(), func(tx store.Tx) error {
				keys, err := tx.Children(id(n), 1)
				if i == 0 && err == nil {
					if _, err := tx.Get(mark.Kind, mark.ID); err == nil {
						return nil
					}
					for _, k := range keys {
						tx.Delete(k.Kind, k.ID)
					}
					return nil
				}
				if _, found := tx.Get(mark.Kind, mark.ID); err != nil || len(keys) == 0 || found == nil {
					return err
				}
				tx.Put(mark)
				return nil
			})
		})
		if marked := has(t, stores[1], n); marked != (total(id(n)) == 1) {
			t.Fatalf("marked: %t, with %d children", marked, total(id(n)))
		}
		for i := range stores { // remove all records after the next id
			if err := remove(stores[0], child(20_000+10*n+1+i, of)); err != nil {
				t.Fatal(err)
			}
		}
	}
}
