package cardvault

import (
	"bytes"
	"encoding"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/cardvault/cardvault/internal/claims"
	"github.com/cardvault/cardvault/internal/iin"
	"github.com/cardvault/cardvault/internal/leak"
	"github.com/cardvault/cardvault/internal/rule"
)

// hidden keeps bytes where fmt, reflection and encoders cannot reach them: they
// cannot look into a closure, even in an unexported field, where they would not
// call a method. It also makes == on what embeds it fail to compile.
type hidden struct{ bytes func() []byte }

func hide(b []byte) hidden {
	if len(b) == 0 {
		return hidden{}
	}
	b = bytes.Clone(b)
	return hidden{func() []byte { return b }}
}

func (h hidden) get() []byte {
	if h.bytes == nil {
		return nil
	}
	return h.bytes()
}

// IsZero reports whether there is no value.
func (h hidden) IsZero() bool { return h.bytes == nil }

// Expose calls f with the value, the one way to get it. f must not keep or
// change the slice. It is called with nil if there is no value.
func (h hidden) Expose(f func(value []byte)) { f(h.get()) }

// Wipe overwrites the value with zeros, here and in every copy.
func (h hidden) Wipe() { clear(h.get()) }

// String returns a text of fixed length, "" if there is no value.
func (h hidden) String() string { return masked(len(h.get())) }

// Format, LogValue and MarshalText exist so that no verb, flag or encoder falls back to
// reflection.

func (h hidden) Format(s fmt.State, _ rune)   { fmt.Fprint(s, h.String()) }
func (h hidden) LogValue() slog.Value         { return slog.StringValue(h.String()) }
func (h hidden) MarshalText() ([]byte, error) { return []byte(h.String()), nil }

// A PAN is a card number (primary account number). However it is printed,
// logged or encoded, only its masked form shows. Two PANs cannot be compared
// with ==. The zero value is no number.
type PAN struct{ hidden }

// NewPAN returns a PAN of a copy of digits. Whether it can be the number of a
// card is checked by the call that it is passed to.
func NewPAN(digits []byte) PAN { return PAN{hide(digits)} }

// String returns the masked form: first six and last four digits, the rest as
// asterisks. What has not 12 to 19 digits is masked whole.
func (p PAN) String() string {
	d := p.get()
	if len(d) < minPAN || len(d) > maxPAN || !rule.AllDigits(d) {
		return masked(len(d))
	}
	return mask(d)
}

func (p PAN) Format(s fmt.State, _ rune)   { fmt.Fprint(s, p.String()) }
func (p PAN) LogValue() slog.Value         { return slog.StringValue(p.String()) }
func (p PAN) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// A SecurityCode is a card security code. However it is printed, logged or
// encoded, nothing of it shows. The zero value is no code.
type SecurityCode struct{ hidden }

// NewSecurityCode returns a SecurityCode of a copy of digits, unchecked like
// those of NewPAN.
func NewSecurityCode(digits []byte) SecurityCode { return SecurityCode{hide(digits)} }

// A Name is the name of a cardholder, in UTF-8. However it is printed, logged
// or encoded, nothing of it shows. The zero value is no name.
type Name struct{ hidden }

// NewName returns a Name of a copy of text, unchecked like those of NewPAN.
func NewName(text []byte) Name { return Name{hide(text)} }

// A CryptogramValue is what authenticates a payment, as text: base64 or
// hexadecimal digits. However it is printed, logged or encoded, nothing of it
// shows. The zero value is none.
type CryptogramValue struct{ hidden }

// NewCryptogramValue returns a CryptogramValue of a copy of text.
func NewCryptogramValue(text []byte) CryptogramValue { return CryptogramValue{hide(text)} }

var (
	_ fmt.Formatter          = PAN{}
	_ fmt.Formatter          = SecurityCode{}
	_ fmt.Formatter          = Name{}
	_ encoding.TextMarshaler = PAN{}
)

// masked shows only whether there is something.
func masked(n int) string {
	if n == 0 {
		return ""
	}
	return "***"
}

// mask returns the masked form of 12 to 19 digits.
func mask(d []byte) string {
	var m [maxPAN]byte
	copy(m[:], d)
	for i := 6; i < len(d)-4; i++ {
		m[i] = '*'
	}
	return string(m[:len(d)])
}

// An Expiry is the last month in which a card is valid.
type Expiry struct {
	Month int // 1 to 12
	Year  int // four digits
}

// Expired reports whether the month is over everywhere on earth: twelve hours
// after it has ended in UTC.
func (e Expiry) Expired(at time.Time) bool {
	return !at.Before(time.Date(e.Year, time.Month(e.Month)+1, 1, 12, 0, 0, 0, time.UTC))
}

// A Card is what a vault stores in exchange for a token.
type Card struct {
	PAN    PAN
	Expiry Expiry

	// SecurityCode is optional. It is kept in memory for some minutes, see
	// [Options.SecurityCodeTTL], and never stored.
	SecurityCode SecurityCode

	// Name is optional: 1 to 255 characters.
	Name Name

	// Contact is optional: at most 4096 bytes.
	Contact Contact
}

// Wipe overwrites number, code, name and contact with zeros.
func (c Card) Wipe() {
	c.PAN.Wipe()
	c.SecurityCode.Wipe()
	c.Name.Wipe()
	c.Contact.Wipe()
}

// A Scheme is a card scheme.
type Scheme uint8

// The schemes that the interface document names. Their numbers are stored, and
// are those of internal/iin.
const (
	SchemeUnknown Scheme = iota // also domestic schemes
	SchemeVISA
	SchemeMastercard // with Maestro
	SchemeAmericanExpress
	SchemeDiscover
	SchemeDinersClub
	SchemeJCB
	SchemeUnionPay
	schemes = 8
)

// String returns the name that the interface document uses, such as "VISA".
func (s Scheme) String() string { return iin.Scheme(s).String() }

// MarshalText returns what String does.
func (s Scheme) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// ParseScheme returns the scheme of a name that String gives.
func ParseScheme(name string) (Scheme, bool) {
	for s := range Scheme(schemes) {
		if s.String() == name {
			return s, true
		}
	}
	return 0, false
}

const (
	minPAN, maxPAN   = rule.MinPAN, rule.MaxPAN
	minYear, maxYear = 2000, 2099   // what a migration may bring and a card may carry
	maxText          = rule.MaxText // characters of names, references and labels
)

// check returns a FieldError for each rule that c breaks. Rules: decisions
// on validation, chapter 3.
func (c *Card) check(allowNonLuhn bool) (errs []error) {
	if err := checkPAN(c.PAN.get(), allowNonLuhn); err != nil {
		errs = append(errs, err)
	}
	errs = append(errs, checkExpiry(c.Expiry)...)
	if !c.SecurityCode.IsZero() {
		if err := checkSecurityCode(c.SecurityCode); err != nil {
			errs = append(errs, err)
		}
	}
	if err := checkName(c.Name); err != nil {
		errs = append(errs, err)
	}
	if err := checkContact(c.Contact); err != nil {
		errs = append(errs, err)
	}
	return errs
}

// checkEntered adds to the rules of an Import that the card is valid now.
func (c *Card) checkEntered(allowNonLuhn bool) error {
	errs := c.check(allowNonLuhn)
	if len(checkExpiry(c.Expiry)) == 0 && c.Expiry.Expired(now()) {
		errs = append(errs, &FieldError{"expiry_month", "card_expired", "and expiry_year must not be past"})
	}
	return errors.Join(errs...)
}

func checkPAN(d []byte, allowNonLuhn bool) error {
	const field = "account_number"
	if len(d) == 0 {
		return required(field)
	}
	return broken(field, rule.PAN(d, !allowNonLuhn))
}

// broken returns the FieldError of a value that breaks a rule.
func broken(field string, b *rule.Broken) error {
	if b == nil {
		return nil
	}
	return &FieldError{field, b.Code, b.Message}
}

func checkExpiry(e Expiry) (errs []error) {
	if err := checkRange("expiry_month", e.Month, 1, 12); err != nil {
		errs = append(errs, err)
	}
	if err := checkRange("expiry_year", e.Year, minYear, maxYear); err != nil {
		errs = append(errs, err)
	}
	return errs
}

func checkRange(field string, n, low, high int) error {
	return broken(field, rule.Range(n, low, high))
}

func checkName(n Name) error {
	const field = "cardholder_name"
	if n.IsZero() {
		return nil
	}
	text := n.get()
	if err := checkText(field, text); err != nil {
		return err
	}
	if leak.LooksLikePAN(text) {
		return &FieldError{field, "looks_like_pan", "must not contain a card number"}
	}
	return nil
}

// checkText applies the rules of free text to one that is not absent.
func checkText(field string, text []byte) error { return broken(field, rule.Text(text)) }

func required(field string) error { return &FieldError{field, "required", "is required"} }

// Contact is what a shopper enters besides the card, for the network and the
// IDVProvider: a JSON object whose members are texts, email and
// billing_address_ with anything behind it. It is kept, sealed, until they have it
// and no longer. However it is printed, logged or encoded, nothing of it shows.
// The zero value is none.
type Contact struct{ hidden }

// NewContact returns a Contact of a copy of a JSON object, unchecked like the digits
// of NewPAN.
func NewContact(object []byte) Contact { return Contact{hide(object)} }

func checkContact(c Contact) error {
	const field = "contact"
	switch object := c.get(); {
	case len(object) == 0:
		return nil
	case len(object) > claims.MaxContact:
		return &FieldError{field, "too_long", fmt.Sprintf("must have at most %d bytes", claims.MaxContact)}
	case !claims.CheckContact(object):
		return &FieldError{field, "invalid_format", "must be an object of texts: email and billing_address_…"}
	}
	return nil
}

func checkSecurityCode(c SecurityCode) error {
	const field = "security_code"
	if c.IsZero() {
		return required(field)
	}
	return broken(field, rule.Digits(c.get(), minSecurityCode, maxSecurityCode))
}
