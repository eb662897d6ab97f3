package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"math"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// A passage is prose with its place: a comment, a message or a document. It keeps
// the line breaks of the file, so that each word has a line.
type passage struct {
	file string
	line int
	text string
}

// fewWords is the least number of words by which hits are divided, so that a small package
// may keep one.
const fewWords = 500

// calques counts German grammar in English words: see CONTRIBUTING.md.
var calques = measure{"calques per thousand words", "calques", func(h house, where string) (float64, []string) {
	total := 0
	var all []string
	for _, p := range h.prose(where) {
		total += len(strings.Fields(p.text))
		for _, at := range calque.FindAllStringIndex(p.text, -1) {
			hit := strings.Join(strings.Fields(p.text[at[0]:at[1]]), " ")
			if !idiom.MatchString(p.text[max(0, at[0]-8):at[1]]) {
				all = append(all, fmt.Sprintf("%s:%d: %s", p.file, p.line+strings.Count(p.text[:at[0]], "\n"), hit))
			}
		}
	}
	return math.Ceil(10*1000*float64(len(all))/float64(max(total, fewWords))) / 10, all
}}

var calque, idiom = pattern(
	`what (is|are|was|were|it|they|has|have|had|came|comes|becomes|became|else)`, // was, wer
	`(becomes?|became|become) of`, `(what|which) (becomes|became)`,
	`(one|ones|those) (that|which|who|whose)`, `(that|those) of`,
	`(somebody|nobody|everybody|whoever|whosever|whosoever)`,
	`(is|are) (how|by what|after how|for how)`, `(by|at|from|after|with|under|for) (what|whose)`,
	`of (which|whose|whom|what)`, `after how (long|many)`,
	`(tells?|told)`, // erzählen
	`(is|are|was|were|be) (no|none)( longer| more)?`,                                                // kein
	`(all|any|every \w+|none|nothing|anything|everything|no \w+) but`, `but (for|those|that of|of)`, // außer
	`gets`, `counts? as`, `that it concerns`, // gelten als
	`(is|are|was|were) to be`, // ist zu
	`(is|are|was|were) of (a|an|the|this|its|it|one|another|no( use)?)`, // ist von
	`such (is|are|was|were|has|have|which|of)`, `(a|of|no) such,`,       // solche
	`some (seconds|minutes|hours|days)`, // einige
	`(goes|go|went) with (it|them)`, `(is|are|was|were) over`,
), regexp.MustCompile(`(?i)\bthere\s+\w+\s+no$|\bno\s+(longer|more)$|\bof\s+no\s+use$`)

// pattern joins patterns of whole words, whose spaces may be line breaks, and "Of" at the
// start of a sentence.
func pattern(all ...string) *regexp.Regexp {
	joined := `(?i:\b(` + strings.Join(all, "|") + `)\b)|\bOf (a|an|the|those|these|its|all|one|them|it|what)\b`
	return regexp.MustCompile(strings.ReplaceAll(joined, " ", `\s+`))
}

// sentences averages the length of sentences. A colon or semicolon does not end one.
var sentences = measure{"words per sentence", "sentence", func(h house, where string) (float64, []string) {
	var length, count int
	var over []string
	for _, p := range h.prose(where) {
		start := 0
		for _, end := range append(sentenceEnd.FindAllStringIndex(p.text, -1), []int{len(p.text), len(p.text)}) {
			text := p.text[start:end[1]]
			if n := len(strings.Fields(text)); n > 0 {
				length += n
				count++
				if n > longSentence {
					space := len(text) - len(strings.TrimLeft(text, " \n"))
					over = append(over, fmt.Sprintf("%s:%d: %d words", p.file, p.line+strings.Count(p.text[:start+space], "\n"), n))
				}
			}
			start = end[1]
		}
	}
	return math.Ceil(10*float64(length)/float64(max(count, 1))) / 10, over
}}

var sentenceEnd = regexp.MustCompile(`[.?!]["')\]*_]*(\s|$)|\n\s*\n|\n\s*([-*]|\d+\.) `)

// prose returns the prose of a package, of the tests, of a document or of docs.
func (h house) prose(where string) (all []passage) {
	for _, r := range h.at(where) {
		all = append(all, r.prose...)
	}
	return all
}

// addProse gives every package its prose, and adds a room for all tests and one for each
// document: they have prose alone.
func (h house) addProse(dir string) error {
	for _, r := range h {
		for _, f := range r.files {
			r.prose = append(r.prose, proseOf(r.set, f.name, f.syntax)...)
		}
	}

	return filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && name != dir && passedOver(d) {
			return fs.SkipDir
		}
		short, err := filepath.Rel(dir, name)
		if err != nil {
			return err
		}
		short = filepath.ToSlash(short)

		switch {
		case strings.HasSuffix(short, "_test.go"):
			set := token.NewFileSet()
			syntax, err := parser.ParseFile(set, name, nil, parser.ParseComments|parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			h.write(allTests, proseOf(set, short, syntax)...)
		case path.Ext(short) == ".md":
			text, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			where, _, _ := strings.Cut(short, "/")
			h.write(where, passage{short, 1, plain(text)})
		}
		return nil
	})
}

func (h house) write(where string, p ...passage) {
	if h[where] == nil {
		h[where] = &room{dir: where}
	}
	h[where].prose = append(h[where].prose, p...)
}

// messages are the functions of errors, logs and tests whose first argument is a message.
var messages = []string{"New", "Errorf", "Debug", "Info", "Warn", "Error", "Fatal", "Fatalf"}

// proseOf returns the comments and messages of a file.
func proseOf(set *token.FileSet, name string, syntax *ast.File) (all []passage) {
	for _, group := range syntax.Comments {
		var text []string
		for _, c := range group.List {
			for line := range strings.SplitSeq(c.Text, "\n") {
				line, isLine := strings.CutPrefix(line, "//")
				if isLine && !strings.HasPrefix(line, " ") || strings.HasPrefix(line, " \t") {
					line = "" // a directive, or code
				}
				text = append(text, line)
			}
		}
		all = append(all, passage{name, set.Position(group.Pos()).Line, strings.Join(text, "\n")})
	}

	ast.Inspect(syntax, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok || len(call.Args) == 0 {
			return true
		}
		f, ok := call.Fun.(*ast.SelectorExpr)
		if !ok || !slices.Contains(messages, f.Sel.Name) {
			return true
		}
		if s, ok := call.Args[0].(*ast.BasicLit); ok && s.Kind == token.STRING {
			text, _ := strconv.Unquote(s.Value) // it has been parsed
			all = append(all, passage{name, set.Position(s.Pos()).Line, strings.ReplaceAll(text, "\n", " ")})
		}
		return true
	})
	return all
}

// plain returns a document without its code, pictures and marks of tables.
func plain(text []byte) string {
	text = fenced.ReplaceAllFunc(text, func(code []byte) []byte {
		return bytes.Repeat([]byte("\n"), bytes.Count(code, []byte("\n")))
	})
	text = inline.ReplaceAll(text, []byte("X"))
	return string(marks.ReplaceAll(text, []byte(". ")))
}

var (
	fenced = regexp.MustCompile("(?ms)^ *```.*?^ *```$|<!--.*?-->")
	inline = regexp.MustCompile("`[^`\n]+`|\\]\\([^)]*\\)")
	marks  = regexp.MustCompile(`(?m) *\|[ |:-]*`)
)

// proseLimits returns the limits of the prose in every room, which are the goals.
func (h house) proseLimits() (all []limit) {
	for _, where := range slices.Sorted(maps.Keys(h)) {
		all = append(all,
			limit{calques, where, fewCalques, fewCalques},
			limit{sentences, where, longSentence, longSentence})
	}
	return all
}
