package cardvault

import (
	"context"
	"errors"
	"time"

	"github.com/cardvault/cardvault/internal/leak"
	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// The EventSink is one more receiver of deliveries. Its queue belongs to the whole vault,
// and so do the deliveries in it: one shift passes on the events of all accounts. The sink
// has no log: a delivery that has ended is erased.

// sinkQueue is the row key of the queue of the sink.
var sinkQueue = uuid.UUID{15: 2}

// sinkRow stands for the sink where webhooks have a row key.
var sinkRow = beside(sinkQueue)

const (
	sinkWorkers = 64                     // events that the sink is passed at a time
	sinkPause   = 100 * time.Microsecond // in place of sendPause: the sink keeps pace with imports
	sinkShifts  = 2                      // more than the one there is: a shift is renewed while a worker is free
)

// queueKind returns the kind of the record of a queue. That of the sink is claimed by vaults
// that have one, whether they have a Sender for webhooks or not.
func queueKind(row uuid.UUID) store.Kind {
	if row == sinkQueue {
		return kindSinkQueue
	}
	return kindQueue
}

// anyEvent is the sink as a webhook: it is never disabled, and takes all events.
var anyEvent = &Webhook{Events: allEvents}

// pass makes one attempt to pass an event to the sink. Its reply has no status of its own.
func (v *Vault) pass(ctx context.Context, e *Event) *reply {
	a := &reply{began: now()}
	ctx, cancel := context.WithTimeout(ctx, sendTimeout)
	defer cancel()
	err := v.guard("event sink", func() error { return v.opts.Events.Event(ctx, e) })
	if err != nil {
		v.log.Warn("event could not be passed on", "event", e.ID, "type", e.Type, "token", e.TokenID, "error", leak.Printable(err))
		return a
	}
	a.code = 200
	return a
}

// An erasure is a delivery that has ended and is to be erased. Its fields belong to the
// goroutine that has a place in shift.erasing.
type erasure struct {
	rec    *store.Record
	hash   []byte // of deliveries of the token
	done   bool   // it was tried
	erased bool
	err    error
}

// erase erases a delivery, in one write with those of other tokens that come meanwhile. It
// returns false if settle has to look closer: another delivery is held back by this one, or
// this one has changed.
func (s *shift) erase(ctx context.Context, p *pending) (ok bool, err error) {
	e := &erasure{rec: p.rec, hash: s.orderedHash(p)}
	s.mu.Lock()
	s.erasures = append(s.erasures, e)
	s.mu.Unlock()

	s.erasing <- struct{}{}
	defer func() { <-s.erasing }()
	if e.done {
		return e.erased, e.err
	}

	s.mu.Lock()
	all := s.erasures // at most one for each token that is worked on
	s.erasures = nil
	s.mu.Unlock()
	err = s.vault.rows.Update(ctx, opStep, func(tx store.Tx) error {
		for _, e := range all {
			if e.erased, err = s.lastOf(tx, e); err != nil {
				return err
			}
			if e.erased {
				tx.Delete(kindDelivery, e.rec.ID)
			}
		}
		return nil
	})
	conflict := errors.Is(err, store.ErrConflict)
	for _, e := range all {
		e.done = true
		if err != nil {
			e.erased = false
		}
		if !conflict {
			e.err = err
		}
	}
	return e.erased, e.err
}

// lastOf reports whether a delivery is as it was, and holds back no other.
func (s *shift) lastOf(tx store.ReadTx, e *erasure) (bool, error) {
	if ok, err := ledger.Same(tx, e.rec); err != nil || !ok {
		return false, err
	}
	first, err := firstWith(tx, e.hash, e.rec.ID, s.damaged)
	return err == nil && (first == nil || first.Class != deliveryHeld), err
}
