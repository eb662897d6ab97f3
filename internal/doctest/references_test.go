package doctest

import (
	"go/ast"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// prose lists the suffixes of files that people read.
var prose = []string{".go", ".md", ".txt", ".sql", ".ts", ".tsx", ".mjs", ".js", ".py", ".html", ".css", ".yaml", ".yml", ".sh", "Makefile"}

// tree returns the files of the repository by path, with the text of prose files.
// Directories end in a slash.
func tree(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		name := filepath.ToSlash(strings.TrimPrefix(strings.TrimPrefix(file, root), string(filepath.Separator)))
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "node_modules" || d.Name() == ".git" || d.Name() == "artifacts"):
			return fs.SkipDir
		case d.IsDir():
			all[name+"/"] = ""
			return nil
		case !slices.ContainsFunc(prose, func(end string) bool { return strings.HasSuffix(name, end) }) && !strings.HasPrefix(name, ".ci/"):
			all[name] = ""
			return nil
		}

		text, err := os.ReadFile(file)
		all[name] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// unwrapped joins the lines of each paragraph or comment, so that a phrase is found even if
// a line break splits it.
func unwrapped(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		for _, mark := range []string{"//", "#", "--", "*"} {
			line = strings.TrimPrefix(line, mark)
		}
		b.WriteString(strings.TrimSpace(line) + " ")
	}
	return b.String()
}

// TestNothingElsewhere: no text cites a document that is not in the repository.
func TestNothingElsewhere(t *testing.T) {
	cited := map[string]*regexp.Regexp{ // by a keyword of each, which is faster to search for
		"chapter":   regexp.MustCompile(`\bchapters?\b`), // a standard has sections
		"interface": regexp.MustCompile(`\binterface (document|specification)\b`),
		"decisions": regexp.MustCompile(`\b(the|of|its|these|those) decisions\b`),
		"document":  regexp.MustCompile(`\bthe document (says|names|has|lists|calls|asks|wants|leaves)\b`),
		"spec":      regexp.MustCompile(`\bthe (specification|spec) (says|names|has|lists|calls|asks|wants|leaves)\b`),
		"brief":     regexp.MustCompile(`\bthe brief (says|names|has|lists|calls|asks|wants|leaves)\b`),
		"§":         regexp.MustCompile(`§`),
	}
	for _, word := range []string{"issue", "finding", "ticket", "task", "milestone"} {
		cited[word] = regexp.MustCompile(`\b` + word + `s? (#\d+|no\. \d+|\d+\b)`)
	}
	section := regexp.MustCompile(`(?i)\b(sections?|tables?|appendix|clause) \d+(\.\d+)*`)
	standard := regexp.MustCompile(`\b(RFC \d+|Unicode|ISO(/IEC)? \d+|NIST|SP 800-\w+|FIPS \d+|EMV|PCI|CSS|WCAG|ECMA)`)

	for file, text := range tree(t) {
		if file == "internal/doctest/references_test.go" {
			continue
		}
		text = unwrapped(text)
		lower := strings.ToLower(text)
		for word, phrase := range cited {
			if !strings.Contains(lower, word) {
				continue
			}
			for _, at := range phrase.FindAllStringIndex(lower, -1) {
				t.Errorf("%s cites a document outside the repository: …%s…", file, lower[max(0, at[0]-40):min(len(lower), at[1]+40)])
			}
		}
		if !slices.ContainsFunc([]string{"section", "table", "appendix", "clause"}, func(word string) bool { return strings.Contains(lower, word) }) {
			continue
		}
		for _, at := range section.FindAllStringIndex(text, -1) {
			if around := text[max(0, at[0]-80):min(len(text), at[1]+40)]; !standard.MatchString(around) {
				t.Errorf("%s does not name the document of this section: …%s…", file, around)
			}
		}
	}
}

// elsewhere lists files and directories outside the repository that texts may name.
var elsewhere = map[string]string{
	"sandbox.json": "the sandbox makes it",
	"node_modules": "npm makes it",
	"Node.js":      "a program",
	"open.py":      "docs/journeys.md has the reader write it",
}

// identifiers returns the names that each package of the repository declares, tests
// included. The rules of a test kit count: each is a literal that begins with its name.
func identifiers(t *testing.T) map[string]map[string]bool {
	t.Helper()
	all := map[string]map[string]bool{}
	sources(t, func(file string, source *ast.File) {
		of := all[source.Name.Name]
		if of == nil {
			of = map[string]bool{}
			all[source.Name.Name] = of
		}
		ast.Inspect(source, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				of[n.Name.Name] = true
			case *ast.CompositeLit:
				if name := ruleOf(file, n); name != "" {
					of[name] = true
				}
			case *ast.TypeSpec:
				of[n.Name.Name] = true
			case *ast.ValueSpec:
				for _, name := range n.Names {
					of[name.Name] = true
				}
			case *ast.Field:
				for _, name := range n.Names {
					of[name.Name] = true
				}
			}
			return true
		})
	})
	return all
}

// A place holds everything that texts in the repository can refer to.
type place struct {
	files    map[string]string
	names    map[string]bool            // file names without directories
	declared map[string]map[string]bool // by package
	tests    map[string]bool
	targets  map[string]bool // of the Makefile
}

func survey(t *testing.T) *place {
	t.Helper()
	p := &place{files: tree(t), names: map[string]bool{}, declared: identifiers(t), tests: map[string]bool{}, targets: map[string]bool{}}

	for file := range p.files {
		p.names[path.Base(file)] = true
	}
	for _, of := range p.declared {
		maps.Copy(p.tests, of)
	}
	for _, target := range regexp.MustCompile(`(?m)^([a-z]+):`).FindAllStringSubmatch(p.files["Makefile"], -1) {
		p.targets[target[1]] = true
	}
	return p
}

// has reports whether the repository has a file or directory that the file from names. A
// path may start at the directory of that file or at any directory above it, as in a nested
// module. A name without a path matches anywhere.
func (p *place) has(from, name string) bool {
	name = strings.TrimPrefix(name, "./")
	if _, made := elsewhere[path.Base(name)]; made || !strings.Contains(name, "/") && p.names[name] {
		return true
	}

	for dir := path.Dir(from); ; dir = path.Dir(dir) {
		whole := path.Join(dir, name)
		for _, as := range []string{whole, whole + "/", strings.TrimSuffix(whole, ".js") + ".ts"} {
			if _, ok := p.files[as]; ok {
				return true
			}
		}
		if dir == "." {
			return false
		}
	}
}

// declares reports whether a package declares each part of a name such as Options.Mode. It
// is true for packages outside the repository. The tests of a package may be one beside it.
func (p *place) declares(pkg, name string) bool {
	of, tests := p.declared[pkg], p.declared[pkg+"_test"]
	return of == nil || !slices.ContainsFunc(strings.Split(name, "."), func(part string) bool { return !of[part] && !tests[part] })
}

var (
	fileName   = regexp.MustCompile(`^[\w.@-]+(/[\w.@-]+)*\.(go|md|sql|ts|tsx|mjs|js|py|css|html|yaml|txt|sh|json)$`)
	dirName    = regexp.MustCompile(`^(\./)?[a-z.][\w.-]*(/[\w.-]+)+$`)
	testName   = regexp.MustCompile(`^(Test|Example|Fuzz|Benchmark)[A-Z]\w+$`)
	identifier = regexp.MustCompile(`^((?:[\w./-]*/)?([a-z]\w*))\.([A-Z]\w*(?:\.[A-Z]\w*)*)$`)
	targetName = regexp.MustCompile(`^[a-z]+$`)
)

// TestReferences: files, directories, identifiers, make targets and tests that texts name
// exist. The changelog may name former identifiers.
func TestReferences(t *testing.T) {
	p := survey(t)
	for from, text := range p.files {
		before := ""
		for _, word := range said(from, text) {
			if name := identifier.FindStringSubmatch(word); name != nil && !fileName.MatchString(word) {
				if !p.declares(name[2], name[3]) && from != "CHANGELOG.md" {
					t.Errorf("%s names %s", from, word)
				}
				word = name[1]
			}

			first, _, _ := strings.Cut(strings.TrimPrefix(word, "./"), "/")
			_, ours := p.files[first+"/"]
			switch {
			case fileName.MatchString(word) && !p.has(from, word):
				t.Errorf("%s names the file %s", from, word)
			case dirName.MatchString(word) && ours && !p.has(from, word):
				t.Errorf("%s names the directory %s", from, word)
			case testName.MatchString(word) && before != "func" && !p.tests[word]:
				t.Errorf("%s names the test %s", from, word)
			case before == "make" && strings.HasSuffix(from, ".md") && strings.Contains(text, "make "+word) && targetName.MatchString(word) && !p.targets[word]:
				t.Errorf("%s names the make target %s", from, word)
			}
			before = word
		}
	}
}

// said returns the words that can name things: in comments, and in the code of Markdown.
func said(file, text string) (words []string) {
	var parts []string
	switch {
	case strings.HasSuffix(file, ".go"):
		parts = regexp.MustCompile(`(?m)(?:^|\s)//[^\n]*`).FindAllString(text, -1)
	case strings.HasSuffix(file, ".md"):
		parts = regexp.MustCompile("(?s)```.*?```|`[^`\n]+`").FindAllString(text, -1)
	case strings.HasSuffix(file, ".sql"):
		parts = regexp.MustCompile(`--[^\n]*`).FindAllString(text, -1)
	case strings.HasSuffix(file, ".ts"):
		parts = regexp.MustCompile(`(?m)(?:^|\s)(//|\*)[^\n]*`).FindAllString(text, -1)
	case strings.Contains(file, "transcripts/"):
		parts = regexp.MustCompile(`(?m)^#[^\n]*`).FindAllString(text, -1)
	}
	for _, part := range parts {
		for word := range strings.FieldsFuncSeq(part, func(r rune) bool { return strings.ContainsRune(" \t\n`'\"(),;:[]{}<>=|*#", r) }) {
			words = append(words, strings.TrimRight(word, "./"))
		}
	}
	return words
}

// TestLinks: relative links in Markdown lead to files and headings that exist.
func TestLinks(t *testing.T) {
	all := tree(t)
	headings := func(document string) (anchors []string) {
		for _, h := range regexp.MustCompile(`(?m)^#+ (.+)$`).FindAllStringSubmatch(all[document], -1) {
			plain := regexp.MustCompile(`[^\w\- ]`).ReplaceAllString(strings.ToLower(h[1]), "")
			anchors = append(anchors, strings.ReplaceAll(plain, " ", "-"))
		}
		return anchors
	}

	links := 0
	for from, text := range all {
		if !strings.HasSuffix(from, ".md") {
			continue
		}
		for _, link := range regexp.MustCompile(`\]\(([^)\s]+)\)`).FindAllStringSubmatch(text, -1) {
			target, anchor, _ := strings.Cut(link[1], "#")
			if strings.Contains(target, ":") {
				continue
			}
			links++
			whole := path.Join(path.Dir(from), target)
			if target == "" {
				whole = from
			}
			_, file := all[whole]
			_, dir := all[whole+"/"]
			if !file && !dir {
				t.Errorf("%s links to %s", from, link[1])
			}
			if anchor != "" && !slices.Contains(headings(whole), anchor) {
				t.Errorf("%s links to the heading %s", from, link[1])
			}
		}
	}
	if links < 20 {
		t.Errorf("only %d links", links)
	}
}
