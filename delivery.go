package cardvault

import (
	"context"
	"errors"
	"time"

	"github.com/cardvault/cardvault/internal/rowkey"
	"github.com/cardvault/cardvault/internal/tlv"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// A DeliveryRecord is an entry of the log of a webhook. It holds nothing of what was
// sent and answered.
type DeliveryRecord struct {
	ID        uuid.UUID
	EventID   uuid.UUID
	EventType EventType
	TokenID   uuid.UUID
	Status    DeliveryStatus
	Attempts  int // since it was last redelivered

	LastAttemptAt  time.Time // zero if there was none
	NextAttemptAt  time.Time // zero unless one is planned
	LastStatusCode int       // of HTTP; 0 if there was no answer
}

// A DeliveryStatus says what became of a delivery.
type DeliveryStatus uint8

const (
	DeliveryPending DeliveryStatus = iota + 1
	DeliveryDelivered
	DeliveryFailed // for good, unless it is redelivered
)

// String returns the name of the decisions, chapter 13.
func (s DeliveryStatus) String() string {
	return [...]string{"unknown", "pending", "delivered", "failed"}[s&3]
}

// MarshalText returns what String does.
func (s DeliveryStatus) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

const (
	// eventRetention is how long an event can be delivered again, and a delivery is in
	// the log: longer than all attempts take.
	eventRetention = 7 * 24 * time.Hour

	eraseBatch = 500 // deliveries of a webhook that is gone erased in one transaction
)

// Classes of deliveries in the list of their queue.
const (
	deliveryReady   = iota + 1 // to be attempted
	deliveryHeld               // until an earlier one of the same token is out of the way
	deliveryRetried            // due when it is to be ready again
	deliveryDone               // delivered; due when it is forgotten
	deliveryFailed             // likewise
)

// A delivery is what the record of one holds. The time of its row key is that of the
// event.
type delivery struct {
	event    uuid.UUID // row key
	typ      EventType
	token    uuid.UUID // row key
	attempts uint64
	tries    uint64 // attempts that were planned
	last     time.Time
	code     uint64
	loose    bool // has failed too often to hold back others, or was redelivered
}

const (
	deliveryEvent = iota + 1
	deliveryType
	deliveryToken
	deliveryAttempts
	deliveryTries
	deliveryLast
	deliveryCode
	deliveryLoose
)

func (d *delivery) encode() []byte {
	b := tlv.Append(nil, deliveryEvent, d.event[:])
	b = tlv.AppendUint(b, deliveryType, uint64(d.typ))
	b = tlv.Append(b, deliveryToken, d.token[:])
	b = tlv.AppendUint(b, deliveryAttempts, d.attempts)
	b = tlv.AppendUint(b, deliveryTries, d.tries)
	b = appendTime(b, deliveryLast, d.last)
	b = tlv.AppendUint(b, deliveryCode, d.code)
	return tlv.Pad(tlv.AppendUint(b, deliveryLoose, bit(d.loose)), 64, 0)
}

func decodeDelivery(plain []byte) (*delivery, error) {
	d := new(delivery)
	r := tlv.Read(plain)
	for r.Next() {
		switch r.Tag {
		case deliveryEvent:
			copy(d.event[:], r.Value)
		case deliveryType:
			d.typ = EventType(r.Uint())
		case deliveryToken:
			copy(d.token[:], r.Value)
		case deliveryAttempts:
			d.attempts = r.Uint()
		case deliveryTries:
			d.tries = r.Uint()
		case deliveryLast:
			d.last = readTime(&r)
		case deliveryCode:
			d.code = r.Uint()
		case deliveryLoose:
			d.loose = r.Uint() == 1
		}
	}
	return d, readError(&r)
}

// A pending delivery is a record of one with what it holds.
type pending struct {
	rec *store.Record
	delivery
}

func (v *Vault) openDelivery(ctx context.Context, r *store.Record) (*pending, error) {
	plain, err := v.openShown(ctx, r)
	if err != nil {
		return nil, err
	}
	d, err := decodeDelivery(plain)
	if err != nil {
		return nil, err
	}
	return &pending{r, *d}, nil
}

// seal sets what follows from the delivery and its class.
func (v *Vault) sealDelivery(r *store.Record, d *delivery) error {
	r.Lookup = nil
	if r.Class <= deliveryRetried {
		r.Lookup = [][]byte{v.tokenHash(r.Parent, d.token, d.loose)}
	}
	return wrapped(v.box.SealShown(r, d.encode()))
}

// tokenHash is by which the deliveries of a token in a queue are found that are not
// over: those that hold back later ones, or those that are loose.
func (v *Vault) tokenHash(queue, token uuid.UUID, loose bool) []byte {
	purpose := "deliveries"
	if loose {
		purpose = "loose deliveries"
	}
	return v.box.Lookup(v.account, purpose, append(queue[:], token[:]...))
}

// newDelivery returns the record of an event for a webhook, which has always the same
// row key: one event makes one delivery, whatever is repeated.
func (v *Vault) newDelivery(webhook, event uuid.UUID) *store.Record {
	hash := v.box.Lookup(v.account, "delivery", append(webhook[:], event[:]...))
	r := v.newRecord(kindDelivery, rowkey.Beside(event, [8]byte(hash[:8])))
	r.Parent, r.Class = beside(webhook), deliveryReady
	return r
}

// A queue is due when something is to be sent to a webhook, or the webhook is gone.
// Whoever has claimed it sends, alone.
type queue struct {
	failing time.Time // since when there was no success, zero if the last attempt was one
}

const queueFailing = 1

func (q *queue) encode() []byte { return tlv.Pad(appendTime(nil, queueFailing, q.failing), 32, 0) }

func decodeQueue(plain []byte) (*queue, error) {
	q := new(queue)
	r := tlv.Read(plain)
	for r.Next() {
		if r.Tag == queueFailing {
			q.failing = readTime(&r)
		}
	}
	return q, readError(&r)
}

// openQueue is openShown for a queue. One that is damaged is made whole: no more than
// since when its webhook fails is lost.
func (c *core) openQueue(ctx context.Context, r *store.Record) ([]byte, error) {
	plain, err := c.openShown(ctx, r)
	if errors.Is(err, ErrDamaged) {
		return []byte{}, nil
	}
	return plain, err
}

// beside returns the row key of the queue of a webhook, and that of the webhook of a
// queue. They differ so that deliveries do not go with the webhook, all at once.
func beside(row uuid.UUID) uuid.UUID {
	row[15] ^= 1
	return row
}

// wakings are queues that have nothing to do, as they are written to become due: nil
// for one that is due anyway, or gone.
type wakings map[uuid.UUID]*store.Record

// add reads a queue.
func (w wakings) add(ctx context.Context, v *Vault, id uuid.UUID) error {
	if _, ok := w[id]; ok {
		return nil
	}
	var r *store.Record
	err := v.view(ctx, func(tx store.ReadTx) (err error) {
		r, err = tx.Get(kindQueue, id)
		return err
	})
	if errors.Is(err, ErrNotFound) || err == nil && !r.Due.IsZero() {
		w[id] = nil
		return nil
	}
	if err != nil {
		return err
	}
	plain, err := v.openQueue(ctx, r)
	if err != nil {
		return err
	}
	r.Version++
	r.Due = now()
	w[id] = r
	return wrapped(v.box.SealShown(r, plain))
}

// put makes a queue due in a transaction that adds to it. It returns
// store.ErrConflict if that has to be read again.
func (w wakings) put(tx store.Tx, id uuid.UUID) error {
	is, err := tx.Get(kindQueue, id)
	switch by := w[id]; {
	case errors.Is(err, store.ErrNotFound):
		return nil // so is the webhook
	case err != nil:
		return err
	case !is.Due.IsZero():
		return nil // whoever works on it looks again before it rests
	case by == nil || by.Version != is.Version+1:
		return store.ErrConflict
	default:
		tx.Put(by)
		return nil
	}
}

// told tells Run of them.
func (w wakings) told(v *Vault) {
	for _, r := range w {
		v.workDue(r)
	}
}

// A handoff is a record that was due, as it is written or deleted, with deliveries
// that are ready then.
type handoff struct {
	rec   *store.Record // nil if it is the delivery
	over  bool
	ready []*store.Record
}

// fanOut makes the deliveries of a batch of events, erases events that were kept for
// their time, and returns how many records it has changed.
func (v *Vault) fanOut(ctx context.Context, _ *pool) (int, error) {
	at := now()
	return v.handOff(ctx, kindWebhookEvent, at, func(r *store.Record) (*handoff, error) {
		v := v.In(r.Account)
		plain, err := v.openShown(ctx, r)
		if err != nil {
			return nil, err
		}
		o, err := decodeEvent(plain)
		if err != nil {
			return nil, err
		}
		heard, err := v.webhooks(ctx)
		if err != nil {
			return nil, err
		}
		h := &handoff{rec: r}
		r.Version++
		if o.fanned {
			left, err := v.underWay(ctx, r.ID, heard)
			h.over, r.Due = !left, at.Add(24*time.Hour)
			if err != nil || h.over {
				return h, err
			}
			return h, wrapped(v.box.SealShown(r, plain))
		}
		for _, w := range heard.of(o.typ) {
			d := v.newDelivery(w.row, r.ID)
			if err := v.sealDelivery(d, &delivery{event: r.ID, typ: o.typ, token: o.row}); err != nil {
				return nil, err
			}
			h.ready = append(h.ready, d)
		}
		if h.over = len(h.ready) == 0; h.over {
			return h, nil
		}
		o.fanned = true
		r.Due = at.Add(eventRetention)
		return h, wrapped(v.box.SealShown(r, o.encode()))
	})
}

// underWay reports whether an event is still to be sent to one of its webhooks.
func (v *Vault) underWay(ctx context.Context, event uuid.UUID, heard *listeners) (left bool, err error) {
	err = v.view(ctx, func(tx store.ReadTx) error {
		for _, w := range heard.all {
			d, err := tx.Get(kindDelivery, v.newDelivery(w.row, event).ID)
			switch {
			case err == nil && d.Class <= deliveryRetried:
				left = true
			case err != nil && !errors.Is(err, store.ErrNotFound):
				return err
			}
		}
		return nil
	})
	return left, err
}

// ripen makes deliveries ready whose pause is over, erases those that were kept for
// their time, and returns how many records it has changed.
func (v *Vault) ripen(ctx context.Context, _ *pool) (int, error) {
	return v.handOff(ctx, kindDelivery, now(), func(r *store.Record) (*handoff, error) {
		d, err := v.In(r.Account).openDelivery(ctx, r)
		if err != nil {
			return nil, err
		}
		r.Version++
		if r.Class != deliveryRetried {
			return &handoff{rec: r, over: true}, nil
		}
		r.Class, r.Due = deliveryReady, time.Time{}
		return &handoff{ready: []*store.Record{r}}, v.In(r.Account).sealDelivery(r, &d.delivery)
	})
}

// handOff lets plan say what becomes of records of a kind that are due, stores it and
// wakes the queues that have something to do then.
func (v *Vault) handOff(ctx context.Context, kind store.Kind, at time.Time, plan func(*store.Record) (*handoff, error)) (wrote int, err error) {
	var all []*handoff
	queues := wakings{}
	damaged := v.readDue(ctx, kind, at, claimBatch, func(r *store.Record) error {
		h, err := plan(r)
		if err != nil {
			return err
		}
		for _, d := range h.ready {
			if err := queues.add(ctx, v, d.Parent); err != nil {
				return err
			}
		}
		all = append(all, h)
		return nil
	})
	if len(all) == 0 {
		return 0, damaged
	}
	err = v.store.Update(ctx, func(tx store.Tx) error {
		wrote = 0
		woken := map[uuid.UUID]bool{}
		for _, h := range all {
			if h.rec != nil {
				switch is, err := tx.Get(kind, h.rec.ID); {
				case errors.Is(err, store.ErrNotFound) || err == nil && is.Version != h.rec.Version-1:
					continue // somebody else was faster
				case err != nil:
					return err
				case h.over:
					tx.Delete(kind, h.rec.ID)
				default:
					tx.Put(h.rec)
				}
				wrote++
			}
			for _, d := range h.ready {
				ok, err := putReady(tx, d)
				if err != nil {
					return err
				}
				if ok {
					wrote++
					woken[d.Parent] = true
				}
			}
		}
		for id := range woken {
			if err := queues.put(tx, id); err != nil {
				return err
			}
		}
		return nil
	})
	if errors.Is(err, store.ErrConflict) {
		return 1, damaged // a queue has come to rest meanwhile: once more
	}
	if err != nil {
		return 0, errors.Join(damaged, wrapped(err))
	}
	queues.told(v)
	return wrote, damaged
}

// putReady writes a delivery that is ready, unless its webhook is gone or somebody
// has changed it.
func putReady(tx store.Tx, d *store.Record) (bool, error) {
	is, err := tx.Get(kindDelivery, d.ID)
	switch {
	case errors.Is(err, store.ErrNotFound) && d.Version == 1:
	case errors.Is(err, store.ErrNotFound):
		return false, nil
	case err != nil:
		return false, err
	case is.Version != d.Version-1:
		return false, nil
	}
	_, err = tx.Get(kindWebhook, beside(d.Parent))
	if errors.Is(err, store.ErrNotFound) {
		return false, nil
	}
	if err == nil {
		tx.Put(d)
	}
	return err == nil, err
}

// ListDeliveries returns one page of the deliveries to a webhook: what is under way,
// and what has come to an end in the last seven days. The times of opts are those of
// the events. opts may be nil. The error is ErrNotFound for a webhook that the account
// does not have.
func (v *Vault) ListDeliveries(ctx context.Context, webhook uuid.UUID, opts *ListOptions) (*Page[*DeliveryRecord], error) {
	w, err := v.get(ctx, kindWebhook, webhook)
	if err != nil {
		return nil, err
	}
	q, o, err := v.query(kindDelivery, opts)
	if err != nil {
		return nil, err
	}
	q.Parent, q.Live = beside(w.ID), time.Time{}
	return page(ctx, v, q, o, v.describeDelivery)
}

func (v *Vault) describeDelivery(ctx context.Context, r *store.Record) (*DeliveryRecord, error) {
	d, err := v.openDelivery(ctx, r)
	if err != nil {
		return nil, err
	}
	e := &DeliveryRecord{
		ID:             v.mask(kindDelivery, r.ID),
		EventID:        v.mask(kindEvent, d.event),
		EventType:      d.typ,
		TokenID:        v.mask(kindToken, d.token),
		Status:         DeliveryPending,
		Attempts:       int(d.attempts),
		LastAttemptAt:  d.last,
		LastStatusCode: int(d.code),
	}
	switch r.Class {
	case deliveryDone:
		e.Status = DeliveryDelivered
	case deliveryFailed:
		e.Status = DeliveryFailed
	case deliveryRetried:
		e.NextAttemptAt = r.Due
	}
	return e, nil
}

// Redeliver delivers an event once more, under the same id, to every webhook that is
// enabled and takes events of its type, whatever became of it before. It does not
// wait for other events of its token.
//
// The error is ErrNotFound for an event that the account does not have: one of more
// than seven days ago, one whose token is gone, or that was there before any webhook.
func (v *Vault) Redeliver(ctx context.Context, event uuid.UUID) error {
	row := v.unmask(kindEvent, event)
	for {
		o, err := v.keptEvent(ctx, row)
		if err != nil {
			return err
		}
		if !o.fanned {
			return nil // it is on its way
		}
		heard, err := v.webhooks(ctx)
		if err != nil {
			return err
		}
		var ready []*store.Record
		queues := wakings{}
		for _, w := range heard.of(o.typ) {
			d, err := v.anew(ctx, w.row, row, o)
			if err != nil {
				return err
			}
			if d == nil {
				continue
			}
			if err := queues.add(ctx, v, d.Parent); err != nil {
				return err
			}
			ready = append(ready, d)
		}
		err = v.write(ctx, opRedeliver, event, func(tx store.Tx) error {
			if _, err := tx.Get(kindWebhookEvent, row); err != nil {
				return err
			}
			for _, d := range ready {
				ok, err := putReady(tx, d)
				if err == nil && !ok {
					err = store.ErrConflict
				}
				if err == nil {
					err = queues.put(tx, d.Parent)
				}
				if err != nil {
					return err
				}
			}
			return nil
		})
		if errors.Is(err, store.ErrConflict) {
			continue
		}
		if err == nil {
			queues.told(v)
		}
		return err
	}
}

// keptEvent returns an event for webhooks.
func (v *Vault) keptEvent(ctx context.Context, row uuid.UUID) (*outEvent, error) {
	if row == uuid.Nil {
		return nil, ErrNotFound
	}
	var r *store.Record
	err := v.view(ctx, func(tx store.ReadTx) (err error) {
		r, err = tx.Get(kindWebhookEvent, row) // it may be due
		return err
	})
	if err == nil && r.Account != v.account {
		err = ErrNotFound
	}
	if err != nil {
		return nil, err
	}
	plain, err := v.openShown(ctx, r)
	if err != nil {
		return nil, err
	}
	return decodeEvent(plain)
}

// anew returns the delivery of an event to a webhook as it begins again, or nil if it
// is to be attempted anyway.
func (v *Vault) anew(ctx context.Context, webhook, event uuid.UUID, o *outEvent) (*store.Record, error) {
	r := v.newDelivery(webhook, event)
	d := &delivery{event: event, typ: o.typ, token: o.row, loose: true}
	var was *store.Record
	err := v.view(ctx, func(tx store.ReadTx) (err error) {
		was, err = tx.Get(kindDelivery, r.ID)
		return err
	})
	if err != nil && !errors.Is(err, ErrNotFound) {
		return nil, err
	}
	if err == nil {
		r.Version = was.Version + 1
		p, err := v.openDelivery(ctx, was)
		switch {
		case errors.Is(err, ErrDamaged): // it is whole again then
			d.loose = was.Class > deliveryRetried
		case err != nil:
			return nil, err
		case was.Class == deliveryReady || was.Class == deliveryHeld:
			return nil, nil
		default:
			d.loose = was.Class > deliveryRetried || p.loose // later ones may be held back
		}
	}
	return r, v.sealDelivery(r, d)
}
