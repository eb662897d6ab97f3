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

// ripen makes deliveries ready whose pause is over, erases those whose time in the log is
// over, and returns how many it has changed.
func (o *Outbox) ripen(ctx context.Context) (wrote int, err error) {
	var ready, over []*store.Record
	receivers := map[uuid.UUID]bool{} // of ready
	damaged := o.jobs.ReadDue(ctx, KindDelivery, ledger.Now(), jobs.Batch, func(r *store.Record) error {
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

	wrote, err = o.writeRipe(ctx, ready, over)
	if ledger.Unreadable(err) { // one receiver's queue does not hold up the others
		wrote, err = o.writeRipe(ctx, nil, over)
		for row := range receivers {
			theirs := slices.DeleteFunc(slices.Clone(ready), func(r *store.Record) bool { return Beside(r.Parent) != row })
			n, failed := o.writeRipe(ctx, theirs, nil)
			wrote, err = wrote+n, errors.Join(err, failed)
		}
	}
	return wrote, errors.Join(damaged, err)
}

// writeRipe stores deliveries that are ready again, wakes their queues, and erases those
// whose time in the log is over. It returns how many records it wrote; one more try is a
// record.
func (o *Outbox) writeRipe(ctx context.Context, ready, over []*store.Record) (wrote int, err error) {
	receivers := map[uuid.UUID]bool{}
	for _, r := range ready {
		receivers[Beside(r.Parent)] = true
	}
	queues, err := o.wakingsOf(ctx, slices.Collect(maps.Keys(receivers))...)
	if err != nil {
		return 0, err
	}
	err = o.ledger.In(uuid.Nil).Update(ctx, ledger.Step, func(tx store.Tx) error {
		wrote = 0
		for _, r := range ready {
			was := *r
			was.Version--
			ok, err := ledger.Same(tx, &was)
			if err != nil {
				return err
			}
			if ok { // no other process was faster
				tx.Put(r)
				wrote++
			}
		}
		for _, r := range over {
			ok, err := ledger.Same(tx, r)
			if err != nil {
				return err
			}
			if ok {
				tx.Delete(KindDelivery, r.ID)
				wrote++
			}
		}
		return queues.put(tx, o)
	})

	if errors.Is(err, ErrStale) {
		return 1, nil // once more
	}
	if err != nil {
		return 0, err
	}
	queues.written(o)
	return wrote, nil
}

// ripened returns a delivery that is due as it is ready, or nil if its time in the log is
// over.
func (o *Outbox) ripened(ctx context.Context, r *store.Record) (*store.Record, error) {
	p, err := o.openDelivery(ctx, r)
	if errors.Is(err, ledger.ErrDamaged) {
		alone := new(recordSet)
		alone.add(r)
		if _, err := o.releaseFirst(ctx, o.ledger.In(r.Account), alone, r.Lookup...); err != nil {
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
	damaged := o.jobs.ReadDue(ctx, KindPast, ledger.Now(), jobs.Batch, func(r *store.Record) error {
		err := o.ledger.AuthenticSecret(ctx, r)
		if err == nil {
			due = append(due, r)
		}
		return err
	})
	if len(due) == 0 {
		return 0, damaged
	}

	err = o.ledger.In(uuid.Nil).Update(ctx, ledger.Step, func(tx store.Tx) error {
		wrote = 0
		for _, r := range due {
			if ok, err := ledger.Same(tx, r); err != nil {
				return err
			} else if !ok {
				continue
			}

			wrote++
			needed, err := o.delivers(tx, r.Account, r.ID)
			switch {
			case err != nil:
				return err
			case !needed:
				tx.Delete(KindPast, r.ID)
			default:
				later := *r // only the part is sealed that binds no time
				later.Version++
				later.Due = ledger.Now().Add(pastRetention)
				tx.Put(&later)
			}
		}
		return nil
	})
	return wrote, errors.Join(damaged, err)
}

// delivers reports whether there is a delivery of an event.
func (o *Outbox) delivers(tx store.ReadTx, account, event uuid.UUID) (bool, error) {
	if r, err := present(tx, KindDelivery, rowkey.Beside(event, sinkRow)); r != nil || err != nil {
		return r != nil, err
	}
	hooks, err := tx.List(&store.Query{Kind: KindWebhook, Account: account, Limit: o.config.MaxWebhooks})
	if err != nil {
		return false, err
	}
	for _, w := range hooks.Records {
		r, err := present(tx, KindDelivery, rowkey.Beside(event, w.ID))
		if r != nil || err != nil {
			return r != nil, err
		}
	}
	return false, nil
}
