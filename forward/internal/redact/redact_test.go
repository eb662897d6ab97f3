package redact_test

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"html"
	"net/url"
	"strings"
	"testing"
	"unicode/utf16"

	"github.com/cardvault/cardvault/forward/internal/redact"
)

const (
	pan    = "4242420111114242"
	middle = "011111" // what the mask hides
	code   = "739"
)

// text is a writer of a value.
type form struct {
	name string
	of   func(value string) string
}

func each(format string) func(string) string {
	return func(value string) (s string) {
		for _, c := range value {
			s += fmt.Sprintf(format, c)
		}
		return s
	}
}

func eachByte(format string) func(string) string {
	return func(value string) (s string) {
		for _, c := range []byte(value) {
			s += fmt.Sprintf(format, c)
		}
		return s
	}
}

func plain(value string) string { return value }

var encodings = []form{
	{"plain", plain},
	{"escaped for JSON", each(`\u%04x`)},
	{"escaped for JSON, upper case", each(`\u%04X`)},
	{"escaped for JSON in JSON", each(`\\u%04x`)},
	{"escaped with x", eachByte(`\x%02x`)},
	{"percent-encoded", eachByte("%%%02X")},
	{"percent-encoded twice", eachByte("%%25%02x")},
	{"entities", each("&#%d;")},
	{"entities without semicolons", each("&#%d")},
	{"hexadecimal entities", each("&#x%x;")},
	{"entities in HTML in XML", func(s string) string { return html.EscapeString(each("&#%d;")(s)) }},
	{"hexadecimal", func(s string) string { return hex.EncodeToString([]byte(s)) }},
	{"hexadecimal, upper case", func(s string) string { return strings.ToUpper(hex.EncodeToString([]byte(s))) }},
	{"base64", func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }},
	{"base64url", func(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s)) }},
	{"base64, escaped for JSON", func(s string) string { return each(`\u%04x`)(base64.StdEncoding.EncodeToString([]byte(s))) }},
	{"base64, percent-encoded", func(s string) string { return url.QueryEscape(base64.StdEncoding.EncodeToString([]byte(s))) }},
	{"base64 of more", func(s string) string { return base64.StdEncoding.EncodeToString([]byte("u:" + s)) }},
	{"entities with zeros", each("&#00000000000%d;")},
	{"percent-encoded as in JavaScript", each("%%u%04X")},
	{"base64 in lines", func(s string) string { return inLines("\r\n", s) }},
	{"base64 in lines, escaped for JSON", func(s string) string { return inLines(`\r\n`, s) }},
	{"hexadecimal of more", func(s string) string { return hex.EncodeToString([]byte("user:" + s + ":")) }},
}

// inLines returns the base64 of a value and more, in lines that end within the value.
func inLines(end, value string) string {
	text := base64.StdEncoding.EncodeToString([]byte(strings.Repeat("0-", 25) + value + strings.Repeat("-x", 60)))
	return text[:76] + end + text[76:152] + end + text[152:]
}

func groups(separator string) func(string) string {
	return func(s string) string {
		return s[:4] + separator + s[4:8] + separator + s[8:12] + separator + s[12:]
	}
}

var groupings = []form{
	{"whole", plain},
	{"in groups with spaces", groups(" ")},
	{"in groups with dashes", groups("-")},
	{"as a telephone number", func(s string) string { return "+" + s[:1] + " (" + s[1:4] + ") " + s[4:] }},
	{"in groups with colons", groups(":")},
	{"in groups with no-break spaces", groups("\u00a0")},
	{"in groups with en dashes", groups("\u2013")},
	{"single digits", func(s string) string { return strings.Join(strings.Split(s, ""), " ") }},
	{"beside digits", func(s string) string { return "17" + s + "23" }},
	{"in words", func(s string) string { return "card " + s + " was declined" }},
}

func redactor() *redact.Redactor {
	r := new(redact.Redactor)
	r.Number([]byte(pan))
	return r
}

// shows reports whether a text has the digits in any form that a reader could undo.
func shows(text []byte, digits string) bool {
	var only []byte
	decoded := string(text)
	for range 3 {
		decoded = html.UnescapeString(decoded)
		if s, err := url.PathUnescape(decoded); err == nil {
			decoded = s
		}
		var s string
		if json.Unmarshal([]byte(`"`+decoded+`"`), &s) == nil {
			decoded = s
		}
	}
	for _, c := range []byte(string(text) + "|" + decoded) {
		if c == '|' || '0' <= c && c <= '9' {
			only = append(only, c)
		}
	}
	for offset := range 4 {
		d, _ := base64.RawStdEncoding.DecodeString(strings.TrimRight(decoded[min(offset, len(decoded)):], "="))
		h, _ := hex.DecodeString(decoded[min(offset, len(decoded)):])
		if bytes.Contains(d, []byte(digits)) || bytes.Contains(h, []byte(digits)) {
			return true
		}
	}
	return bytes.Contains(only, []byte(digits))
}

// TestForms: the number is masked in every form, in every place of an answer.
func TestForms(t *testing.T) {
	for _, g := range groupings {
		for _, e := range encodings {
			value := e.of(g.of(pan))
			for place, text := range map[string]string{
				"alone":          value,
				"in JSON":        `{"id":"ch_1","number":"` + value + `","ok":true}`,
				"in a name":      `{"` + value + `":1}`,
				"in XML":         `<a n="` + value + `">` + value + `</a>`,
				"in a form":      `a=b&n=` + value + `&c=d`,
				"between others": `["` + value + `","` + value + `"]`,
			} {
				masked, redacted := redactor().Text([]byte(text), strings.Contains(place, "JSON"))
				if !redacted || shows(masked, middle) || bytes.Contains(masked, []byte(value)) {
					t.Errorf("%s, %s, %s: %s becomes %s", g.name, e.name, place, text, masked)
				}
			}
		}
	}
}

// TestMask: nothing beyond the hidden digits changes.
func TestMask(t *testing.T) {
	for text, want := range map[string]string{
		`{"number":"` + pan + `","amount":100}`:                 `{"number":"424242******4242","amount":100}`,
		`{"n":` + pan + `,"m":[` + pan + `.0 ,-1e3]}`:           `{"n":"424242******4242","m":["424242******4242.0" ,-1e3]}`,
		`{"n":4.242420111114242e+15}`:                           `{"n":"4.24242******4242e+15"}`,
		`{"a":"say \"` + pan + `\"","b":"4242 4201 1111 4242"}`: `{"a":"say \"424242******4242\"","b":"4242 42** **** 4242"}`,
		`{"a":"\u0034242420111114242"}`:                         `{"a":"\u003424242******4242"}`,
		`no number`:                                             `no number`,
		`4242420111114243 5242420111114242`:                     `4242420111114243 5242420111114242`,
		"1" + pan:                                               "1424242******4242",
		"\U0001D7FA242420111114\U0001D7D04\U0001D7E4":           "\U0001D7FA24242******4\U0001D7D04\U0001D7E4",
		pan + pan: "424242******4242424242******4242",
	} {
		got, redacted := redactor().Text([]byte(text), strings.HasPrefix(text, "{"))
		if string(got) != want || redacted != (text != want) {
			t.Errorf("%s becomes %s, %v", text, got, redacted)
		}
	}
}

// TestUTF16: a text of two bytes a character is masked, and stays one.
func TestUTF16(t *testing.T) {
	var text []byte
	for _, c := range utf16.Encode([]rune(pan)) {
		text = append(text, byte(c>>8), byte(c))
	}
	masked, _ := redactor().Text(text, false)
	if got := strings.ReplaceAll(string(masked), "\x00", ""); got != "424242******4242" || len(masked) != len(text) {
		t.Errorf("masked is %q", masked)
	}
}

// TestOracle: all numbers that can be behind the mask become the same.
func TestOracle(t *testing.T) {
	var answer bytes.Buffer
	for n := range 60_000 {
		fmt.Fprintf(&answer, `"424242%06d4242",`, n*13%1_000_000)
	}
	masked, _ := redactor().Text(answer.Bytes(), false)
	if want := strings.Repeat(`"424242******4242",`, 60_000); string(masked) != want {
		t.Error("numbers behind one mask differ")
	}
}

// TestCode: a security code is masked where it stands alone in a value, like any other.
func TestCode(t *testing.T) {
	r := new(redact.Redactor)
	r.Code(len(code), false)
	for text, want := range map[string]string{
		`{"cvc":"739","other":"128","n":739,"739":1}`:        `{"cvc":"***","other":"***","n":739,"739":1}`,
		`{"m":"Code 739 is wrong. Not 739."}`:                `{"m":"Code *** is wrong. Not ***."}`,
		`{"m":"cvc=739&x","j":"{\"cvc\":739}"}`:              `{"m":"cvc=***&x","j":"{\"cvc\":***}"}`,
		`{"version":"739.x","price":"1.739","end":"739."}`:   `{"version":"739.x","price":"1.739","end":"***."}`,
		`{"id":"pm_a739b","t":"2026-11-23T10:11:12.739Z"}`:   `{"id":"pm_a739b","t":"2026-11-23T10:11:12.739Z"}`,
		`{"id":"0b0c-739-1","s":"7395","u":"/v1/739/x"}`:     `{"id":"0b0c-739-1","s":"7395","u":"/v1/739/x"}`,
		`{"b":"NzM5","h":"373339","j":"\u0037\u00339"}`:      `{"b":"****","h":"******","j":"***"}`,
		`{"p":"%37%33%39","e":"&#55;&#51;&#57;","w":"Note"}`: `{"p":"***","e":"***","w":"Note"}`,
	} {
		got, _ := r.Text([]byte(text), true)
		if string(got) != want {
			t.Errorf("%s becomes %s", text, got)
		}
	}
	r.Code(4, false)
	if got, _ := r.Text([]byte(`{"a":"739 0000 12345"}`), true); string(got) != `{"a":"*** **** 12345"}` {
		t.Errorf("with codes of two lengths: %s", got)
	}
	got, _ := r.Text([]byte(`<c code="739">739</c>`), false)
	if string(got) != `<c code="***">***</c>` {
		t.Errorf("XML becomes %s", got)
	}
}

// TestSecret: a cryptogram and a credential are masked in every form.
func TestSecret(t *testing.T) {
	for _, secret := range []string{"AgAAAAcJ+gT/b7x2jZ8wQ3M=", "sk_live_9bQ4<\"&>z", "0123456789abcdef0123456789abcdef"} {
		r := new(redact.Redactor)
		r.Secret([]byte(secret))
		inner, err := base64.StdEncoding.DecodeString(secret)
		forms := append([]form(nil), encodings...)
		forms = append(forms,
			form{"JSON", func(s string) string { b, _ := json.Marshal(s); return strings.Trim(string(b), `"`) }},
			form{"JSON of PHP", func(s string) string { return strings.NewReplacer("/", `\/`, `"`, `\"`).Replace(s) }},
			form{"form", url.QueryEscape},
			form{"XML", html.EscapeString},
			form{"Basic", func(s string) string { return "Basic " + base64.StdEncoding.EncodeToString([]byte(s+":")) }},
		)
		if err == nil {
			forms = append(forms,
				form{"hexadecimal of its bytes", func(string) string { return hex.EncodeToString(inner) }},
				form{"base64url of its bytes", func(string) string { return base64.URLEncoding.EncodeToString(inner) }},
			)
		}
		for _, f := range forms {
			text := `{"error":"invalid key ` + f.of(secret) + ` given"}`
			got, redacted := r.Text([]byte(text), true)
			if !redacted || bytes.Contains(got, []byte(f.of(secret))) {
				t.Errorf("%s: %s becomes %s", f.name, text, got)
			}
		}
	}
}

// FuzzNumber: whatever is around the number, none of its forms is in the answer, and
// redacting again changes nothing.
func FuzzNumber(f *testing.F) {
	for i := range encodings {
		f.Add(uint8(i), uint8(i), []byte(`{"a":"`), []byte(`"}`))
	}
	f.Add(uint8(0), uint8(0), []byte("424242%3"), []byte("4242"))
	f.Add(uint8(5), uint8(1), []byte(`\u00`), []byte(`&#5`))
	f.Fuzz(func(t *testing.T, encoding, grouping uint8, before, after []byte) {
		value := encodings[int(encoding)%len(encodings)].of(groupings[int(grouping)%len(groupings)].of(pan))
		raw := append(append(bytes.Clone(before), value...), after...)
		for _, isJSON := range []bool{false, true} {
			masked, redacted := redactor().Text(raw, isJSON)
			if redacted && bytes.Contains(masked, []byte(value)) && !strings.Contains(value, "*") {
				t.Fatalf("%q becomes %q", raw, masked)
			}
			if bytes.Contains(masked, []byte(pan)) {
				t.Fatalf("%q becomes %q", raw, masked)
			}
			if encoding%uint8(len(encodings)) == 0 && !redacted {
				t.Fatalf("%q is not masked", raw)
			}
		}
	})
}
