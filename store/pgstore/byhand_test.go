//go:build unix

package pgstore_test

import (
	"io/fs"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/cardvault/cardvault/store/pgstore"
)

// TestMigrationsByHand runs the statements in the comment of Migrations, and the files.
func TestMigrationsByHand(t *testing.T) {
	source, err := os.ReadFile("migrate.go")
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(source), "// Migrations holds one file")
	text, _, _ = strings.Cut(text, "\nvar Migrations")
	statements := ""
	for _, line := range regexp.MustCompile(`(?m)^//\t(.*)$`).FindAllStringSubmatch(text, -1) {
		statements += line[1] + "\n"
	}
	names, err := fs.Glob(pgstore.Migrations, "*.sql")
	if err != nil || len(names) == 0 || statements == "" {
		t.Fatalf("%q, files %v, %v", statements, names, err)
	}

	server := postgres.Get(t)
	server.SQL(t, "postgres", "CREATE DATABASE byhand")
	p := pool(t, server.URL("byhand"))
	err = pgx.BeginFunc(t.Context(), p, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), statements); err != nil {
			return err
		}
		for _, name := range names {
			file, err := fs.ReadFile(pgstore.Migrations, name)
			if err != nil {
				return err
			}
			if _, err := tx.Exec(t.Context(), string(file)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}

	s := open(t, p, "cardvault")
	if err := put(s, record(1)); err != nil {
		t.Error(err)
	}
	if !has(t, s, 1) {
		t.Error("a stored record is missing")
	}
}
