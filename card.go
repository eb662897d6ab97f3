package cardvault

import (
	"errors"
	"fmt"
	"time"

	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/internal/claims"
	"github.com/cardvault/cardvault/internal/hiding"
	"github.com/cardvault/cardvault/internal/iin"
	"github.com/cardvault/cardvault/internal/rule"
	"github.com/cardvault/cardvault/invalid"
)

// hidden is embedded under this name, so that other packages cannot name the field. Its
// methods are described in package card.
type hidden = hiding.Bytes

// A Card is what a vault stores in exchange for a token.
type Card struct {
	PAN    card.PAN
	Expiry card.Expiry

	// SecurityCode is optional. It is kept in memory for a few minutes, see
	// [Options.SecurityCodeTTL], and never stored.
	SecurityCode card.SecurityCode

	// Name is optional: 1 to 255 characters.
	Name card.Name

	// Contact is optional: at most 4096 bytes.
	Contact card.Contact
}

// Wipe overwrites number, code, name and contact with zeros.
func (c Card) Wipe() {
	c.PAN.Wipe()
	c.SecurityCode.Wipe()
	c.Name.Wipe()
	c.Contact.Wipe()
}

const (
	schemes = iin.Schemes

	minPAN, maxPAN   = rule.MinPAN, rule.MaxPAN
	minYear, maxYear = rule.MinYear, rule.MaxYear
	maxText          = rule.MaxText // characters of names, references and labels
)

// check appends a FieldError for each rule that c breaks, among nils.
func (c *Card) check(errs []error, allowNonLuhn bool) []error {
	errs = append(append(errs, checkPAN(hiding.Of(c.PAN), allowNonLuhn)), checkExpiry(c.Expiry)...)
	if !c.SecurityCode.IsZero() {
		errs = append(errs, checkSecurityCode(c.SecurityCode))
	}
	return append(errs, checkName("Name", c.Name), broken("Contact", claims.Contact(hiding.Of(c.Contact))))
}

// checkEntered adds to the rules of an Import that the card is valid now.
func (c *Card) checkEntered(allowNonLuhn bool) error {
	errs := c.check(nil, allowNonLuhn)
	if len(checkExpiry(c.Expiry)) == 0 && c.Expiry.Expired(now()) {
		errs = append(errs, &FieldError{"Expiry.Month", invalid.CardExpired, "and Expiry.Year must not be past"})
	}
	return errors.Join(errs...)
}

func checkPAN(d []byte, allowNonLuhn bool) error {
	const field = "PAN"
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

func checkExpiry(e card.Expiry) (errs []error) {
	if err := checkRange("Expiry.Month", e.Month, 1, 12); err != nil {
		errs = append(errs, err)
	}
	if err := checkRange("Expiry.Year", e.Year, minYear, maxYear); err != nil {
		errs = append(errs, err)
	}
	return errs
}

func checkRange(field string, n, low, high int) error {
	return broken(field, rule.Range(n, low, high))
}

// checkTTL is the rule of how long something lives that may live for ever, which is 0.
func checkTTL(field string, ttl, most time.Duration) error {
	if ttl != 0 && (ttl < time.Second || ttl > most) {
		return &FieldError{field, invalid.OutOfRange, fmt.Sprintf("must be between %v and %v", time.Second, most)}
	}
	return nil
}

func checkName(field string, n card.Name) error {
	if n.IsZero() {
		return nil
	}
	return broken(field, claims.Text(hiding.Of(n)))
}

// checkText applies the rules of free text to a text that is present.
func checkText(field string, text []byte) error { return broken(field, rule.Text(text)) }

func required(field string) error { return broken(field, rule.Required()) }

func checkSecurityCode(c card.SecurityCode) error {
	const field = "SecurityCode"
	if c.IsZero() {
		return required(field)
	}
	return broken(field, rule.Digits(hiding.Of(c), minSecurityCode, maxSecurityCode))
}
