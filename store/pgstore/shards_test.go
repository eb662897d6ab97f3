//go:build unix

package pgstore

import (
	"context"
	"errors"
	"io/fs"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cardvault/cardvault/internal/realtest"
	"github.com/cardvault/cardvault/store"
)

// TestShardIndex: a schema of version 1 is refused, and is migrated with its rows. Then Due
// and Next of a few shards use the index of the shards.
func TestShardIndex(t *testing.T) {
	p, err := pgxpool.New(t.Context(), realtest.PostgreSQL(t, nil).URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()

	first, err := fs.ReadFile(Migrations, "1.sql")
	if err != nil {
		t.Fatal(err)
	}
	fill := `CREATE SCHEMA "cardvault";
		CREATE TABLE "cardvault".migrations (version integer PRIMARY KEY, at timestamptz NOT NULL DEFAULT now());
		INSERT INTO "cardvault".migrations (version) VALUES (1);` + string(first) + `;
		INSERT INTO "cardvault".records (version, stamp, due, kind, class, child, id, account, scope, shown, secret)
		SELECT 1, 0, to_timestamp(n), 9, 0, false, (lpad(to_hex(n), 28, '0') || CASE WHEN n % 1000 = 0 THEN 'ffff' ELSE 'fff0' END)::uuid,
			'00000000-0000-0000-0000-000000000001', '00000000-0000-0000-0000-000000000001', '', '' FROM generate_series(1, 50000) AS n;
		ANALYZE "cardvault".records`
	if err := pgx.BeginFunc(t.Context(), p, func(tx pgx.Tx) error { return execScript(t.Context(), tx, "cardvault", fill) }); err != nil {
		t.Fatal(err)
	}

	if _, err := New(t.Context(), p, nil); !errors.Is(err, ErrNotMigrated) {
		t.Errorf("New on version 1 = %v, want ErrNotMigrated", err)
	}
	if err := Migrate(t.Context(), p, nil); err != nil {
		t.Fatal(err)
	}

	sql := statementsOf("cardvault", whole)
	var shards store.Shards
	shards.Add(3)
	shards.Add(15)
	for _, q := range []*question{
		sql.ofDue(9, shards, time.Now(), 100, false), sql.ofDue(9, shards, time.Now(), 100, true), sql.ofNext(9, shards),
	} {
		if plan := explain(t, p, q); !strings.Contains(plan, "records_shard") || strings.Contains(plan, "Seq Scan") {
			t.Errorf("%s\nis planned as\n%s", q.sql, plan)
		}
	}

	s, err := New(t.Context(), p, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.View(context.Background(), func(tx store.ReadTx) error {
		due, err := tx.Due(9, shards, time.Now(), 100)
		if err == nil && len(due) != 50 {
			t.Errorf("%d records are due in the shard of 50", len(due))
		}
		return err
	}); err != nil {
		t.Error(err)
	}
}

// explain returns the plan of a query.
func explain(t *testing.T, p *pgxpool.Pool, q *question) string {
	t.Helper()
	rows, err := p.Query(t.Context(), "EXPLAIN "+q.sql, q.args...)
	if err != nil {
		t.Fatal(err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(lines, "\n")
}
