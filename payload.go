package cardvault

import (
	"context"
	"errors"
	"fmt"

	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/internal/claims"
	"github.com/cardvault/cardvault/internal/payload"
	"github.com/cardvault/cardvault/invalid"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// maxRefusals limits the refused cards of a session: the last one fails it.
const maxRefusals = 5

// refusePayload returns the reason to refuse a payload, once its use is stored: even a
// useless payload is good for one session.
func (v *Vault) refusePayload(ctx context.Context, used []*store.Record, why error) error {
	if len(used) > 0 {
		if err := v.rows.Write(ctx, opRefuseCard, uuid.Nil, func(tx store.Tx) error { tx.Put(used[0]); return nil }); err != nil {
			return err
		}
	}
	return why
}

// refuses returns the reason code for a card or code that is not taken, or "".
func (o *Options) refuses(c Card, refresh bool) Refusal {
	err := checkSecurityCode(c.SecurityCode)
	if !refresh {
		err = errors.Join(c.checkEntered(o.AllowNonLuhn), err)
	}
	for _, e := range FieldErrors(err) {
		switch {
		case e.Field == "PAN":
			return RefusedAccountNumber
		case e.Code == invalid.CardExpired:
			return RefusedExpired
		case e.Field == "SecurityCode":
			return RefusedSecurityCode
		default:
			return RefusedExpiryDate
		}
	}
	return ""
}

// readClaims reads a card or, for a refresh, a security code. The error names the claim that
// is wrong, which only the sender of the payload has written.
func readClaims(text []byte, refresh bool) (Card, error) {
	read, wrong := claims.Read(text, refresh)
	c := Card{
		PAN:          card.NewPAN(read.Number()),
		Expiry:       card.Expiry{Month: read.Month, Year: read.Year},
		SecurityCode: card.NewSecurityCode(read.SecurityCode()),
		Name:         card.NewName(read.Name()),
		Contact:      card.NewContact(read.Contact()),
	}
	clear(read.Contact())
	if wrong != "" {
		return c, &FieldError{payloadField, invalid.Format, "must hold the claims of the action: " + wrong}
	}
	return c, nil
}

const payloadField = "Payload"

// openPayload decrypts a payload for a session of this account, and returns its claims and
// the record that notes its use, if that is not noted yet.
func (v *Vault) openPayload(ctx context.Context, id, row uuid.UUID, text []byte) (plain []byte, used []*store.Record, err error) {
	plain, used, err = v.payloads.Open(ctx, payload.Session{ID: id, Row: row, MustBind: v.opts.RequireSessionBinding}, text)
	switch {
	case errors.Is(err, payload.ErrTooLong):
		err = &FieldError{payloadField, invalid.TooLong, fmt.Sprintf("must have at most %d characters", payload.MaxSize)}
	case errors.Is(err, payload.ErrUndecryptable):
		err = &FieldError{payloadField, invalid.Undecryptable, "must be a compact JWE under the key of this session"}
	case errors.Is(err, payload.ErrUnbound):
		err = &FieldError{payloadField, invalid.Undecryptable, "must name this session in its header, as sid"}
	}
	return plain, used, err
}
