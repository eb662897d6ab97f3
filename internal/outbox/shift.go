package outbox

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cardvault/cardvault/internal/jobs"
	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// Times and bounds of a shift.
const (
	SendTimeout = 15 * time.Second // of one attempt
	shiftTime   = 15 * time.Second // how long the shift of a webhook lasts until it is renewed
	sinkLease   = 24 * time.Second // of the sink's queue, in which an attempt and a few renewals that are late have room
	sendTokens  = 128              // tokens at a time of one account whose deliveries are worked on
	sendBatch   = 128              // deliveries read at a time
	lookPages   = 4                // pages that lookPast reads at a time, and again for accounts that had no place
	passedMost  = 4096             // such accounts

	lookPause  = time.Second / 8        // how often lookPast is called: it goes round 4,096 deliveries a second
	sendPoll   = time.Second            // how often a shift looks for deliveries of other processes
	sendLinger = 100 * time.Millisecond // how long a shift waits for more: a queue that rests costs writes
	sendGather = 10 * time.Millisecond  // and for more that is stored at the same time

	hookShifts = 256 // webhooks at a time
	sinkShifts = 3   // the running one, a free worker that a renewal asks for, and one that a claim takes for an instant

	sendRelapse = 5 * time.Second // after a store that has failed
	sendAnew    = 5 * time.Second // until a shift begins with its first page again

	maxSendPause = time.Hour // of a whole webhook
	sendPauses   = 3         // of eventRetries: for a webhook that names no pause

	// webhookPatience limits how long a webhook may be without success before it is
	// disabled. It begins anew after webhookQuiet without an attempt, which is more than
	// any pause of eventRetries: when nothing happens nothing fails.
	webhookPatience = 5 * 24 * time.Hour
	webhookQuiet    = 36 * time.Hour
)

// The limits of a shift.
type limits struct {
	workers int           // attempts at a time for one account
	shares  int           // accounts that can have all places of their share at a time
	term    time.Duration // until the claim is renewed
	space   time.Duration // pause for each token that was started while this process stored another
}

var (
	// Imports come first. A webhook has the deliveries of one account.
	hookLimits = limits{workers: 8, shares: 1, term: shiftTime, space: 2 * time.Millisecond}

	// The sink keeps pace with imports. One shift has the events of all accounts, and is short:
	// they wait for its lease when the process dies.
	sinkLimits = limits{workers: 64, shares: 2, term: 4 * time.Second, space: 300 * time.Microsecond}
)

// A shift is the time in which this process alone sends the deliveries of a queue, to a
// webhook or to the sink. Deliveries of different tokens are sent in parallel, those of one
// token in order.
type shift struct {
	limits
	outbox *Outbox
	rows   ledger.Account // of the queue
	id     uuid.UUID      // of the queue
	sink   bool           // for the sink, not for a webhook
	spare  func() bool    // reports whether a worker for another queue is free
	ending <-chan struct{}
	inflow *inflow
	slots  chan struct{} // holds a value for each attempt under way
	tokens chan struct{} // holds a value for each token that is worked on
	freed  chan struct{} // has a value if a token was done with since waits last looked
	ended  chan struct{} // has a value if a token was done with since run last looked

	damaged *recordSet    // deliveries that cannot be read; they hold back no other
	changed *recordSet    // deliveries that are not as they are listed
	torn    atomic.Bool   // the deliveries that are ready cannot be listed alone
	erasing chan struct{} // holds a value while deliveries are erased

	// The goroutine of deliver owns these.
	claim   *store.Record      // the queue as this process has written it
	renewed time.Time          // when the claim was made or renewed
	known   time.Time          // since when damaged and changed are known
	late    map[uuid.UUID]bool // tokens that were busy when a later delivery of theirs was listed
	shares  map[uuid.UUID]*share
	crowded [][]*pending            // deliveries of the present page that wait for a place, by token
	behind  uuid.UUID               // row key behind the present page
	beyond  uuid.UUID               // row key from which lookPast continues; zero: its round has ended
	looked  time.Time               // when lookPast was last called
	passed  map[uuid.UUID]uuid.UUID // by account: row key of the first delivery that had no place
	group   sync.WaitGroup          // of the goroutines of tokens

	mu       sync.Mutex                  // guards what follows
	queue    *queue                      // what the record of the queue holds
	busy     map[uuid.UUID]*store.Record // by token: the last delivery that is worked on
	lease    time.Time                   // when the claim ends
	over     bool                        // another webhook is to have a shift, or the claim is lost
	pause    time.Time                   // end of the pause that the webhook has asked for; zero: none
	pausedBy uint64                      // version of the webhook that has
	gone     bool                        // the webhook is deleted
	erasures []*erasure                  // that no goroutine has begun to write
	failure  error
}

// An inflow counts the events that this process stores for a queue during its shift.
type inflow struct {
	more   chan struct{} // has a value if something was stored since the shift last looked
	stored atomic.Int64
}

// newShift returns the shift of a queue that was claimed.
func (o *Outbox) newShift(j *jobs.Job, q *queue) *shift {
	sink, account, bounds := j.Record.Kind == KindSinkQueue, j.Record.Account, hookLimits
	if sink {
		account, bounds = uuid.Nil, sinkLimits // also if the account of the record was edited
	}

	return &shift{
		limits:  bounds,
		outbox:  o,
		rows:    o.ledger.In(account),
		id:      j.Record.ID,
		sink:    sink,
		spare:   j.Spare,
		ending:  j.Ending,
		inflow:  &inflow{more: make(chan struct{}, 1)},
		slots:   make(chan struct{}, bounds.shares*bounds.workers),
		tokens:  make(chan struct{}, bounds.shares*sendTokens),
		freed:   make(chan struct{}, 1),
		ended:   make(chan struct{}, 1),
		damaged: new(recordSet),
		changed: new(recordSet),
		erasing: make(chan struct{}, 1),
		claim:   j.Record,
		renewed: time.Now(),
		known:   time.Now(),
		shares:  map[uuid.UUID]*share{},
		passed:  map[uuid.UUID]uuid.UUID{},
		late:    map[uuid.UUID]bool{},
		queue:   q,
		busy:    map[uuid.UUID]*store.Record{},
		lease:   j.Record.Due,
	}
}

// deliver sends the deliveries of a claimed queue, until the shift has ended or nothing is
// left.
func (o *Outbox) deliver(ctx context.Context, j *jobs.Job) error {
	q, err := decodeQueue(j.Plain)
	if err != nil {
		return err
	}
	s := o.newShift(j, q)
	o.shifts.Store(s.id, s.inflow)
	defer o.shifts.CompareAndDelete(s.id, s.inflow)

	if !s.sink {
		var hook *store.Record
		if hook, err = s.rows.GetRow(ctx, KindWebhook, Beside(s.id)); err == nil {
			_, err = o.config.Source.Webhook(ctx, hook)
		}
	}
	switch {
	case errors.Is(err, ledger.ErrNotFound):
		s.fail(err)
		return s.homeless(ctx)
	case errors.Is(err, ledger.ErrDamaged):
		return err // it stays so until it is put back: the lease is soon enough
	case err != nil:
		s.fail(err)
	}

	s.run(ctx)
	s.group.Wait()
	s.complain()
	err = s.rest(ctx)

	// A claim that is not given up keeps every process from the queue until the lease ends.
	for err != nil && !errors.Is(err, ledger.ErrClosed) && s.outbox.jobs.Running() && !s.ends() && time.Until(s.claim.Due) > 0 {
		s.sleep(time.Second)
		err = s.rest(ctx)
	}
	return errors.Join(s.failure, err)
}

// homeless ends the claim of a queue whose account does not have the webhook: that is
// deleted, or the row of the queue was changed and is made anew.
func (s *shift) homeless(ctx context.Context) error {
	var hook *store.Record
	err := s.rows.View(ctx, func(tx store.ReadTx) (err error) {
		hook, err = present(tx, KindWebhook, Beside(s.id))
		return err
	})
	switch {
	case err != nil:
		return err
	case hook == nil || hook.Account == s.claim.Account:
		return s.rest(ctx)
	}

	whole, err := s.outbox.NewQueue(hook.Account, hook.ID)
	if err != nil {
		return err
	}
	whole.Due = ledger.Now().Add(sendRelapse)
	return s.rows.Update(ctx, ledger.Step, func(tx store.Tx) error {
		if ok, err := ledger.Same(tx, s.claim); err != nil || !ok {
			return err
		}
		tx.Delete(KindQueue, s.id)
		tx.Put(whole)
		return nil
	})
}

// run starts the ready deliveries, page by page. It begins with the first page again after
// sendAnew: deliveries that become ready again, and late ones, do not wait for all that
// came after them.
func (s *shift) run(ctx context.Context) {
	began := time.Now()
	for from, started := uuid.Nil, false; s.goesOn() && s.stays(ctx); {
		if time.Since(began) >= sendAnew {
			from, began = uuid.Nil, time.Now()
			clear(s.late)
			s.forgetShares()
		}
		p, err := s.page(ctx, from)
		if err != nil {
			s.fail(err)
			return
		}

		s.behind = p.end
		if tokens := s.start(ctx, p); tokens > 0 {
			started = true
			s.sleep(time.Duration(min(int64(tokens), s.inflow.stored.Swap(0))) * s.space)
		}
		if p.next != uuid.Nil {
			from = p.next
			continue
		}

		if !s.wait() && !started {
			return
		}
		from, started, s.beyond = uuid.Nil, false, uuid.Nil
		clear(s.late)
		clear(s.passed)
		s.forgetShares()
	}
}

// complain logs that deliveries could not be read.
func (s *shift) complain() {
	n := len(s.damaged.all())
	switch {
	case n == 0:
	case s.sink:
		s.outbox.log.Error("events for the sink cannot be read", "count", n)
	default:
		s.outbox.log.Error("deliveries to a webhook cannot be read", "webhook", s.rows.Mask(KindWebhook, Beside(s.id)), "count", n)
	}
}

// stays reports whether the shift continues. When its time has passed it is renewed, so
// that others need not wait for a slow attempt, unless a webhook waits for a worker.
func (s *shift) stays(ctx context.Context) bool {
	if time.Since(s.renewed) < s.term {
		return true
	}

	ok, err := false, error(nil)
	if s.spare() {
		ok, err = s.renew(ctx)
	}
	if err != nil {
		s.fail(err)
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = !ok
	s.lease = s.claim.Due
	return ok
}

// renew lengthens the claim, and looks again at deliveries that could not be read. It
// returns false if the claim is lost.
func (s *shift) renew(ctx context.Context) (ok bool, err error) {
	next := *s.claim
	next.Version++
	next.Due = ledger.Now().Add(s.outbox.jobs.Lease(next.Kind))
	s.mu.Lock()
	plain := s.queue.encode()
	s.mu.Unlock()
	if err := s.rows.SealShown(&next, plain); err != nil {
		return false, err
	}

	err = s.rows.Update(ctx, ledger.Step, func(tx store.Tx) error {
		if ok, err = ledger.Same(tx, s.claim); ok {
			tx.Put(&next)
		}
		return err
	})
	if err != nil || !ok {
		return false, err
	}

	s.claim, s.renewed = &next, time.Now()
	if time.Since(s.known) >= shiftTime {
		s.complain()
		s.damaged.reset()
		s.changed.reset()
		s.known = time.Now()
	}
	return true, nil
}

// ends reports whether Run is to end.
func (s *shift) ends() bool {
	select {
	case <-s.ending:
		return true
	default:
		return false
	}
}

// goesOn reports whether another attempt may be made: each ends before the lease.
func (s *shift) goesOn() bool {
	if s.ends() {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failure == nil && !s.gone && !s.over && s.pause.IsZero() && time.Until(s.lease) > SendTimeout
}

func (s *shift) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failure = errors.Join(s.failure, err)
}

// sleep waits for a while, or until Run ends. Drain does not wait.
func (s *shift) sleep(d time.Duration) { s.outbox.jobs.Rest(d, s.ending) }

// wait waits until there may be something to start: all tokens are done with, or one if
// others are late, or more was stored. It returns false if nothing happens.
func (s *shift) wait() bool {
	patience := time.NewTimer(sendPoll)
	defer patience.Stop()
	for first := true; ; first = false {
		s.mu.Lock()
		busy := len(s.busy)
		s.mu.Unlock()
		if busy == 0 {
			if !first || !s.outbox.jobs.Running() {
				return !first
			}
			patience.Reset(sendLinger)
		}

		select {
		case <-s.ended:
			if len(s.late) > 0 {
				return true
			}
		case <-s.inflow.more:
			s.sleep(sendGather)
			return true
		case <-s.ending:
			return true
		case <-patience.C:
			return busy > 0
		}
	}
}

// leave ends the shift of a webhook that is deleted.
func (s *shift) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gone = true
}

// rest ends the claim. The queue is due at once if something is ready, or when the
// webhook wants to hear more; after a failure a little later.
func (s *shift) rest(ctx context.Context) error {
	busy, idle := *s.claim, *s.claim
	busy.Due, idle.Due = ledger.Now(), time.Time{}
	switch {
	case s.failure != nil:
		busy.Due = busy.Due.Add(sendRelapse)
	case s.useless() > damagedMost, s.torn.Load():
		busy.Due = busy.Due.Add(jobs.Pause)
	}
	paused := busy
	if s.pause.After(busy.Due) {
		paused.Due = s.pause
	}

	// Which of the three is written is seen in the transaction, which seals nothing.
	s.queue.pause = time.Time{}
	for _, r := range []*store.Record{&busy, &idle, &paused} {
		if r == &paused {
			s.queue.pause = r.Due
		}
		r.Version++
		if err := s.rows.SealShown(r, s.queue.encode()); err != nil {
			return err
		}
	}

	next := &busy
	err := s.rows.Update(ctx, ledger.Step, func(tx store.Tx) error {
		if ok, err := ledger.Same(tx, s.claim); err != nil || !ok {
			return err
		}

		hook, err := present(tx, KindWebhook, Beside(s.id))
		if err != nil {
			return err
		}
		left, err := s.left(tx)

		switch {
		case err != nil:
			return err
		case hook == nil && !s.sink: // the deliveries that are left are erased
			next = &idle
		case !s.pause.IsZero() && hook.Version == s.pausedBy:
			next = &paused
		case left || !s.pause.IsZero() || s.failure != nil:
			next = &busy
		default:
			next = &idle
		}
		tx.Put(next)
		return nil
	})
	if err == nil {
		s.outbox.jobs.Due(next)
	}
	return err
}

// left reports whether there is something to do for the queue, or may be if more
// deliveries are useless than can be looked past.
func (s *shift) left(tx store.ReadTx) (bool, error) {
	n := s.useless()
	if n > damagedMost {
		return true, nil
	}
	p, err := s.ready(tx, uuid.Nil, n+1)
	if err != nil {
		return false, err
	}
	some := slices.ContainsFunc(p.records, func(r *store.Record) bool { return !s.skips(r) })
	return some || s.torn.Load() && p.next != uuid.Nil, nil
}

// useless returns how many deliveries cannot be attempted as they are listed.
func (s *shift) useless() int { return len(s.damaged.all()) + len(s.changed.all()) }

// skips reports whether a delivery cannot be attempted as it is listed.
func (s *shift) skips(r *store.Record) bool { return s.damaged.has(r) || s.changed.has(r) }
