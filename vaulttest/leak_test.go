package vaulttest_test

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"
	"time"
	"unicode/utf16"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/vaulttest"
	"github.com/google/uuid"
)

// A recorder is a test that records its failures.
type recorder struct {
	testing.TB
	errs  []string
	fatal bool
}

func (r *recorder) Helper()                      {}
func (r *recorder) Errorf(f string, args ...any) { r.errs = append(r.errs, fmt.Sprintf(f, args...)) }
func (r *recorder) Fatalf(f string, args ...any) { r.fatal = true; panic(r) }
func (r *recorder) Fatal(args ...any)            { r.fatal = true; panic(r) }
func (r *recorder) run(f func(t testing.TB)) bool { // true if f failed
	defer func() {
		if p := recover(); p != nil && p != any(r) {
			panic(p)
		}
	}()
	f(r)
	return false
}

func leaks(t testing.TB, secrets []string, sinks ...any) []string {
	t.Helper()
	r := &recorder{TB: t}
	r.run(func(t testing.TB) { vaulttest.AssertNoLeak(t, secrets, sinks...) })
	if r.fatal {
		t.Fatal("AssertNoLeak gave up")
	}
	return r.errs
}

const (
	pan  = "4532015112830366"
	name = "Zoë O'Brien"
)

func escapedAll(s, format string) string {
	var b strings.Builder
	for _, r := range s {
		fmt.Fprintf(&b, format, r)
	}
	return b.String()
}

func grouped(s, separator string, sizes ...int) string {
	var groups []string
	for _, n := range sizes {
		groups = append(groups, s[:n])
		s = s[n:]
	}
	return strings.Join(groups, separator)
}

func reversed(s string) string {
	b := []byte(s)
	slices.Reverse(b)
	return string(b)
}

func utf16Text(s string, order binary.AppendByteOrder) string {
	var b []byte
	for _, unit := range utf16.Encode([]rune(s)) {
		b = order.AppendUint16(b, unit)
	}
	return string(b)
}

func bcd(digits string) string {
	b, err := hex.DecodeString(digits)
	if err != nil {
		panic(err)
	}
	return string(b)
}

func TestLeakForms(t *testing.T) {
	j, err := json.Marshal(name + "<&")
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct{ secret, leak, form string }{
		{pan, pan, "as it is"},
		{pan, grouped(pan, " ", 4, 4, 4, 4), "digits in groups"},
		{pan, grouped(pan, "-", 4, 4, 4, 4), "digits in groups"},
		{pan, grouped(pan, ".", 4, 6, 6), "digits in groups"},
		{pan, strings.Join(strings.Split(pan, ""), " "), "digits in groups"},
		{pan, reversed(pan), "reversed"},
		{pan, hex.EncodeToString([]byte(pan)), "hexadecimal"},
		{name, strings.ToUpper(hex.EncodeToString([]byte(name))), "hexadecimal"},
		{pan, fmt.Sprint([]byte(pan)), "list of bytes"},
		{pan, fmt.Sprintf("%#v", []byte(pan)), "list of bytes"},
		{pan, fmt.Sprintf("% X", pan), "list of bytes"},
		{pan, escapedAll(pan, `\u%04x`), "escaped text"},
		{pan, `4532\u0030151\x31\/2830366`, ""},
		{pan, `4532\u00301511\x32830366`, "escaped text"},
		{pan, escapedAll(pan, `%%%02X`), "URL-escaped"},
		{name, url.QueryEscape(name), "URL-escaped"},
		{name, url.PathEscape(name), "URL-escaped"},
		{name, string(j), "as it is"},
		{name, strconv.QuoteToASCII(name), "escaped text"},
		{name, "Zoë O'BRIEN", "as it is"},
		{"ADA LOVELACE", "Ada Lovelace", "as it is"},
		{pan, utf16Text(pan, binary.LittleEndian), "UTF-16"},
		{name, utf16Text(name, binary.BigEndian), "UTF-16"},
		{pan, bcd(pan), "BCD"},
		{pan, bcd("0" + pan + "f"), "BCD"},
		{pan, url.QueryEscape(base64.StdEncoding.EncodeToString([]byte("a>" + pan + ">>>"))), "base64"},
		{pan, "IIN 453201, last four 0366, 453201******0366", ""},
		{pan, "4532015112830365", ""},
		{"737", "code 737, see", "as it is"},
		{"737", `{"cvv":"\u0037\u00337"}`, "escaped text"},
		{"737", "took 1737 ms; id a737; 7373; 2026-737-1; 0.737 s; 737.5", ""},
		{"737", "cvv=737.", "as it is"},
		{"737", "737", "as it is"},
		{"737", "\xff 737 in what is not text", ""},
	}
	for shift := range 3 {
		for _, alphabet := range []*base64.Encoding{base64.StdEncoding, base64.URLEncoding} {
			text := strings.Repeat("\xfb", shift) + name + "\xff\xff"
			tests = append(tests, struct{ secret, leak, form string }{name, alphabet.EncodeToString([]byte(text)), "base64"})
		}
	}
	for _, test := range tests {
		found := leaks(t, []string{"not there", test.secret}, "before ", "before "+test.leak+" after")
		switch {
		case test.form == "" && len(found) > 0:
			t.Errorf("%q: false alarm: %v", test.leak, found)
		case test.form == "":
		case len(found) != 1:
			t.Errorf("%q: found %d leaks, want 1: %v", test.leak, len(found), found)
		case !strings.Contains(found[0], test.form) || !strings.Contains(found[0], "secret 2 leaks into sink 2"):
			t.Errorf("%q: reported as %q, want secret 2, sink 2 and %q", test.leak, found[0], test.form)
		case strings.Contains(found[0], test.secret):
			t.Errorf("%q: the report shows the secret", test.leak)
		}
	}
}

func TestLeakOffset(t *testing.T) {
	for leak, offset := range map[string]int{
		"0123" + pan:                                         4,
		`\u0041\n` + escapedAll(pan, `\u%04x`):               8,
		"1 2 " + grouped(pan, " ", 4, 4, 4, 4):               4,
		"%41" + escapedAll(pan, `%%%02x`):                    3,
		"€" + base64.StdEncoding.EncodeToString([]byte(pan)): 3,
	} {
		found := leaks(t, []string{pan}, leak)
		if len(found) != 1 || !strings.HasSuffix(found[0], fmt.Sprintf("at offset %d", offset)) {
			t.Errorf("%q: %q, want offset %d", leak, found, offset)
		}
	}
}

type cardError struct{ number string }

func (e *cardError) Error() string { return "no" }

func TestLeakSinks(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "sub"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "sub", "data"), []byte("\x00\xff"+pan), 0o600); err != nil {
		t.Fatal(err)
	}
	for want, sink := range map[string]any{
		"sink 1 (string)":                       pan,
		"sink 1 ([]uint8)":                      []byte(pan),
		"sink 1 (*strings.Reader)":              strings.NewReader(pan),
		"sink 1 (*fmt.wrapError)":               fmt.Errorf("reading: %w", errors.New(pan)),
		"sink 1 (*errors.joinError)":            errors.Join(errors.New("one"), fmt.Errorf("two: %w", &cardError{pan})),
		"sink 1 (os.dirFS), sub/data":           os.DirFS(dir),
		"sink 1 (fstest.MapFS), name of a file": fstest.MapFS{pan + ".txt": &fstest.MapFile{}},
		"sink 1 (struct { Number []uint8 })":    struct{ Number []byte }{[]byte(pan)},
	} {
		found := leaks(t, []string{pan}, sink)
		if len(found) != 1 || !strings.Contains(found[0], want) {
			t.Errorf("%T: %q, want one leak into %s", sink, found, want)
		}
	}
	given := cardvault.Card{PAN: card.NewPAN([]byte(pan)), Name: card.NewName([]byte(name))}
	if found := leaks(t, []string{pan, name}, given, &given, slog.AnyValue(given), nil, error(nil)); len(found) > 0 {
		t.Errorf("a Card leaks: %v", found)
	}
}

// An assertion that could prove nothing fails.
func TestLeakProvesNothing(t *testing.T) {
	for why, f := range map[string]func(testing.TB){
		"no secret":       func(t testing.TB) { vaulttest.AssertNoLeak(t, nil, "x") },
		"an empty secret": func(t testing.TB) { vaulttest.AssertNoLeak(t, []string{""}, "x") },
		"no folder":       func(t testing.TB) { vaulttest.AssertNoLeak(t, []string{pan}, os.DirFS("none")) },
		"no file":         func(t testing.TB) { vaulttest.AssertNoLeak(t, []string{pan}, fstest.MapFS{}) },
	} {
		r := &recorder{TB: t}
		if r.run(f); !r.fatal && len(r.errs) == 0 {
			t.Errorf("%s: no failure", why)
		}
	}
}

// noise is text as in logs and answers: about 1 MB, the same every time.
func noise() string {
	r := rand.New(rand.NewPCG(1, 2))
	random := func(n int) []byte {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		return b
	}
	var b strings.Builder
	for range 4_000 {
		id := uuid.UUID(random(16))
		at := time.UnixMicro(1_700_000_000_000_000 + r.Int64N(1e15)).UTC()
		fmt.Fprintf(&b, "%s %d %d %d %s id=%s sum=%x %s %s pid=%d amount=%d dur=%gs ratio=%v tel=+49%d\n",
			at.Format("2006-01-02T15:04:05.000000Z"), at.Unix(), at.UnixMilli(), at.UnixNano(), at.Format("2006-01-02-15-04-05"),
			id, random(16), base64.StdEncoding.EncodeToString(random(24)), base64.RawURLEncoding.EncodeToString(random(8)),
			r.IntN(1<<22), r.Int64N(1e9), r.Float64(), r.Float64(), r.Int64N(1e12))
	}
	return b.String()
}

func TestNoFalseAlarm(t *testing.T) {
	text := noise()
	vaulttest.AssertNoCardNumber(t, nil, text)
	vaulttest.AssertNoLeak(t, []string{pan, "378282246310005", "501800000009", name}, text, noiseBytes(1<<20))
}

func noiseBytes(n int) []byte {
	r := rand.New(rand.NewPCG(3, 4))
	b := make([]byte, 0, n)
	for len(b) < n {
		b = binary.LittleEndian.AppendUint64(b, r.Uint64())
	}
	return b
}

func TestCardNumber(t *testing.T) {
	for text, want := range map[string]bool{
		pan:                                    true,
		"pan=" + pan + " ok":                   true,
		`{"a":"` + pan + `"}`:                  true,
		"/tokens/" + pan + "?x=1":              true,
		"number " + pan + ".":                  true,
		grouped(pan, " ", 4, 4, 4, 4):          true,
		grouped(pan, "-", 4, 4, 4, 4):          true,
		"3782 822463 10005":                    true,
		"3622-720627-1667":                     true,
		"501800000009":                         true,
		"6011000000000000000004"[:19]:          false,
		escapedAll(pan, `\u%04x`):              true,
		"q=" + escapedAll(pan, "%%%02x"):       true,
		"4532015112830367":                     false, // Luhn
		"45320151128303":                       false, // no VISA card is that long
		"9999999999999995":                     false, // no scheme
		"4242424242424242":                     false, // allowed
		"0." + pan:                             false,
		"+" + pan:                              false,
		"x" + pan:                              false,
		pan + "f":                              false,
		"00000000-0000-0000-0000-501800000009": false,
		"0123abcd-5018-0000-0009-0123456789ab": false,
		"0123abcd-5018-0000-0009-0123456789":   true, // no UUID
	} {
		r := &recorder{TB: t}
		r.run(func(t testing.TB) {
			vaulttest.AssertNoCardNumber(t, []string{"4242424242424242"}, text)
		})
		if got := len(r.errs) > 0; got != want {
			t.Errorf("%q: found %v, want %v", text, got, want)
		}
	}
}
