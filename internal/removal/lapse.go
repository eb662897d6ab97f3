package removal

import (
	"context"
	"errors"
	"slices"

	"github.com/cardvault/cardvault/internal/jobs"
	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

const (
	lapseBatch = 500  // records erased in one transaction
	lapseRows  = 1000 // rows of endings written with them, besides those for the last record
)

var opExpire = ledger.Takes("expire")

// Sweep returns the background work that erases records that have lapsed.
func (e *Eraser) Sweep() jobs.Sweep {
	var kinds []store.Kind
	for _, l := range e.config.Lapsing {
		kinds = append(kinds, l.Kind)
	}
	return jobs.Sweep{Records: kinds, Step: e.lapse}
}

// lapse erases one batch of each kind that lapses, and returns how many records.
func (e *Eraser) lapse(ctx context.Context) (all int, err error) {
	var errs []error
	for _, l := range e.config.Lapsing {
		n, err := e.lapseOf(ctx, l)
		if err != nil {
			errs = append(errs, err) // a damaged record does not keep others from being erased
		}
		all += n
	}
	return all, errors.Join(errs...)
}

// Lapse erases one batch of lapsed records of a kind, and returns how many.
func (e *Eraser) Lapse(ctx context.Context, kind store.Kind) (int, error) {
	i := slices.IndexFunc(e.config.Lapsing, func(l Lapsing) bool { return l.Kind == kind })
	if i < 0 {
		return 0, nil
	}
	return e.lapseOf(ctx, e.config.Lapsing[i])
}

// lapseOf erases one batch of lapsed records and returns their number. It includes records
// whose endings have to be made again, so that it is called again. A record that cannot be
// read stays: its end may be another record's.
func (e *Eraser) lapseOf(ctx context.Context, l Lapsing) (int, error) {
	b := &batch{Eraser: e, of: l}
	damaged := e.jobs.ReadDue(ctx, l.Kind, ledger.Now(), lapseBatch, func(r *store.Record) error {
		err := e.ledger.Authentic(ctx, r)
		if err == nil {
			b.due = append(b.due, r)
		}
		return err
	})
	if len(b.due) == 0 {
		return 0, damaged
	}

	// Endings are sealed before they are written.
	if l.Endings != nil {
		if err := b.prepare(ctx); err != nil {
			return 0, errors.Join(damaged, err)
		}
	}

	err := b.erase(ctx)
	if l.Endings != nil && errors.Is(err, store.ErrFull) {
		// There is room for erasing, and a record that has lapsed has to go.
		full := err
		if err = b.eraseAlone(ctx); err == nil {
			e.config.Log.Error("expired records are erased without their events: the store is full", "records", len(b.erased), "error", full)
		}
	}
	if err != nil {
		e.whole().Logged(ctx, opExpire, uuid.Nil, err)
		return 0, errors.Join(damaged, err)
	}

	for _, r := range b.erased {
		var object uuid.UUID // zero for an id that is a credential
		if l.Named {
			object = e.ledger.In(r.Account).Mask(l.Kind, r.ID)
		}
		e.ledger.In(r.Account).Logged(ctx, opExpire, object, nil)
	}
	return len(b.erased) + b.more, damaged
}

func (e *Eraser) whole() ledger.Account { return e.ledger.In(uuid.Nil) }

// A batch holds records of one kind that have lapsed.
type batch struct {
	*Eraser
	of      Lapsing
	due     []*store.Record
	endings Endings       // nil: absent
	left    *store.Record // the job that erases their children; nil: they have none

	// What the last transaction has done.
	erased []*store.Record
	more   int // records that are looked at again, or children that were erased
}

// prepare makes the endings of the records, and the job that erases their children.
func (b *batch) prepare(ctx context.Context) (err error) {
	if b.endings, err = b.of.Endings(ctx, b.due); err != nil {
		return err
	}
	rows := make([]uuid.UUID, len(b.due))
	for i, r := range b.due {
		rows[i] = r.ID
	}
	b.left, err = b.Remains(b.whole(), b.of.Kind, rows...)
	return err
}

// erase erases the records that are as they were, with their endings and the job for their
// children. It erases at most lapseBatch rows.
func (b *batch) erase(ctx context.Context) error {
	err := b.whole().Update(ctx, opExpire, func(tx store.Tx) error {
		b.erased, b.more = b.erased[:0], 0
		if b.endings != nil {
			b.endings.Begin()
		}

		for i, r := range b.due {
			if b.endings != nil && b.endings.Rows() >= lapseRows {
				break
			}
			ok, err := ledger.Same(tx, r)
			if ok && b.endings != nil {
				if ok, err = b.endings.Put(tx, i); !ok {
					b.more++
				}
			}
			if err != nil {
				return err
			}
			if ok {
				b.ledger.DeleteRead(tx, r)
				b.erased = append(b.erased, r)
			}
		}

		if b.left != nil && len(b.erased) > 0 {
			tx.Put(b.left)
		}
		return nil
	})
	if err != nil {
		return err
	}

	if b.endings != nil {
		b.endings.Written()
	}
	if len(b.erased) > 0 {
		b.jobs.Due(b.left)
	}
	return nil
}

// eraseAlone is erase where there is no room for anything that is written: children are
// erased with their records, up to ledger.FamilyRows, and a record once it has none left.
func (b *batch) eraseAlone(ctx context.Context) error {
	return b.whole().Update(ctx, opExpire, func(tx store.Tx) error {
		b.erased, b.more = b.erased[:0], 0
		for _, r := range b.due {
			ok, err := ledger.Same(tx, r)
			if err != nil {
				return err
			}
			if !ok {
				continue
			}

			all, n, err := b.ledger.DeleteSome(tx, r.Kind, r.ID, ledger.FamilyRows-b.more, nil)
			if b.more += n; err != nil {
				return err
			}
			if !all {
				break
			}
			b.ledger.DeleteRead(tx, r)
			b.erased = append(b.erased, r)
		}
		return nil
	})
}
