package cardvault

import (
	"cmp"
	"context"

	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/internal/renewal"
	"github.com/cardvault/cardvault/receive"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/updater"
	"github.com/google/uuid"
)

// newRenewals returns the work of the account updater, nil without one.
func newRenewals(c *core) *renewal.Renewals {
	if c.opts.Updater == nil {
		return nil
	}
	return renewal.New(renewal.Config{
		Ledger:       c.ledger,
		Log:          c.log,
		Kinds:        renewal.Kinds{Token: kindToken, Account: kindAccount, Round: kindRound, Submission: kindSubmission, OptOut: kindOptOut},
		Source:       renewalSource{outboxSource{c}},
		Provider:     c.opts.Updater,
		Period:       c.opts.UpdaterPeriod,
		AllowNonLuhn: c.opts.AllowNonLuhn,
		Pauses:       retries,
		Pace:         c.pace,
		Late:         ErrCardReplaced,
		Guard:        c.guard,
	})
}

// A renewalSource answers what package renewal asks of the vault.
type renewalSource struct{ outboxSource }

// Card returns the card of a token, or nil for a token that is invalid or expires.
func (s renewalSource) Card(ctx context.Context, r *store.Record) (*renewal.Card, error) {
	t, err := s.in(r.Account).openToken(ctx, r)
	if err != nil || t.Status != StatusActive || !t.ExpiresAt.IsZero() {
		return nil, err
	}
	c := &renewal.Card{Edition: t.edition, Scheme: t.Scheme, Expiry: t.Expiry}
	if t.AccountNumberStale {
		c.Expiry = cmp.Or(t.staleExpiry, t.Expiry) // of the stored number
	}
	if checkExpiry(c.Expiry) != nil {
		return nil, nil
	}
	return c, nil
}

// Number returns the number of a card.
func (s renewalSource) Number(ctx context.Context, r *store.Record, c *renewal.Card) (card.PAN, error) {
	return s.in(r.Account).openPAN(ctx, r, &Token{edition: c.Edition})
}

// Merchant returns the primary merchant of an account.
func (s renewalSource) Merchant(ctx context.Context, account uuid.UUID) (uuid.UUID, error) {
	a, err := s.in(account).approved(ctx)
	if err != nil {
		return uuid.Nil, err
	}
	return a.merchant, nil
}

// Apply applies an outcome: a new card, a new expiry or the end of the card.
func (s renewalSource) Apply(ctx context.Context, account, row uuid.UUID, c renewal.Card, o *updater.Outcome) error {
	v := s.in(account)
	h, err := v.hold(ctx, row)
	if err != nil {
		return err
	}

	if o.Kind == updater.Updated {
		p := &replacement{card: Card{PAN: o.PAN, Expiry: o.Expiry}, edition: c.Edition, why: receive.ReasonCardUpdatedByIssuer}
		if same, _ := h.token.isOf(v, o.PAN); !same { // else the expiry alone is new
			_, err = v.replace(ctx, opRenew, h.token.ID, p)
			return err
		}
	}

	var freed *store.Record // the release of the network token
	_, err = v.changeHeld(ctx, opRenew, row, h, func(h *holding) (also func(store.Tx) error, err error) {
		freed = nil
		switch t := h.token; {
		case t.edition != c.Edition, t.Status != StatusActive, t.AccountNumberStale, t.Expiry != c.Expiry:
			return nil, ErrCardReplaced // the submission is older than that
		case o.Kind == updater.Closed:
			freed, also, err = closeCard(ctx, v, h)
		default:
			t.Expiry = o.Expiry
		}
		return also, err
	})
	if err == nil {
		v.jobs.Due(freed)
	}
	return err
}

// closeCard makes the token of h invalid, and returns the release of its network token: the
// network does not know that the account was closed.
func closeCard(ctx context.Context, v *Vault, h *holding) (*store.Record, func(store.Tx) error, error) {
	freed, drop, err := v.dropNetworkToken(ctx, h.token.ID, h.card.ID, h.net, h.due)
	if err != nil {
		return nil, nil, err
	}
	p, at := h.progress(), now()
	p.invalidate(at, "")
	v.proceed(h, p, at)
	h.leave()
	return freed, drop, nil
}
