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
	ofDivided = regexp.MustCompile(`(?s)/\*divided\s(.*?)\*/`)
	ofWhole   = regexp.MustCompile(`(?s)/\*whole\*/.*?/\*end\*/`)

	// A statement may have a semicolon in a comment, a string or the body of a function.
	statement = regexp.MustCompile(`(?s)(?:--[^\n]*|/\*.*?\*/|'[^']*'|\$\$.*?\$\$|[^;])*?;`)
	comment   = regexp.MustCompile(`(?s)--[^\n]*|/\*.*?\*/`)
	object    = regexp.MustCompile(`^(CREATE TABLE|(?:CREATE(?: OR REPLACE)?|DROP) FUNCTION(?: IF EXISTS)?) "cardvault"\.(\w+)`)

	// These statements change the tables of all partitions.
	ofAll = regexp.MustCompile(`^(CREATE INDEX \w+ ON|DROP INDEX|ALTER TABLE|DELETE FROM|UPDATE) "cardvault"\.\w+`)

	// These functions are for all partitions and name what is divided.
	overAll = regexp.MustCompile(`^(apply|add|replace|found)$`)
)

// checkPartitions refuses numbers of partitions.
func checkPartitions(n int) error {
	if n < 0 || n > mostPartitions || n&(n-1) != 0 {
		return fmt.Errorf("pgstore: Options.Partitions is a power of two up to %d", mostPartitions)
	}
	return nil
}

// scriptOf returns what makes a version of the schema with n partitions, 0 for none.
func scriptOf(files fs.FS, version, n int) (string, error) {
	text, err := fs.ReadFile(files, strconv.Itoa(version)+".sql")
	if err != nil || n == 0 {
		return string(text), err
	}
	script, err := divide(string(text), n)
	if err != nil {
		return "", fmt.Errorf("version %d: %w", version, err)
	}
	if version == 1 {
		script += partitioned + tallyOf(n)
	}
	return script, nil
}

// divide returns a migration for a schema with n partitions. It refuses a statement about
// divided objects that it does not know, and would leave those of partitions as they are.
func divide(script string, n int) (string, error) {
	var divided strings.Builder
	for _, source := range statement.FindAllString(script, -1) {
		text := ofWhole.ReplaceAllString(ofDivided.ReplaceAllString(source, "$1"), "")
		bare := strings.TrimSpace(comment.ReplaceAllString(text, ""))
		made := object.FindStringSubmatch(bare)
		names := ofPartition.MatchString(bare)
		switch {
		case strings.Contains(text, "/*"): // most likely a word that is written otherwise
			return "", errors.New("a comment is neither of partitions nor of the whole")
		case made != nil && ofPartition.MatchString(`"cardvault".`+made[2]) && made[1] == "CREATE TABLE":
			divided.WriteString(text)
			for part := range n {
				divided.WriteString(tableOf(made[2], part, n))
			}
		case made != nil && ofPartition.MatchString(`"cardvault".`+made[2]):
			if made[2] == "children" { // which is also found for all accounts
				divided.WriteString(ofDivided.ReplaceAllString(source, ""))
			}
			for part := range n {
				divided.WriteString(inPartition(text, part))
			}
		case !names, ofAll.MatchString(bare), made != nil && overAll.MatchString(made[2]):
			divided.WriteString(text)
		default:
			first, _, _ := strings.Cut(bare, "\n")
			return "", fmt.Errorf("no rule says what partitions make of: %s", first)
		}
	}
	return divided.String(), nil
}

// tableOf returns what makes a table of a partition.
func tableOf(name string, part, of int) string {
	options := map[string]string{
		"records": `(PRIMARY KEY (kind, id)) FOR VALUES WITH (MODULUS %[3]d, REMAINDER %[2]d)`,
		"lookups": `(PRIMARY KEY (kind, hash, id)) FOR VALUES WITH (MODULUS %[3]d, REMAINDER %[2]d)`,
		"counts":  `(part DEFAULT %[2]d) FOR VALUES IN (%[2]d)`,
	}
	return fmt.Sprintf(`
CREATE TABLE "cardvault".%[1]s_%[2]d PARTITION OF "cardvault".%[1]s `+options[name]+";", name, part, of)
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
