//go:build unix

package pgstore_test

import (
	"context"
	"errors"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cardvault/cardvault/internal/realtest"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/pgstore"
)

// A server that is not the primary, or no longer, is neither read nor written.
func TestOldPrimary(t *testing.T) {
	t.Parallel()
	primary := realtest.PostgreSQL(t, nil)
	standby := primary.Standby(t)
	config, err := pgxpool.ParseConfig(primary.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	var at atomic.Pointer[realtest.Postgres]
	config.BeforeConnect = func(_ context.Context, c *pgx.ConnConfig) error {
		_, port, err := net.SplitHostPort(at.Load().Addr())
		if err != nil {
			return err
		}
		n, err := strconv.ParseUint(port, 10, 16)
		c.Port = uint16(n)
		return err
	}
	at.Store(primary)
	p, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	s := open(t, p, schema(t, p))
	move := func(to *realtest.Postgres) {
		at.Store(to)
		p.Reset()
	}
	read := func(patience time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		return s.View(ctx, func(tx store.ReadTx) error { _, err := tx.Get(kind, id(1)); return err })
	}
	if err := put(s, record(1)); err != nil {
		t.Fatal(err)
	}
	move(standby)
	if read(time.Second) == nil {
		t.Error("a View of a standby")
	}
	standby.Promote(t)
	if err := put(s, record(2)); err != nil {
		t.Errorf("Update on the new primary = %v", err)
	}
	primary.SQL(t, "postgres", "ALTER SYSTEM SET synchronous_standby_names = ''")
	primary.SQL(t, "postgres", "SELECT pg_reload_conf()")
	move(primary)
	if read(time.Second) == nil {
		t.Error("a View of the old primary")
	}
	if err := put(s, record(3)); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("Update on the old primary = %v, want ErrUnavailable", err)
	}
	move(standby)
	if err := read(time.Minute); err != nil || has(t, s, 3) {
		t.Errorf("View of the new primary = %v", err)
	}
}

// A server is no longer used once its settings become unsafe.
func TestBecomesUnsafe(t *testing.T) {
	t.Parallel()
	server := realtest.PostgreSQL(t, nil)
	p := pool(t, server.URL("postgres"))
	s := open(t, p, schema(t, p))
	if err := put(s, record(1)); err != nil {
		t.Fatal(err)
	}
	server.SQL(t, "postgres", "ALTER SYSTEM SET fsync = off")
	server.SQL(t, "postgres", "SELECT pg_reload_conf()")
	for deadline := time.Now().Add(time.Minute); ; <-time.After(100 * time.Millisecond) {
		err := s.View(t.Context(), func(tx store.ReadTx) error { _, err := tx.Get(kind, id(1)); return err })
		if errors.Is(err, store.ErrUnavailable) && errors.Is(err, pgstore.ErrUnsafe) {
			return
		}
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("View = %v, want ErrUnsafe", err)
		}
	}
}

func TestSchemaName(t *testing.T) {
	p := pool(t, postgres.Get(t).URL("postgres"))
	for _, name := range []string{"two$$dollars", strings.Repeat("x", 64), "zero\x00"} {
		opts := &pgstore.Options{Schema: name}
		_, err := pgstore.New(t.Context(), p, opts)
		for what, err := range map[string]error{"New": err, "Migrate": pgstore.Migrate(t.Context(), p, opts)} {
			if err == nil || !strings.Contains(err.Error(), "name of a schema") {
				t.Errorf("%s with the schema %q = %v", what, name, err)
			}
		}
	}
	for _, name := range []string{"$dollar$", `"`, "'", `"cardvault"`, `back\slash`, strings.Repeat("ä", 31)} {
		if err := pgstore.Migrate(t.Context(), p, &pgstore.Options{Schema: name}); err != nil {
			t.Errorf("Migrate to the schema %q = %v", name, err)
			continue
		}
		if err := put(open(t, p, name), record(1)); err != nil {
			t.Errorf("Update in the schema %q = %v", name, err)
		}
	}
}
