package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"
)

// seeded returns the repository of testdata.
func seeded(t *testing.T) house {
	t.Helper()
	seed, err := txtar.ParseFile("testdata/seed.txtar")
	if err != nil {
		t.Fatal(err)
	}

	dir := t.TempDir()
	repeated := regexp.MustCompile(`(?m)^\t*// (\d+) lines\n`)
	for _, f := range seed.Files {
		text := repeated.ReplaceAllFunc(f.Data, func(line []byte) []byte {
			n, _ := strconv.Atoi(string(repeated.FindSubmatch(line)[1]))
			return bytes.Repeat([]byte("//\n"), n)
		})
		name := filepath.Join(dir, filepath.FromSlash(f.Name))
		if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}

	h, err := open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func TestMeasures(t *testing.T) {
	h := seeded(t)
	for _, test := range []struct {
		of     measure
		where  string
		figure float64
		names  []string
	}{
		{walls, root, 37.5, []string{
			"longs_plan9.go:3 elsewhere, 32 lines",
			"longs.go:25 quoted, 25 lines",
			"longs.go:75 wall, 22 lines",
		}},
		{walls, "nested", 0, nil},
		{counted, everywhere, 25, nil},
		{p99, everywhere, 101, []string{"longs.go:251 highest, 101 lines"}},
		{p99, "nested", 1, []string{"nested/a.go:5 a.one, 1 lines"}},
		{longest, root, 101, []string{"longs.go:251 highest, 101 lines"}},
		{over75, root, 3, []string{"longs.go:251 highest, 101 lines", "longs.go:353 hundred, 100 lines", "longs.go:98 high, 76 lines"}},
		{over100, everywhere, 1, []string{"longs.go:251 highest, 101 lines"}},
		{lines, "nested", 16, []string{"nested/a.go, 5 lines", "nested/b.go, 5 lines", "nested/c.go, 3 lines", "nested/d.go, 3 lines"}},
		{hidden, everywhere, 7, []string{
			"vault.go:31: io hides package io",
			"vault.go:32: text hides package strings",
			"vault.go:36: wall hides longs.go:75",
			"vault.go:37: kind hides vault.go:49",
			"vault.go:38: short hides longs.go:3",
			"vault.go:41: near hides vault.go:22",
			"vault.go:45: core hides vault.go:17",
		}},
		{methods, root, 6, []string{
			"seed.Vault, 1 methods",
			"seed.core, 1 methods",
			"seed/ledger.Ledger, 2 methods",
			"seed/ledger.Keys, 1 methods",
			"seed.near, 1 methods",
		}},
		{circle, root, 0, nil},
		{circle, "nested", 3, []string{"nested/a.go", "nested/b.go", "nested/c.go"}},
		{circle, everywhere, 3, []string{"nested/a.go", "nested/b.go", "nested/c.go"}},
		{calques, "words", 12, []string{
			"words/words.go:1: what is",
			"words/words.go:2: tell",
			"words/words.go:13: nobody",
			"words/words.go:13: what it",
			"words/words.go:13: one that",
			"words/words.go:13: was of a",
		}},
		{sentences, "words", 11.8, []string{"words/words.go:11: 26 words"}},
		{calques, "README.md", 6, []string{"README.md:1: Of a", "README.md:3: All but", "README.md:9: whoever"}},
		{calques, "docs", 2, []string{"docs/deep/page.md:1: Somebody"}},
		{calques, allTests, 0, nil},
		{listings, root, 2, []string{"work.go:3 names 4", "work.go:9 names 3"}},
	} {
		figure, names := test.of.take(h, test.where)
		if figure != test.figure || !slices.Equal(names, test.names) {
			t.Errorf("%s, %s: %v, want %v\n%s", test.of.name, label(test.where), figure, test.figure, strings.Join(names, "\n"))
		}
	}
}

func TestLimits(t *testing.T) {
	h := seeded(t)
	for _, test := range []struct {
		limit limit
		holds bool
		out   string
	}{
		{limit{circle, "nested", 3, 1}, true, ""},
		{limit{circle, "nested", 2, 1}, false, "FAIL: files in the largest circle, nested: 3, the limit is 2\n\tnested/a.go\n\tnested/b.go\n\tnested/c.go\n"},
		{limit{circle, "nested", 4, 1}, true, "lower the limit: files in the largest circle, nested: 3, the limit is 4\n"},
		{limit{circle, "nested", 4, 4}, true, ""},
		{limit{circle, "gone", 4, 1}, false, "FAIL: files in the largest circle, gone: there is no such package\n"},
	} {
		var out strings.Builder
		if holds := h.check(&out, []limit{test.limit}, false); holds != test.holds || out.String() != test.out {
			t.Errorf("a limit of %v: %v\n%s", test.limit.atMost, holds, out.String())
		}
	}
}

// TestBroken: a package that does not compile is not passed over.
func TestBroken(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"go.mod": "module broken\n", "a.go": "package broken\n\nvar a = b\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := open(dir); err == nil {
		t.Error("no error")
	}
}
