package simnet

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/network"
	"github.com/cardvault/cardvault/store"
)

// A sink that fails is offered the notice again after a pause that doubles.
const (
	firstPause, lastPause = 100 * time.Millisecond, 5 * time.Second

	// unknownFor limits how long a notice is offered to a vault that does not know the
	// network token: it may not have stored it yet.
	unknownFor = 30 * time.Second
)

// Feed implements [network.Feeder]. Notices come in the order in which they are
// due. A notice for which sink fails comes again, after 100 milliseconds at first
// and 5 seconds at last, and before any other of its network token; one for which
// it answers cardvault.ErrNotFound is dropped 30 seconds after it was due. Feed
// fails only when the store does.
func (n *Network) Feed(ctx context.Context, _ *network.FeedRequest, sink func(context.Context, *network.Notice) error) error {
	return n.feed(ctx, kindAttempt, func(r *store.Record) error { return n.deliver(ctx, r, sink) })
}

// feed calls deliver with each record of a kind that is due, until ctx ends.
func (n *Network) feed(ctx context.Context, kind store.Kind, deliver func(*store.Record) error) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {

		news, now := n.woken(), n.now()
		var due []*store.Record
		var next time.Time

		err := n.store.View(ctx, func(tx store.ReadTx) (err error) {
			if due, err = tx.Due(kind, store.AllShards, time.UnixMicro(now), 1); err == nil && len(due) == 0 {
				next, err = tx.Next(kind, store.AllShards)
			}
			return err
		})

		if err == nil && len(due) == 1 {
			err = deliver(due[0])
		}

		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		case len(due) == 1:
			continue
		}

		var wait <-chan time.Time
		if !next.IsZero() {
			timer.Reset(time.Duration(next.UnixMicro()-now) * time.Microsecond)
			wait = timer.C
		}

		select {
		case <-ctx.Done():
			return nil
		case <-news:
		case <-wait:
		}
	}
}

// deliver passes the first notice of a network token to sink, and stores the outcome.
func (n *Network) deliver(ctx context.Context, r *store.Record, sink func(context.Context, *network.Notice) error) error {
	var a attempt
	if err := decode(r, &a); err != nil {
		return err
	}
	if a.Token != nil {
		a.Token.settle(n.now())
	}

	if a.Token == nil || len(a.Token.Outbox) == 0 {
		return fmt.Errorf("simnet: %w", store.ErrDamaged)
	}
	first := a.Token.Outbox[0]

	err := sink(ctx, a.Token.notice(r.ID, first))
	if err != nil && ctx.Err() != nil {
		return nil
	}

	now := n.now()
	done := err == nil || errors.Is(err, cardvault.ErrNotFound) && now-first.Due >= unknownFor.Microseconds()

	// A delivery is stored even if ctx has ended since.
	return n.update(context.WithoutCancel(ctx), r.ID, func(t *token) (changed bool, err error) {
		i := slices.Index(t.Outbox, first)
		switch {
		case i < 0: // deleted, or delivered by another Feed
			return false, nil
		case done:
			t.Outbox = slices.Delete(t.Outbox, i, i+1)
			t.Tries = 0
		default:
			pause := min(firstPause<<min(t.Tries, 16), lastPause)
			t.Tries++
			t.Again = now + pause.Microseconds()
		}
		return true, nil
	})
}
