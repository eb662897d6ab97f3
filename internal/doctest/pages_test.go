package doctest

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestErrorsPage: docs/errors.md lists every classifier with its status, every code of a
// violation or a network token, and every error of the vault.
func TestErrorsPage(t *testing.T) {
	page := read(t, "docs/errors.md")
	listed := 0
	for _, source := range []struct{ file, pattern, row string }{
		{"httpapi/errors.go", `status: (\d+), classifier: "(\w+)"`, "| $1 | `$2` |"},
		{"httpapi/errors.go", `cardvault\.(Err\w+), \w+}`, "`$1`"},
		{"invalid/invalid.go", ` Code = "(\w+)"`, "`$1`"},
		{"network/code.go", ` Code = "(\w+)"`, "`$1`"},
		{"errors.go", `(?m)^\t(Err\w+)\s+= `, "`$1`"},
		{"receive/receive.go", `(?m)^\t(Err\w+)\s+= `, "`$1`"},
	} {
		pattern := regexp.MustCompile(source.pattern)
		for _, found := range pattern.FindAllString(read(t, source.file), -1) {
			listed++
			if row := pattern.ReplaceAllString(found, source.row); !strings.Contains(page, row) {
				t.Errorf("docs/errors.md lacks %s of %s", row, source.file)
			}
		}
	}
	if listed < 150 {
		t.Errorf("only %d rows were looked for", listed)
	}
}

// TestLogPage: the log lines that docs/operating.md names are in the code.
func TestLogPage(t *testing.T) {
	all := tree(t)
	page := all["docs/operating.md"]
	_, table, _ := strings.Cut(page, "| Level | Message | Means |")
	table, _, _ = strings.Cut(table, "\n\n")
	lines := regexp.MustCompile("(?m)^\\| (?:error|warning|info) \\| `([^`]+)`").FindAllStringSubmatch(table, -1)
	if len(lines) < 15 {
		t.Errorf("only %d log lines in the table", len(lines))
	}

	for _, line := range lines {
		message, _, _ := strings.Cut(line[1], " …")
		found := false
		for file, text := range all {
			found = found || strings.HasSuffix(file, ".go") && !strings.HasSuffix(file, "_test.go") && strings.Contains(text, `"`+message)
		}
		if !found {
			t.Errorf("docs/operating.md names the line %q, which nothing logs", message)
		}
	}
}

// TestInstalled: every npm lock file has its packages installed before the tests.
func TestInstalled(t *testing.T) {
	loop := regexp.MustCompile(`\nfor dir in (.*); do\n(?:.*\n)*?\t*npm ci --prefix \$dir `).FindStringSubmatch(read(t, ".ci/deps"))
	if loop == nil {
		t.Fatal(".ci/deps installs no npm packages")
	}
	installed := strings.Fields(loop[1])

	err := filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "node_modules" || d.Name() == ".git"):
			return fs.SkipDir
		case d.Name() != "package-lock.json":
			return nil
		}
		dir, err := filepath.Rel(root, filepath.Dir(file))
		if dir = filepath.ToSlash(dir); err == nil && !slices.Contains(installed, dir) {
			t.Errorf(".ci/deps does not install the packages pinned by %s/package-lock.json", dir)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestMerged: no file has a line that marks a conflict of a merge.
func TestMerged(t *testing.T) {
	marks := regexp.MustCompile(`(?m)^(<{7}|\|{7}|={7}|>{7})( |\r?$)`)
	for file := range tree(t) {
		if strings.HasSuffix(file, "/") {
			continue
		}
		text, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			t.Fatal(err)
		}
		if at := marks.FindIndex(text); at != nil {
			t.Errorf("%s:%d marks a conflict", file, 1+bytes.Count(text[:at[0]], []byte("\n")))
		}
	}
}
