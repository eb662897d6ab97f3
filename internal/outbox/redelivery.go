package outbox

import (
	"context"
	"errors"
	"slices"

	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/internal/rowkey"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// Redelivery returns the parcel of an event that is delivered again, to the webhooks of an
// account that take events of its type, and one of its deliveries. The parcel is nil if no
// webhook does. Its Put returns store.ErrConflict if the delivery is gone: while it is
// there, so is the state of the token at the event.
func (o *Outbox) Redelivery(ctx context.Context, account, event uuid.UUID) (*Parcel, *Delivery, error) {
	rows := o.ledger.In(account)
	made, err := o.deliveriesOf(ctx, rows, event)
	if err != nil {
		return nil, nil, err
	}
	of, d, err := o.anyOf(ctx, made)
	if err != nil {
		return nil, nil, err
	}

	// An answer for want of webhooks writes nothing, and so compares no version of them:
	// they are read again.
	known, err := o.receivers(ctx, account)
	if err == nil && len(known.Of[d.Type&3]) == 0 {
		o.known.forget(account)
		known, err = o.receivers(ctx, account)
	}
	if err != nil || len(known.Of[d.Type&3]) == 0 {
		return nil, d, err
	}

	p := &Parcel{outbox: o, rows: rows, known: known, while: of}
	hooks := known.Of[d.Type&3]
	for _, hook := range hooks {
		r, err := o.anew(ctx, newDelivery(rows, hook, event), made[hook], d)
		if err != nil {
			return nil, nil, err
		}
		if r != nil {
			p.records = append(p.records, r)
		}
	}
	p.queues, err = o.wakingsOf(ctx, hooks...)
	return p, d, err
}

// deliveriesOf returns the deliveries of an event, by the row keys of their webhooks.
func (o *Outbox) deliveriesOf(ctx context.Context, rows ledger.Account, event uuid.UUID) (map[uuid.UUID]*store.Record, error) {
	hooks, err := rows.List(ctx, &store.Query{Kind: KindWebhook, Account: rows.ID, Limit: o.config.MaxWebhooks})
	if err != nil {
		return nil, err
	}

	made := map[uuid.UUID]*store.Record{}
	err = rows.View(ctx, func(tx store.ReadTx) error {
		clear(made)

		for _, w := range hooks.Records {
			r, err := tx.Get(KindDelivery, rowkey.Beside(event, w.ID))
			if err == nil {
				err = rows.Belongs(tx, r)
			}
			if errors.Is(err, store.ErrNotFound) || errors.Is(err, ledger.ErrNotFound) {
				continue
			}
			if err != nil {
				return err
			}

			made[w.ID] = r
		}
		return nil
	})
	return made, err
}

// anyOf returns one of an event's deliveries, and their common part: type, reason and
// token.
func (o *Outbox) anyOf(ctx context.Context, made map[uuid.UUID]*store.Record) (of *store.Record, d *Delivery, err error) {
	err = ledger.ErrNotFound
	for _, r := range made {
		copied := *r
		copied.Shown = slices.Clone(r.Shown)
		var p *pending
		if p, err = o.openDelivery(ctx, &copied); err == nil {
			return r, &p.Delivery, nil
		}
		if !errors.Is(err, ledger.ErrDamaged) {
			break
		}
	}
	return nil, nil, err
}

// anew returns r, a new delivery of an event, in its first state, or nil if an attempt is
// pending anyway. was is the present delivery, or nil.
func (o *Outbox) anew(ctx context.Context, r, was *store.Record, of *Delivery) (*store.Record, error) {
	d := Delivery{Type: of.Type, Reason: of.Reason, Token: of.Token, Former: of.Former, Class: Failed}

	if was != nil {
		r.Version = was.Version + 1
		p, err := o.openDelivery(ctx, was)
		switch {
		case errors.Is(err, ledger.ErrDamaged):
			// It becomes whole, whatever its class. The attempt has later ones find it.
			d.Class, d.Attempts = max(was.Class, Retried), 1
		case err != nil:
			return nil, err
		default:
			d = p.Delivery
		}
	}

	next, ok := d.after(redelivered, nil, schedule{})
	if !ok {
		return nil, nil
	}
	return r, o.sealDelivery(r, &next)
}
