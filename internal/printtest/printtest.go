// Package printtest proves that exported types print nothing that is secret.
package printtest

import (
	"bytes"
	"encoding/base64"
	"encoding/gob"
	"encoding/hex"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/cardvault/cardvault/internal/hiding"
	"github.com/google/uuid"
)

const module = "github.com/cardvault/cardvault"

// Run checks that types are all exported types of the packages below dir that hold text or
// bytes. Commands, other modules, internal test kits, and internal packages that the root
// cannot import are left out. Run fills each type, unexported fields included, and prints
// it in every way. No output may contain a filled value, except in fields that shown names,
// as package.Type.Field, with the reason why each may be seen; package.* names all
// unexported types. A field that only the JSON of a type may show, without a log of the
// value itself, is "package.Type in JSON: " and its name.
func Run(t *testing.T, dir, path string, shown map[string]string, types ...reflect.Type) {
	t.Helper()
	listed := map[string]bool{}
	for _, typ := range types {
		listed[name(typ)] = true
	}
	for _, want := range declared(t, dir, path) {
		if !listed[want] {
			t.Errorf("type %s is not tried: add it to the list of types", want)
		}
	}

	printed, fields := map[string]string{}, map[string]bool{}
	for _, typ := range types {
		f := filler{leaves: map[string]string{}}
		v := reflect.New(typ).Elem()
		f.fill(v, name(typ), nil)
		outputs := print(v)
		for canary, field := range f.leaves {
			fields[field] = true
			for how, out := range outputs {
				if !holds(out, canary) {
					continue
				}
				document := name(typ) + " in JSON: " + field
				if shown[document] != "" && isDocument(how) {
					fields[document] = true
					continue
				}
				printed[field] = name(typ) + " by " + how
			}
		}
	}

	for _, field := range slices.Sorted(maps.Keys(printed)) {
		if shown[field] == "" && shown[inside(field)] == "" {
			t.Errorf("%s is visible in %s: hide it, or give the reason why it may be", field, printed[field])
		}
		fields[inside(field)] = true
	}
	for field := range shown {
		if !fields[field] {
			t.Errorf("%s is listed as visible, and does not exist", field)
		}
	}
}

// isDocument reports whether a way of printing is JSON, other than a log of the value itself.
func isDocument(how string) bool {
	return strings.HasSuffix(how, "json") && how != "value, slog json" && how != "pointer, slog json"
}

// inside returns the name of all that a package does not export, if field is of that.
func inside(field string) string {
	pkg, rest, _ := strings.Cut(field, ".")
	typ, member, _ := strings.Cut(rest, ".")
	if member == "" || ast.IsExported(typ) && ast.IsExported(member) {
		return ""
	}
	return pkg + ".*"
}

// name returns the name of a type, with its package as seen from the module.
func name(t reflect.Type) string {
	pkg := strings.Trim(strings.TrimPrefix(t.PkgPath(), module), "/")
	base, _, _ := strings.Cut(t.Name(), "[")
	if pkg == "" {
		pkg = "cardvault"
	}
	return pkg + "." + base
}

// declared returns the names of exported types that can hold text or bytes.
func declared(t *testing.T, dir, path string) (names []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(file string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && file != dir:
			if _, err := os.Stat(filepath.Join(file, "go.mod")); err == nil || slices.Contains([]string{"examples", "testdata", ".git"}, d.Name()) || passed(dir, file) {
				return fs.SkipDir
			}
			return nil
		case !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go"):
			return nil
		}

		source, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil || source.Name.Name == "main" {
			return err
		}

		below, err := filepath.Rel(dir, filepath.Dir(file))
		if err != nil {
			return err
		}
		pkg := strings.Trim(filepath.ToSlash(filepath.Join(path, below)), "./")
		if pkg == "" {
			pkg = "cardvault"
		}

		for _, decl := range source.Decls {
			if g, ok := decl.(*ast.GenDecl); ok && g.Tok == token.TYPE {
				for _, spec := range g.Specs {
					if s := spec.(*ast.TypeSpec); s.Name.IsExported() && !s.Assign.IsValid() && holdsText(s.Type) {
						names = append(names, pkg+"."+s.Name.Name)
					}
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(names) == 0 {
		t.Fatal("no types are found")
	}
	return names
}

// passed reports whether the types of a folder are not tried: it is internal to a package
// below dir, or to tests, as a package is that imports testing.
func passed(dir, folder string) bool {
	internal := filepath.Join(dir, "internal")
	if filepath.Dir(folder) != internal {
		return filepath.Base(folder) == "internal" && folder != internal
	}
	files, err := filepath.Glob(filepath.Join(folder, "*.go"))
	return err == nil && slices.ContainsFunc(files, func(file string) bool {
		source, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
		return err == nil && !strings.HasSuffix(file, "_test.go") &&
			slices.ContainsFunc(source.Imports, func(i *ast.ImportSpec) bool { return i.Path.Value == `"testing"` })
	})
}

func holdsText(e ast.Expr) bool {
	switch e := e.(type) {
	case *ast.StructType, *ast.ArrayType, *ast.MapType, *ast.SelectorExpr:
		return true
	case *ast.Ident:
		return e.Name == "string" || e.IsExported()
	}
	return false
}

// A filler fills values with texts that are found again.
type filler struct{ leaves map[string]string } // the field of each

func (f *filler) canary(field string) string {
	c := fmt.Sprintf("Canary%05dZq", len(f.leaves))
	f.leaves[c] = field
	return c
}

var concealed = reflect.TypeFor[hiding.Bytes]() // belongs to the type that embeds it

var ids = reflect.TypeFor[uuid.UUID]() // name things, and prove nothing

// fill fills what can hold text: of types of this module, exported or not.
func (f *filler) fill(v reflect.Value, field string, outer []reflect.Type) {
	t := v.Type()
	if t == ids || slices.Contains(outer, t) {
		return
	}
	if !v.CanSet() {
		v = reflect.NewAt(t, unsafe.Pointer(v.UnsafeAddr())).Elem()
	}

	outer = append(slices.Clone(outer), t)
	switch t.Kind() {
	case reflect.String:
		v.SetString(f.canary(field))
	case reflect.Func:
		if t == reflect.TypeFor[func() []byte]() { // what hides bytes
			b := []byte(f.canary(field))
			v.Set(reflect.ValueOf(func() []byte { return b }))
		}
	case reflect.Slice, reflect.Array:
		switch n := v.Len(); {
		case t.Elem().Kind() == reflect.Uint8 && t.Kind() == reflect.Slice:
			v.SetBytes([]byte(f.canary(field)))
		case t.Elem().Kind() == reflect.Uint8:
			c := f.canary(field)
			delete(f.leaves, c)
			if n < 8 {
				return
			}
			f.leaves[c[:min(n, len(c))]] = field
			reflect.Copy(v, reflect.ValueOf([]byte(c)))
		case t.Kind() == reflect.Slice:
			v.Set(reflect.MakeSlice(t, 1, 1))
			f.fill(v.Index(0), field, outer)
		case n > 0:
			f.fill(v.Index(0), field, outer)
		}
	case reflect.Map:
		key, value := reflect.New(t.Key()).Elem(), reflect.New(t.Elem()).Elem()
		f.fill(key, field, outer)
		f.fill(value, field, outer)
		v.Set(reflect.MakeMap(t))
		v.SetMapIndex(key, value)
	case reflect.Pointer:
		if strings.HasPrefix(t.Elem().PkgPath(), module) || t.Elem().Kind() == reflect.String {
			v.Set(reflect.New(t.Elem()))
			f.fill(v.Elem(), field, outer)
		}
	case reflect.Struct:
		if t.Name() != "" && !strings.HasPrefix(t.PkgPath(), module) {
			return
		}
		for i := range t.NumField() {
			inner := field
			if t.Name() != "" && t != concealed {
				inner = name(t) + "." + t.Field(i).Name
			}
			f.fill(v.Field(i), inner, outer)
		}
	}
}

// print returns v as all ways of printing show it.
func print(v reflect.Value) map[string]string {
	list := reflect.MakeSlice(reflect.SliceOf(v.Type()), 1, 1)
	list.Index(0).Set(v)
	table := reflect.MakeMap(reflect.MapOf(reflect.TypeFor[string](), v.Type()))
	table.SetMapIndex(reflect.ValueOf("key"), v)

	forms := map[string]any{
		"value": v.Interface(), "pointer": v.Addr().Interface(), "slice": list.Interface(), "map": table.Interface(),
		"interface": struct{ X any }{v.Interface()}, "unexported": struct{ x any }{v.Interface()},
		"pointer in interface": struct{ X any }{v.Addr().Interface()},
	}

	outputs := map[string]string{}
	for form, x := range forms {
		try := func(how string, out func() ([]byte, error)) {
			defer func() {
				if p := recover(); p != nil { // from a value that only a test can make
					outputs[form+", "+how] = fmt.Sprint(p)
				}
			}()
			b, err := out()
			outputs[form+", "+how] = string(b) + fmt.Sprint(err)
		}

		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%t"} {
			try(verb, func() ([]byte, error) { return fmt.Appendf(nil, verb, x), nil })
		}
		try("error", func() ([]byte, error) {
			return []byte(errors.Join(fmt.Errorf("wrapped: %v", x), fmt.Errorf("%+v", x)).Error()), nil
		})

		try("json", func() ([]byte, error) { return json.Marshal(x) })
		try("xml", func() ([]byte, error) { return xml.Marshal(x) })
		try("gob", func() ([]byte, error) {
			var b bytes.Buffer
			err := gob.NewEncoder(&b).Encode(x)
			return b.Bytes(), err
		})

		try("slog text", func() ([]byte, error) {
			var b bytes.Buffer
			slog.New(slog.NewTextHandler(&b, nil)).Info("x", "x", x)
			return b.Bytes(), nil
		})
		try("slog json", func() ([]byte, error) {
			var b bytes.Buffer
			slog.New(slog.NewJSONHandler(&b, nil)).Info("x", "x", x)
			return b.Bytes(), nil
		})
	}

	return outputs
}

// holds reports whether out has text as it is, in hexadecimal digits, base64, or as a list of
// numbers.
func holds(out, text string) bool {
	numbers := strings.Trim(fmt.Sprint([]byte(text)), "[]")
	inGo := strings.Trim(strings.TrimPrefix(fmt.Sprintf("%#v", []byte(text)), "[]byte"), "{}")
	for _, form := range []string{
		text, hex.EncodeToString([]byte(text)), strings.ToUpper(hex.EncodeToString([]byte(text))), numbers, inGo,
		strings.ReplaceAll(numbers, " ", ","), base64.StdEncoding.EncodeToString([]byte(text))[:16],
	} {
		if strings.Contains(out, form) {
			return true
		}
	}
	return false
}
