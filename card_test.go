package cardvault_test

import (
	"bytes"
	"encoding"
	"encoding/base64"
	"encoding/gob"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	htmltemplate "html/template"
	"log"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"text/template"
	"time"
	"unicode/utf8"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/internal/iin"
	"github.com/cardvault/cardvault/store/memstore"
)

// A shyCard holds the values that must not be printed. There are two of them: a printed
// address or time may contain a few digits of one by chance, but not of both.
type shyCard struct{ pan, masked, code, name string }

var shyCards = [2]shyCard{
	{"4539578763621486", "453957******1486", "8391", "Quixworth Zymurgy"},
	{"5425233430109903", "542523******9903", "2467", "Fjordbank Whysper"},
}

func (s *shyCard) card() cardvault.Card {
	return cardvault.Card{
		PAN:          card.NewPAN([]byte(s.pan)),
		Expiry:       card.Expiry{Month: 12, Year: 2030},
		SecurityCode: card.NewSecurityCode([]byte(s.code)),
		Name:         card.NewName([]byte(s.name)),
		Contact:      card.NewContact([]byte(`{"email":"` + s.name + `"}`)),
	}
}

// These types contain a value. For unexported fields, fmt does not call methods.
type (
	exported[T any]      struct{ V T }
	unexported[T any]    struct{ v T }
	exportedPtr[T any]   struct{ V *T }
	unexportedPtr[T any] struct{ v *T }
	nested[T any]        struct {
		In exported[T]
		in unexported[T]
	}
	exportedAny   struct{ V any }
	unexportedAny struct{ v any }

	embedsPAN     struct{ card.PAN }
	embedsPANPtr  struct{ *card.PAN }
	embedsCode    struct{ card.SecurityCode }
	embedsName    struct{ card.Name }
	embedsCard    struct{ cardvault.Card }
	embedsCardPtr struct{ *cardvault.Card }
)

// held is an error that carries a value.
type held[T any] struct{ V T }

func (h held[T]) Error() string { return fmt.Sprint("held: ", h.V) }

// containers returns v inside every kind of value in which a program is likely to print it.
func containers[T any](v T) map[string]any {
	p := &v
	return map[string]any{
		"bare": v, "pointer": p, "pointer to pointer": &p,
		"field": exported[T]{v}, "pointer to struct": &exported[T]{v}, "pointer field": exportedPtr[T]{p},
		"hidden field": unexported[T]{v}, "pointer to hidden field": &unexported[T]{v}, "hidden pointer field": unexportedPtr[T]{p},
		"nested": nested[T]{exported[T]{v}, unexported[T]{v}},
		"slice":  []T{v}, "slice of pointers": []*T{p}, "slice of hidden": []unexported[T]{{v}}, "array": [2]T{v, v},
		"map": map[string]T{"k": v}, "map of hidden": map[string]unexported[T]{"k": {v}},
		"interface": []any{v, p}, "interface field": exportedAny{v}, "hidden interface field": unexportedAny{v},
		"error": held[T]{v}, "joined errors": errors.Join(held[T]{v}, held[*T]{p}),
	}
}

var verbs = []string{
	"%v", "%+v", "%#v", "%s", "%+s", "%#s", "%q", "%+q", "%#q", "% q", "%x", "%X", "% x", "% X", "%#x", "%# x", "%d", "%+d", "%08d",
	"%t", "%c", "%U", "%#U", "%b", "%#b", "%o", "%O", "%#o", "%e", "%E", "%f", "%g", "%G", "%p", "%#p", "%T", "%w", "%z",
	"%40v", "%-40v|", "%.9s", "%.99v", "%[1]v %[1]d", "%!", "plain",
}

// prints returns v printed in every way that a program may print it. For a value that cannot
// be encoded, it returns the error.
func prints(v any) map[string]string {
	out := map[string]string{
		"Sprint":   fmt.Sprint(v),
		"Sprintln": fmt.Sprintln("x", v),
		"panic":    recovered(v),
	}
	for _, verb := range verbs {
		out["Sprintf "+verb] = fmt.Sprintf(verb, v)
		out["Errorf "+verb] = fmt.Errorf(verb, v).Error()
	}
	to := func(name string, print func(b *bytes.Buffer) error) {
		var b bytes.Buffer
		err := print(&b)
		out[name] = fmt.Sprint(b.String(), err)
	}
	to("json", func(b *bytes.Buffer) error { return json.NewEncoder(b).Encode(v) })
	to("json in a map", func(b *bytes.Buffer) error { return json.NewEncoder(b).Encode(map[string]any{"k": v}) })
	to("xml", func(b *bytes.Buffer) error { return xml.NewEncoder(b).Encode(v) })
	to("gob", func(b *bytes.Buffer) error { return gob.NewEncoder(b).Encode(v) })
	to("log", func(b *bytes.Buffer) error {
		l := log.New(b, "", 0)
		l.Print(v)
		l.Println(v)
		l.Printf("%v %+v %#v", v, v, v)
		return nil
	})
	for _, text := range []string{
		`{{.}}`, `{{print .}}`, `{{printf "%#v" .}}`, `{{printf "%x" .}}`, `{{js .}}`, `{{html .}}`, `{{urlquery .}}`, `{{len .}}`, `{{.V}}`, `{{.PAN}}`,
	} {
		to("text/template "+text, func(b *bytes.Buffer) error {
			return template.Must(template.New("").Parse(text)).Execute(b, v)
		})
	}
	for _, text := range []string{
		`<p title="{{.}}">{{.}}</p>`, `<script>var x = {{.}}</script>`, `<a href="?q={{.}}" style="color: {{.}}" onclick="f({{.}})">`,
	} {
		to("html/template "+text, func(b *bytes.Buffer) error {
			return htmltemplate.Must(htmltemplate.New("").Parse(text)).Execute(b, v)
		})
	}
	timeless := &slog.HandlerOptions{ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
		if len(groups) == 0 && a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}
	for name, handler := range map[string]func(b *bytes.Buffer) slog.Handler{
		"text": func(b *bytes.Buffer) slog.Handler { return slog.NewTextHandler(b, timeless) },
		"json": func(b *bytes.Buffer) slog.Handler { return slog.NewJSONHandler(b, timeless) },
	} {
		to("slog "+name, func(b *bytes.Buffer) error {
			l := slog.New(handler(b))
			l.Info("x", "k", v)
			l.Info("x", slog.Any("k", v), slog.Group("g", "k", v))
			l.With("k", v).WithGroup("g").With("k", v).Info("x")
			l.Info("x", "k", struct{ V any }{v}, "k", []any{v}, "k", slog.AnyValue(v), "k", slog.GroupValue(slog.Any("k", v)))
			l.Info("x", v)
			return nil
		})
	}
	return out
}

func recovered(v any) (said string) {
	defer func() { said = fmt.Sprintf("%v %+v", v, recover()) }()
	panic(v)
}

// A detector finds parts of secrets in texts, in clear and encoded.
type detector struct{ plain, encoded []string }

// parts returns the texts that must not appear: the code, and every five consecutive letters
// of the name. It adds every seven consecutive digits of the number, and every five of its
// hidden digits.
func (s *shyCard) parts() (parts []string) {
	windows := func(s string, n int) {
		for i := range len(s) - n + 1 {
			parts = append(parts, s[i:i+n])
		}
	}
	windows(s.pan, 7)
	windows(s.pan[6:len(s.pan)-4], 5)
	windows(s.name, 5)
	return append(parts, s.code)
}

func (s *shyCard) detector() *detector {
	d := new(detector)
	for _, part := range s.parts() {
		d.plain = append(d.plain, part, strings.ToUpper(part))
		for _, verb := range []string{"%d", "%+d", "%08d", "%x", "%X", "%#x", "%#X", "%o", "%#o", "%O", "%b", "%#b", "%c", "%q", "%U", "%#U", "\\x%x", "\\u%04x", "%%!t(uint8=%d)", "%%!e(uint8=%d)", "<%d>"} {
			for _, sep := range []string{"", " ", ",", ", ", "\n"} {
				var each []string
				for _, c := range []byte(part) {
					each = append(each, fmt.Sprintf(verb, c))
				}
				if s := strings.Join(each, sep); s != part {
					d.encoded = append(d.encoded, s)
				}
			}
		}
		// In base64 a text has one of three forms, apart from its ends.
		for offset := range 3 {
			s := base64.StdEncoding.EncodeToString([]byte(strings.Repeat("\x00", offset) + part + "\x00\x00\x00"))
			first, last := (offset*8+5)/6, (offset+len(part))*8/6
			if last-first >= 5 {
				d.encoded = append(d.encoded, s[first:last])
			}
		}
	}
	return d
}

var address = regexp.MustCompile(`0x[0-9a-f]+`)

func (d *detector) finds(text string) (part string, found bool) {
	for _, part := range d.encoded {
		if strings.Contains(text, part) {
			return part, true
		}
	}
	// An address may contain any few digits.
	text = address.ReplaceAllString(text, "")
	for _, part := range d.plain {
		if strings.Contains(text, part) {
			return part, true
		}
	}
	return "", false
}

func (s *shyCard) values() map[string]map[string]any {
	c := s.card()
	return map[string]map[string]any{
		"PAN":          containers(c.PAN),
		"SecurityCode": containers(c.SecurityCode),
		"Name":         containers(c.Name),
		"Card":         containers(c),
		"embedded": {
			"PAN": embedsPAN{c.PAN}, "PAN pointer": embedsPANPtr{&c.PAN}, "code": embedsCode{c.SecurityCode},
			"name": embedsName{c.Name}, "card": embedsCard{c}, "card pointer": &embedsCardPtr{&c},
		},
	}
}

func TestNothingPrints(t *testing.T) {
	ways := 0
	d, other := shyCards[0].detector(), shyCards[1].detector()
	others := shyCards[1].values()
	for name, values := range shyCards[0].values() {
		for container, v := range values {
			otherTexts := prints(others[name][container])
			for way, text := range prints(v) {
				ways++
				part, found := d.finds(text)
				if _, again := other.finds(otherTexts[way]); found && again {
					t.Errorf("%s, %s, %s: %q shows in %q", name, container, way, part, text)
				}
			}
		}
	}
	t.Logf("%d ways", ways)
}

// A guardedString has every method by which a type can hide itself, and yet it is a string.
type guardedString string

func (guardedString) String() string               { return "***" }
func (guardedString) GoString() string             { return "***" }
func (guardedString) Format(s fmt.State, _ rune)   { fmt.Fprint(s, "***") }
func (guardedString) LogValue() slog.Value         { return slog.StringValue("***") }
func (guardedString) MarshalText() ([]byte, error) { return []byte("***"), nil }

var _ encoding.TextMarshaler = guardedString("")

// TestDetectorFindsLeaks: the detector finds secrets in other types. Otherwise the test
// above would prove nothing.
func TestDetectorFindsLeaks(t *testing.T) {
	shy := shyCards[0]
	d := shy.detector()
	leaks := func(values map[string]any) (n, of int, ways map[string]bool) {
		ways = map[string]bool{}
		for _, v := range values {
			for way, text := range prints(v) {
				of++
				if _, found := d.finds(text); found {
					n++
					ways[way] = true
				}
			}
		}
		return n, of, ways
	}
	for _, secret := range []string{shy.pan, shy.code, shy.name} {
		n, of, ways := leaks(containers([]byte(secret)))
		t.Logf("bytes: %d of %d ways", n, of)
		for way := range prints(nil) {
			verb := way[strings.LastIndexByte(way, ' ')+1:]
			silent := strings.Contains(" %p %#p %T %! plain {{len .}} {{.PAN}} ", " "+verb+" ")
			if !silent && !ways[way] {
				t.Errorf("%d bytes are not found in any container: %s", len(secret), way)
			}
		}
		n, of, _ = leaks(containers(guardedString(secret)))
		t.Logf("string with all methods: %d of %d ways", n, of)
		if n < of/10 {
			t.Errorf("%d of %d ways", n, of)
		}
	}
}

// TestPanicPrintsNothing: the runtime prints nothing secret of a panic that is not
// recovered.
func TestPanicPrintsNothing(t *testing.T) {
	shy := shyCards[0]
	c := shy.card()
	values := map[string]any{
		"PAN": c.PAN, "pointer": &c.PAN, "code": c.SecurityCode, "name": c.Name, "card": c,
		"hidden field": unexported[card.PAN]{c.PAN}, "error": held[cardvault.Card]{c}, "embedded": embedsPAN{c.PAN},
	}
	if v, ok := values[os.Getenv("CARDVAULT_TEST_PANIC")]; ok {
		panic(v)
	}
	d := shy.detector()
	for name := range values {
		cmd := exec.Command(os.Args[0], "-test.run=^TestPanicPrintsNothing$")
		cmd.Env = append(os.Environ(), "CARDVAULT_TEST_PANIC="+name)
		out, err := cmd.CombinedOutput()
		if err == nil || !bytes.Contains(out, []byte("panic: ")) {
			t.Fatalf("%s: no panic, %v", name, err)
		}
		if part, found := d.finds(string(out)); found {
			t.Errorf("%s: %q shows in\n%s", name, part, out)
		}
	}
}

func TestMaskedForm(t *testing.T) {
	shy := shyCards[0]
	for digits, want := range map[string]string{
		"":                     "",
		"453957876362":         "453957**6362",
		shy.pan:                shy.masked,
		"4539578763621486019":  "453957*********6019",
		"45395787636":          "***", // too short to have a middle
		"45395787636214860190": "***",
		"4539 5787 6362 1486":  "***",
		"45395787636214٣":      "***",
		"Quixworth Zymurgy":    "***",
	} {
		if got := card.NewPAN([]byte(digits)).String(); got != want {
			t.Errorf("PAN of %d bytes is %q, want %q", len(digits), got, want)
		}
	}
	c := shy.card()
	for _, v := range []any{c.SecurityCode, c.Name, c.Contact, card.NewSecurityCode([]byte("1")), card.NewName(make([]byte, 300))} {
		if got := fmt.Sprint(v); got != "***" {
			t.Errorf("%T is %q", v, got)
		}
	}
	data, err := json.Marshal(c)
	if want := `{"PAN":"` + shy.masked + `","Expiry":{"Month":12,"Year":2030},"SecurityCode":"***","Name":"***","Contact":"***"}`; err != nil || string(data) != want {
		t.Errorf("%s, %v", data, err)
	}
	for name, v := range map[string]any{"PAN": card.PAN{}, "code": card.SecurityCode{}, "name": card.Name{}, "contact": card.Contact{}} {
		if got := fmt.Sprintf("%v%s%d", v, v, v); got != "" {
			t.Errorf("no %s is %q", name, got)
		}
	}
}

// TestNoComparison: values cannot be compared with ==, since their structs are not
// comparable.
func TestNoComparison(t *testing.T) {
	for _, typ := range []reflect.Type{
		reflect.TypeFor[card.PAN](), reflect.TypeFor[card.SecurityCode](), reflect.TypeFor[card.Name](), reflect.TypeFor[cardvault.Card](),
	} {
		if typ.Comparable() {
			t.Errorf("%v can be compared with ==", typ)
		}
	}
}

func TestExpose(t *testing.T) {
	shy := shyCards[0]
	digits := []byte(shy.pan)
	p := card.NewPAN(digits)
	clear(digits) // it was copied
	p.Expose(func(d []byte) {
		if string(d) != shy.pan {
			t.Errorf("exposes %d bytes other than the digits", len(d))
		}
	})
	for _, p := range []card.PAN{{}, card.NewPAN(nil), card.NewPAN([]byte{})} {
		called := false
		p.Expose(func(d []byte) { called = d == nil })
		if !called || !p.IsZero() {
			t.Error("the zero number exposes something")
		}
	}
	if p.IsZero() {
		t.Error("a number is reported as the zero number")
	}
}

func TestWipe(t *testing.T) {
	c := shyCards[0].card()
	other, pan, code, name := c, c.PAN, c.SecurityCode, c.Name
	var kept [][]byte // as a faulty caller would keep them
	keep := func(b []byte) { kept = append(kept, b) }
	for _, expose := range []func(func([]byte)){pan.Expose, code.Expose, name.Expose} {
		expose(keep)
	}
	c.Wipe()
	for _, expose := range []func(func([]byte)){
		c.PAN.Expose, c.SecurityCode.Expose, c.Name.Expose, other.PAN.Expose, other.SecurityCode.Expose, other.Name.Expose,
		pan.Expose, code.Expose, name.Expose,
	} {
		expose(keep)
	}
	for i, b := range kept {
		if len(b) == 0 || len(bytes.Trim(b, "\x00")) > 0 {
			t.Errorf("copy %d of %d bytes is not wiped", i, len(b))
		}
	}
	if said := c.PAN.String(); said != "***" {
		t.Errorf("a wiped number is %q", said)
	}
	cardvault.Card{}.Wipe() // does nothing
}

func TestExpired(t *testing.T) {
	latest := time.FixedZone("the last place on earth where a day ends", -12*3600)
	earliest := time.FixedZone("the first", 14*3600)
	for _, e := range []struct {
		expiry  card.Expiry
		lastDay time.Time // the very end of the month
	}{
		{card.Expiry{Month: 12, Year: 2030}, time.Date(2030, 12, 31, 23, 59, 59, 999_999_999, latest)},
		{card.Expiry{Month: 1, Year: 2030}, time.Date(2030, 1, 31, 23, 59, 59, 999_999_999, latest)},
		{card.Expiry{Month: 2, Year: 2028}, time.Date(2028, 2, 29, 23, 59, 59, 999_999_999, latest)},
		{card.Expiry{Month: 2, Year: 2030}, time.Date(2030, 2, 28, 23, 59, 59, 999_999_999, latest)},
		{card.Expiry{Month: 4, Year: 2030}, time.Date(2030, 4, 30, 23, 59, 59, 999_999_999, latest)},
	} {
		for at, want := range map[time.Time]bool{
			e.lastDay:                               false,
			e.lastDay.UTC():                         false,
			e.lastDay.In(earliest):                  false,
			e.lastDay.Add(time.Nanosecond):          true,
			e.lastDay.Add(time.Nanosecond).UTC():    true,
			e.lastDay.AddDate(-1, 0, 0):             false,
			e.lastDay.AddDate(1, 0, 0).In(earliest): true,
		} {
			if got := e.expiry.Expired(at); got != want {
				t.Errorf("%d/%d at %v: %v", e.expiry.Month, e.expiry.Year, at, got)
			}
		}
	}
}

func TestScheme(t *testing.T) {
	for scheme, name := range map[card.Scheme]string{
		card.UnknownScheme: "Unknown", card.VISA: "VISA", card.Mastercard: "Mastercard",
		card.AmericanExpress: "American Express", card.Discover: "Discover",
		card.DinersClub: "Diners Club", card.JCB: "JCB", card.UnionPay: "UnionPay",
	} {
		if got := scheme.String(); got != name {
			t.Errorf("%d is %q, want %q", scheme, got, name)
		}
	}
	for _, name := range []string{"", "visa", "VISA ", "Maestro"} {
		var got card.Scheme
		if got.UnmarshalText([]byte(name)) == nil {
			t.Errorf("%q is %v", name, got)
		}
	}
}

func checker(t *testing.T, opts *cardvault.Options) func(cardvault.Card) error {
	t.Helper()
	v, err := cardvault.New(t.Context(), memstore.New(), mustKeyBytes(t, goldenKey()), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := v.Close(); err != nil {
			t.Error(err)
		}
	})
	return func(c cardvault.Card) error { return v.Check(c, nil) }
}

// codes returns "field code" for each FieldError.
func codes(err error) string {
	var s []string
	for _, e := range cardvault.FieldErrors(err) {
		s = append(s, e.Field+" "+string(e.Code))
	}
	return strings.Join(s, ", ")
}

func TestCheckPAN(t *testing.T) {
	check, lax := checker(t, nil), checker(t, &cardvault.Options{AllowNonLuhn: true})
	for _, c := range []struct{ digits, code, lax string }{
		{"", "required", "required"},
		{"4", "too_short", "too_short"},
		{"42424242424", "too_short", "too_short"},
		{"42424242424242424242", "too_long", "too_long"},
		{strings.Repeat("4", 10_000), "too_long", "too_long"},
		{"4242 4242 4242 4242", "invalid_format", "invalid_format"},
		{"4242-4242-4242-4242", "invalid_format", "invalid_format"},
		{"42424242x", "invalid_format", "invalid_format"},
		{" 4242424242424242", "invalid_format", "invalid_format"},
		{"4242424242424242\n", "invalid_format", "invalid_format"},
		{"４２４２４２４２４２４２４２４２", "invalid_format", "invalid_format"},
		{"424242424242424\xff", "invalid_format", "invalid_format"},
		{"4242424242424242", "", ""},
		{"4242424242424241", "luhn", ""},
		{"4222222222222", "", ""}, // VISA, 13 digits
		{"4000000000000000006", "", ""},
		{"42424242424242", "invalid_format", "invalid_format"}, // VISA, 14 digits
		{"5555555555554444", "", ""},
		{"555555555555557", "invalid_format", "invalid_format"}, // Mastercard, 15 digits
		{"2223003122003222", "", ""},
		{"6759649826438453", "", ""}, // Maestro
		{"676770000000", "luhn", ""}, // Maestro, 12 digits
		{"378282246310005", "", ""},
		{"3782822463100050", "invalid_format", "invalid_format"}, // American Express, 16 digits
		{"6011111111111117", "", ""},
		{"30569309025904", "", ""},
		{"3530111333300000", "", ""},
		{"6200000000000005", "", ""},
		{"9792030000000000", "", ""}, // Troy
		{"9792030000000001", "luhn", ""},
	} {
		given := cardvault.Card{PAN: card.NewPAN([]byte(c.digits)), Expiry: card.Expiry{Month: 1, Year: 2030}}
		for mode, want := range map[string]string{"strict": c.code, "lax": c.lax} {
			err := check(given)
			if mode == "lax" {
				err = lax(given)
			}
			if want != "" {
				want = "PAN " + want
			}
			if got := codes(err); got != want || (err == nil) != (want == "") {
				t.Errorf("%d bytes, %.20q, %s: %q, want %q", len(c.digits), c.digits, mode, got, want)
			}
		}
	}
}

func TestCheckExpiry(t *testing.T) {
	check := checker(t, nil)
	for expiry, want := range map[card.Expiry]string{
		{Month: 1, Year: 2000}:     "", // expired long ago, as in a migration
		{Month: 12, Year: 2099}:    "",
		{Month: 0, Year: 2030}:     "Expiry.Month out_of_range",
		{Month: 13, Year: 2030}:    "Expiry.Month out_of_range",
		{Month: -1, Year: 2030}:    "Expiry.Month out_of_range",
		{Month: 1, Year: 1999}:     "Expiry.Year out_of_range",
		{Month: 1, Year: 2100}:     "Expiry.Year out_of_range",
		{Month: 1, Year: 30}:       "Expiry.Year out_of_range",
		{Month: 0, Year: 0}:        "Expiry.Month out_of_range, Expiry.Year out_of_range",
		{Month: 1 << 30, Year: -1}: "Expiry.Month out_of_range, Expiry.Year out_of_range",
	} {
		if got := codes(check(cardvault.Card{PAN: card.NewPAN([]byte("4242424242424242")), Expiry: expiry})); got != want {
			t.Errorf("%d/%d: %q, want %q", expiry.Month, expiry.Year, got, want)
		}
	}
}

func TestCheckSecurityCodeAndName(t *testing.T) {
	check := checker(t, nil)
	given := cardvault.Card{PAN: card.NewPAN([]byte("4242424242424242")), Expiry: card.Expiry{Month: 1, Year: 2030}}
	for code, want := range map[string]string{
		"": "", "123": "", "0000": "",
		"1": "too_short", "12": "too_short", "12345": "too_long", "12a": "invalid_format", "12 ": "invalid_format", "1２3": "invalid_format",
	} {
		c := given
		c.SecurityCode = card.NewSecurityCode([]byte(code))
		if want != "" {
			want = "SecurityCode " + want
		}
		if got := codes(check(c)); got != want {
			t.Errorf("code of %d bytes: %q, want %q", len(code), got, want)
		}
	}
	for name, want := range map[string]string{
		"":                              "",
		"x":                             "",
		"Müller-Lüdenscheidt 李":         "",
		"O'Brien, Jr.":                  "",
		strings.Repeat("李", 255):        "",
		strings.Repeat("李", 256):        "too_long",
		" ":                             "blank",
		"\u00a0\u2003":                  "blank",
		"A\nB":                          "invalid_format",
		"A\x00B":                        "invalid_format",
		"\t":                            "blank",
		"A\u0085B":                      "invalid_format",
		"A\x7f":                         "invalid_format",
		"A\xff":                         "invalid_format",
		"4242424242424242":              "looks_like_pan",
		"A 4242424242424242 B":          "looks_like_pan",
		"x378282246310005x":             "looks_like_pan",
		"李4222222222222李":               "looks_like_pan",
		"1 4242424242424242":            "looks_like_pan",
		"1111111111111111":              "", // fails Luhn
		"00000000000":                   "", // too short for a card number
		"000000000000":                  "looks_like_pan",
		strings.Repeat("1 ", 127) + "1": "",
	} {
		c := given
		c.Name = card.NewName([]byte(name))
		if want != "" {
			want = "Name " + want
		}
		if got := codes(check(c)); got != want {
			t.Errorf("name %.30q of %d characters: %q, want %q", name, utf8.RuneCountInString(name), got, want)
		}
	}
}

// names holds cases that decide whether text in a name looks like a card number. The
// component shares them.
func names(t testing.TB) (cases struct{ Refused, Taken []string }) {
	t.Helper()
	text, err := os.ReadFile("testdata/names.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &cases); err != nil || len(cases.Refused) == 0 || len(cases.Taken) == 0 {
		t.Fatalf("cases: %v", err)
	}
	return cases
}

// TestNumberInName: a card number in place of a name is refused, however it is written.
func TestNumberInName(t *testing.T) {
	check := checker(t, nil)
	named := func(name string) string {
		return codes(check(cardvault.Card{
			PAN: card.NewPAN([]byte("4242424242424242")), Expiry: card.Expiry{Month: 1, Year: 2030}, Name: card.NewName([]byte(name)),
		}))
	}
	cases := names(t)
	for _, name := range cases.Refused {
		if got := named(name); got != "Name looks_like_pan" {
			t.Errorf("%q: %q", name, got)
		}
	}
	for _, name := range cases.Taken {
		if got := named(name); got != "" {
			t.Errorf("%q: %q", name, got)
		}
	}

	// Any number is refused, in digits of any script, with any separators, amid other text.
	scripts := []rune{'0', '\u0660', '\u06f0', '\u0966', '\uff10', 0x1d7ce, 0x1d7d8}
	random := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		digits := make([]byte, 11+random.IntN(8))
		for i := range digits {
			digits[i] = '0' + byte(random.IntN(10))
		}
		digits = append(digits, iin.CheckDigit(digits))
		name := "A"
		for _, d := range digits {
			name += string(scripts[random.IntN(len(scripts))] + rune(d-'0'))
			for random.IntN(3) == 0 {
				name += string([]rune(" -._/\u2003\u2014\u200d")[random.IntN(8)])
			}
		}
		if got := named(name + "B"); got != "Name looks_like_pan" && utf8.RuneCountInString(name) < 255 {
			t.Fatalf("%q: %q", name, got)
		}
	}
}

// TestCheckTellsAllAndNoValue: all violations are reported at once, without repeating a
// value.
func TestCheckTellsAllAndNoValue(t *testing.T) {
	check, shy := checker(t, nil), shyCards[0]
	err := check(cardvault.Card{
		PAN:          card.NewPAN([]byte(shy.pan + "0")),
		Expiry:       card.Expiry{Month: 13, Year: 1987},
		SecurityCode: card.NewSecurityCode([]byte(shy.code + "7")),
		Name:         card.NewName([]byte(shy.name + "\n")),
	})
	want := "PAN invalid_format, Expiry.Month out_of_range, Expiry.Year out_of_range, " +
		"SecurityCode too_long, Name invalid_format"
	if got := codes(err); got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	d := shy.detector()
	for _, e := range cardvault.FieldErrors(err) {
		text := fmt.Sprintf("%v %+v", err, *e)
		if part, found := d.finds(text); found || strings.Contains(text, "1987") {
			t.Errorf("%q shows in %q", part, text)
		}
	}
}
