//go:build unix

package pgstore_test

import (
	"bytes"
	"context"
	"fmt"
	"hash/fnv"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cardvault/cardvault/store/pgstore"
)

// as makes a role and returns the server's URL for it.
func as(t testing.TB, role string) string {
	t.Helper()
	server := postgres.Get(t)
	server.SQL(t, "postgres", fmt.Sprintf("DO $$ BEGIN CREATE ROLE %s LOGIN; EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$", role))
	return strings.Replace(server.URL("postgres"), "cardvault@", role+"@", 1)
}

func connect(t testing.TB, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// A role that may only connect cannot derive the name of a lock from the name of the
// schema.
func TestNamesOfLocks(t *testing.T) {
	p := pool(t, postgres.Get(t).URL("postgres"))
	name := schema(t, p)
	s := open(t, p, name)
	stranger := connect(t, as(t, "stranger"))
	for _, what := range []byte{'a', 'm', 'g', 'n'} {
		for _, of := range []string{name, pgx.Identifier{name}.Sanitize()} {
			h := fnv.New64a()
			fmt.Fprintf(h, "%s\x00%c\x00", of, what)
			if _, err := stranger.Exec(t.Context(), "SELECT pg_advisory_lock($1)", int64(h.Sum64())); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := put(s, record(1), record(2)); err != nil { // the stranger lets go of no lock
		t.Errorf("Update = %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := pgstore.Migrate(ctx, p, &pgstore.Options{Schema: name}); err != nil {
		t.Errorf("Migrate = %v", err)
	}
	for _, grant := range []string{"", "GRANT USAGE ON SCHEMA " + pgx.Identifier{name}.Sanitize() + " TO stranger"} {
		if _, err := p.Exec(t.Context(), grant); err != nil {
			t.Fatal(err)
		}
		if _, err := stranger.Exec(t.Context(), "SELECT * FROM "+pgx.Identifier{name, "seed"}.Sanitize()); err == nil {
			t.Errorf("a stranger reads the seed after %q", grant)
		}
	}
	other := schema(t, p)
	var a, b string
	for name, seed := range map[string]*string{name: &a, other: &b} {
		if err := p.QueryRow(t.Context(), "SELECT seed::text FROM "+pgx.Identifier{name, "seed"}.Sanitize()).Scan(seed); err != nil {
			t.Fatal(err)
		}
	}
	if a == b {
		t.Error("two schemas have the same seed")
	}
	if _, err := p.Exec(t.Context(), "DELETE FROM "+pgx.Identifier{other, "seed"}.Sanitize()); err != nil {
		t.Fatal(err)
	}
	if _, err := pgstore.New(t.Context(), p, &pgstore.Options{Schema: other}); err == nil {
		t.Error("New without a seed")
	}
}

// A buffer may be written while it is read.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// If writes wait too long for a lock, the log names its holder, for an advisory lock as for
// a table.
func TestBlame(t *testing.T) {
	for what, hold := range map[string]func(t *testing.T, holder *pgx.Conn, name string, names []int64){
		"advisory": func(t *testing.T, holder *pgx.Conn, _ string, names []int64) {
			if _, err := holder.Exec(t.Context(), "SELECT pg_advisory_lock(n) FROM unnest($1::bigint[]) AS n", names); err != nil {
				t.Fatal(err)
			}
		},
		"table": func(t *testing.T, holder *pgx.Conn, name string, _ []int64) {
			if _, err := holder.Exec(t.Context(), "BEGIN; LOCK TABLE "+pgx.Identifier{name, "records"}.Sanitize()+" IN SHARE MODE"); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			p := pool(t, postgres.Get(t).URL("postgres"))
			name := schema(t, p)
			log := new(buffer)
			s, err := pgstore.New(t.Context(), p, &pgstore.Options{Schema: name, Logger: slog.New(slog.NewTextHandler(log, nil))})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			release := locked(t, p, name, "lookups")
			done := make(chan error, 1)
			r := record(1)
			r.Lookup = [][]byte{[]byte("hash")}
			go func() { done <- put(s, r) }()
			var names []int64
			for deadline := time.Now().Add(time.Minute); len(names) == 0 && time.Now().Before(deadline); <-time.After(time.Millisecond) {
				rows, err := p.Query(t.Context(), `SELECT (l.classid::bigint << 32) | l.objid::bigint FROM pg_locks l
					WHERE l.locktype = 'advisory' AND l.granted AND l.pid IN (
						SELECT pid FROM pg_locks WHERE NOT granted AND relation = $1::text::regclass)`, pgx.Identifier{name, "lookups"}.Sanitize())
				if err != nil {
					t.Fatal(err)
				}
				if names, err = pgx.CollectRows(rows, pgx.RowTo[int64]); err != nil {
					t.Fatal(err)
				}
			}
			release()
			if err := <-done; err != nil || len(names) < 2 {
				t.Fatalf("Update = %v, with the locks %x", err, names)
			}

			role := "holder_" + what // parallel tests must not make the same role
			as(t, role)
			postgres.Get(t).SQL(t, "postgres", "GRANT USAGE ON SCHEMA "+pgx.Identifier{name}.Sanitize()+" TO "+role+"; GRANT UPDATE ON "+
				pgx.Identifier{name, "records"}.Sanitize()+" TO "+role)
			holder := connect(t, as(t, role))
			hold(t, holder, name, names)
			go func() { done <- put(s, record(2), record(3)) }()
			want := fmt.Sprintf("pid=%d role=%s", holder.PgConn().PID(), role)
			for deadline := time.Now().Add(time.Minute); !strings.Contains(log.String(), want); <-time.After(10 * time.Millisecond) {
				if time.Now().After(deadline) {
					t.Errorf("the log lacks %s:\n%s", want, log)
					break
				}
			}
			if err := holder.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := <-done; err != nil {
				t.Errorf("Update = %v", err)
			}
		})
	}
}
