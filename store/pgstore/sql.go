package pgstore

import (
	"errors"
	"regexp"
	"strconv"
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

// ofPartition matches the objects of which each partition has its own.
var ofPartition = regexp.MustCompile(`"cardvault"\.(records|lookups|counts|arrange|block_of|blocks|children|cut|fold|list|list_hash|rank|tally|walk)\b`)

// whole is the partition number in statements for all partitions.
const whole = -1

// inPartition returns a statement with the objects of one partition: its tables, and the
// functions that name them. So the server spends no time on the choice.
func inPartition(sql string, part int) string {
	if part == whole {
		return sql
	}
	return ofPartition.ReplaceAllString(sql, `"cardvault".${1}_`+strconv.Itoa(part))
}
