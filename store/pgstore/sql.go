package pgstore

import (
	"errors"
	"strings"

	"github.com/jackc/pgx/v5"
)

// checkName refuses names of a schema that PostgreSQL would cut off, or that would end
// the text of a function.
func checkName(schema string) error {
	if len(schema) > 63 || strings.ContainsRune(schema, 0) || strings.Contains(schema, "$$") {
		return errors.New("pgstore: the name of a schema has at most 63 bytes, no NUL and no $$")
	}
	return nil
}

// builtIn returns a statement whose operators belong to pg_catalog. The sessions of the
// caller's pool may have any search path, so a statement names the schema of each function
// too.
func builtIn(sql string) string { return operators.Replace(sql) }

var operators = func() *strings.Replacer {
	var pairs []string
	for _, o := range []string{"=", "<>", "<", "<=", ">", "-", "||", "<<", "|", "&"} {
		pairs = append(pairs, " "+o+" ", " OPERATOR(pg_catalog."+o+") ")
	}
	return strings.NewReplacer(pairs...)
}()

// in returns a statement with the name of the schema.
func in(schema, sql string) string { return strings.ReplaceAll(sql, `"cardvault"`, quoted(schema)) }

func quoted(schema string) string { return pgx.Identifier{schema}.Sanitize() }
