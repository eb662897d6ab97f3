package jsontext_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/cardvault/cardvault/internal/jsontext"
)

// nested returns an object in lists, depth containers in all.
func nested(depth int) string {
	return `{"a":` + strings.Repeat("[", depth-1) + strings.Repeat("]", depth-1) + `}`
}

// manyMembers returns an object of n members.
func manyMembers(n int) string {
	var b strings.Builder
	b.WriteByte('{')
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `"m%d":0`, i)
	}
	b.WriteByte('}')
	return b.String()
}

// within holds JSON that every parser following RFC 8259 and I-JSON accepts.
var within = []string{
	`{}`,
	" \t\r\n{ \t\r\n} \t\r\n",
	`{"cardholder_name":"A Customer","expiry_month":12,"expiry_year":2030,"account_number":"4242424242424242"}`,
	`{"a":1,"A":2,"ab":3}`,
	`{"a":{"a":1,"c":2},"b":{"a":1},"c":3}`,
	`{"a":[],"b":{},"c":null,"d":true,"e":false,"":""}`,
	`{"a" : [ 1 , "x" , [ ] , { "b" : [ null ] } ] , "c" : 0 }`,
	`{"n":[0,-0,1,-1,10,0.5,-0.5e1,1E+2,1e-2,0e0,9223372036854775808,1e999]}`,
	`{"s":"\"\\\/\b\f\n\r\t\u0000\u00e9\u00E9\ud83d\ude00\uFFFF"}`,
	"{\"s\":\"é€😀\u007f\uFEFF\uFFFD\"}",
	`{"\u0061ccount_number":"\u0034\u0032"}`,
	nested(8),
	manyMembers(256),
}

// outside holds texts that every such parser refuses.
var outside = []string{
	"", " ", "null", "true", "1", `"a"`, "[]", "[{}]",
	`{`, `}`, `{"a"`, `{"a":`, `{"a":1`, `{"a":1,`, `{"a":1,}`, `{,}`, `{"a"}`, `{"a",1}`, `{a:1}`, `{'a':1}`, `{1:1}`,
	`{"a":1 "b":2}`, `{"a":[1,]}`, `{"a":[,1]}`, `{"a":[1 2]}`, `{"a":[1}`, `{"a":[1`, `{"a":{"b":1]}`,
	`{} {}`, `{}x`, `{},`, "{}\x00", "{}\v", "{}\u00a0", "\ufeff{}",
	`{"a":1,"a":1}`, `{"a":1,"\u0061":2}`, `{"b":{"a":1,"c":[],"a":2}}`, `{"a":{"x":1},"a":{}}`,
	`{"a":tru}`, `{"a":True}`, `{"a":nul}`, `{"a":nulll}`, `{"a":NaN}`, `{"a":undefined}`, "{\"a\":\x00}",
	`{"a":01}`, `{"a":-}`, `{"a":+1}`, `{"a":.5}`, `{"a":1.}`, `{"a":1.e1}`, `{"a":1e}`, `{"a":1e+}`, `{"a":0x1}`, `{"a":--1}`, `{"a":-01}`, `{"a":1_0}`,
	`{"a":"}`, `{"a":"\"}`, `{"a":"\x"}`, `{"a":"\u12"}`, `{"a":"\u123g"}`, `{"a":"\U0041"}`, `{"a":"\`, "{\"a\":\"\n\"}", "{\"a\":\"\x00\"}",
	`{"a":"\ud800"}`, `{"a":"\udc00"}`, `{"a":"\ud800\ud800"}`, `{"a":"\ud800x"}`, `{"a":"\ud800\n"}`, `{"a":"\ud800\u0041"}`, `{"\ud800":1}`, `{"a":"\ude00\ud83d"}`,
	"{\"a\":\"\xff\"}", "{\"a\":\"\xc0\x80\"}", "{\"a\":\"\xed\xa0\x80\"}", "{\"a\":\"\xf4\x90\x80\x80\"}", "{\"a\":\"\xe2\x82\"}", "{\"\xff\":1}", "{\"a\":1}\xff",
	`{"a":1}//`, `{/**/"a":1}`, `{"a":1;"b":2}`,
}

// beyond holds JSON that only our limits refuse.
var beyond = []string{
	nested(9),
	`{"a":` + strings.Repeat(`{"a":`, 8) + `1` + strings.Repeat(`}`, 8) + `}`,
	manyMembers(257),
	`{"a":[` + strings.Repeat("1,", 255) + `1]}`,
}

func TestParse(t *testing.T) {
	for _, body := range within {
		if _, err := jsontext.Parse([]byte(body)); err != nil {
			t.Errorf("refused: %q", body)
		}
	}
	for _, body := range slices.Concat(outside, beyond) {
		if values, err := jsontext.Parse([]byte(body)); err != jsontext.ErrMalformed || values != nil {
			t.Errorf("accepted: %q", body)
		}
	}
}

func TestParseUnescapes(t *testing.T) {
	values, err := jsontext.Parse([]byte(`{"\u0061\/":"\"\\\b\f\n\r\t\u0000\u00e9\uFfFf\ud83d\ude00é€😀."}`))
	if err != nil {
		t.Fatal(err)
	}
	if got := string(values[1].Name); got != "a/" {
		t.Errorf("name = %q", got)
	}
	if got, want := string(values[1].Text), "\"\\\b\f\n\r\t\x00é\uffff😀é€😀."; got != want {
		t.Errorf("text = %q, want %q", got, want)
	}
}

// TestParseKeepsNothing: a card number must be gone once the caller has cleared the body,
// whatever its spelling and position.
func TestParseKeepsNothing(t *testing.T) {
	for _, body := range append([]string{
		`{"account_number":"\u0034242424242424242","4242424242424242":4242424242424242,"list":["4242424242424242",{"x":"\u00e9"}]}`,
	}, within...) {
		b := []byte(body)
		values, err := jsontext.Parse(b)
		if err != nil {
			t.Fatal(err)
		}
		clear(b)
		for _, n := range values {
			for _, left := range [][]byte{n.Name, n.Text} {
				// Append must not write into the part of the body that follows.
				if len(bytes.Trim(left, "\x00")) > 0 || cap(left) > len(left) {
					t.Errorf("%q leaves %q, cap %d", body, left, cap(left))
				}
			}
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, body := range slices.Concat(within, outside, beyond) {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		b := bytes.Clone(body)
		values, err := jsontext.Parse(b)
		if err != nil {
			if err != jsontext.ErrMalformed || values != nil {
				t.Fatal("an error other than ErrMalformed, or an error with a tree")
			}
			return
		}
		var members map[string]any
		decoder := json.NewDecoder(bytes.NewReader(body))
		decoder.UseNumber()
		if !json.Valid(body) || !utf8.Valid(body) || decoder.Decode(&members) != nil || members == nil {
			t.Fatalf("accepted: %q", body)
		}
		if len(values) > jsontext.MaxValues+1 || values[0].Size != len(values) {
			t.Fatalf("%d values, outer size %d", len(values), values[0].Size)
		}
		same(t, values, members)

		clear(b)
		for _, n := range values {
			if len(bytes.Trim(n.Name, "\x00"))+len(bytes.Trim(n.Text, "\x00")) > 0 {
				t.Errorf("%q outlives the body", n.Text)
			}
		}
	})
}

// same compares a value with the result of encoding/json.
func same(t *testing.T, n []jsontext.Value, want any) {
	var got any
	switch n[0].Kind {
	case '{':
		members, ok := want.(map[string]any)
		count := 0
		for i := 1; i < len(n); i += n[i].Size {
			same(t, n[i:i+n[i].Size], members[string(n[i].Name)])
			count++
		}
		if !ok || count != len(members) {
			t.Errorf("an object with %d members for %v", count, want)
		}
		return
	case '[':
		items, _ := want.([]any)
		for i := 1; i < len(n); i += n[i].Size {
			if len(items) == 0 {
				t.Errorf("too many items for %v", want)
				return
			}
			same(t, n[i:i+n[i].Size], items[0])
			items = items[1:]
		}
		if len(items) > 0 {
			t.Errorf("items missing: %v", items)
		}
		return
	case '"':
		got = string(n[0].Text)
	case '0':
		got = json.Number(n[0].Text)
	case 't', 'f':
		got = n[0].Kind == 't'
	}
	if got != want {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestParseSaysWhere(t *testing.T) {
	for text, want := range map[string]string{
		`{"a":"12"}`: `"12"`,
		` { "b" : {"a":1} , "a" : "\u0031\u0032" } `: `"\u0031\u0032"`,
		`{"\u0061":[1, 2 ],"b":"a"}`:                 `[1, 2 ]`,
		`{"a":null}`:                                 `null`,
		`{"a":-1.5e3,"aa":2}`:                        `-1.5e3`,
		`{"a":{"a":1}}`:                              `{"a":1}`,
		`{"é\n":"é","a":""}`:                         `""`,
	} {
		values, err := jsontext.Parse([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		if a := values[1+jsontext.Find(values[1:], "a")]; text[a.Start:a.End] != want {
			t.Errorf("%q: %d to %d", text, a.Start, a.End)
		}
	}
}
