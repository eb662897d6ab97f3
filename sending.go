package cardvault

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cardvault/cardvault/internal/rowkey"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

const (
	sendTimeout = 15 * time.Second // of one attempt
	sendTurn    = 15 * time.Second // how long one turn begins attempts
	sendWorkers = 8                // attempts at a time for one webhook
	sendTokens  = 128              // tokens at a time whose deliveries are worked on
	sendBatch   = 128              // deliveries read at a time

	sendPoll   = time.Second            // how often a turn looks for what other processes have stored
	sendLinger = 100 * time.Millisecond // how long a turn waits for more: a queue that rests costs writes
	sendGather = 10 * time.Millisecond  // and for what is stored with it
	sendPause  = 2 * time.Millisecond   // for each token that was begun while this process stored another: imports come first

	sendRelapse = 5 * time.Second // after a store that has failed

	maxSendPause = time.Hour // of a whole webhook
	sendPauses   = 3         // of eventRetries: those of a webhook that does not say for how long

	// webhookPatience is after how long without success a webhook is disabled. It begins
	// anew after webhookQuiet without an attempt, which is more than any pause of
	// eventRetries: when nothing happens nothing fails.
	webhookPatience = 5 * 24 * time.Hour
	webhookQuiet    = 36 * time.Hour
)

// A turn is the time in which this process alone sends to a webhook. Deliveries of
// different tokens go beside each other, those of a token one after the other.
type turn struct {
	*Vault
	rec    *store.Record // of the queue
	claim  *store.Record // likewise, as it is claimed
	pool   *pool
	began  time.Time       // or was renewed
	ending <-chan struct{} // closed when nothing more is to be begun

	sending chan struct{} // holds a value for each attempt under way
	tokens  chan struct{} // and for each token
	group   sync.WaitGroup
	ended   chan struct{} // has a value if a token was done with since it was asked
	inflow  *inflow

	late map[uuid.UUID]bool // tokens that were worked on when more of theirs was listed

	unread *unreadable
	passed *unreadable // those that were listed as they are not

	mu      sync.Mutex
	queue   *queue
	busy    map[uuid.UUID]*store.Record // by token: the last delivery that is worked on
	lease   time.Time                   // when the claim ends
	over    bool                        // another webhook is to have its turn, or the claim is lost
	pause   time.Time                   // when the webhook has asked to be left alone until then
	asked   uint64                      // version of the webhook that has
	gone    bool                        // the webhook is deleted
	failure error
}

// An inflow is what this process stores for a webhook while it sends to it.
type inflow struct {
	more   chan struct{} // has a value if something was stored since it was asked
	stored atomic.Int64  // events
}

// deliver sends what is ready for a webhook whose queue was claimed, until its turn is
// over or nothing is left.
func (v *Vault) deliver(ctx context.Context, j *job, q *queue) error {
	rec := j.rec
	t := &turn{
		Vault: v, rec: rec, claim: rec, lease: rec.Due, pool: j.pool,
		began: time.Now(), ending: j.ending, queue: q, unread: new(unreadable), passed: new(unreadable),
		sending: make(chan struct{}, sendWorkers),
		tokens:  make(chan struct{}, sendTokens),
		ended:   make(chan struct{}, 1),
		inflow:  &inflow{more: make(chan struct{}, 1)},
		busy:    map[uuid.UUID]*store.Record{},
		late:    map[uuid.UUID]bool{},
	}
	v.sending.Store(rec.ID, t.inflow)
	defer v.sending.CompareAndDelete(rec.ID, t.inflow)
	_, err := v.webhookRow(ctx, beside(rec.ID))
	switch {
	case errors.Is(err, ErrNotFound):
		return t.rest(ctx)
	case errors.Is(err, ErrDamaged):
		return err // as it will be until somebody has put it back: the lease is soon enough
	case err != nil:
		t.fail(err)
	}
	for from, begun := uuid.Nil, false; t.goesOn() && t.stays(ctx); {
		list, err := v.siblings(ctx, t.ready(from, sendBatch)) // each attempt looks at the webhook
		if err != nil {
			t.fail(err)
			break
		}
		if tokens := t.begin(ctx, list.Records); tokens > 0 {
			begun = true
			t.sleep(time.Duration(min(int64(tokens), t.inflow.stored.Swap(0))) * sendPause)
		}
		if n := len(list.Records); n == sendBatch {
			from = rowkey.Above(list.Records[n-1].ID)
			continue
		}
		if !t.wait() && !begun {
			break
		}
		from, begun = uuid.Nil, false
		clear(t.late)
	}
	t.group.Wait()
	t.complain()
	return errors.Join(t.failure, t.rest(ctx))
}

// complain tells of the deliveries that could not be read.
func (t *turn) complain() {
	if n := len(t.unread.all()); n > 0 {
		t.log.Error("deliveries to a webhook cannot be read", "webhook", t.mask(kindWebhook, beside(t.rec.ID)), "count", n)
	}
}

// stays reports whether the turn goes on. When its time is over it is renewed, so that
// others need not wait for an attempt that is slow, but if a webhook waits for a worker.
func (t *turn) stays(ctx context.Context) bool {
	if time.Since(t.began) < sendTurn {
		return true
	}
	ok, err := false, error(nil)
	if len(t.pool.busy) < cap(t.pool.busy) {
		ok, err = t.renew(ctx)
	}
	if err != nil {
		t.fail(err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.over = !ok
	t.lease = t.claim.Due
	return ok
}

// renew lengthens the claim, and has what could not be read be looked at again. It
// returns false if the claim is lost.
func (t *turn) renew(ctx context.Context) (ok bool, err error) {
	next := *t.claim
	next.Version++
	next.Due = now().Add(t.core.lease(kindQueue))
	t.mu.Lock()
	plain := t.queue.encode()
	t.mu.Unlock()
	if err := t.box.SealShown(&next, plain); err != nil {
		return false, wrapped(err)
	}
	err = t.update(ctx, opStep, func(tx store.Tx) error {
		if ok, err = same(tx, t.claim); ok {
			tx.Put(&next)
		}
		return err
	})
	if err != nil || !ok {
		return false, wrapped(err)
	}
	t.complain()
	t.unread.forget()
	t.passed.forget()
	t.claim, t.began = &next, time.Now()
	return true, nil
}

// ready selects what is to be attempted, from a row key on.
func (t *turn) ready(from uuid.UUID, limit int) *store.Query {
	q := &store.Query{Kind: kindDelivery, Account: t.account, Parent: t.rec.ID, Min: from, Limit: limit}
	q.Classes.Add(deliveryReady)
	return q
}

// goesOn reports whether more may be begun. What is begun ends before the lease.
func (t *turn) goesOn() bool {
	select {
	case <-t.ending:
		return false
	default:
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.failure == nil && !t.gone && !t.over && t.pause.IsZero() && time.Until(t.lease) > sendTimeout
}

func (t *turn) fail(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.failure = errors.Join(t.failure, err)
}

// sleep waits for a while, or until nothing more is to be begun. Drain does not wait.
func (t *turn) sleep(d time.Duration) {
	if t.work.running.Load() == 0 {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-t.ending:
	case <-timer.C:
	}
}

// wait waits until there may be something to begin: all tokens are done with, or one if
// others are late, or more was stored. It returns false if nothing happens.
func (t *turn) wait() bool {
	patience := time.NewTimer(sendPoll)
	defer patience.Stop()
	for first := true; ; first = false {
		t.mu.Lock()
		busy := len(t.busy)
		t.mu.Unlock()
		if busy == 0 {
			if !first || t.work.running.Load() == 0 {
				return !first
			}
			patience.Reset(sendLinger)
		}
		select {
		case <-t.ended:
			if len(t.late) > 0 {
				return true
			}
		case <-t.inflow.more:
			t.sleep(sendGather)
			return true
		case <-t.ending:
			return true
		case <-patience.C:
			return busy > 0
		}
	}
}

// begin works on deliveries that are ready, but not on those of a token that is worked
// on already: they are late, and so is what follows of it. It returns how many tokens it
// has begun.
func (t *turn) begin(ctx context.Context, ready []*store.Record) (begun int) {
	byToken := map[uuid.UUID][]*pending{}
	var tokens []uuid.UUID
	for _, r := range ready {
		if t.skips(r) {
			continue
		}
		p, err := t.openDelivery(ctx, r)
		next := []*pending{p}
		if errors.Is(err, ErrDamaged) {
			t.unread.add(r)
			next, err = t.goOn(ctx, t.unread, r.Lookup...)
		}
		if err != nil {
			t.fail(err)
			return 0
		}
		for _, p := range next {
			if byToken[p.token] == nil {
				tokens = append(tokens, p.token)
			}
			byToken[p.token] = append(byToken[p.token], p)
		}
	}
	for _, token := range tokens {
		chain := byToken[token]
		last := chain[len(chain)-1].rec
		t.mu.Lock()
		worked, busy := t.busy[token]
		t.mu.Unlock()
		if busy && before(worked, last) {
			t.late[token] = true
		}
		if busy || t.late[token] {
			continue
		}
		t.tokens <- struct{}{}
		t.mu.Lock()
		t.busy[token] = last
		t.mu.Unlock()
		begun++
		t.group.Go(func() {
			if err := t.attemptAll(ctx, chain); err != nil {
				t.fail(err)
			}
			<-t.tokens
			t.mu.Lock()
			defer t.mu.Unlock()
			delete(t.busy, token)
			select {
			case t.ended <- struct{}{}:
			default:
			}
		})
	}
	return begun
}

// unreadable are deliveries that cannot be read. They stay as they are, and keep no other
// from being sent. The zero value is ready.
type unreadable struct {
	mu    sync.Mutex
	known map[uuid.UUID]uint64 // their versions
}

func (u *unreadable) add(r *store.Record) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.known == nil {
		u.known = map[uuid.UUID]uint64{}
	}
	u.known[r.ID] = r.Version
}

func (u *unreadable) has(r *store.Record) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.known[r.ID] == r.Version
}

func (u *unreadable) forget() {
	u.mu.Lock()
	defer u.mu.Unlock()
	clear(u.known)
}

func (u *unreadable) all() map[uuid.UUID]uint64 {
	u.mu.Lock()
	defer u.mu.Unlock()
	return maps.Clone(u.known)
}

// unreadMost is how many deliveries that cannot be read are looked past in a transaction.
const unreadMost = 1024

// first returns the first delivery with a hash, but for one and for those that cannot be
// read; nil if there is none.
func (u *unreadable) first(tx store.ReadTx, hash []byte, id uuid.UUID) (*store.Record, error) {
	known := u.all()
	line, err := tx.Lookup(kindDelivery, hash, min(len(known), unreadMost)+2)
	if errors.Is(err, ErrDamaged) { // what was found by mistake holds back nothing
		err = nil
	}
	for _, r := range line {
		if r.ID != id && known[r.ID] != r.Version {
			return r, err
		}
	}
	return nil, err
}

// attemptAll attempts deliveries of a token in their order.
func (t *turn) attemptAll(ctx context.Context, ready []*pending) error {
	failed := map[uuid.UUID]bool{}
	for len(ready) > 0 {
		first, err := t.attempt(ctx, ready[0], failed)
		if errors.Is(err, ErrDamaged) {
			failed[ready[0].rec.ID] = true
			t.unread.add(ready[0].rec)
			first, err = t.goOn(ctx, t.unread, t.tokenHash(t.rec.ID, ready[0].token, false))
		}
		if err != nil || !t.goesOn() {
			return err
		}
		ready = append(first, ready[1:]...)
	}
	return nil
}

// A prospect is what there is to know before an attempt.
type prospect struct {
	webhook, card *store.Record // nil if it is gone
	past          *store.Record // what it tells of the token, if that has changed since
	head          *store.Record // that holds it back
	early         *store.Record // that is unordered and could be attempted first
}

// attempt sends an event and stores what came of it, unless it has to wait. It returns
// what is to be attempted next.
//
// An unordered one is attempted again before a later one of its token, beside its
// schedule: after a webhook was down, events arrive in their order all the same.
func (t *turn) attempt(ctx context.Context, p *pending, failed map[uuid.UUID]bool) ([]*pending, error) {
	t.sending <- struct{}{}
	sending := true
	free := func() {
		if sending {
			<-t.sending
		}
		sending = false
	}
	defer free()
	if !t.goesOn() {
		return nil, nil
	}
	x, err := t.look(ctx, p)
	if err == nil && x == nil {
		t.passed.add(p.rec)
	}
	if err != nil || x == nil {
		return nil, err
	}
	if x.webhook == nil {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.gone = true
		return nil, nil
	}
	w, err := t.openWebhook(ctx, x.webhook)
	if err != nil {
		t.fail(err) // it concerns all deliveries
		return nil, nil
	}
	if x.head != nil {
		if p.typ == TokenDeleted { // the events before are gone with the token
			return []*pending{p}, t.drop(ctx, p)
		}
		head, err := t.openDelivery(ctx, x.head)
		switch {
		case errors.Is(err, ErrDamaged):
			t.unread.add(x.head)
			return []*pending{p}, nil
		case err != nil:
			return nil, err
		case x.head.Class == deliveryHeld: // by one that cannot be read
			first, err := t.goOn(ctx, t.unread, t.tokenHash(t.rec.ID, p.token, false))
			return append(first, p), err
		case x.head.Class == deliveryRetried && head.last.Before(w.since) && !failed[x.head.ID]:
			return []*pending{head, p}, nil // it has failed at another URL
		}
		return t.hold(ctx, p)
	}
	switch {
	case x.card == nil && p.typ != TokenDeleted:
		return t.settleAs(ctx, p, tokenGone)
	case w.Disabled, !slices.Contains(w.Events, p.typ):
		return t.settleAs(ctx, p, notWanted)
	case x.early != nil && !failed[x.early.ID]:
		early, err := t.openDelivery(ctx, x.early)
		if errors.Is(err, ErrDamaged) {
			t.unread.add(x.early)
			return []*pending{p}, nil
		}
		return []*pending{early, p}, err
	}
	event, err := t.eventOfDelivery(ctx, p, x.card, x.past)
	if err != nil {
		return nil, err
	}
	if !t.goesOn() { // reading may have taken longer than the lease
		return nil, nil
	}

	out := t.send(ctx, w, &Delivery{Event: event, ID: event.ID, CreatedAt: event.CreatedAt})
	free()
	next, _ := p.after(attempted, out, t.schedule())
	why := t.note(w, out, next.tries)
	failed[p.rec.ID] = next.class != deliveryDone
	if next.class == deliveryFailed {
		t.log.Warn("event could not be delivered", "webhook", w.ID, "event", event.ID, "status", out.code)
	}
	woken, err := t.settle(ctx, p, next)
	if err == nil && why != "" {
		err = t.disable(ctx, w, why)
	}
	return woken, err
}

// look reads what there is to know before an attempt, and p with its event. It returns
// nil if p was changed since it was read.
func (t *turn) look(ctx context.Context, p *pending) (x *prospect, err error) {
	var is *store.Record
	var stale bool
	err = t.view(ctx, func(tx store.ReadTx) error {
		x, stale = new(prospect), false
		get := func(kind store.Kind, id uuid.UUID) (*store.Record, error) {
			r, err := tx.Get(kind, id)
			if errors.Is(err, store.ErrNotFound) {
				return nil, nil
			}
			return r, err
		}
		first := func(unordered bool) (*store.Record, error) {
			r, err := t.unread.first(tx, t.tokenHash(t.rec.ID, p.token, unordered), uuid.Nil)
			if r != nil && !before(r, p.rec) {
				r = nil
			}
			return r, err
		}
		if is, err = get(kindDelivery, p.rec.ID); err != nil {
			return err
		}
		if stale = is == nil || is.Version != p.rec.Version; stale {
			return nil
		}
		if x.webhook, err = get(kindWebhook, beside(t.rec.ID)); err != nil {
			return err
		}
		if x.card, err = get(kindToken, p.token); err != nil {
			return err
		}
		if x.card != nil && (x.card.Account != t.account || !lives(x.card, now())) {
			x.card = nil
		}
		if x.past, err = get(kindPast, eventOf(p.rec)); err != nil { // it belongs to the card
			return err
		}
		if !p.unordered {
			if x.head, err = first(false); err != nil {
				return err
			}
		}
		x.early, err = first(true)
		return err
	})
	if err != nil || stale {
		return nil, err
	}
	p.rec = is
	return x, nil
}

// before reports whether the event of a was before that of b.
func before(a, b *store.Record) bool { return slices.Compare(a.ID[:], b.ID[:]) < 0 }

// send makes one attempt with a deadline.
func (v *Vault) send(ctx context.Context, w *Webhook, d *Delivery) *answer {
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
		v.log.Info("webhook did not answer", "webhook", w.ID, "event", d.ID, "error", printable(err))
		return &answer{began: began}
	}
	return &answer{began, got.StatusCode, got.RetryAfter}
}

// note draws conclusions for the whole webhook, and returns why it is to be disabled. One
// event that fails does not end its patience: tries is how often it has.
func (t *turn) note(w *Webhook, out *answer, tries uint64) (why string) {
	at := now()
	t.mu.Lock()
	defer t.mu.Unlock()
	q := t.queue
	if out.success() {
		q.failing, q.failed, q.pauses = time.Time{}, time.Time{}, 0
		return ""
	}
	if q.failing.IsZero() || q.failed.Before(at.Add(-webhookQuiet)) {
		q.failing, q.pauses = at, 0
	}
	q.failed = at
	if out.throttled() && w.version >= t.asked {
		t.leaveAlone(at, out.after, w.version)
	}
	switch {
	case out.code == 410:
		return disabledGone
	case tries >= eventHolds &&
		t.queue.failing.Before(at.Add(-webhookPatience)) && w.since.Before(at.Add(-webhookPatience)):
		return disabledFailing
	}
	return ""
}

// leaveAlone notes that a version of the webhook wants a pause, for as long as it says or
// a little longer each time. Several attempts may end so: the longest counts, but nothing
// that a former version has said.
func (t *turn) leaveAlone(at time.Time, after time.Duration, version uint64) {
	if version > t.asked {
		t.pause = time.Time{}
	}
	if after == 0 {
		if !t.pause.IsZero() {
			return
		}
		after = t.pace(eventRetries[min(t.queue.pauses, sendPauses-1)])
		t.queue.pauses++
	}
	if until := at.Add(min(after, maxSendPause)); until.After(t.pause) {
		t.pause = until
	}
	t.asked = version
}

// disable disables a webhook, unless its URL or state has changed since an attempt.
func (t *turn) disable(ctx context.Context, w *Webhook, why string) error {
	_, err := t.editWebhook(ctx, opUpdateWebhook, w.row, func(is *Webhook) error {
		if is.Disabled || is.URL != w.URL || !is.since.Equal(w.since) {
			return errChanged
		}
		is.Disabled, is.DisabledReason = true, why
		return nil
	})
	switch {
	case err == nil:
		t.log.Warn("webhook is disabled", "webhook", w.ID, "reason", why)
	case errors.Is(err, errChanged), errors.Is(err, ErrNotFound):
		return nil
	}
	return err
}

var errChanged = errors.New("cardvault: webhook has changed")

// hold makes p wait until what holds it back is out of the way. It returns p if
// nothing does any more.
func (t *turn) hold(ctx context.Context, p *pending) (again []*pending, err error) {
	held, ok := p.after(heldBack, nil, t.schedule())
	if !ok {
		return nil, nil
	}
	next := *p.rec
	next.Version++
	if err := t.sealDelivery(&next, &held); err != nil {
		return nil, err
	}

	hash := t.tokenHash(t.rec.ID, p.token, false)
	err = t.update(ctx, opStep, func(tx store.Tx) error {
		again = nil
		if ok, err := same(tx, p.rec); err != nil || !ok {
			return err
		}
		first, err := t.unread.first(tx, hash, uuid.Nil)
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
	return again, wrapped(err)
}

// drop erases the deliveries that hold p back. Those that cannot be read stay, and hold
// back nothing.
func (t *turn) drop(ctx context.Context, p *pending) error {
	var others []*store.Record
	hash := t.tokenHash(t.rec.ID, p.token, false)
	err := t.findBy(ctx, kindDelivery, hash, claimBatch, func(r *store.Record, readable bool) bool {
		switch {
		case !readable:
			t.unread.add(r)
		case r.ID != p.rec.ID:
			others = append(others, r)
		}
		return true
	})
	if err != nil && !errors.Is(err, ErrDamaged) {
		return err
	}
	return wrapped(t.update(ctx, opStep, func(tx store.Tx) error {
		if ok, err := same(tx, p.rec); err != nil || !ok {
			return err
		}
		for _, r := range others {
			ok, err := same(tx, r)
			if err != nil {
				return err
			}
			if ok {
				tx.Delete(kindDelivery, r.ID)
			}
		}
		return nil
	}))
}

// same reports whether a record is as it was read.
func same(tx store.ReadTx, r *store.Record) (bool, error) {
	is, err := tx.Get(r.Kind, r.ID)
	if errors.Is(err, store.ErrNotFound) {
		return false, nil
	}
	return err == nil && is.Version == r.Version, err
}

// schedule returns that of a webhook.
func (t *turn) schedule() schedule {
	return schedule{at: now(), pace: t.pace, retention: deliveryRetention}
}

// settleAs settles a delivery to which something has happened without an attempt.
func (t *turn) settleAs(ctx context.Context, p *pending, o occasion) ([]*pending, error) {
	next, ok := p.after(o, nil, t.schedule())
	if !ok {
		return nil, nil
	}
	return t.settle(ctx, p, next)
}

// settle stores the next state of a delivery. It returns the delivery that was held back
// by it and is ready now.
func (t *turn) settle(ctx context.Context, p *pending, is delivery) ([]*pending, error) {
	frees := p.holdsBack() && !is.holdsBack()
	hash := t.tokenHash(t.rec.ID, p.token, false)
	for {
		next := *p.rec
		next.Version++
		if is.class != 0 {
			if err := t.sealDelivery(&next, &is); err != nil {
				return nil, err
			}
		}

		var held *store.Record
		var woken []*pending
		if frees {
			var err error
			if held, woken, err = t.wakeAfter(ctx, t.unread, hash, p.rec.ID); err != nil {
				return nil, err
			}
		}

		changed := false
		err := t.update(ctx, opStep, func(tx store.Tx) error {
			ok, err := same(tx, p.rec)
			if changed = !ok; changed || err != nil {
				return err
			}
			if is.class == 0 {
				tx.Delete(kindDelivery, p.rec.ID)
			} else {
				tx.Put(&next)
			}
			if !frees {
				return nil
			}
			after, err := t.unread.first(tx, hash, p.rec.ID)
			if err != nil || after == nil || after.Class != deliveryHeld {
				return err
			}
			if held == nil || after.ID != held.ID || after.Version != held.Version {
				return store.ErrConflict // it was held back since
			}
			for _, w := range woken {
				tx.Put(w.rec)
			}
			return nil
		})
		switch {
		case errors.Is(err, store.ErrConflict):
			continue
		case err != nil:
			return nil, wrapped(err)
		case !changed:
			if is.class != 0 {
				t.workDue(&next)
			}
			return woken, nil
		}

		if p, err = t.reread(ctx, p); err != nil || p == nil {
			return nil, err
		}
	}
}

// reread returns a delivery that was attempted beside its schedule and has become due
// meanwhile, or nil if something else has happened to it.
func (t *turn) reread(ctx context.Context, p *pending) (*pending, error) {
	if p.rec.Class != deliveryRetried {
		return nil, nil // gone with its webhook
	}
	var r *store.Record
	err := t.view(ctx, func(tx store.ReadTx) (err error) {
		r, err = tx.Get(kindDelivery, p.rec.ID)
		return err
	})
	if errors.Is(err, ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	is, err := t.openDelivery(ctx, r)
	if err != nil || r.Class != deliveryReady || is.attempts != p.attempts || is.tries != p.tries {
		return nil, err // it was redelivered
	}
	return is, nil
}

// wakeAfter returns the delivery that the one with an id holds back, and that as it is
// when it is ready; nothing if there is none.
func (v *Vault) wakeAfter(ctx context.Context, unread *unreadable, hash []byte, id uuid.UUID) (held *store.Record, woken []*pending, err error) {
	for {
		err = v.view(ctx, func(tx store.ReadTx) error {
			held, err = unread.first(tx, hash, id)
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
			unread.add(held)
			continue
		case err != nil:
			return nil, nil, err
		}
		ready, ok := p.after(released, nil, schedule{})
		if !ok {
			return nil, nil, nil
		}
		next.Version++
		p.delivery = ready
		return held, []*pending{p}, v.sealDelivery(&next, &p.delivery)
	}
}

// goOn makes those ready, and returns them, that are the first with a hash and held: what
// they have waited for cannot be read.
func (v *Vault) goOn(ctx context.Context, unread *unreadable, hashes ...[]byte) (ready []*pending, err error) {
	for _, hash := range hashes {
		held, woken, err := v.wakeAfter(ctx, unread, hash, uuid.Nil)
		if err != nil {
			return nil, err
		}
		for _, p := range woken {
			queues, err := v.wakingsOf(ctx, beside(p.rec.Parent))
			if err != nil {
				return nil, err
			}
			ok := false
			err = v.update(ctx, opStep, func(tx store.Tx) (err error) {
				if ok, err = same(tx, held); err != nil || !ok {
					return err
				}
				tx.Put(p.rec)
				return queues.put(tx, v)
			})
			if errors.Is(err, errStale) {
				return v.goOn(ctx, unread, hashes...)
			}
			if err != nil {
				return nil, wrapped(err)
			}
			if ok {
				queues.told(v)
				ready = append(ready, p)
			}
		}
	}
	return ready, nil
}

// rest ends the claim. The queue is due at once if something is ready, or when the
// webhook wants to hear more; after a failure a little later.
func (t *turn) rest(ctx context.Context) error {
	busy, idle := *t.claim, *t.claim
	busy.Due, idle.Due = now(), time.Time{}
	switch {
	case t.failure != nil:
		busy.Due = busy.Due.Add(sendRelapse)
	case t.useless() > unreadMost:
		busy.Due = busy.Due.Add(workPause)
	}
	paused := busy
	t.queue.pause = time.Time{}
	if t.pause.After(busy.Due) {
		paused.Due = t.pause
	}
	for _, r := range []*store.Record{&busy, &idle, &paused} {
		if r == &paused {
			t.queue.pause = r.Due
		}
		r.Version++
		if err := t.box.SealShown(r, t.queue.encode()); err != nil {
			return wrapped(err)
		}
	}
	next := &busy
	err := t.update(ctx, opStep, func(tx store.Tx) error {
		if ok, err := same(tx, t.claim); err != nil || !ok {
			return err
		}
		hook, err := tx.Get(kindWebhook, beside(t.rec.ID))
		gone := errors.Is(err, store.ErrNotFound)
		if err != nil && !gone {
			return err
		}
		left, err := t.left(tx)
		switch {
		case err != nil:
			return err
		case gone: // what is left is erased
			next = &idle
		case !t.pause.IsZero() && hook.Version == t.asked:
			next = &paused
		case left || !t.pause.IsZero() || t.failure != nil:
			next = &busy
		default:
			next = &idle
		}
		tx.Put(next)
		return nil
	})
	if err == nil {
		t.workDue(next)
	}
	return wrapped(err)
}

// left reports whether there is something to do for the queue, or perhaps if what is of no
// use is too much to look past.
func (t *turn) left(tx store.ReadTx) (bool, error) {
	n := t.useless()
	if n > unreadMost {
		return true, nil
	}
	list, err := tx.List(t.ready(uuid.Nil, n+1))
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(list.Records, func(r *store.Record) bool { return !t.skips(r) }), nil
}

// useless returns how many deliveries are of no use as they are listed.
func (t *turn) useless() int { return len(t.unread.all()) + len(t.passed.all()) }

// skips reports whether a delivery is of no use as it is listed.
func (t *turn) skips(r *store.Record) bool { return t.unread.has(r) || t.passed.has(r) }
