package floorplan_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cardvault/cardvault/internal/outbox"
	"github.com/google/uuid"
)

// TestOutboxAsksForNoCard: the code that talks to receivers never receives a card from the
// vault. No result of a Source, or of a function in one, holds bytes, text or an interface.
func TestOutboxAsksForNoCard(t *testing.T) {
	plain := []reflect.Type{reflect.TypeFor[error](), reflect.TypeFor[time.Time](), reflect.TypeFor[uuid.UUID]()}
	looked := map[reflect.Type]bool{}
	var look func(path string, typ reflect.Type)
	look = func(path string, typ reflect.Type) {
		if looked[typ] || slices.Contains(plain, typ) {
			return
		}
		looked[typ] = true

		switch typ.Kind() {
		case reflect.Bool, reflect.Int, reflect.Int64, reflect.Uint8, reflect.Uint64:
		case reflect.Pointer:
			look(path, typ.Elem())
		case reflect.Slice, reflect.Array:
			if typ.Elem().Kind() == reflect.Uint8 {
				t.Errorf("%s holds bytes", path)
			}
			look(path, typ.Elem())
		case reflect.Struct:
			for field := range typ.Fields() {
				look(path+"."+field.Name, field.Type)
			}
		case reflect.Func:
			for result := range typ.Outs() {
				look(path+"()", result)
			}
		default:
			t.Errorf("%s is a %v", path, typ)
		}
	}

	for method := range reflect.TypeFor[outbox.Source]().Methods() {
		look(method.Name, method.Type)
	}
	if !looked[reflect.TypeFor[outbox.Receiver]()] || !looked[reflect.TypeFor[outbox.Reply]()] {
		t.Error("some types were not looked at")
	}
}

// TestOutboxOpensNoCard: the outbox reads the records of tokens, and names no function that
// opens their secret part.
func TestOutboxOpensNoCard(t *testing.T) {
	files, err := filepath.Glob("../outbox/*.go")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, name := range files {
		syntax, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(syntax, func(n ast.Node) bool {
			id, ok := n.(*ast.Ident)
			if ok && !strings.HasSuffix(name, "_test.go") && slices.Contains([]string{"OpenSecret", "CopySecret", "OpenCode"}, id.Name) {
				t.Errorf("%s names %s", name, id.Name)
			}
			return true
		})
	}
}
