package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cardvault/cardvault/internal/doctest"
)

const component = "../../httpapi/cardentry"

// tables returns the tables of package iin.
var tables = sync.OnceValue(spans)

// TestCommitted compares the committed files with a build of the sources.
func TestCommitted(t *testing.T) {
	want, err := build(filepath.Join(component, "src"))
	if err != nil {
		t.Fatal(err)
	}
	want["../src/schemes.ts"] = schemes(tables())
	for name, body := range want {
		got, err := os.ReadFile(filepath.Join(component, "dist", name))
		if err != nil || !bytes.Equal(got, body) {
			t.Errorf("%s is not what the sources give (%v): go run -C test ./bundle", filepath.Base(name), err)
		}
	}
	files, err := os.ReadDir(filepath.Join(component, "dist"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if want[f.Name()] == nil {
			t.Errorf("dist has %s, which nothing makes", f.Name())
		}
	}
}

// TestTypes type-checks the sources, also against the served declarations, and a shop that
// uses these.
func TestTypes(t *testing.T) {
	tsc, err := filepath.Abs("../node_modules/.bin/tsc")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(tsc); err != nil {
		t.Skip("TypeScript is not installed (npm ci --prefix test --ignore-scripts)")
	}
	for _, project := range []string{"..", "testdata/consumer"} {
		cmd := exec.CommandContext(t.Context(), tsc, "--project", project)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", project, err, out)
		}
	}
}

// TestReactOfDocs type-checks the component of docs/card-entry.md, with the declaration in
// the comment of card-entry.d.ts.
func TestReactOfDocs(t *testing.T) {
	tsc, err := filepath.Abs("../node_modules/.bin/tsc")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(tsc); err != nil {
		t.Skip("TypeScript is not installed (npm ci --prefix test --ignore-scripts)")
	}

	page, err := os.ReadFile("../../docs/card-entry.md")
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{"card-entry.d.ts": read(t, "card-entry.d.ts")}
	doctest.Snippets(string(page), func(_, language, code string) {
		if language == "tsx" {
			files["pay.tsx"] += code
		}
	})
	_, comment, _ := strings.Cut(files["card-entry.d.ts"], "tell TypeScript of the element:\n *\n")
	comment, _, _ = strings.Cut(comment, " */")
	files["element.d.ts"] = strings.ReplaceAll(comment, " *", "") +
		"declare module 'react' { namespace JSX { interface IntrinsicElements { button: { onClick?: () => void; children?: unknown } } } }"
	types, err := os.ReadFile("testdata/consumer/react.d.ts")
	if err != nil {
		t.Fatal(err)
	}
	files["react.d.ts"] = string(types)
	config, err := filepath.Abs("../tsconfig.json")
	if err != nil {
		t.Fatal(err)
	}
	files["tsconfig.json"] = fmt.Sprintf(`{"extends": %q, "compilerOptions": {"jsx": "react-jsx",
		"paths": {"react": ["./react.d.ts"], "react/jsx-runtime": ["./react.d.ts"]}}, "include": ["."]}`, config)

	dir := t.TempDir()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := exec.CommandContext(t.Context(), tsc, "--project", dir).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// read returns a source file.
func read(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(component, "src", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// matches returns the first group of each match of a pattern, sorted. It searches a source
// between two texts.
func matches(t *testing.T, source, from, to, pattern string) (found []string) {
	t.Helper()
	_, part, ok := strings.Cut(source, from)
	part, _, ok2 := strings.Cut(part, to)
	if !ok || !ok2 {
		t.Fatalf("nothing between %q and %q", from, to)
	}
	for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(part, -1) {
		found = append(found, m[1])
	}
	slices.Sort(found)
	return found
}

// TestManifest compares the manifest with the sources, and its texts with the declarations.
func TestManifest(t *testing.T) {
	type named struct{ Name string }
	var manifest struct {
		SchemaVersion string
		Modules       []struct {
			Path         string
			Declarations []struct {
				Name, TagName string
				Attributes    []named
				Members       []struct{ Name, Kind string }
				Events        []named
				CSSProperties []named
			}
		}
	}
	if err := json.Unmarshal([]byte(read(t, "custom-elements.json")), &manifest); err != nil {
		t.Fatal(err)
	}
	element := manifest.Modules[0].Declarations[0]
	if manifest.SchemaVersion != "2.1.0" || manifest.Modules[0].Path != "card-entry.js" || element.TagName != "card-entry" {
		t.Errorf("schema %s, %s, <%s>", manifest.SchemaVersion, manifest.Modules[0].Path, element.TagName)
	}
	declared, source := read(t, "card-entry.d.ts"), read(t, "element.ts")
	compare := func(what string, list []named, want []string) {
		t.Helper()
		var got []string
		for _, n := range list {
			got = append(got, n.Name)
		}
		slices.Sort(got)
		if !slices.Equal(got, want) || len(got) == 0 {
			t.Errorf("%s: the manifest has %q, the sources %q", what, got, want)
		}
	}
	// name belongs to the browser, as in every form control.
	attributes := append(matches(t, source, "observedAttributes = [", "];", `"([a-z-]+)"`), "name")
	slices.Sort(attributes)
	compare("attributes", element.Attributes, attributes)
	compare("events", element.Events, matches(t, declared, "export interface Detail {", "\n}", `(?m)^  (\w+): \{`))
	compare("dispatched events", element.Events, slices.Compact(matches(t, source, "#hear(", "function isSafe", `#dispatch\("(\w+)"`)))
	properties := matches(t, read(t, "messages.ts"), "LOOK = [", "]", `"([a-z-]+)"`)
	for i := range properties {
		properties[i] = "--card-entry-" + properties[i]
	}
	compare("CSS properties", element.CSSProperties, properties)
	styled := slices.Compact(matches(t, read(t, "frame.css"), ":root {", "* {", `var\((--card-entry-[a-z-]+)`))
	compare("CSS properties that are used", element.CSSProperties, styled)
	var members []named
	for _, m := range element.Members {
		members = append(members, named{m.Name})
	}
	want := matches(t, declared, "export declare class CardEntry extends", "addEventListener", `(?m)^  (?:static |readonly )*(\w+)(?:\(|: )`)
	compare("members", members, want)

	texts := read(t, "texts.ts")
	keys := matches(t, declared, "export interface Texts {", "\n}", `(?m)^  (\w+): string`)
	for _, locale := range []string{"const en = {", "const de: Texts = {"} {
		if got := matches(t, texts, locale, "\n};", `(?m)^  (\w+): "`); !slices.Equal(got, keys) || len(got) == 0 {
			t.Errorf("%s %q, declared are %q", locale, got, keys)
		}
	}
}
