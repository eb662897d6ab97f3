package doctest

import (
	"go/ast"
	"path"
	"regexp"
	"strings"
	"testing"
	"time"
)

// TestReliability: each command in the table of RELIABILITY.md runs tests of the package that it
// names, or is a target of the Makefile. Each row has a figure and the date of it.
func TestReliability(t *testing.T) {
	tests := map[string]bool{} // by folder and name
	sources(t, func(file string, source *ast.File) {
		for _, d := range source.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && strings.HasSuffix(file, "_test.go") {
				tests[path.Dir(file)+" "+f.Name.Name] = true
			}
		}
	})
	targets := "\n" + read(t, "Makefile")

	goTest := regexp.MustCompile(`^(?:[A-Z_]+=\w+ )*go test(?: -C ([\w/.]+))? -v(?: -timeout \w+)? -run '\^([\w()|]+)\$' (\./[\w/]*|\.)$`)
	makes := regexp.MustCompile(`^make ([a-z-]+)(?: [A-Z]+=(?:\w+|'[^']+'))*$`)
	rows := 0
	for line := range strings.Lines(read(t, "RELIABILITY.md")) {
		cells := strings.Split(strings.ReplaceAll(strings.TrimSpace(line), `\|`, "\x00"), " | ")
		if !strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "| Claim ") {
			continue
		}
		if rows++; len(cells) != 4 {
			t.Errorf("a row with %d cells: %s", len(cells), line)
			continue
		}

		command := strings.Trim(strings.ReplaceAll(cells[1], "\x00", "|"), "` ")
		if m := makes.FindStringSubmatch(command); m != nil {
			if !strings.Contains(targets, "\n"+m[1]+":") {
				t.Errorf("there is no target of %s", command)
			}
		} else if m := goTest.FindStringSubmatch(command); m != nil {
			for name := range strings.SplitSeq(strings.Trim(m[2], "()"), "|") {
				if dir := path.Join(m[1], m[3]); !tests[dir+" "+name] {
					t.Errorf("%s names the test %s, which is not in %s", command, name, dir)
				}
			}
		} else {
			t.Errorf("neither tests nor a target: %s", command)
		}

		day, _, _ := strings.Cut(strings.Trim(cells[3], "| "), ",")
		if _, err := time.Parse(time.DateOnly, day); err != nil || !regexp.MustCompile(`\d`).MatchString(cells[2]) {
			t.Errorf("no figure or no date: %s", line)
		}
	}
	if rows < 15 {
		t.Errorf("the table has %d rows", rows)
	}
}
