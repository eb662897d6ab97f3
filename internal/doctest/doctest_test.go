package doctest

import (
	"fmt"
	"go/ast"
	"go/constant"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const root = "../.."

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, file))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// sources calls f with each Go file of the repository.
func sources(t *testing.T, f func(file string, source *ast.File)) {
	t.Helper()
	err := filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "node_modules" || d.Name() == ".git"):
			return fs.SkipDir
		case !strings.HasSuffix(file, ".go"):
			return nil
		}

		source, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err == nil {
			f(filepath.ToSlash(strings.TrimPrefix(file, root+string(filepath.Separator))), source)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// ruleOf returns the name of the rule of a test kit that a literal of its source is, or "".
func ruleOf(file string, literal *ast.CompositeLit) string {
	pkg := path.Base(path.Dir(file))
	kit := (strings.HasSuffix(pkg, "test") || strings.HasSuffix(pkg, "suite")) && !strings.HasSuffix(file, "_test.go")
	if !kit || len(literal.Elts) < 2 {
		return ""
	}
	first, ok := literal.Elts[0].(*ast.BasicLit)
	if !ok || first.Kind != token.STRING {
		return ""
	}
	return strings.Trim(first.Value, `"`)
}

// TestThreats: each row of the table in SECURITY.md names tests that exist, with their package.
func TestThreats(t *testing.T) {
	tests := map[string]bool{}
	sources(t, func(file string, source *ast.File) {
		pkg := path.Base(path.Dir(file))
		ast.Inspect(source, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				if strings.HasSuffix(file, "_test.go") && n.Recv == nil && strings.HasPrefix(n.Name.Name, "Test") {
					tests[strings.TrimPrefix(pkg+"."+n.Name.Name, "..")] = true
				}
			case *ast.CompositeLit:
				if name := ruleOf(file, n); name != "" {
					tests[pkg+"."+name] = true
				}
			}
			return true
		})
	})

	document := read(t, "SECURITY.md")
	_, table, _ := strings.Cut(document, "| An attacker who |")
	table, rest, _ := strings.Cut(table, "\n\n")
	_, shown, _ := strings.Cut(rest, "Tests that show it, of the root package where none is named:\n\n")
	shown, _, _ = strings.Cut(shown, "\n\n")
	lists := map[string]string{}
	for line := range strings.Lines(shown) {
		who, list, _ := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), "- "), ": ")
		lists[who] = list
	}
	rows, said := 0, map[string]bool{}
	for line := range strings.Lines(table) {
		cells := strings.Split(line, "|")
		if len(cells) < 4 || !strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "| can |") {
			continue
		}
		rows++
		who := strings.TrimSpace(cells[1])
		list := lists[who]
		said[who] = true
		if strings.HasPrefix(strings.TrimSpace(cells[3]), "out of scope") && list == "" {
			continue
		}
		names := regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(list, -1)
		if len(names) == 0 && !strings.HasPrefix(list, "nothing") {
			t.Errorf("no test backs the row on an attacker who %s", who)
		}
		for _, name := range names {
			if !tests[name[1]] {
				t.Errorf("the row on an attacker who %s names the test %s, which does not exist", who, name[1])
			}
		}
	}
	if rows < 10 {
		t.Errorf("the table has %d rows", rows)
	}
	for who := range lists {
		if said[who] {
			continue
		}
		t.Errorf("tests are listed for an attacker who %s, but the table has no such row", who)
	}
}

// value returns a constant of a package.
func value(t *testing.T, dir, name string) string {
	t.Helper()
	found := ""
	units := strings.NewReplacer("time.Millisecond", "1000000", "time.Second", "1000000000", "time.Minute", "60000000000", "time.Hour", "3600000000000")

	files, err := filepath.Glob(filepath.Join(root, dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}

	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		fset := token.NewFileSet()
		source, err := parser.ParseFile(fset, file, text, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}

		for _, decl := range source.Decls {
			g, ok := decl.(*ast.GenDecl)
			if !ok || g.Tok != token.CONST {
				continue
			}
			for _, spec := range g.Specs {
				s := spec.(*ast.ValueSpec)
				for i, n := range s.Names {
					if n.Name != name || i >= len(s.Values) {
						continue
					}

					e := text[fset.Position(s.Values[i].Pos()).Offset:fset.Position(s.Values[i].End()).Offset]
					v, err := types.Eval(fset, nil, token.NoPos, units.Replace(string(e)))
					if err != nil {
						t.Fatalf("%s: %v", name, err)
					}
					found = constant.ToInt(v.Value).ExactString()
				}
			}
		}
	}

	if found == "" {
		t.Fatalf("constant %s not found in %q", name, dir)
	}
	return found
}

// TestNumbers: numbers in documents match the constants in the code.
func TestNumbers(t *testing.T) {
	const second = 1_000_000_000
	const minute, hour = 60 * second, 3600 * second
	for _, test := range []struct {
		document, phrase string // a phrase of the document
		dir, name        string // the constant
		want             int64  // its value according to the phrase
	}{
		{"SECURITY.md", "signatures with a time, by up to eight secrets", "internal/signature", "MaxSecrets", 8},
		{"SECURITY.md", "15 seconds and 64 KiB for an answer", "webhook", "timeout", 15 * second},
		{"SECURITY.md", "15 seconds and 64 KiB for an answer", "webhook", "maxAnswer", 64 << 10},
		{"SECURITY.md", "disabled after five days without success", "internal/outbox", "webhookPatience", 5 * 24 * hour},
		{"SECURITY.md", "five refused cards end it", "", "maxRefusals", 5},
		{"SECURITY.md", "a thousandth of the numbers behind a mask, at least 3 and at most 100", "internal/tally", "numbersShare", 1000},
		{"SECURITY.md", "a thousandth of the numbers behind a mask, at least 3 and at most 100", "internal/tally", "leastNumbers", 3},
		{"SECURITY.md", "a thousandth of the numbers behind a mask, at least 3 and at most 100", "internal/tally", "mostNumbers", 100},
		{"SECURITY.md", "may make five other requests under an idempotency key", "internal/replay", "maxMistakes", 5},
		{"SECURITY.md", "every new key ends within 90 days", "", "MaxAPIKeyTTL", 90 * 24 * hour},
		{"SECURITY.md", "by itself after 2^31 seals; refuses at 2^32", "internal/ledger", "rotateAfter", 1 << 31},
		{"SECURITY.md", "by itself after 2^31 seals; refuses at 2^32", "internal/ledger", "sealLimit", 1 << 32},
		{"SECURITY.md", "eight outcomes at most", "internal/renewal", "together", 8},
		{"docs/data.md", "| request body | 64 KiB |", "httpapi", "maxBody", 64 << 10},
		{"docs/data.md", "references | 255 characters |", "internal/rule", "MaxText", 255},
		{"docs/data.md", "| items on a page | 50, at most 500 |", "", "DefaultLimit", 50},
		{"docs/data.md", "| items on a page | 50, at most 500 |", "", "MaxLimit", 500},
		{"docs/data.md", "a token that expires | a second to 30 days |", "", "MaxTokenTTL", 30 * 24 * hour},
		{"docs/data.md", "an API key that expires | a second to 90 days;", "", "MaxAPIKeyTTL", 90 * 24 * hour},
		{"docs/data.md", "| webhooks of an account | at most 64 |", "", "MaxWebhooks", 64},
		{"docs/data.md", "| refused cards in a session | 5 |", "", "maxRefusals", 5},
		{"docs/data.md", "that can be listed | 10,000 |", "store", "MaxShared", 10_000},
		{"CHANGELOG.md", "up to eight of its secrets sign at a time", "internal/signature", "MaxSecrets", 8},
		{"webhook.go", "each signs; 1 to 8, the oldest first", "internal/signature", "MaxSecrets", 8},
		{"webhook/webhook.go", "Defaults to 15 seconds", "webhook", "timeout", 15 * second},
		{"webhook/webhook.go", "Secrets decode to 24 to 64 bytes", "internal/signature", "minKey", 24},
		{"account.go", "1 to 255 characters", "internal/rule", "MaxText", 255},
		{"options.go", "MaxAPIKeyDepth = store.MaxLookups    // keys in a chain, each made by the one before: 8", "store", "MaxLookups", 8},
		{"session.go", "the fifth fails it", "", "maxRefusals", 5},
		{"store/valkeycodes/valkeycodes.go", "Defaults to\n\t// 50 milliseconds", "store/valkeycodes", "patience", 50 * second / 1000},
		{"store/valkeycodes/valkeycodes.go", "Above 65,536 values", "store/valkeycodes", "maxErase", 65536},
		{"store/valkeycodes/valkeycodes.go", "for at most 15 minutes", "store/valkeycodes", "eraseFor", 15 * minute},
	} {
		text := read(t, test.document)
		if !strings.Contains(text, test.phrase) {
			t.Errorf("%s does not say %q", test.document, test.phrase)
		}
		if got := value(t, test.dir, test.name); got != fmt.Sprint(test.want) {
			t.Errorf("%s says %q, but %s is %s", test.document, test.phrase, test.name, got)
		}
	}
}
