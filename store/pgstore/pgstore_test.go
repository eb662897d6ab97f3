//go:build unix

package pgstore_test

import (
	"flag"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"github.com/cardvault/cardvault/internal/realtest"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/pgstore"
	"github.com/cardvault/cardvault/store/storetest"
	"github.com/cardvault/cardvault/vaulttest/vaultsuite"
)

var postgres = realtest.SharedPostgreSQL(nil)

func TestMain(m *testing.M) {
	// Tests that are parallel wait for servers more than they compute.
	flag.Parse()
	if err := flag.Set("test.parallel", "4"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(postgres.Main(m))
}

// pool returns connections to a database, which are closed with the test.
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
	name := fmt.Sprintf("s%d of %s", schemas.Add(1), strings.Repeat("x", 3))
	if err := pgstore.Migrate(t.Context(), p, &pgstore.Options{Schema: name}); err != nil {
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

// With -short, TestReplicas and TestVaultReplicas do it.
func TestStore(t *testing.T) {
	if testing.Short() {
		return
	}
	p := pool(t, postgres.Get(t).URL("postgres"))
	storetest.Run(t, func(t testing.TB) store.Store { return open(t, p, schema(t, p)) })
}

func TestVault(t *testing.T) {
	if testing.Short() {
		return
	}
	p := pool(t, postgres.Get(t).URL("postgres"))
	vaultsuite.Run(t, func(t testing.TB) store.Store { return open(t, p, schema(t, p)) })
}
