package cardvault

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

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
	sendPause  = 800 * time.Microsecond // after each token that was begun: imports come before deliveries

	sendRelapse = 5 * time.Second // after a store that has failed

	maxSendRetryAfter = 24 * time.Hour
	maxSendPause      = time.Hour // of a whole webhook

	// webhookPatience is after how long without success a webhook is disabled.
	webhookPatience = 5 * 24 * time.Hour
)

// A turn is the time in which this process alone sends to a webhook. Deliveries of
// different tokens go beside each other, those of a token one after the other.
type turn struct {
	*Vault
	rec    *store.Record // of the queue, as it was claimed
	began  time.Time
	ending <-chan struct{} // closed when nothing more is to be begun

	sending chan struct{} // holds a value for each attempt under way
	tokens  chan struct{} // and for each token
	group   sync.WaitGroup
	ended   chan struct{} // has a value if a token was done with since it was asked
	more    chan struct{} // has a value if this process has stored something for the webhook

	late map[uuid.UUID]bool // tokens that were worked on when more of theirs was listed

	mu      sync.Mutex
	queue   *queue
	busy    map[uuid.UUID]*store.Record // by token: the last delivery that is worked on
	unread  map[uuid.UUID]bool          // deliveries that are ready and cannot be read
	pause   time.Time                   // when the webhook has asked to be left alone until then
	gone    bool                        // the webhook is deleted
	failure error
}

// deliver sends what is ready for a webhook whose queue was claimed, until its turn is
// over or nothing is left.
func (v *Vault) deliver(ctx context.Context, ending <-chan struct{}, rec *store.Record, q *queue) error {
	t := &turn{
		Vault: v, rec: rec, began: time.Now(), ending: ending, queue: q,
		sending: make(chan struct{}, sendWorkers),
		tokens:  make(chan struct{}, sendTokens),
		ended:   make(chan struct{}, 1),
		more:    make(chan struct{}, 1),
		busy:    map[uuid.UUID]*store.Record{},
		unread:  map[uuid.UUID]bool{},
		late:    map[uuid.UUID]bool{},
	}
	v.sending.Store(rec.ID, t.more)
	defer v.sending.CompareAndDelete(rec.ID, t.more)
	_, err := v.webhookRow(ctx, beside(rec.ID))
	if errors.Is(err, ErrNotFound) {
		return t.erase(ctx)
	}
	if err != nil {
		return err
	}
	for from, begun := uuid.Nil, false; t.goesOn(); {
		list, err := v.list(ctx, t.ready(from, sendBatch))
		if err != nil {
			t.fail(err)
			break
		}
		if tokens := t.begin(ctx, list.Records); tokens > 0 {
			begun = true
			t.sleep(time.Duration(tokens) * sendPause)
		}
		if n := len(list.Records); n == sendBatch {
			from = step(list.Records[n-1].ID, 1)
			continue
		}
		if !t.wait() && !begun {
			break
		}
		from, begun = uuid.Nil, false
		clear(t.late)
	}
	t.group.Wait()
	if len(t.unread) > 0 {
		v.log.Error("deliveries to a webhook cannot be read", "webhook", v.mask(kindWebhook, beside(rec.ID)), "count", len(t.unread))
	}
	return errors.Join(t.failure, t.rest(ctx))
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
	return t.failure == nil && !t.gone && t.pause.IsZero() &&
		time.Since(t.began) < sendTurn && time.Until(t.rec.Due) > sendTimeout
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
		case <-t.more:
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
		t.mu.Lock()
		known := t.unread[r.ID]
		t.mu.Unlock()
		if known {
			continue
		}
		p, err := t.openDelivery(ctx, r)
		if errors.Is(err, ErrDamaged) {
			t.skip(r)
			continue
		}
		if err != nil {
			t.fail(err)
			return 0
		}
		if byToken[p.token] == nil {
			tokens = append(tokens, p.token)
		}
		byToken[p.token] = append(byToken[p.token], p)
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

// skip remembers a delivery that cannot be read. It stays as it is, and keeps no other
// from being sent, but if it was attempted later ones of its token.
func (t *turn) skip(r *store.Record) {
	if r.Class != deliveryReady {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.unread[r.ID] = true
}

// attemptAll attempts deliveries of a token in their order.
func (t *turn) attemptAll(ctx context.Context, ready []*pending) error {
	failed := map[uuid.UUID]bool{}
	for len(ready) > 0 {
		first, err := t.attempt(ctx, ready[0], failed)
		if errors.Is(err, ErrDamaged) {
			failed[ready[0].rec.ID] = true
			t.skip(ready[0].rec)
			err = nil
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
	early         *store.Record // that is loose and could be attempted first
}

// attempt sends an event and stores what came of it, unless it has to wait. It returns
// what is to be attempted next.
//
// One that is loose is attempted again before a later one of its token, beside its
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
		return t.hold(ctx, p)
	}
	next := p.delivery
	switch {
	case x.card == nil && p.typ != TokenDeleted:
		return t.settle(ctx, p, &next, 0, time.Time{})
	case w.Disabled, !slices.Contains(w.Events, p.typ):
		return t.settle(ctx, p, &next, deliveryFailed, time.Time{})
	case x.early != nil && !failed[x.early.ID]:
		early, err := t.openDelivery(ctx, x.early)
		if errors.Is(err, ErrDamaged) {
			failed[x.early.ID] = true
			return []*pending{p}, nil
		}
		return []*pending{early, p}, err
	}
	event, err := t.eventOfDelivery(ctx, p, x.card, x.past)
	if err != nil {
		return nil, err
	}

	out := t.send(ctx, w, &Delivery{Event: event, ID: event.ID, CreatedAt: event.CreatedAt})
	free()
	next.attempts++
	next.last, next.code = now(), uint64(out.code)
	class, due := uint8(deliveryRetried), p.rec.Due // that of an attempt beside the schedule
	switch {
	case out.success():
		class = deliveryDone
	case out.code == 410:
		class = deliveryFailed
	case p.rec.Class == deliveryReady:
		if next.tries++; next.tries > uint64(len(eventRetries)) {
			class = deliveryFailed
			break
		}
		next.loose = next.loose || next.tries >= eventHolds
		due = now().Add(max(t.pace(eventRetries[next.tries-1]), min(out.after, maxSendRetryAfter)))
	}
	why := t.note(w, out, next.tries)
	failed[p.rec.ID] = class != deliveryDone
	if class == deliveryFailed {
		t.log.Warn("event could not be delivered", "webhook", w.ID, "event", event.ID, "status", out.code)
	}
	woken, err := t.settle(ctx, p, &next, class, due)
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
		if x.past, err = get(kindPast, eventOf(p.rec)); err != nil {
			return err
		}
		if !p.loose {
			first, err := tx.Lookup(kindDelivery, t.tokenHash(t.rec.ID, p.token, false), 1)
			if err != nil {
				return err
			}
			if len(first) > 0 && before(first[0], p.rec) {
				x.head = first[0]
			}
		}
		first, err := tx.Lookup(kindDelivery, t.tokenHash(t.rec.ID, p.token, true), 1)
		if len(first) > 0 && before(first[0], p.rec) {
			x.early = first[0]
		}
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

// An outcome is what came of an attempt.
type outcome struct {
	code  int // of HTTP; 0: no answer
	after time.Duration
}

func (o *outcome) success() bool { return o.code >= 200 && o.code < 300 }

// send makes one attempt with a deadline.
func (v *Vault) send(ctx context.Context, w *Webhook, d *Delivery) *outcome {
	d.URL, d.Legacy = w.URL, w.LegacyHMAC
	at := now()
	for _, s := range w.secrets {
		if s.until.IsZero() || s.until.After(at) {
			d.Secrets = append(d.Secrets, s.value)
		}
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
		return &outcome{}
	}
	return &outcome{got.StatusCode, got.RetryAfter}
}

// note draws conclusions for the whole webhook, and returns why it is to be disabled. One
// event that fails does not end its patience: tries is how often it has.
func (t *turn) note(w *Webhook, out *outcome, tries uint64) (why string) {
	at := now()
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case out.success():
		t.queue.failing = time.Time{}
		return ""
	case t.queue.failing.IsZero():
		t.queue.failing = at
	}
	if out.after > 0 {
		t.pause = at.Add(min(out.after, maxSendPause))
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
	next := *p.rec
	next.Version++
	next.Class = deliveryHeld
	if err := t.sealDelivery(&next, &p.delivery); err != nil {
		return nil, err
	}
	hash := t.tokenHash(t.rec.ID, p.token, false)
	err = t.store.Update(ctx, func(tx store.Tx) error {
		again = nil
		if ok, err := same(tx, p.rec); err != nil || !ok {
			return err
		}
		first, err := tx.Lookup(kindDelivery, hash, 1)
		switch {
		case err != nil:
			return err
		case len(first) == 0 || !before(first[0], p.rec):
			again = []*pending{p}
		default:
			tx.Put(&next)
		}
		return nil
	})
	return again, wrapped(err)
}

// drop erases the deliveries that hold p back.
func (t *turn) drop(ctx context.Context, p *pending) error {
	hash := t.tokenHash(t.rec.ID, p.token, false)
	return wrapped(t.store.Update(ctx, func(tx store.Tx) error {
		if ok, err := same(tx, p.rec); err != nil || !ok {
			return err
		}
		others, err := tx.Lookup(kindDelivery, hash, claimBatch)
		for _, r := range others {
			if r.ID != p.rec.ID {
				tx.Delete(kindDelivery, r.ID)
			}
		}
		return err
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

// settle stores what became of a delivery, whose class is 0 if it is dropped. It
// returns the one that is not held back by it any more and ready now.
func (t *turn) settle(ctx context.Context, p *pending, is *delivery, class uint8, due time.Time) ([]*pending, error) {
	if class == deliveryDone || class == deliveryFailed {
		due = now().Add(deliveryRetention)
	}
	frees := !p.loose && (class == 0 || class >= deliveryDone || is.loose)
	hash := t.tokenHash(t.rec.ID, p.token, false)
	for {
		next := *p.rec
		next.Version++
		next.Class, next.Due = class, due
		if class != 0 {
			if err := t.sealDelivery(&next, is); err != nil {
				return nil, err
			}
		}
		var held *store.Record
		var woken []*pending
		if frees {
			var err error
			if held, woken, err = t.wakeAfter(ctx, hash, p.rec.ID); err != nil {
				return nil, err
			}
		}
		changed := false
		err := t.store.Update(ctx, func(tx store.Tx) error {
			ok, err := same(tx, p.rec)
			if changed = !ok; changed || err != nil {
				return err
			}
			if class == 0 {
				tx.Delete(kindDelivery, p.rec.ID)
			} else {
				tx.Put(&next)
			}
			if !frees {
				return nil
			}
			after, err := second(tx, hash, p.rec.ID)
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
			if class != 0 {
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
	if err != nil || r.Class != deliveryReady || is.attempts != p.attempts {
		return nil, err // it was redelivered
	}
	return is, nil
}

// wakeAfter returns the delivery that the one with an id holds back, and that as it is
// when it is ready; nothing if there is none, or it cannot be read.
func (t *turn) wakeAfter(ctx context.Context, hash []byte, id uuid.UUID) (held *store.Record, woken []*pending, err error) {
	err = t.view(ctx, func(tx store.ReadTx) error {
		held, err = second(tx, hash, id)
		return err
	})
	if err != nil || held == nil || held.Class != deliveryHeld {
		return nil, nil, err
	}
	next := *held
	next.Shown = slices.Clone(held.Shown)
	p, err := t.openDelivery(ctx, &next)
	if errors.Is(err, ErrDamaged) {
		t.log.Error("the deliveries of a token to a webhook cannot go on", "webhook", t.mask(kindWebhook, beside(t.rec.ID)), "error", err)
		return held, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	next.Version++
	next.Class = deliveryReady
	return held, []*pending{p}, t.sealDelivery(&next, &p.delivery)
}

// second returns the first record with a hash other than one.
func second(tx store.ReadTx, hash []byte, id uuid.UUID) (*store.Record, error) {
	first, err := tx.Lookup(kindDelivery, hash, 2)
	for _, r := range first {
		if r.ID != id {
			return r, err
		}
	}
	return nil, err
}

// rest ends the claim. The queue is due at once if something is ready, or when the
// webhook wants to hear more; after a failure a little later.
func (t *turn) rest(ctx context.Context) error {
	busy, idle := *t.rec, *t.rec
	busy.Due, idle.Due = now(), time.Time{}
	if t.failure != nil {
		busy.Due = busy.Due.Add(sendRelapse)
	}
	if t.pause.After(busy.Due) {
		busy.Due = t.pause
	}
	for _, r := range []*store.Record{&busy, &idle} {
		r.Version++
		if err := t.box.SealShown(r, t.queue.encode()); err != nil {
			return wrapped(err)
		}
	}
	next := &busy
	err := t.store.Update(ctx, func(tx store.Tx) error {
		if ok, err := same(tx, t.rec); err != nil || !ok {
			return err
		}
		left, err := t.left(tx)
		if err != nil {
			return err
		}
		if next = &idle; left || !t.pause.IsZero() || t.failure != nil {
			next = &busy
		}
		tx.Put(next)
		return nil
	})
	if err == nil {
		t.workDue(next)
	}
	return wrapped(err)
}

// left reports whether there is something to do for the queue.
func (t *turn) left(tx store.ReadTx) (bool, error) {
	_, err := tx.Get(kindWebhook, beside(t.rec.ID))
	if errors.Is(err, store.ErrNotFound) {
		return true, nil // its deliveries are to be erased
	}
	if err != nil {
		return false, err
	}
	list, err := tx.List(t.ready(uuid.Nil, len(t.unread)+1))
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(list.Records, func(r *store.Record) bool { return !t.unread[r.ID] }), nil
}

// erase removes the deliveries of a webhook that is gone, and then its queue.
func (t *turn) erase(ctx context.Context) error {
	q := &store.Query{Kind: kindDelivery, Account: t.account, Parent: t.rec.ID, Limit: claimBatch}
	for left := claimBatch; t.goesOn(); {
		err := t.store.Update(ctx, func(tx store.Tx) error {
			list, err := tx.List(q)
			if err != nil {
				return err
			}
			if left = len(list.Records); left == 0 {
				tx.Delete(kindQueue, t.rec.ID)
			}
			for _, r := range list.Records {
				tx.Delete(kindDelivery, r.ID)
			}
			return nil
		})
		if err != nil || left == 0 {
			return wrapped(err)
		}
	}
	return t.rest(ctx)
}
