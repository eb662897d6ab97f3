package httpapi

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestFieldNames: every field that the vault can name in an error has a name over REST, and
// the table has no others.
func TestFieldNames(t *testing.T) {
	named := map[string]bool{}
	text := func(e ast.Expr, prefix string) {
		if lit, ok := e.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			name, err := strconv.Unquote(lit.Value)
			if err != nil {
				t.Fatal(err)
			}
			named[prefix+name] = true
		}
	}

	files := parseVault(t)
	takes := fieldParameters(files)
	for _, file := range files {
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CompositeLit:
				switch typ, ok := n.Type.(*ast.Ident); {
				case !ok || len(n.Elts) == 0:
				case typ.Name == "FieldError":
					text(n.Elts[0], "")
				case typ.Name == "quotaField":
					text(n.Elts[0], "Quotas.")
				}
			case *ast.CallExpr:
				if fn, ok := n.Fun.(*ast.Ident); ok && takes[fn.Name] && len(n.Args) > 0 {
					text(n.Args[0], "")
				}
			case *ast.ValueSpec:
				if len(n.Values) == 1 && strings.HasSuffix(strings.ToLower(n.Names[0].Name), "field") {
					text(n.Values[0], "")
				}
			}
			return true
		})
	}

	for name := range named {
		if fieldNames[name] == "" && !slices.Contains(unseen, name) {
			t.Errorf("%s has no name over REST", name)
		}
	}
	for name := range fieldNames {
		if !named[name] {
			t.Errorf("the vault names no %s", name)
		}
	}
	if len(named) < 40 {
		t.Errorf("%d names were found", len(named))
	}
}

// unseen lists the names of values that are checked and never named over REST.
var unseen = []string{"After", "BankName", "Position", "Reader", "SchemeCode", "Series", "Store", "TokenRetention", "Writer"}

func parseVault(t *testing.T) (files []*ast.File) {
	paths, err := filepath.Glob("../*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range append(paths, "../forward/request.go", "../forward/call.go") {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, file)
	}
	return files
}

// fieldParameters returns the functions whose first parameter is the name of a field.
func fieldParameters(files []*ast.File) map[string]bool {
	takes := map[string]bool{}
	look := func(name ast.Expr, fn *ast.FuncType) {
		if id, ok := name.(*ast.Ident); ok && len(fn.Params.List) > 0 {
			first := fn.Params.List[0].Names
			takes[id.Name] = takes[id.Name] || len(first) > 0 && first[0].Name == "field"
		}
	}
	for _, file := range files {
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				if n.Recv == nil {
					look(n.Name, n.Type)
				}
			case *ast.AssignStmt:
				if lit, ok := n.Rhs[0].(*ast.FuncLit); ok {
					look(n.Lhs[0], lit.Type)
				}
			}
			return true
		})
	}
	return takes
}
