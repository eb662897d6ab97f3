package cardvault

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/cardvault/cardvault/internal/hiding"
	"github.com/cardvault/cardvault/internal/leak"
	"github.com/cardvault/cardvault/internal/plausible"
	"github.com/cardvault/cardvault/ppan"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// ObtainPPAN sends the card of a token to [Options.PPAN] and returns any answer of the
// provider. The security code is sent along if the vault has it, and stays. Nothing is
// stored. There is no idempotency key: the outcome of a request without an answer is
// unknown, and repeating it may make a second pseudo card number, which does no harm.
//
// A card is sent only to the accounts in [Account.ProviderAccounts], and each time is
// logged with its caller, token and outcome.
//
// Errors: FieldErrors; ErrNotEnabled without a provider; ErrProviderAccount; ErrNotFound;
// ErrTokenInvalidated; ErrCardDataStale; ErrProviderUnavailable with the cause in its text;
// ErrProviderTimeout, even when the deadline of ctx has come first.
func (v *Vault) ObtainPPAN(ctx context.Context, id uuid.UUID, a ppan.Account) (_ *ppan.Answer, err error) {
	defer v.doing(ctx, "obtain PPAN", &err, id)
	if v.ledger.Closed() {
		return nil, ErrClosed
	}
	op := opObtainPPAN
	defer func() { v.rows.Wrote(ctx, op, id, err) }()
	if err := v.rows.Admit(); err != nil {
		return nil, err
	}
	if !v.PPANEnabled() {
		return nil, notEnabled("Options.PPAN is nil")
	}
	if err := checkPPANAccount(&a); err != nil {
		return nil, err
	}

	target := ProviderAccount{a.AID, a.MID, a.PortalID}
	account, err := v.Account(ctx)
	if err != nil {
		return nil, err
	}
	if !v.opts.maySendFor(account, target) {
		return nil, ErrProviderAccount
	}

	card, err := (&usage{vault: v, id: id}).open(ctx, true, true)
	if err != nil {
		return nil, err
	}
	defer card.Wipe()

	if len(account.ProviderAccounts) == 0 {
		err := v.changeAccount(ctx, opPinProviderAccount, v.rows.ID, func(a *Account) (func(store.Tx) error, error) {
			if !v.opts.maySendFor(a, target) {
				return nil, ErrProviderAccount // another call was faster
			}
			if len(a.ProviderAccounts) == 0 {
				a.ProviderAccounts = []ProviderAccount{target}
			}
			return nil, nil
		})
		if err != nil {
			return nil, err
		}
	}

	answer, err := v.askProvider(ctx, &ppan.Request{
		Account: a, Sandbox: v.opts.Mode == Sandbox,
		PAN: card.PAN, Expiry: card.Expiry, SecurityCode: card.SecurityCode,
	})
	if err == nil {
		op.Detail = answer.Status.String()
	}
	return answer, err
}

// maySendFor reports whether cards of an account may be sent to a provider's account.
func (o *Options) maySendFor(a *Account, somebody ProviderAccount) bool {
	return slices.Contains(a.ProviderAccounts, somebody) || o.Mode == Sandbox && len(a.ProviderAccounts) == 0
}

// PPANEnabled reports whether the vault has a provider: [Options.PPAN].
func (v *Vault) PPANEnabled() bool { return optionsOf(v).PPAN != nil }

// checkPPANAccount returns a FieldError for each value that breaks a rule.
func checkPPANAccount(a *ppan.Account) error {
	return errors.Join(
		checkHeader("AID", []byte(a.AID)),
		checkHeader("Hash", hiding.Of(a.Hash)),
		checkHeader("MID", []byte(a.MID)),
		checkHeader("PortalID", []byte(a.PortalID)),
	)
}

// askProvider calls the provider with a deadline and checks its answer.
func (v *Vault) askProvider(ctx context.Context, r *ppan.Request) (answer *ppan.Answer, err error) {
	calling, cancel := context.WithTimeout(ctx, v.opts.PPANTimeout)
	defer cancel()

	err = v.guard("provider of pseudo card numbers", func() (err error) {
		answer, err = v.opts.PPAN.ObtainPPAN(calling, r)
		return err
	})
	if err == nil {
		err = plausible.PPAN(answer, r)
	}
	if err == nil {
		return answer, nil
	}

	if errors.Is(ctx.Err(), context.Canceled) {
		return nil, ctx.Err() // the caller has left
	}

	cause := leak.Printable(plausible.Withhold(err, r.PAN, hiding.Of(r.Account.Hash), hiding.Of(r.SecurityCode)))
	v.log.Warn("provider of pseudo card numbers gave no answer", "error", cause)

	switch {
	case ctx.Err() != nil:
		return nil, fmt.Errorf("%w: %w", ErrProviderTimeout, ctx.Err())
	case errors.Is(err, context.DeadlineExceeded) || calling.Err() != nil:
		return nil, ErrProviderTimeout
	}
	return nil, fmt.Errorf("%w: %s", ErrProviderUnavailable, cause)
}
