package template_test

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"io"
	"net/url"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/cardvault/cardvault/forward/internal/template"
	"github.com/cardvault/cardvault/invalid"
)

func values() *template.Values {
	v := &template.Values{Credentials: map[string][]byte{"key": []byte("sk_live_1")}}
	for name, value := range map[template.Name]string{
		template.AccountNumber:           "4242424242424242",
		template.ExpiryMonth:             "04",
		template.ExpiryYear:              "2031",
		template.ExpiryYY:                "31",
		template.CardholderName:          hostile,
		template.SecurityCode:            "739",
		template.NetworkToken:            "4895370011112222",
		template.NetworkTokenExpiryMonth: "12",
		template.NetworkTokenExpiryYear:  "2029",
		template.Cryptogram:              "AgAAAAcJ+gT/",
		template.ECI:                     "",
	} {
		v.Of[name] = []byte(value)
	}
	return v
}

// A cardholder whose name would end every string, and asks for the number.
const hostile = `Zoë "Z" <O'Neil> & %41 {{ account_number }} \u0041 &#65; 🂡`

const (
	jsonType = "application/json; charset=utf-8"
	formType = "application/x-www-form-urlencoded"
	xmlType  = "text/xml"
)

// filled returns a body with values, read in pieces of any size.
func filled(t testing.TB, s template.Syntax, contentType, body string) (string, string) {
	t.Helper()
	parsed, broken := s.Body(contentType, []byte(body))
	if broken != nil {
		return "", string(broken.Code) + ": " + broken.Message
	}
	return string(render(t, parsed, values())), ""
}

func render(t testing.TB, parsed *template.Template, v *template.Values) []byte {
	t.Helper()
	f := parsed.Fill(v)
	whole := f.Bytes()
	slow, err := io.ReadAll(iotest.OneByteReader(f.Reader()))
	if err != nil || !bytes.Equal(slow, whole) || int64(len(whole)) != f.Size() {
		t.Fatalf("reading gives %q, %v; bytes are %q, size is %d", slow, err, whole, f.Size())
	}
	f.Wipe()
	return whole
}

func TestPlaces(t *testing.T) {
	for _, c := range []struct{ contentType, body, want string }{
		{jsonType, `{"n":"{{ account_number }}","m":"{{expiry_month}}/{{   expiry_yy   }}"}`, `{"n":"4242424242424242","m":"04/31"}`},
		{jsonType, `{"m":"{{ expiry_month | number }}","y":["{{expiry_year|number}}"]}`, `{"m":4,"y":[2031]}`},
		{jsonType, `"{{ cryptogram }}{{ eci }}"`, `"AgAAAAcJ+gT/"`},
		{jsonType, `{"a":"{{ Account_Number }} {{\taccount_number}} { { account_number } } {{account_number}"}`, `{"a":"{{ Account_Number }} {{\taccount_number}} { { account_number } } {{account_number}"}`},
		{jsonType, `{"a":"{{ аccount_number }} ｛｛ account_number ｝｝"}`, `{"a":"{{ аccount_number }} ｛｛ account_number ｝｝"}`},
		{jsonType, `{"a":"{{ {{ account_number }} }}"}`, `{"a":"{{ 4242424242424242 }}"}`},
		{jsonType, `{"a":"say \"{{ account_number }}\" \\"}`, `{"a":"say \"4242424242424242\" \\"}`},
		{"application/vnd.psp+json", `{"a":"{{ cardholder_name }}"}`, `{"a":"Zo\u00eb \"Z\" <O'Neil> & %41 {{ account_number }} \\u0041 &#65; \ud83c\udca1"}`},
		{formType, `n={{ account_number }}&card%5Bcvc%5D={{security_code}}&x`, `n=4242424242424242&card%5Bcvc%5D=739&x`},
		{formType, `n=%7B%7B+account_number+%7D%7D&m=%7b{%20expiry_month%20}%7d`, `n=4242424242424242&m=04`},
		{formType, `c={{ cryptogram }}`, `c=AgAAAAcJ%2BgT%2F`},
		{formType, `c=%7B%7B+account_number+%7C+numbers`, `c=%7B%7B+account_number+%7C+numbers`},
		{xmlType, `<?xml version="1.0"?><c n="{{ account_number }}" m='{{expiry_month}}'><!-- > -->{{ cardholder_name }}<x/></c>`,
			`<?xml version="1.0"?><c n="4242424242424242" m='04'><!-- > -->Zo&#235; &#34;Z&#34; &#60;O&#39;Neil&#62; &#38; %41 {{ account_number }} \u0041 &#38;#65; &#127137;<x/></c>`},
	} {
		got, broken := filled(t, template.Syntax{}, c.contentType, c.body)
		if got != c.want {
			t.Errorf("%s becomes %s %s", c.body, got, broken)
		}
	}
}

func TestRefused(t *testing.T) {
	const notAllowed, unknown, format = string(invalid.PlaceholderNotAllowed), string(invalid.UnknownPlaceholder), string(invalid.Format)
	for _, c := range []struct{ contentType, body, want string }{
		{jsonType, `{"{{ account_number }}":1}`, notAllowed},
		{jsonType, `{"x {{ account_number }}" : 1}`, notAllowed},
		{jsonType, `{"a":{{ account_number }}}`, format},
		{jsonType, `{"a":"{{ account_number }}"`, format},
		{jsonType, `{"a":"{{ pan }}"}`, unknown},
		{jsonType, `{"a":"{{ account_number }}","b":"{{ pan }}"}`, unknown},
		{jsonType, `{"a":"{{ account_number | number }}"}`, notAllowed},
		{jsonType, `{"a":"{{ security_code | number }}"}`, notAllowed},
		{jsonType, `{"a":"{{ eci | number }}"}`, notAllowed},
		{jsonType, `{"a":" {{ expiry_year | number }}"}`, notAllowed},
		{jsonType, `{"a":"x{{ security_code }}"}`, notAllowed},
		{jsonType, `{"a":"{{ security_code }}\u0031"}`, notAllowed},
		{jsonType, `{"a":"{{ security_code }}{{ expiry_yy }}"}`, notAllowed},
		{jsonType, `{"a":"{{ expiry_yy }}{{ security_code }}"}`, notAllowed},
		{jsonType, `{"a":"{{ destination.key }}"}`, notAllowed},
		{jsonType + "; charset=utf-16", `{"a":"{{ eci }}"}`, notAllowed},
		{formType, `{{account_number}}=1`, notAllowed},
		{formType, `a%7B%7Baccount_number%7D%7D&b=1`, notAllowed},
		{formType, `a={{expiry_year|number}}`, notAllowed},
		{formType, `a=%39{{security_code}}`, notAllowed},
		{formType, `a={{security_code}}9`, notAllowed},
		{xmlType, `<{{ account_number }}/>`, notAllowed},
		{xmlType, `<a {{ eci }}="1"/>`, notAllowed},
		{xmlType, `<a><!-- {{ eci }} --></a>`, notAllowed},
		{xmlType, `<a><![CDATA[{{ eci }}]]></a>`, notAllowed},
		{xmlType, `<?x {{ eci }}?><a/>`, notAllowed},
		{xmlType, `<!DOCTYPE a [<!ENTITY e "x">]><a>{{ eci }}</a>`, notAllowed},
		{xmlType, `<a b="{{ eci }}`, format},

		// The other side would take a part of the value for the rest of an escape.
		{formType, `n=%{{account_number}}`, notAllowed},
		{formType, `n=%4{{account_number}}`, notAllowed},
		{formType, `n=%254{{account_number}}`, notAllowed},
		{formType, `n=%u004{{account_number}}`, notAllowed},
		{formType, `n=%26%23{{account_number}}`, notAllowed},
		{jsonType, `{"n":"%4{{account_number}}"}`, notAllowed},
		{jsonType, `{"n":"\\u004{{account_number}}"}`, notAllowed},
		{jsonType, `{"n":"\\{{account_number}}"}`, notAllowed},
		{jsonType, `{"n":"&#x{{account_number}}"}`, notAllowed},
		{xmlType, `<n>&#{{account_number}};</n>`, notAllowed},
		{xmlType, `<n>&#X00000000000000{{account_number}};</n>`, notAllowed},

		// The other side would read more digits beside the code.
		{xmlType, `<c>&#49;{{security_code}}</c>`, notAllowed},
		{xmlType, `<c>{{security_code}}&#49;</c>`, notAllowed},
		{xmlType, `<c a="&#49;{{security_code}}"/>`, notAllowed},
		{xmlType, `<c a="{{security_code}}&#49;"/>`, notAllowed},
		{xmlType, `<c>1<!-- -->{{security_code}}</c>`, notAllowed},
		{xmlType, `<c>{{security_code}}<?x?>1</c>`, notAllowed},
		{xmlType, `<c><![CDATA[1]]>{{security_code}}</c>`, notAllowed},
		{xmlType, `<c>{{security_code}}<![CDATA[1]]></c>`, notAllowed},
		{xmlType, `<c>1<b/>{{security_code}}</c>`, notAllowed},
		{xmlType, `<c>1<b></b>{{security_code}}</c>`, notAllowed},
		{xmlType, `<c>, {{security_code}}</c>`, notAllowed},
		{formType, `c=%26%2349%3B{{security_code}}`, notAllowed},
		{jsonType, `{"c":"&#49;{{security_code}}"}`, notAllowed},

		// The other side may remove what is between, or show the end of it as that of a card number.
		{jsonType, `{"number":"400000000000 {{ security_code }}"}`, notAllowed},
		{jsonType, `{"c":"{{ security_code }}, 1"}`, notAllowed},
		{jsonType, `{"c":"{{ account_number }} {{ security_code }}"}`, notAllowed},
		{jsonType, `{"c":"{{ security_code }} {{ account_number }}"}`, notAllowed},
		{formType, `c=1+{{ security_code }}`, notAllowed},
		{xmlType, `<c a="1 {{ security_code }}"/>`, notAllowed},

		// The other side would read other characters.
		{xmlType, `<?xml version="1.0" encoding="UTF-7"?><a>{{ account_number }}</a>`, notAllowed},
		{xmlType, ` <?xml version="1.0" encoding='IBM037' ?><a>{{ account_number }}</a>`, notAllowed},
		{xmlType, `<?xml version="1.0" encoding="UTF-8" encoding="UTF-7"?><a>{{ account_number }}</a>`, notAllowed},
		{xmlType, "<\x00a\x00>\x00{{ account_number }}", format},
		{xmlType, "Lo{{ account_number }}", format},
		{xmlType, "<a>\xe4{{ account_number }}</a>", format},
		{jsonType, "\"\xe4{{ account_number }}\"", format},
		{"multipart/form-data; boundary=x", "--x\r\n\r\n{{ account_number }}\r\n--x--", notAllowed},
		{"text/plain", "{{ account_number }}", notAllowed},
		{"", "{{ account_number }}", notAllowed},
	} {
		_, broken := filled(t, template.Syntax{}, c.contentType, c.body)
		if !strings.HasPrefix(broken, c.want+":") {
			t.Errorf("%s, %s: %q", c.contentType, c.body, broken)
		}
	}
}

// TestUntouched: a body without placeholders may be anything.
func TestUntouched(t *testing.T) {
	for _, contentType := range []string{jsonType, formType, xmlType, "multipart/mixed; boundary=x", "image/png", "", "a/b; charset=utf-16"} {
		for _, body := range []string{"", "{", "<a", "\x00\xff{{", `{"a":"{{ account_number"`, "%7B%7B%", "{{ }}"} {
			if got, broken := filled(t, template.Syntax{}, contentType, body); got != body {
				t.Errorf("%s, %q becomes %q %s", contentType, body, got, broken)
			}
		}
	}
}

// TestMarker: with a marker nothing else is a placeholder.
func TestMarker(t *testing.T) {
	s := template.Syntax{Marker: "0123456789abcdef"}
	const body = `{"n":"{{ 0123456789abcdef.account_number }}","name":"{{ account_number }} {{ 0123456789abcdeF.eci }} {{ what }}"}`
	const want = `{"n":"4242424242424242","name":"{{ account_number }} {{ 0123456789abcdeF.eci }} {{ what }}"}`
	if got, broken := filled(t, s, jsonType, body); got != want {
		t.Errorf("body is %s %s", got, broken)
	}
	if _, broken := filled(t, s, jsonType, `{"n":"{{ 0123456789abcdef.what }}"}`); !strings.HasPrefix(broken, string(invalid.UnknownPlaceholder)) {
		t.Errorf("unknown name: %q", broken)
	}
	for marker, ok := range map[string]bool{"": true, "0123456789abcde": false, strings.Repeat("a", 64): true, strings.Repeat("a", 65): false, "0123456789abcde-": false} {
		if broken := (template.Syntax{Marker: marker}).Check(); (broken == nil) != ok {
			t.Errorf("marker %s: %v", marker, broken)
		}
	}
}

// TestRandom: random placeholders are of letters and digits, and nothing else is one.
func TestRandom(t *testing.T) {
	s := template.Random()
	for name := range template.Credential {
		p := s.Placeholder(name)
		if url.QueryEscape(p) != p {
			t.Errorf("placeholder is %s", p)
		}
		body := fmt.Sprintf(`{"n":"%s","name":"{{ account_number }} %s"}`, p, template.Random().Placeholder(name))
		parsed, broken := s.Body(jsonType, []byte(body))
		if broken != nil || parsed.Names != template.Of(name) {
			t.Fatalf("%s: names are %b, %v", body, parsed.Names, broken)
		}
		v := &template.Values{}
		v.Of[name] = []byte("V")
		if got := string(render(t, parsed, v)); got != strings.Replace(body, p, "V", 1) {
			t.Errorf("%s becomes %s", body, got)
		}
		if broken := s.None([]byte("https://psp.example/"+p), "a URL"); broken == nil || broken.Code != invalid.PlaceholderNotAllowed {
			t.Errorf("in a URL: %v", broken)
		}
	}
}

func TestHeader(t *testing.T) {
	parsed, broken := template.Syntax{}.Header("Authorization", []byte("Bearer {{ destination.key }}; n={{ account_number }}"))
	if broken != nil || !reflect.DeepEqual(parsed.Credentials, []string{"key"}) {
		t.Fatalf("credentials are %v, %v", parsed, broken)
	}
	if got := string(render(t, parsed, values())); got != "Bearer sk_live_1; n=4242424242424242" {
		t.Errorf("header is %s", got)
	}
	for _, value := range []string{"x{{ security_code }}", "4000 {{ security_code }}"} {
		if _, broken := (template.Syntax{}).Header("X", []byte(value)); broken == nil {
			t.Errorf("%s is taken", value)
		}
	}
}

// TestNone: the URL has no placeholder, also not percent-encoded.
func TestNone(t *testing.T) {
	for text, want := range map[string]invalid.Code{
		"https://psp.example/{{account_number}}":       invalid.PlaceholderNotAllowed,
		"https://psp.example/?a=%7B%7B+eci+%7d%7d":     invalid.PlaceholderNotAllowed,
		"https://psp.example/%7B%7B%20number%20%7d%7d": invalid.UnknownPlaceholder,
		"https://psp.example/%7B%7B":                   "",
	} {
		broken := template.Syntax{}.None([]byte(text), "a URL")
		if broken == nil && want != "" || broken != nil && broken.Code != want {
			t.Errorf("%s: %v", text, broken)
		}
	}
}

// TestMany: a body of nothing but placeholders costs little.
func TestMany(t *testing.T) {
	body := strings.Repeat("a={{eci}}&", 100_000)
	parsed, broken := template.Syntax{}.Body(formType, []byte(body))
	if broken != nil {
		t.Fatal(broken)
	}
	v := values()
	v.Of[template.ECI] = []byte("05")
	if n := testing.AllocsPerRun(2, func() { parsed.Fill(v) }); n > 10 {
		t.Errorf("filling allocates %v times", n)
	}
	if got := render(t, parsed, v); string(got) != strings.Repeat("a=05&", 100_000) {
		t.Error("body differs")
	}
}

// TestApart: what looks like the beginning of an escape, and text beside a code, is taken where
// it cannot mislead.
func TestApart(t *testing.T) {
	for _, c := range []struct{ contentType, body, want string }{
		{jsonType, `"100% {{ expiry_month }}"`, `"100% 04"`},
		{jsonType, `"\\u0041{{ expiry_month }}\n{{ expiry_yy }}"`, `"\\u004104\n31"`},
		{formType, `n=%41{{account_number}}&m=a%26{{expiry_month}}`, `n=%414242424242424242&m=a%2604`},
		{xmlType, `<a>R&amp;D &#65;{{expiry_month}}</a>`, `<a>R&amp;D &#65;04</a>`},
		{xmlType, "<?xml version='1.0' encoding='utf-8'?>\n<a>\n <c> {{security_code}}\n</c></a>", "<?xml version='1.0' encoding='utf-8'?>\n<a>\n <c> 739\n</c></a>"},
		{xmlType, "\ufeff<a c='{{security_code}}'/>", "\ufeff<a c='739'/>"},
	} {
		if got, broken := filled(t, template.Syntax{}, c.contentType, c.body); got != c.want {
			t.Errorf("%s becomes %s %s", c.body, got, broken)
		}
	}
}

// TestEscapesInForm: the cost of a body grows with its length alone. If it grew with the square
// of it, this would end with the time of all tests.
func TestEscapesInForm(t *testing.T) {
	const length = 4 << 20
	for _, piece := range []string{"%", "%7A", "{", "%7B%7B+", "{{a", "{{ "} {
		body := []byte("a={{eci}}" + strings.Repeat(piece, length/len(piece)))
		if parsed, broken := (template.Syntax{}).Body(formType, body); broken != nil || parsed.Names != template.Of(template.ECI) {
			t.Errorf("%q, repeated: %v", piece, broken)
		}
	}
}

// The tokens of a body with the inserted text in place of a plain one.
func tokens(contentType string, body []byte, from, to string) (any, error) {
	swap := func(s string) string { return strings.ReplaceAll(s, from, to) }
	switch contentType {
	case formType:
		var all []string
		for pair := range strings.SplitSeq(string(body), "&") {
			name, value, _ := strings.Cut(pair, "=")
			decoded, err := url.QueryUnescape(value)
			if err != nil {
				return nil, err
			}
			all = append(all, name, swap(decoded))
		}
		return all, nil
	case xmlType:
		var all []string
		d := xml.NewDecoder(bytes.NewReader(body))
		for {
			token, err := d.RawToken()
			switch token := token.(type) {
			case xml.CharData:
				all = append(all, swap(string(token)))
			case xml.StartElement:
				for _, a := range token.Attr {
					all = append(all, a.Name.Local, swap(a.Value))
				}
			default:
				all = append(all, fmt.Sprint(token))
			}
			if err == io.EOF {
				return all, nil
			}
			if err != nil {
				return nil, err
			}
		}
	}
	var all []string
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber()
	for {
		token, err := d.Token()
		if s, ok := token.(string); ok {
			token = swap(s)
		}
		all = append(all, fmt.Sprint(token))
		if err == io.EOF {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

// FuzzBody: whatever a template is, an inserted value decodes to itself in its place, and
// changes nothing else.
func FuzzBody(f *testing.F) {
	f.Add(uint8(0), []byte(`{"a":"{{ cardholder_name }}","b":["x{{account_number}}y",1]}`), hostile)
	f.Add(uint8(1), []byte(`a={{ cardholder_name }}&b=%7B%7B+account_number+%7D%7D`), hostile)
	f.Add(uint8(2), []byte(`<a b="{{ cardholder_name }}"><c>{{ account_number }}</c></a>`), "a\r\nb: c")
	f.Add(uint8(0), []byte(`"{{expiry_month|number}}"`), "{{ account_number }}")
	f.Fuzz(func(t *testing.T, kind uint8, body []byte, value string) {
		contentType := []string{jsonType, formType, xmlType}[kind%3]
		value = strings.ToValidUTF8(value, "?")
		if contentType == xmlType { // which cannot have all characters
			value = strings.Map(func(r rune) rune {
				if r < ' ' || r == 0xFFFE || r == 0xFFFF {
					return '?'
				}
				return r
			}, value)
		}
		parsed, broken := template.Syntax{}.Body(contentType, body)
		if broken != nil || parsed.Names == 0 || value == "" {
			return
		}
		const stand = "PLAINTEXT"
		if bytes.Contains(body, []byte(stand)) || strings.Contains(value, stand) {
			return
		}
		fill := func(text string) []byte {
			v := values()
			for _, n := range []template.Name{template.CardholderName, template.AccountNumber} {
				v.Of[n] = []byte(text)
			}
			return render(t, parsed, v)
		}
		want, err := tokens(contentType, fill(stand), stand, value)
		if err != nil {
			return
		}
		got, err := tokens(contentType, fill(value), "", "")
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Fatalf("%q with %q is %q: %q, %v; want %q", body, value, fill(value), got, err, want)
		}
	})
}
