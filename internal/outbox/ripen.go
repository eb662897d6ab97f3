package outbox

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/cardvault/cardvault/internal/jobs"
	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/internal/rowkey"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// readDue has use look at records of a kind that are due, as jobs.Engine.ReadDue does, until
// it has taken a batch. Records that could not be read are passed over for a while.
func (o *Outbox) readDue(ctx context.Context, kind store.Kind, use func(*store.Record) error) (damaged error) {
	used := 0
	damaged = o.jobs.ReadDue(ctx, kind, ledger.Now(), jobs.Batch+o.unread.count(), func(r *store.Record) error {
		switch {
		case used == jobs.Batch:
			return errEnough
		case o.unread.has(r):
			return errUnread
		}

		err := use(r)
		switch {
		case err == nil:
			used++
		case ledger.Unreadable(err):
			o.unread.add(r)
		}
		return err
	})
	if errors.Is(damaged, errEnough) {
		return nil
	}
	return damaged
}

var (
	errEnough = errors.New("outbox: a batch is full")
	errUnread = fmt.Errorf("%w: records that are due cannot be read", ledger.ErrDamaged)
)

// ripen makes deliveries ready once their pause has ended, erases those whose time in the
// log has ended, and returns the number of changes.
func (o *Outbox) ripen(ctx context.Context) (wrote int, err error) {
	var ready, over []*store.Record
	receivers := map[uuid.UUID]bool{} // of ready
	damaged := o.readDue(ctx, KindDelivery, func(r *store.Record) error {
		next, err := o.ripened(ctx, r)
		switch {
		case err != nil:
			return err
		case next == nil:
			over = append(over, r)
		default:
			ready, receivers[Beside(r.Parent)] = append(ready, next), true
		}
		return nil
	})
	if len(ready)+len(over) == 0 {
		return 0, damaged
	}

	wrote, lost, err := o.writeRipe(ctx, ready, over)
	if !ledger.Unreadable(err) {
		return wrote, errors.Join(damaged, lost, err)
	}

	// One receiver's queue does not hold up the others.
	wrote, lost, err = o.writeRipe(ctx, nil, over)
	for row := range receivers {
		theirs := slices.DeleteFunc(slices.Clone(ready), func(r *store.Record) bool { return Beside(r.Parent) != row })
		n, gone, failed := o.writeRipe(ctx, theirs, nil)
		if ledger.Unreadable(failed) {
			for _, r := range theirs {
				o.unread.add(former(r))
			}
		}
		wrote, err = wrote+n, errors.Join(err, gone, failed)
	}
	return wrote, errors.Join(damaged, lost, err)
}

// former returns a record as it was read, for comparisons, before its version rose.
func former(r *store.Record) *store.Record {
	was := *r
	was.Version--
	return &was
}

// writeRipe stores deliveries that are ready again, wakes their queues, and erases
// deliveries whose time in the log has ended. It returns the number of records it wrote,
// one more try counted as a record, and damaged if the store could not read all of them.
func (o *Outbox) writeRipe(ctx context.Context, ready, over []*store.Record) (wrote int, damaged, err error) {
	receivers := map[uuid.UUID]bool{}
	for _, r := range ready {
		receivers[Beside(r.Parent)] = true
	}
	queues, err := o.wakingsOf(ctx, slices.Collect(maps.Keys(receivers))...)
	if err != nil {
		return 0, nil, err
	}

	var lost []*store.Record // that the store cannot read
	err = o.ledger.In(uuid.Nil).Update(ctx, ledger.Step, func(tx store.Tx) error {
		wrote, lost = 0, nil

		for _, r := range ready {
			ok, err := sameReadable(tx, former(r), &lost)
			if err != nil {
				return err
			}
			if ok { // no other process was faster
				tx.Put(r)
				wrote++
			}
		}

		for _, r := range over {
			ok, err := sameReadable(tx, r, &lost)
			if err != nil {
				return err
			}
			if ok {
				ledger.Delete(tx, r)
				wrote++
			}
		}
		return queues.put(tx, o)
	})

	if errors.Is(err, ErrStale) {
		return 1, nil, nil // once more
	}
	if err != nil {
		return 0, nil, err
	}
	queues.written(o)
	return wrote, o.lose(lost), nil
}

// sameReadable reports whether a record is as it was read. If the store cannot read it any
// more, it is added to lost.
func sameReadable(tx store.ReadTx, r *store.Record, lost *[]*store.Record) (bool, error) {
	ok, err := ledger.Same(tx, r)
	if ledger.Unreadable(err) {
		*lost = append(*lost, r)
		return false, nil
	}
	return ok, err
}

// lose has records passed over that the store cannot read, and returns an error if there are
// any.
func (o *Outbox) lose(lost []*store.Record) error {
	if len(lost) == 0 {
		return nil
	}
	for _, r := range lost {
		o.unread.add(r)
	}
	return errUnread
}

// ripened returns a due delivery in its ready state, or nil if its time in the log has
// ended.
func (o *Outbox) ripened(ctx context.Context, r *store.Record) (*store.Record, error) {
	p, err := o.openDelivery(ctx, r)
	if errors.Is(err, ledger.ErrDamaged) {
		alone := new(recordSet)
		alone.add(r)
		if _, err := o.releaseFirst(ctx, o.ledger.In(r.Account), alone, o.ledger.Box.Keys().Searched(r.Lookup)...); err != nil {
			return nil, err
		}
	}
	if err != nil {
		return nil, err
	}

	if _, ok := p.after(outOfLog, nil, schedule{}); ok {
		return nil, nil
	}
	next, ok := p.after(ripe, nil, schedule{})
	if !ok {
		return nil, fmt.Errorf("%w: a delivery of class %d is due", ledger.ErrDamaged, r.Class)
	}
	r.Version++
	return r, o.sealDelivery(r, &next)
}

// erasePast erases states of tokens that no delivery contains any more, and returns how
// many records it has changed.
func (o *Outbox) erasePast(ctx context.Context) (wrote int, err error) {
	var due []*store.Record
	damaged := o.readDue(ctx, KindPast, func(r *store.Record) error {
		err := o.ledger.AuthenticSecret(ctx, r)
		if err == nil {
			due = append(due, r)
		}
		return err
	})
	if len(due) == 0 {
		return 0, damaged
	}

	var lost []*store.Record // that the store cannot read
	err = o.ledger.In(uuid.Nil).Update(ctx, ledger.Step, func(tx store.Tx) error {
		wrote, lost = 0, nil
		for _, r := range due {
			if ok, err := sameReadable(tx, r, &lost); err != nil {
				return err
			} else if !ok {
				continue
			}

			needed, err := o.delivers(tx, r.Account, r.ID)
			if ledger.Unreadable(err) {
				lost = append(lost, r)
				continue
			}

			wrote++
			switch {
			case err != nil:
				return err
			case !needed:
				ledger.Delete(tx, r)
			default:
				later := *r // only the part is sealed that binds no time
				later.Version++
				later.Due = ledger.Now().Add(pastRetention)
				tx.Put(&later)
			}
		}
		return nil
	})
	if err == nil {
		err = o.lose(lost)
	}
	return wrote, errors.Join(damaged, err)
}

// delivers reports whether there is a delivery of an event.
func (o *Outbox) delivers(tx store.ReadTx, account, event uuid.UUID) (bool, error) {
	if r, err := present(ledger.Within(tx, uuid.Nil), KindDelivery, rowkey.Beside(event, sinkRow)); r != nil || err != nil {
		return r != nil, err
	}
	hooks, err := tx.List(&store.Query{Kind: KindWebhook, Account: account, Limit: o.config.MaxWebhooks})
	if hooks == nil {
		return false, err
	}
	for _, w := range hooks.Records {
		r, err := present(ledger.Within(tx, account), KindDelivery, rowkey.Beside(event, w.ID))
		if r != nil || err != nil {
			return r != nil, err
		}
	}
	return false, nil
}
