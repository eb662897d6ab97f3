//go:build unix

package pgstore_test

import (
	"context"
	"flag"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cardvault/cardvault/internal/goroutines"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cardvault/cardvault/internal/realtest"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/pgstore"
	"github.com/cardvault/cardvault/store/storetest"
	"github.com/cardvault/cardvault/vaulttest/vaultsuite"
)

var postgres = realtest.SharedPostgreSQL(nil)

func TestMain(m *testing.M) {
	storetest.Child(func(place string) (store.Store, error) {
		url, schema, _ := strings.Cut(place, " ")
		p, err := pgxpool.New(context.Background(), url)
		if err != nil {
			return nil, err
		}
		return pgstore.New(context.Background(), p, &pgstore.Options{Schema: schema})
	})
	// Parallel tests mostly wait for servers, rather than compute.
	flag.Parse()
	if err := flag.Set("test.parallel", "4"); err != nil {
		panic(err)
	}
	goroutines.Verify(postgres.Main(m))
}

// pool returns connections to a database that are closed at the end of the test.
func pool(t testing.TB, url string) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	config.MaxConns = 8
	p, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

var schemas atomic.Int64

// schema returns the name of a new schema.
func schema(t testing.TB, p *pgxpool.Pool) string {
	t.Helper()
	return divided(t, p, 0)
}

// divided returns the name of a new schema with so many partitions.
func divided(t testing.TB, p *pgxpool.Pool, partitions int) string {
	t.Helper()
	name := fmt.Sprintf("s%d of %s", schemas.Add(1), strings.Repeat("x", 3))
	if err := pgstore.Migrate(t.Context(), p, &pgstore.Options{Schema: name, Partitions: partitions}); err != nil {
		t.Fatal(err)
	}
	return name
}

func open(t testing.TB, p *pgxpool.Pool, schema string) *pgstore.Store {
	t.Helper()
	s, err := pgstore.New(t.Context(), p, &pgstore.Options{Schema: schema})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// A placed store knows its database and schema.
type placed struct {
	store.Store
	pool   *pgxpool.Pool
	schema string
}

// Repair has the store repair itself.
func (p placed) Repair(ctx context.Context, place []byte, limit int) ([]byte, error) {
	return p.Store.(store.Repairer).Repair(ctx, place, limit)
}

// harness is for stores that open opens in a schema.
func harness(url string, open func(t testing.TB, p *pgxpool.Pool, schema string) store.Store) storetest.Harness {
	return harnessOf(url, open, func() int { return 0 })
}

// harnessOf is harness with so many partitions in each new schema.
func harnessOf(url string, open func(t testing.TB, p *pgxpool.Pool, schema string) store.Store, partitions func() int) storetest.Harness {
	again := func(t testing.TB, s store.Store) (store.Store, error) {
		p, name := pool(t, url), s.(placed).schema
		return placed{open(t, p, name), p, name}, nil
	}
	return storetest.Harness{
		Open: func(t testing.TB) store.Store {
			p := pool(t, url)
			name := divided(t, p, partitions())
			return placed{open(t, p, name), p, name}
		},
		Reopen: again,
		Second: again,
		Place:  func(s store.Store) string { return url + " " + s.(placed).schema },
		Fault: func(t testing.TB, s store.Store, f storetest.Fault) func() {
			return fault(t, s.(placed), f)
		},
	}
}

func fault(t testing.TB, s placed, f storetest.Fault) (mend func()) {
	in := func(sql string, args ...any) {
		t.Helper()
		if _, err := s.pool.Exec(t.Context(), strings.ReplaceAll(sql, `"s"`, pgx.Identifier{s.schema}.Sanitize()), args...); err != nil {
			t.Fatal(err)
		}
	}

	switch f.Kind {
	case storetest.NoRoom:
		in(noRoom)
		return func() { in(`DROP FUNCTION "s".no_room() CASCADE`) }
	case storetest.LostAnswer:
		if testing.Short() {
			return nil // a store takes ten seconds to give up
		}
		in(`CREATE FUNCTION "s".die() RETURNS trigger LANGUAGE plpgsql AS $$
				BEGIN PERFORM pg_catalog.pg_terminate_backend(pg_catalog.pg_backend_pid()); RETURN NULL; END $$;
			CREATE CONSTRAINT TRIGGER die AFTER INSERT OR UPDATE ON "s".groups DEFERRABLE INITIALLY DEFERRED
				FOR EACH ROW EXECUTE FUNCTION "s".die();
			ALTER FUNCTION "s".settle RENAME TO settled`)
		return func() { in(`DROP FUNCTION "s".die() CASCADE; ALTER FUNCTION "s".settled RENAME TO settle`) }
	case storetest.DamagedRecord:
		in(`UPDATE "s".records SET lookup = '\xff', stamp = stamp + 1 WHERE kind = $1 AND id = $2`, int(f.Record.Kind), f.Record.ID.String())
		return func() {}
	case storetest.DamagedIndexes:
		other := f.Record.ID
		other[10] ^= 0xff
		in(`UPDATE "s".lookups SET id = $3 WHERE kind = $1 AND id = $2`, int(f.Record.Kind), f.Record.ID.String(), other.String())
		return func() {}
	}
	return nil
}

// noRoom makes a schema report a full disk. Only a trigger can: a disk that is really full
// may have no room for the log either, which stops the server.
const noRoom = `CREATE FUNCTION "s".no_room() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN RAISE EXCEPTION USING ERRCODE = 'disk_full', MESSAGE = 'canary'; END $$;
	CREATE TRIGGER no_room BEFORE INSERT ON "s".records FOR EACH ROW EXECUTE FUNCTION "s".no_room()`

func openOne(t testing.TB, p *pgxpool.Pool, schema string) store.Store { return open(t, p, schema) }

// With -short, TestReplicas and TestVaultReplicas cover this.
func TestStore(t *testing.T) {
	if testing.Short() {
		return
	}
	server := realtest.PostgreSQL(t, nil)
	h := harness(server.URL("postgres"), openOne)
	h.Crash = func(t testing.TB, s store.Store) (store.Store, error) {
		server.Kill() // takes all data that is not in its log
		server.Restart(t)
		return h.Reopen(t, s)
	}
	storetest.Run(t, h)
}

func TestVault(t *testing.T) {
	if testing.Short() {
		return
	}
	vaultsuite.Run(t, harness(postgres.Get(t).URL("postgres"), openOne))
}
