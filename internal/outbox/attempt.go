package outbox

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/internal/rowkey"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// attemptAll attempts deliveries of a token in their order.
func (s *shift) attemptAll(ctx context.Context, of *share, ready []*pending) error {
	failed := map[uuid.UUID]bool{}
	for len(ready) > 0 {
		next, err := s.attempt(ctx, of, ready[0], failed)
		if errors.Is(err, ledger.ErrDamaged) {
			failed[ready[0].rec.ID] = true
			s.damaged.add(ready[0].rec)
			next, err = s.outbox.releaseFirst(ctx, s.rows, s.damaged, s.orderedHash(ready[0]))
		}
		if err != nil || !s.goesOn() {
			return err
		}
		ready = append(next, ready[1:]...)
	}
	return nil
}

// orderedHash returns the hash of those deliveries of the token that hold back later ones,
// or wait: see tokenHash.
func (s *shift) orderedHash(p *pending) []byte {
	return s.outbox.tokenHash(s.rows.ID, s.id, p.Token, false)
}

// A prospect is what there is to know before an attempt.
type prospect struct {
	webhook, token *store.Record // nil if it is gone
	past           *store.Record // state of the token at the event, if that has changed since
	head           *store.Record // earlier delivery that holds this one back
	early          *store.Record // earlier delivery that can be attempted first: an unordered one, or see shift.missed
}

// attempt sends an event and stores the result, unless the delivery has to wait. It returns
// the deliveries to attempt next.
//
// An unordered delivery is attempted again before a later one of its token, outside its
// schedule: after a webhook was down, events arrive in their order all the same. The sink
// is promised the pauses, and has no attempts outside them.
func (s *shift) attempt(ctx context.Context, of *share, p *pending, failed map[uuid.UUID]bool) ([]*pending, error) {
	of.slots <- struct{}{}
	s.slots <- struct{}{}
	free := sync.OnceFunc(func() { <-s.slots; <-of.slots })
	defer free()
	if !s.goesOn() {
		return []*pending{p}, nil // a renewal that was late may end that: it is still the first
	}

	x, err := s.look(ctx, p)
	switch {
	case err != nil:
		return nil, err
	case x == nil:
		s.changed.add(p.rec)
		return nil, nil
	case x.webhook == nil && !s.sink:
		s.leave()
		return nil, nil
	}

	to := s.outbox.config.Sink
	if !s.sink {
		to, err = s.outbox.config.Source.Webhook(ctx, x.webhook)
	}
	if err != nil {
		s.fail(err) // it concerns all deliveries
		return nil, nil
	}

	switch {
	case x.head != nil:
		return s.yield(ctx, p, x.head, to, failed)
	case x.token == nil && p.Type != Deleted:
		return s.settleAs(ctx, p, tokenGone)
	case to.Disabled, !to.Types.Has(p.Type):
		return s.settleAs(ctx, p, notWanted)
	case x.early != nil && !failed[x.early.ID]:
		early, err := s.outbox.openDelivery(ctx, x.early)
		if errors.Is(err, ledger.ErrDamaged) {
			s.damaged.add(x.early)
			return []*pending{p}, nil
		}
		if err != nil {
			return nil, err
		}
		early.late = p.late
		return []*pending{early, p}, nil
	}

	send, err := to.Message(ctx, &p.Delivery, x.token, x.past)
	if err != nil || !s.goesOn() { // reading may have taken longer than the lease
		return []*pending{p}, err
	}

	a := send(ctx)
	failed[p.rec.ID] = !a.success()
	return s.conclude(ctx, p, to, a, free)
}

// conclude stores what a reply means for a delivery, and for its webhook. It returns the
// deliveries that are ready now.
//
// The place of the attempt is free while the result is stored, unless that keeps others from an
// attempt. A pause is noted before: else whoever takes the place would not know of it.
func (s *shift) conclude(ctx context.Context, p *pending, to *Receiver, a *Reply, free func()) ([]*pending, error) {
	next, _ := p.after(attempted, a, s.schedule())
	if s.sink {
		free()
		if next.Class == 0 && !a.success() {
			s.outbox.log.Error("event is dropped: the sink has failed too often", s.named(p)...)
		}
		return s.settle(ctx, p, next)
	}
	if next.Class == Failed {
		s.outbox.log.Warn("event could not be delivered", append(s.named(p), "webhook", s.rows.Mask(KindWebhook, Beside(s.id)), "status", a.Code)...)
	}

	why := s.judge(to, a, next.tries)
	if !a.gone() {
		free()
	}
	freed, err := s.settle(ctx, p, next)
	if err == nil && why != "" {
		err = to.Disable(ctx, why)
	}
	return freed, err
}

// named returns attributes of a delivery for the log.
func (s *shift) named(p *pending) []any {
	rows := s.rows.In(p.Account)
	return []any{"event", rows.Mask(KindEvent, p.Event), "type", s.outbox.config.TypeName(p.Type), "token", rows.Mask(KindToken, p.Token)}
}

// yield is called for a delivery that is held back by another, head. It returns the
// deliveries to attempt next.
func (s *shift) yield(ctx context.Context, p *pending, head *store.Record, to *Receiver, failed map[uuid.UUID]bool) ([]*pending, error) {
	if p.Type == Deleted { // the events before are gone with the token
		return []*pending{p}, s.drop(ctx, p)
	}

	first, err := s.outbox.openDelivery(ctx, head)
	switch {
	case errors.Is(err, ledger.ErrDamaged):
		s.damaged.add(head)
		return []*pending{p}, nil
	case err != nil:
		return nil, err
	case first.Class == Held: // by an unreadable one
		ready, err := s.outbox.releaseFirst(ctx, s.rows, s.damaged, s.orderedHash(p))
		return append(ready, p), err
	case first.Class == Retried && first.Last.Before(to.Since) && !failed[head.ID]:
		return []*pending{first, p}, nil // it has failed at another URL
	}
	return s.hold(ctx, p)
}

// look reads what there is to know before an attempt, and p anew. It returns nil if p was
// changed since it was read.
func (s *shift) look(ctx context.Context, p *pending) (x *prospect, err error) {
	var is *store.Record
	var stale bool
	ordered, unordered := s.orderedHash(p), []byte(nil)
	if !s.sink {
		unordered = s.outbox.tokenHash(s.rows.ID, s.id, p.Token, true)
	}
	err = s.rows.View(ctx, func(tx store.ReadTx) error {
		x, stale = new(prospect), false
		if is, err = present(ledger.Within(tx, p.rec.Account), KindDelivery, p.rec.ID); err != nil {
			return err
		}
		if stale = is == nil || is.Version != p.rec.Version; stale {
			return nil
		}

		if !s.sink {
			if x.webhook, err = present(tx, KindWebhook, Beside(s.id)); err != nil {
				return err
			}
		}
		if x.token, err = present(tx, KindToken, p.Token); err != nil {
			return err
		}
		if x.token != nil && (x.token.Account != p.Account || !ledger.Lives(x.token, ledger.Now())) {
			x.token = nil
		}
		if x.past, err = present(tx, KindPast, p.Event); err != nil { // it belongs to the token
			return err
		}

		if !p.unordered {
			if x.head, err = s.earlier(tx, ordered, p); err != nil {
				return err
			}
		}
		if x.early, err = s.missed(tx, p); x.early == nil && err == nil && !s.sink {
			x.early, err = s.earlier(tx, unordered, p)
		}
		return err
	})
	if err != nil || stale {
		return nil, err
	}
	p.rec = is
	return x, nil
}

// earlier returns the first delivery with a hash if it is earlier than p.
func (s *shift) earlier(tx store.ReadTx, hash []byte, p *pending) (*store.Record, error) {
	r, err := firstWith(tx, hash, uuid.Nil, s.damaged)
	if r != nil && !before(r, p.rec) {
		r = nil
	}
	return r, err
}

// missed returns the delivery of the token's event before p if it is ready, although a later
// page than the first has p. Rows come up out of order: the event before may have been
// stored when the page to which it belongs was read already.
func (s *shift) missed(tx store.ReadTx, p *pending) (*store.Record, error) {
	if !p.late || p.unordered || p.Former == uuid.Nil {
		return nil, nil
	}
	r, err := present(ledger.Within(tx, p.rec.Account), KindDelivery, rowkey.Beside(p.Former, Beside(s.id)))
	if err != nil || r == nil || r.Class != Ready || s.skips(r) || !before(r, p.rec) {
		return nil, err
	}
	return r, nil
}

// judge notes the consequences of a reply for the whole webhook, and returns the reason to
// disable it, if there is one. One failing event does not end its patience: tries counts
// the event's attempts.
func (s *shift) judge(to *Receiver, a *Reply, tries uint64) (why string) {
	at := ledger.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	q := s.queue
	if a.success() {
		q.failing, q.failed, q.pauses = time.Time{}, time.Time{}, 0
		return ""
	}

	if q.failing.IsZero() || q.failed.Before(at.Add(-webhookQuiet)) {
		q.failing, q.pauses = at, 0
	}
	q.failed = at
	if a.throttled() && to.Version >= s.pausedBy {
		s.leaveAlone(at, a.After, to.Version)
	}

	patience := at.Add(-webhookPatience)
	switch {
	case a.gone():
		return Gone
	case tries >= eventHolds && q.failing.Before(patience) && to.Since.Before(patience):
		return Failing
	}
	return ""
}

// leaveAlone notes that a version of the webhook wants a pause, for as long as it says or a
// little longer each time. Several attempts may end so: the longest pause counts, except a
// pause of a former version. It is called with s.mu.
func (s *shift) leaveAlone(at time.Time, wants time.Duration, version uint64) {
	if version > s.pausedBy {
		s.pause = time.Time{}
	}
	if wants == 0 {
		if !s.pause.IsZero() {
			return
		}
		wants = s.outbox.config.Pace(eventRetries[min(s.queue.pauses, sendPauses-1)])
		s.queue.pauses++
	}
	if until := at.Add(min(wants, maxSendPause)); until.After(s.pause) {
		s.pause = until
	}
	s.pausedBy = version
}
