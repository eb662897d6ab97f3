package simnet

import (
	"context"
	"errors"

	"github.com/cardvault/cardvault/network"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// ErrUnknownToken is returned by [Control] for a token that has no network token
// here, or none that is not deleted.
var ErrUnknownToken = errors.New("simnet: token has no network token")

// A Control does what issuers and schemes do to the network token of a token, at any time
// and unasked. Its methods take the id of the token, as API clients know it. Their effects
// are durable when they return, and the vault is notified. A change that makes no sense in
// the present state, such as a resumption without a suspension, does nothing.
type Control struct{ n *Network }

// Control returns the control surface of the simulator.
func (n *Network) Control() *Control { return &Control{n} }

// Suspend has the issuer suspend the network token. A pending one stays pending.
func (c *Control) Suspend(ctx context.Context, id uuid.UUID) error {
	return c.happen(ctx, id, network.NoticeSuspended)
}

// Resume ends the suspension by Suspend. The network token is active again unless another
// owner still suspends it.
func (c *Control) Resume(ctx context.Context, id uuid.UUID) error {
	return c.happen(ctx, id, network.NoticeResumed)
}

// Delete has the issuer delete the network token, for good.
func (c *Control) Delete(ctx context.Context, id uuid.UUID) error {
	return c.happen(ctx, id, network.NoticeDeleted)
}

// Invalidate ends the card, and the network token with it.
func (c *Control) Invalidate(ctx context.Context, id uuid.UUID) error {
	return c.happen(ctx, id, network.NoticeInvalidated)
}

// Replace gives the card a new number and an expiry four years later. The notice has only
// the last four digits of the number.
func (c *Control) Replace(ctx context.Context, id uuid.UUID) error {
	return c.happen(ctx, id, network.NoticeCardReplaced)
}

// Renew gives the card an expiry three years later.
func (c *Control) Renew(ctx context.Context, id uuid.UUID) error {
	return c.happen(ctx, id, network.NoticeCardRenewed)
}

// maxAttempts bounds the provisionings of a token that are examined. Provisionings with a
// deleted network token do not count.
const maxAttempts = 100

func (c *Control) happen(ctx context.Context, id uuid.UUID, kind network.NoticeKind) error {
	now := c.n.now()
	var latest *held

	err := c.n.store.View(ctx, func(tx store.ReadTx) error {
		attempts, err := tx.Lookup(kindAttempt, id[:], maxAttempts)
		if err != nil {
			return err
		}
		for _, r := range attempts {
			h, err := c.n.find(tx, r.ID, now)
			if err != nil {
				return err
			}
			if h.token != nil && h.token.State != deleted && (latest == nil || h.token.Made > latest.token.Made) {
				latest = h
			}
		}
		return nil
	})

	if err != nil {
		return err
	}

	if latest == nil {
		return ErrUnknownToken
	}

	err = c.n.update(ctx, latest.record.ID, func(t *token) (changed bool, err error) {
		return t.happen(kind, network.OwnerIssuer, now), nil
	})
	c.n.wake()
	return err
}
