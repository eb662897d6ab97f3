package main

import (
	"bytes"
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	mathrand "math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cardvault/cardvault/internal/iin"
	"github.com/evanw/esbuild/pkg/api"
	"github.com/go-jose/go-jose/v4"
)

// script is testdata/node.ts with the sources inserted.
var script = sync.OnceValues(func() ([]byte, error) {
	result := api.Build(api.BuildOptions{
		EntryPoints: []string{"testdata/node.ts"},
		Bundle:      true,
		Platform:    api.PlatformNode,
		Format:      api.FormatESModule,
	})
	if len(result.Errors) > 0 {
		return nil, errors.New(text(result.Errors))
	}
	return result.OutputFiles[0].Contents, nil
})

// call calls functions of the sources in Node.js. Each call is a function's name with its
// arguments.
func call[T any](t *testing.T, calls ...[]any) []T {
	t.Helper()
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skip("Node.js is not installed (Debian: apt-get install nodejs)")
	}
	source, err := script()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "node.mjs")
	if err := os.WriteFile(file, source, 0o600); err != nil {
		t.Fatal(err)
	}
	in, err := json.Marshal(calls)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), node, file)
	cmd.Stdin, cmd.Stderr = bytes.NewReader(in), os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var results []T
	if err := json.Unmarshal(out, &results); err != nil || len(results) != len(calls) {
		t.Fatalf("%d results: %v", len(results), err)
	}
	return results
}

// A row is a call with its result as JSON.
type row struct {
	call []any
	want string
}

func check(t *testing.T, rows []row) {
	t.Helper()
	var calls [][]any
	for _, r := range rows {
		calls = append(calls, r.call)
	}
	for i, got := range call[json.RawMessage](t, calls...) {
		if string(got) != rows[i].want {
			t.Errorf("%q is %s, want %s", rows[i].call, got, rows[i].want)
		}
	}
}

func TestDigits(t *testing.T) {
	check(t, []row{
		{[]any{"digitsOf", " 4111-1100 a\u00a0٠٩\t"}, `"4111110009"`},
		{[]any{"digitsOf", "٠١٢٣٤٥٦٧٨٩"}, `"0123456789"`}, // Arabic-Indic
		{[]any{"digitsOf", "۰۱۲۳۴۵۶۷۸۹"}, `"0123456789"`}, // Persian
		{[]any{"digitsOf", "०१२३४५६७८९"}, `"0123456789"`}, // Devanagari
		{[]any{"digitsOf", "０１２３４５６７８９"}, `"0123456789"`},
		{[]any{"digitsOf", "𝟘𝟙𝟗𝟬𝟿"}, `"01909"`}, // of runs without gaps between them
		{[]any{"digitsOf", "²½Ⅳ"}, `""`},
		{[]any{"digitsOf", ""}, `""`},
	})
}

func TestNumber(t *testing.T) {
	check(t, []row{
		{[]any{"group", ""}, `""`},
		{[]any{"group", "4111"}, `"4111"`},
		{[]any{"group", "41111"}, `"4111 1"`},
		{[]any{"group", "4111110000000005"}, `"4111 1100 0000 0005"`},
		{[]any{"group", "6205000000000000004"}, `"6205 0000 0000 0000 004"`},
		{[]any{"group", "378282000000008"}, `"3782 820000 00008"`},
		{[]any{"group", "36000000000008"}, `"3600 000000 0008"`},
		{[]any{"group", "360000000000000"}, `"3600 0000 0000 000"`},
		{[]any{"group", "123456789012345678901234"}, `"1234 5678 9012 3456 78901234"`},

		{[]any{"numberFault", ""}, `"required"`},
		{[]any{"numberFault", "4"}, `"incomplete"`},
		{[]any{"numberFault", "4111110"}, `"incomplete"`},
		{[]any{"numberFault", "411111000000000"}, `"incomplete"`},
		{[]any{"numberFault", "4111110000000005"}, `null`},
		{[]any{"numberFault", "4111110000000006"}, `"invalid"`},
		{[]any{"numberFault", "41111100000000050"}, `"incomplete"`},
		{[]any{"numberFault", "41111100000000000000"}, `"invalid"`},
		{[]any{"numberFault", "37828200000000"}, `"incomplete"`},
		{[]any{"numberFault", "3782820000000080"}, `"invalid"`},

		{[]any{"brandOf", ""}, `null`},
		{[]any{"brandOf", "4"}, `"VISA"`},
		{[]any{"brandOf", "40117"}, `null`},  // VISA or Elo
		{[]any{"brandOf", "401178"}, `null`}, // Elo
		{[]any{"brandOf", "3"}, `null`},
		{[]any{"brandOf", "30"}, `null`},
		{[]any{"brandOf", "300"}, `"Diners Club"`},
		{[]any{"brandOf", "37"}, `"American Express"`},
		{[]any{"brandOf", "35"}, `null`},
		{[]any{"brandOf", "353"}, `"JCB"`},
		{[]any{"brandOf", "2"}, `null`},
		{[]any{"brandOf", "222"}, `null`},
		{[]any{"brandOf", "223"}, `"Mastercard"`},
		{[]any{"brandOf", "5"}, `null`},
		{[]any{"brandOf", "55"}, `"Mastercard"`},
		{[]any{"brandOf", "6"}, `null`},
		{[]any{"brandOf", "65"}, `"Discover"`},
		{[]any{"brandOf", "62"}, `"UnionPay"`},
		{[]any{"brandOf", "9792"}, `null`},
		{[]any{"brandOf", "9792000000"}, `null`},
	})
}

// TestSchemes compares the component's checks of numbers with the vault's.
func TestSchemes(t *testing.T) {
	var numbers []string
	add := func(prefix string) {
		digits := []byte(prefix)
		for range 12 + mathrand.IntN(8) - len(prefix) - 1 {
			digits = append(digits, '0'+byte(mathrand.IntN(10)))
		}
		numbers = append(numbers, string(digits)+string(iin.CheckDigit(digits)), string(digits)+"0")
	}
	for _, s := range tables() {
		for _, at := range []int{s.from - 1, s.from, s.from + 1} {
			for range 8 {
				add(fmt.Sprintf("%08d", max(at, 0)))
			}
		}
	}
	for range 20_000 {
		add(fmt.Sprintf("%08d", mathrand.IntN(1e8)))
		add(fmt.Sprintf("65%06d", mathrand.IntN(1e6))) // eight digits decide here
	}
	var calls [][]any
	for _, n := range numbers {
		calls = append(calls, []any{"numberFault", n}, []any{"brandOf", n}, []any{"luhn", n})
	}
	results := call[any](t, calls...)
	for i, n := range numbers {
		scheme, lengthOK := iin.Detect([]byte(n))
		good := iin.Luhn([]byte(n))
		var brand any = scheme.String()
		if scheme == iin.Unknown {
			brand = nil
		}
		if fault := results[3*i]; (fault == nil) != (lengthOK && good) || results[3*i+1] != brand || results[3*i+2] != good {
			t.Fatalf("%s: the component says %v, the vault %v, %t, %t", n, results[3*i:3*i+3], scheme, lengthOK, good)
		}
	}
}

func TestEditing(t *testing.T) {
	edit := func(text string, removed ...any) []any {
		before, after, _ := strings.Cut(text, "|")
		return append([]any{"edit", before + after, len(before)}, removed...)
	}
	check(t, []row{
		{edit("41111|"), `{"text":"4111 1","caret":6}`},
		{edit("4111 |"), `{"text":"4111","caret":4}`},
		{edit("4119|1 11"), `{"text":"4119 111","caret":4}`},
		{edit("4111 9|111 1"), `{"text":"4111 9111 1","caret":6}`},
		{edit("|4111 1111"), `{"text":"4111 1111","caret":0}`},
		{edit("4111-1111 ٠|"), `{"text":"4111 1111 0","caret":11}`},
		{edit("4111x|"), `{"text":"4111","caret":4}`},
		{edit("4111|1111", "before"), `{"text":"4111 111","caret":3}`},
		{edit("4111|1112", "after"), `{"text":"4111 112","caret":4}`},
		{edit("|", "before"), `{"text":"","caret":0}`},
		{edit("41111111|", "after"), `{"text":"4111 1111","caret":9}`},
		{edit(strings.Repeat("1", 100) + "|"), `{"text":"1111 1111 1111 1111 11111111","caret":28}`},
	})
}

func TestExpiry(t *testing.T) {
	var rows []row
	for _, text := range []string{"1/30", "01/30", "01 / 30", "01/2030", "1-2030", "0130", "012030", "2030-01", "2030/1", "203001", "٠١/٣٠", " 01.30 "} {
		rows = append(rows, row{[]any{"parseExpiry", text}, `{"month":1,"year":2030}`}, row{[]any{"formatExpiry", text}, `"01/30"`})
	}
	for _, text := range []string{"", "/", "1", "01", "01/", "01/3", "013", "01/203", "01/20301", "01/30/2", "001/30", "1234567", "x"} {
		rows = append(rows, row{[]any{"parseExpiry", text}, `null`})
	}
	for text, want := range map[string]string{
		"": "", "0": "0", "1": "1", "2": "02/", "12": "12/", "13": "01/3", "00": "00/", "0030": "00/30", "130": "01/30", "1/": "01/", "1/3": "01/3",
		"0130": "01/30", "012030": "01/2030", "01/30": "01/30", "01/2030": "01/2030", "1 30": "01/30", "a1b": "1", "0/": "0", "/": "",
		"٠١٣٠": "01/30", "012030999": "01/2030",
	} {
		var keys []string
		for _, key := range text {
			keys = append(keys, string(key))
		}
		quoted, err := json.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		rows = append(rows, row{[]any{"type", append([]string{}, keys...)}, string(quoted)})
	}
	at := func(year int, month time.Month, day, hour, minute int) int64 {
		return time.Date(year, month, day, hour, minute, 0, 0, time.UTC).UnixMilli()
	}
	now := at(2026, 11, 21, 12, 0)
	for _, r := range []struct {
		text string
		now  int64
		want string
	}{
		{"", now, `"required"`}, {" ", now, `"required"`}, {"0", now, `"incomplete"`}, {"01/3", now, `"incomplete"`}, {"01/203", now, `"incomplete"`},
		{"00/30", now, `"invalid"`}, {"13/30", now, `"invalid"`}, {"01/1999", now, `"invalid"`}, {"01/2100", now, `"invalid"`}, {"0130301", now, `"invalid"`},
		{"10/26", now, `"expired"`}, {"11/26", now, `null`}, {"12/26", now, `null`}, {"12/99", now, `null`},
		// A month ends where the day ends last: twelve hours behind UTC.
		{"11/26", at(2026, 12, 1, 11, 59), `null`}, {"11/26", at(2026, 12, 1, 12, 0), `"expired"`},
		{"12/26", at(2027, 1, 1, 11, 59), `null`}, {"12/26", at(2027, 1, 1, 12, 0), `"expired"`},
	} {
		rows = append(rows, row{[]any{"expiryFault", r.text, r.now}, r.want})
	}
	check(t, rows)
}

func TestCodeAndName(t *testing.T) {
	check(t, []row{
		{[]any{"codeFault", "", "VISA"}, `"required"`},
		{[]any{"codeFault", "73", "VISA"}, `"incomplete"`},
		{[]any{"codeFault", "737", "VISA"}, `null`},
		{[]any{"codeFault", "7373", "VISA"}, `"invalid"`},
		{[]any{"codeFault", "737", "American Express"}, `null`},
		{[]any{"codeFault", "7373", "American Express"}, `null`},
		{[]any{"codeFault", "73737", "American Express"}, `"invalid"`},
		{[]any{"codeFault", "7373", nil}, `null`},
		{[]any{"codeFault", "7373", "Unknown"}, `null`},

		{[]any{"nameFault", "", true}, `"required"`},
		{[]any{"nameFault", " ", true}, `"required"`},
		{[]any{"nameFault", "", false}, `null`},
		{[]any{"nameFault", "Zoë O'Neill 3rd", true}, `null`},
		{[]any{"nameFault", "4111110000000005", false}, `"invalid"`},
		{[]any{"nameFault", "A 4111 1100-0000 0005", false}, `"invalid"`},
		{[]any{"nameFault", "٤١١١١١٠٠٠٠٠٠٠٠٠٥", false}, `"invalid"`},
		{[]any{"nameFault", "A\u0000", false}, `"invalid"`},
		{[]any{"nameFault", strings.Repeat("é", 255), false}, `null`},
		{[]any{"nameFault", strings.Repeat("é", 256), false}, `"invalid"`},
	})
}

// The component refuses names that look like card numbers, as the vault does.
func TestNumberInName(t *testing.T) {
	text, err := os.ReadFile("../../testdata/names.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases struct{ Refused, Taken []string }
	if err := json.Unmarshal(text, &cases); err != nil || len(cases.Refused) == 0 || len(cases.Taken) == 0 {
		t.Fatalf("cases: %v", err)
	}
	var rows []row
	for _, name := range cases.Refused {
		rows = append(rows, row{[]any{"nameFault", name, false}, `"invalid"`})
	}
	for _, name := range cases.Taken {
		rows = append(rows, row{[]any{"nameFault", name, false}, `null`})
	}
	check(t, rows)
}

func TestTexts(t *testing.T) {
	results := call[map[string]string](t,
		[]any{"textsOf", "de-AT", nil},
		[]any{"textsOf", "sv", nil},
		[]any{"addTexts", "FR", map[string]string{"number": "Numéro"}},
		[]any{"addTexts", "fr-CA", map[string]string{"code": "Code"}},
		[]any{"textsOf", "fr-ca", map[string]string{"title": "Carte"}},
		[]any{"textsOf", "FR", nil},
		[]any{"addTexts", "de", map[string]string{"number": "Nummer"}},
		[]any{"textsOf", "de", nil},
	)
	for i, want := range map[int][4]string{
		0: {"Kartennummer", "Gültig bis", "Prüfnummer", "Kartendaten"},
		1: {"Card number", "Expiry date", "Security code", "Card details"},
		4: {"Numéro", "Expiry date", "Code", "Carte"},
		5: {"Numéro", "Expiry date", "Security code", "Card details"},
		7: {"Nummer", "Gültig bis", "Prüfnummer", "Kartendaten"},
	} {
		r := results[i]
		if got := [4]string{r["number"], r["expiry"], r["code"], r["title"]}; got != want {
			t.Errorf("%d: %q, want %q", i, got, want)
		}
	}
}

// TestMessages accepts valid messages, and no others.
func TestMessages(t *testing.T) {
	type object = map[string]any
	const id = "0e4a3f3e-6a0c-4d1b-9b43-1d1c9d9b8a77"
	setup := func(changes object) object {
		o := object{"type": "setup", "session": id, "turn": 1, "name": "off", "locale": "en", "dir": "ltr", "scheme": "light", "look": object{"a": "b"}, "texts": object{}}
		for k, v := range changes {
			o[k] = v
		}
		return o
	}
	var rows []row
	for name, messages := range map[string]map[bool][]any{
		"isFromFrame": {
			true: {
				object{"type": "connected"}, object{"type": "replaced"}, object{"type": "enter"}, object{"type": "resize", "height": 120},
				object{"type": "challenge", "url": nil}, object{"type": "challenge", "url": "https://bank.example"},
				object{"type": "ready", "detail": object{"action": "tokenize_card"}}, object{"type": "change", "detail": object{"complete": false}},
				object{"type": "success", "detail": object{"token_id": id}}, object{"type": "error", "detail": object{"reason_code": "x", "action": "y"}},
			},
			false: {
				nil, 7, "connected", []any{}, object{}, object{"type": "x"}, object{"type": "resize"}, object{"type": "resize", "height": "1px"},
				object{"type": "resize", "height": 1e9}, object{"type": "resize", "height": -1}, object{"type": "challenge"}, object{"type": "challenge", "url": 7},
				object{"type": "ready"}, object{"type": "change", "detail": nil}, object{"type": "success", "detail": object{"token_id": "x"}},
				object{"type": "success"}, object{"type": "error", "detail": object{"reason_code": 7}},
			},
		},
		"isToFrame": {
			true:  {object{"type": "submit"}, object{"type": "focus"}, object{"type": "reset"}, setup(nil)},
			false: {nil, "submit", object{}, object{"type": "x"}, object{"type": "setup"}, setup(object{"session": 7}), setup(object{"turn": "1"}), setup(object{"look": object{"a": 7}}), setup(object{"more": "x"})},
		},
		"isID": {
			true:  {id, strings.ToUpper(id)},
			false: {nil, 7, "", "..", id + "/", id + "\n", "{" + id + "}"},
		},
	} {
		for want, list := range messages {
			for _, m := range list {
				if o, ok := m.(object); ok && name == "isFromFrame" {
					m = maps.Clone(o)
					m.(object)["turn"] = 1
					rows = append(rows, row{[]any{name, o}, "false"}) // of no session
				}
				rows = append(rows, row{[]any{name, m}, fmt.Sprint(want)})
			}
		}
	}
	check(t, rows)
}

// TestEncryption decrypts payloads of the component with the vault's library.
func TestEncryption(t *testing.T) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	jwk := map[string]string{
		"kty": "RSA", "n": base64.RawURLEncoding.EncodeToString(key.N.Bytes()), "e": "AQAB", "alg": "RSA-OAEP-256", "use": "enc", "kid": "k1",
	}
	claims := map[string]any{"account_number": "4111110000000005", "expiry_month": 12.0, "cardholder_name": "Zoë"}
	request := []any{"encrypt", claims, jwk, "s1"}
	payloads := call[string](t, request, request)
	if a, b := strings.Split(payloads[0], "."), strings.Split(payloads[1], "."); a[0] != b[0] || a[1] == b[1] || a[2] == b[2] || a[3] == b[3] {
		t.Error("two payloads share a key or a nonce")
	}
	for _, payload := range payloads {
		parts := strings.Split(payload, ".")
		header, err := base64.RawURLEncoding.Strict().DecodeString(parts[0])
		if want := `{"alg":"RSA-OAEP-256","enc":"A256GCM","kid":"k1","sid":"s1"}`; err != nil || string(header) != want {
			t.Errorf("header %s, %v; want %s", header, err, want)
		}
		jwe, err := jose.ParseEncryptedCompact(payload, []jose.KeyAlgorithm{jose.RSA_OAEP_256}, []jose.ContentEncryption{jose.A256GCM})
		if err != nil {
			t.Fatal(err)
		}
		plain, err := jwe.Decrypt(key)
		if err != nil {
			t.Fatal(err)
		}
		var got map[string]any
		if err := json.Unmarshal(plain, &got); err != nil || fmt.Sprint(got) != fmt.Sprint(claims) {
			t.Errorf("claims %s, %v", plain, err)
		}
		if iv, tag := len(parts[2]), len(parts[4]); iv != 16 || tag != 22 {
			t.Errorf("nonce and tag of %d and %d characters", iv, tag)
		}
	}
}

// TestEmbedders: the vault is asked for all embedding pages that the browser reports.
func TestEmbedders(t *testing.T) {
	place := func(ancestors ...string) map[string]any {
		p := map[string]any{"origin": "https://shop.example"}
		if ancestors != nil {
			p["ancestorOrigins"] = ancestors
		}
		return p
	}
	check(t, []row{
		{[]any{"embedders", place([]string{}...), ""}, `["https://shop.example"]`},
		{[]any{"embedders", place("https://shop.example", "https://b.example"), "https://c.example/x"}, `["https://shop.example","https://b.example"]`},
		{[]any{"embedders", place("https://b.example", "https://b.example"), ""}, `["https://shop.example","https://b.example"]`},
		{[]any{"embedders", place(), ""}, `["https://shop.example"]`},
		{[]any{"embedders", place(), "https://b.example/x?y"}, `["https://shop.example","https://b.example"]`},
		{[]any{"embedders", place(), "https://shop.example/x"}, `["https://shop.example"]`},
	})
}
