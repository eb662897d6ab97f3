package wire_test

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/idv"
	"github.com/cardvault/cardvault/internal/wire"
	"github.com/cardvault/cardvault/network"
	"github.com/google/uuid"
)

// TestReadLong: a list or an object with too many parts is refused before all of it is held
// in memory.
func TestReadLong(t *testing.T) {
	for name, text := range map[string]string{
		"a list":   `{"texts":[` + strings.Repeat("0,", 1<<20) + `0]}`,
		"a struct": `{` + strings.Repeat(`"a":0,`, 1<<20) + `"b":0}`,
		"a member": `{"reason":{` + strings.Repeat(`"a":0,`, 1<<20) + `"b":0}}`,
	} {
		allocs := testing.AllocsPerRun(1, func() {
			if err := wire.Read("shapes", []byte(text), new(shapes)); err == nil {
				t.Errorf("%s is read", name)
			}
		})
		if allocs > 20*wire.MaxItems {
			t.Errorf("%s: %.0f allocations", name, allocs)
		}
	}
}

// TestAppendNil: a missing item is written as null.
func TestAppendNil(t *testing.T) {
	if got := string(wire.Append(nil, &wire.Page[*other]{Items: []*other{nil, {}}})); !strings.HasPrefix(got, `{"data":[null,{`) {
		t.Error(got)
	}
}

// FuzzAppendString: a string is read back unchanged, except for bytes that are not valid
// UTF-8.
func FuzzAppendString(f *testing.F) {
	for _, s := range []string{"", "plain", `"\/`, "\x00\x1f\x7f", "Zoë 日本 🙂", "<>&\u2028", "\xff\xc3", "\ufeff"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		var got string
		if err := json.Unmarshal(wire.AppendString(nil, s), &got); err != nil {
			t.Fatal(err)
		}
		if utf8.ValidString(s) && got != s {
			t.Errorf("%q reads as %q", s, got)
		}
	})
}

// TestObject: every member that can be absent is then null.
func TestObject(t *testing.T) {
	id := uuid.MustParse("7d7f3a52-6f0e-4d0b-8a43-0d2f9ddc2b11")
	at := time.Date(2026, 1, 2, 4, 4, 5, 6999, time.FixedZone("", 3600))
	o := wire.Object{B: []byte("x")}
	o.Open()
	o.Text("a", "")
	o.Text("b", "é\"")
	o.ID("c", uuid.Nil)
	o.ID("d", id)
	o.Time("e", time.Time{})
	o.Time("f", at)
	o.Name("g")
	o.Open()
	o.Close()
	o.Name("h")
	o.B = wire.Append(o.B, &cardvault.Failure{Source: network.SourceConfiguration, Code: "x", Retryable: true})
	o.Int("i", -7)
	o.Bool("j", false)
	o.Null("k")
	o.Close()
	o.Reopen()
	o.Bool("l", true)
	o.Close()
	const want = `x{"a":null,"b":"é\"","c":null,"d":"7d7f3a52-6f0e-4d0b-8a43-0d2f9ddc2b11","e":null,` +
		`"f":"2026-01-02T03:04:05.000006Z","g":{},"h":{"source":"configuration","code":"x","message":null,` +
		`"retryable":true,"scheme_code":null},"i":-7,"j":false,"k":null,"l":true}`
	if string(o.B) != want {
		t.Errorf("wrote %s\nwant  %s", o.B, want)
	}
}

// shapes has a field of each kind, with each option.
type shapes struct {
	Also    string
	Text    string            `wire:"text"`
	Words   bool              `wire:"words,off|on"`
	Bool    bool              `wire:"bool"`
	Int     int64             `wire:"int"`
	Code    int               `wire:"code,null"`
	Count   uint64            `wire:"count"`
	Name    card.Name         `wire:"name"`
	ID      uuid.UUID         `wire:"id"`
	At      time.Time         `wire:"at"`
	Hash    [4]byte           `wire:"hash"`
	Scheme  card.Scheme       `wire:"scheme"`
	Expiry  card.Expiry       `wire:"month+year"`
	Reason  *cardvault.Reason `wire:"reason"`
	Empty   *wire.Pagination  `wire:"empty,empty"`
	Other   *other            `wire:"other,id=OtherID"`
	Page    wire.Pagination   `wire:"page"`
	Texts   []cardvault.Scope `wire:"texts"`
	IDs     []uuid.UUID       `wire:"ids,left_out"`
	Others  []other           `wire:"others"`
	Places  []*other          `wire:"places"`
	OtherID uuid.UUID
}

type other struct {
	ID   uuid.UUID `wire:"id"`
	Text string    `wire:"text"`
}

var one, two = uuid.MustParse("7d7f3a52-6f0e-4d0b-8a43-0d2f9ddc2b11"), uuid.MustParse("7d7f3a52-6f0e-4d0b-8a43-0d2f9ddc2b12")

// TestAppend: members are written as their tags say, and read back, whether absent or
// present.
func TestAppend(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)
	for _, test := range []struct {
		value shapes
		want  string
	}{
		{shapes{Also: "no member"}, `{"text":null,"words":"off","bool":false,"int":0,"code":null,"count":0,"name":null,"id":null,"at":null,"hash":null,` +
			`"scheme":"Unknown","month":0,"year":0,"reason":null,"empty":{},"other":null,` +
			`"page":{"current_page":0,"page_size":0,"total_items":0,"total_pages":0},"texts":[],"others":[],"places":[]}`},
		{shapes{
			Text: "a<\u00e9", Words: true, Bool: true, Int: wire.MaxInt, Code: 200, Count: math.MaxUint64, Name: card.NewName([]byte("Zoë")), ID: one, At: at,
			Hash: [4]byte{1, 2, 3, 255}, Scheme: card.AmericanExpress, Expiry: card.Expiry{Month: 4, Year: 2031},
			Reason: &cardvault.Reason{Source: network.SourceScheme, Code: "declined", OccurredAt: at}, Empty: &wire.Pagination{Page: 7},
			Other: &other{ID: two, Text: "x"}, OtherID: two, Texts: []cardvault.Scope{"a", "b"}, IDs: []uuid.UUID{one}, Others: []other{{one, ""}}, Places: []*other{{two, "y"}},
		}, `{"text":"a\u003cé","words":"on","bool":true,"int":9007199254740991,"code":200,"count":18446744073709551615,"name":"Zoë","id":"` + one.String() + `",` +
			`"at":"2026-01-02T03:04:05.000006Z","hash":"010203ff","scheme":"American Express","month":4,"year":2031,` +
			`"reason":{"source":"scheme","code":"declined","message":null,"retryable":false,"scheme_code":null,"occurred_at":"2026-01-02T03:04:05.000006Z"},` +
			`"empty":{"current_page":7,"page_size":0,"total_items":0,"total_pages":0},"other":{"id":"` + two.String() + `","text":"x"},` +
			`"page":{"current_page":0,"page_size":0,"total_items":0,"total_pages":0},"texts":["a","b"],"ids":["` + one.String() + `"],` +
			`"others":[{"id":"` + one.String() + `","text":null}],"places":[{"id":"` + two.String() + `","text":"y"}]}`},
		{shapes{OtherID: two}, ""}, // {"id":…} stands for an object without further members
	} {
		text := wire.Append([]byte("x"), &test.value)
		if test.want != "" && string(text) != "x"+test.want {
			t.Errorf("wrote %s\nwant  x%s", text, test.want)
		}
		var got shapes
		if err := wire.Read("shapes", text[1:], &got); err != nil {
			t.Fatal(err)
		}
		if again := wire.Append([]byte("x"), &got); string(again) != string(text) || got.OtherID != test.value.OtherID || (got.Other == nil) != (test.value.Other == nil) {
			t.Errorf("read  %s\nwrote %s", text, again)
		}
	}
}

// TestRead: the error for unreadable text names the member and shows none of its content.
func TestRead(t *testing.T) {
	const secret = "4242 Hidden"
	for member, values := range map[string][]string{
		"text":   {"7", "{}", "true"},
		"words":  {`"Hidden"`, `"ON"`, "true", `""`},
		"bool":   {`"true"`, "1"},
		"int":    {"-1", "1.5", "9007199254740992", `"1"`, "1e30"},
		"code":   {"-200", `"200"`},
		"count":  {"-1", "18446744073709551616", "1.5"},
		"name":   {"7", `["Hidden"]`},
		"id":     {`"Hidden"`, `"{7d7f3a52-6f0e-4d0b-8a43-0d2f9ddc2b11}"`, `"urn:uuid:7d7f3a52-6f0e-4d0b-8a43-0d2f9ddc2b11"`, "7"},
		"at":     {`"Hidden"`, `"2026-01-02"`, `"2026-01-02T03:04:05.0000001Z"`, "0"},
		"hash":   {`"01"`, `"0102030405"`, `"Hidden!!"`, "1"},
		"scheme": {`"Hidden"`, `"visa"`, `"unknown"`, `""`, "1"},
		"month":  {`"4"`, "-4"},
		"reason": {"[]", "7", `{"source":"Hidden"}`, `{"source":"unknown"}`, `{"code":7}`},
		"empty":  {"[]", `{"page_size":"Hidden"}`},
		"other":  {`{"id":"Hidden"}`, `"Hidden"`},
		"page":   {"[]"},
		"texts":  {"{}", "[7]", `"Hidden"`, "[" + strings.Repeat(`"",`, wire.MaxItems) + `""]`},
		"ids":    {`["Hidden"]`},
		"others": {`["Hidden"]`, "[null]"},
		"places": {`[{"text":7}]`},
	} {
		for _, value := range values {
			got := shapes{Text: "before"}
			err := wire.Read("shapes", []byte(`{"`+member+`":`+value+`,"also":1}`), &got)
			if err == nil || !strings.HasPrefix(err.Error(), "cardvault: shapes: "+member+" ") || strings.Contains(err.Error(), "Hidden") {
				t.Errorf("%s of %.40s: %v", member, value, err)
			}
			if got.Text != "" {
				t.Errorf("%s of %.40s leaves a partial result", member, value)
			}
		}
	}
	for _, text := range []string{"", "[]", `"` + secret + `"`, "{", "{}x", strings.Repeat(" ", wire.MaxSize) + "{}"} {
		if err := wire.Read("shapes", []byte(text), new(shapes)); err == nil || strings.Contains(err.Error(), secret) {
			t.Errorf("%.20s: %v", text, err)
		}
	}
	got := shapes{Text: "before"}
	if err := wire.Read("shapes", []byte("null"), &got); err != nil || got.Text != "before" {
		t.Errorf("null: %v, %+v", err, got)
	}
	if err := wire.Read("shapes", []byte(`{"bool":true,"unknown":{"x":[1]},"TEXT":"x"}`), &got); err != nil || !got.Bool || got.Text != "" {
		t.Errorf("%v, %+v", err, got)
	}
}

func token() *cardvault.Token {
	at := time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)
	return &cardvault.Token{
		ID:                       one,
		CreatedAt:                at,
		ExpiresAt:                at,
		CardholderName:           card.NewName([]byte("Zoë Quux")),
		Expiry:                   card.Expiry{Month: 4, Year: 2031},
		IIN:                      "424242",
		LastFour:                 "4242",
		AccountNumberLength:      16,
		MaskedAccountNumber:      "424242******4242",
		Scheme:                   card.VISA,
		BankName:                 "A Bank",
		NetworkTokenStatusReason: &cardvault.Reason{Code: "declined", Message: "no", OccurredAt: at},
		Authentication:           &idv.Authentication{Method: "challenge", ECI: "05", At: at},
		BusinessKey:              "42",
	}
}

func BenchmarkAppendToken(b *testing.B) {
	tok, buf := token(), make([]byte, 0, 4<<10)
	b.ReportAllocs()
	for b.Loop() {
		buf = wire.Append(buf[:0], tok)
	}
}
