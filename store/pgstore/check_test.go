//go:build unix

package pgstore_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cardvault/cardvault/internal/realtest"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/pgstore"
)

// checked returns what Check finds, in pieces.
func checked(t testing.TB, s store.Store, limit int) (all []store.Disagreement) {
	t.Helper()
	var place []byte
	for range 100_000 {
		if err := s.View(t.Context(), func(tx store.ReadTx) error {
			found, next, err := tx.(store.Checker).Check(place, limit)
			if err == nil {
				all, place = append(all, found...), next
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
		if place == nil {
			return all
		}
	}
	t.Fatal("Check does not end")
	return nil
}

// TestCheck: each damage of the tables lookups and counts is found, and repaired from the records.
func TestCheck(t *testing.T) {
	for _, with := range []struct {
		partitions, records int
		runs                bool // there is a block of level 2 besides the last
		step                int  // records and entries of a transaction
	}{{0, 33_500, true, 400}, {0, 1000, false, 20_000}, {2, 1000, false, 20_000}} {
		partitions, n := with.partitions, with.records
		p := pool(t, postgres.Get(t).URL("postgres"))
		name := divided(t, p, partitions)
		fill(t, p, name, n, nil)
		in := func(sql string) {
			t.Helper()
			conn, err := p.Acquire(t.Context())
			if err == nil {
				_, err = conn.Conn().PgConn().Exec(t.Context(), strings.ReplaceAll(sql, `"s"`, pgx.Identifier{name}.Sanitize())).ReadAll()
				conn.Release()
			}
			if err != nil {
				t.Fatalf("%v: %s", err, sql)
			}
		}
		in(`UPDATE "s".records SET class = 1 + get_byte(uuid_send(id), 7) % 3; ANALYZE "s".records`)
		s := open(t, p, name)
		var rs []*store.Record
		for i := range 100 {
			r := record(n + 1 + i)
			r.Lookup = [][]byte{[]byte("all"), {}, []byte("all"), {byte(i)}}
			rs = append(rs, r)
		}
		if err := put(s, rs...); err != nil {
			t.Fatal(err)
		}
		n += len(rs)
		compare := func(what string) {
			t.Helper()
			if err := s.View(t.Context(), func(tx store.ReadTx) error {
				l, err := tx.List(&store.Query{Kind: kind, Account: account, Offset: int64(n - 500), Limit: 10, Count: true})
				if err == nil && (l.Total != int64(n) || len(l.Records) != 10 || l.Records[0].ID != id(n-499)) {
					t.Errorf("%s: a list of %d, %d on the page", what, l.Total, len(l.Records))
				}
				hits, failed := tx.Lookup(kind, []byte("all"), 1000)
				if failed == nil && len(hits) != len(rs) {
					t.Errorf("%s: a hash finds %d", what, len(hits))
				}
				return errors.Join(err, failed)
			}); err != nil {
				t.Fatal(err)
			}
		}
		compare("when it is whole")
		arranged(t, p, name, n/128-2)
		if found := checked(t, s, 20_000); len(found) > 0 {
			t.Fatalf("tables that are whole have %v", found)
		}

		stray := `INSERT INTO "s".lookups SELECT kind, '\x01020304', id FROM "s".lookups LIMIT 1`
		if partitions > 0 {
			stray = `INSERT INTO "s".lookups SELECT kind, '\x01020304', id, account FROM "s".lookups LIMIT 1`
		}
		block := `(SELECT first FROM "s".counts WHERE level = 1 AND class = 0 ORDER BY first OFFSET 2 LIMIT 1)`
		for _, damage := range []struct {
			what, sql string
			fault     store.Fault
			index     store.Index
		}{
			{"lost hashes", `DELETE FROM "s".lookups WHERE hash = 'all'`, store.FaultMissing, store.IndexLookup},
			{"an empty hash is lost", `DELETE FROM "s".lookups WHERE hash = ''`, store.FaultMissing, store.IndexLookup},
			{"a stray hash", stray, store.FaultStray, store.IndexLookup},
			{"a hash of a lost record", `UPDATE "s".lookups SET id = '00000000-0000-0000-0000-000000000009' WHERE hash = '\x05'`, store.FaultStray, store.IndexLookup},
			{"a wrong count", `UPDATE "s".counts SET n = n + 1 WHERE level = 1 AND class = 1 AND first = ` + block, store.FaultOrder, store.IndexList},
			{"a lost count", `DELETE FROM "s".counts WHERE level = 1 AND class = 2 AND first = ` + block, store.FaultOrder, store.IndexList},
			{"a wrong count of a run", `UPDATE "s".counts SET n = n - 1 WHERE level = 2 AND class = 1`, store.FaultOrder, store.IndexList},
			{"a class that nobody has", `UPDATE "s".counts SET class = 77 WHERE level = 1 AND class = 1 AND first = ` + block, store.FaultOrder, store.IndexList},
			{"a block without its first row", `DELETE FROM "s".counts WHERE level = 1 AND class = 0 AND first = ` + block, store.FaultOrder, store.IndexList},
			{"no first block", `DELETE FROM "s".counts WHERE level = 1 AND first = '00000000-0000-0000-0000-000000000000'`, store.FaultOrder, store.IndexList},
			{"a run without its block", `UPDATE "s".counts SET first = '00000000-0000-0000-0000-000000000001' WHERE level = 2 AND first > '00000000-0000-0000-0000-000000000000'`, store.FaultOrder, store.IndexList},
			{"a run that agrees with a wrong count", `UPDATE "s".counts SET n = n + 1 WHERE class = 1 AND (level = 1 AND first = ` + block + ` OR level = 2)`, store.FaultOrder, store.IndexList},
			{"a level that is none", `UPDATE "s".counts SET level = 3 WHERE level = 2`, store.FaultOrder, store.IndexList},
			{"counts of the last block", `UPDATE "s".counts SET first = (SELECT first FROM "s".counts WHERE level = 1 ORDER BY first DESC LIMIT 1) WHERE level = 1 AND class = 1 AND first = ` + block, store.FaultOrder, store.IndexList},
		} {
			if strings.Contains(damage.sql, "level = 2") != with.runs {
				continue
			}
			in(damage.sql)
			found := checked(t, s, 20_000)
			named := false
			for _, d := range found {
				named = named || d.Fault == damage.fault && d.Index == damage.index && d.Key.Kind == kind
			}
			if !named {
				t.Errorf("%s: found %v", damage.what, found)
			}
			repaired(t, s, p, name, with.step)
			if found := checked(t, s, 20_000); len(found) > 0 {
				t.Errorf("%s: after Repair: %v", damage.what, found)
			}
			compare(damage.what)
			arranged(t, p, name, min(100, n/128-2))
		}
	}
}

// repaired has a store repair itself, and checks that no transaction takes more counts from a list than
// limit says: those of a last block and a last run may be added.
func repaired(t *testing.T, s *pgstore.Store, p *pgxpool.Pool, name string, limit int) {
	t.Helper()
	counts := func() (n int) {
		t.Helper()
		if err := p.QueryRow(t.Context(), "SELECT count(*) FROM "+pgx.Identifier{name}.Sanitize()+".counts").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	var place []byte
	for step := 0; step == 0 || place != nil; step++ {
		var err error
		before := counts()
		if place, err = s.Repair(t.Context(), place, limit); err != nil {
			t.Fatalf("Repair = %v", err)
		}
		if gone := before - counts(); gone > limit+limit/8+64 {
			t.Fatalf("a transaction takes %d counts, more than %d", gone, limit)
		}
		if step == 5000 {
			t.Fatal("Repair does not end")
		}
	}
}

// TestRepairWaits: a transaction that holds a lock of the vault for long keeps a repair from
// mending, and the next call goes on.
func TestRepairWaits(t *testing.T) {
	server := realtest.PostgreSQL(t, nil)
	p := pool(t, server.URL("postgres"))
	name := schema(t, p)
	s := open(t, p, name)
	r := record(1)
	r.Lookup = [][]byte{[]byte("h")}
	if err := put(s, r); err != nil {
		t.Fatal(err)
	}
	quoted := pgx.Identifier{name}.Sanitize()
	if _, err := p.Exec(t.Context(), "DELETE FROM "+quoted+".lookups"); err != nil {
		t.Fatal(err)
	}
	holder, err := p.Begin(t.Context())
	if err == nil {
		_, err = holder.Exec(t.Context(), "LOCK TABLE "+quoted+".lookups IN SHARE MODE")
	}
	if err != nil {
		t.Fatal(err)
	}
	repair := s
	if _, err := repair.Repair(t.Context(), nil, 10); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("while another holds a lock: %v", err)
	}
	if err := holder.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := repair.Repair(t.Context(), nil, 10); err != nil {
		t.Error(err)
	}
	if found := checked(t, s, 10); len(found) > 0 {
		t.Error(found)
	}
	for _, place := range [][]byte{{}, {9, 0}, {0, 1}, {0, 0, 1}, {2, 0, 1, 2}, make([]byte, 200)} {
		if _, err := repair.Repair(t.Context(), place, 1); !errors.Is(err, store.ErrInvalid) {
			t.Errorf("from place %v: %v", place, err)
		}
	}
}
