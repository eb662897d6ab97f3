// Package iin reads the digits of a card number: whether they pass the Luhn check, and
// which scheme issued the range they lie in. Digits are ASCII, in bytes that a caller can
// wipe; nothing here copies or keeps them.
package iin

// A Scheme is a card scheme. The values are stored with tokens: they never change.
type Scheme uint8

// The schemes that the vault knows. Domestic schemes are Unknown.
const (
	Unknown Scheme = iota
	VISA
	Mastercard // with Maestro, which Mastercard's token service serves
	AmericanExpress
	Discover
	DinersClub
	JCB
	UnionPay
)

// Schemes is the number of schemes, Unknown included.
const Schemes = 8

var names = [Schemes]string{
	"Unknown", "VISA", "Mastercard", "American Express", "Discover", "Diners Club", "JCB", "UnionPay",
}

// String returns the name that answers use, "Unknown" for any other value.
func (s Scheme) String() string {
	if int(s) >= len(names) {
		s = Unknown
	}
	return names[s]
}

// Detect returns the scheme that issues the range in which the first eight
// digits lie, and whether that scheme has cards of this length; with Unknown,
// any of 12 to 19 digits. It looks at no digit after the eighth. What does not
// begin with eight digits is Unknown and of no right length.
func Detect(digits []byte) (s Scheme, lengthOK bool) {
	iin, ok := first8(digits)
	if !ok {
		return Unknown, false
	}
	s, ls := lookUp(iin)
	return s, ls>>len(digits)&1 == 1
}

func first8(digits []byte) (n uint32, ok bool) {
	if len(digits) < 8 {
		return 0, false
	}
	for _, c := range digits[:8] {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = n*10 + uint32(c-'0')
	}
	return n, true
}

// Luhn reports whether digits pass the check of ISO/IEC 7812-1, annex B. Empty text and
// text with other characters do not pass.
func Luhn(digits []byte) bool {
	sum, ok := luhnSum(digits, false)
	return ok && len(digits) > 0 && sum%10 == 0
}

// CheckDigit returns the digit, in ASCII, with which digits pass the Luhn check when it is
// appended to them. It returns 0, which is not a digit in ASCII, if digits has other
// characters.
func CheckDigit(digits []byte) byte {
	sum, ok := luhnSum(digits, true)
	if !ok {
		return 0
	}
	return '0' + byte((10-sum%10)%10)
}

// luhnSum adds up digits from the right, every other one doubled, the last one
// if double is set.
func luhnSum(digits []byte, double bool) (sum int, ok bool) {
	for i := len(digits) - 1; i >= 0; i-- {
		d := int(digits[i]) - '0'
		if d < 0 || d > 9 {
			return 0, false
		}
		if double {
			if d *= 2; d > 9 {
				d -= 9
			}
		}
		sum += d
		double = !double
	}
	return sum, true
}
