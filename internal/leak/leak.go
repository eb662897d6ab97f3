// Package leak finds card numbers in texts that leave the vault, and secrets that a text
// repeats. It guards the border to adapters, whose errors and answers may repeat requests.
package leak

import (
	"bytes"
	"fmt"
	"strings"
	"unicode"

	"github.com/cardvault/cardvault/internal/iin"
	"github.com/google/uuid"
)

// The lengths of card numbers.
const (
	minDigits = 12
	maxDigits = 19
)

// Printable returns the text of an error of an adapter as it may be logged: whole, unless it
// could hold a card number.
func Printable(err error) string {
	text := err.Error()
	if MayHoldPAN(text) {
		return fmt.Sprintf("%T, whose text could hold a card number", err)
	}
	return text
}

// Holds reports whether the digits of text, with anything between them, contain the digits
// of a card number. It is false if digits is empty.
func Holds(text string, digits []byte) bool {
	var found []byte
	for _, c := range []byte(text) {
		if c >= '0' && c <= '9' {
			found = append(found, c)
		}
	}
	defer clear(found)
	return len(digits) > 0 && bytes.Contains(found, digits)
}

// HoldsRun reports whether text has digits as a number by itself.
func HoldsRun(text string, digits []byte) bool {
	for run := range strings.FieldsFuncSeq(text, func(r rune) bool { return r < '0' || r > '9' }) {
		if run == string(digits) {
			return true
		}
	}
	return false
}

// MayHoldPAN reports whether text has as many digits in a row as a card number, also with
// blanks, dots, hyphens, underscores and slashes in between. The check digit does not count.
func MayHoldPAN(text string) bool {
	digits := 0
	for _, c := range text {
		switch {
		case c >= '0' && c <= '9':
			if digits++; digits >= minDigits {
				return true
			}
		case !strings.ContainsRune(" -._/", c):
			digits = 0
		}
	}
	return false
}

// LooksLikePAN reports whether text has 12 to 19 digits in a row that pass the Luhn check:
// of any script, with separators in between, also among more digits. Its cost is eight
// checks for each character. The card-entry component has the same rule, and
// testdata/names.json cases for both.
func LooksLikePAN(text []byte) bool {
	var digits []byte
	for _, r := range string(text) {
		d, ok := digitOf(r)
		switch {
		case ok:
			digits = append(digits, d)
			for n := minDigits; n <= min(maxDigits, len(digits)); n++ {
				if iin.Luhn(digits[len(digits)-n:]) {
					return true
				}
			}
		case !separates(r):
			digits = digits[:0]
		}
	}
	return false
}

// digitOf returns a decimal digit of any script in ASCII.
func digitOf(r rune) (byte, bool) {
	if !unicode.Is(unicode.Nd, r) {
		return 0, false
	}
	// They come in runs of ten, from zero to nine: Unicode, section 4.6.
	value := 0
	for lower := r - 1; unicode.Is(unicode.Nd, lower); lower-- {
		value++
	}
	return '0' + byte(value%10), true
}

// separates reports whether r may stand between the digits of a number: blanks, dashes,
// dots, and what does not show.
func separates(r rune) bool {
	return unicode.In(r, unicode.Z, unicode.Pd, unicode.Cf, unicode.Mn) || strings.ContainsRune("._/\u00b7\u2212\u30fb", r)
}

// RequestID reports whether an id of a request is taken over from the caller: 1 to 64
// characters that need no quotes anywhere, and that cannot stand for a card number or
// security code. A UUID is taken over: the digits of one in eighty would pass for a card
// number, but a card number is not written with letters among its digits.
func RequestID(s string) bool {
	if len(s) < 1 || len(s) > 64 {
		return false
	}

	digits, letters := 0, 0
	for i := range len(s) {
		switch c := s[i]; {
		case '0' <= c && c <= '9':
			digits++
		case 'a' <= c|' ' && c|' ' <= 'f':
			letters++
		case 'a' <= c|' ' && c|' ' <= 'z', c == '.', c == '_', c == '-':
		default:
			return false
		}
	}
	if id, err := uuid.Parse(s); err == nil && len(s) == 36 && id.Variant() == uuid.RFC4122 && letters > 0 {
		return true
	}
	mayBeCode := digits == len(s) && (digits == 3 || digits == 4)
	return !mayBeCode && !LooksLikePAN([]byte(s))
}
