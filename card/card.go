// Package card holds the values of a card that a vault, its users and the adapters of
// networks and providers share: [PAN], [SecurityCode], [Name], [Contact], [Expiry],
// [Scheme], and the [CryptogramValue] of a payment.
//
// PAN, SecurityCode, Name, Contact and CryptogramValue hide their value, and share these
// methods:
//
//	Expose(f func(value []byte)) // calls f with the value, the one way to get it
//	IsZero() bool                // reports whether there is no value
//	Wipe()                       // overwrites the value with zeros, in every copy
//	String() string              // returns "***", of a PAN the masked form, "" for no value
//
// The function passed to Expose must not keep or change the slice. Formatting with any
// verb, log/slog, and encoders of JSON, XML and text show the text of String, and gob
// encodes nothing. Two values cannot be compared with ==. Their constructors copy the
// slice and check nothing: the call of the vault that takes the value does.
//
// An adapter is given these values for the length of one call. It exposes them only where
// it writes its request, wipes its own copies, and keeps none.
package card

import (
	"encoding"
	"fmt"
	"log/slog"
	"time"

	"github.com/cardvault/cardvault/internal/hiding"
	"github.com/cardvault/cardvault/internal/rule"
)

// hidden is embedded under this name, so that other packages cannot name the field.
type hidden = hiding.Bytes

// A PAN is a card number (primary account number). However it is printed, logged or
// encoded, only its masked form shows. Two PANs cannot be compared with ==. The zero value
// has no digits.
type PAN struct{ hidden }

// NewPAN returns a PAN of a copy of digits. Whether it can be the number of a
// card is checked by the call that it is passed to.
func NewPAN(digits []byte) PAN { return PAN{hiding.New(digits)} }

// String returns the masked form: first six and last four digits, the rest as
// asterisks. A value that is not 12 to 19 digits is masked whole.
func (p PAN) String() string {
	d := hiding.Of(p)
	if len(d) < rule.MinPAN || len(d) > rule.MaxPAN || !rule.AllDigits(d) {
		return p.hidden.String()
	}
	return rule.Mask(d)
}

// Format writes what String returns, whatever the verb.
func (p PAN) Format(s fmt.State, _ rune) { fmt.Fprint(s, p.String()) }

// LogValue returns what String does.
func (p PAN) LogValue() slog.Value { return slog.StringValue(p.String()) }

// MarshalText returns what String does.
func (p PAN) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// A SecurityCode is a card security code. However it is printed, logged or encoded, nothing
// of it shows. The zero value has no digits.
type SecurityCode struct{ hidden }

// NewSecurityCode returns a SecurityCode with a copy of digits, unchecked as in NewPAN.
func NewSecurityCode(digits []byte) SecurityCode { return SecurityCode{hiding.New(digits)} }

// A Name is the name of a cardholder, in UTF-8. However it is printed, logged or encoded,
// nothing of it shows, except in the JSON of a cardvault.Token. The zero value is empty.
type Name struct{ hidden }

// NewName returns a Name with a copy of text, unchecked as in NewPAN.
func NewName(text []byte) Name { return Name{hiding.New(text)} }

// Contact is entered by a shopper with the card, for the network and the provider of
// identifications. It is a JSON object whose members are texts: email, and names that begin
// with billing_address_. The vault keeps it, sealed, only until they have received it.
// However it is printed, logged or encoded, nothing of it shows. The zero value is empty.
type Contact struct{ hidden }

// NewContact returns a Contact of a copy of a JSON object, unchecked like the digits
// of NewPAN.
func NewContact(object []byte) Contact { return Contact{hiding.New(object)} }

// A CryptogramValue authenticates a payment, as text: base64 or hexadecimal digits. However
// it is printed, logged or encoded, nothing of it shows. The zero value is empty.
type CryptogramValue struct{ hidden }

// NewCryptogramValue returns a CryptogramValue of a copy of text.
func NewCryptogramValue(text []byte) CryptogramValue { return CryptogramValue{hiding.New(text)} }

var (
	_ fmt.Formatter          = PAN{}
	_ fmt.Formatter          = SecurityCode{}
	_ fmt.Formatter          = Name{}
	_ encoding.TextMarshaler = PAN{}
)

// An Expiry is the last month in which a card is valid.
type Expiry struct {
	Month int // 1 to 12
	Year  int // four digits
}

// Expired reports whether the month has ended everywhere on earth: twelve hours after its
// end in UTC.
func (e Expiry) Expired(at time.Time) bool {
	return !at.Before(time.Date(e.Year, time.Month(e.Month)+1, 1, 12, 0, 0, 0, time.UTC))
}
