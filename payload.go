package cardvault

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/cardvault/cardvault/internal/jsontext"
	"github.com/cardvault/cardvault/internal/payload"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// maxRefusals is how many cards a session refuses before it fails.
const maxRefusals = 5

// refusePayload returns why nothing comes of a payload, once it is stored that it was
// used: also one that is of no use is good for one session.
func (v *Vault) refusePayload(ctx context.Context, used []*store.Record, why error) error {
	if len(used) > 0 {
		if err := v.rows.Write(ctx, opRefuseCard, uuid.Nil, func(tx store.Tx) error { tx.Put(used[0]); return nil }); err != nil {
			return err
		}
	}
	return why
}

// refuses returns the reason code for a card or code that is not taken, or "".
func (o *Options) refuses(c Card, refresh bool) string {
	err := checkSecurityCode(c.SecurityCode)
	if !refresh {
		err = errors.Join(c.checkEntered(o.AllowNonLuhn), err)
	}
	for _, e := range FieldErrors(err) {
		switch {
		case e.Field == "account_number":
			return "invalid_account_number"
		case e.Code == "card_expired":
			return "card_expired"
		case e.Field == "security_code":
			return "invalid_security_code"
		default:
			return "invalid_expiry_date"
		}
	}
	return ""
}

// readClaims reads a card or, for a refresh, a security code. Other claims are
// ignored, and not kept.
func readClaims(claims []byte, refresh bool) (c Card, ok bool) {
	values, err := jsontext.Parse(claims)
	if err != nil {
		return Card{}, false
	}

	members := values[1:]
	get := func(name string, kind byte) []byte {
		if i := jsontext.Find(members, name); i >= 0 && members[i].Kind == kind {
			return members[i].Text
		}
		ok = false
		return nil
	}

	ok = true
	c.SecurityCode = NewSecurityCode(get("security_code", '"'))
	if refresh {
		return c, ok
	}

	c.PAN = NewPAN(get("account_number", '"'))
	c.Expiry.Month = claimedInt(get("expiry_month", '0'), &ok)
	c.Expiry.Year = claimedInt(get("expiry_year", '0'), &ok)

	if i := jsontext.Find(members, "cardholder_name"); i >= 0 && members[i].Kind != 'n' {
		c.Name = NewName(get("cardholder_name", '"'))
		ok = ok && !c.Name.IsZero() && checkName(c.Name) == nil
	}

	contact, contactOK := readContact(members)
	c.Contact = contact
	return c, ok && contactOK
}

// claimedInt reads an integer. One of more than four digits is none of a date.
func claimedInt(text []byte, ok *bool) (n int) {
	if len(text) == 0 || !allDigits(text) {
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

const payloadField = "result.enc_payload"

func lacksClaims() error {
	return &FieldError{payloadField, "invalid_format", "must hold the claims of the action, of their types"}
}

// openPayload decrypts a payload for a session of this account, and returns its claims and
// the record that notes its use, if that is not noted yet.
func (v *Vault) openPayload(ctx context.Context, id, row uuid.UUID, text []byte) (claims []byte, used []*store.Record, err error) {
	claims, used, err = v.payloads.Open(ctx, payload.Session{ID: id, Row: row, MustBind: v.opts.RequireSessionBinding}, text)
	switch {
	case errors.Is(err, payload.ErrTooLong):
		err = &FieldError{payloadField, "too_long", fmt.Sprintf("must have at most %d characters", payload.MaxSize)}
	case errors.Is(err, payload.ErrUndecryptable):
		err = &FieldError{payloadField, "undecryptable", "must be a compact JWE under the key of this session"}
	case errors.Is(err, payload.ErrUnbound):
		err = &FieldError{payloadField, "undecryptable", "must name this session in its header, as sid"}
	}
	return claims, used, err
}

// readContact returns the claims of a payload that are no card's. Empty ones are
// fields of a form that were left out.
func readContact(members []jsontext.Value) (c Contact, ok bool) {
	claims := map[string]string{}
	for i := 0; i < len(members); i += members[i].Size {
		m := &members[i]
		name := string(m.Name)
		if !isContact(name) || m.Kind == 'n' || m.Kind == '"' && len(bytes.TrimSpace(m.Text)) == 0 {
			continue
		}
		if m.Kind != '"' {
			return Contact{}, false
		}
		claims[name] = string(m.Text)
	}

	if len(claims) == 0 {
		return Contact{}, true
	}

	var object bytes.Buffer
	e := json.NewEncoder(&object)
	e.SetEscapeHTML(false)
	if err := e.Encode(claims); err != nil {
		return Contact{}, false
	}
	defer clear(object.Bytes())
	c = NewContact(bytes.TrimSpace(object.Bytes()))
	return c, checkContact(c) == nil
}
