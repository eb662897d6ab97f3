package outbox

import (
	"context"
	"errors"
	"time"

	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// A waking makes a queue due that is given a delivery.
type waking struct {
	queue uuid.UUID
	by    *store.Record // the queue as it is due; nil: it is so already, or gone
	shift *inflow       // of the shift of this process that was under way; nil: none was
}

type wakings []waking

// wakingsOf returns the wakings of the queues of webhooks, or of the sink. It does not read
// a queue that a shift of this process is working on: it is due until the shift has ended.
// A queue that is missing, though its webhook exists, is made anew.
func (o *Outbox) wakingsOf(ctx context.Context, webhooks ...uuid.UUID) (wakings, error) {
	w, resting := make(wakings, len(webhooks)), false
	for i, row := range webhooks {
		w[i].queue = Beside(row)
		w[i].shift = o.shiftOf(w[i].queue)
		resting = resting || w[i].shift == nil
	}
	if !resting {
		return w, nil
	}
	return w, w.read(ctx, o)
}

// shiftOf returns the inflow of the running shift of a queue, or nil.
func (o *Outbox) shiftOf(row uuid.UUID) *inflow {
	n, _ := o.shifts.Load(row)
	is, _ := n.(*inflow)
	return is
}

func (w wakings) read(ctx context.Context, o *Outbox) error {
	err := o.ledger.View(ctx, func(tx store.ReadTx) error {
		for i, q := range w {
			w[i].by, w[i].shift = nil, o.shiftOf(q.queue)
			if w[i].shift != nil {
				continue
			}

			r, err := queueAt(tx, q.queue)
			if err != nil {
				return err
			}
			if r != nil && !engaged(r) {
				w[i].by = r
			}
		}
		return nil
	})
	if err != nil {
		return err
	}

	for _, q := range w {
		if q.by == nil {
			continue
		}

		plain := []byte{}
		if q.by.Version > 0 {
			if plain, err = o.openQueue(ctx, q.by); err != nil {
				return err
			}
		}
		q.by.Version++
		q.by.Due = ledger.Now()
		if err := o.ledger.SealShown(q.by, plain); err != nil {
			return err
		}
	}
	return nil
}

// engaged reports whether a queue is due or being worked on. No shift and no pause is as
// long as farthest: a queue that is due later has an edited time, or one by a clock that was
// far ahead. The sink never asks for a pause.
func engaged(r *store.Record) bool {
	farthest := maxSendPause + time.Hour
	if r.Kind == KindSinkQueue {
		farthest = 2 * sinkLease
	}
	return !r.Due.IsZero() && time.Until(r.Due) < farthest
}

// queueAt returns a queue, one without a version if it is missing, or nil if its webhook
// is gone. It returns nil too if the store cannot read the queue of the sink, which every
// import passes: events are stored all the same, and Run reports the damage.
func queueAt(tx store.ReadTx, id uuid.UUID) (*store.Record, error) {
	r, err := tx.Get(queueKind(id), id)
	if id == sinkQueue && ledger.Unreadable(err) {
		return nil, nil
	}
	if !errors.Is(err, store.ErrNotFound) {
		return r, err
	}

	// It is missing.
	if id == sinkQueue {
		return &store.Record{Kind: KindSinkQueue, ID: id}, nil
	}

	hook, err := tx.Get(KindWebhook, Beside(id))
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return &store.Record{Kind: KindQueue, ID: id, Account: hook.Account}, nil
}

// put makes the queues due in a transaction that adds to them. It returns ErrStale if
// they have to be read again.
func (w wakings) put(tx store.Tx, o *Outbox) error {
	for _, q := range w {
		is, err := queueAt(tx, q.queue)
		switch {
		case err != nil:
			return err
		case is == nil || engaged(is): // its shift looks again before it rests
		case q.by == nil || q.by.Version != is.Version+1:
			if q.shift != nil { // it has ended
				o.shifts.CompareAndDelete(q.queue, q.shift)
			}
			return ErrStale
		default:
			tx.Put(q.by)
		}
	}
	return nil
}

// written notifies Run, and the running shifts, of queues with new deliveries.
func (w wakings) written(o *Outbox) {
	for _, q := range w {
		o.jobs.Due(q.by)
		if n := o.shiftOf(q.queue); n != nil {
			n.stored.Add(1)
			select {
			case n.more <- struct{}{}:
			default:
			}
		}
	}
}
