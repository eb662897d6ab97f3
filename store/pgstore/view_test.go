//go:build unix

package pgstore_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cardvault/cardvault/internal/realtest"
	"github.com/cardvault/cardvault/store"
)

// A function that recovers from the panic that ends its run does not change its outcome.
func TestFunctionRecovers(t *testing.T) {
	p := pool(t, postgres.Get(t).URL("postgres"))
	name := schema(t, p)
	s, other := open(t, p, name), open(t, p, name)
	if err := put(other, record(0), record(1)); err != nil {
		t.Fatal(err)
	}
	get := func(tx store.ReadTx, n int) (r *store.Record) {
		defer func() { _ = recover() }()
		r, _ = tx.Get(kind, id(n))
		return r
	}
	runs := 0
	var a, b *store.Record
	err := s.View(t.Context(), func(tx store.ReadTx) error {
		a = get(tx, 0)
		if runs++; runs == 1 {
			r, q := record(0), record(1)
			r.Version, q.Version = 2, 2
			if err := put(other, r, q); err != nil {
				t.Error(err)
			}
		}
		b = get(tx, 1)
		_ = get(tx, 1)
		return nil
	})
	if err != nil || a == nil || b == nil || a.Version != b.Version {
		t.Errorf("View = %v; read %v and %v, which never were together", err, a, b)
	}
	err = s.Update(t.Context(), func(tx store.Tx) error {
		r := get(tx, 0) // it must be read: another process has written it
		if r == nil {
			tx.Put(record(2))
			panic("not found")
		}
		r.Version++
		tx.Put(r)
		return nil
	})
	if err != nil || has(t, s, 2) {
		t.Errorf("Update = %v; used a read without an answer: %v", err, has(t, s, 2))
	}
}

// An unreadable row is damage, and costs no second attempt or connection.
func TestDamaged(t *testing.T) {
	p := pool(t, postgres.Get(t).URL("postgres"))
	name := schema(t, p)
	s := open(t, p, name)
	if err := put(s, record(0), record(1)); err != nil {
		t.Fatal(err)
	}
	table := pgx.Identifier{name, "records"}.Sanitize()
	for _, damage := range []string{`lookup = '\xff'`, `lookup = NULL, due = 'infinity'`, `due = NULL, class = 300`} {
		if _, err := p.Exec(t.Context(), "UPDATE "+table+" SET "+damage+", stamp = stamp + 1 WHERE id = $1", id(0).String()); err != nil {
			t.Fatal(err)
		}
		fresh := open(t, p, name) // remembers nothing
		connections := p.Stat().NewConnsCount()
		attempts := 0
		get := func(tx store.ReadTx) error {
			attempts++
			_, err := tx.Get(kind, id(0))
			return err
		}
		for what, err := range map[string]error{
			"Get":    fresh.View(t.Context(), func(tx store.ReadTx) error { return get(tx) }),
			"both":   fresh.View(t.Context(), func(tx store.ReadTx) error { _, _ = tx.Get(kind, id(1)); return get(tx) }),
			"Update": fresh.Update(context.Background(), func(tx store.Tx) error { return get(tx) }),
		} {
			if !errors.Is(err, store.ErrDamaged) || errors.Is(err, store.ErrUnavailable) {
				t.Errorf("%s after %s = %v, want ErrDamaged", what, damage, err)
			}
		}
		err := fresh.View(t.Context(), func(tx store.ReadTx) error {
			list, err := tx.List(&store.Query{Kind: kind, Account: account, Limit: 2, Count: true})
			bare := &store.Record{Kind: kind, ID: id(0), Account: account}
			if err == nil && (list.Total != 2 || !reflect.DeepEqual(list.Records[0], bare) || list.Records[1].Version != 1) {
				t.Errorf("List after %s = %d, %+v", damage, list.Total, list.Records)
			}
			return err
		})
		if err != nil {
			t.Errorf("List after %s = %v", damage, err)
		}
		if attempts != 3 {
			t.Errorf("%d attempts", attempts)
		}
		if made := p.Stat().NewConnsCount() - connections; made > 3 {
			t.Errorf("%d connections were made for it", made)
		}
	}
}

// An unreadable row keeps no other row from being due.
func TestDamagedDue(t *testing.T) {
	p := pool(t, postgres.Get(t).URL("postgres"))
	name := schema(t, p)
	s := open(t, p, name)
	at := time.Now().Add(-time.Hour).UTC().Truncate(time.Second)
	for n := range 5 {
		r := record(n)
		r.Due = at.Add(time.Duration(n) * time.Second)
		if err := put(s, r); err != nil {
			t.Fatal(err)
		}
	}
	for n, damage := range []string{`lookup = '\x0501'`, `class = 300`, `class = -1`, `due = '-infinity'`} {
		if _, err := p.Exec(t.Context(), "UPDATE "+pgx.Identifier{name, "records"}.Sanitize()+" SET "+damage+" WHERE id = $1", id(n).String()); err != nil {
			t.Fatal(err)
		}
	}
	due := func(tx store.ReadTx) error {
		found, err := tx.Due(kind, store.AllShards, time.Now(), 1)
		if err != nil || len(found) != 1 || found[0].ID != id(4) {
			t.Errorf("Due = %v, %v, want the record that can be read", found, err)
		}
		next, err := tx.Next(kind, store.AllShards)
		if err != nil || !next.Equal(at.Add(4*time.Second)) {
			t.Errorf("Next = %v, %v", next, err)
		}
		return err
	}
	if err := s.View(t.Context(), due); err != nil {
		t.Error(err)
	}
	if err := s.Update(t.Context(), func(tx store.Tx) error { return due(tx) }); err != nil {
		t.Error(err)
	}
}

// A row of lookups counts only if its record confirms it.
func TestStrayLookups(t *testing.T) {
	p := pool(t, postgres.Get(t).URL("postgres"))
	name := schema(t, p)
	s := open(t, p, name)
	var rs []*store.Record
	for n, hash := range []string{"alice", "bob", "carol", "carol"} {
		r := record(n)
		r.Lookup = [][]byte{[]byte("other"), []byte(hash)}
		rs = append(rs, r)
	}
	if err := put(s, rs...); err != nil {
		t.Fatal(err)
	}
	lookups := pgx.Identifier{name, "lookups"}.Sanitize()
	if _, err := p.Exec(t.Context(), "UPDATE "+lookups+" SET id = CASE id WHEN $1 THEN $2 WHEN $2 THEN $1 ELSE id END WHERE hash <> 'other'", id(0).String(), id(1).String()); err != nil {
		t.Fatal(err)
	}
	for n := range 20 { // wrong rows before the right ones, for existing and missing records
		if _, err := p.Exec(t.Context(), "INSERT INTO "+lookups+" (kind, hash, id) VALUES ($1, 'carol', $2), ($1, 'other', $2) ON CONFLICT DO NOTHING",
			int16(kind), uuid.UUID{14: byte(n)}.String()); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := p.Exec(t.Context(), "INSERT INTO "+lookups+" (kind, hash, id) VALUES ($1, 'carol', $2)", int16(kind), id(0).String()); err != nil {
		t.Fatal(err)
	}
	read := func(tx store.ReadTx) error {
		for hash, want := range map[string]int{"alice": 0, "bob": 0, "carol": 2, "other": 4} {
			found, err := tx.Lookup(kind, []byte(hash), 4)
			if err != nil || len(found) != want {
				t.Errorf("Lookup of %s finds %d records, %v, want %d", hash, len(found), err, want)
			}
			l, err := tx.List(&store.Query{Kind: kind, Account: account, Lookup: []byte(hash), Limit: 5, Count: true})
			if err != nil || len(l.Records) != want || l.Total != int64(want) {
				t.Errorf("List by %s = %v, %v, want %d", hash, l, err, want)
			}
		}
		return nil
	}
	if err := s.View(t.Context(), read); err != nil {
		t.Error(err)
	}
	if err := s.Update(t.Context(), func(tx store.Tx) error { return read(tx) }); err != nil {
		t.Error(err)
	}
}

// A set of classes without any record in a list does not match all classes.
func TestNoClass(t *testing.T) {
	p := pool(t, postgres.Get(t).URL("postgres"))
	s := open(t, p, schema(t, p))
	if err := put(s, record(0)); err != nil {
		t.Fatal(err)
	}
	all, none := store.Query{Kind: kind, Account: account, Limit: 1, Count: true}, store.Query{Kind: kind, Account: account, Limit: 1, Count: true}
	none.Classes[0] = 1
	err := s.Update(t.Context(), func(tx store.Tx) error {
		for q, want := range map[*store.Query]int64{&all: 1, &none: 0} {
			if l, err := tx.List(q); err != nil {
				return err
			} else if l.Total != want || len(l.Records) != int(want) {
				t.Errorf("classes %v: %d in total, %d listed, want %d", q.Classes, l.Total, len(l.Records), want)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// A View on a hanging server ends, even if its caller has no deadline.
func TestViewHangs(t *testing.T) {
	t.Parallel()
	for reads := range 3 {
		t.Run(fmt.Sprint(reads+1), func(t *testing.T) {
			t.Parallel()
			server := postgres.Get(t)
			proxy := realtest.NewProxy(t, server.Addr())
			p := pool(t, through(t, server.URL("postgres"), proxy.Addr()))
			s := open(t, p, schema(t, p))
			if err := put(s, record(0), record(1)); err != nil {
				t.Fatal(err)
			}
			err := s.View(context.Background(), func(tx store.ReadTx) error {
				for n := range reads {
					if _, err := tx.Get(kind, id(n%2)); err != nil {
						return err
					}
				}
				proxy.Hang()
				_, err := tx.Get(kind, id(0))
				return err
			})
			if !errors.Is(err, store.ErrUnavailable) {
				t.Errorf("View = %v, want ErrUnavailable", err)
			}
			proxy.Resume()
		})
	}
}

// A nil hash is the same as an empty one.
func TestEmptyHash(t *testing.T) {
	p := pool(t, postgres.Get(t).URL("postgres"))
	s := open(t, p, schema(t, p))
	r := record(1)
	r.Lookup = [][]byte{{}}
	if err := put(s, r); err != nil {
		t.Fatal(err)
	}
	if err := s.View(t.Context(), func(tx store.ReadTx) error {
		for _, hash := range [][]byte{nil, {}} {
			if found, err := tx.Lookup(kind, hash, 5); err != nil || len(found) != 1 {
				t.Errorf("Lookup finds %d records: %v", len(found), err)
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// A time that PostgreSQL cannot represent is refused.
func TestFarDue(t *testing.T) {
	p := pool(t, postgres.Get(t).URL("postgres"))
	s := open(t, p, schema(t, p))
	for year, want := range map[int]error{-4001: store.ErrInvalid, -4000: nil, 200_000: nil, 200_001: store.ErrInvalid} {
		r := record(10 + year)
		r.Due = time.Date(year, 7, 1, 0, 0, 0, 0, time.UTC)
		if err := put(s, r); !errors.Is(err, want) {
			t.Errorf("in the year %d: Update = %v, want %v", year, err, want)
		}
	}
}
