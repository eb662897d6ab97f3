package main

import (
	"fmt"
	"go/ast"
	"go/types"
	"path/filepath"
	"slices"
)

// hidden counts the locals of functions, parameters and results included, with the name of
// a package that their file imports or of a declaration of their package.
var hidden = measure{"locals that hide a name", "hidden", func(h house, where string) (float64, []string) {
	var all []string
	for _, r := range h.at(where) {
		for _, f := range r.files {
			if f.typed {
				all = append(all, r.hiding(f)...)
			}
		}
	}
	return float64(len(all)), all
}}

func (r *room) hiding(f *file) (all []string) {
	bodied := map[*ast.FuncType]bool{}

	ast.Inspect(f.syntax, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			bodied[n.Type] = n.Body != nil
		case *ast.FuncLit:
			bodied[n.Type] = true
		case *ast.FuncType:
			return bodied[n] // without a body, the name of a parameter hides nothing
		case *ast.Ident:
			if n != f.syntax.Name && r.local(n) {
				if hides := r.outer(f, n.Name); hides != "" {
					all = append(all, fmt.Sprintf("%s: %s hides %s", r.place(f, n), n.Name, hides))
				}
			}
		}
		return true
	})
	return all
}

// local reports whether an identifier declares something inside a function.
func (r *room) local(id *ast.Ident) bool {
	declared, ok := r.info.Defs[id]
	switch declared.(type) {
	case nil:
		return ok // the variable of a type switch
	case *types.Label:
		return false
	}
	scope := declared.Parent() // none for fields and methods
	return scope != nil && scope != r.types.Scope() && scope.Parent() != r.types.Scope()
}

// outer returns the meaning of a name outside the functions of a file, or "" without one.
func (r *room) outer(f *file, name string) string {
	if p, ok := r.info.Scopes[f.syntax].Lookup(name).(*types.PkgName); ok {
		return "package " + p.Imported().Path()
	}
	if o := r.types.Scope().Lookup(name); o != nil {
		at := r.set.Position(o.Pos())
		return fmt.Sprintf("%s:%d", filepath.Base(at.Filename), at.Line)
	}
	return ""
}

// methods counts the methods of the vault and of its core: the types of the repository
// that it embeds, at any depth, and the types of its package that its own fields point to.
var methods = measure{"methods on Vault and its core", "", func(h house, where string) (sum float64, text []string) {
	declared := map[string]int{}
	for _, r := range h {
		for _, f := range r.files {
			for _, d := range f.syntax.Decls {
				if d, ok := d.(*ast.FuncDecl); ok && f.typed && d.Recv != nil {
					declared[r.types.Path()+"."+receiver(d)]++
				}
			}
		}
	}

	for _, r := range h.at(where) {
		for _, name := range r.core() {
			if n := declared[name]; n > 0 {
				sum += float64(n)
				text = append(text, fmt.Sprintf("%s, %d methods", name, n))
			}
		}
	}
	return sum, text
}}

// receiver returns the name of the type that has a method, or "" for a function.
func receiver(d *ast.FuncDecl) string {
	if d.Recv == nil {
		return ""
	}
	of := d.Recv.List[0].Type
	if p, ok := of.(*ast.StarExpr); ok {
		of = p.X
	}

	switch x := of.(type) { // with type parameters
	case *ast.IndexExpr:
		of = x.X
	case *ast.IndexListExpr:
		of = x.X
	}
	return types.ExprString(of)
}

// core returns the vault and the types of its core, with the paths of their packages.
func (r *room) core() (all []string) {
	start := r.types.Scope().Lookup(vault)
	if start == nil {
		return nil
	}

	var add func(types.Type)
	add = func(t types.Type) {
		if p, ok := t.(*types.Pointer); ok {
			t = p.Elem()
		}
		n, ok := t.(*types.Named)
		if !ok || n.Obj().Pkg() == nil {
			return
		}

		name := n.Obj().Pkg().Path() + "." + n.Obj().Name()
		if slices.Contains(all, name) {
			return
		}
		all = append(all, name)

		s, ok := n.Underlying().(*types.Struct)
		if !ok {
			return
		}
		for f := range s.Fields() {
			if f.Embedded() || n.Obj() == start && r.pointsHere(f) {
				add(f.Type())
			}
		}
	}
	add(start.Type())
	return all
}

// pointsHere reports whether a field points to a type of the package.
func (r *room) pointsHere(f *types.Var) bool {
	p, ok := f.Type().(*types.Pointer)
	if !ok {
		return false
	}
	n, ok := p.Elem().(*types.Named)
	return ok && n.Obj().Pkg() == r.types
}

// listings counts the places that a new kind of background work touches: the functions and
// variables that list the kinds. Code for a single kind is not among them.
var listings = measure{"places that list kinds of background work", "", func(h house, where string) (float64, []string) {
	var all []string
	for _, r := range h.at(where) {
		for _, kind := range kindsOfWork {
			if r.types.Scope().Lookup(kind) == nil {
				all = append(all, "kindsOfWork names "+kind+", which is not declared")
			}
		}

		for _, f := range r.files {
			for _, d := range f.syntax.Decls {
				if n := r.kinds(d); n >= listed {
					all = append(all, fmt.Sprintf("%s names %d", r.place(f, d), n))
				}
			}
		}
	}
	return float64(len(all)), all
}}

// kinds returns how many kinds of background work a declaration uses.
func (r *room) kinds(d ast.Decl) int {
	used := map[types.Object]bool{}
	ast.Inspect(d, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok && slices.Contains(kindsOfWork, id.Name) {
			if o := r.info.Uses[id]; o != nil {
				used[o] = true
			}
		}
		return true
	})
	return len(used)
}
