package main

import (
	"cmp"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/tools/go/packages"
)

// A measure takes a figure of one package or of all, and names what the figure counts. The
// higher the figure, the worse.
type measure struct {
	name, short string
	take        func(h house, where string) (figure float64, offenders []string)
}

// A house holds the packages of a repository, in all its modules and without tests, by folder.
type house map[string]*room

// A room is one package, or prose outside of packages.
type room struct {
	dir       string
	files     []*file
	functions []function
	prose     []passage

	// These cover only the files for this system.
	types *types.Package
	info  *types.Info
	set   *token.FileSet
}

type file struct {
	name   string // from the top of the repository
	text   []byte
	syntax *ast.File
	typed  bool // the file is for this system
}

// open reads the repository in a folder. Each package is type-checked against the export
// data of its imports, which the build cache has.
func open(dir string) (house, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	modules, err := modulesOf(dir)
	if err != nil {
		return nil, err
	}

	loaded := make([][]*packages.Package, len(modules))
	problems := make([]error, len(modules))
	var running sync.WaitGroup
	for i, module := range modules {
		running.Go(func() {
			loaded[i], problems[i] = packages.Load(&packages.Config{
				Mode: packages.NeedName | packages.NeedFiles | packages.NeedImports |
					packages.NeedSyntax | packages.NeedTypes | packages.NeedTypesInfo,
				Dir: module,
			}, "./...")
		})
	}
	running.Wait()

	h := house{}
	for _, p := range slices.Concat(loaded...) {
		for _, e := range p.Errors {
			problems = append(problems, e)
		}
		if len(p.Syntax) == 0 { // it has tests alone
			continue
		}
		r, err := newRoom(dir, p)
		problems = append(problems, err)
		h[r.dir] = r
	}
	problems = append(problems, h.addProse(dir))
	return h, errors.Join(problems...)
}

// modulesOf returns the folders of a repository's modules.
func modulesOf(dir string) (found []string, err error) {
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.Name() == "go.mod":
			found = append(found, filepath.Dir(path))
		case path != dir && d.IsDir() && passedOver(d):
			return fs.SkipDir
		}
		return nil
	})
	return found, err
}

// passedOver reports whether a folder holds other people's text, or test data.
func passedOver(d fs.DirEntry) bool {
	return d.Name() == "testdata" || d.Name() == "node_modules" || strings.HasPrefix(d.Name(), ".")
}

func newRoom(dir string, p *packages.Package) (*room, error) {
	r := &room{types: p.Types, info: p.TypesInfo, set: p.Fset}
	for _, syntax := range p.Syntax {
		r.files = append(r.files, &file{name: p.Fset.Position(syntax.Package).Filename, syntax: syntax, typed: true})
	}

	// Files for other systems have lengths and paragraphs too.
	for _, path := range p.IgnoredFiles {
		if strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go") {
			syntax, err := parser.ParseFile(p.Fset, path, nil, parser.ParseComments|parser.SkipObjectResolution)
			if err != nil {
				return r, err
			}
			r.files = append(r.files, &file{name: path, syntax: syntax})
		}
	}

	for _, f := range r.files {
		var err error
		if f.text, err = os.ReadFile(f.name); err != nil {
			return r, err
		}
		if f.name, err = filepath.Rel(dir, f.name); err != nil {
			return r, err
		}
		f.name = filepath.ToSlash(f.name)
		r.dir = filepath.ToSlash(filepath.Dir(f.name))
		r.functions = append(r.functions, r.functionsOf(f)...)
	}
	slices.SortFunc(r.files, func(a, b *file) int { return cmp.Compare(a.name, b.name) })
	return r, nil
}

// at returns one room, or all packages in the order of their folders.
func (h house) at(where string) (all []*room) {
	for _, dir := range slices.Sorted(maps.Keys(h)) {
		if where == everywhere && len(h[dir].files) > 0 || where == dir {
			all = append(all, h[dir])
		}
	}
	return all
}

func (r *room) line(at token.Pos) int { return r.set.Position(at).Line }

// place returns the file and line of a node.
func (r *room) place(f *file, n ast.Node) string {
	return fmt.Sprintf("%s:%d", f.name, r.line(n.Pos()))
}
