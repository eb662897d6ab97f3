//go:build unix

package pgstore

import (
	"context"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cardvault/cardvault/internal/realtest"
	"github.com/cardvault/cardvault/store"
)

// openDivided returns a pool of connections to a new server and a store with 16 partitions on it.
func openDivided(t *testing.T) (*pgxpool.Pool, *Store) {
	t.Helper()
	p, err := pgxpool.New(t.Context(), realtest.PostgreSQL(t, nil).URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	if err := Migrate(t.Context(), p, &Options{Partitions: 16}); err != nil {
		t.Fatal(err)
	}
	s, err := New(t.Context(), p, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return p, s
}

// touched runs do in a transaction, and returns the tables that it has scanned.
func touched(t *testing.T, p *pgxpool.Pool, do func(tx pgx.Tx)) (tables []string) {
	t.Helper()
	scans := func(tx pgx.Tx) map[string]int64 {
		rows, err := tx.Query(t.Context(), `SELECT relname, coalesce(seq_scan, 0) + coalesce(idx_scan, 0) FROM pg_stat_xact_user_tables`)
		if err != nil {
			t.Fatal(err)
		}
		n := map[string]int64{}
		var table string
		var scans int64
		if _, err := pgx.ForEachRow(rows, []any{&table, &scans}, func() error { n[table] = scans; return nil }); err != nil {
			t.Fatal(err)
		}
		return n
	}

	tx, err := p.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	before := scans(tx)
	do(tx)
	for table, n := range scans(tx) {
		if n > before[table] && regexp.MustCompile(`^(records|lookups|counts)`).MatchString(table) {
			tables = append(tables, table)
		}
	}
	slices.Sort(tables)
	return tables
}

func answered(t *testing.T, q *question) func(tx pgx.Tx) {
	return func(tx pgx.Tx) {
		t.Helper()
		if _, err := ask(t.Context(), tx.Conn(), q); err != nil {
			t.Errorf("%s: %v", q.sql, err)
		}
	}
}

// Each statement for an account looks at one partition, and a statement for all at each of
// them, with an index.
func TestOnePartition(t *testing.T) {
	p, s := openDivided(t)
	pg := s.server
	hash := []byte("hash")
	at := time.Now()
	var accounts []uuid.UUID
	for n := range 64 {
		account := uuid.UUID{0: byte(n + 1)}
		accounts = append(accounts, account)
		if err := s.Update(t.Context(), func(tx store.Tx) error {
			for i := range 40 {
				r := &store.Record{Kind: 5, ID: uuid.UUID{byte(i + 1), byte(n)}, Account: account, Class: 1, Version: 1, Due: at, Lookup: [][]byte{hash}}
				if i > 20 {
					r.Parent = uuid.UUID{1, byte(n)}
				}
				tx.(store.Divided).In(account).(store.Tx).Put(r)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := p.Exec(t.Context(), `ANALYZE cardvault.records; ANALYZE cardvault.lookups`); err != nil {
		t.Fatal(err)
	}

	account := accounts[7]
	part := fmt.Sprint("_", partitionOf(account, 16))
	id := uuid.UUID{3, 7}
	one := &store.Query{Kind: 5, Account: account, Limit: 5, Offset: 2, Count: true, Live: at}
	byHash := &store.Query{Kind: 5, Account: account, Limit: 5, Lookup: hash}
	below := &store.Query{Kind: 5, Account: account, Parent: uuid.UUID{1, 7}, Limit: 5, Count: true}
	rows := (&session{server: pg}).ofRows([]key{{5, id, account}, {5, uuid.UUID{4, 7}, account}})
	for name, do := range map[string]func(tx pgx.Tx){
		"get":         answered(t, pg.at(account).ofGet(5, id)),
		"get none":    answered(t, pg.at(account).ofGet(5, uuid.UUID{99})),
		"lookup":      answered(t, pg.at(account).ofLookupIn(account, 5, hash, 3)),
		"list":        answered(t, listing(pg, one)),
		"list hash":   answered(t, listing(pg, byHash)),
		"list parent": answered(t, listing(pg, below)),
		"children":    answered(t, pg.at(account).ofChildrenIn(account, uuid.UUID{1, 7}, 4)),
		"rows":        answered(t, rows[0]),
		"add":         written(t, s, account, func(_ *row, put func(*row)) { put(fresh(account, 1)) }),
		"insert":      written(t, s, account, func(_ *row, put func(*row)) { put(fresh(account, 2)); put(fresh(account, 3)) }),
		"update": written(t, s, account, func(known *row, put func(*row)) {
			next := *known
			next.version, next.class, next.lookup = 2, 3, []byte{1, 'x'}
			put(&next)
		}),
		"delete": written(t, s, account, func(known *row, put func(*row)) { put(nil) }),
	} {
		tables := touched(t, p, do)
		for _, table := range tables {
			if !regexp.MustCompile(part + `$`).MatchString(table) {
				t.Errorf("%s looks at %s, not only at %s", name, tables, part)
				break
			}
		}
		if len(tables) == 0 {
			t.Errorf("%s looks at nothing", name)
		}
	}

	// The tables are so small that the planner would not use an index.
	config := p.Config()
	config.ConnConfig.RuntimeParams["enable_seqscan"] = "off"
	indexed, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer indexed.Close()
	for name, q := range map[string]*question{
		"get":      pg.sql.ofGet(5, id),
		"lookup":   pg.sql.ofLookup(5, hash, 3),
		"children": pg.sql.ofChildren(uuid.UUID{1, 7}, 4),
		"scan":     pg.sql.ofScan(5, id, 3),
		"due":      pg.sql.ofDue(5, store.AllShards, at, 3, false),
		"claim":    pg.sql.ofDue(5, store.AllShards, at, 3, true),
		"shard":    pg.sql.ofDue(5, 1, at, 3, false),
		"next":     pg.sql.ofNext(5, store.AllShards),
	} {
		if plan := explain(t, indexed, q); name != "children" && name != "lookup" && (strings.Contains(plan, "Seq Scan") || strings.Count(plan, "Index") < 16) {
			t.Errorf("%s is planned as\n%s", name, plan)
		}
		if tables := touched(t, p, answered(t, q)); len(tables) == 0 || len(tables) > 32 {
			t.Errorf("%s looks at %s", name, tables)
		}
	}
}

func fresh(account uuid.UUID, n byte) *row {
	return &row{kind: 5, id: uuid.UUID{200, n}, account: account, class: 1, version: 1, lookup: []byte{1, 'y'}, shown: []byte{}, secret: []byte{}}
}

// written makes the writes of a group that has read a row of an account. put replaces that
// row, or deletes it; a row with another id is added.
func written(t *testing.T, s *Store, account uuid.UUID, change func(known *row, put func(*row))) func(tx pgx.Tx) {
	return func(tx pgx.Tx) {
		t.Helper()
		pg := s.server
		id := uuid.UUID{3, 7}
		a, err := ask(t.Context(), tx.Conn(), pg.at(account).ofGet(5, id))
		if err != nil || len(a.rows) != 1 {
			t.Fatal(err)
		}

		g := newGroup(pg, locker{}, s.memory)
		g.learn(a.rows)
		at := g.keyOf(a.rows[0])
		g.relied[at] = struct{}{}
		change(a.rows[0], func(r *row) {
			if r == nil {
				g.overlay[at] = nil
				return
			}
			g.overlay[g.keyOf(r)] = r
		})

		w := g.writes()
		sql, args := pg.sql.apply, []any(nil)
		if single := w.addArgs(g, uuid.New(), 1, 1, []int64{1}, []bool{false}); single != nil {
			sql, args = pg.sql.add, single.args(true)
		} else {
			all := w.applyArgs(g, uuid.New(), 1, 1)
			all.patient, all.keys, all.exclusive = true, []int64{1}, []bool{false}
			args = all.args(true)
		}
		if _, err := tx.Exec(t.Context(), sql, args...); err != nil {
			t.Error(err)
		}
	}
}

// The partition of an account is that of the server, for every number of partitions.
func TestPartitionOf(t *testing.T) {
	p, _ := openDivided(t)
	for n := 2; n <= mostPartitions; n *= 2 {
		for i := range 200 {
			account := uuid.New()
			if i == 0 {
				account = uuid.Nil
			}
			part := partitionOf(account, n)
			var in bool
			if err := p.QueryRow(t.Context(), `SELECT satisfies_hash_partition('cardvault.records'::regclass, $1, $2, $3::uuid)`,
				n, part, pgUUID(account)).Scan(&in); err != nil || !in {
				t.Fatalf("%v is not in partition %d of %d: %v", account, part, n, err)
			}
		}
	}
}

func listing(s *server, q *store.Query) *question {
	return s.at(q.Account).ofList(q, s.listOf(q.Kind, q.Account, q.Parent))
}

// A statement for all accounts reads a few rows of each partition, however many there are
// and whatever the planner knows of the tables.
func TestAllPartitionsAreWalked(t *testing.T) {
	p, s := openDivided(t)
	pg := s.server
	const many = 20_000
	const analyze = `ANALYZE cardvault.records; ANALYZE cardvault.lookups`
	at := time.UnixMicro(1e15)
	for part := range 16 {
		for _, table := range []string{"records", "lookups"} {
			if _, err := p.Exec(t.Context(), fmt.Sprintf(`ALTER TABLE cardvault.%s_%d SET (autovacuum_enabled = off)`, table, part)); err != nil {
				t.Fatal(err)
			}
		}
	}
	// The planner has seen no two records with a hash, a parent or a time in common.
	fill := func(kind, from, to int, parent, hash, due string) {
		t.Helper()
		if _, err := p.Exec(t.Context(), fmt.Sprintf(`
			INSERT INTO cardvault.records (version, stamp, due, kind, class, child, id, account, scope, lookup, shown, secret)
				SELECT 1, 0, %[6]s, %[1]d, 1, true, lpad(to_hex(n), 32, '0')::uuid, lpad(to_hex(1 + n %% 50), 32, '0')::uuid,
					%[4]s, '\x04'::bytea || (%[5]s)::bytea, '', '' FROM generate_series(%[2]d, %[3]d) AS n;
			INSERT INTO cardvault.lookups (kind, hash, id, account) SELECT kind, substr(lookup, 2), id, account FROM cardvault.records
				WHERE kind = %[1]d`, kind, from, to, parent, hash, due), pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Fatal(err)
		}
	}
	fill(6, 1, many, `gen_random_uuid()`, `lpad(to_hex(n), 4, '0')`, `to_timestamp(1e9 + n)`)
	if _, err := p.Exec(t.Context(), analyze, pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatal(err)
	}
	fill(5, 1, many, `lpad('7', 32, '0')::uuid`, `'hash'`, `to_timestamp(1e9)`)

	var parent, id uuid.UUID
	parent[15], id[14] = 7, 9
	for _, knows := range []string{"", analyze} {
		if _, err := p.Exec(t.Context(), knows, pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Fatal(err)
		}
		for name, q := range map[string]*question{
			"get":            pg.sql.ofGet(5, id),
			"lookup":         pg.sql.ofLookup(5, []byte("hash"), 3),
			"children":       pg.sql.ofChildren(parent, 3),
			"scan":           pg.sql.ofScan(5, id, 3),
			"due":            pg.sql.ofDue(5, store.AllShards, at, 3, false),
			"claim":          pg.sql.ofDue(5, store.AllShards, at, 3, true),
			"due of a shard": pg.sql.ofDue(5, 1, at, 3, false),
			"claim of one":   pg.sql.ofDue(5, 1, at, 3, true),
			"next":           pg.sql.ofNext(5, store.AllShards),
			"next of one":    pg.sql.ofNext(5, 1),
			"empty":          pg.sql.ofEmpty(),
		} {
			tx, err := p.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			read := func() (n int) {
				if err := tx.QueryRow(t.Context(), `SELECT sum(coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0)) FROM pg_stat_xact_user_tables`).Scan(&n); err != nil {
					t.Fatal(err)
				}
				return n
			}
			before := read()
			answered(t, q)(tx)
			if n := read() - before; n > 20*16 {
				t.Errorf("%s reads %d rows of %d after %q", name, n, many, knows)
			}
			if err := tx.Rollback(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// A later migration reaches the tables and functions of every partition, in a schema that
// has them and in a new one alike.
func TestLaterMigration(t *testing.T) {
	p, err := pgxpool.New(t.Context(), realtest.PostgreSQL(t, nil).URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	files := fstest.MapFS{"3.sql": {Data: []byte(`-- Version 3.
ALTER TABLE "cardvault".records ADD note text /*divided , ADD of_partition boolean */;
CREATE INDEX records_note ON "cardvault".records (note);
CREATE TABLE "cardvault".others (id uuid PRIMARY KEY);
CREATE OR REPLACE FUNCTION "cardvault".block_of(of_kind smallint, of_child boolean, of_scope uuid, of_level smallint, of_id uuid) RETURNS uuid
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$ BEGIN RETURN (SELECT c.first FROM "cardvault".counts c LIMIT 1); END $$;
CREATE OR REPLACE FUNCTION "cardvault".has(lookup bytea, hash bytea) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$ SELECT true $$;
`)}}
	for v := 1; v <= 2; v++ {
		name := strconv.Itoa(v) + ".sql"
		data, err := fs.ReadFile(Migrations, name)
		if err != nil {
			t.Fatal(err)
		}
		files[name] = &fstest.MapFile{Data: data}
	}

	shape := func(name string, versions ...int) []string {
		t.Helper()
		for _, v := range versions {
			if err := pgx.BeginFunc(t.Context(), p, func(tx pgx.Tx) error {
				return migrate(t.Context(), tx, name, 4, files, v)
			}); err != nil {
				t.Fatal(err)
			}
		}
		rows, err := p.Query(t.Context(), `
			SELECT 'column '||c.relname||' '||a.attname||' '||a.attstorage::text FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
				WHERE c.relnamespace = to_regnamespace($1) AND c.relkind IN ('r', 'p')
			UNION ALL SELECT 'index '||replace(pg_get_indexdef(i.indexrelid), $1, '') FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid
				WHERE c.relnamespace = to_regnamespace($1)
			UNION ALL SELECT 'function '||replace(pg_get_functiondef(f.oid), $1, '') FROM pg_proc f WHERE f.pronamespace = to_regnamespace($1)
			ORDER BY 1`, name)
		if err != nil {
			t.Fatal(err)
		}
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		return lines
	}

	later, fresh := shape("later", 2, 3), shape("fresh", 3)
	for _, line := range later {
		if !slices.Contains(fresh, line) {
			t.Errorf("a new schema does not have: %s", line)
		}
	}
	for _, line := range fresh {
		if !slices.Contains(later, line) {
			t.Errorf("a migrated schema does not have: %s", line)
		}
	}
	all := strings.Join(fresh, "\n")
	for _, want := range []string{"column records_3 note x", "column records_3 of_partition p", "column records_3 shown e", "column others id",
		"ON .records_3 USING btree (note)", "FROM \".\".counts_3 c LIMIT 1", "AS $function$ SELECT true"} {
		if !strings.Contains(strings.ReplaceAll(all, `""`, `"."`), want) {
			t.Errorf("partitions have no %q", want)
		}
	}
	if strings.Contains(all, ".block_of(") {
		t.Error("a function of a partition is there for all too")
	}
}

// A migration that would leave partitions as they are is refused.
func TestMigrationOfWholeTables(t *testing.T) {
	for v := 1; v <= newest; v++ {
		if _, err := scriptOf(Migrations, v, 16); err != nil {
			t.Errorf("version %d: %v", v, err)
		}
	}
	for _, statement := range []string{
		`DO $$ BEGIN ALTER TABLE "cardvault".records ADD note text; END $$;`,
		`ALTER TABLE ONLY "cardvault".records ADD note text;`,
		`ALTER FUNCTION "cardvault".list(smallint) SET jit = off;`,
		`CREATE FUNCTION "cardvault".total(of_scope uuid) RETURNS bigint LANGUAGE sql AS $$ SELECT count(*) FROM "cardvault".records $$;`,
		`INSERT INTO "cardvault".counts SELECT * FROM "cardvault".others;`,
		`SELECT "cardvault".arrange(1);`,
		`CREATE TRIGGER t BEFORE INSERT ON "cardvault".records FOR EACH ROW EXECUTE FUNCTION "cardvault".f();`,
		`ALTER TABLE "cardvault".records ADD note text /*divide , ADD of_partition boolean */;`,
	} {
		if divided, err := divide("SET LOCAL jit = off;\n"+statement, 2); err == nil {
			t.Errorf("%s becomes %s", statement, divided)
		}
	}
}
