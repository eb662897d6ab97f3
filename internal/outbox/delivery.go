package outbox

import (
	"bytes"
	"context"
	"errors"
	"time"

	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/internal/rowkey"
	"github.com/cardvault/cardvault/internal/tlv"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// deliveryRetention limits how long an ended delivery stays in the log, where it can be
// made again.
const deliveryRetention = 7 * 24 * time.Hour

// pastRetention is the delay until a former state of a token is first checked for
// deliveries that still contain it: most have left the log by then.
const pastRetention = deliveryRetention + 24*time.Hour

const (
	deliveryType = iota + 1
	deliveryToken
	deliveryAttempts
	deliveryTries
	deliveryLast
	deliveryCode
	deliveryUnordered
	deliveryReason
	deliveryThrottled
	deliveryAccount // if the record belongs to the whole vault
	deliveryFormer
)

// encode returns what a record of an account, or of the whole vault, holds of d.
func (d *Delivery) encode(account uuid.UUID) []byte {
	b := tlv.AppendUint(make([]byte, 0, 64), deliveryType, uint64(d.Type))
	b = tlv.Append(b, deliveryToken, d.Token[:])
	b = tlv.AppendUint(b, deliveryAttempts, d.Attempts)
	b = tlv.AppendUint(b, deliveryTries, d.tries)
	b = tlv.AppendTime(b, deliveryLast, d.Last)
	b = tlv.AppendUint(b, deliveryCode, d.Code)
	b = tlv.AppendBool(b, deliveryUnordered, d.unordered)
	b = tlv.AppendUint(b, deliveryThrottled, d.throttled)
	if account == uuid.Nil {
		b = tlv.Append(b, deliveryAccount, d.Account[:])
	}
	if d.Former != uuid.Nil {
		b = tlv.Append(b, deliveryFormer, d.Former[:])
	}
	return tlv.Pad(tlv.Append(b, deliveryReason, d.Reason), 32, 0)
}

func decodeDelivery(plain []byte) (*Delivery, error) {
	d := new(Delivery)

	r := tlv.Read(plain)
	for r.Next() {
		switch r.Tag {
		case deliveryType:
			d.Type = uint8(r.Uint())
		case deliveryToken:
			copy(d.Token[:], r.Value)
		case deliveryAttempts:
			d.Attempts = r.Uint()
		case deliveryTries:
			d.tries = r.Uint()
		case deliveryLast:
			d.Last = r.Time()
		case deliveryCode:
			d.Code = r.Uint()
		case deliveryUnordered:
			d.unordered = r.Bool()
		case deliveryReason:
			d.Reason = string(r.Value)
		case deliveryThrottled:
			d.throttled = r.Uint()
		case deliveryAccount:
			copy(d.Account[:], r.Value)
		case deliveryFormer:
			copy(d.Former[:], r.Value)
		}
	}
	return d, ledger.ReadError(&r)
}

// A pending delivery is its record and the content of that.
type pending struct {
	rec *store.Record
	Delivery
	late bool // listed behind the first page: see shift.missed
}

// Open returns the delivery of a record.
func (o *Outbox) Open(ctx context.Context, r *store.Record) (*Delivery, error) {
	p, err := o.openDelivery(ctx, r)
	if err != nil {
		return nil, err
	}
	return &p.Delivery, nil
}

func (o *Outbox) openDelivery(ctx context.Context, r *store.Record) (*pending, error) {
	plain, err := o.ledger.OpenShown(ctx, r)
	if err != nil {
		return nil, err
	}
	d, err := decodeDelivery(plain)
	if err != nil {
		return nil, o.ledger.Named(r, err)
	}
	d.Event, d.Class, d.Due = EventOf(r), r.Class, r.Due
	if r.Account != uuid.Nil {
		d.Account = r.Account
	}
	return &pending{rec: r, Delivery: *d}, nil
}

// Busy reports whether a process may be at work on the record of a delivery: it has not
// ended, and its queue is claimed.
func (o *Outbox) Busy(ctx context.Context, r *store.Record) (bool, error) {
	if r.Class >= Done {
		return false, nil
	}
	var of *store.Record
	err := o.ledger.View(ctx, func(tx store.ReadTx) (err error) {
		of, err = present(tx, queueKind(r.Parent), r.Parent)
		return err
	})
	if of == nil || ledger.Unreadable(err) {
		return false, nil
	}
	return err == nil && o.jobs.Busy(of, nil), err
}

// EventOf returns the row key of the event of a delivery.
func EventOf(r *store.Record) uuid.UUID { return rowkey.Beside(r.ID, Beside(r.Parent)) }

// sealDelivery sets every column that follows from a delivery. A delivery that is ready at
// once cannot be found by its token: such deliveries are listed in their order, and most
// cost no entry of a random key.
func (o *Outbox) sealDelivery(r *store.Record, d *Delivery) error {
	r.Class, r.Due = d.Class, d.Due
	r.Lookup = nil
	if d.Class < Done && (d.Class != Ready || d.Attempts > 0) {
		r.Lookup = o.tokenHashes(r.Account, r.Parent, d)
	}

	return o.ledger.SealShown(r, d.encode(r.Account))
}

// tokenHash returns the hash of a token's deliveries, in the queue with a row key, that
// have failed or wait for a failed one. Ordered deliveries, which hold back later ones, and
// unordered ones have different hashes.
func (o *Outbox) tokenHash(account, row, token uuid.UUID, unordered bool) []byte {
	return o.ledger.Box.Lookup(account, purposeOf(unordered), append(row[:], token[:]...))
}

// tokenHashes returns all hashes by which a delivery can be found: see tokenHash.
func (o *Outbox) tokenHashes(account, row uuid.UUID, d *Delivery) [][]byte {
	return o.ledger.Box.Lookups(account, purposeOf(d.unordered), append(row[:], d.Token[:]...))
}

func purposeOf(unordered bool) string {
	if unordered {
		return "loose deliveries"
	}
	return "deliveries"
}

// Hashes returns the hashes of a delivery that has some: see ledger.Hashes.
func (o *Outbox) Hashes(r *store.Record, plain []byte) ([][]byte, error) {
	d, err := decodeDelivery(plain)
	if err != nil {
		return nil, err
	}
	return o.tokenHashes(r.Account, r.Parent, d), nil
}

// newDelivery returns the record of an event for a webhook or the sink, which has always the
// same row key: one event makes one delivery, whatever is repeated.
func newDelivery(rows ledger.Account, receiver, event uuid.UUID) *store.Record {
	r := rows.NewRecord(KindDelivery, rowkey.Beside(event, receiver))
	r.Parent = Beside(receiver)
	if receiver == sinkRow {
		r.Account = uuid.Nil
	}
	return r
}

// present returns a record, or nil if it is absent.
func present(tx store.ReadTx, kind store.Kind, id uuid.UUID) (*store.Record, error) {
	r, err := tx.Get(kind, id)
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil
	}
	return r, err
}

// before reports whether a's event came before b's.
func before(a, b *store.Record) bool { return precedes(a.ID, b.ID) }

// precedes reports whether a row key comes before another.
func precedes(a, b uuid.UUID) bool { return bytes.Compare(a[:], b[:]) < 0 }
