package outbox

import (
	"context"
	"errors"
	"time"

	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/internal/tlv"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// A queue is due when an event waits for a webhook, or for the sink. The process that has
// claimed it sends, alone.
type queue struct {
	failing time.Time // of the first failure since the last success; zero: none
	failed  time.Time // when an attempt last failed
	pause   time.Time // end of the pause that the webhook has asked for, if it is due then
	pauses  uint64    // in a row for which the webhook did not say how long
}

const (
	queueFailing = iota + 1
	queuePause
	queueFailed
	queuePauses
)

func (q *queue) encode() []byte {
	b := tlv.AppendTime(nil, queueFailing, q.failing)
	b = tlv.AppendTime(b, queuePause, q.pause)
	b = tlv.AppendTime(b, queueFailed, q.failed)
	return tlv.Pad(tlv.AppendUint(b, queuePauses, q.pauses), 32, 0)
}

func decodeQueue(plain []byte) (*queue, error) {
	q := new(queue)
	r := tlv.Read(plain)
	for r.Next() {
		switch r.Tag {
		case queueFailing:
			q.failing = r.Time()
		case queuePause:
			q.pause = r.Time()
		case queueFailed:
			q.failed = r.Time()
		case queuePauses:
			q.pauses = r.Uint()
		}
	}
	return q, ledger.ReadError(&r)
}

// openQueue is openShown for a queue. A damaged queue is made whole: only the record of
// failures of its webhook is lost.
func (o *Outbox) openQueue(ctx context.Context, r *store.Record) ([]byte, error) {
	plain, err := o.ledger.OpenShown(ctx, r)
	if errors.Is(err, ledger.ErrDamaged) {
		return []byte{}, nil
	}
	return plain, err
}

// Beside returns the row key of the queue of a webhook, and the webhook's for a queue. They
// differ so that deliveries are not deleted with the webhook, all at once.
func Beside(row uuid.UUID) uuid.UUID {
	row[15] ^= 1
	return row
}

// NewQueue returns the queue of a new webhook.
func (o *Outbox) NewQueue(account, webhook uuid.UUID) (*store.Record, error) {
	r := &store.Record{Kind: KindQueue, ID: Beside(webhook), Account: account, Version: 1}
	return r, o.ledger.SealShown(r, new(queue).encode())
}

// EndPause returns the queue of a webhook as it is due now, nil if it does not pause, and a function that
// writes it. A shift that is under way sees by itself that the webhook has changed.
func (o *Outbox) EndPause(ctx context.Context, webhook uuid.UUID) (due *store.Record, put func(store.Tx) error, err error) {
	var r *store.Record
	err = o.ledger.View(ctx, func(tx store.ReadTx) (err error) {
		r, err = tx.Get(KindQueue, Beside(webhook))
		return err
	})
	if errors.Is(err, ledger.ErrNotFound) {
		return nil, func(store.Tx) error { return nil }, nil
	}
	if err != nil {
		return nil, nil, err
	}

	was := *r
	plain, err := o.openQueue(ctx, r)
	if err != nil {
		return nil, nil, err
	}
	q, err := decodeQueue(plain)
	if err != nil {
		return nil, nil, err
	}
	if !q.pause.IsZero() && q.pause.Equal(r.Due) {
		due = r
		due.Version++
		due.Due, q.pause = ledger.Now(), time.Time{}
		err = o.ledger.SealShown(due, q.encode())
	}

	return due, func(tx store.Tx) error {
		ok, err := ledger.Same(tx, &was)
		switch {
		case err != nil:
			return err
		case !ok:
			return store.ErrConflict
		case due != nil:
			tx.Put(due)
		}
		return nil
	}, err
}
