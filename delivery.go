package cardvault

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"time"

	"github.com/cardvault/cardvault/internal/enum"
	"github.com/cardvault/cardvault/internal/listing"
	"github.com/cardvault/cardvault/internal/outbox"
	"github.com/cardvault/cardvault/internal/replay"
	"github.com/cardvault/cardvault/receive"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// A DeliveryRecord is an entry of the log of a webhook. It holds neither the event nor
// the answer.
type DeliveryRecord struct {
	ID        uuid.UUID         `wire:"id"`
	EventID   uuid.UUID         `wire:"event_id"`
	EventType receive.EventType `wire:"event_type"`
	TokenID   uuid.UUID         `wire:"token_id"`
	Status    DeliveryStatus    `wire:"status"`
	Attempts  int               `wire:"attempts"`

	LastAttemptAt  time.Time `wire:"last_attempt_at"`       // zero before the first
	NextAttemptAt  time.Time `wire:"next_attempt_at"`       // zero unless one is planned
	LastStatusCode int       `wire:"last_status_code,null"` // of HTTP; 0 if there was no answer
}

// A DeliveryStatus is the state of a delivery.
type DeliveryStatus uint8

const (
	DeliveryPending DeliveryStatus = iota + 1
	DeliveryDelivered
	DeliveryFailed // for good, unless it is redelivered
)

// String returns "pending", "delivered" or "failed".
func (s DeliveryStatus) String() string { return deliveryStatuses.Of(uint8(s)) }

var deliveryStatuses = enum.Names{DeliveryPending: "pending", DeliveryDelivered: "delivered", DeliveryFailed: "failed"}

// MarshalText returns the name, nothing for zero, and an error for a number without a name.
func (s DeliveryStatus) MarshalText() ([]byte, error) { return enum.Text(s, DeliveryStatus.String) }

// UnmarshalText reads what MarshalText writes.
func (s *DeliveryStatus) UnmarshalText(text []byte) error {
	return enum.Read(text, s, DeliveryStatus.String)
}

// ListDeliveries returns one page of the deliveries to a webhook: pending ones, and those
// that ended in the last seven days, unless their token was deleted first. The times of
// opts are times of events. opts may be nil. The error is ErrNotFound for a webhook that
// the account does not have. If deliveries are damaged, the page comes with an error: see
// [Page]. The text of the error also names their events, which Redeliver makes whole.
func (v *Vault) ListDeliveries(ctx context.Context, webhook uuid.UUID, opts *ListOptions) (_ *Page[*DeliveryRecord], err error) {
	defer v.doing(ctx, "list deliveries", &err, webhook)
	return listedDeliveries(v, webhook, opts).page(ctx)
}

// AllDeliveries iterates over the deliveries to a webhook, as [Vault.All] does over tokens.
func (v *Vault) AllDeliveries(ctx context.Context, webhook uuid.UUID, opts *ListOptions) iter.Seq2[*DeliveryRecord, error] {
	return iterate(ctx, v, func() *listed[*DeliveryRecord] { return listedDeliveries(v, webhook, opts) })
}

func listedDeliveries(v *Vault, webhook uuid.UUID, opts *ListOptions) *listed[*DeliveryRecord] {
	return listedBy(opts, "list deliveries", listing.List[*DeliveryRecord]{
		Rows: v.rows, Kind: kindDelivery, Open: v.describeDelivery, Lasting: true,
		Narrow: func(ctx context.Context, q *store.Query) error {
			w, err := v.rows.Get(ctx, kindWebhook, webhook)
			if err == nil {
				q.Parent = outbox.Beside(w.ID)
			}
			return err
		},
	})
}

func (v *Vault) describeDelivery(ctx context.Context, r *store.Record) (*DeliveryRecord, error) {
	id, event := v.rows.Mask(kindDelivery, r.ID), v.rows.Mask(kindEvent, outbox.EventOf(r))
	d, err := v.outbox.Open(ctx, r)
	if err != nil {
		return nil, fmt.Errorf("event %v: %w", event, err) // that can be delivered once more
	}

	e := &DeliveryRecord{
		ID:             id,
		EventID:        event,
		EventType:      eventType(uint64(d.Type)),
		TokenID:        v.rows.Mask(kindToken, d.Token),
		Status:         DeliveryPending,
		Attempts:       int(d.Attempts),
		LastAttemptAt:  d.Last,
		LastStatusCode: int(d.Code),
	}
	switch r.Class {
	case outbox.Done:
		e.Status = DeliveryDelivered
	case outbox.Failed:
		e.Status = DeliveryFailed
	case outbox.Retried:
		e.NextAttemptAt = r.Due
	}
	return e, nil
}

// Redeliver delivers an event once more, under the same id, to every enabled webhook that
// subscribes to events of its type, even if it was delivered before. It does not wait for
// other events of its token. The ten attempts start over; the log continues to count them.
// opts may be nil.
//
// Errors: ErrNotFound for an event that the account does not have, that is no longer in the
// log of a webhook, or whose token was deleted; ErrNoWebhook; ErrIdempotencyKeyReused.
func (v *Vault) Redeliver(ctx context.Context, event uuid.UUID, opts *CallOptions) (_ *Outcome, err error) {
	defer v.doing(ctx, "redeliver event", &err, event)
	row := v.rows.Unmask(kindEvent, event)
	if row == uuid.Nil {
		return nil, ErrNotFound
	}
	call := replay.Request{Operation: opRedeliver, Object: event, Key: opts.key()}
	return once(ctx, v, call, replayed, func(c *replay.Call) (*Outcome, error) {
		p, d, err := v.outbox.Redelivery(ctx, v.rows.ID, row)
		if err != nil {
			return nil, err
		}
		if p == nil {
			return nil, ErrNoWebhook
		}

		parent := d.Token
		if d.Type == outbox.Deleted { // it is gone, and this event is not
			parent = uuid.Nil
		}
		if err := c.Seal(nil, parent); err != nil {
			return nil, err
		}

		err = v.rows.Write(ctx, opRedeliver, event, func(tx store.Tx) error {
			if d.Type != outbox.Deleted {
				if _, err := v.rows.Find(tx, kindToken, d.Token); err != nil {
					return err
				}
			}
			return cmp.Or(c.Put(tx), p.Put(tx))
		})
		if err == nil {
			p.Written()
		}
		return new(Outcome), err
	})
}
