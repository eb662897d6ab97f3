//go:build unix

package pgstore_test

import (
	"context"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/pgstore"
)

// sqlOf returns every string in the package's sources, and so all SQL that it sends.
func sqlOf(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	comments := regexp.MustCompile(`--.*`)
	if err := fs.WalkDir(pgstore.Migrations, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := fs.ReadFile(pgstore.Migrations, path)
		all.Write(comments.ReplaceAll(b, nil))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	divided, err := os.ReadFile("partitioned.sql")
	if err != nil {
		t.Fatal(err)
	}
	all.Write(comments.ReplaceAll(divided, nil))

	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
				text, err := strconv.Unquote(lit.Value)
				if err != nil {
					t.Fatal(err)
				}
				all.WriteString("\n" + text)
			}
			return true
		})
	}
	return all.String()
}

func found(pattern, in string) []string {
	names := map[string]bool{}
	for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(in, -1) {
		names[m[len(m)-1]] = true
	}
	return slices.Sorted(maps.Keys(names))
}

// traps returns statements that create traps in the schema public. There is a function for
// each function that some SQL may call, and an operator for each that it may use. They
// exist for all types that can occur there. Each trap warns when it is called.
func traps(t *testing.T, admin *pgxpool.Pool, sql string) (statements []string) {
	t.Helper()
	scalars := []string{"smallint", "integer", "bigint", "uuid", "bytea", "boolean", "text", "timestamptz", "numeric", "name", "oid"}
	types := slices.Clone(scalars)
	for _, s := range scalars {
		types = append(types, s+"[]")
	}
	function := func(name string, args []string, returns, warning string) {
		end := " RETURN NULL;"
		if returns == "void" || strings.HasPrefix(returns, "SETOF") {
			end = ""
		}
		statements = append(statements, fmt.Sprintf(`CREATE FUNCTION public.%s(%s) RETURNS %s LANGUAGE plpgsql AS 'BEGIN RAISE WARNING ''trap: %s'';%s END'`,
			pgx.Identifier{name}.Sanitize(), strings.Join(args, ", "), returns, strings.ReplaceAll(warning, "%", "%%"), end))
	}

	rows, err := admin.Query(t.Context(), `SELECT proname, pronargs::int, bool_or(proretset),
			coalesce(min(prorettype::regtype::text) FILTER (WHERE typtype <> 'p' OR typname = 'void'), ''),
			array_agg(oidvectortypes(proargtypes))
		FROM pg_proc JOIN pg_type y ON y.oid = prorettype
		WHERE pronamespace = 'pg_catalog'::regnamespace AND proname = ANY ($1) GROUP BY 1, 2 ORDER BY 1, 2`,
		found(`\b([a-z_0-9]+)\s*\(`, sql))
	if err != nil {
		t.Fatal(err)
	}
	var name, returned string
	var arguments int
	var set bool
	var signatures []string
	functions := 0
	if _, err := pgx.ForEachRow(rows, []any{&name, &arguments, &set, &returned, &signatures}, func() error {
		functions++
		var all [][]string
		switch arguments {
		case 1:
			for _, a := range types {
				all = append(all, []string{a})
			}
		case 2:
			for _, a := range types {
				for _, b := range types {
					all = append(all, []string{a, b})
				}
			}
		default:
			for _, s := range signatures {
				concrete := map[string]bool{}
				for _, of := range scalars { // of a polymorphic one
					concrete[strings.NewReplacer("anycompatiblearray", of+"[]", "anyarray", of+"[]", "anycompatible", of, "anyelement", of, `"any"`, of).Replace(s)] = true
				}
				for _, s := range slices.Sorted(maps.Keys(concrete)) {
					all = append(all, []string{s})
				}
			}
		}
		for _, args := range all {
			returns := returned
			if returns == "" { // polymorphic
				returns = "integer"
				if len(args) > 0 {
					first, _, _ := strings.Cut(args[0], ", ")
					returns = strings.TrimSuffix(first, "[]")
				}
			}
			if set {
				returns = "SETOF " + returns
			}
			function(name, args, returns, name)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}

	rows, err = admin.Query(t.Context(), `SELECT oprname, coalesce(bool_or(oprresult = 'bool'::regtype), false), bool_or(oprkind = 'l') FROM pg_operator
		WHERE oprnamespace = 'pg_catalog'::regnamespace AND oprname = ANY ($1) GROUP BY 1 ORDER BY 1`,
		found(`[^-+*/<>=~!@#%^&|?]([-+*/<>=~!@#%^&|?]{1,3})[^-+*/<>=~!@#%^&|?]`, sql))
	if err != nil {
		t.Fatal(err)
	}
	var boolean, prefix bool
	operators, prefixes := 0, 0
	if _, err := pgx.ForEachRow(rows, []any{&name, &boolean, &prefix}, func() error {
		operators++
		for _, left := range types {
			for _, right := range types {
				of, returns := fmt.Sprintf("operator %d", operators), left
				if boolean {
					returns = "boolean"
				}
				function(of, []string{left, right}, returns, name)
				statements = append(statements, fmt.Sprintf(`CREATE OPERATOR public.%s (LEFTARG = %s, RIGHTARG = %s, FUNCTION = public.%s)`,
					name, left, right, pgx.Identifier{of}.Sanitize()))
			}
		}
		if !prefix {
			return nil
		}
		prefixes++
		for _, right := range types {
			of := fmt.Sprintf("prefix operator %d", prefixes)
			function(of, []string{right}, right, name)
			statements = append(statements, fmt.Sprintf(`CREATE OPERATOR public.%s (RIGHTARG = %s, FUNCTION = public.%s)`, name, right, pgx.Identifier{of}.Sanitize()))
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d traps for %d functions and %d operators, %d of which may stand before their operand", len(statements), functions, operators, prefixes)
	if functions < 20 || operators < 6 || prefixes < 2 {
		t.Error("too few traps: the test proves nothing")
	}
	return statements
}

// Nothing that another role creates can replace an object that the package uses. It may be
// in public, or in the schema named after the vault's role. It may be in a schema of the
// search path before pg_catalog, or be a temporary table or type.
func TestSearchPath(t *testing.T) {
	server := postgres.Get(t)
	server.SQL(t, "postgres", "CREATE DATABASE trapped")
	server.SQL(t, "postgres", "CREATE ROLE trapped LOGIN; CREATE ROLE intern LOGIN; ALTER DATABASE trapped SET track_functions = 'all'")
	server.SQL(t, "trapped", "GRANT CREATE ON DATABASE trapped TO trapped, intern; GRANT CREATE ON SCHEMA public TO intern")
	as := func(role string) string { return strings.Replace(server.URL("trapped"), "cardvault@", role+"@", 1) }
	admin := pool(t, server.URL("trapped")+"&search_path=pg_catalog")
	sql := sqlOf(t)
	intern := pool(t, as("intern")+"&search_path=pg_catalog")
	for statements := range slices.Chunk(traps(t, admin, sql), 1000) {
		conn, err := intern.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		_, err = conn.Conn().PgConn().Exec(t.Context(), strings.Join(statements, ";")).ReadAll()
		conn.Release()
		if err != nil {
			t.Fatal(err)
		}
	}
	var temporary []string
	for _, name := range found(`\b(pg_[a-z_]+)`, sql) {
		var relation bool
		if err := admin.QueryRow(t.Context(), "SELECT to_regclass('pg_catalog.' || $1::text) IS NOT NULL", name).Scan(&relation); err != nil {
			t.Fatal(err)
		}
		if relation {
			temporary = append(temporary, "CREATE TEMPORARY TABLE "+name+" ()")
		}
	}
	if len(temporary) < 2 {
		t.Errorf("temporary tables: %q", temporary)
	}
	for _, name := range []string{"records", "lookups", "counts", "groups", "migrations"} {
		temporary = append(temporary, "CREATE TEMPORARY TABLE "+name+" ()")
	}
	for _, name := range []string{"uuid", "bytea", "text", "timestamptz"} {
		temporary = append(temporary, "CREATE DOMAIN pg_temp."+name+" AS pg_catalog.point")
	}

	for i, test := range []struct {
		name, before, path string
		partitions         int
	}{
		{"in public", "", "", 0},
		{"in the schema of the role", "ALTER SCHEMA public RENAME TO trapped; CREATE SCHEMA public", "", 0},
		{"before pg_catalog", "", "&search_path=pg_temp,trapped,pg_catalog", 0},
		{"before pg_catalog, in partitions", "", "&search_path=pg_temp,trapped,pg_catalog", 2},
	} {
		t.Run(test.name, func(t *testing.T) {
			if test.before != "" {
				server.SQL(t, "trapped", test.before)
			}
			config, err := pgxpool.ParseConfig(as("trapped") + test.path)
			if err != nil {
				t.Fatal(err)
			}
			config.MaxConns = 4
			var mu sync.Mutex
			warnings := map[string]int{}
			config.ConnConfig.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) {
				mu.Lock()
				defer mu.Unlock()
				warnings[n.Message]++
			}
			config.ConnConfig.OnPgError = func(_ *pgconn.PgConn, e *pgconn.PgError) bool {
				mu.Lock()
				defer mu.Unlock()
				switch e.Code {
				case "CV001", "55P03", "57014": // conflicts, and the timeouts of a slow machine
				default:
					warnings[e.Message]++
				}
				return true
			}
			config.AfterConnect = func(ctx context.Context, c *pgx.Conn) error {
				_, err := c.PgConn().Exec(ctx, strings.Join(temporary, ";")).ReadAll()
				return err
			}
			p, err := pgxpool.NewWithConfig(t.Context(), config)
			if err != nil {
				t.Fatal(err)
			}
			name := fmt.Sprint("trapped ", i)
			if err := pgstore.Migrate(t.Context(), p, &pgstore.Options{Schema: name, Partitions: test.partitions}); err != nil {
				t.Error(err)
			}
			exercise(t, admin, p, name)
			p.Close()
			var unset []string
			if err := admin.QueryRow(t.Context(), `SELECT coalesce(array_agg(proname::text ORDER BY proname), '{}') FROM pg_proc
				WHERE pronamespace = (SELECT oid FROM pg_namespace WHERE nspname = $1)
					AND NOT coalesce('search_path=pg_catalog, pg_temp' = ANY (proconfig), false)`, name).Scan(&unset); err != nil {
				t.Fatal(err)
			}
			inlined := []string{"below", "blocks", "has"}
			if test.partitions > 0 {
				inlined = []string{"below", "blocks_0", "blocks_1", "has"}
			}
			if !slices.Equal(unset, inlined) {
				t.Errorf("without a search path of their own: %q", unset)
			}
			mu.Lock()
			defer mu.Unlock()
			for message, n := range warnings {
				t.Errorf("%d times: %s", n, message)
			}
			var missed []string // by name: the add of version 2 is for programs of before
			for deadline := time.Now().Add(time.Minute); ; <-time.After(10 * time.Millisecond) {
				rows, err := admin.Query(t.Context(), `SELECT proname FROM pg_proc p WHERE pronamespace = (SELECT oid FROM pg_namespace WHERE nspname = $1)
					AND NOT proname = ANY ($2) AND (proname !~ '_[01]$' OR proname LIKE '%' || $3) AND NOT EXISTS (SELECT FROM pg_stat_user_functions f WHERE f.schemaname = $1 AND f.funcname = p.proname)`, name, inlined, suffix(t, admin, name))
				if err != nil {
					t.Fatal(err)
				}
				if missed, err = pgx.CollectRows(rows, pgx.RowTo[string]); err != nil {
					t.Fatal(err)
				}
				if len(missed) == 0 {
					return
				}
				if time.Now().After(deadline) {
					t.Fatalf("not called: %q", missed)
				}
			}
		})
	}
}

// suffix returns what the names of the objects end with that are for the account's partition.
func suffix(t *testing.T, admin *pgxpool.Pool, name string) (end string) {
	t.Helper()
	if err := admin.QueryRow(t.Context(), `SELECT substr(c.relname, length('records') + 1) FROM `+pgx.Identifier{name, "records"}.Sanitize()+` r
		JOIN pg_class c ON c.oid = r.tableoid WHERE r.account = $1 LIMIT 1`, account).Scan(&end); err != nil {
		t.Fatal(err)
	}
	return end
}

// within returns a transaction in the account, if the store keeps accounts apart.
func within(tx store.ReadTx) store.ReadTx {
	if d, ok := tx.(store.Divided); ok {
		return d.In(account)
	}
	return tx
}

// exercise calls everything that a Store can do.
func exercise(t *testing.T, admin, p *pgxpool.Pool, name string) {
	t.Helper()
	s, err := pgstore.New(t.Context(), p, &pgstore.Options{Schema: name})
	if err != nil {
		t.Error(err)
		return
	}
	defer s.Close()
	fill(t, admin, name, 70_000, map[int]uint8{40_000: 9})
	rare := &store.Query{Kind: kind, Account: account, Limit: 2, Count: true, Live: time.Now()}
	rare.Classes.Add(9)
	queries := []*store.Query{
		rare,
		{Kind: kind, Account: account, Count: true},
		{Kind: kind, Account: account, Limit: 3, Offset: 30_000, Count: true, Min: id(5), Live: time.Now()},
		{Kind: kind, Account: account, Limit: 3, Desc: true},
		{Kind: kind, Account: account, Limit: 3, Count: true, Lookup: []byte("hash"), Live: time.Now()},
		{Kind: kind, Parent: id(1), Limit: 3, Count: true},
	}
	read := func(tx store.ReadTx) error {
		_, _ = tx.Get(kind, id(1))
		for _, q := range queries {
			if _, err := tx.List(q); err != nil {
				return err
			}
		}
		if _, err := tx.Lookup(kind, []byte("hash"), 2); err != nil {
			return err
		}
		if _, err := tx.Next(kind, store.AllShards); err != nil {
			return err
		}
		if _, err := tx.Scan(kind, id(3), 2); err != nil {
			return err
		}
		if _, err := tx.Children(id(1), 2); err != nil {
			return err
		}
		in := within(tx)
		if _, err := in.Children(id(1), 2); err != nil {
			return err
		}
		if _, err := in.Lookup(kind, []byte("hash"), 2); err != nil {
			return err
		}
		_, err := tx.Empty()
		return err
	}
	view := func() {
		t.Helper()
		for _, q := range queries { // each as a statement of its own
			list(t, s, q)
		}
		if err := s.View(t.Context(), read); err != nil {
			t.Error(err)
		}
		if err := s.View(t.Context(), func(tx store.ReadTx) error { _, err := tx.Due(kind, store.AllShards, time.Now(), 2); return err }); err != nil {
			t.Error(err)
		}
	}
	view()
	arranged(t, admin, name, 70_000/128-1)
	view()
	between := func(n int) *store.Record { // in a closed block
		r := record(n)
		r.ID[15] = 2
		r.Lookup = [][]byte{[]byte("hash")}
		r.Due = time.Now()
		return r
	}
	for n := range 300 {
		if err := put(s, between(n)); err != nil {
			t.Fatal(err)
		}
	}
	due := func(tx store.Tx) error {
		found, err := tx.Due(kind, store.AllShards, time.Now(), 5)
		for _, r := range found {
			r.Version++
			r.Due, r.Class, r.Lookup = time.Time{}, 3, nil
			tx.Put(r)
		}
		return err
	}
	second := between(20)
	second.Version = 2
	named := between(301)
	for _, fn := range []func(store.Tx) error{
		due,
		func(tx store.Tx) error { tx.Put(child(-1, 1)); tx.Put(child(-2, 1)); return read(tx) },
		func(tx store.Tx) error { tx.Put(second); return nil },
		func(tx store.Tx) error { within(tx).(store.Tx).Put(named); return nil },
		func(tx store.Tx) error { tx.Delete(kind, id(1)); tx.Delete(kind+1, id(-1)); return nil },
	} {
		if err := s.Update(t.Context(), fn); err != nil {
			t.Error(err)
		}
	}
	view()
	// Functions that a Store calls only when an answer is lost or another session has the
	// lock, and functions that are inlined.
	schema := pgx.Identifier{name}.Sanitize()
	for _, sql := range []string{
		`SELECT ` + schema + `.settle($1, 1)`,
		`SELECT ` + schema + `.lock(true, '{1,2}', '{true,false}') WHERE $1::pg_catalog.uuid IS NOT NULL`,
		`SELECT b.n FROM ` + schema + `.blocks` + suffix(t, admin, name) + `(7::smallint, false, $1, 1::smallint, $1, $1, '{1}') AS b`,
		`SELECT ` + schema + `.has(r.lookup, r.shown) FROM ` + schema + `.records r WHERE r.id OPERATOR(pg_catalog.<>) $1 LIMIT 1`,
		`SELECT ` + schema + `.below($1, ARRAY[$1, r.id]) FROM ` + schema + `.records r LIMIT 1`,
	} {
		if _, err := p.Exec(t.Context(), sql, uuid.New()); err != nil {
			t.Error(err)
		}
	}
}
