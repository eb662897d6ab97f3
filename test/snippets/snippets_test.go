// Package snippets_test compiles the Go code of documents and package comments, and runs
// the code of documents.
//
// The code is put into packages that only the compiler sees. For a part of a program,
// [inDocuments] has the rest: variables before it, and a check of err in place of a line
// that is … alone. A whole program must print its Output comment.
package snippets_test

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/doc/comment"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/cardvault/cardvault/internal/doctest"
	"github.com/cardvault/cardvault/payone"
)

const root = "../.."

// A snippet is code in a text.
type snippet struct {
	where string // file and heading, or file and number in its comments
	code  string
}

// pages returns the names of the documents.
func pages(t *testing.T) (names []string) {
	t.Helper()
	for _, pattern := range []string{"*.md", "docs/*.md"} {
		files, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			names = append(names, strings.TrimPrefix(filepath.ToSlash(file), root+"/"))
		}
	}
	return names
}

// documents returns the code of the documents: Go code, or code in other languages, whose
// places end with the language.
func documents(t *testing.T, inGo bool) (all []snippet) {
	t.Helper()
	for _, name := range pages(t) {
		text, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		doctest.Snippets(string(text), func(heading, language, code string) {
			switch {
			case inGo && language == "go":
				all = append(all, snippet{name + ": " + heading, code})
			case !inGo && language != "go" && language != "text" && language != "json": // these are not code
				all = append(all, snippet{name + ": " + heading + ": " + language, code})
			}
		})
	}
	return all
}

// comments returns the code blocks in doc comments, of commands and of packages.
func comments(t *testing.T) (all []snippet) {
	t.Helper()
	err := filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "node_modules" || d.Name() == ".git"):
			return fs.SkipDir
		case !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go"):
			return nil
		}

		source, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		name, n := strings.TrimPrefix(filepath.ToSlash(file), root+"/"), 0
		ast.Inspect(source, func(node ast.Node) bool {
			group, ok := node.(*ast.CommentGroup)
			if !ok {
				return true
			}
			for _, block := range new(comment.Parser).Parse(group.Text()).Content {
				if code, ok := block.(*comment.Code); ok {
					n++
					all = append(all, snippet{fmt.Sprintf("%s: %d", name, n), code.Text})
				}
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// A setting turns a snippet into a program.
type setting struct {
	declarations string // of its package
	before       string // statements
	first, last  string // code around it in its statement
	after        string
	module       string // where it is compiled, "test" if ""
	output       string // expected output of a whole program without an Output comment
	compiled     string // reason for only compiling a whole program
}

// imports lists the packages that a snippet can use.
var imports = map[string]string{
	"context": "context", "ed25519": "crypto/ed25519", "errors": "errors", "sql": "database/sql", "fmt": "fmt", "io": "io", "http": "net/http", "httptest": "net/http/httptest", "os": "os",
	"filepath": "path/filepath", "strings": "strings", "testing": "testing", "time": "time", "uuid": "github.com/google/uuid",
	"pgxpool": "github.com/jackc/pgx/v5/pgxpool", "valkey": "github.com/valkey-io/valkey-go", "goleak": "go.uber.org/goleak", "stripe": "github.com/stripe/stripe-go/v85", "secrets": "gocloud.dev/secrets", "mystore": "github.com/cardvault/cardvault/test/mystore",
}

func init() {
	for _, pkg := range []string{
		"", "audit", "audittest", "card", "forward", "httpapi", "idv", "idvtest", "internal/realtest", "internal/tlv", "keytest", "kms", "kms/gocloud", "kms/pkcs11", "kms/shares", "network", "networks", "networktest", "payone", "ppan", "ppantest",
		"receive", "receive/endpoint", "simnet", "sinktest", "store", "store/memstore", "store/pgstore", "store/storetest", "store/valkeycodes",
		"updater", "updatertest", "vaulttest", "vaulttest/vaultsuite", "webhook", "webhook/webhooktest",
	} {
		whole := path.Join("github.com/cardvault/cardvault", pkg)
		imports[path.Base(whole)] = whole
	}
}

// declared returns the names that statements declare.
func declared(code string) (names []string) {
	file, err := parser.ParseFile(token.NewFileSet(), "", "package p; func _() {\n"+code+"\n}", parser.SkipObjectResolution)
	if err != nil {
		return nil // the compiler reports it
	}
	for _, statement := range file.Decls[0].(*ast.FuncDecl).Body.List {
		if assign, ok := statement.(*ast.AssignStmt); ok && assign.Tok == token.DEFINE {
			for _, name := range assign.Lhs {
				names = append(names, name.(*ast.Ident).Name)
			}
		}
	}
	return slices.DeleteFunc(names, func(name string) bool { return name == "_" })
}

// elision matches a line that stands for others.
var elision = regexp.MustCompile(`(?m)^(\t*)…[^\n]*$`)

// program returns the source of a package, with a snippet as the body of its test or as its
// declarations.
func (s *setting) program(code string) string {
	code = s.first + code + s.last
	code = elision.ReplaceAllStringFunc(code, func(line string) string {
		if strings.HasPrefix(line, "\t") {
			return ""
		}
		return "check(err)"
	})

	body := ""
	if _, err := parser.ParseFile(token.NewFileSet(), "", "package p\n"+code, parser.SkipObjectResolution); err == nil {
		body = regexp.MustCompile(`(?m)^func Test\w+\(`).ReplaceAllString(code, "func _(")
	} else {
		use := ""
		for _, name := range declared(code) {
			use += "_ = " + name + "; "
		}
		body = "func TestSnippet(t *testing.T) {\n" +
			"t.Chdir(t.TempDir())\nctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)\ndefer cancel()\n" +
			"var err error\ncheck := func(err error) { t.Helper(); if err != nil { t.Fatal(err) } }\n" +
			s.before + "\n{\n" + code + "\n" + use + "check(err)\n" + s.after + "\n}\ncheck(err); _ = ctx\n}\n"
	}

	source := "package snippet\n\nimport (\n"
	for name, of := range imports {
		if regexp.MustCompile(`\b` + name + `\.[A-Z]`).MatchString(s.declarations + body) {
			source += fmt.Sprintf("\t%q\n", of)
		}
	}
	return source + ")\n\n" + s.declarations + "\n\n" + body
}

// whole reports whether a snippet has a package clause, and whether it is a program.
func (s *snippet) whole() (whole, program bool) {
	return strings.HasPrefix(s.code, "package "), strings.HasPrefix(s.code, "package main\n")
}

// build makes a package of each snippet, in the module that it needs, and compiles it.
// Given a directory, it builds a program there, or a test binary, and returns the names.
func build(t *testing.T, all []snippet, settings map[string]setting, to string) (names map[string]string) {
	t.Helper()
	dir := t.TempDir()
	names = map[string]string{}
	overlay := map[string]string{}
	put := func(module, name, source string) (whole string) {
		whole, err := filepath.Abs(filepath.Join(root, module, name))
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(dir, fmt.Sprint(len(overlay)))
		overlay[whole] = file
		if err := os.WriteFile(file, []byte(source), 0o600); err != nil {
			t.Fatal(err)
		}
		return whole
	}
	put("test", "mystore/mystore.go", mystore)
	for where := range settings {
		if !slices.ContainsFunc(all, func(s snippet) bool { return s.where == where }) {
			t.Errorf("there is no code %s", where)
		}
	}

	type group struct{ module, command string }
	packages := map[group][]string{}
	for i, s := range all {
		set, known := settings[s.where]
		if !known {
			t.Errorf("%s has code without a test:\n%s", s.where, s.code)
			continue
		}
		if set.module == "" {
			set.module = "test"
		}

		name, file, source, command := fmt.Sprintf("snippet%d", i), "snippet_test.go", s.code, "test"
		names[s.where] = name + ".test"
		whole, program := s.whole()
		if !whole {
			source = set.program(s.code)
		}
		if to == "" || program {
			names[s.where], file, command = name, "snippet.go", "build"
		}

		put(set.module, name+"/"+file, source)
		packages[group{set.module, command}] = append(packages[group{set.module, command}], "./"+name)
		t.Logf("%s is %s", s.where, name)
	}

	text, err := json.Marshal(map[string]any{"Replace": overlay})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "overlay.json"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	for g, paths := range packages {
		args := []string{g.command, "-overlay", filepath.Join(dir, "overlay.json")}
		if to != "" {
			args = append(args, "-ldflags=-s -w", "-o", to+string(filepath.Separator))
		}
		if g.command == "test" {
			args = append(args, "-c", "-vet=off")
		}
		cmd := exec.CommandContext(t.Context(), "go", append(args, paths...)...)
		cmd.Dir = filepath.Join(root, g.module)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v in %s: %s", err, g.module, out)
		}
	}
	return names
}

// output is the expected output in a program's comment.
func (s *snippet) output() (text string) {
	_, comment, _ := strings.Cut(s.code, "// Output:")
	for line := range strings.Lines(comment) {
		if line = strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(line), "//")); line == "}" {
			break
		}
		text += line + "\n"
	}
	return strings.TrimSpace(text)
}

// TestDocuments compiles and runs the Go code of documents.
func TestDocuments(t *testing.T) {
	t.Parallel()
	all, dir := documents(t, true), t.TempDir()
	known := maps.Clone(inDocuments)
	for _, s := range all {
		if _, program := s.whole(); program && s.output() != "" {
			known[s.where] = setting{output: s.output()}
		}
	}
	names := build(t, all, known, dir)

	for _, s := range all {
		set, name := known[s.where], names[s.where]
		if set.compiled != "" || t.Failed() {
			continue
		}
		t.Run(s.where, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), filepath.Join(dir, name))
			if _, program := s.whole(); !program {
				cmd.Args = append(cmd.Args, "-test.v")
			}
			cmd.Dir = t.TempDir()
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			if strings.Contains(string(out), "--- SKIP") {
				t.Skipf("%s", out)
			}
			if match, err := regexp.Match("^"+set.output+"\\n$", out); set.output != "" && (err != nil || !match) {
				t.Errorf("prints %s, %v", out, err)
			}
		})
	}
}

// TestLanguages: code in other languages in documents has a test elsewhere, or a reason for
// having none.
func TestLanguages(t *testing.T) {
	t.Parallel()
	found := map[string]bool{}
	for _, s := range documents(t, false) {
		found[s.where] = true
		if languages[s.where] == "" {
			t.Errorf("no test runs the code %s:\n%s", s.where, s.code)
		}
	}
	for where := range languages {
		if !found[where] {
			t.Errorf("there is no code %s", where)
		}
	}
}

// TestComments compiles the Go code of comments. Examples and the packages' own tests run
// the same calls, and a kit such as storetest needs its reader's code.
func TestComments(t *testing.T) {
	t.Parallel()
	var code []snippet
	found := map[string]bool{}
	for _, s := range comments(t) {
		found[s.where] = true
		if _, other := otherwise[s.where]; !other && !strings.Contains(s.code, "go run ") { // TestUsage
			code = append(code, s)
		}
	}
	for where := range otherwise {
		if !found[where] {
			t.Errorf("%s is not code", where)
		}
	}
	build(t, code, inComments, "")
}

// block returns a block of code of a comment.
func block(t *testing.T, where string) string {
	t.Helper()
	for _, s := range comments(t) {
		if s.where == where {
			return s.code
		}
	}
	t.Fatalf("there is no code %s", where)
	return ""
}

// TestUsage: the programs in usages and documents exist and have the flags.
func TestUsage(t *testing.T) {
	t.Parallel()
	run := regexp.MustCompile(`go run(?: -C ([\w./-]+))? (\.[\w./-]*)((?: [^\n` + "`" + `&]*(?:\n\t[^\n]*)*)?)`)
	flag := regexp.MustCompile(`[ \[]-([a-z-]+)`)
	commands := 0
	check := func(where, text string) {
		for _, m := range run.FindAllStringSubmatch(text, -1) {
			commands++
			files, err := filepath.Glob(filepath.Join(root, m[1], m[2], "*.go"))
			if err != nil {
				t.Fatal(err)
			}
			program := ""
			for _, file := range files {
				source, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				program += string(source)
			}
			if !strings.Contains(program, "package main\n") {
				t.Errorf("%s runs %s in %q, which is not a program", where, m[2], m[1])
			}
			for _, f := range flag.FindAllStringSubmatch(m[3], -1) {
				if !strings.Contains(program, `"`+f[1]+`"`) {
					t.Errorf("%s gives %s the flag -%s", where, m[2], f[1])
				}
			}
		}
	}

	for _, s := range comments(t) {
		check(s.where, s.code)
	}
	for _, file := range pages(t) {
		text, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			t.Fatal(err)
		}
		check(file, string(text))
	}
	if commands < 12 {
		t.Errorf("%d commands", commands)
	}
}

// TestHashInShell runs the commands of package payone that compute a hash.
func TestHashInShell(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("openssl"); err != nil {
		t.Skip("openssl is not installed (Debian: apt-get install openssl)")
	}
	const key = "secretTestKey"
	cmd := exec.Command("sh", "-c", block(t, "payone/payone.go: 3"))
	cmd.Env = append(os.Environ(), "PORTAL_KEY="+key)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}

	hash := payone.Hash(key, payone.HashParameters{AID: "22222", MID: "11111", PortalID: "3333333", Sandbox: true})
	hash.Expose(func(want []byte) {
		if string(out) != string(want)+"\n" {
			t.Errorf("a shell makes %s, Hash %s", out, want)
		}
	})
}
