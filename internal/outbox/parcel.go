package outbox

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/internal/rowkey"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// A Change is an event of a token as it happens.
type Change struct {
	Account uuid.UUID
	Token   *store.Record // as it was opened, before the change; for a deletion its row key will do
	Type    uint8
	Reason  string

	Last uuid.UUID // row key of the token's last event; not needed for a deletion
	Told uint64    // version of the token's record that deliveries of that event contain; 0: none do
}

// A Parcel holds the records that are written with an event of a token: a delivery for
// each webhook, and for the sink. If there is neither it holds none.
//
// Deliveries hold nothing of the token. The state of the token at the event is its record,
// as long as that stays as it was then, and a child of the token once it has changed. So
// it costs nothing when a token is created, and is gone with the token.
type Parcel struct {
	// Event is the row key of the event, zero if it has no delivery. It is the last event
	// of the token from now on, and deliveries contain the next version of the token.
	Event uuid.UUID

	outbox  *Outbox
	rows    ledger.Account
	known   *Receivers
	records []*store.Record
	queues  wakings

	while *store.Record // a delivery that has to be there; nil: none
}

// ErrStale is returned by the Put of a parcel that was packed for other webhooks, or
// for queues that have come to rest since: it has to be packed again.
var ErrStale = fmt.Errorf("%w: the receivers of events have changed", store.ErrConflict)

// Pack returns the parcel of a change. The token is sealed afterwards with Parcel.Event, so
// that the next event comes after this one whatever clock it is made by.
func (o *Outbox) Pack(ctx context.Context, c *Change) (*Parcel, error) {
	known, err := o.receivers(ctx, c.Account)
	if err != nil {
		return nil, err
	}
	p := &Parcel{outbox: o, rows: o.ledger.In(c.Account), known: known}
	if c.Type != Deleted && c.Told > 0 && c.Told == c.Token.Version {
		if err := p.keepPast(ctx, c); err != nil {
			return nil, err
		}
	}

	receivers := known.Of[c.Type]
	if o.config.Sink != nil {
		receivers = append(slices.Clip(receivers), sinkRow)
	}
	if len(receivers) == 0 {
		return p, nil
	}

	id, err := o.ledger.NewRow()
	if err != nil {
		return nil, err
	}
	last := c.Last
	if c.Type == Deleted {
		if last, err = o.config.Source.LastEvent(ctx, c.Token); err != nil {
			return nil, err
		}
	}
	p.Event = rowkey.After(id, last)

	for _, receiver := range receivers {
		r := newDelivery(p.rows, receiver, p.Event)
		d := &Delivery{Type: c.Type, Reason: c.Reason, Account: c.Account, Token: c.Token.ID, Former: c.Last, Class: Ready}
		if err := o.sealDelivery(r, d); err != nil {
			return nil, err
		}
		p.records = append(p.records, r)
	}
	p.queues, err = o.wakingsOf(ctx, receivers...)
	return p, err
}

// keepPast adds the state of a token that deliveries contain, before it changes. Webhooks
// have deliveries in their log, the sink only until it has taken them.
func (p *Parcel) keepPast(ctx context.Context, c *Change) error {
	if p.known.None {
		waits, delivery := false, rowkey.Beside(c.Last, sinkRow)
		err := p.rows.View(ctx, func(tx store.ReadTx) error {
			r, err := present(ledger.Within(tx, uuid.Nil), KindDelivery, delivery)
			waits = r != nil
			return err
		})
		if err != nil || !waits {
			return err
		}
	}

	r := p.rows.NewRecord(KindPast, c.Last)
	r.Parent, r.Due = c.Token.ID, rowkey.Time(c.Last).Add(pastRetention)
	if err := p.rows.SealSecret(r, c.Token.Shown); err != nil {
		return err
	}
	p.records = append(p.records, r)
	return nil
}

// Put writes the event. It returns ErrStale if the webhooks of the account have changed: a
// webhook misses nothing from its registration on.
func (p *Parcel) Put(tx store.Tx) error {
	a, err := tx.Get(ledger.KindAccount, p.known.Account)
	if err != nil {
		return err
	}

	if p.while != nil {
		switch _, err := ledger.Again(tx, p.while); {
		case errors.Is(err, store.ErrNotFound):
			return store.ErrConflict
		case err != nil:
			return err
		}
	}

	if a.Version != p.known.Version {
		p.outbox.known.forget(p.rows.ID)
		return ErrStale
	}

	for _, r := range p.records {
		if r.Kind == KindPast {
			// A token whose former record was put back may have left one.
			switch _, err := tx.Get(KindPast, r.ID); {
			case err == nil:
				continue
			case !errors.Is(err, store.ErrNotFound):
				return err
			}
		}
		tx.Put(r)
	}
	return p.queues.put(tx, p.outbox)
}

// Written notifies Run of a stored event.
func (p *Parcel) Written() {
	p.outbox.jobs.Due(p.records...)
	p.queues.written(p.outbox)
}

// A Bundle holds the parcels of tokens that lapse together. It wakes each queue once.
type Bundle struct {
	outbox  *Outbox
	parcels []*Parcel // nil for an event that cannot be reported
	woken   map[uuid.UUID]bool
	put     []int // indexes of the parcels that were put
	queues  wakings
	rows    int // of the parcels that were put
}

// Bundle returns a bundle of parcels, some of which may be nil.
func (o *Outbox) Bundle(parcels []*Parcel) *Bundle { return &Bundle{outbox: o, parcels: parcels} }

// Begin forgets the parcels that were put in a transaction that begins again.
func (b *Bundle) Begin() {
	b.woken, b.put, b.queues, b.rows = map[uuid.UUID]bool{}, nil, nil, 0
}

// Put writes the i-th event. It returns false if its parcel has to be packed again.
func (b *Bundle) Put(tx store.Tx, i int) (bool, error) {
	p := b.parcels[i]
	if p == nil {
		return true, nil
	}

	for _, q := range p.queues {
		if b.woken[q.queue] {
			continue
		}
		err := wakings{q}.put(tx, b.outbox)
		if errors.Is(err, ErrStale) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		b.woken[q.queue] = true
		b.queues = append(b.queues, q)
	}

	alone := *p
	alone.queues = nil
	err := alone.Put(tx)
	if errors.Is(err, ErrStale) {
		return false, nil
	}
	if err == nil {
		b.put = append(b.put, i)
		b.rows += len(p.records)
	}
	return err == nil, err
}

// Rows returns how many rows Put has written.
func (b *Bundle) Rows() int { return b.rows }

// Written notifies Run of the stored events.
func (b *Bundle) Written() {
	for _, i := range b.put {
		b.outbox.jobs.Due(b.parcels[i].records...)
	}
	b.queues.written(b.outbox)
}
