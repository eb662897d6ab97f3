package pgstore

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cardvault/cardvault/store"
)

//go:embed migrations/*.sql
var migrations embed.FS

// Migrations holds one file for each version of the schema, 1.sql and so on: what
// [Migrate] runs, for those who let another tool do it. They name the schema
// "cardvault" and do not create it, nor the table of versions, which has to say what was run:
//
//	CREATE SCHEMA "cardvault";
//	CREATE TABLE "cardvault".migrations (version integer PRIMARY KEY, at timestamptz NOT NULL DEFAULT now());
//	INSERT INTO "cardvault".migrations (version) VALUES (1);
var Migrations = sub(migrations, "migrations")

func sub(f fs.FS, dir string) fs.FS {
	f, err := fs.Sub(f, dir)
	if err != nil {
		panic(err) // dir is constant
	}
	return f
}

// newest is the version of the schema that this package works with.
const newest = 1

// ErrNotMigrated is returned by New for a database without the tables of this version.
// Call Migrate first.
var ErrNotMigrated = errors.New("pgstore: the database is not migrated")

// Migrate brings the tables in the default schema, or in that of Options.Schema, up to
// this version. It does nothing if they are, may be called by many processes at once,
// and changes all or nothing. The role of the pool needs the right to create a schema,
// or to create in it if it is there; New needs none of these. It returns
// store.ErrFormat if a newer version was here.
func Migrate(ctx context.Context, pool *pgxpool.Pool, opts *Options) error {
	schema := opts.schema()
	if err := checkName(schema); err != nil {
		return err
	}
	err := pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, fmt.Sprintf("SELECT pg_advisory_xact_lock(%d)", newLocker(schema).migration()))
		if err != nil {
			return err
		}
		at, err := schemaVersion(ctx, tx, schema)
		if err != nil {
			return err
		}
		if at > newest {
			return fmt.Errorf("%w: the schema has version %d, this program knows %d", store.ErrFormat, at, newest)
		}
		if at == 0 {
			var found bool
			if err := tx.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1)", schema).Scan(&found); err != nil {
				return err
			}
			script := `CREATE TABLE "cardvault".migrations (version integer PRIMARY KEY, at timestamptz NOT NULL DEFAULT now())`
			if !found {
				script = `CREATE SCHEMA "cardvault"; ` + script
			}
			if err := execScript(ctx, tx, schema, script); err != nil {
				return err
			}
		}
		for v := at + 1; v <= newest; v++ {
			script, err := fs.ReadFile(Migrations, strconv.Itoa(v)+".sql")
			if err != nil {
				return err
			}
			mark := fmt.Sprintf(`; INSERT INTO "cardvault".migrations (version) VALUES (%d)`, v)
			if err := execScript(ctx, tx, schema, string(script)+mark); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("pgstore: migrate: %w", plain(err))
	}
	return nil
}

// execScript runs statements without parameters, in which "cardvault" stands for the schema.
func execScript(ctx context.Context, tx pgx.Tx, schema, script string) error {
	_, err := tx.Conn().PgConn().Exec(ctx, in(schema, script)).ReadAll()
	return err
}

// checkName refuses names of a schema that PostgreSQL would cut off, or that would end
// the text of a function.
func checkName(schema string) error {
	if len(schema) > 63 || strings.ContainsRune(schema, 0) || strings.Contains(schema, "$$") {
		return errors.New("pgstore: the name of a schema has at most 63 bytes, no NUL and no $$")
	}
	return nil
}

// in returns a statement with the name of the schema.
func in(schema, sql string) string { return strings.ReplaceAll(sql, `"cardvault"`, quoted(schema)) }

func quoted(schema string) string { return pgx.Identifier{schema}.Sanitize() }

// schemaVersion returns the version of the schema, 0 if there is none.
func schemaVersion(ctx context.Context, q interface {
	QueryRow(context.Context, string, ...any) pgx.Row
}, schema string) (version int, err error) {
	var found bool
	// Unlike to_regclass, this sees what another session has just made.
	err = q.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE n.nspname = $1 AND c.relname = 'migrations')`, schema).Scan(&found)
	if err != nil || !found {
		return 0, err
	}
	err = q.QueryRow(ctx, in(schema, `SELECT coalesce(max(version), 0) FROM "cardvault".migrations`)).Scan(&version)
	return version, err
}
