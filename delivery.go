package cardvault

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/cardvault/cardvault/internal/rowkey"
	"github.com/cardvault/cardvault/internal/tlv"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// A DeliveryRecord is an entry of the log of a webhook. It holds nothing of what was
// sent and answered.
type DeliveryRecord struct {
	ID        uuid.UUID
	EventID   uuid.UUID
	EventType EventType
	TokenID   uuid.UUID
	Status    DeliveryStatus
	Attempts  int

	LastAttemptAt  time.Time // zero if there was none
	NextAttemptAt  time.Time // zero unless one is planned
	LastStatusCode int       // of HTTP; 0 if there was no answer
}

// A DeliveryStatus says what became of a delivery.
type DeliveryStatus uint8

const (
	DeliveryPending DeliveryStatus = iota + 1
	DeliveryDelivered
	DeliveryFailed // for good, unless it is redelivered
)

// String returns the name of the decisions, chapter 13.
func (s DeliveryStatus) String() string {
	return [...]string{"unknown", "pending", "delivered", "failed"}[s&3]
}

// MarshalText returns what String does.
func (s DeliveryStatus) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

const (
	sendTimeout = 15 * time.Second
	sendTurn    = 30 * time.Second // how long one claim of a webhook begins attempts
	sendWorkers = 8                // attempts at a time for one webhook
	sendBatch   = 64               // deliveries read at a time

	maxSendRetryAfter = 24 * time.Hour

	// eventRetention is how long an event can be delivered again: longer than all
	// attempts take. Its deliveries are in the log as long.
	eventRetention = 7 * 24 * time.Hour

	// webhookPatience is after how long without success a webhook is disabled.
	webhookPatience = 5 * 24 * time.Hour
)

// Classes of the deliveries of a webhook, whose children they are.
const (
	deliveryReady   = iota + 1 // to be attempted
	deliveryHeld               // until an earlier one of the same token is out of the way
	deliveryRetried            // due when it is to be ready again
	deliveryDone               // delivered; due when it is forgotten
	deliveryFailed             // likewise
)

// A delivery is what the record of one holds. Its webhook is the parent, the time of
// its row key that of the event.
type delivery struct {
	event    uuid.UUID // row key
	typ      EventType
	token    uuid.UUID // row key
	attempts uint64
	last     time.Time
	code     uint64
	loose    bool // neither waits for others of its token nor holds them back
}

const (
	deliveryEvent = iota + 1
	deliveryType
	deliveryToken
	deliveryAttempts
	deliveryLast
	deliveryCode
	deliveryLoose
)

func (d *delivery) encode() []byte {
	b := tlv.Append(nil, deliveryEvent, d.event[:])
	b = tlv.AppendUint(b, deliveryType, uint64(d.typ))
	b = tlv.Append(b, deliveryToken, d.token[:])
	b = tlv.AppendUint(b, deliveryAttempts, d.attempts)
	b = appendTime(b, deliveryLast, d.last)
	b = tlv.AppendUint(b, deliveryCode, d.code)
	return tlv.Pad(tlv.AppendUint(b, deliveryLoose, bit(d.loose)), 64, 0)
}

func decodeDelivery(plain []byte) (*delivery, error) {
	d := new(delivery)
	r := tlv.Read(plain)
	for r.Next() {
		switch r.Tag {
		case deliveryEvent:
			copy(d.event[:], r.Value)
		case deliveryType:
			d.typ = EventType(r.Uint())
		case deliveryToken:
			copy(d.token[:], r.Value)
		case deliveryAttempts:
			d.attempts = r.Uint()
		case deliveryLast:
			d.last = readTime(&r)
		case deliveryCode:
			d.code = r.Uint()
		case deliveryLoose:
			d.loose = r.Uint() == 1
		}
	}
	return d, readError(&r)
}

// sealDelivery sets what follows from d and the class of r.
func (v *Vault) sealDelivery(r *store.Record, d *delivery) error {
	r.Lookup = nil
	if !d.loose && r.Class <= deliveryRetried {
		r.Lookup = [][]byte{v.queueHash(r.Parent, d.token)}
	}
	return wrapped(v.box.SealShown(r, d.encode()))
}

// queueHash is by which the deliveries of a token to a webhook are found that hold
// back later ones.
func (v *Vault) queueHash(webhook, token uuid.UUID) []byte {
	return v.box.Lookup(v.account, "deliveries", append(webhook[:], token[:]...))
}

// fanOut returns the deliveries of an event that is being claimed.
func (v *Vault) fanOut(ctx context.Context, event uuid.UUID, o *outEvent) (all []*store.Record, err error) {
	a, err := v.approved(ctx)
	if err != nil {
		return nil, err
	}
	for _, w := range a.webhooks {
		if !slices.Contains(w.Events, o.typ) {
			continue
		}
		r := v.newDelivery(w.row, event)
		if err := v.sealDelivery(r, &delivery{event: event, typ: o.typ, token: o.row}); err != nil {
			return nil, err
		}
		all = append(all, r)
	}
	return all, nil
}

// newDelivery returns the record of an event for a webhook, which has always the same
// row key: one event makes one delivery, whatever is repeated.
func (v *Vault) newDelivery(webhook, event uuid.UUID) *store.Record {
	hash := v.box.Lookup(v.account, "delivery", append(webhook[:], event[:]...))
	r := v.newRecord(kindDelivery, rowkey.Beside(event, [8]byte(hash[:8])))
	r.Parent, r.Class = webhook, deliveryReady
	return r
}

// A queue is when a webhook has something to do, in a record beside it. Whoever has
// claimed it delivers, alone.
type queue struct {
	failing time.Time // since when there was no success, zero if the last attempt was one
}

const queueFailing = 1

func (q *queue) encode() []byte { return tlv.Pad(appendTime(nil, queueFailing, q.failing), 32, 0) }

func decodeQueue(plain []byte) (*queue, error) {
	q := new(queue)
	r := tlv.Read(plain)
	for r.Next() {
		if r.Tag == queueFailing {
			q.failing = readTime(&r)
		}
	}
	return q, readError(&r)
}

// A waking is the record of a queue that has nothing to do, as it is written to make
// it due, or nil if it is due anyway.
type waking struct{ by *store.Record }

// waking reads the queue of a webhook to make it due.
func (v *Vault) waking(ctx context.Context, webhook uuid.UUID) (*waking, error) {
	r, err := v.getQueue(ctx, webhook)
	if errors.Is(err, ErrNotFound) {
		return &waking{}, nil
	}
	if err != nil || !r.Due.IsZero() {
		return &waking{}, err
	}
	plain, err := v.openShown(ctx, r)
	if err != nil {
		return nil, err
	}
	r.Version++
	r.Due = now()
	return &waking{r}, wrapped(v.box.SealShown(r, plain))
}

// put makes the queue due in a transaction that adds to it. It returns
// store.ErrConflict if it has to be read again.
func (w *waking) put(tx store.Tx, webhook uuid.UUID) error {
	is, err := tx.Get(kindQueue, webhook)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return nil // so is the webhook
	case err != nil:
		return err
	case !is.Due.IsZero():
		return nil // whoever works on it looks again before it rests
	case w.by == nil || w.by.Version != is.Version+1:
		return store.ErrConflict
	}
	tx.Put(w.by)
	return nil
}

// getQueue returns the record of a queue, whatever it is due.
func (v *Vault) getQueue(ctx context.Context, webhook uuid.UUID) (r *store.Record, err error) {
	err = v.view(ctx, func(tx store.ReadTx) error {
		r, err = tx.Get(kindQueue, webhook)
		if err == nil && r.Account != v.account {
			err = ErrNotFound
		}
		return err
	})
	return r, err
}

// deliver makes attempts for a webhook whose queue was claimed, until nothing is
// ready or its turn is over.
func (v *Vault) deliver(ctx context.Context, rec *store.Record, q *queue) error {
	w, err := v.webhookRow(ctx, rec.ID)
	if errors.Is(err, ErrNotFound) {
		return nil // the queue goes with it
	}
	if err != nil {
		return err
	}
	turn := time.Now()
	for time.Since(turn) < sendTurn && ctx.Err() == nil {
		ready, err := v.list(ctx, v.readyOf(rec.ID, sendBatch))
		if err != nil {
			return err
		}
		if len(ready.Records) == 0 {
			break
		}
		gone, err := v.attemptAll(ctx, w, q, ready.Records, turn)
		if err != nil {
			return err
		}
		why := ""
		switch {
		case gone:
			why = disabledGone
		case !q.failing.IsZero() && now().Sub(q.failing) >= webhookPatience:
			why = disabledFailing
		}
		if why != "" && !w.Disabled {
			v.log.Warn("webhook is disabled", "webhook", w.ID, "reason", why)
			if err := v.disableWebhook(ctx, rec.ID, why); err != nil && !errors.Is(err, ErrNotFound) {
				return err
			}
			w.Disabled = true
		}
	}
	return v.rest(ctx, rec, q)
}

// readyOf selects what is to be attempted for a webhook.
func (v *Vault) readyOf(webhook uuid.UUID, limit int) *store.Query {
	q := &store.Query{Kind: kindDelivery, Account: v.account, Parent: webhook, Limit: limit}
	q.Classes.Add(deliveryReady)
	return q
}

// rest ends the claim of a queue. It is due again at once if something is ready.
func (v *Vault) rest(ctx context.Context, rec *store.Record, q *queue) error {
	busy, idle := *rec, *rec
	busy.Due, idle.Due = now(), time.Time{}
	for _, r := range []*store.Record{&busy, &idle} {
		r.Version++
		if err := v.box.SealShown(r, q.encode()); err != nil {
			return wrapped(err)
		}
	}
	next := &idle
	err := v.store.Update(ctx, func(tx store.Tx) error {
		is, err := tx.Get(kindQueue, rec.ID)
		if errors.Is(err, store.ErrNotFound) || err == nil && is.Version != rec.Version {
			return nil
		}
		if err != nil {
			return err
		}
		ready, err := tx.List(v.readyOf(rec.ID, 1))
		if err != nil {
			return err
		}
		if next = &idle; len(ready.Records) > 0 {
			next = &busy
		}
		tx.Put(next)
		return nil
	})
	if err == nil {
		v.workDue(next)
	}
	return wrapped(err)
}

// attemptAll makes one attempt of each of some deliveries, those of a token one after
// the other. gone is whether the webhook wants no more.
func (v *Vault) attemptAll(ctx context.Context, w *Webhook, q *queue, ready []*store.Record, turn time.Time) (gone bool, err error) {
	byToken := map[uuid.UUID][]*store.Record{}
	plans := map[uuid.UUID]*delivery{}
	var tokens []uuid.UUID
	var damaged error
	for _, r := range ready {
		plain, err := v.openShown(ctx, r)
		var d *delivery
		if err == nil {
			d, err = decodeDelivery(plain)
		}
		if errors.Is(err, ErrDamaged) {
			damaged = err
			continue
		}
		if err != nil {
			return false, err
		}
		if plans[r.ID] = d; byToken[d.token] == nil {
			tokens = append(tokens, d.token)
		}
		byToken[d.token] = append(byToken[d.token], r)
	}
	var mu sync.Mutex
	var errs []error
	var group sync.WaitGroup
	free := make(chan struct{}, sendWorkers)
	for _, token := range tokens {
		free <- struct{}{}
		group.Go(func() {
			defer func() { <-free }()
			for _, r := range byToken[token] {
				if time.Since(turn) >= sendTurn {
					return
				}
				out, err := v.attempt(ctx, w, r, plans[r.ID])
				mu.Lock()
				if err != nil {
					errs = append(errs, err)
				}
				switch {
				case out == nil: // nothing was sent
				case out.success():
					q.failing = time.Time{}
				case q.failing.IsZero():
					q.failing = now()
				}
				gone = gone || out != nil && out.code == 410
				stop := err != nil || gone
				mu.Unlock()
				if stop {
					return
				}
			}
		})
	}
	group.Wait()
	if len(tokens) == 0 {
		errs = append(errs, damaged) // nothing but that is left
	}
	return gone, errors.Join(errs...)
}

// An outcome is what came of an attempt that was made.
type outcome struct {
	code  int // of HTTP; 0: no answer
	after time.Duration
}

func (o *outcome) success() bool { return o.code >= 200 && o.code < 300 }

// attempt sends an event and stores what came of it, unless it has to wait for
// another one. It returns no outcome if nothing was sent.
func (v *Vault) attempt(ctx context.Context, w *Webhook, r *store.Record, d *delivery) (*outcome, error) {
	head, err := v.headOf(ctx, r, d)
	if err != nil {
		return nil, err
	}
	if head != uuid.Nil {
		return nil, v.holdDelivery(ctx, r, d, head)
	}
	if w.Disabled {
		return nil, v.settleDelivery(ctx, r, d, deliveryFailed, time.Time{})
	}
	e, err := v.getRow(ctx, kindEvent, d.event)
	if errors.Is(err, ErrNotFound) {
		return nil, v.settleDelivery(ctx, r, d, 0, time.Time{}) // gone with its token
	}
	if err != nil {
		return nil, err
	}
	plain, err := v.openShown(ctx, e)
	if err != nil {
		return nil, err
	}
	o, err := decodeEvent(plain)
	if err != nil {
		return nil, err
	}
	event, err := v.describeEvent(e.ID, o)
	if err != nil {
		return nil, err
	}
	out := v.send(ctx, w, &Delivery{Event: event, ID: event.ID, CreatedAt: event.CreatedAt})
	d.attempts++
	d.last, d.code = now(), uint64(out.code)
	class, next := uint8(deliveryRetried), time.Time{}
	switch {
	case out.success():
		class = deliveryDone
	case out.code == 410, d.attempts > uint64(len(eventRetries)):
		class = deliveryFailed
	default:
		d.loose = d.loose || d.attempts >= eventHolds
		next = now().Add(max(v.pace(eventRetries[d.attempts-1]), min(out.after, maxSendRetryAfter)))
	}
	return out, v.settleDelivery(ctx, r, d, class, next)
}

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

// headOf returns the row key of the delivery that holds r back, or zero.
func (v *Vault) headOf(ctx context.Context, r *store.Record, d *delivery) (head uuid.UUID, err error) {
	if d.loose {
		return uuid.Nil, nil
	}
	err = v.view(ctx, func(tx store.ReadTx) error {
		first, err := tx.Lookup(kindDelivery, v.queueHash(r.Parent, d.token), 1)
		if err == nil && len(first) > 0 && first[0].ID != r.ID {
			head = first[0].ID
		}
		return err
	})
	return head, err
}

// holdDelivery makes r wait until head, which holds it back, is out of the way.
func (v *Vault) holdDelivery(ctx context.Context, r *store.Record, d *delivery, head uuid.UUID) error {
	next := *r
	next.Version++
	next.Class = deliveryHeld
	if err := v.sealDelivery(&next, d); err != nil {
		return err
	}
	return wrapped(v.store.Update(ctx, func(tx store.Tx) error {
		is, err := tx.Get(kindDelivery, head)
		if errors.Is(err, store.ErrNotFound) || err == nil && len(is.Lookup) == 0 {
			return nil // it is held back no longer
		}
		if err == nil {
			tx.Put(&next)
		}
		return err
	}))
}

// settleDelivery stores what became of a delivery, 0 for one that is dropped, and
// makes the one ready that it holds back no longer.
func (v *Vault) settleDelivery(ctx context.Context, r *store.Record, d *delivery, class uint8, due time.Time) error {
	next := *r
	next.Version++
	next.Class, next.Due = class, due
	if class == deliveryDone || class == deliveryFailed {
		next.Due = rowkey.Time(r.ID).Add(eventRetention)
		if at := now(); !next.Due.After(at) {
			next.Due = at.Add(time.Hour)
		}
	}
	if class != 0 {
		if err := v.sealDelivery(&next, d); err != nil {
			return err
		}
	}
	hash := v.queueHash(r.Parent, d.token)
	frees := len(r.Lookup) > 0 && (class == 0 || len(next.Lookup) == 0)
	for {
		held, woken, err := v.nextOf(ctx, hash, r.ID, frees)
		if err != nil {
			return err
		}
		err = v.store.Update(ctx, func(tx store.Tx) error {
			is, err := tx.Get(kindDelivery, r.ID)
			if errors.Is(err, store.ErrNotFound) || err == nil && is.Version != r.Version {
				return nil // gone with its webhook, or delivered anew
			}
			if err != nil {
				return err
			}
			if class == 0 {
				tx.Delete(kindDelivery, r.ID)
			} else {
				tx.Put(&next)
			}
			if !frees {
				return nil
			}
			after, err := secondOf(tx, hash, r.ID)
			if err != nil || after == nil || after.Class != deliveryHeld {
				return err
			}
			if held == nil || after.ID != held.ID || after.Version != held.Version {
				return store.ErrConflict // it was held back since
			}
			if woken != nil {
				tx.Put(woken)
			}
			return nil
		})
		if errors.Is(err, store.ErrConflict) {
			continue
		}
		if err == nil && class != 0 {
			v.workDue(&next)
		}
		return wrapped(err)
	}
}

// nextOf returns the delivery after one that no longer holds it back, and that as it
// is when it is ready; nil if there is none that waits.
func (v *Vault) nextOf(ctx context.Context, hash []byte, id uuid.UUID, frees bool) (held, woken *store.Record, err error) {
	if !frees {
		return nil, nil, nil
	}
	err = v.view(ctx, func(tx store.ReadTx) error {
		held, err = secondOf(tx, hash, id)
		return err
	})
	if err != nil || held == nil || held.Class != deliveryHeld {
		return nil, nil, err
	}
	next := *held
	next.Shown = slices.Clone(held.Shown)
	plain, err := v.openShown(ctx, &next)
	if err != nil {
		if errors.Is(err, ErrDamaged) {
			v.log.Error("the deliveries of a token to a webhook cannot go on", "error", err)
			return held, nil, nil
		}
		return nil, nil, err
	}
	next.Version++
	next.Class = deliveryReady
	return held, &next, wrapped(v.box.SealShown(&next, plain))
}

// secondOf returns the first record with a hash other than one.
func secondOf(tx store.ReadTx, hash []byte, id uuid.UUID) (*store.Record, error) {
	first, err := tx.Lookup(kindDelivery, hash, 2)
	for _, r := range first {
		if r.ID != id {
			return r, err
		}
	}
	return nil, err
}

// ListDeliveries returns one page of the deliveries to a webhook, those of the last
// seven days. opts may be nil. The error is ErrNotFound for a webhook that the account
// does not have.
func (v *Vault) ListDeliveries(ctx context.Context, webhook uuid.UUID, opts *ListOptions) (*Page[*DeliveryRecord], error) {
	w, err := v.get(ctx, kindWebhook, webhook)
	if err != nil {
		return nil, err
	}
	q, o, err := v.query(kindDelivery, opts)
	if err != nil {
		return nil, err
	}
	q.Parent, q.Live = w.ID, time.Time{}
	return page(ctx, v, q, o, v.openDelivery)
}

func (v *Vault) openDelivery(ctx context.Context, r *store.Record) (*DeliveryRecord, error) {
	plain, err := v.openShown(ctx, r)
	if err != nil {
		return nil, err
	}
	d, err := decodeDelivery(plain)
	if err != nil {
		return nil, err
	}
	e := &DeliveryRecord{
		ID:             v.mask(kindDelivery, r.ID),
		EventID:        v.mask(kindEvent, d.event),
		EventType:      d.typ,
		TokenID:        v.mask(kindToken, d.token),
		Status:         DeliveryPending,
		Attempts:       int(d.attempts),
		LastAttemptAt:  d.last,
		LastStatusCode: int(d.code),
	}
	switch r.Class {
	case deliveryDone:
		e.Status = DeliveryDelivered
	case deliveryFailed:
		e.Status = DeliveryFailed
	case deliveryRetried:
		e.NextAttemptAt = r.Due
	}
	return e, nil
}

// Redeliver delivers an event once more, under the same id, to every webhook that is
// enabled and takes events of its type, whatever became of it before. It does not
// wait for other events of its token.
//
// The error is ErrNotFound for an event that the account does not have: one of more
// than seven days ago, one whose token is gone, or that was there before any webhook.
func (v *Vault) Redeliver(ctx context.Context, event uuid.UUID) error {
	for {
		e, err := v.get(ctx, kindEvent, event)
		if err != nil {
			return err
		}
		plain, err := v.openShown(ctx, e)
		if err != nil {
			return err
		}
		o, err := decodeEvent(plain)
		if err != nil {
			return err
		}
		if !o.fanned {
			return nil // it is on its way
		}
		a, err := v.approved(ctx)
		if err != nil {
			return err
		}
		var anew []*store.Record
		wakings := map[uuid.UUID]*waking{}
		for _, w := range a.webhooks {
			if !slices.Contains(w.Events, o.typ) {
				continue
			}
			r := v.newDelivery(w.row, e.ID)
			switch was, err := v.anyRow(ctx, kindDelivery, r.ID); {
			case err == nil && was.Class != deliveryDone && was.Class != deliveryFailed && was.Class != deliveryRetried:
				continue // it is on its way
			case err == nil:
				r.Version = was.Version + 1
			case !errors.Is(err, ErrNotFound):
				return err
			}
			if err := v.sealDelivery(r, &delivery{event: e.ID, typ: o.typ, token: o.row, loose: true}); err != nil {
				return err
			}
			anew = append(anew, r)
			if wakings[w.row], err = v.waking(ctx, w.row); err != nil {
				return err
			}
		}
		err = v.write(ctx, opRedeliver, event, func(tx store.Tx) error {
			if _, err := v.find(tx, kindEvent, e.ID); err != nil {
				return err
			}
			for _, r := range anew {
				tx.Put(r)
			}
			for id, w := range wakings {
				if err := w.put(tx, id); err != nil {
					return err
				}
			}
			return nil
		})
		if errors.Is(err, store.ErrConflict) {
			continue
		}
		if err == nil {
			v.wakeQueues(wakings)
		}
		return err
	}
}

// wakeQueues tells Run of queues that were made due.
func (v *Vault) wakeQueues(wakings map[uuid.UUID]*waking) {
	for _, w := range wakings {
		v.workDue(w.by)
	}
}

// anyRow is getRow, also for what is due.
func (v *Vault) anyRow(ctx context.Context, kind store.Kind, row uuid.UUID) (r *store.Record, err error) {
	err = v.view(ctx, func(tx store.ReadTx) error {
		r, err = tx.Get(kind, row)
		if err == nil && r.Account != v.account {
			err = ErrNotFound
		}
		return err
	})
	return r, err
}
