package cardvault

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cardvault/cardvault/internal/jobs"
	"github.com/cardvault/cardvault/internal/leak"
	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/internal/rowkey"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

const (
	sendTimeout = 15 * time.Second // of one attempt
	shiftTime   = 15 * time.Second // how long a shift lasts until it is renewed
	sendWorkers = 8                // attempts at a time for one webhook
	sendTokens  = 128              // tokens at a time whose deliveries are worked on
	sendBatch   = 128              // deliveries read at a time

	sendPoll   = time.Second            // how often a shift looks for deliveries of other processes
	sendLinger = 100 * time.Millisecond // how long a shift waits for more: a queue that rests costs writes
	sendGather = 10 * time.Millisecond  // and for more that is stored at the same time
	sendPause  = 2 * time.Millisecond   // for each token that was started while this process stored another: imports come first

	sendRelapse = 5 * time.Second // after a store that has failed
	sendAnew    = 5 * time.Second // until a shift begins with its first page again

	maxSendPause = time.Hour // of a whole webhook
	sendPauses   = 3         // of eventRetries: those of a webhook that does not say for how long

	// webhookPatience is how long a webhook may be without success before it is disabled.
	// It begins anew after webhookQuiet without an attempt, which is more than any pause of
	// eventRetries: when nothing happens nothing fails.
	webhookPatience = 5 * 24 * time.Hour
	webhookQuiet    = 36 * time.Hour
)

// A shift is the time in which this process alone sends the deliveries of a queue: those
// to a webhook, or to the sink.
// Deliveries of different tokens are sent beside each other, those of a token one after
// the other.
type shift struct {
	vault  *Vault        // of the account of the queue
	id     uuid.UUID     // of the queue
	sink   bool          // it is that of the sink, not of a webhook
	space  time.Duration // pause for each token that was started while this process stored another
	spare  func() bool   // reports whether a worker for another queue is free
	ending <-chan struct{}
	inflow *inflow
	slots  chan struct{} // holds a value for each attempt under way
	tokens chan struct{} // holds a value for each token that is worked on
	ended  chan struct{} // has a value if a token was done with since run last looked

	damaged *recordSet    // deliveries that cannot be read; they hold back no other
	changed *recordSet    // deliveries that are not as they are listed
	torn    atomic.Bool   // the queue could not be listed: of many deliveries only the first are seen
	erasing chan struct{} // holds a value while deliveries are erased

	// The goroutine of deliver owns these.
	claim   *store.Record      // the queue as this process has written it
	renewed time.Time          // when the claim was made or renewed
	late    map[uuid.UUID]bool // tokens that were busy when a later delivery of theirs was listed
	group   sync.WaitGroup     // of the goroutines of tokens

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

func (v *Vault) newShift(j *jobs.Job, q *queue) *shift {
	sink, workers, space := j.Record.Kind == kindSinkQueue, sendWorkers, sendPause
	if sink {
		v = v.whole() // also if somebody has edited the account of the record
		workers, space = sinkWorkers, sinkPause
	}
	return &shift{
		vault:   v,
		id:      j.Record.ID,
		sink:    sink,
		space:   space,
		spare:   j.Spare,
		ending:  j.Ending,
		inflow:  &inflow{more: make(chan struct{}, 1)},
		slots:   make(chan struct{}, workers),
		tokens:  make(chan struct{}, sendTokens),
		ended:   make(chan struct{}, 1),
		damaged: new(recordSet),
		changed: new(recordSet),
		erasing: make(chan struct{}, 1),
		claim:   j.Record,
		renewed: time.Now(),
		late:    map[uuid.UUID]bool{},
		queue:   q,
		busy:    map[uuid.UUID]*store.Record{},
		lease:   j.Record.Due,
	}
}

// deliver sends the deliveries of a queue that was claimed, until the shift is over or
// nothing is left.
func (v *Vault) deliver(ctx context.Context, j *jobs.Job, q *queue) error {
	s := v.newShift(j, q)
	v.shifts.Store(s.id, s.inflow)
	defer v.shifts.CompareAndDelete(s.id, s.inflow)

	var err error
	if !s.sink {
		_, err = v.webhookRow(ctx, beside(s.id))
	}
	switch {
	case errors.Is(err, ErrNotFound):
		return s.rest(ctx)
	case errors.Is(err, ErrDamaged):
		return err // it stays so until it is put back: the lease is soon enough
	case err != nil:
		s.fail(err)
	}

	s.run(ctx)
	s.group.Wait()
	s.complain()
	err = s.rest(ctx)

	// A claim that is not given up keeps everybody from the queue until the lease ends.
	for err != nil && !errors.Is(err, ErrClosed) && s.vault.jobs.Running() && !isClosed(s.ending) && time.Until(s.claim.Due) > 0 {
		s.sleep(time.Second)
		err = s.rest(ctx)
	}
	return errors.Join(s.failure, err)
}

// run starts the deliveries that are ready, page by page. It begins with the first page
// again after sendAnew: deliveries that become ready again, and those that were late, do
// not wait for all that came after them.
func (s *shift) run(ctx context.Context) {
	began := time.Now()
	for from, started := uuid.Nil, false; s.goesOn() && s.stays(ctx); {
		if time.Since(began) >= sendAnew {
			from, began = uuid.Nil, time.Now()
			clear(s.late)
		}
		some, err := s.page(ctx, from)
		if err != nil {
			s.fail(err)
			return
		}

		if tokens := s.start(ctx, some); tokens > 0 {
			started = true
			s.sleep(time.Duration(min(int64(tokens), s.inflow.stored.Swap(0))) * s.space)
		}
		if n := len(some); n == sendBatch {
			from = rowkey.Above(some[n-1].ID)
			continue
		}

		if !s.wait() && !started {
			return
		}
		from, started = uuid.Nil, false
		clear(s.late)
	}
}

// complain logs that deliveries could not be read.
func (s *shift) complain() {
	n := len(s.damaged.all())
	switch {
	case n == 0:
	case s.sink:
		s.vault.log.Error("events for the sink cannot be read", "count", n)
	default:
		s.vault.log.Error("deliveries to a webhook cannot be read", "webhook", s.vault.rows.Mask(kindWebhook, beside(s.id)), "count", n)
	}
}

// stays reports whether the shift goes on. When its time is over it is renewed, so that
// others need not wait for an attempt that is slow, unless a webhook waits for a worker.
func (s *shift) stays(ctx context.Context) bool {
	if time.Since(s.renewed) < shiftTime {
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
	next.Due = now().Add(s.vault.jobs.Lease(next.Kind))
	s.mu.Lock()
	plain := s.queue.encode()
	s.mu.Unlock()
	if err := s.vault.rows.SealShown(&next, plain); err != nil {
		return false, err
	}

	err = s.vault.rows.Update(ctx, opStep, func(tx store.Tx) error {
		if ok, err = ledger.Same(tx, s.claim); ok {
			tx.Put(&next)
		}
		return err
	})
	if err != nil || !ok {
		return false, err
	}

	s.complain()
	s.damaged.reset()
	s.changed.reset()
	s.claim, s.renewed = &next, time.Now()
	return true, nil
}

// page reads deliveries that are ready, from a row key on. The webhook may be gone: each
// attempt looks at it.
func (s *shift) page(ctx context.Context, from uuid.UUID) (some []*store.Record, err error) {
	err = s.vault.rows.View(ctx, func(tx store.ReadTx) (err error) {
		some, err = s.ready(tx, from, sendBatch)
		return err
	})
	return some, err
}

// ready returns deliveries to attempt, from a row key on. A list is refused as a whole for
// one record that somebody has edited: then the others are read one by one, and s is torn.
func (s *shift) ready(tx store.ReadTx, from uuid.UUID, limit int) ([]*store.Record, error) {
	q := &store.Query{Kind: kindDelivery, Account: s.vault.rows.ID, Parent: s.id, Min: from, Limit: limit}
	q.Classes.Add(deliveryReady)
	list, damage := tx.List(q)
	if damage == nil {
		return list.Records, nil
	}
	if !unreadable(damage) {
		return nil, damage
	}

	s.torn.Store(true)
	keys, err := tx.Children(s.id, damagedMost)
	if err != nil {
		return nil, err
	}

	var some []*store.Record
	for _, k := range keys {
		if k.Kind != kindDelivery || slices.Compare(k.ID[:], from[:]) < 0 || len(some) == limit {
			continue
		}
		r, err := present(tx, kindDelivery, k.ID)
		if err != nil {
			return nil, err
		}
		if r != nil && r.Class == deliveryReady && r.Account == s.vault.rows.ID && r.Parent == s.id {
			some = append(some, r)
		}
	}
	if len(some) == 0 && len(keys) == damagedMost { // there may be some beyond these
		return nil, damage
	}
	return some, nil
}

// goesOn reports whether another attempt may be made: each ends before the lease.
func (s *shift) goesOn() bool {
	if isClosed(s.ending) {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failure == nil && !s.gone && !s.over && s.pause.IsZero() && time.Until(s.lease) > sendTimeout
}

func (s *shift) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failure = errors.Join(s.failure, err)
}

// sleep waits for a while, or until Run ends. Drain does not wait.
func (s *shift) sleep(d time.Duration) {
	if !s.vault.jobs.Running() {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-s.ending:
	case <-timer.C:
	}
}

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
			if !first || !s.vault.jobs.Running() {
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

// start works on deliveries that are ready, except those of a token that is worked on
// already: they are late, and so are the later ones of that token. It returns how many
// tokens it has started.
func (s *shift) start(ctx context.Context, ready []*store.Record) (started int) {
	chains, err := s.chains(ctx, ready)
	if err != nil {
		s.fail(err)
		return 0
	}

	for _, chain := range chains {
		token, last := chain[0].token, chain[len(chain)-1].rec
		if s.delayed(token, last) {
			continue
		}
		s.tokens <- struct{}{}
		s.mu.Lock()
		s.busy[token] = last
		s.mu.Unlock()
		started++
		s.group.Go(func() { s.work(ctx, token, chain) })
	}
	return started
}

// chains opens deliveries and returns them by token, in their order.
func (s *shift) chains(ctx context.Context, ready []*store.Record) (chains [][]*pending, err error) {
	places := map[uuid.UUID]int{} // in chains, by token
	for _, r := range ready {
		if s.skips(r) {
			continue
		}

		p, err := s.vault.openDelivery(ctx, r)
		next := []*pending{p}
		if errors.Is(err, ErrDamaged) {
			s.damaged.add(r)
			next, err = s.vault.releaseFirst(ctx, s.damaged, r.Lookup...)
		}
		if err != nil {
			return nil, err
		}

		for _, p := range next {
			place, known := places[p.token]
			if !known {
				place = len(chains)
				places[p.token] = place
				chains = append(chains, nil)
			}
			chains[place] = append(chains[place], p)
		}
	}
	return chains, nil
}

// delayed reports whether a token is worked on, or is late. It is late from now on if a
// delivery of it is not worked on.
func (s *shift) delayed(token uuid.UUID, last *store.Record) bool {
	s.mu.Lock()
	worked, busy := s.busy[token]
	s.mu.Unlock()
	if busy && before(worked, last) {
		s.late[token] = true
	}
	return busy || s.late[token]
}

// work attempts deliveries of a token, in a goroutine of its own.
func (s *shift) work(ctx context.Context, token uuid.UUID, chain []*pending) {
	if err := s.attemptAll(ctx, chain); err != nil {
		s.fail(err)
	}

	<-s.tokens
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.busy, token)
	select {
	case s.ended <- struct{}{}:
	default:
	}
}

// A recordSet remembers records at the version at which they were seen. The zero value is
// ready; it is safe for concurrent use.
type recordSet struct {
	mu       sync.Mutex
	versions map[uuid.UUID]uint64 // mu
}

func (c *recordSet) add(r *store.Record) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.versions == nil {
		c.versions = map[uuid.UUID]uint64{}
	}
	c.versions[r.ID] = r.Version
}

func (c *recordSet) has(r *store.Record) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.versions[r.ID] == r.Version
}

func (c *recordSet) reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.versions)
}

func (c *recordSet) all() map[uuid.UUID]uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.versions)
}

// damagedMost is how many deliveries that cannot be read are looked past in a transaction.
const damagedMost = 1024

// firstWith returns the first delivery with a hash, except one with an id and those that
// are damaged. It returns nil if there is none.
func firstWith(tx store.ReadTx, hash []byte, except uuid.UUID, damaged *recordSet) (*store.Record, error) {
	known := damaged.all()
	line, err := tx.Lookup(kindDelivery, hash, min(len(known), damagedMost)+2)
	if errors.Is(err, ErrDamaged) { // a record that was found by mistake holds back nothing
		err = nil
	}
	for _, r := range line {
		if r.ID != except && known[r.ID] != r.Version {
			return r, err
		}
	}
	return nil, err
}

// attemptAll attempts deliveries of a token in their order.
func (s *shift) attemptAll(ctx context.Context, ready []*pending) error {
	failed := map[uuid.UUID]bool{}
	for len(ready) > 0 {
		next, err := s.attempt(ctx, ready[0], failed)
		if errors.Is(err, ErrDamaged) {
			failed[ready[0].rec.ID] = true
			s.damaged.add(ready[0].rec)
			next, err = s.vault.releaseFirst(ctx, s.damaged, s.orderedHash(ready[0]))
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
	if p.hash == nil {
		p.hash = s.vault.tokenHash(s.vault.rows.ID, s.id, p.token, false)
	}
	return p.hash
}

// A prospect is what there is to know before an attempt.
type prospect struct {
	webhook, card *store.Record // nil if it is gone
	past          *store.Record // state of the token at the event, if that has changed since
	head          *store.Record // earlier delivery that holds this one back
	early         *store.Record // earlier delivery that is unordered and can be attempted first
}

// attempt sends an event and stores the result, unless the delivery has to wait. It returns
// the deliveries to attempt next.
//
// An unordered one is attempted again before a later one of its token, beside its
// schedule: after a webhook was down, events arrive in their order all the same. The sink
// is promised the pauses, and gets no attempt beside them.
func (s *shift) attempt(ctx context.Context, p *pending, failed map[uuid.UUID]bool) ([]*pending, error) {
	s.slots <- struct{}{}
	free := sync.OnceFunc(func() { <-s.slots })
	defer free()
	if !s.goesOn() {
		return nil, nil
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
	w := anyEvent
	if !s.sink {
		w, err = s.vault.openWebhook(ctx, x.webhook)
	}
	if err != nil {
		s.fail(err) // it concerns all deliveries
		return nil, nil
	}

	switch {
	case x.head != nil:
		return s.yield(ctx, p, x.head, w, failed)
	case x.card == nil && p.typ != TokenDeleted:
		return s.settleAs(ctx, p, tokenGone)
	case w.Disabled, !slices.Contains(w.Events, p.typ):
		return s.settleAs(ctx, p, notWanted)
	case x.early != nil && !failed[x.early.ID]:
		early, err := s.vault.openDelivery(ctx, x.early)
		if errors.Is(err, ErrDamaged) {
			s.damaged.add(x.early)
			return []*pending{p}, nil
		}
		return []*pending{early, p}, err
	}

	event, err := s.vault.eventOfDelivery(ctx, p, x.card, x.past)
	if err != nil || !s.goesOn() { // reading may have taken longer than the lease
		return nil, err
	}
	var a *reply
	if s.sink {
		a = s.vault.pass(ctx, event)
	} else {
		a = s.vault.send(ctx, w, &Delivery{Event: event, ID: event.ID, CreatedAt: event.CreatedAt})
	}
	free()
	failed[p.rec.ID] = !a.success()
	return s.conclude(ctx, p, w, event, a)
}

// leave ends the shift of a webhook that is deleted.
func (s *shift) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gone = true
}

// conclude stores what a reply means for a delivery, and for its webhook. It returns the
// deliveries that are ready now.
func (s *shift) conclude(ctx context.Context, p *pending, w *Webhook, event *Event, a *reply) ([]*pending, error) {
	next, _ := p.after(attempted, a, s.schedule())
	if s.sink {
		if next.class == 0 && !a.success() {
			s.vault.log.Error("event is dropped: the sink has failed too often", "event", event.ID, "type", event.Type, "token", event.TokenID)
		}
		return s.settle(ctx, p, next)
	}
	if next.class == deliveryFailed {
		s.vault.log.Warn("event could not be delivered", "webhook", w.ID, "event", event.ID, "status", a.code)
	}

	why := s.judge(w, a, next.tries)
	freed, err := s.settle(ctx, p, next)
	if err == nil && why != "" {
		err = s.disable(ctx, w, why)
	}
	return freed, err
}

// yield is called for a delivery that is held back by another, head. It returns the
// deliveries to attempt next.
func (s *shift) yield(ctx context.Context, p *pending, head *store.Record, w *Webhook, failed map[uuid.UUID]bool) ([]*pending, error) {
	if p.typ == TokenDeleted { // the events before are gone with the token
		return []*pending{p}, s.drop(ctx, p)
	}

	first, err := s.vault.openDelivery(ctx, head)
	switch {
	case errors.Is(err, ErrDamaged):
		s.damaged.add(head)
		return []*pending{p}, nil
	case err != nil:
		return nil, err
	case first.class == deliveryHeld: // by one that cannot be read
		ready, err := s.vault.releaseFirst(ctx, s.damaged, s.orderedHash(p))
		return append(ready, p), err
	case first.class == deliveryRetried && first.last.Before(w.since) && !failed[head.ID]:
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
		unordered = s.vault.tokenHash(s.vault.rows.ID, s.id, p.token, true)
	}
	err = s.vault.rows.View(ctx, func(tx store.ReadTx) error {
		x, stale = new(prospect), false
		if is, err = present(tx, kindDelivery, p.rec.ID); err != nil {
			return err
		}
		if stale = is == nil || is.Version != p.rec.Version; stale {
			return nil
		}

		if !s.sink {
			if x.webhook, err = present(tx, kindWebhook, beside(s.id)); err != nil {
				return err
			}
		}
		if x.card, err = present(tx, kindToken, p.token); err != nil {
			return err
		}
		if x.card != nil && (x.card.Account != p.account || !ledger.Lives(x.card, now())) {
			x.card = nil
		}
		if x.past, err = present(tx, kindPast, eventOf(p.rec)); err != nil { // it belongs to the card
			return err
		}

		if !p.unordered {
			if x.head, err = s.earlier(tx, ordered, p); err != nil {
				return err
			}
		}
		if !s.sink {
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

// present returns a record, nil if there is none.
func present(tx store.ReadTx, kind store.Kind, id uuid.UUID) (*store.Record, error) {
	r, err := tx.Get(kind, id)
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil
	}
	return r, err
}

// before reports whether the event of a was before that of b.
func before(a, b *store.Record) bool { return slices.Compare(a.ID[:], b.ID[:]) < 0 }

// send makes one attempt with a deadline.
func (v *Vault) send(ctx context.Context, w *Webhook, d *Delivery) *reply {
	began := now()
	d.URL, d.Legacy = w.URL, w.LegacyHMAC
	for _, s := range w.signing(began) {
		d.Secrets = append(d.Secrets, s.value)
	}

	ctx, cancel := context.WithTimeout(ctx, sendTimeout)
	defer cancel()
	var got *SendResult
	err := v.guard("webhook sender", func() (err error) {
		got, err = v.opts.Webhooks.Send(ctx, d)
		return err
	})
	if err == nil && (got == nil || got.StatusCode < 100 || got.StatusCode > 999) {
		err = errGarbage
	}
	if err != nil {
		v.log.Info("webhook did not answer", "webhook", w.ID, "event", d.ID, "error", leak.Printable(err))
		return &reply{began: began}
	}
	return &reply{began, got.StatusCode, got.RetryAfter}
}

// judge notes what a reply says of the whole webhook, and returns why it is to be
// disabled. One event that fails does not end its patience: tries is how often it has.
func (s *shift) judge(w *Webhook, a *reply, tries uint64) (why string) {
	at := now()
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
	if a.throttled() && w.version >= s.pausedBy {
		s.leaveAlone(at, a.after, w.version)
	}

	patience := at.Add(-webhookPatience)
	switch {
	case a.gone():
		return disabledGone
	case tries >= eventHolds && q.failing.Before(patience) && w.since.Before(patience):
		return disabledFailing
	}
	return ""
}

// leaveAlone notes that a version of the webhook wants a pause, for as long as it says or
// a little longer each time. Several attempts may end so: the longest pause counts, except
// that of a former version. It is called with s.mu.
func (s *shift) leaveAlone(at time.Time, wants time.Duration, version uint64) {
	if version > s.pausedBy {
		s.pause = time.Time{}
	}
	if wants == 0 {
		if !s.pause.IsZero() {
			return
		}
		wants = s.vault.pace(eventRetries[min(s.queue.pauses, sendPauses-1)])
		s.queue.pauses++
	}
	if until := at.Add(min(wants, maxSendPause)); until.After(s.pause) {
		s.pause = until
	}
	s.pausedBy = version
}

// disable disables a webhook, unless its URL or state has changed since an attempt.
func (s *shift) disable(ctx context.Context, w *Webhook, why string) error {
	_, err := s.vault.editWebhook(ctx, opUpdateWebhook, w.row, func(is *Webhook) error {
		if is.Disabled || is.URL != w.URL || !is.since.Equal(w.since) {
			return errChanged
		}
		is.Disabled, is.DisabledReason = true, why
		return nil
	})
	switch {
	case err == nil:
		s.vault.log.Warn("webhook is disabled", "webhook", w.ID, "reason", why)
	case errors.Is(err, errChanged), errors.Is(err, ErrNotFound):
		return nil
	}
	return err
}

var errChanged = errors.New("cardvault: webhook has changed")

// hold makes p wait for the delivery that holds it back. It returns p if none does any
// more.
func (s *shift) hold(ctx context.Context, p *pending) (again []*pending, err error) {
	held, ok := p.after(heldBack, nil, s.schedule())
	if !ok {
		return nil, nil
	}
	next := *p.rec
	next.Version++
	if err := s.vault.sealDelivery(&next, &held); err != nil {
		return nil, err
	}

	hash := s.orderedHash(p)
	err = s.vault.rows.Update(ctx, opStep, func(tx store.Tx) error {
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
	err := s.vault.rows.FindBy(ctx, kindDelivery, s.orderedHash(p), jobs.Batch, func(r *store.Record, readable bool) bool {
		switch {
		case !readable:
			s.damaged.add(r)
		case r.ID != p.rec.ID:
			others = append(others, r)
		}
		return true
	})
	if err != nil && !errors.Is(err, ErrDamaged) {
		return err
	}

	return s.vault.rows.Update(ctx, opStep, func(tx store.Tx) error {
		if ok, err := ledger.Same(tx, p.rec); err != nil || !ok {
			return err
		}
		for _, r := range others {
			ok, err := ledger.Same(tx, r)
			if err != nil {
				return err
			}
			if ok {
				tx.Delete(kindDelivery, r.ID)
			}
		}
		return nil
	})
}

// schedule returns the schedule of a webhook, or of the sink, which has no log.
func (s *shift) schedule() schedule {
	if s.sink {
		return schedule{at: now(), pace: s.vault.pace}
	}
	return schedule{at: now(), pace: s.vault.pace, retention: deliveryRetention}
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
func (s *shift) settle(ctx context.Context, p *pending, is delivery) (freed []*pending, err error) {
	if is.class == 0 {
		if ok, err := s.erase(ctx, p); ok || err != nil {
			return nil, err
		}
	}

	frees := p.holdsBack() && !is.holdsBack()
	hash := s.orderedHash(p)
	for {
		next := *p.rec
		next.Version++
		if is.class != 0 {
			if err := s.vault.sealDelivery(&next, &is); err != nil {
				return nil, err
			}
		}

		var held *store.Record
		freed = nil
		if frees {
			if held, freed, err = s.vault.nextHeld(ctx, s.damaged, hash, p.rec.ID); err != nil {
				return nil, err
			}
		}

		changed := false
		err = s.vault.rows.Update(ctx, opStep, func(tx store.Tx) error {
			ok, err := ledger.Same(tx, p.rec)
			if changed = !ok; changed || err != nil {
				return err
			}
			if is.class == 0 {
				tx.Delete(kindDelivery, next.ID)
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
			if is.class != 0 {
				s.vault.jobs.Due(&next)
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
	if err != nil || first == nil || first.Class != deliveryHeld {
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
	if p.rec.Class != deliveryRetried {
		return nil, nil // gone with its webhook
	}
	var r *store.Record
	err := s.vault.rows.View(ctx, func(tx store.ReadTx) (err error) {
		r, err = tx.Get(kindDelivery, p.rec.ID)
		return err
	})
	if errors.Is(err, ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}

	is, err := s.vault.openDelivery(ctx, r)
	if err != nil || is.class != deliveryReady || is.attempts != p.attempts || is.tries != p.tries {
		return nil, err // it was redelivered
	}
	return is, nil
}

// nextHeld returns the delivery that the one with an id holds back, and that as it is
// when it is ready; nothing if there is none.
func (v *Vault) nextHeld(ctx context.Context, damaged *recordSet, hash []byte, id uuid.UUID) (held *store.Record, ready []*pending, err error) {
	for {
		err = v.rows.View(ctx, func(tx store.ReadTx) error {
			held, err = firstWith(tx, hash, id, damaged)
			return err
		})
		if err != nil || held == nil {
			return nil, nil, err
		}

		next := *held
		next.Shown = slices.Clone(held.Shown)
		p, err := v.openDelivery(ctx, &next)
		switch {
		case errors.Is(err, ErrDamaged):
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
		p.delivery = is
		return held, []*pending{p}, v.sealDelivery(&next, &p.delivery)
	}
}

// releaseFirst makes the first delivery with each hash ready if it is held, and returns
// them: the deliveries that they have waited for cannot be read.
func (v *Vault) releaseFirst(ctx context.Context, damaged *recordSet, hashes ...[]byte) (ready []*pending, err error) {
	for _, hash := range hashes {
		held, next, err := v.nextHeld(ctx, damaged, hash, uuid.Nil)
		if err != nil {
			return nil, err
		}
		for _, p := range next {
			queues, err := v.wakingsOf(ctx, beside(p.rec.Parent))
			if err != nil {
				return nil, err
			}

			ok := false
			err = v.rows.Update(ctx, opStep, func(tx store.Tx) (err error) {
				if ok, err = ledger.Same(tx, held); err != nil || !ok {
					return err
				}
				tx.Put(p.rec)
				return queues.put(tx, v)
			})
			if errors.Is(err, errStale) {
				return v.releaseFirst(ctx, damaged, hashes...)
			}
			if err != nil {
				return nil, err
			}

			if ok {
				queues.written(v)
				ready = append(ready, p)
			}
		}
	}
	return ready, nil
}

// rest ends the claim. The queue is due at once if something is ready, or when the
// webhook wants to hear more; after a failure a little later.
func (s *shift) rest(ctx context.Context) error {
	busy, idle := *s.claim, *s.claim
	busy.Due, idle.Due = now(), time.Time{}
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
		if err := s.vault.rows.SealShown(r, s.queue.encode()); err != nil {
			return err
		}
	}

	next := &busy
	err := s.vault.rows.Update(ctx, opStep, func(tx store.Tx) error {
		if ok, err := ledger.Same(tx, s.claim); err != nil || !ok {
			return err
		}
		hook, err := present(tx, kindWebhook, beside(s.id))
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
		s.vault.jobs.Due(next)
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
	some, err := s.ready(tx, uuid.Nil, n+1)
	return slices.ContainsFunc(some, func(r *store.Record) bool { return !s.skips(r) }), err
}

// useless returns how many deliveries cannot be attempted as they are listed.
func (s *shift) useless() int { return len(s.damaged.all()) + len(s.changed.all()) }

// skips reports whether a delivery cannot be attempted as it is listed.
func (s *shift) skips(r *store.Record) bool { return s.damaged.has(r) || s.changed.has(r) }

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
