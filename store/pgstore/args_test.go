package pgstore

import (
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
)

// signature returns the names of the parameters of a function in the migrations.
func signature(t *testing.T, function string, divided bool) (names []string) {
	t.Helper()
	n := 0
	if divided {
		n = 2
	}
	var declared []string // as the newest version has it
	for v := newest; v >= 1 && declared == nil; v-- {
		script, err := scriptOf(Migrations, v, n)
		if err != nil {
			t.Fatal(err)
		}
		text := comment.ReplaceAllString(script, "")
		declared = regexp.MustCompile(`CREATE FUNCTION "cardvault"\.` + function + `\(([^()]*)\)`).FindStringSubmatch(text)
	}
	if declared == nil {
		t.Fatalf("the migrations have no function %s", function)
	}
	for parameter := range strings.SplitSeq(declared[1], ",") {
		if name := strings.Fields(parameter)[0]; name != "OUT" {
			names = append(names, name)
		}
	}
	return names
}

// inSQL returns the SQL name of a field: read_id for readID.
func inSQL(field string) string {
	var name strings.Builder
	for i, c := range field {
		if unicode.IsUpper(c) && i > 0 && !unicode.IsUpper(rune(field[i-1])) {
			name.WriteByte('_')
		}
		name.WriteRune(unicode.ToLower(c))
	}
	return name.String()
}

// distinct sets each field to a value of its own. It returns the values by SQL name, and
// the names in order.
func distinct(t *testing.T, args any) (names []string, values map[string]any) {
	t.Helper()
	values = map[string]any{}
	v := reflect.ValueOf(args).Elem()
	for i := range v.NumField() {
		name := inSQL(v.Type().Field(i).Name)
		f := v.Field(i)
		f = reflect.NewAt(f.Type(), f.Addr().UnsafePointer()).Elem() // it is unexported
		switch f.Kind() {
		case reflect.Slice:
			f.Set(reflect.MakeSlice(f.Type(), i+1, i+1))
		case reflect.Bool:
			f.SetBool(i%2 == 0)
		case reflect.Int16, reflect.Int32, reflect.Int64:
			f.SetInt(int64(i + 1))
		case reflect.Struct:
			switch first := f.Field(0); first.Kind() {
			case reflect.Array: // of a UUID
				first.Index(0).SetUint(uint64(i + 1))
			case reflect.Int16, reflect.Int64:
				first.SetInt(int64(i + 1))
			case reflect.Struct: // of a time, and no other field has one
				f.FieldByName("Valid").SetBool(true)
			default:
				t.Fatalf("%s is a %v", name, f.Type())
			}
		default:
			t.Fatalf("%s is a %v", name, f.Type())
		}
		names, values[name] = append(names, name), f.Interface()
	}
	return names, values
}

// The parameters have the names and the order of their functions.
func TestArgs(t *testing.T) {
	sql, _ := sqlOf("x", 0)
	parts, _ := sqlOf("x", 2)
	ofPartitions := []string{"read_account", "also_account", "gone_account", "off_account", "on_account", "list_part", "new_part"}
	for _, test := range []struct {
		function  string
		divided   bool
		statement string
		fields    any
		args      func(fields any) []any
		without   []string // fields for other functions
	}{
		{"apply", false, sql.apply, new(applyArgs), func(a any) []any { return a.(*applyArgs).args(false) }, ofPartitions},
		{"add", false, sql.add, new(addArgs), func(a any) []any { return a.(*addArgs).args(false) }, ofPartitions},
		{"apply", true, parts.apply, new(applyArgs), func(a any) []any { return a.(*applyArgs).args(true) }, nil},
		{"add", true, parts.add, new(addArgs), func(a any) []any { return a.(*addArgs).args(true) }, nil},
		{"list", false, sql.list, new(listArgs), func(a any) []any { a.(*listArgs).ofHash = nil; return a.(*listArgs).args() }, []string{"of_hash"}},
		{"list_hash", false, sql.hashed, new(listArgs), func(a any) []any { return a.(*listArgs).args() }, []string{"counted"}},
	} {
		t.Run(test.function, func(t *testing.T) {
			names, values := distinct(t, test.fields)
			names = slices.DeleteFunc(names, func(name string) bool { return slices.Contains(test.without, name) })
			if want := signature(t, test.function, test.divided); !slices.Equal(names, want) {
				t.Fatalf("the fields are\n%s, the function takes\n%s", names, want)
			}
			args := test.args(test.fields)
			if len(args) != len(names) {
				t.Fatalf("%d arguments for %d parameters", len(args), len(names))
			}
			for i, name := range names {
				if !reflect.DeepEqual(args[i], values[name]) {
					t.Errorf("the argument for %s is %v, want %v", name, args[i], values[name])
				}
			}
			placeholders := regexp.MustCompile(`"x"\.` + test.function + `\(([^()]*)\)`).FindStringSubmatch(test.statement)
			if placeholders == nil || strings.Count(placeholders[1], "$") != len(names) {
				t.Errorf("the statement has %q", placeholders)
			}
		})
	}
}
