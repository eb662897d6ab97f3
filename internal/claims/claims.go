// Package claims reads what a browser has entered in a session: a JSON object with the claims
// of a card, or of a security code alone.
package claims

import (
	"bytes"
	"encoding/json"
	"strings"

	"github.com/cardvault/cardvault/internal/jsontext"
	"github.com/cardvault/cardvault/internal/leak"
	"github.com/cardvault/cardvault/internal/rule"
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

// Read reads the claims of a card, or of a security code alone, and returns false if one is
// missing or has another type. Other claims are ignored. A contact is returned only if
// CheckContact accepts it.
func Read(text []byte, codeOnly bool) (c Claims, ok bool) {
	t := new(texts)
	c.texts = func() *texts { return t }
	values, err := jsontext.Parse(text)
	if err != nil {
		return c, false
	}

	members := values[1:]
	ok = true
	get := func(name string, kind byte) []byte {
		if i := jsontext.Find(members, name); i >= 0 && members[i].Kind == kind {
			return members[i].Text
		}
		ok = false
		return nil
	}

	t.securityCode = get("security_code", '"')
	if codeOnly {
		return c, ok
	}

	t.number = get("account_number", '"')
	c.Month = integer(get("expiry_month", '0'), &ok)
	c.Year = integer(get("expiry_year", '0'), &ok)

	if i := jsontext.Find(members, "cardholder_name"); i >= 0 && members[i].Kind != 'n' {
		t.name = get("cardholder_name", '"')
		ok = ok && len(t.name) > 0
	}

	contact, contactOK := readContact(members)
	t.contact = contact
	return c, ok && contactOK
}

// integer reads an integer. No part of a date has more than four digits.
func integer(text []byte, ok *bool) (n int) {
	if len(text) == 0 || !rule.AllDigits(text) {
		*ok = false
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

func isContact(name string) bool {
	return name == "email" || strings.HasPrefix(name, "billing_address_")
}

// CheckContact reports whether object is a JSON object of texts that a contact may have. A
// network or provider receives them, perhaps in a header; they must not contain a card
// number.
func CheckContact(object []byte) bool {
	ok := true
	err := EachContact(object, func(name string, m *jsontext.Value) {
		ok = ok && m.Kind == '"' && isContact(name) && rule.Text(m.Text) == nil && !leak.LooksLikePAN(m.Text)
	})
	return err == nil && ok
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

// readContact returns the claims of a payload that do not belong to the card. Empty ones
// are fields of a form that were left out.
func readContact(members []jsontext.Value) (object []byte, ok bool) {
	claims := map[string]string{}
	for i := 0; i < len(members); i += members[i].Size {
		m := &members[i]
		name := string(m.Name)
		if !isContact(name) || m.Kind == 'n' || m.Kind == '"' && len(bytes.TrimSpace(m.Text)) == 0 {
			continue
		}
		if m.Kind != '"' {
			return nil, false
		}
		claims[name] = string(m.Text)
	}
	if len(claims) == 0 {
		return nil, true
	}

	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(claims); err != nil {
		return nil, false
	}
	object = bytes.TrimSpace(b.Bytes())
	return object, len(object) <= MaxContact && CheckContact(object)
}
