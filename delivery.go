package cardvault

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/cardvault/cardvault/internal/jobs"
	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/internal/replay"
	"github.com/cardvault/cardvault/internal/rowkey"
	"github.com/cardvault/cardvault/internal/tlv"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// A DeliveryRecord is an entry of the log of a webhook. It holds neither the event nor
// the answer.
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

// deliveryRetention is how long a delivery that has ended stays in the log, and can be
// made again.
const deliveryRetention = 7 * 24 * time.Hour

// pastRetention is the delay until a former state of a token is first checked for
// deliveries that still contain it: most have left the log by then.
const pastRetention = deliveryRetention + 24*time.Hour

const (
	deliveryType = iota + 1
	deliveryToken
	deliveryAttempts
	deliveryTries
	deliveryLast
	deliveryCode
	deliveryUnordered
	deliveryReason
	deliveryThrottled
	deliveryAccount // if the record is of the whole vault
)

// encode returns what a record of an account, or of the whole vault, holds of d.
func (d *delivery) encode(account uuid.UUID) []byte {
	b := tlv.AppendUint(make([]byte, 0, 64), deliveryType, uint64(d.typ))
	b = tlv.Append(b, deliveryToken, d.token[:])
	b = tlv.AppendUint(b, deliveryAttempts, d.attempts)
	b = tlv.AppendUint(b, deliveryTries, d.tries)
	b = tlv.AppendTime(b, deliveryLast, d.last)
	b = tlv.AppendUint(b, deliveryCode, d.code)
	b = tlv.AppendBool(b, deliveryUnordered, d.unordered)
	b = tlv.AppendUint(b, deliveryThrottled, d.throttled)
	if account == uuid.Nil {
		b = tlv.Append(b, deliveryAccount, d.account[:])
	}
	return tlv.Pad(tlv.Append(b, deliveryReason, d.reason), 32, 0)
}

func decodeDelivery(plain []byte) (*delivery, error) {
	d := new(delivery)
	r := tlv.Read(plain)
	for r.Next() {
		switch r.Tag {
		case deliveryType:
			d.typ = EventType(r.Uint())
		case deliveryToken:
			copy(d.token[:], r.Value)
		case deliveryAttempts:
			d.attempts = r.Uint()
		case deliveryTries:
			d.tries = r.Uint()
		case deliveryLast:
			d.last = r.Time()
		case deliveryCode:
			d.code = r.Uint()
		case deliveryUnordered:
			d.unordered = r.Bool()
		case deliveryReason:
			d.reason = EventReason(r.Value)
		case deliveryThrottled:
			d.throttled = r.Uint()
		case deliveryAccount:
			copy(d.account[:], r.Value)
		}
	}
	return d, ledger.ReadError(&r)
}

// A pending delivery is a record of one with what it holds.
type pending struct {
	rec *store.Record
	delivery
	hash []byte // of shift.orderedHash, once that was asked for
}

func (v *Vault) openDelivery(ctx context.Context, r *store.Record) (*pending, error) {
	plain, err := v.rows.OpenShown(ctx, r)
	if err != nil {
		return nil, err
	}
	d, err := decodeDelivery(plain)
	if err != nil {
		return nil, v.rows.Named(r, err)
	}
	d.class, d.due = r.Class, r.Due
	if r.Account != uuid.Nil {
		d.account = r.Account
	}
	return &pending{rec: r, delivery: *d}, nil
}

// eventOf returns the row key of the event of a delivery.
func eventOf(r *store.Record) uuid.UUID { return rowkey.Beside(r.ID, beside(r.Parent)) }

// eventOfDelivery returns the event of a delivery. card is the record of its token, and
// past the state of the token at the event if it has changed since; each may be nil.
func (v *Vault) eventOfDelivery(ctx context.Context, p *pending, card, past *store.Record) (*Event, error) {
	v = v.In(p.account)
	id := eventOf(p.rec)
	e := v.event(id, p.typ, p.reason, p.token)
	if p.typ == TokenDeleted {
		return e, nil
	}

	if past != nil {
		plain, err := v.rows.OpenSecret(ctx, past)
		if err != nil {
			return nil, err
		}
		if e.Token, err = v.decodeToken(p.token, plain); err != nil {
			return nil, err
		}
		e.Token.Fingerprint = Fingerprint{}
		return e, nil
	}

	t, err := v.openToken(ctx, card)
	if err != nil {
		return nil, err
	}
	if t.lastEvent != id || t.toldVersion != card.Version {
		return nil, fmt.Errorf("%w: the state of a token at an event is missing", ErrDamaged)
	}
	t.Fingerprint = Fingerprint{}
	e.Token = t
	return e, nil
}

// sealDelivery sets every column that follows from a delivery. One that is ready at
// once is not found by its token: those are listed in their order, and most deliveries
// cost no entry of a random key.
func (v *Vault) sealDelivery(r *store.Record, d *delivery) error {
	r.Class, r.Due = d.class, d.due
	r.Lookup = nil
	if d.class < deliveryDone && (d.class != deliveryReady || d.attempts > 0) {
		r.Lookup = [][]byte{v.tokenHash(r.Account, r.Parent, d.token, d.unordered)}
	}

	return v.rows.SealShown(r, d.encode(r.Account))
}

// tokenHash returns the hash of those deliveries of a token, in the queue with a row key,
// that have failed or wait for one that has: of those that hold back later ones, or of
// those that are unordered.
func (v *Vault) tokenHash(account, row, token uuid.UUID, unordered bool) []byte {
	purpose := "deliveries"
	if unordered {
		purpose = "loose deliveries"
	}
	return v.rows.Box.Lookup(account, purpose, append(row[:], token[:]...))
}

// newDelivery returns the record of an event for a webhook or the sink, which has always the
// same row key: one event makes one delivery, whatever is repeated.
func (v *Vault) newDelivery(receiver, event uuid.UUID) *store.Record {
	r := v.rows.NewRecord(kindDelivery, rowkey.Beside(event, receiver))
	r.Parent = beside(receiver)
	if receiver == sinkRow {
		r.Account = uuid.Nil
	}
	return r
}

// A queue is due when something is to be sent to a webhook, or to the sink. The process that has claimed
// it sends, alone.
type queue struct {
	failing time.Time // of the first failure since the last success; zero: none
	failed  time.Time // when an attempt last failed
	pause   time.Time // end of the pause that the webhook has asked for, if it is due then
	pauses  uint64    // in a row for which the webhook did not say how long
}

const (
	queueFailing = iota + 1
	queuePause
	queueFailed
	queuePauses
)

func (q *queue) encode() []byte {
	b := tlv.AppendTime(nil, queueFailing, q.failing)
	b = tlv.AppendTime(b, queuePause, q.pause)
	b = tlv.AppendTime(b, queueFailed, q.failed)
	return tlv.Pad(tlv.AppendUint(b, queuePauses, q.pauses), 32, 0)
}

func decodeQueue(plain []byte) (*queue, error) {
	q := new(queue)
	r := tlv.Read(plain)
	for r.Next() {
		switch r.Tag {
		case queueFailing:
			q.failing = r.Time()
		case queuePause:
			q.pause = r.Time()
		case queueFailed:
			q.failed = r.Time()
		case queuePauses:
			q.pauses = r.Uint()
		}
	}
	return q, ledger.ReadError(&r)
}

// openQueue is openShown for a queue. A damaged queue is made whole: only the record of
// failures of its webhook is lost.
func (c *core) openQueue(ctx context.Context, r *store.Record) ([]byte, error) {
	plain, err := c.ledger.OpenShown(ctx, r)
	if errors.Is(err, ErrDamaged) {
		return []byte{}, nil
	}
	return plain, err
}

// beside returns the row key of the queue of a webhook, and that of the webhook of a
// queue. They differ so that deliveries do not go with the webhook, all at once.
func beside(row uuid.UUID) uuid.UUID {
	row[15] ^= 1
	return row
}

// A waking makes a queue due that is given a delivery.
type waking struct {
	queue uuid.UUID
	by    *store.Record // the queue as it is due; nil: it is so already, or gone
}

type wakings []waking

// wakingsOf returns the wakings of the queues of webhooks, or of the sink. It does not read a queue of
// which a shift of this process is under way: it is due until the shift has ended. A queue
// that is missing, though its webhook is there, is made anew.
func (v *Vault) wakingsOf(ctx context.Context, webhooks ...uuid.UUID) (wakings, error) {
	w, resting := make(wakings, len(webhooks)), false
	for i, row := range webhooks {
		w[i].queue = beside(row)
		_, busy := v.shifts.Load(w[i].queue)
		resting = resting || !busy
	}
	if !resting {
		return w, nil
	}
	return w, w.read(ctx, v)
}

func (w wakings) read(ctx context.Context, v *Vault) error {
	err := v.rows.View(ctx, func(tx store.ReadTx) error {
		for i, q := range w {
			w[i].by = nil
			if _, busy := v.shifts.Load(q.queue); busy {
				continue
			}
			r, err := queueAt(tx, q.queue)
			if err != nil {
				return err
			}
			if r != nil && !engaged(r) {
				w[i].by = r
			}
		}
		return nil
	})
	if err != nil {
		return err
	}

	for _, q := range w {
		if q.by == nil {
			continue
		}
		plain := []byte{}
		if q.by.Version > 0 {
			if plain, err = v.openQueue(ctx, q.by); err != nil {
				return err
			}
		}
		q.by.Version++
		q.by.Due = now()
		if err := v.rows.SealShown(q.by, plain); err != nil {
			return err
		}
	}
	return nil
}

// engaged reports whether a queue is due or being worked on. No shift and no pause is as
// long as farthest: a queue that is due later has an edited time, or one by a clock that was
// far ahead.
func engaged(r *store.Record) bool {
	const farthest = maxSendPause + time.Hour
	return !r.Due.IsZero() && time.Until(r.Due) < farthest
}

// queueAt returns a queue, one without a version if it is missing, or nil if its webhook
// is gone. It returns nil too if the store cannot read the queue of the sink, which every
// import passes: events are stored all the same, and Run reports the damage.
func queueAt(tx store.ReadTx, id uuid.UUID) (*store.Record, error) {
	r, err := tx.Get(queueKind(id), id)
	if id == sinkQueue && unreadable(err) {
		return nil, nil
	}
	if !errors.Is(err, store.ErrNotFound) {
		return r, err
	}
	if id == sinkQueue {
		return &store.Record{Kind: kindSinkQueue, ID: id}, nil
	}
	hook, err := tx.Get(kindWebhook, beside(id))
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return &store.Record{Kind: kindQueue, ID: id, Account: hook.Account}, nil
}

// put makes the queues due in a transaction that adds to them. It returns errStale if
// they have to be read again.
func (w wakings) put(tx store.Tx, v *Vault) error {
	for _, q := range w {
		is, err := queueAt(tx, q.queue)
		switch {
		case err != nil:
			return err
		case is == nil || engaged(is): // whoever works on it looks again before it rests
		case q.by == nil || q.by.Version != is.Version+1:
			v.shifts.Delete(q.queue)
			return errStale
		default:
			tx.Put(q.by)
		}
	}
	return nil
}

// written tells Run, and the shifts that are under way, of queues that were given something.
func (w wakings) written(v *Vault) {
	for _, q := range w {
		v.jobs.Due(q.by)
		if known, ok := v.shifts.Load(q.queue); ok {
			n := known.(*inflow)
			n.stored.Add(1)
			select {
			case n.more <- struct{}{}:
			default:
			}
		}
	}
}

// ripen makes deliveries ready whose pause is over, erases those whose time in the log is
// over, and returns how many it has changed.
func (v *Vault) ripen(ctx context.Context) (wrote int, err error) {
	var ready, over []*store.Record
	receivers := map[uuid.UUID]bool{} // of ready
	damaged := v.jobs.ReadDue(ctx, kindDelivery, now(), jobs.Batch, func(r *store.Record) error {
		next, err := v.In(r.Account).ripened(ctx, r)
		switch {
		case err != nil:
			return err
		case next == nil:
			over = append(over, r)
		default:
			ready, receivers[beside(r.Parent)] = append(ready, next), true
		}
		return nil
	})
	if len(ready)+len(over) == 0 {
		return 0, damaged
	}

	wrote, err = v.writeRipe(ctx, ready, over)
	if unreadable(err) { // one receiver's queue does not hold up the others
		wrote, err = v.writeRipe(ctx, nil, over)
		for row := range receivers {
			theirs := slices.DeleteFunc(slices.Clone(ready), func(r *store.Record) bool { return beside(r.Parent) != row })
			n, failed := v.writeRipe(ctx, theirs, nil)
			wrote, err = wrote+n, errors.Join(err, failed)
		}
	}
	return wrote, errors.Join(damaged, err)
}

// writeRipe stores deliveries that are ready again, wakes their queues, and erases those
// whose time in the log is over. It returns how many records it wrote; one more try is a
// record.
func (v *Vault) writeRipe(ctx context.Context, ready, over []*store.Record) (wrote int, err error) {
	receivers := map[uuid.UUID]bool{}
	for _, r := range ready {
		receivers[beside(r.Parent)] = true
	}
	queues, err := v.wakingsOf(ctx, slices.Collect(maps.Keys(receivers))...)
	if err != nil {
		return 0, err
	}
	err = v.whole().rows.Update(ctx, opStep, func(tx store.Tx) error {
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
				tx.Delete(kindDelivery, r.ID)
				wrote++
			}
		}
		return queues.put(tx, v)
	})

	if errors.Is(err, errStale) {
		return 1, nil // once more
	}
	if err != nil {
		return 0, err
	}
	queues.written(v)
	return wrote, nil
}

// unreadable reports whether err says that stored data is damaged, as the vault or as its
// store says it.
func unreadable(err error) bool {
	return errors.Is(err, ErrDamaged) || errors.Is(err, store.ErrDamaged)
}

// ripened returns a delivery that is due as it is ready, or nil if its time in the log is
// over.
func (v *Vault) ripened(ctx context.Context, r *store.Record) (*store.Record, error) {
	p, err := v.openDelivery(ctx, r)
	if errors.Is(err, ErrDamaged) {
		alone := new(recordSet)
		alone.add(r)
		if _, err := v.releaseFirst(ctx, alone, r.Lookup...); err != nil {
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
		return nil, fmt.Errorf("%w: a delivery of class %d is due", ErrDamaged, r.Class)
	}
	r.Version++
	return r, v.sealDelivery(r, &next)
}

// ListDeliveries returns one page of the deliveries to a webhook: those under way, and
// those that ended in the last seven days, except deliveries of which the token was
// deleted first. The times of opts are those of the events. opts may be nil. The error is
// ErrNotFound for a webhook that the account does not have. If deliveries are damaged, the
// page comes with an error: see [Page]. The text of the error also names their events, which
// Redeliver makes whole.
func (v *Vault) ListDeliveries(ctx context.Context, webhook uuid.UUID, opts *ListOptions) (_ *Page[*DeliveryRecord], err error) {
	defer doing("list deliveries", &err)
	w, err := v.rows.Get(ctx, kindWebhook, webhook)
	if err != nil {
		return nil, err
	}
	q, o, err := v.query(kindDelivery, opts)
	if err != nil {
		return nil, err
	}
	q.Parent, q.Live = beside(w.ID), time.Time{}
	return page(ctx, v, q, o, v.describeDelivery)
}

func (v *Vault) describeDelivery(ctx context.Context, r *store.Record) (*DeliveryRecord, error) {
	id, event := v.rows.Mask(kindDelivery, r.ID), v.rows.Mask(kindEvent, eventOf(r))
	d, err := v.openDelivery(ctx, r)
	if err != nil {
		return nil, fmt.Errorf("event %v: %w", event, err) // that can be delivered once more
	}

	e := &DeliveryRecord{
		ID:             id,
		EventID:        event,
		EventType:      d.typ,
		TokenID:        v.rows.Mask(kindToken, d.token),
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
// enabled and takes events of its type, also if it was delivered before. It does not
// wait for other events of its token. The ten attempts begin anew; the log goes on
// counting them.
//
// Errors: ErrNotFound for an event that the account does not have, that is no longer in
// the log of a webhook, or of which the token is gone; ErrNoWebhook;
// ErrIdempotencyKeyReused.
func (v *Vault) Redeliver(ctx context.Context, event uuid.UUID) (err error) {
	defer doing("redeliver event", &err)
	row := v.rows.Unmask(kindEvent, event)
	if row == uuid.Nil {
		return ErrNotFound
	}
	for fresh := false; ; {
		once, answer, err := v.once(ctx, opRedeliver, event, func() []byte { return nil })
		if err != nil || answer != nil {
			return err
		}
		made, err := v.deliveriesOf(ctx, row)
		if err != nil {
			return err
		}
		of, d, err := v.anyOf(ctx, made)
		if err != nil {
			return err
		}

		// An answer for want of webhooks writes nothing, and so compares no version of them:
		// they are read again.
		heard, err := v.webhooks(ctx)
		if err != nil {
			return err
		}
		if len(heard.of[d.typ&3]) == 0 {
			if fresh {
				return ErrNoWebhook
			}
			fresh = true
			v.listening.forget(v.rows.ID)
			continue
		}

		o, err := v.redelivery(ctx, row, heard, made, d)
		if err != nil {
			return err
		}
		if once != nil {
			parent := d.token
			if d.typ == TokenDeleted { // it is gone, and this event is not
				parent = uuid.Nil
			}
			if err := once.Seal(nil, parent); err != nil {
				return err
			}
		}

		err = v.rows.Write(ctx, opRedeliver, event, func(tx store.Tx) error {
			if d.typ != TokenDeleted {
				if _, err := v.rows.Find(tx, kindToken, d.token); err != nil {
					return err
				}
			}
			// While one delivery is there, so is the state of the token at the event.
			switch _, err := tx.Get(kindDelivery, of.ID); {
			case errors.Is(err, store.ErrNotFound):
				return store.ErrConflict
			case err != nil:
				return err
			}
			return cmp.Or(once.Put(tx), o.put(tx))
		})
		if errors.Is(err, replay.ErrRepeated) || errors.Is(err, store.ErrConflict) {
			continue
		}
		if err == nil {
			o.written()
		}
		return err
	}
}

// redelivery returns the outbox of an event that is delivered again, to the webhooks that
// take events of its type. made are its present deliveries, by webhook.
func (v *Vault) redelivery(ctx context.Context, event uuid.UUID, heard *listeners, made map[uuid.UUID]*store.Record, of *delivery) (*outbox, error) {
	o := &outbox{vault: v, heard: heard}
	hooks := heard.of[of.typ&3]
	for _, hook := range hooks {
		r, err := v.anew(ctx, hook, event, made[hook], of)
		if err != nil {
			return nil, err
		}
		if r != nil {
			o.records = append(o.records, r)
		}
	}

	queues, err := v.wakingsOf(ctx, hooks...)
	o.queues = queues
	return o, err
}

// deliveriesOf returns the deliveries of an event, by the row keys of their webhooks.
func (v *Vault) deliveriesOf(ctx context.Context, event uuid.UUID) (map[uuid.UUID]*store.Record, error) {
	hooks, err := v.allWebhooks(ctx)
	if err != nil {
		return nil, err
	}

	made := map[uuid.UUID]*store.Record{}
	err = v.rows.View(ctx, func(tx store.ReadTx) error {
		clear(made)
		for _, w := range hooks {
			r, err := tx.Get(kindDelivery, rowkey.Beside(event, w.ID))
			if err == nil {
				err = v.rows.Belongs(tx, r)
			}
			if errors.Is(err, store.ErrNotFound) || errors.Is(err, ErrNotFound) {
				continue
			}
			if err != nil {
				return err
			}
			made[w.ID] = r
		}
		return nil
	})
	return made, err
}

// anyOf returns a delivery of those of one event, and what they have in common: type,
// reason and token.
func (v *Vault) anyOf(ctx context.Context, made map[uuid.UUID]*store.Record) (of *store.Record, d *delivery, err error) {
	err = ErrNotFound
	for _, r := range made {
		copied := *r
		copied.Shown = slices.Clone(r.Shown)
		var p *pending
		if p, err = v.openDelivery(ctx, &copied); err == nil {
			return r, &p.delivery, nil
		}
		if !errors.Is(err, ErrDamaged) {
			break
		}
	}
	return nil, nil, err
}

// anew returns the delivery of an event to a webhook as it begins again, or nil if it
// is to be attempted anyway. was is the present delivery, nil if there is none.
func (v *Vault) anew(ctx context.Context, webhook, event uuid.UUID, was *store.Record, of *delivery) (*store.Record, error) {
	r := v.newDelivery(webhook, event)
	d := delivery{typ: of.typ, reason: of.reason, token: of.token, class: deliveryFailed}

	if was != nil {
		r.Version = was.Version + 1
		p, err := v.openDelivery(ctx, was)
		switch {
		case errors.Is(err, ErrDamaged):
			// It becomes whole, whatever its class. The attempt has later ones find it.
			d.class, d.attempts = max(was.Class, deliveryRetried), 1
		case err != nil:
			return nil, err
		default:
			d = p.delivery
		}
	}

	next, ok := d.after(redelivered, nil, schedule{})
	if !ok {
		return nil, nil
	}
	return r, v.sealDelivery(r, &next)
}

// erasePast erases states of tokens that no delivery contains any more, and returns how
// many records it has changed.
func (v *Vault) erasePast(ctx context.Context) (wrote int, err error) {
	var due []*store.Record
	damaged := v.jobs.ReadDue(ctx, kindPast, now(), jobs.Batch, func(r *store.Record) error {
		plain, err := v.rows.CopySecret(ctx, r)
		clear(plain)
		if err == nil {
			due = append(due, r)
		}
		return err
	})
	if len(due) == 0 {
		return 0, damaged
	}

	err = v.whole().rows.Update(ctx, opStep, func(tx store.Tx) error {
		wrote = 0
		for _, r := range due {
			if ok, err := ledger.Same(tx, r); err != nil {
				return err
			} else if !ok {
				continue
			}

			wrote++
			needed, err := delivers(tx, r.Account, r.ID)
			switch {
			case err != nil:
				return err
			case !needed:
				tx.Delete(kindPast, r.ID)
			default:
				later := *r // only the part is sealed that binds no time
				later.Version++
				later.Due = now().Add(pastRetention)
				tx.Put(&later)
			}
		}
		return nil
	})
	return wrote, errors.Join(damaged, err)
}

// delivers reports whether there is a delivery of an event.
func delivers(tx store.ReadTx, account, event uuid.UUID) (bool, error) {
	if r, err := present(tx, kindDelivery, rowkey.Beside(event, sinkRow)); r != nil || err != nil {
		return r != nil, err
	}
	hooks, err := tx.List(&store.Query{Kind: kindWebhook, Account: account, Limit: MaxWebhooks})
	if err != nil {
		return false, err
	}
	for _, w := range hooks.Records {
		r, err := present(tx, kindDelivery, rowkey.Beside(event, w.ID))
		if r != nil || err != nil {
			return r != nil, err
		}
	}
	return false, nil
}
