package main

import (
	"bytes"
	"cmp"
	"fmt"
	"go/ast"
	"go/token"
	"math"
	"slices"
)

// A function is a declared function or method with a body, function literals included.
type function struct {
	name  string // with file and line
	lines int
	blank bool // it has a blank line
}

func (f function) String() string { return fmt.Sprintf("%s, %d lines", f.name, f.lines) }

// functionsOf returns the functions of a file, except tables.
func (r *room) functionsOf(f *file) (all []function) {
	text := bytes.Split(f.text, []byte("\n"))
	for _, d := range f.syntax.Decls {
		d, ok := d.(*ast.FuncDecl)
		if !ok || d.Body == nil || float64(r.highestList(d)) >= tableShare*float64(r.height(d)) {
			continue
		}
		name := d.Name.Name
		if t := receiver(d); t != "" {
			name = t + "." + name
		}
		all = append(all, function{r.place(f, d) + " " + name, r.height(d), r.hasBlank(d.Body, text)})
	}
	return all
}

func (r *room) height(n ast.Node) int { return r.line(n.End()) - r.line(n.Pos()) + 1 }

// highestList returns the lines of the longest literal of a list or map in a function.
func (r *room) highestList(d *ast.FuncDecl) (most int) {
	ast.Inspect(d, func(n ast.Node) bool {
		if c, ok := n.(*ast.CompositeLit); ok {
			switch c.Type.(type) {
			case *ast.ArrayType, *ast.MapType:
				most = max(most, r.height(c))
			}
		}
		return true
	})
	return most
}

// hasBlank reports whether a body has a blank line outside strings.
func (r *room) hasBlank(body *ast.BlockStmt, text [][]byte) bool {
	quoted := map[int]bool{}
	ast.Inspect(body, func(n ast.Node) bool {
		if s, ok := n.(*ast.BasicLit); ok && s.Kind == token.STRING {
			for i := r.line(s.Pos()) + 1; i < r.line(s.End()); i++ {
				quoted[i] = true
			}
		}
		return true
	})

	for i := r.line(body.Lbrace) + 1; i < r.line(body.Rbrace); i++ {
		if len(bytes.TrimSpace(text[i-1])) == 0 && !quoted[i] {
			return true
		}
	}
	return false
}

// functions returns the functions of one package or of all, longest first.
func (h house) functions(where string) (all []function) {
	for _, r := range h.at(where) {
		all = append(all, r.functions...)
	}
	slices.SortStableFunc(all, func(a, b function) int { return cmp.Compare(b.lines, a.lines) })
	return all
}

// longer returns the functions of more than some lines, longest first.
func (h house) longer(where string, most int) []function {
	return slices.DeleteFunc(h.functions(where), func(f function) bool { return f.lines <= most })
}

// walls is the share of long functions without one blank line.
var walls = measure{"long functions without a blank line, %", "no blank %", func(h house, where string) (float64, []string) {
	all := h.longer(where, long+1)
	if len(all) == 0 {
		return 0, nil
	}
	without := slices.DeleteFunc(slices.Clone(all), func(f function) bool { return f.blank })
	return math.Ceil(1000*float64(len(without))/float64(len(all))) / 10, texts(without)
}}

var counted = measure{"functions", "functions", func(h house, where string) (float64, []string) {
	return float64(len(h.functions(where))), nil
}}

// p99 is the length that 99 of 100 functions keep to.
var p99 = measure{"lines of functions, p99", "p99", func(h house, where string) (float64, []string) {
	return h.quantile(where, 99)
}}

var longest = measure{"lines of the longest function", "longest", func(h house, where string) (float64, []string) {
	return h.quantile(where, 100)
}}

func (h house) quantile(where string, percent int) (float64, []string) {
	all := h.functions(where)
	if len(all) == 0 {
		return 0, nil
	}
	rank := (len(all)*percent + 99) / 100
	longer := all[:len(all)-rank+1]
	return float64(longer[len(longer)-1].lines), texts(longer)
}

var over75 = measure{"functions over 75 lines", "over 75", func(h house, where string) (float64, []string) {
	all := h.longer(where, 75)
	return float64(len(all)), texts(all)
}}

var over100 = measure{"functions over 100 lines", "over 100", func(h house, where string) (float64, []string) {
	all := h.longer(where, 100)
	return float64(len(all)), texts(all)
}}

// lines is the length of all files, those for other systems included.
var lines = measure{"lines", "lines", func(h house, where string) (sum float64, text []string) {
	for _, r := range h.at(where) {
		for _, f := range r.files {
			n := bytes.Count(f.text, []byte("\n"))
			sum += float64(n)
			text = append(text, fmt.Sprintf("%s, %d lines", f.name, n))
		}
	}
	return sum, text
}}

func texts(all []function) (text []string) {
	for _, f := range all {
		text = append(text, f.String())
	}
	return text
}
