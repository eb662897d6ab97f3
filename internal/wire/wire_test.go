package wire_test

import (
	"encoding/json"
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

// A string reads as what it was, but for bytes that are no UTF-8.
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

// Every member that can be absent is null when it is.
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
	o.Open()
	o.Failure(cardvault.Failure{Source: network.SourceConfiguration, Code: "x", Retryable: true})
	o.Close()
	o.Int("i", -7)
	o.Bool("j", false)
	o.Null("k")
	o.Close()
	const want = `x{"a":null,"b":"é\"","c":null,"d":"7d7f3a52-6f0e-4d0b-8a43-0d2f9ddc2b11","e":null,` +
		`"f":"2026-01-02T03:04:05.000006Z","g":{},"h":{"source":"configuration","code":"x","message":null,` +
		`"retryable":true,"scheme_code":null},"i":-7,"j":false,"k":null}`
	if string(o.B) != want {
		t.Errorf("wrote %s\nwant  %s", o.B, want)
	}
}

func token() *cardvault.Token {
	at := time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)
	return &cardvault.Token{
		ID:                       uuid.MustParse("7d7f3a52-6f0e-4d0b-8a43-0d2f9ddc2b11"),
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

// What of a token goes where is proven by package httpapi: here, that it is JSON
// behind what was there before, and that no name is there twice.
func TestAppendToken(t *testing.T) {
	for _, tok := range []*cardvault.Token{token(), new(cardvault.Token)} {
		b := wire.AppendToken([]byte("["), tok)
		var all []map[string]json.RawMessage
		if err := json.Unmarshal(append(b, ']'), &all); err != nil {
			t.Fatalf("%v: %s", err, b)
		}
		if len(all[0]) != 26 {
			t.Errorf("%d members: %s", len(all[0]), b)
		}
	}
}

func BenchmarkAppendToken(b *testing.B) {
	tok, buf := token(), make([]byte, 0, 4<<10)
	b.ReportAllocs()
	for b.Loop() {
		buf = wire.AppendToken(buf[:0], tok)
	}
}
