//go:build unix

package pgstore_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cardvault/cardvault/store"
)

// locked keeps other sessions from writing to a table until release is called.
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

// waits returns when a session waits for a lock of the given type, and names its transaction.
func waits(t testing.TB, p *pgxpool.Pool, sort string) (transaction string) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); <-time.After(time.Millisecond) {
		const query = "SELECT coalesce(min(virtualtransaction), '') FROM pg_locks WHERE NOT granted AND locktype = $1"
		if err := p.QueryRow(t.Context(), query, sort).Scan(&transaction); err != nil {
			t.Fatal(err)
		}
		if transaction != "" {
			return transaction
		}
	}
	t.Fatal("no session waits")
	return ""
}

// An Update with many locks does not block unrelated Updates.
func TestManyLocks(t *testing.T) {
	family := []*store.Record{record(0)}
	for n := range 2000 {
		r := record(1 + n)
		r.Kind, r.Parent, r.Lookup = kind+1, id(0), [][]byte{fmt.Append(nil, n)}
		family = append(family, r)
	}
	for what, act := range map[string]func(s store.Store) error{
		"2001 deletions": func(s store.Store) error {
			return s.Update(context.Background(), func(tx store.Tx) error {
				for _, r := range family {
					tx.Delete(r.Kind, r.ID)
				}
				return nil
			})
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
			// A lock is waited for during three seconds, which a busy machine may need for an Update.
			for try := 1; ; try++ {
				before := waits(t, p, "relation")
				if err := put(other, record(-try)); err != nil {
					t.Errorf("concurrent Update = %v", err)
				}
				if waits(t, p, "relation") == before {
					break
				}
				if try == 5 {
					t.Fatal("no concurrent Update has ended while the locks were held")
				}
			}
			release()
			if err := <-done; err != nil {
				t.Errorf("%s = %v", what, err)
			}
		})
	}
}

// An Update that reads a record and puts a child below it waits while the record is being
// deleted, and then runs again. An Update that has not read the record does not
// wait for the deletion of any number of its children.
func TestChildOfTheDeleted(t *testing.T) {
	for _, reads := range []bool{true, false} {
		p := pool(t, postgres.Get(t).URL("postgres"))
		name := schema(t, p)
		s, other := open(t, p, name), open(t, p, name)
		if err := put(s, record(0), child(1, 0)); err != nil {
			t.Fatal(err)
		}
		release := locked(t, p, name, "lookups")
		deleted, added := make(chan error, 1), make(chan error, 1)
		go func() {
			deleted <- s.Update(context.Background(), func(tx store.Tx) error {
				r := child(1, 0)
				if reads {
					r = record(0)
				}
				tx.Delete(r.Kind, r.ID)
				last := record(-1) // waits after the last deletion
				last.Lookup = [][]byte{[]byte("hash")}
				tx.Put(last)
				return nil
			})
		}()
		waits(t, p, "relation")
		go func() {
			added <- other.Update(context.Background(), func(tx store.Tx) error {
				if reads {
					if _, err := tx.Get(kind, id(0)); err != nil {
						return err
					}
				}
				tx.Put(child(2, 0))
				return nil
			})
		}()
		if reads {
			waits(t, p, "advisory")
		} else if err := <-added; err != nil {
			t.Error(err)
		}
		release()
		if err := <-deleted; err != nil {
			t.Error(err)
		}
		if reads {
			if err := <-added; !errors.Is(err, store.ErrNotFound) {
				t.Errorf("Update with a child of a deleted record = %v, want ErrNotFound", err)
			}
		}
	}
}

// Records returned by Due in an Update are not changed by others before its writes.
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
		due, err := tx.Due(kind, store.AllShards, time.Now(), 10)
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

// Of two stores that add to an empty list only one does, even if both have just found
// nothing due.
func TestNothingDue(t *testing.T) {
	p := pool(t, postgres.Get(t).URL("postgres"))
	name := schema(t, p)
	stores := []store.Store{open(t, p, name), open(t, p, name)}
	for n := range 40 {
		owner := uuid.UUID{0: 0xbb, 1: byte(n)}
		start := make(chan bool)
		var group sync.WaitGroup
		for i, s := range stores {
			if err := s.Update(t.Context(), func(tx store.Tx) error {
				_, err := tx.Due(kind, store.AllShards, time.Now(), 10)
				return err
			}); err != nil {
				t.Fatal(err)
			}
			group.Go(func() {
				<-start
				if err := s.Update(context.Background(), func(tx store.Tx) error {
					l, err := tx.List(&store.Query{Kind: kind, Account: owner, Limit: 1})
					if err != nil || len(l.Records) > 0 {
						return err
					}
					r := record(10*n + i)
					r.Account = owner
					tx.Put(r)
					return nil
				}); err != nil {
					t.Error(err)
				}
			})
		}
		close(start)
		group.Wait()
		if total := list(t, stores[0], &store.Query{Kind: kind, Account: owner, Count: true}).Total; total != 1 {
			t.Fatalf("%d records, want one, from one store", total)
		}
	}
	before := p.Stat().NewConnsCount()
	for range 20 {
		if err := stores[0].Update(t.Context(), func(tx store.Tx) error {
			_, err := tx.Due(kind, store.AllShards, time.Now(), 10)
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	if made := p.Stat().NewConnsCount() - before; made > 0 {
		t.Errorf("%d new connections", made)
	}
}

// A group that locks out all others still does so after it has lost its connection and at
// first failed to get another.
func TestLocksOutAfterLoss(t *testing.T) {
	server := postgres.Get(t)
	direct := pool(t, server.URL("postgres"))
	name := schema(t, direct)
	config, err := pgxpool.ParseConfig(server.URL("postgres") + "&application_name=locks_out")
	if err != nil {
		t.Fatal(err)
	}
	var refuse atomic.Bool
	config.BeforeConnect = func(context.Context, *pgx.ConnConfig) error {
		if refuse.CompareAndSwap(true, false) {
			return errors.New("refused")
		}
		return nil
	}
	p, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	s, other := open(t, p, name), open(t, direct, name)
	if err := put(other, record(0)); err != nil {
		t.Fatal(err)
	}
	lost, held := false, 0
	err = s.Update(t.Context(), func(tx store.Tx) error {
		if err := direct.QueryRow(t.Context(), `SELECT count(*) FROM pg_locks l JOIN pg_stat_activity a USING (pid)
			WHERE l.locktype = 'advisory' AND l.mode = 'ExclusiveLock' AND l.granted AND a.application_name = 'locks_out'`).Scan(&held); err != nil {
			return err
		}
		if held > 0 && !lost {
			lost = true
			refuse.Store(true)
			if _, err := direct.Exec(t.Context(), "SELECT pg_terminate_backend(pid, 1000) FROM pg_stat_activity WHERE application_name = 'locks_out'"); err != nil {
				return err
			}
		}
		r, err := tx.Get(kind, id(0))
		if err != nil {
			return err
		}
		if !lost {
			changed := *r
			changed.Version++
			if err := put(other, &changed); err != nil {
				return err
			}
		}
		r.Version++
		tx.Put(r)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if !lost || refuse.Load() || held != 1 {
		t.Errorf("the group has %d exclusive locks; connection lost: %t", held, lost)
	}
}
