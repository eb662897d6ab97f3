package cardvault

import (
	"context"
	"errors"
	"slices"

	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/internal/use"
	"github.com/cardvault/cardvault/invalid"
	"github.com/cardvault/cardvault/network"
	"github.com/cardvault/cardvault/receive"
	"github.com/google/uuid"
)

// A UsedCard is the card of a token while a function of [Vault.Use] has it.
type UsedCard = card.Used

// Use calls f with the card of a token, for a purpose of [Options.Purposes], and wipes the
// card when f has returned or panicked. f must not keep it. Neither a deletion of the token
// nor a replacement of its card waits for f. Caller, token, purpose and outcome are logged, without the error of f, which
// Use returns.
//
// Errors: ErrNotEnabled without purposes; FieldErrors; ErrNotFound; ErrTokenInvalidated;
// ErrCardDataStale.
func (v *Vault) Use(ctx context.Context, id uuid.UUID, purpose string, f func(context.Context, *UsedCard) error) (err error) {
	defer v.doing(ctx, "use card", &err, id)
	get := func() (*UsedCard, error) {
		if err := v.opts.checkPurpose(purpose); err != nil {
			return nil, err
		}
		return (&usage{vault: v, id: id}).open(ctx, true, true)
	}
	return use.With(ctx, v.rows, opUse.For(v.opts.known(purpose)), id, get, f)
}

// UseCredential is Use for the network token of a token, with a new cryptogram for one
// payment, or without one if the merchant initiates it. Like RequestPaymentData it makes a record, whose encrypted data is empty: the
// cryptogram is f's alone. r has no IdempotencyKey, and needs no merchant with a secret.
//
// Errors: those of Use and RequestPaymentData; [*DeclinedError].
func (v *Vault) UseCredential(ctx context.Context, id uuid.UUID, purpose string, r PaymentRequest, f func(context.Context, *receive.Credential) error) (err error) {
	defer v.doing(ctx, "use credential", &err, id)
	get := func() (*receive.Credential, error) {
		if err := errors.Join(v.opts.checkPurpose(purpose), checkPayment(ctx, v, r), noIdempotencyKey(r.IdempotencyKey)); err != nil {
			return nil, err
		}
		return (&usage{vault: v, id: id}).credential(ctx, &r)
	}
	return use.With(ctx, v.rows, opUseCredential.For(v.opts.known(purpose)), id, get, f)
}

// Forward is for package forward, which makes a call of another system with the card of a
// token, and with its network token if r is not nil.
func (v *Vault) Forward(ctx context.Context, id uuid.UUID, c *use.Call, r *PaymentRequest) (_ *use.Sent, err error) {
	defer v.doing(ctx, "forward", &err, id)
	token := &usage{vault: v, id: id}
	s := use.Source{Calls: v.calls, Rows: v.rows, Operation: opForward, Token: id, Kind: kindToken, Log: v.log, Card: token.open}
	if r != nil {
		s.Check = func() error { return errors.Join(checkPayment(ctx, v, *r), noIdempotencyKey(r.IdempotencyKey)) }
		s.Credential = func(ctx context.Context) (*receive.Credential, error) { return token.credential(ctx, r) }
		s.Wait = v.opts.NetworkTimeout
	}
	return c.Make(ctx, s)
}

// ForwardCredentials is for package forward, whose credentials of the operator it keeps.
func (v *Vault) ForwardCredentials() use.Credentials {
	c := use.Credentials{Kind: kindCredential, Sets: opSetCredential, Deletes: opDeleteCredential, Doing: v.doing}
	if v != nil {
		c.Rows = v.rows
	}
	return c
}

// known returns a purpose as it is recorded: a text that is no purpose may be anything.
func (o *Options) known(purpose string) string {
	if slices.Contains(o.Purposes, purpose) {
		return purpose
	}
	return "unknown"
}

// checkPurpose returns why cards are not used for a purpose, or nil.
func (o *Options) checkPurpose(purpose string) error {
	switch {
	case len(o.Purposes) == 0:
		return notEnabled("Options.Purposes is empty")
	case !slices.Contains(o.Purposes, purpose):
		return &FieldError{"Purpose", invalid.Enum, "must be one of Options.Purposes"}
	}
	return nil
}

// A usage is the use of one token.
type usage struct {
	vault  *Vault
	id     uuid.UUID
	opened *Token // whose card was opened; nil before
}

// open returns the card, for the caller to wipe, with number and code if they are needed.
func (u *usage) open(ctx context.Context, number, code bool) (*UsedCard, error) {
	v := u.vault
	rec, err := v.rows.Get(ctx, kindToken, u.id)
	if err != nil {
		return nil, err
	}
	t, err := v.openToken(ctx, rec)
	switch {
	case err != nil:
		return nil, err
	case t.Status == StatusInvalid:
		return nil, ErrTokenInvalidated
	case t.AccountNumberStale && number:
		return nil, ErrCardDataStale
	}

	c := &UsedCard{Expiry: t.Expiry, Name: t.CardholderName, Masked: t.MaskedAccountNumber}
	c.Consume = func(ctx context.Context) error { return u.consume(ctx, t) }
	if number {
		c.PAN, err = v.openPAN(ctx, rec, t)
	}
	if err == nil && code {
		c.SecurityCode, _, err = v.securityCode(ctx, t)
	}
	if err != nil {
		c.Wipe()
	}
	u.opened = t
	return c, err
}

// consume ends the code that the token had when it was used, and no later one.
func (u *usage) consume(ctx context.Context, then *Token) (err error) {
	v := u.vault
	defer v.doing(ctx, "consume security code", &err, u.id)
	err = v.consume(ctx, u.id, nil, &then.codes)
	v.rows.Wrote(ctx, opConsume, u.id, err)
	return err
}

// credential asks the network for a credential, for the caller to wipe, and stores the record.
func (u *usage) credential(ctx context.Context, r *PaymentRequest) (*receive.Credential, error) {
	h, err := readHolding(ctx, u.vault, u.vault.rows.Unmask(kindToken, u.id))
	switch {
	case err != nil:
		return nil, err
	case u.opened != nil && u.opened.edition != h.token.edition: // a use has one card
		return nil, ErrCardReplaced
	case h.token.Status == StatusInvalid:
		return nil, ErrTokenInvalidated
	}
	c := new(receive.Credential)
	p, err := u.vault.pay(ctx, h, r, nil, func(got *network.Cryptogram) {
		*c = receive.Credential{Number: got.Number, Expiry: got.Expiry, Cryptogram: got.Value, ECI: got.ECI}
	})
	if err == nil && !p.Success {
		err = &DeclinedError{p}
	}
	if err != nil {
		c.Wipe()
	}
	return c, err
}
