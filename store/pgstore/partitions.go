package pgstore

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
)

// mostPartitions bounds Options.Partitions.
const mostPartitions = 64

// ErrPartitions is returned by Migrate for a schema that exists with another number of
// partitions than Options.Partitions. Nothing was changed. Stop the vault, migrate a new
// schema with that number and copy the rows: docs/postgresql.md has the statements.
var ErrPartitions = errors.New("pgstore: the schema has another number of partitions: copy its rows to a new schema, see docs/postgresql.md")

//go:embed partitioned.sql
var partitioned string

var (
	madeIndex    = regexp.MustCompile(`(?m)^CREATE INDEX .*;$`)
	madeFunction = regexp.MustCompile(`(?ms)^CREATE FUNCTION "cardvault"\.(\w+)\(.*?^(?:END )?\$\$;$`)
)

// checkPartitions refuses numbers of partitions.
func checkPartitions(n int) error {
	if n < 0 || n > mostPartitions || n&(n-1) != 0 {
		return fmt.Errorf("pgstore: Options.Partitions is a power of two up to %d", mostPartitions)
	}
	return nil
}

// partition divides the tables of a new schema, which are empty, into n.
func partition(ctx context.Context, tx pgx.Tx, schema string, n int) error {
	var made, script strings.Builder
	for v := 1; v <= newest; v++ {
		text, err := fs.ReadFile(Migrations, strconv.Itoa(v)+".sql")
		if err != nil {
			return err
		}
		made.Write(text)
	}

	// Functions of a partition replace those of the whole, except children, which also
	// answers for all accounts. The last three are in partitioned.sql again.
	var functions []string
	for _, m := range madeFunction.FindAllStringSubmatch(made.String(), -1) {
		name := `"cardvault".` + m[1]
		if ofPartition.MatchString(name) {
			functions = append(functions, m[0])
		}
		switch m[1] {
		case "children":
		case "add", "apply", "replace":
			script.WriteString("DROP FUNCTION " + name + ";\n")
		default:
			if ofPartition.MatchString(name) {
				script.WriteString("DROP FUNCTION " + name + ";\n")
			}
		}
	}

	script.WriteString(partitioned)
	for _, index := range madeIndex.FindAllString(made.String(), -1) {
		script.WriteString(index + "\n")
	}
	script.WriteString(tallyOf(n))
	for part := range n {
		script.WriteString(tablesOf(part, n))
		for _, text := range functions {
			script.WriteString(inPartition(text, part) + "\n")
		}
	}
	return execScript(ctx, tx, schema, script.String())
}

// tablesOf returns what makes the tables of a partition.
func tablesOf(part, of int) string {
	return fmt.Sprintf(`
CREATE TABLE "cardvault".records_%[1]d PARTITION OF "cardvault".records (PRIMARY KEY (kind, id)) FOR VALUES WITH (MODULUS %[2]d, REMAINDER %[1]d);
CREATE TABLE "cardvault".lookups_%[1]d PARTITION OF "cardvault".lookups (PRIMARY KEY (kind, hash, id)) FOR VALUES WITH (MODULUS %[2]d, REMAINDER %[1]d);
CREATE TABLE "cardvault".counts_%[1]d PARTITION OF "cardvault".counts (part DEFAULT %[1]d) FOR VALUES IN (%[1]d);
`, part, of)
}

// tallyOf returns the function by which apply and add count, in each partition of which
// there are lists. Lists of other partitions have no scope there.
func tallyOf(n int) string {
	var calls strings.Builder
	for part := range n {
		fmt.Fprintf(&calls, `	IF %[1]d = ANY (list_part) THEN
		large := large || "cardvault".tally_%[1]d(list_kind, list_child,
			ARRAY(SELECT CASE WHEN l.p = %[1]d THEN l.s END FROM unnest(list_part, list_scope) WITH ORDINALITY AS l(p, s, i) ORDER BY l.i),
			list_least, entry_list, entry_id, entry_class, entry_n);
	END IF;
`, part)
	}

	return `
CREATE FUNCTION "cardvault".tally(
	list_part smallint[], list_kind smallint[], list_child boolean[], list_scope uuid[], list_least uuid[],
	entry_list integer[], entry_id uuid[], entry_class smallint[], entry_n integer[]
) RETURNS integer[]
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	large integer[];
BEGIN
` + calls.String() + `	RETURN large;
END $$;
`
}

// partitionsOf returns how many partitions a schema has: 0 if its tables are whole.
func partitionsOf(ctx context.Context, q interface {
	QueryRow(context.Context, string, ...any) pgx.Row
}, schema string) (n int, err error) {
	err = q.QueryRow(ctx, builtIn(`SELECT pg_catalog.count(*) FROM pg_catalog.pg_inherits i
		JOIN pg_catalog.pg_class c ON c.oid = i.inhparent JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
		WHERE n.nspname = $1 AND c.relname = 'records' AND c.relkind = 'p'`), schema).Scan(&n)
	return n, err
}
