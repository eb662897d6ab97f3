package httpapi

import (
	"bytes"
	"math"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/cardvault/cardvault/invalid"
)

const importBody = `{"cardholder_name":"A Customer","expiry_month":12,"expiry_year":2030,"account_number":"4242424242424242"}`

// Parsed values share the memory of the body: clearing the body erases them.
func TestFieldsKeepNothing(t *testing.T) {
	body := []byte(importBody)
	var v violations
	f, err := readJSON(body, &v)
	if err != nil {
		t.Fatal(err)
	}
	number, ok := f.text("account_number", required, 1, 19)
	name, named := f.text("cardholder_name", optional, 1, 255)
	if !ok || !named || string(number) != "4242424242424242" || string(name) != "A Customer" {
		t.Fatalf("got %d and %d characters, %v", len(number), len(name), v)
	}
	clear(body)
	if len(bytes.Trim(number, "\x00"))+len(bytes.Trim(name, "\x00")) > 0 {
		t.Error("a value survives the erasure of its body")
	}
}

// Parsing allocates at most once, and copies no value.
func TestImportAllocations(t *testing.T) {
	body := []byte(importBody)
	if n := testing.AllocsPerRun(100, func() { readImport(t, body) }); n > 1 {
		t.Errorf("%v allocations", n)
	}
}

func readImport(tb testing.TB, body []byte) {
	var v violations
	f, err := readJSON(body, &v)
	if err != nil {
		tb.Fatal(err)
	}
	f.text("cardholder_name", optional, 1, 255)
	f.integer("expiry_month", required, 1, 12)
	f.integer("expiry_year", required, 2000, 2099)
	f.text("account_number", required, 1, 19)
	f.text("security_code", optional, 1, 4)
	f.done()
	if len(v) > 0 {
		tb.Fatal(v)
	}
}

// ask reads one field of every kind that the rules know.
func ask(f fields) {
	f.text("text", optional, 2, 5)
	f.text("set", nonNull, 1, 5)
	f.integer("int", optional, 1, 12)
	f.integer("wide", optional, math.MinInt64, math.MaxInt64)
	f.boolean("bool", optional)
	f.id("id", optional)
	literals(f, "list", optional, []string{"a:b", "c"})
	if o, ok := f.object("object", optional); ok {
		o.text("need", required, 1, 5)
		o.text("more", optional, 1, 5)
		if p, ok := o.object("inner", optional); ok {
			p.boolean("need", required)
		}
	}
	f.done()
}

const fieldID = `2f0c9b1e-6a4d-4c3b-9e8f-0123456789ab`

var fieldTests = []struct{ body, want string }{
	{`{}`, ``},
	{`{"text":null,"int":null,"wide":null,"bool":null,"id":null,"list":null,"object":null}`, ``},
	{`{"set":null}`, `set null_not_allowed`},
	{`{"set":"x"}`, ``},

	{`{"text":""}`, `text empty_string`},
	{`{"text":" \u2003\t"}`, `text blank`},
	{`{"text":"a\u0000b"}`, `text invalid_format`},
	{`{"text":"a\u0085b"}`, `text invalid_format`},
	{`{"text":"a\u007fb"}`, `text invalid_format`},
	{`{"text":" a "}`, ``},
	{`{"text":"é"}`, `text too_short`},
	{`{"text":"éé"}`, ``},
	{`{"text":"ééééé"}`, ``},
	{`{"text":"éééééé"}`, `text too_long`},
	{`{"text":1}`, `text wrong_type`},
	{`{"text":true}`, `text wrong_type`},
	{`{"text":["a"]}`, `text wrong_type`},
	{`{"text":{"a":1,"b":2}}`, `text wrong_type`},

	{`{"int":1}`, ``},
	{`{"int":12}`, ``},
	{`{"int":0}`, `int out_of_range`},
	{`{"int":-0}`, `int out_of_range`},
	{`{"int":-1}`, `int out_of_range`},
	{`{"int":13}`, `int out_of_range`},
	{`{"int":4.0}`, `int not_an_integer`},
	{`{"int":4e0}`, `int not_an_integer`},
	{`{"int":4E0}`, `int not_an_integer`},
	{`{"int":1.5}`, `int not_an_integer`},
	{`{"int":1e999}`, `int not_an_integer`},
	{`{"int":"4"}`, `int wrong_type`},
	{`{"int":true}`, `int wrong_type`},
	{`{"int":[4]}`, `int wrong_type`},
	{`{"wide":9223372036854775807}`, ``},
	{`{"wide":-9223372036854775807}`, ``},
	{`{"wide":9223372036854775808}`, `wide out_of_range`},
	{`{"wide":18446744073709551617}`, `wide out_of_range`},
	{`{"wide":100000000000000000000000000000000000001}`, `wide out_of_range`},

	{`{"bool":true}`, ``},
	{`{"bool":false}`, ``},
	{`{"bool":"true"}`, `bool wrong_type`},
	{`{"bool":1}`, `bool wrong_type`},

	{`{"id":"` + fieldID + `"}`, ``},
	{`{"id":"` + strings.ToUpper(fieldID) + `"}`, ""},
	{`{"id":"{` + fieldID + `}"}`, `id invalid_format`},
	{`{"id":"urn:uuid:` + fieldID + `"}`, `id invalid_format`},
	{`{"id":"` + strings.ReplaceAll(fieldID, "-", "") + `"}`, `id invalid_format`},
	{`{"id":"` + strings.Replace(fieldID, "-4c3b", "-7c3b", 1) + `"}`, `id invalid_format`},
	{`{"id":"` + strings.Replace(fieldID, "-9e8f", "-ce8f", 1) + `"}`, `id invalid_format`},
	{`{"id":"` + strings.Replace(fieldID, "-6a4d", "06a4d", 1) + `"}`, `id invalid_format`},
	{`{"id":"` + strings.Replace(fieldID, "2f", "-f", 1) + `"}`, `id invalid_format`},
	{`{"id":"00000000-0000-0000-0000-000000000000"}`, `id invalid_format`},
	{`{"id":""}`, `id empty_string`},
	{`{"id":4}`, `id wrong_type`},

	{`{"list":[]}`, ``},
	{`{"list":["a:b","c","a:b"]}`, ``},
	{`{"list":["A:b"]}`, `list invalid_enum`},
	{`{"list":["c",""]}`, `list empty_list_item`},
	{`{"list":["c",1]}`, `list wrong_type`},
	{`{"list":[["c"]]}`, `list wrong_type`},
	{`{"list":[null]}`, `list wrong_type`},
	{`{"list":"c"}`, `list wrong_type`},

	{`{"object":{"need":"x"}}`, ``},
	{`{"object":{}}`, `object.need required`},
	{`{"object":{"need":null}}`, `object.need null_not_allowed`},
	{`{"object":{"need":"x","inner":{"need":1}}}`, `object.inner.need wrong_type`},
	{`{"object":[]}`, `object wrong_type`},
	{`{"object":"x"}`, `object wrong_type`},

	{`{"Text":"ab"}`, `Text unknown_field`},
	{`{"4242424242424242":1}`, `? unknown_field`},
	{`{"pan 4242 4242":1}`, `? unknown_field`},
	{`{"４２４２４２４２":1}`, `? unknown_field`},
	{`{"pan_4242424":1}`, `pan_4242424 unknown_field`},
	{`{"` + strings.Repeat("é", 40) + `":1}`, strings.Repeat("é", 40) + ` unknown_field`},
	{`{"` + strings.Repeat("é", 41) + `":1}`, `? unknown_field`},
	{`{"a\nb":1,"a\u202eb":1,"":1,"b":2,"a\u0000":1}`, `? unknown_field, b unknown_field`},
	{`{"a":{"x":{"y":1}},"b":[{"z":1}]}`, `a unknown_field, b unknown_field`},
	{`{"object":{"x":1,"need":"x","inner":{"need":true,"y":1},"12345678":1},"z":1}`,
		`object.x unknown_field, object.inner.y unknown_field, object.? unknown_field, z unknown_field`},
	{`{"object.need":1,"object":{}}`, `object.need required`},

	{`{"z":1,"int":"4","a":1,"text":"","object":{"b":1}}`,
		`text empty_string, int wrong_type, object.need required, z unknown_field, a unknown_field, object.b unknown_field`},
}

func TestFields(t *testing.T) {
	for _, test := range fieldTests {
		var v violations
		f, err := readJSON([]byte(test.body), &v)
		if err != nil {
			t.Errorf("%s: %v", test.body, err)
			continue
		}
		ask(f)
		if got := codes(v); got != test.want {
			t.Errorf("%s:\n got %s\nwant %s", test.body, got, test.want)
		}
	}
}

func codes(v violations) string {
	var s []string
	for _, x := range v {
		s = append(s, x.Field+" "+string(x.Code))
	}
	return strings.Join(s, ", ")
}

func TestFieldsRequired(t *testing.T) {
	read := func(body string) violations {
		var v violations
		f, err := readJSON([]byte(body), &v)
		if err != nil {
			t.Fatal(err)
		}
		f.text("a", required, 1, 9)
		f.integer("b", required, 1, 9)
		f.boolean("c", required)
		f.id("d", required)
		literals(f, "e", required, []string{"x"})
		f.object("f", required)
		return v
	}
	for code, body := range map[invalid.Code]string{
		"required":         `{}`,
		"null_not_allowed": `{"a":null,"b":null,"c":null,"d":null,"e":null,"f":null}`,
	} {
		v := read(body)
		if len(v) != 6 {
			t.Errorf("%s: %v", body, v)
		}
		for i, x := range v {
			if x.Field != string(rune('a'+i)) || x.Code != code {
				t.Errorf("%s: %v", body, x)
			}
		}
	}
}

func TestFieldsValues(t *testing.T) {
	var v violations
	f, err := readJSON([]byte(`{"text":" \u00e9 ","int":-9007199254740993,"yes":true,"no":false,"none":null,
		"id":"2f0c9b1e-6a4d-4c3b-9e8f-0123456789ab","list":["y","x","y"],"object":{"text":"in"}}`), &v)
	if err != nil {
		t.Fatal(err)
	}
	if text, ok := f.text("text", required, 3, 3); !ok || string(text) != " é " {
		t.Errorf("text = %q, %v", text, ok)
	}
	if n, ok := f.integer("int", required, math.MinInt64, 0); !ok || n != -9007199254740993 {
		t.Errorf("int = %d, %v", n, ok)
	}
	if yes, ok := f.boolean("yes", required); !ok || !yes {
		t.Errorf("yes = %v, %v", yes, ok)
	}
	if no, ok := f.boolean("no", required); !ok || no {
		t.Errorf("no = %v, %v", no, ok)
	}
	if _, ok := f.text("none", optional, 1, 9); ok || !f.null("none") {
		t.Error("null is not seen")
	}
	if _, ok := f.boolean("absent", optional); ok || f.null("absent") || f.null("text") {
		t.Error("absent or given reads as null")
	}
	if id, ok := f.id("id", required); !ok || id.String() != "2f0c9b1e-6a4d-4c3b-9e8f-0123456789ab" {
		t.Errorf("id = %v, %v", id, ok)
	}
	if list, ok := literals(f, "list", required, []string{"x", "y"}); !ok || !slices.Equal(list, []string{"y", "x"}) {
		t.Errorf("list = %v, %v", list, ok)
	}
	o, ok := f.object("object", required)
	if text, in := o.text("text", required, 1, 9); !ok || !in || string(text) != "in" {
		t.Errorf("object.text = %q, %v, %v", text, ok, in)
	}
	f.done()
	if len(v) > 0 {
		t.Error(v)
	}
}

func TestViolationTexts(t *testing.T) {
	var v violations
	f, err := readJSON([]byte(`{"month":13,"text":"4242424242424242x","id":"4242424242424242","list":["4242424242424242"],"4242424242424242":1}`), &v)
	if err != nil {
		t.Fatal(err)
	}
	f.integer("month", required, 1, 12)
	f.integer("month", required, 1, 10)
	f.text("text", required, 1, 16)
	f.id("id", required)
	literals(f, "list", required, []string{"a", "b"})
	f.refuse("key", "depends_on", "provider")
	f.done()
	const want = "month must be between 1 and 12. text must have at most 16 characters. " +
		"id must be a UUID of version 4. list must be one of: a, b. " +
		"key is required with provider. ? is not a known field."
	if got := v.message(); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if v[0] != (violation{"month", "out_of_range", "must be between 1 and 12"}) {
		t.Errorf("%+v", v[0])
	}
}

func FuzzFields(f *testing.F) {
	for _, test := range fieldTests {
		f.Add([]byte(test.body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		var v violations
		members, err := readJSON(body, &v)
		if err != nil {
			return
		}
		ask(members)
		for i, x := range v {
			if messages[x.Code] == "" || strings.Contains(x.Message, "%!") || !utf8.ValidString(x.Field) {
				t.Errorf("%+v", x)
			}
			if slices.ContainsFunc(v[:i], func(y violation) bool { return y.Field == x.Field }) {
				t.Errorf("%s twice", x.Field)
			}
		}
	})
}

func BenchmarkImportBody(b *testing.B) {
	body := []byte(importBody)
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		readImport(b, body)
	}
}
