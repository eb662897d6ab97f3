package boltstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	bolt "go.etcd.io/bbolt"

	"github.com/cardvault/cardvault/store"
)

// openLogged opens a store that logs to the builder. Read the builder only after an Update.
func openLogged(t *testing.T) (*Store, *strings.Builder) {
	t.Helper()
	var log strings.Builder
	c := small
	c.noSync = true
	s, err := openWith(t.Context(), filepath.Join(t.TempDir(), "vault.db"), &Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return s, &log
}

// inFile changes rows of kind 1 behind the store's back.
func inFile(t *testing.T, s *Store, change func(rows *bolt.Bucket) error) {
	t.Helper()
	name := rowsBucket(1)
	if err := alter(s, func(tx *bolt.Tx) error { return change(tx.Bucket(name[:])) }); err != nil {
		t.Fatal(err)
	}
}

// settled waits until the queued calls have run.
func settled(t *testing.T, s *Store) {
	t.Helper()
	for range 2 { // the second joins a group after all earlier calls
		if err := s.Update(t.Context(), func(store.Tx) error { return nil }); err != nil {
			t.Fatal(err)
		}
	}
}

func numbersOf[T any](of []T, id func(T) uuid.UUID) (numbers []int) {
	for _, one := range of {
		u := id(one)
		numbers = append(numbers, int(u[6])<<8|int(u[7]))
	}
	return numbers
}

// Lost rows, here from the middle and the end of the due records, do not hide other rows in
// a View or an Update. A search that meets one says so, as often as it is asked, until the file is
// repaired.
func TestLostRows(t *testing.T) {
	const n = 50
	at := func(n int) time.Time { return time.UnixMicro(1e15 + int64(n)).UTC() }
	lost := []int{1, 2, 20, 21, 22, 50}
	var left, listed []int // listed: the records with a class
	for i := 1; i <= n; i++ {
		if !slices.Contains(lost, i) {
			left = append(left, i)
			if i%3 != 0 {
				listed = append(listed, i)
			}
		}
	}
	for name, call := range map[string]func(s *Store, fn func(store.ReadTx) error) error{
		"View": func(s *Store, fn func(store.ReadTx) error) error { return s.View(context.Background(), fn) },
		"Update": func(s *Store, fn func(store.ReadTx) error) error {
			return s.Update(context.Background(), func(tx store.Tx) error { return fn(tx) })
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, log := openLogged(t)
			if err := s.Update(t.Context(), func(tx store.Tx) error {
				for i := 1; i <= n; i++ {
					tx.Put(&store.Record{
						Kind: 1, ID: number(i), Account: uuid.UUID{7}, Parent: number(99), Class: uint8(i % 3), Version: 1,
						Due: at(i), Lookup: [][]byte{[]byte("hash")},
					})
				}
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			inFile(t, s, func(rows *bolt.Bucket) error {
				for _, i := range lost {
					id := number(i)
					if err := rows.Delete(id[:]); err != nil {
						return err
					}
				}
				return nil
			})
			record := func(r *store.Record) uuid.UUID { return r.ID }
			for range 3 {
				err := call(s, func(tx store.ReadTx) error {
					next, err := tx.Next(1, store.AllShards)
					if err != nil || !next.Equal(at(3)) {
						t.Errorf("Next = %v, %v, want %v", next, err, at(3))
					}
					due, err := tx.Due(1, store.AllShards, at(n), n)
					if got := numbersOf(due, record); err != nil || !slices.Equal(got, left) {
						t.Errorf("Due = %v, %v, want %v", got, err, left)
					}
					due, err = tx.Due(1, store.AllShards, at(n), 2)
					if got := numbersOf(due, record); err != nil || !slices.Equal(got, left[:2]) {
						t.Errorf("Due, two = %v, %v, want %v", got, err, left[:2])
					}
					l, err := tx.List(&store.Query{Kind: 1, Parent: number(99), Lookup: []byte("hash"), Limit: n, Count: true})
					readable := slices.DeleteFunc(slices.Clone(l.Records), func(r *store.Record) bool { return r.Version == 0 })
					if got := numbersOf(readable, record); err != nil || int(l.Total) != len(listed)+len(lost) || len(l.Records) != int(l.Total) || !slices.Equal(got, listed) {
						t.Errorf("List by hash = %v of %d, %v, want %v and places of %v", got, l.Total, err, listed, lost)
					}
					found, err := tx.Lookup(1, []byte("hash"), n)
					if got := numbersOf(found, record); !errors.Is(err, store.ErrDamaged) || !slices.Equal(got, left) {
						t.Errorf("Lookup = %v, %v, want %v and ErrDamaged", got, err, left)
					}
					keys, err := tx.Children(number(99), n)
					if got := numbersOf(keys, func(k store.Key) uuid.UUID { return k.ID }); err != nil || !slices.Equal(got, left) {
						t.Errorf("Children = %v, %v, want %v", got, err, left)
					}
					return nil
				})
				if err != nil {
					t.Error(err)
				}
				settled(t, s)
			}
			if err := s.Check(t.Context()); !errors.Is(err, store.ErrDamaged) {
				t.Errorf("the file afterwards: %v, want the entries of the lost rows", err)
			}
			repaired(t, s, nil, 20)
			if err := s.Check(t.Context()); err != nil {
				t.Errorf("the file after a repair: %v", err)
			}
			if err := s.View(t.Context(), func(tx store.ReadTx) error {
				l, err := tx.List(&store.Query{Kind: 1, Parent: number(99), Live: at(2), Limit: n, Count: true})
				if err == nil && (len(l.Records) != int(l.Total) || l.Total != 29) {
					err = fmt.Errorf("%d records of %d", len(l.Records), l.Total)
				}
				return err
			}); err != nil {
				t.Errorf("List afterwards: %v", err)
			}
			if text := log.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "kind=1") ||
				strings.Contains(text, number(1).String()) || strings.Contains(text, "hash") {
				t.Errorf("logged %q, want one line with the kind and nothing else", text)
			}
		})
	}
}

// If a row contradicts an index, the row counts. The index of due rows is mended.
func TestStrayEntries(t *testing.T) {
	s, _ := openLogged(t)
	at := func(n int64) time.Time { return time.UnixMicro(n).UTC() }
	good := &store.Record{Kind: 1, ID: number(2), Account: uuid.UUID{7}, Parent: number(1), Class: 1, Version: 1, Due: at(5), Lookup: [][]byte{{8}}}
	for name, c := range map[string]struct {
		change func(r *store.Record)
		due    []int64 // at 5, and afterwards
		next   time.Time
		found  int
		child  int
		placed bool // the list by hash has its place alone
	}{
		"due later":     {func(r *store.Record) { r.Due = at(9) }, nil, at(9), 1, 1, false},
		"never due":     {func(r *store.Record) { r.Due = time.Time{} }, nil, time.Time{}, 1, 1, false},
		"another class": {func(r *store.Record) { r.Class = 2 }, []int64{5}, at(5), 1, 1, false},
		"another hash":  {func(r *store.Record) { r.Lookup = [][]byte{{9}} }, []int64{5}, at(5), 0, 1, true},
		"another home":  {func(r *store.Record) { r.Parent = number(3) }, []int64{5}, at(5), 1, 0, true},
	} {
		if err := s.Update(t.Context(), func(tx store.Tx) error { tx.Put(good); return nil }); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		r := *good
		c.change(&r)
		inFile(t, s, func(rows *bolt.Bucket) error { return rows.Put(r.ID[:], encodeRow(&r, new(slab))) })
		for _, mended := range []bool{false, true} {
			err := s.View(t.Context(), func(tx store.ReadTx) error {
				due, err := tx.Due(1, store.AllShards, at(5), 9)
				if err != nil || len(due) != len(c.due) {
					t.Errorf("%s, mended %v: Due = %v, %v", name, mended, due, err)
				}
				next, err := tx.Next(1, store.AllShards)
				if want := c.next; err != nil || (mended || len(c.due) > 0) && !next.Equal(want) || next.Equal(at(5)) && !want.Equal(at(5)) {
					t.Errorf("%s, mended %v: Next = %v, %v, want %v", name, mended, next, err, want)
				}
				found, err := tx.Lookup(1, []byte{8}, 9)
				if errors.Is(err, store.ErrDamaged) != (c.found == 0) || len(found) != c.found {
					t.Errorf("%s, mended %v: Lookup = %v, %v", name, mended, found, err)
				}
				l, err := tx.List(&store.Query{Kind: 1, Parent: number(1), Lookup: []byte{8}, Limit: 9, Count: true})
				if err != nil || len(l.Records) != 1 || l.Total != 1 || c.placed != (l.Records[0].Version == 0) {
					t.Errorf("%s, mended %v: List by hash = %v, %v", name, mended, l, err)
				}
				keys, err := tx.Children(number(1), 9)
				if err != nil || len(keys) != c.child {
					t.Errorf("%s, mended %v: Children = %v, %v", name, mended, keys, err)
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			settled(t, s)
		}
		inFile(t, s, func(rows *bolt.Bucket) error { return rows.Delete(r.ID[:]) })
		repaired(t, s, nil, 20)
		if err := s.Check(t.Context()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// An unreadable row does not keep others from being due, and can be deleted.
func TestUnreadableRow(t *testing.T) {
	s, log := openLogged(t)
	at := time.UnixMicro(5).UTC()
	if err := s.Update(t.Context(), func(tx store.Tx) error {
		for i := 1; i <= 3; i++ {
			tx.Put(&store.Record{Kind: 1, ID: number(i), Parent: number(9), Version: 1, Due: at})
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	id := number(1)
	inFile(t, s, func(rows *bolt.Bucket) error { return rows.Put(id[:], []byte("rubbish")) })
	look := func(want ...int) {
		t.Helper()
		if err := s.View(t.Context(), func(tx store.ReadTx) error {
			due, err := tx.Due(1, store.AllShards, at, 9)
			if err != nil || len(due) != 2 || due[0].ID != number(2) {
				t.Errorf("Due = %v, %v, want two records", due, err)
			}
			if next, err := tx.Next(1, store.AllShards); err != nil || !next.Equal(at) {
				t.Errorf("Next = %v, %v", next, err)
			}
			keys, err := tx.Children(number(9), 9)
			if got := numbersOf(keys, func(k store.Key) uuid.UUID { return k.ID }); err != nil || !slices.Equal(got, want) {
				t.Errorf("Children = %v, %v, want %v", got, err, want)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		settled(t, s)
	}
	for range 2 {
		look(1, 2, 3)
	}
	if err := s.View(t.Context(), func(tx store.ReadTx) error { _, err := tx.Get(1, id); return err }); !errors.Is(err, store.ErrDamaged) {
		t.Errorf("Get = %v, want ErrDamaged", err)
	}
	if bytes.Count([]byte(log.String()), []byte("\n")) != 1 {
		t.Errorf("logged %q, want one line", log.String())
	}
	if err := s.Update(t.Context(), func(tx store.Tx) error {
		tx.Delete(1, id)
		tx.Put(&store.Record{Kind: 1, ID: number(2), Version: 7})
		return nil
	}); !errors.Is(err, store.ErrConflict) {
		t.Errorf("a deletion in a refused Update = %v", err)
	}
	look(1, 2, 3)
	if err := s.Update(t.Context(), func(tx store.Tx) error { tx.Delete(1, id); return nil }); err != nil {
		t.Errorf("Delete = %v", err)
	}
	for range 2 {
		look(2, 3)
	}
	repaired(t, s, nil, 20)
	if err := s.Check(t.Context()); err != nil {
		t.Errorf("the file afterwards: %v", err)
	}
}

// An index of due rows that cannot be mended disturbs no call. That is not tried again at once.
func TestMendingFails(t *testing.T) {
	s, log := openLogged(t)
	at := time.UnixMicro(5).UTC()
	r := &store.Record{Kind: 1, ID: number(1), Version: 1, Due: at}
	if err := s.Update(t.Context(), putOne(r)); err != nil {
		t.Fatal(err)
	}
	later := r.Clone()
	later.Due = at.Add(time.Second)
	inFile(t, s, func(rows *bolt.Bucket) error { return rows.Put(r.ID[:], encodeRow(later, new(slab))) })
	if err := s.h.file.Close(); err != nil {
		t.Fatal(err)
	}
	for range 6 {
		if err := s.View(t.Context(), func(tx store.ReadTx) error {
			due, err := tx.Due(1, store.AllShards, at, 9)
			if err == nil && len(due) > 0 {
				err = fmt.Errorf("%d records are due, want none", len(due))
			}
			return err
		}); err != nil {
			t.Error(err)
		}
		settled(t, s)
	}
	if text := log.String(); strings.Count(text, "cannot be repaired") != 1 {
		t.Errorf("logged %q, want one line of a repair", text)
	}
}
