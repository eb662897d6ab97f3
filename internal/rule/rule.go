// Package rule holds the rules of values that come from outside. A rule returns nil for a
// value that keeps it, else how the value breaks it: never the value itself.
package rule

import (
	"bytes"
	"fmt"
	"unicode"
	"unicode/utf8"

	"github.com/cardvault/cardvault/internal/iin"
	"github.com/cardvault/cardvault/internal/iso"
	"github.com/cardvault/cardvault/invalid"
)

// The lengths of card numbers.
const MinPAN, MaxPAN = 12, 19

// The years of an expiry: what a migration may bring and a card may carry.
const MinYear, MaxYear = 2000, 2099

// MaxText bounds names, references and labels, in characters.
const MaxText = 255

// Broken says how a value breaks a rule.
type Broken struct {
	Code    invalid.Code
	Message string // what the rule is, such as "must be between 1 and 12"
}

// Range is the rule of a number from low to high.
func Range(n, low, high int) *Broken {
	if n < low || n > high {
		return &Broken{invalid.OutOfRange, fmt.Sprintf("must be between %d and %d", low, high)}
	}
	return nil
}

// Digits is the rule of a text of low to high digits.
func Digits(d []byte, low, high int) *Broken {
	switch {
	case !AllDigits(d):
		return &Broken{invalid.Format, "must contain digits only"}
	case len(d) < low:
		return &Broken{invalid.TooShort, fmt.Sprintf("must have at least %d digits", low)}
	case len(d) > high:
		return &Broken{invalid.TooLong, fmt.Sprintf("must have at most %d digits", high)}
	}
	return nil
}

// AllDigits reports whether d has digits only.
func AllDigits(d []byte) bool {
	for _, c := range d {
		if c < '0' || c > '9' {
			return false
		}
	}
	return true
}

// PAN is the rule of a card number. Its check digit may be of any value if luhn is false.
func PAN(d []byte, luhn bool) *Broken {
	if b := Digits(d, MinPAN, MaxPAN); b != nil {
		return b
	}
	if _, lengthOK := iin.Detect(d); !lengthOK {
		return &Broken{invalid.Format, "has the wrong length for its scheme"}
	}
	if luhn && !iin.Luhn(d) {
		return &Broken{invalid.Luhn, "must pass the Luhn check"}
	}
	return nil
}

// Mask returns the masked form of MinPAN to MaxPAN digits: the first six, the last four,
// and asterisks between them.
func Mask(d []byte) string {
	var m [MaxPAN]byte
	copy(m[:], d)
	for i := 6; i < len(d)-4; i++ {
		m[i] = '*'
	}
	return string(m[:len(d)])
}

// Text is the rule of free text.
func Text(text []byte) *Broken {
	blank := len(bytes.TrimSpace(text)) == 0
	control := bytes.ContainsFunc(text, unicode.IsControl)
	switch n := utf8.RuneCount(text); {
	case n == 0:
		return &Broken{invalid.EmptyString, "must not be empty"}
	case blank:
		return &Broken{invalid.Blank, "must not be blank"}
	case control || !utf8.Valid(text):
		return &Broken{invalid.Format, "must be text without control characters"}
	case n > MaxText:
		return &Broken{invalid.TooLong, fmt.Sprintf("must have at most %d characters", MaxText)}
	}
	return nil
}

// Header is the rule of a text that is sent in a header.
func Header(text []byte) *Broken {
	switch {
	case len(text) == 0:
		return Required()
	case len(text) > MaxText:
		return &Broken{invalid.TooLong, fmt.Sprintf("must have at most %d characters", MaxText)}
	case bytes.ContainsFunc(text, func(c rune) bool { return c < ' ' || c > '~' }):
		return &Broken{invalid.Format, "must be printable ASCII characters"}
	}
	return nil
}

// maxURL bounds the URL of a webhook, in bytes.
const maxURL = 2048

// URL is the rule of the URL of a webhook. refused is why nothing may be sent there, or nil.
func URL(url string, refused error) *Broken {
	switch {
	case url == "":
		return Required()
	case len(url) > maxURL:
		return &Broken{invalid.TooLong, fmt.Sprintf("must have at most %d characters", maxURL)}
	case refused != nil:
		return &Broken{invalid.Format, refused.Error()}
	}
	return nil
}

// Required says that a value is missing.
func Required() *Broken { return &Broken{invalid.Required, "is required"} }

// Slug is the rule of the name of a provider or network.
func Slug(slug string) *Broken {
	for i, c := range []byte(slug) {
		alphanumeric := c >= 'a' && c <= 'z' || c >= '0' && c <= '9'
		if i >= 40 || !alphanumeric && (i == 0 || c != '_' && c != '-') {
			return &Broken{invalid.Format, "must be 1 to 40 of a-z, 0-9, _ and -, beginning with a letter or digit"}
		}
	}
	return nil
}

// Key is the rule of an idempotency key.
func Key(key string) *Broken { return ASCII(key, MaxText) }

// ASCII is the rule of an id that another system has given: 1 to most characters.
func ASCII(id string, most int) *Broken {
	ok := len(id) >= 1 && len(id) <= most
	for _, c := range []byte(id) {
		ok = ok && c >= ' ' && c <= '~'
	}
	if !ok {
		return &Broken{invalid.Format, fmt.Sprintf("must be 1 to %d printable ASCII characters", most)}
	}
	return nil
}

// Currency is the rule of a currency code.
func Currency(code string) *Broken {
	if len(code) != 3 || bytes.ContainsFunc([]byte(code), func(c rune) bool { return c < 'A' || c > 'Z' }) {
		return &Broken{invalid.Format, "must be three upper-case letters"}
	}
	if _, ok := iso.Currency(code); !ok {
		return &Broken{invalid.UnknownCurrency, "must be an active code of ISO 4217"}
	}
	return nil
}
