//go:build unix

package pgstore_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cardvault/cardvault/internal/realtest"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/pgstore"
	"github.com/cardvault/cardvault/store/storetest"
)

const kind store.Kind = 7

var account = uuid.UUID{0: 0xac}

// id returns the n-th id.
func id(n int) (u uuid.UUID) {
	binary.BigEndian.PutUint64(u[:], uint64(n))
	u[15] = 1
	return u
}

func record(n int) *store.Record {
	return &store.Record{Kind: kind, ID: id(n), Account: account, Class: 1, Version: 1, Shown: []byte("shown"), Secret: []byte("secret")}
}

func put(s store.Store, rs ...*store.Record) error {
	return s.Update(context.Background(), func(tx store.Tx) error {
		for _, r := range rs {
			tx.Put(r)
		}
		return nil
	})
}

func has(t testing.TB, s store.Store, n int) bool {
	t.Helper()
	err := s.View(t.Context(), func(tx store.ReadTx) error {
		_, err := tx.Get(kind, id(n))
		return err
	})
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		t.Fatal(err)
	}
	return err == nil
}

func list(t testing.TB, s store.Store, q *store.Query) (l *store.List) {
	t.Helper()
	err := s.View(t.Context(), func(tx store.ReadTx) (err error) {
		l, err = tx.List(q)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// through returns a server's URL with another address.
func through(t testing.TB, server, address string) string {
	u, err := url.Parse(server)
	if err != nil {
		t.Fatal(err)
	}
	u.Host = address
	return u.String()
}

// The connection is cut after any number of bytes of answers, while groups commit. Every
// Update still reports the true outcome.
func TestCutInCommit(t *testing.T) {
	server := postgres.Get(t)
	proxy := realtest.NewProxy(t, server.Addr())
	p := pool(t, through(t, server.URL("postgres"), proxy.Addr()))
	s := open(t, p, schema(t, p))
	n, unknown := 0, 0
	for round := range 60 {
		cut := proxy.CutAfter(3 * round % 170)
		errs := make([]error, 8)
		var group sync.WaitGroup
		for i := range errs {
			group.Go(func() { errs[i] = put(s, record(n+i)) })
		}
		select {
		case <-cut:
		case <-time.After(50 * time.Millisecond): // there was less to answer
		}
		proxy.Resume()
		group.Wait()
		for i, err := range errs {
			if errors.Is(err, store.ErrOutcomeUnknown) {
				unknown++
			} else if written := has(t, s, n+i); written != (err == nil) {
				t.Errorf("Update = %v, but written: %v", err, written)
			}
		}
		n += len(errs)
	}
	if unknown > 0 {
		t.Errorf("%d outcomes of %d remained unknown", unknown, n)
	}
}

// After a restart the server is found again, and acknowledged records are there.
func TestServerKilled(t *testing.T) {
	t.Parallel()
	server := realtest.PostgreSQL(t, nil)
	p := pool(t, server.URL("postgres"))
	s := open(t, p, schema(t, p))
	var acknowledged sync.Map
	var stop atomic.Bool
	var next atomic.Int64
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for !stop.Load() {
				n := int(next.Add(1))
				if put(s, record(n)) == nil {
					acknowledged.Store(n, true)
				}
			}
		})
	}
	for range 3 {
		<-time.After(100 * time.Millisecond)
		server.Kill()
		server.Restart(t)
		began := time.Now()
		if err := put(s, record(1<<30+int(next.Add(1)))); err != nil {
			t.Errorf("Update after a restart = %v", err)
		}
		t.Logf("the server is found again after %v", time.Since(began))
	}
	stop.Store(true)
	group.Wait()
	count := 0
	acknowledged.Range(func(n, _ any) bool {
		count++
		if !has(t, s, n.(int)) {
			t.Errorf("acknowledged record %v is lost", n)
		}
		return true
	})
	if count == 0 {
		t.Error("nothing was acknowledged")
	}
}

func TestDown(t *testing.T) {
	t.Parallel()
	server := realtest.PostgreSQL(t, nil)
	p := pool(t, server.URL("postgres"))
	s := open(t, p, schema(t, p))
	server.Kill()
	p.Reset() // a statement on an old connection might have been executed
	if err := put(s, record(1)); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("Update = %v, want ErrUnavailable", err)
	}
	err := s.View(t.Context(), func(tx store.ReadTx) error { _, err := tx.Get(kind, id(1)); return err })
	if !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("View = %v, want ErrUnavailable", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	err = s.View(ctx, func(tx store.ReadTx) error { _, err := tx.Get(kind, id(1)); return err })
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("View = %v, want the error of ctx", err)
	}
}

// Several stores add to the same rows, and to the results of a look-up by hash and of a
// list.
func TestHammer(t *testing.T) {
	const stores, workers, each, rows = 3, 6, 25, 2
	p := pool(t, postgres.Get(t).URL("postgres"))
	name := schema(t, p)
	var all []*pgstore.Store
	for range stores {
		all = append(all, open(t, p, name))
	}
	for n := range rows {
		if err := put(all[0], record(n)); err != nil {
			t.Fatal(err)
		}
	}
	var group sync.WaitGroup
	for w := range workers {
		s := all[w%stores]
		group.Go(func() {
			for i := range each {
				err := s.Update(context.Background(), func(tx store.Tx) error {
					r, err := tx.Get(kind, id((w+i)%rows))
					if err != nil {
						return err
					}
					l, err := tx.List(&store.Query{Kind: kind + 1, Account: account, Count: true})
					if err != nil {
						return err
					}
					r.Version++
					tx.Put(r)
					child := record(int(l.Total)) // free unless another store has added one
					child.Kind = kind + 1
					tx.Put(child)
					return nil
				})
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	group.Wait()
	sum := uint64(0)
	for _, r := range list(t, all[0], &store.Query{Kind: kind, Account: account, Limit: rows}).Records {
		sum += r.Version - 1
	}
	if sum != workers*each {
		t.Errorf("%d additions of %d are left", sum, workers*each)
	}
	if total := list(t, all[1], &store.Query{Kind: kind + 1, Account: account, Count: true}).Total; total != workers*each {
		t.Errorf("%d records with numbers of their own, want %d", total, workers*each)
	}
}

// No two stores claim the same job, and no job is left over.
func TestClaims(t *testing.T) {
	const stores, jobs = 4, 400
	p := pool(t, postgres.Get(t).URL("postgres"))
	name := schema(t, p)
	var all []*pgstore.Store
	for range stores {
		all = append(all, open(t, p, name))
	}
	at := time.Now().Add(-time.Minute)
	for n := range jobs {
		r := record(n)
		r.Due = at.Add(time.Duration(n) * time.Millisecond)
		if err := put(all[0], r); err != nil {
			t.Fatal(err)
		}
	}
	var claimed [jobs]atomic.Int64
	var group sync.WaitGroup
	for _, s := range all {
		group.Go(func() {
			for idle := 0; idle < 3; {
				var mine []int
				err := s.Update(context.Background(), func(tx store.Tx) error {
					mine = mine[:0]
					due, err := tx.Due(kind, store.AllShards, time.Now(), 7)
					for _, r := range due {
						mine = append(mine, int(binary.BigEndian.Uint64(r.ID[:])))
						tx.Delete(kind, r.ID)
					}
					return err
				})
				if err != nil {
					t.Error(err)
					return
				}
				for _, n := range mine {
					claimed[n].Add(1)
				}
				if len(mine) == 0 {
					idle++
				}
			}
		})
	}
	group.Wait()
	for n := range claimed {
		if got := claimed[n].Load(); got != 1 {
			t.Errorf("job %d was claimed %d times", n, got)
		}
	}
}

func TestMigrateAtOnce(t *testing.T) {
	p := pool(t, postgres.Get(t).URL("postgres"))
	opts := &pgstore.Options{Schema: `a "quoted" schema's name`}
	if _, err := pgstore.New(t.Context(), p, opts); !errors.Is(err, pgstore.ErrNotMigrated) {
		t.Errorf("New before Migrate = %v, want ErrNotMigrated", err)
	}
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			if err := pgstore.Migrate(context.Background(), p, opts); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	s := open(t, p, opts.Schema)
	if err := put(s, record(1)); err != nil {
		t.Error(err)
	}
	if !has(t, s, 1) {
		t.Error("a stored record is missing")
	}
	if _, err := p.Exec(t.Context(), `INSERT INTO `+pgx.Identifier{opts.Schema}.Sanitize()+`.migrations (version) VALUES (1000)`); err != nil {
		t.Fatal(err)
	}
	if _, err := pgstore.New(t.Context(), p, opts); !errors.Is(err, store.ErrFormat) {
		t.Errorf("New on a newer schema = %v, want ErrFormat", err)
	}
	if err := pgstore.Migrate(t.Context(), p, opts); !errors.Is(err, store.ErrFormat) {
		t.Errorf("Migrate of a newer schema = %v, want ErrFormat", err)
	}
	names, err := fs.Glob(pgstore.Migrations, "*.sql")
	if err != nil || len(names) == 0 {
		t.Errorf("Migrations: %v, %v", names, err)
	}
}

func TestRefuses(t *testing.T) {
	for setting, want := range map[string]error{
		"fsync":            pgstore.ErrUnsafe,
		"full_page_writes": pgstore.ErrUnsafe,
	} {
		server := realtest.PostgreSQL(t, &realtest.PostgreSQLOptions{Settings: map[string]string{setting: "off"}})
		p := pool(t, server.URL("postgres"))
		if err := pgstore.Migrate(t.Context(), p, nil); err != nil {
			t.Fatal(err)
		}
		if _, err := pgstore.New(t.Context(), p, nil); !errors.Is(err, want) {
			t.Errorf("New with %s off = %v, want %v", setting, err, want)
		}
	}
	p := pool(t, postgres.Get(t).URL("postgres")+"&default_transaction_isolation=serializable")
	if _, err := pgstore.New(t.Context(), p, &pgstore.Options{Schema: schema(t, p)}); !errors.Is(err, pgstore.ErrIsolation) {
		t.Errorf("New with another isolation level = %v, want ErrIsolation", err)
	}
}

// A skewed connection makes New read a skewed clock.
type skewed struct{ net.Conn }

func (s skewed) Write(b []byte) (int, error) {
	return s.Conn.Write(bytes.ReplaceAll(b, []byte("pg_catalog.clock_timestamp()"), []byte("skewed_far.clock_timestamp()")))
}

func TestClock(t *testing.T) {
	p := pool(t, postgres.Get(t).URL("postgres"))
	name := schema(t, p)
	if _, err := p.Exec(t.Context(), `CREATE SCHEMA skewed_far; CREATE FUNCTION skewed_far.clock_timestamp() RETURNS timestamptz
			LANGUAGE sql AS $$ SELECT pg_catalog.clock_timestamp() + current_setting('skew.by')::interval $$`); err != nil {
		t.Fatal(err)
	}
	for by, want := range map[string]error{"0ms": nil, "-5s": pgstore.ErrClock, "5s": pgstore.ErrClock, "300ms": nil} {
		config, err := pgxpool.ParseConfig(postgres.Get(t).URL("postgres") + "&skew.by=" + by)
		if err != nil {
			t.Fatal(err)
		}
		config.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, addr)
			return skewed{conn}, err
		}
		p, err := pgxpool.NewWithConfig(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.Close)
		s, err := pgstore.New(t.Context(), p, &pgstore.Options{Schema: name})
		if !errors.Is(err, want) {
			t.Errorf("New with a clock off by %s = %v, want %v", by, err, want)
		}
		if err == nil {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// TestWarns: the log says at the start what the operator has left open.
func TestWarns(t *testing.T) {
	server := postgres.Get(t)
	p := pool(t, server.URL("postgres"))
	const closed = "connect_revoked"
	for _, sql := range []string{"CREATE DATABASE " + closed, "REVOKE CONNECT ON DATABASE " + closed + " FROM PUBLIC"} {
		if _, err := p.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	for database, open := range map[string]bool{"postgres": true, closed: false} {
		var log bytes.Buffer
		p := pool(t, server.URL(database))
		s, err := pgstore.New(t.Context(), p, &pgstore.Options{Schema: schema(t, p), Logger: slog.New(slog.NewTextHandler(&log, nil))})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		if text := log.String(); !strings.Contains(text, "synchronous standby") || strings.Contains(text, "every role may connect") != open {
			t.Errorf("database %s: the log says %s", database, text)
		}
	}
}

// On a full disk, writes that need room fail, and deletions continue.
func TestDiskFull(t *testing.T) {
	server := realtest.PostgreSQL(t, nil)
	p := pool(t, server.URL("postgres"))
	name := schema(t, p)
	s := open(t, p, name)
	if err := put(s, record(0)); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Exec(t.Context(), strings.ReplaceAll(noRoom, `"s"`, pgx.Identifier{name}.Sanitize())); err != nil {
		t.Fatal(err)
	}
	var group sync.WaitGroup
	for n := 1; n < 9; n++ {
		group.Go(func() {
			err := put(s, record(n))
			if !errors.Is(err, store.ErrFull) || errors.Is(err, store.ErrOutcomeUnknown) || strings.Contains(fmt.Sprint(err), "canary") {
				t.Errorf("Update = %v, want ErrFull", err)
			}
		})
	}
	group.Go(func() {
		if err := s.Update(context.Background(), func(tx store.Tx) error { tx.Delete(kind, id(0)); return nil }); err != nil {
			t.Errorf("deletion = %v", err)
		}
	})
	group.Wait()
	if has(t, s, 0) {
		t.Error("a deleted record is there")
	}
}

func TestWakes(t *testing.T) {
	server := postgres.Get(t)
	p := pool(t, server.URL("postgres"))
	name := schema(t, p)
	listen, err := pgx.ParseConfig(server.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	listener, err := pgstore.New(t.Context(), p, &pgstore.Options{Schema: name, Listen: listen})
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	writes := open(t, p, name)
	woken := make(chan store.Kind, 100)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- listener.Wakes(ctx, func(k store.Kind) { woken <- k }) }()
	await := func(want store.Kind, again func(n int)) {
		t.Helper()
		for n := range 60 {
			select {
			case k := <-woken:
				if k != want {
					t.Errorf("woken for kind %d, want %d", k, want)
				}
				return
			case <-time.After(time.Second):
				again(n)
			}
		}
		t.Fatal("not woken")
	}
	await(0, func(int) {})
	later, now := record(1), record(2)
	later.Due, now.Due = time.Now().Add(time.Hour), time.Now()
	own := record(3)
	own.Due, own.Kind = now.Due, kind+1
	for s, rs := range map[*pgstore.Store][]*store.Record{listener: {own}, writes: {later, now}} {
		if err := put(s, rs...); err != nil {
			t.Fatal(err)
		}
	}
	await(kind, func(n int) { // a notification that takes too long is dropped
		more := record(10 + n)
		more.Due = now.Due
		if err := put(writes, more); err != nil {
			t.Fatal(err)
		}
	})
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Wakes = %v", err)
	}
	close(woken)
	for k := range woken {
		if k != kind {
			t.Errorf("woken for kind %d, which only this store has written", k)
		}
	}
	if err := writes.Wakes(t.Context(), nil); err != nil { // has no connection for LISTEN
		t.Errorf("Wakes = %v", err)
	}
}

// The package's promises about PgBouncer hold. With -short this is also the store with
// partitions whose calls name the accounts.
func TestPgBouncer(t *testing.T) {
	server := postgres.Get(t)
	tests := []struct {
		pool string
		mode pgx.QueryExecMode
	}{
		{"transaction", pgx.QueryExecModeCacheDescribe},
		{"transaction", pgx.QueryExecModeExec},
		{"session", pgx.QueryExecModeCacheStatement},
	}
	if testing.Short() {
		tests = tests[:1]
	}
	for _, test := range tests {
		t.Run(test.pool+" "+test.mode.String(), func(t *testing.T) {
			url := realtest.PgBouncer(t, server, test.pool).URL("postgres") + "&default_query_exec_mode=" +
				strings.ReplaceAll(test.mode.String(), " ", "_")
			if testing.Short() {
				storetest.Run(t, harnessOf(url, openNaming, some))
				return
			}
			p := pool(t, url)
			storetest.Run(t, storetest.Harness{Open: func(t testing.TB) store.Store { return open(t, p, schema(t, p)) }})
		})
	}
}
