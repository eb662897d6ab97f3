package pgstore

import (
	"cmp"
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cardvault/cardvault/store"
)

//go:embed migrations/*.sql
var migrations embed.FS

// Migrations holds one file for each version of the schema, 1.sql and so on. [Migrate] runs
// them, and so can another tool. They name the schema "cardvault". They do not create it,
// nor the table of versions, which has to record each file that was run:
//
//	SET search_path = pg_catalog, pg_temp;
//	CREATE SCHEMA "cardvault";
//	CREATE TABLE "cardvault".migrations (version integer PRIMARY KEY, at timestamptz NOT NULL DEFAULT now());
//	INSERT INTO "cardvault".migrations (version) VALUES (3);
var Migrations = sub(migrations, "migrations")

func sub(f fs.FS, dir string) fs.FS {
	f, err := fs.Sub(f, dir)
	if err != nil {
		panic(err) // dir is constant
	}
	return f
}

// newest is the version of the schema that this package works with.
const newest = 3

// Migrate brings the tables in the default schema, or in Options.Schema, up to this
// version. It does nothing if they are, may be called by many processes at once, and
// changes all or nothing. The role of the pool needs the right to create a schema, or to
// create in it if it exists. Only the role that owns the schema and its contents, or a member
// of that role, can call it later. New needs none of these rights.
//
// It returns ErrOwner if others may change the schema, and store.ErrFormat if a newer version
// has migrated it. With Options.Partitions it divides the tables of a new schema, and returns
// ErrPartitions if the schema has others.
func Migrate(ctx context.Context, pool *pgxpool.Pool, opts *Options) error {
	if err := opts.check(pool); err != nil {
		return err
	}
	partitions := opts.partitions()
	if err := checkPartitions(partitions); err != nil {
		return err
	}
	for tries := 1; ; tries++ {
		err := pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
			return migrate(ctx, tx, opts.schema(), partitions, Migrations, newest)
		})
		if err != nil && othersMigrate(err) && tries < migrateTries {
			continue
		}
		if err != nil {
			return fmt.Errorf("pgstore: migrate: %w", plain(err))
		}
		return nil
	}
}

const migrateTries = 10

// othersMigrate reports whether a transaction has failed because a concurrent one has made
// the same objects, after a wait for its end. No lock prevents this, as its name would have
// to be known beforehand.
func othersMigrate(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && slices.Contains([]string{
		"23505", // unique_violation
		"42P06", // duplicate_schema
		"42P07", // duplicate_table
	}, pg.Code)
}

// migrate brings a schema up to a version, by files as in Migrations.
func migrate(ctx context.Context, tx pgx.Tx, schema string, partitions int, files fs.FS, to int) error {
	if err := execScript(ctx, tx, schema, `SET LOCAL search_path = pg_catalog, pg_temp; SET LOCAL lock_timeout = '10s'`); err != nil {
		return err
	}
	found, err := schemaOwned(ctx, tx, schema)
	if err != nil {
		return err
	}
	at, err := schemaVersion(ctx, tx, schema)
	if err != nil {
		return err
	}

	if at > to {
		return fmt.Errorf("%w: the schema has version %d, this program knows %d", store.ErrFormat, at, to)
	}
	if at == 0 {
		script := `CREATE TABLE "cardvault".migrations (version integer PRIMARY KEY, at timestamptz NOT NULL DEFAULT pg_catalog.now())`
		if !found {
			script = `CREATE SCHEMA "cardvault"; ` + script
		}
		if err := execScript(ctx, tx, schema, script); err != nil {
			return err
		}
	} else {
		has, err := partitionsOf(ctx, tx, schema)
		if err != nil || partitions > 1 && has != partitions {
			return cmp.Or(err, ErrPartitions)
		}
		partitions = has
	}
	if partitions == 1 {
		partitions = 0
	}

	for v := at + 1; v <= to; v++ {
		script, err := scriptOf(files, v, partitions)
		if err != nil {
			return err
		}
		mark := fmt.Sprintf(`INSERT INTO "cardvault".migrations (version) VALUES (%d); `, v) // first, for which others wait
		if err := execScript(ctx, tx, schema, mark+script); err != nil {
			return err
		}
	}
	_, err = schemaOwned(ctx, tx, schema) // default privileges may have given others rights in a new schema
	return err
}

// schemaOwned reports whether the schema exists. It returns ErrOwner if another role can replace
// something in it, perhaps because it has made the schema beforehand.
func schemaOwned(ctx context.Context, tx pgx.Tx, schema string) (found bool, err error) {
	var others []string
	// A superuser is a member of all roles, and trusts superusers alone. pg_database_owner stands
	// for the owner of the database.
	err = tx.QueryRow(ctx, builtIn(`SELECT pg_catalog.count(*) > 0,
			pg_catalog.array_agg(CASE WHEN x.role = 0 THEN 'PUBLIC' ELSE CAST(pg_catalog.pg_get_userbyid(x.role) AS pg_catalog.text) END) FILTER (WHERE o.oid IS NULL)
		FROM pg_catalog.pg_namespace n
		CROSS JOIN LATERAL (
			SELECT n.nspowner AS role
			UNION SELECT a.grantee FROM pg_catalog.aclexplode(n.nspacl) a WHERE a.privilege_type = 'CREATE'
			UNION SELECT c.relowner FROM pg_catalog.pg_class c WHERE c.relnamespace = n.oid
			UNION SELECT p.proowner FROM pg_catalog.pg_proc p WHERE p.pronamespace = n.oid
		) x
		LEFT JOIN pg_catalog.pg_roles named ON named.oid = x.role AND named.rolname = 'pg_database_owner'
		LEFT JOIN pg_catalog.pg_database d ON named.oid IS NOT NULL AND d.datname = pg_catalog.current_database()
		LEFT JOIN pg_catalog.pg_roles me ON me.rolname = current_user
		LEFT JOIN pg_catalog.pg_roles o ON o.oid = coalesce(d.datdba, x.role)
			AND (o.rolsuper OR o.oid = me.oid OR NOT me.rolsuper AND pg_catalog.pg_has_role(me.oid, o.oid, 'MEMBER'))
		WHERE n.nspname = $1`), schema).Scan(&found, &others)

	if err == nil && len(others) > 0 {
		err = fmt.Errorf("%w: %q", ErrOwner, others)
	}
	return found, err
}

// execScript runs statements without parameters, in which "cardvault" stands for the schema.
func execScript(ctx context.Context, tx pgx.Tx, schema, script string) error {
	_, err := tx.Conn().PgConn().Exec(ctx, in(schema, script)).ReadAll()
	return err
}

// schemaVersion returns the version of the schema, 0 if it does not exist.
func schemaVersion(ctx context.Context, q interface {
	QueryRow(context.Context, string, ...any) pgx.Row
}, schema string) (version int, err error) {
	var found bool
	// Unlike to_regclass, this sees what another session has just made.
	err = q.QueryRow(ctx, builtIn(`SELECT EXISTS (SELECT FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
		WHERE n.nspname = $1 AND c.relname = 'migrations')`), schema).Scan(&found)
	if err != nil || !found {
		return 0, err
	}
	err = q.QueryRow(ctx, in(schema, `SELECT coalesce(pg_catalog.max(version), 0) FROM "cardvault".migrations`)).Scan(&version)
	return version, err
}
