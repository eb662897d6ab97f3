//go:build unix

package pgstore_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cardvault/cardvault/store"
)

// locked keeps others from writing to a table until release is called.
func locked(t testing.TB, p *pgxpool.Pool, schema, table string) (release func()) {
	t.Helper()
	tx, err := p.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "LOCK TABLE "+pgx.Identifier{schema, table}.Sanitize()+" IN SHARE MODE"); err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// waits returns when a session waits for a lock of a sort.
func waits(t testing.TB, p *pgxpool.Pool, sort string) {
	t.Helper()
	for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); <-time.After(time.Millisecond) {
		var some bool
		if err := p.QueryRow(t.Context(), "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND locktype = $1)", sort).Scan(&some); err != nil {
			t.Fatal(err)
		}
		if some {
			return
		}
	}
	t.Fatal("nobody waits")
}

// What takes many locks does not hold up what has nothing to do with it.
func TestManyLocks(t *testing.T) {
	family := []*store.Record{record(0)}
	for n := range 2000 {
		r := record(1 + n)
		r.Kind, r.Parent, r.Lookup = kind+1, id(0), [][]byte{fmt.Append(nil, n)}
		family = append(family, r)
	}
	for what, act := range map[string]func(s store.Store) error{
		"a deletion with 2000 children": func(s store.Store) error {
			return s.Update(context.Background(), func(tx store.Tx) error { tx.Delete(kind, id(0)); return nil })
		},
		"600 Updates of 8 hashes": func(s store.Store) error {
			var group sync.WaitGroup
			var once sync.Once
			var failed error
			for n := range 600 {
				group.Go(func() {
					r := record(10_000 + n)
					for i := range store.MaxLookups {
						r.Lookup = append(r.Lookup, fmt.Append(nil, n, i))
					}
					if err := put(s, r); err != nil {
						once.Do(func() { failed = err })
					}
				})
			}
			group.Wait()
			return failed
		},
	} {
		t.Run(what, func(t *testing.T) {
			p := pool(t, postgres.Get(t).URL("postgres"))
			name := schema(t, p)
			s, other := open(t, p, name), open(t, p, name)
			if err := put(s, family...); err != nil {
				t.Fatal(err)
			}
			release := locked(t, p, name, "lookups")
			done := make(chan error, 1)
			go func() { done <- act(s) }()
			waits(t, p, "relation")
			began := time.Now()
			if err := put(other, record(-1)); err != nil {
				t.Errorf("Update beside it = %v", err)
			}
			if took := time.Since(began); took > time.Second {
				t.Errorf("an Update beside it took %v", took)
			}
			release()
			if err := <-done; err != nil {
				t.Errorf("%s = %v", what, err)
			}
		})
	}
}

// Who adds a child to what is being deleted waits, whether that is little or much.
func TestChildOfTheDeleted(t *testing.T) {
	for _, children := range []int{1, 1200} {
		p := pool(t, postgres.Get(t).URL("postgres"))
		name := schema(t, p)
		s, other := open(t, p, name), open(t, p, name)
		family := []*store.Record{record(0)}
		for n := range children {
			r := record(1 + n)
			r.Parent = id(0)
			family = append(family, r)
		}
		if err := put(s, family...); err != nil {
			t.Fatal(err)
		}
		release := locked(t, p, name, "lookups")
		deleted, added := make(chan error, 1), make(chan error, 1)
		go func() {
			deleted <- s.Update(context.Background(), func(tx store.Tx) error {
				tx.Delete(kind, id(0))
				last := record(-1) // waits once there is no more to delete
				last.Lookup = [][]byte{[]byte("hash")}
				tx.Put(last)
				return nil
			})
		}()
		waits(t, p, "relation")
		go func() {
			grandchild := record(-2)
			grandchild.Parent = id(1)
			added <- put(other, grandchild)
		}()
		waits(t, p, "advisory")
		release()
		for _, done := range []chan error{deleted, added} {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	}
}

// What Due has returned in an Update nobody else changes before its writes are made.
func TestDueHolds(t *testing.T) {
	p := pool(t, postgres.Get(t).URL("postgres"))
	name := schema(t, p)
	s, other := open(t, p, name), open(t, p, name)
	r := record(0)
	r.Due = time.Now().Add(-time.Minute)
	if err := put(s, r); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	runs, took := 0, 0
	err := s.Update(t.Context(), func(tx store.Tx) error {
		due, err := tx.Due(kind, time.Now(), 10)
		took = len(due)
		if runs++; len(due) == 1 && len(done) == 0 && runs < 3 {
			go func() {
				changed := *r
				changed.Version, changed.Due, changed.Class = 2, time.Now().Add(time.Hour), 2
				done <- put(other, &changed)
			}()
			waits(t, p, "transactionid")
		}
		for _, r := range due {
			r.Version++
			tx.Put(r)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := <-done; (err == nil) == (took == 1) {
		t.Errorf("Update with %d due records; another Update of the same = %v", took, err)
	}
}
