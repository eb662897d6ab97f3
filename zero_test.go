package cardvault_test

import (
	"context"
	"reflect"
	"testing"

	"github.com/cardvault/cardvault"
)

// TestZeroVault: a Vault that was not opened returns errors, and panics nowhere.
func TestZeroVault(t *testing.T) {
	background, fails := reflect.ValueOf(context.Background()), reflect.TypeFor[error]()
	for _, v := range []*cardvault.Vault{nil, {}} {
		for i := range reflect.TypeOf(v).NumMethod() {
			name, call := reflect.TypeOf(v).Method(i).Name, reflect.ValueOf(v).Method(i)
			if name == "ExhaustSeals" { // of the tests
				continue
			}
			typ := call.Type()
			iterates := typ.NumOut() == 1 && typ.Out(0).Kind() == reflect.Func
			canFail := iterates || typ.NumOut() > 0 && typ.Out(typ.NumOut()-1) == fails

			args := []reflect.Value{}
			for n := range typ.NumIn() {
				arg := reflect.Zero(typ.In(n))
				if typ.In(n) == reflect.TypeFor[context.Context]() {
					arg = background
				}
				args = append(args, arg)
			}
			out := call.Call(args)
			if iterates {
				var yielded []reflect.Value
				out[0].Call([]reflect.Value{reflect.MakeFunc(typ.Out(0).In(0), func(item []reflect.Value) []reflect.Value {
					yielded = item
					return []reflect.Value{reflect.ValueOf(true)}
				})})
				out = yielded
			}
			if canFail && (len(out) == 0 || out[len(out)-1].IsNil()) {
				t.Errorf("%s of a vault that was not opened has no error", name)
			}
		}
	}
}
