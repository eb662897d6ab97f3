// Package claims reads what a browser has entered in a session: a JSON object with the claims
// of a card, or of a security code alone.
package claims

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/cardvault/cardvault/internal/jsontext"
	"github.com/cardvault/cardvault/internal/leak"
	"github.com/cardvault/cardvault/internal/rule"
	"github.com/cardvault/cardvault/invalid"
)

// MaxContact bounds a contact, in bytes.
const MaxContact = 4 << 10

// Claims are the claims of a payload, as Read returns them.
type Claims struct {
	Month, Year int
	texts       func() *texts // fmt and encoders cannot look into a closure
}

// texts point into the text that was read, except for contact.
type texts struct{ number, securityCode, name, contact []byte }

// Number returns the card number.
func (c *Claims) Number() []byte { return c.texts().number }

// SecurityCode returns the security code.
func (c *Claims) SecurityCode() []byte { return c.texts().securityCode }

// Name returns the name of the cardholder, or nil if it is absent.
func (c *Claims) Name() []byte { return c.texts().name }

// Contact returns a JSON object, or nil if it is absent.
func (c *Claims) Contact() []byte { return c.texts().contact }

// Read reads the claims of a card, or of a security code alone. wrong says to a person which
// claim is missing, has another type or breaks a rule, without its value; it is empty if none
// does. Other claims are ignored.
func Read(text []byte, codeOnly bool) (c Claims, wrong string) {
	t := new(texts)
	c.texts = func() *texts { return t }
	values, err := jsontext.Parse(text)
	if err != nil {
		return c, "they must be a JSON object"
	}

	r := reader{members: values[1:]}
	t.securityCode = r.text("security_code")
	if codeOnly {
		return c, r.wrong
	}

	t.number = r.text("account_number")
	c.Month = r.integer("expiry_month")
	c.Year = r.integer("expiry_year")

	if i := jsontext.Find(r.members, "cardholder_name"); i >= 0 && r.members[i].Kind != 'n' {
		r.check("cardholder_name", textFault(&r.members[i]))
		t.name = r.members[i].Text
	}
	t.contact = r.contact()
	return c, r.wrong
}

// A reader reads the members of an object of claims.
type reader struct {
	members []jsontext.Value
	wrong   string // the first fault
}

// check notes a fault of a claim, if there is one.
func (r *reader) check(name, fault string) {
	if r.wrong == "" && fault != "" {
		r.wrong = name + " " + fault
	}
}

// get returns the text of a claim that is required.
func (r *reader) get(name string, kind byte, want string) []byte {
	i := jsontext.Find(r.members, name)
	switch {
	case i < 0:
		r.check(name, "is required")
	case r.members[i].Kind != kind:
		r.check(name, want)
	default:
		return r.members[i].Text
	}
	return nil
}

func (r *reader) text(name string) []byte { return r.get(name, '"', mustBeText) }

// integer returns an integer. No part of a date has more than four digits.
func (r *reader) integer(name string) (n int) {
	const want = "must be an integer"
	text := r.get(name, '0', want)
	if !rule.AllDigits(text) {
		r.check(name, want)
		return 0
	}
	if len(text) > 4 {
		return -1
	}
	for _, c := range text {
		n = n*10 + int(c-'0')
	}
	return n
}

const mustBeText = "must be a string"

// textFault says what is wrong with a text about a person, or "".
func textFault(text *jsontext.Value) string {
	if text.Kind != '"' {
		return mustBeText
	}
	if b := Text(text.Text); b != nil {
		return b.Message
	}
	return ""
}

// Text is the rule of a text about a person, such as a name. A network or provider receives
// it, perhaps in a header; it must not contain a card number.
func Text(text []byte) *rule.Broken {
	if b := rule.Text(text); b != nil {
		return b
	}
	if leak.LooksLikePAN(text) {
		return &rule.Broken{Code: invalid.LooksLikePAN, Message: "must not contain a card number"}
	}
	return nil
}

const billing = "billing_address_" // how names of claims begin

func isContact(name string) bool { return name == "email" || strings.HasPrefix(name, billing) }

// Contact is the rule of a contact: a JSON object of texts, or nothing.
func Contact(object []byte) *rule.Broken {
	if len(object) == 0 {
		return nil
	}
	if len(object) > MaxContact {
		return &rule.Broken{Code: invalid.TooLong, Message: fmt.Sprintf("must have at most %d bytes", MaxContact)}
	}

	ok := true
	err := EachContact(object, func(name string, m *jsontext.Value) {
		ok = ok && isContact(name) && textFault(m) == ""
	})
	if err != nil || !ok {
		return &rule.Broken{Code: invalid.Format, Message: "must be an object of texts: email and billing_address_…"}
	}
	return nil
}

// EachContact calls f with the members of a contact. They are overwritten afterwards.
func EachContact(object []byte, f func(name string, m *jsontext.Value)) error {
	object = bytes.Clone(object) // it is unescaped in place
	defer clear(object)
	values, err := jsontext.Parse(object)
	for i := 1; err == nil && i < len(values); i += values[i].Size {
		f(string(values[i].Name), &values[i])
	}
	return err
}

// contact returns the claims that do not belong to the card as a JSON object, or nil. Empty
// ones are fields of a form that were left out.
func (r *reader) contact() []byte {
	claims := map[string]string{}
	for i := 0; i < len(r.members); i += r.members[i].Size {
		m := &r.members[i]
		name := string(m.Name)
		if !isContact(name) || m.Kind == 'n' || m.Kind == '"' && len(bytes.TrimSpace(m.Text)) == 0 {
			continue
		}
		if fault := textFault(m); fault != "" {
			r.check(shown(name), fault)
			return nil
		}
		claims[name] = string(m.Text)
	}
	if len(claims) == 0 {
		return nil
	}

	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(claims); err != nil {
		panic(err) // they are texts
	}
	object := bytes.TrimSpace(b.Bytes())
	if len(object) > MaxContact {
		clear(object)
		r.check("email and billing_address_…", fmt.Sprintf("must have at most %d bytes together", MaxContact))
		return nil
	}
	return object
}

// shown returns the name of a claim as a fault has it: its end is the sender's, and may be a
// card number in the wrong place.
func shown(name string) string {
	if strings.HasPrefix(name, billing) {
		return billing + "…"
	}
	return name
}
