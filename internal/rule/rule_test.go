package rule_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/cardvault/cardvault/internal/rule"
	"github.com/cardvault/cardvault/invalid"
)

func TestRules(t *testing.T) {
	for _, test := range []struct {
		name string
		got  *rule.Broken
		code invalid.Code // "" if the rule is kept
	}{
		{"range, lowest", rule.Range(1, 1, 12), ""},
		{"range, too high", rule.Range(13, 1, 12), "out_of_range"},
		{"digits", rule.Digits([]byte("123"), 3, 4), ""},
		{"digits, a letter", rule.Digits([]byte("12a"), 3, 4), "invalid_format"},
		{"digits, too few", rule.Digits([]byte("12"), 3, 4), "too_short"},
		{"digits, too many", rule.Digits([]byte("12345"), 3, 4), "too_long"},
		{"number", rule.PAN([]byte("4242424242424242"), true), ""},
		{"number, another check digit", rule.PAN([]byte("4242424242424241"), true), "luhn"},
		{"number, any check digit", rule.PAN([]byte("4242424242424241"), false), ""},
		{"number, another length", rule.PAN([]byte("42424242424242"), false), "invalid_format"},
		{"text", rule.Text([]byte("Erika Mustermann")), ""},
		{"text, longest", rule.Text([]byte(strings.Repeat("ä", rule.MaxText))), ""},
		{"text, too long", rule.Text([]byte(strings.Repeat("ä", rule.MaxText+1))), "too_long"},
		{"text, empty", rule.Text(nil), "empty_string"},
		{"text, blank", rule.Text([]byte(" ")), "blank"},
		{"text, a control character", rule.Text([]byte("a\x00b")), "invalid_format"},
		{"text, not UTF-8", rule.Text([]byte("a\xff")), "invalid_format"},
		{"slug", rule.Slug("sim-net_1"), ""},
		{"slug, begins with a hyphen", rule.Slug("-simnet"), "invalid_format"},
		{"slug, too long", rule.Slug(strings.Repeat("a", 41)), "invalid_format"},
		{"header", rule.Header([]byte("10001")), ""},
		{"header, missing", rule.Header(nil), "required"},
		{"header, a line break", rule.Header([]byte("a\n")), "invalid_format"},
		{"header, too long", rule.Header(make([]byte, rule.MaxText+1)), "too_long"},
		{"URL", rule.URL("https://shop.example/", nil), ""},
		{"URL, missing", rule.URL("", nil), "required"},
		{"URL, refused", rule.URL("https://shop.example/", errors.New("must be nice")), "invalid_format"},
		{"URL, too long", rule.URL(strings.Repeat("x", 2049), errors.New("must be nice")), "too_long"},
		{"currency", rule.Currency("EUR"), ""},
		{"currency, lower case", rule.Currency("eur"), "invalid_format"},
		{"currency, unknown", rule.Currency("XXY"), "unknown_currency"},
	} {
		var code invalid.Code
		if test.got != nil {
			code = test.got.Code
		}
		if code != test.code {
			t.Errorf("%s: %q, want %q", test.name, code, test.code)
		}
	}
}
