package cardvault

import (
	"bytes"
	"context"
	"crypto/fips140"
	"encoding/base64"
	"errors"

	"github.com/cardvault/cardvault/internal/erase"
	"github.com/cardvault/cardvault/internal/jsontext"
	"github.com/cardvault/cardvault/store"
	"github.com/go-jose/go-jose/v4"
	"github.com/google/uuid"
)

const (
	maxPayload  = 8 << 10
	maxRefusals = 5 // cards that a session refuses before it fails
)

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
func (v *Vault) refuses(c Card, refresh bool) string {
	err := checkSecurityCode(c.SecurityCode)
	if !refresh {
		err = errors.Join(v.checkSessionCard(c), err)
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

func undecryptable() error {
	return &FieldError{payloadField, "undecryptable", "must be a compact JWE under the key of this session"}
}

func unbound() error {
	return &FieldError{payloadField, "undecryptable", "must name this session in its header, as sid"}
}

func lacksClaims() error {
	return &FieldError{payloadField, "invalid_format", "must hold the claims of the action, of their types"}
}

// openPayload decrypts a payload for a session, and returns its claims and what
// notes that it was used, if that is not known yet.
func (v *Vault) openPayload(ctx context.Context, id, row uuid.UUID, payload []byte) (claims []byte, used []*store.Record, err error) {
	if len(payload) > maxPayload {
		return nil, nil, &FieldError{payloadField, "too_long", "must have at most 8192 characters"}
	}

	header, ok := checkPayloadHeader(payload, id)
	if !ok {
		return nil, nil, undecryptable()
	}
	if v.opts.RequireSessionBinding && !header.bound {
		return nil, nil, unbound()
	}

	keys, err := v.payloadKeys(ctx, header)
	if err != nil {
		return nil, nil, err
	}
	var d decryption
	defer func() { clear(d.contentKey) }()

	// go-jose takes an IV from outside, as every receiver does, which FIPS 140-3 does not know.
	fips140.WithoutEnforcement(func() {
		var jwe *jose.JSONWebEncryption
		jwe, err = jose.ParseEncryptedCompact(string(payload), []jose.KeyAlgorithm{jose.RSA_OAEP_256}, []jose.ContentEncryption{jose.A256GCM})
		if err != nil {
			return
		}
		// Whichever key fails and how, the error is the same, and no other key was meant.
		err = errUndecryptable
		for _, key := range keys {
			clear(d.contentKey)
			d = decryption{key: key}
			erase.Do(func() { claims, err = jwe.Decrypt(&d) })
			if err == nil {
				return
			}
		}
	})
	if err != nil {
		return nil, nil, undecryptable()
	}

	if used, err = v.usePayload(ctx, row, &d); err != nil {
		clear(claims)
		return nil, nil, err
	}
	return claims, used, nil
}

// payloadKeys returns the keys to try on a payload: the one that its header names, else
// those that are honoured, at most maxTried.
func (v *Vault) payloadKeys(ctx context.Context, h payloadHeader) ([]*sessionKey, error) {
	if !h.named {
		return v.honouredKeys(ctx)
	}
	key, err := v.keyOf(ctx, h.key)
	if errors.Is(err, ErrNotFound) {
		err = undecryptable()
	}
	return []*sessionKey{key}, err
}

// A payloadHeader is what the header of a payload says besides how it is encrypted.
type payloadHeader struct {
	key   string // of the session's, if named
	named bool
	bound bool // to its session
}

// checkPayloadHeader reads the header of a payload, and returns whether it has nothing
// but what it may have.
func checkPayloadHeader(payload []byte, id uuid.UUID) (h payloadHeader, ok bool) {
	// Decoders of base64 pass over line breaks.
	if bytes.ContainsAny(payload, "\r\n") {
		return h, false
	}

	encoded, _, found := bytes.Cut(payload, []byte("."))
	header := make([]byte, base64.RawURLEncoding.DecodedLen(len(encoded)))
	n, err := base64.RawURLEncoding.Strict().Decode(header, encoded)
	if !found || err != nil {
		return h, false
	}

	values, err := jsontext.Parse(header[:n])
	if err != nil {
		return h, false
	}

	members := values[1:]
	for i := 0; i < len(members); i += members[i].Size {
		m := &members[i]
		if m.Kind != '"' {
			return h, false
		}
		switch text := string(m.Text); string(m.Name) {
		case "alg":
			ok = text == string(jose.RSA_OAEP_256)
		case "enc":
			ok = text == string(jose.A256GCM)
		case "kid":
			h.key, h.named, ok = text, true, true
		case "sid":
			h.bound = text == id.String()
			ok = h.bound
		case "typ":
			ok = true
		default:
			ok = false
		}
		if !ok {
			return h, false
		}
	}

	return h, jsontext.Find(members, "alg") >= 0 && jsontext.Find(members, "enc") >= 0
}

// usePayload returns the record that a payload was used in a session, or none if
// there is one: a payload is good for one session. It is known by its
// content-encryption key, for as long as the key that opens it is honoured.
func (v *Vault) usePayload(ctx context.Context, row uuid.UUID, d *decryption) ([]*store.Record, error) {
	v = v.whole()
	id := uuid.UUID(v.rows.Box.Lookup(uuid.Nil, "session payload", d.contentKey))
	r, err := v.rows.GetRow(ctx, kindPayload, id)
	if errors.Is(err, ErrNotFound) {
		// Longer than the key, also by the clock of whoever erases it.
		r = &store.Record{Kind: kindPayload, ID: id, Due: d.key.due.Add(maxSessionTTL), Version: 1}
		return []*store.Record{r}, v.rows.SealShown(r, row[:])
	}
	if err != nil {
		return nil, err
	}

	by, err := v.rows.OpenShown(ctx, r)
	if err == nil && !bytes.Equal(by, row[:]) {
		err = undecryptable()
	}
	return nil, err
}
