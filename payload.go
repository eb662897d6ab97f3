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

// A Session is what the browser is told that has the id of one: decisions, chapter 9.
type Session struct {
	State SessionState

	// Refresh is set if a security code is entered anew, and not a card.
	Refresh bool

	// Key is what to encrypt under while State is SessionOpen, else nil.
	Key *SessionKey

	// MaskedAccountNumber and Scheme are those of the card whose code is entered
	// anew, while State is SessionOpen.
	MaskedAccountNumber string
	Scheme              Scheme

	TokenID uuid.UUID // of SessionSucceeded

	// ReasonCode is why the card was refused, "" if none was: of SessionFailed, and
	// of SessionOpen from CompleteSession. One of invalid_account_number,
	// invalid_expiry_date, card_expired, invalid_security_code, unsupported_scheme,
	// identification_failed and too_many_attempts.
	ReasonCode string

	// ChallengeURL is the page on which the shopper proves who they are, of
	// SessionIdentifying: show it in a frame, and read the session again. If "",
	// there is nothing to do but to read it again.
	ChallengeURL string
}

// A SessionState says how far a session is.
type SessionState uint8

const (
	SessionOpen        SessionState = iota // waits for a card or code
	SessionIdentifying                     // has a card, and waits for the identification of its holder
	SessionSucceeded                       // has done what it is for; final
	SessionFailed                          // too many cards were refused, or the cardholder was not identified; final
)

// Session returns a session, by an id that is its credential: a handle on no
// account, In(uuid.Nil), finds those of all. It can be read until it lapses, also
// when it is finished. Reading one in state SessionIdentifying asks the IDVProvider,
// once a second at most, and completes the session, also after ctx has ended: if
// nobody reads it, the card goes with it.
//
// The error is ErrNotFound for a session that is unknown, over, or of another
// account, or for the security code of a token that is gone.
func (v *Vault) Session(ctx context.Context, id SessionID) (*Session, error) {
	for {
		v, r, s, err := v.readSession(ctx, id)
		if err == nil {
			err = v.advance(ctx, r, s)
		}
		if err == nil {
			return v.describe(ctx, s)
		}
		if !errors.Is(err, store.ErrConflict) {
			return nil, err
		}
	}
}

// A SessionStatus is what [Vault.SessionStatus] tells of a session.
type SessionStatus struct {
	Account  uuid.UUID
	State    SessionState
	Refusals int // cards that were refused
}

// SessionStatus returns how far a session is. Unlike [Vault.Session] it asks no
// IDVProvider and completes nothing, and costs one read. The error is ErrNotFound for a
// session that is unknown, over, or of another account.
func (v *Vault) SessionStatus(ctx context.Context, id SessionID) (*SessionStatus, error) {
	_, r, s, err := v.readSession(ctx, id)
	if err != nil {
		return nil, err
	}
	return &SessionStatus{r.Account, s.state(), int(s.refused)}, nil
}

func (v *Vault) describe(ctx context.Context, s *session) (*Session, error) {
	d := &Session{State: s.state(), Refresh: s.refresh != uuid.Nil, ReasonCode: s.failed}
	switch d.State {
	case SessionSucceeded:
		d.TokenID = v.mask(kindToken, s.token)
		return d, nil
	case SessionFailed:
		return d, nil
	case SessionIdentifying:
		d.ChallengeURL = s.idv.challenge
		return d, nil
	}
	if d.Refresh {
		card, err := v.getRow(ctx, kindToken, s.refresh)
		if err != nil {
			return nil, err
		}
		t, err := v.openToken(ctx, card)
		if err != nil {
			return nil, err
		}
		d.MaskedAccountNumber, d.Scheme = t.MaskedAccountNumber, t.Scheme
	}
	k, err := v.currentKey(ctx)
	if err != nil {
		return nil, err
	}
	d.Key = &SessionKey{ID: k.id, N: k.private.N.Bytes()}
	return d, nil
}

const (
	maxPayload  = 8 << 10
	maxRefusals = 5 // cards that a session refuses before it fails
)

// CompleteSession takes the payload that a browser has encrypted under the key of
// an open session, as a compact JWE, and returns the session as it is then. A card
// that is refused leaves it open, with ReasonCode; the fifth fails it. Nothing of a
// card that is refused is kept. Of several calls at a time one completes the session.
// While the holder of a card is identified other payloads are not looked at: the
// session is returned as it is.
//
// Errors: a FieldError of result.enc_payload for a payload that cannot be opened,
// was used in another session, or lacks a claim; ErrNotFound; ErrSessionCompleted;
// ErrTooManyNumbers, which leaves the session open and counts as no refused card;
// for a security code that is entered anew those of RefreshSecurityCode.
func (v *Vault) CompleteSession(ctx context.Context, id SessionID, payload []byte) (*Session, error) {
	for {
		v, r, s, err := v.readSession(ctx, id)
		if err != nil {
			return nil, err
		}
		switch {
		case s.finished():
			return nil, ErrSessionCompleted
		case s.idv != nil:
			return v.describe(ctx, s)
		}
		claims, used, err := v.openPayload(ctx, id.UUID(), r.ID, payload)
		if err != nil {
			return nil, err
		}
		d, err := v.complete(ctx, r, s, claims, used)
		clear(claims)
		if !errors.Is(err, store.ErrConflict) {
			return d, err
		}
	}
}

// complete does with a session what the claims of a payload ask for. It returns
// store.ErrConflict if the session, or the use of the payload, has changed.
func (v *Vault) complete(ctx context.Context, r *store.Record, s *session, claims []byte, used []*store.Record) (*Session, error) {
	refresh := s.refresh != uuid.Nil
	c, ok := readClaims(claims, refresh)
	defer c.Wipe()
	if !ok {
		return nil, v.refusePayload(ctx, used, lacksClaims())
	}
	reason := v.refuses(c, refresh)
	if reason == "" {
		var err error
		if refresh {
			_, err = v.refreshCode(ctx, r, s, c.SecurityCode, used...)
		} else {
			_, err = v.enter(ctx, r, s, c, used...)
		}
		switch {
		case errors.Is(err, errScheme):
			reason = "unsupported_scheme"
		case errors.Is(err, ErrTooManyNumbers):
			return nil, v.refusePayload(ctx, used, err)
		case errors.Is(err, ErrIdentificationPending), errors.Is(err, ErrIdentificationFailed):
			return v.describe(ctx, s)
		case err != nil:
			return nil, err
		default:
			return v.describe(ctx, s)
		}
	}
	if s.refused++; s.refused >= maxRefusals {
		s.failed, reason = "too_many_attempts", "too_many_attempts"
	}
	// Before the card is counted: what is counted is answered.
	d, err := v.describe(ctx, s)
	if err != nil {
		return nil, err
	}
	d.ReasonCode = reason
	if err := v.putSession(ctx, opRefuseCard, r, s, used...); err != nil {
		return nil, err
	}
	return d, nil
}

// refusePayload returns why nothing comes of a payload, once it is stored that it was
// used: also one that is of no use is good for one session.
func (v *Vault) refusePayload(ctx context.Context, used []*store.Record, why error) error {
	if len(used) > 0 {
		if err := v.write(ctx, opRefuseCard, uuid.Nil, func(tx store.Tx) error { tx.Put(used[0]); return nil }); err != nil {
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
func checkPayloadHeader(payload []byte, session uuid.UUID) (h payloadHeader, ok bool) {
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
			h.bound = text == session.String()
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
func (v *Vault) usePayload(ctx context.Context, session uuid.UUID, d *decryption) ([]*store.Record, error) {
	v = v.whole()
	id := uuid.UUID(v.box.Lookup(uuid.Nil, "session payload", d.contentKey))
	r, err := v.getRow(ctx, kindPayload, id)
	if errors.Is(err, ErrNotFound) {
		// Longer than the key, also by the clock of whoever erases it.
		r = &store.Record{Kind: kindPayload, ID: id, Due: d.key.due.Add(maxSessionTTL), Version: 1}
		return []*store.Record{r}, wrapped(v.box.SealShown(r, session[:]))
	}
	if err != nil {
		return nil, err
	}
	by, err := v.openShown(ctx, r)
	if err == nil && !bytes.Equal(by, session[:]) {
		err = undecryptable()
	}
	return nil, err
}
