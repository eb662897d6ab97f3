package outbox

import (
	"context"
	"errors"
	"slices"

	"github.com/cardvault/cardvault/internal/jobs"
	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// hold makes p wait for the delivery that holds it back. It returns p if none does any
// more.
func (s *shift) hold(ctx context.Context, p *pending) (again []*pending, err error) {
	held, ok := p.after(heldBack, nil, s.schedule())
	if !ok {
		return nil, nil
	}
	next := *p.rec
	next.Version++
	if err := s.outbox.sealDelivery(&next, &held); err != nil {
		return nil, err
	}

	hash := s.orderedHash(p)
	err = s.rows.Update(ctx, ledger.Step, func(tx store.Tx) error {
		again = nil
		if ok, err := ledger.Same(tx, p.rec); err != nil || !ok {
			return err
		}

		first, err := firstWith(tx, hash, uuid.Nil, s.damaged)
		switch {
		case err != nil:
			return err
		case first == nil || !before(first, p.rec):
			again = []*pending{p}
		default:
			tx.Put(&next)
		}
		return nil
	})
	return again, err
}

// drop erases the deliveries that hold p back, the event of a deletion. Damaged ones stay,
// and hold back nothing.
func (s *shift) drop(ctx context.Context, p *pending) error {
	var others []*store.Record
	err := s.rows.FindBy(ctx, KindDelivery, s.orderedHash(p), jobs.Batch, func(r *store.Record, readable bool) bool {
		switch {
		case !readable:
			s.damaged.add(r)
		case r.ID != p.rec.ID:
			others = append(others, r)
		}
		return true
	})
	if err != nil && !errors.Is(err, ledger.ErrDamaged) {
		return err
	}

	return s.rows.Update(ctx, ledger.Step, func(tx store.Tx) error {
		if ok, err := ledger.Same(tx, p.rec); err != nil || !ok {
			return err
		}
		for _, r := range others {
			ok, err := ledger.Same(tx, r)
			if err != nil {
				return err
			}
			if ok {
				ledger.Delete(tx, r)
			}
		}
		return nil
	})
}

// schedule returns the schedule of a webhook, or of the sink, which has no log.
func (s *shift) schedule() schedule {
	if s.sink {
		return schedule{at: ledger.Now(), pace: s.outbox.config.Pace}
	}
	return schedule{at: ledger.Now(), pace: s.outbox.config.Pace, retention: deliveryRetention}
}

// settleAs settles a delivery to which something has happened without an attempt.
func (s *shift) settleAs(ctx context.Context, p *pending, o occasion) ([]*pending, error) {
	next, ok := p.after(o, nil, s.schedule())
	if !ok {
		return nil, nil
	}
	return s.settle(ctx, p, next)
}

// settle stores the next state of a delivery. It returns the delivery that was held back
// by it and is ready now.
func (s *shift) settle(ctx context.Context, p *pending, is Delivery) (freed []*pending, err error) {
	if is.Class == 0 {
		if ok, err := s.erase(ctx, p); ok || err != nil {
			return nil, err
		}
	}

	frees := p.holdsBack() && !is.holdsBack()
	for {
		hash := s.orderedHash(p)
		next := *p.rec
		next.Version++
		if is.Class != 0 {
			if err := s.outbox.sealDelivery(&next, &is); err != nil {
				return nil, err
			}
		}

		var held *store.Record
		freed = nil
		if frees {
			if held, freed, err = s.outbox.nextHeld(ctx, s.damaged, hash, p.rec.ID); err != nil {
				return nil, err
			}
		}

		changed := false
		err = s.rows.Update(ctx, ledger.Step, func(tx store.Tx) error {
			ok, err := ledger.Same(tx, p.rec)
			if changed = !ok; changed || err != nil {
				return err
			}
			if is.Class == 0 {
				ledger.Delete(tx, &next)
			} else {
				tx.Put(&next)
			}
			if !frees {
				return nil
			}
			return s.free(tx, hash, p.rec.ID, held, freed)
		})

		switch {
		case errors.Is(err, store.ErrConflict):
			continue // another delivery was held back in between, so there is progress
		case err != nil:
			return nil, err
		case !changed:
			if is.Class != 0 {
				s.outbox.jobs.Due(&next)
			}
			return freed, nil
		}

		if p, err = s.reread(ctx, p); err != nil || p == nil {
			return nil, err
		}
	}
}

// free writes the delivery that the one with an id has held back, as it is ready. held is
// its record as it was read. It returns ErrConflict if another one is held back by now.
func (s *shift) free(tx store.Tx, hash []byte, id uuid.UUID, held *store.Record, freed []*pending) error {
	first, err := firstWith(tx, hash, id, s.damaged)
	if err != nil || first == nil || first.Class != Held {
		return err
	}
	if held == nil || first.ID != held.ID || first.Version != held.Version {
		return store.ErrConflict
	}
	for _, f := range freed {
		tx.Put(f.rec)
	}
	return nil
}

// reread returns a delivery that was attempted beside its schedule and has become due
// meanwhile, or nil if something else has happened to it.
func (s *shift) reread(ctx context.Context, p *pending) (*pending, error) {
	if p.rec.Class != Retried {
		return nil, nil // gone with its webhook
	}
	var r *store.Record
	err := s.rows.View(ctx, func(tx store.ReadTx) (err error) {
		r, err = ledger.Again(tx, p.rec)
		return err
	})
	if errors.Is(err, ledger.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}

	is, err := s.outbox.openDelivery(ctx, r)
	if err != nil || is.Class != Ready || is.Attempts != p.Attempts || is.tries != p.tries {
		return nil, err // it was redelivered
	}
	return is, nil
}

// nextHeld returns the delivery that is held back by the delivery with an id, and its ready
// state; nothing if there is none.
func (o *Outbox) nextHeld(ctx context.Context, damaged *recordSet, hash []byte, id uuid.UUID) (held *store.Record, ready []*pending, err error) {
	for {
		err = o.ledger.View(ctx, func(tx store.ReadTx) error {
			held, err = firstWith(tx, hash, id, damaged)
			return err
		})
		if err != nil || held == nil {
			return nil, nil, err
		}

		next := *held
		next.Shown = slices.Clone(held.Shown)
		p, err := o.openDelivery(ctx, &next)
		switch {
		case errors.Is(err, ledger.ErrDamaged):
			damaged.add(held)
			continue
		case err != nil:
			return nil, nil, err
		}

		is, ok := p.after(released, nil, schedule{})
		if !ok {
			return nil, nil, nil
		}
		next.Version++
		p.Delivery = is
		return held, []*pending{p}, o.sealDelivery(&next, &p.Delivery)
	}
}

// releaseFirst makes the first delivery with each hash ready if it is held, and returns
// them: the deliveries that they have waited for cannot be read.
func (o *Outbox) releaseFirst(ctx context.Context, rows ledger.Account, damaged *recordSet, hashes ...[]byte) (ready []*pending, err error) {
	for _, hash := range hashes {
		held, next, err := o.nextHeld(ctx, damaged, hash, uuid.Nil)
		if err != nil {
			return nil, err
		}
		for _, p := range next {
			queues, err := o.wakingsOf(ctx, Beside(p.rec.Parent))
			if err != nil {
				return nil, err
			}

			ok := false
			err = rows.Update(ctx, ledger.Step, func(tx store.Tx) (err error) {
				if ok, err = ledger.Same(tx, held); err != nil || !ok {
					return err
				}
				tx.Put(p.rec)
				return queues.put(tx, o)
			})
			if errors.Is(err, ErrStale) {
				return o.releaseFirst(ctx, rows, damaged, hashes...)
			}
			if err != nil {
				return nil, err
			}

			if ok {
				queues.written(o)
				ready = append(ready, p)
			}
		}
	}
	return ready, nil
}
