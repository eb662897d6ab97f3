package httpapi

import (
	"encoding/json"
	"testing"
)

// The result has the same members in the same order, without the null ones.
func FuzzOmitNull(f *testing.F) {
	for _, text := range []string{
		`{}`, `{"a":null}`, `{"a":null,"b":null}`, `{"a":1,"b":null}`, `{"a":null,"b":1}`, `{"a":1,"b":null,"c":2}`,
		`{"a":{"b":null},"c":[{"d":null},null,{"e":null,"f":[]}]}`, `{"a":"\":null,","b":"\\","c":null,"\"":null}`,
		`{"a":[null,null,"null"],"null":null,"b":":null"}`, `[null,{"a":null},"a"]`, `{"a":"é\u2028","b":null}`, `{"a":false,"b":true,"c":-1.5e3}`,
	} {
		f.Add(text)
	}

	f.Fuzz(func(t *testing.T, text string) {
		var given any
		if json.Unmarshal([]byte(text), &given) != nil {
			return
		}
		compact, err := json.Marshal(given)
		if err != nil {
			t.Fatal(err)
		}
		got := string(omitNull([]byte(string(compact))))

		want, err := json.Marshal(withoutNulls(given))
		if err != nil {
			t.Fatal(err)
		}
		if got != string(want) {
			t.Errorf("%s: got %s, want %s", compact, got, want)
		}
		if again := string(omitNull([]byte(got))); again != got {
			t.Errorf("%s: once more %s", got, again)
		}
	})
}

// withoutNulls returns a decoded value without the members that are null.
func withoutNulls(v any) any {
	switch v := v.(type) {
	case map[string]any:
		left := map[string]any{}
		for name, value := range v {
			if value != nil {
				left[name] = withoutNulls(value)
			}
		}
		return left
	case []any:
		left := make([]any, len(v))
		for i, item := range v {
			left[i] = withoutNulls(item)
		}
		return left
	}
	return v
}

func TestOmitNullKeepsOrder(t *testing.T) {
	got := string(omitNull([]byte(`{"b":1,"a":null,"c":{"z":null,"y":2}}`)))
	if want := `{"b":1,"c":{"y":2}}`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
