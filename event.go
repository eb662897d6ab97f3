package cardvault

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/internal/rowkey"
	"github.com/cardvault/cardvault/internal/tlv"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// An Event tells what became of a token: the Token Master Notification of
// chapter 6 of the interface document. It holds no card number, security code
// or cryptogram.
type Event struct {
	ID        uuid.UUID // of the event; the same when it is delivered again
	CreatedAt time.Time
	Account   uuid.UUID
	Type      EventType
	Reason    EventReason
	TokenID   uuid.UUID

	// Sequence rises in the order in which the events of an account come about. It has
	// gaps.
	Sequence uint64

	// Token is the token as it was then, nil for TokenDeleted. It has no Fingerprint.
	Token *Token
}

// An EventType says what happened to a token.
type EventType uint8

const (
	TokenCreated EventType = iota + 1
	TokenUpdated
	TokenDeleted
)

// String returns the name of the decisions, chapter 13, such as "token.created".
func (t EventType) String() string {
	return [...]string{"unknown", "token.created", "token.updated", "token.deleted"}[t&3]
}

// MarshalText returns what String does.
func (t EventType) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// An EventReason says why: decisions, chapter 13.
type EventReason string

const (
	ReasonImported                  EventReason = "imported"
	ReasonTokenized                 EventReason = "tokenized"
	ReasonNetworkTokenStatusChanged EventReason = "network_token_status_changed"
	ReasonCardUpdated               EventReason = "card_updated"
	ReasonInvalidated               EventReason = "invalidated"
	ReasonPatched                   EventReason = "patched"
	ReasonSecurityCodeRefreshed     EventReason = "security_code_refreshed"
	ReasonRequested                 EventReason = "requested"
	ReasonExpired                   EventReason = "expired"
)

// An EventSink receives the events of all accounts, from [Vault.Run] and
// [Vault.Drain].
type EventSink interface {
	// Event takes an event, which it may keep. It has 15 seconds, the deadline of
	// ctx, and is called concurrently for several tokens.
	//
	// Every event arrives at least once: also again, with the same ID, when Event
	// has returned an error, panicked or taken too long, or the process has died.
	// After failures the pauses are 5 s, 5 min, 30 min, 2, 5, 10, 14, 20 and 24 h,
	// in sandbox mode 5 s at most; an event that has failed ten times is dropped,
	// with an error in the log.
	//
	// The events of a token arrive in their order, one by one. One that has failed
	// three times no longer holds back the later ones. When a token is deleted, all
	// of its events that have not arrived are dropped but that of the deletion. That
	// waits for one that is under way in this process; one that another process is
	// passing just then may still return after it.
	//
	// What was stored and has not arrived waits while no vault with a sink works on
	// the store.
	Event(ctx context.Context, e *Event) error
}

const eventTimeout = 15 * time.Second

// Classes of the events of a token. That of a deletion has none: the token, of
// which the others are children, is gone.
const (
	eventOrdered   = iota + 1 // waits for all before it, and holds back those after it
	eventUnordered            // has failed too often to hold back others
)

// An outEvent is what the record of an event holds. Id and time of creation are
// the row key's. It is due when it is to be passed on, and never while an earlier
// one of its token holds it back: that wakes it.
type outEvent struct {
	typ    EventType
	reason EventReason
	row    uuid.UUID // of the token
	token  []byte    // what Token.encode wrote; empty for TokenDeleted
	tries  uint64    // that failed
}

const (
	eventType = iota + 1
	eventReason
	eventRow
	eventToken
	eventTries
)

func (e *outEvent) encode(b []byte) []byte {
	b = tlv.AppendUint(b, eventType, uint64(e.typ))
	b = tlv.Append(b, eventReason, e.reason)
	b = tlv.Append(b, eventRow, e.row[:])
	b = tlv.Append(b, eventToken, e.token)
	return tlv.Pad(tlv.AppendUint(b, eventTries, e.tries), 64, 0)
}

func decodeEvent(plain []byte) (*outEvent, error) {
	e := new(outEvent)
	r := tlv.Read(plain)
	for r.Next() {
		switch r.Tag {
		case eventType:
			e.typ = EventType(r.Uint())
		case eventReason:
			e.reason = EventReason(r.Value)
		case eventRow:
			copy(e.row[:], r.Value)
		case eventToken:
			e.token = r.Value
		case eventTries:
			e.tries = r.Uint()
		}
	}
	return e, ledger.ReadError(&r)
}

// An outbox is an event of a token as it is written with what it tells: a record for
// the sink, which goes with the token, and a delivery for each webhook. If nobody listens
// there is none.
//
// Deliveries hold nothing of the token: what they tell is its record, as long as it stays
// as it was then, and a child of it once it has changed. So it costs nothing when a token
// is created, and is gone with the token.
type outbox struct {
	vault   *Vault // of the account
	heard   *listeners
	records []*store.Record
	queues  wakings
}

// errStale is returned by the put of an outbox that was made for other webhooks, or
// for queues that have come to rest since: it has to be made again.
var errStale = fmt.Errorf("%w: others listen to events", store.ErrConflict)

// newEvent returns the outbox of an event of a token, and notes in t that it is told: the
// token is sealed afterwards, as the next version of card, so that the next event comes
// after this one whatever clock it is made by. For one that is deleted t is nil; of card,
// the row key will do. Of any other, card was opened.
func (v *Vault) newEvent(ctx context.Context, card *store.Record, t *Token, typ EventType, reason EventReason) (*outbox, error) {
	heard, err := v.webhooks(ctx)
	if err != nil {
		return nil, err
	}
	o := &outbox{vault: v, heard: heard}
	if t != nil && t.toldVersion > 0 && t.toldVersion == card.Version && !heard.none {
		if err := o.keepPast(card, t); err != nil {
			return nil, err
		}
	}
	hooks := heard.of[typ]
	if v.opts.Events == nil && len(hooks) == 0 {
		return o, nil
	}
	id, err := v.rows.NewRow()
	if err != nil {
		return nil, err
	}
	if typ == TokenDeleted {
		if t, err = v.lastState(ctx, card); err != nil {
			return nil, err
		}
	}
	id = rowkey.After(id, t.lastEvent)
	t.lastEvent = id
	if v.opts.Events != nil {
		r, err := v.sinkEvent(id, card, t, typ, reason)
		if err != nil {
			return nil, err
		}
		o.records = append(o.records, r)
	}
	if len(hooks) == 0 {
		return o, nil
	}
	t.toldVersion = card.Version + 1
	for _, hook := range hooks {
		d := v.newDelivery(hook, id)
		if err := v.sealDelivery(d, &delivery{typ: typ, reason: reason, token: card.ID, class: deliveryReady}); err != nil {
			return nil, err
		}
		o.records = append(o.records, d)
	}
	o.queues, err = v.wakingsOf(ctx, hooks...)
	return o, err
}

// sinkEvent returns the record of an event for the sink.
func (v *Vault) sinkEvent(id uuid.UUID, card *store.Record, t *Token, typ EventType, reason EventReason) (*store.Record, error) {
	e := &outEvent{typ: typ, reason: reason, row: card.ID}
	r := &store.Record{Kind: kindEvent, ID: id, Account: v.rows.ID, Version: 1, Due: now()}
	buf := plaintexts.Get().(*[]byte)
	defer wipe(buf)
	*buf = (*buf)[:0]
	if typ != TokenDeleted {
		r.Parent, r.Class = card.ID, eventOrdered
		*buf = t.encode(*buf)
		e.token = *buf
	}
	plain := e.encode((*buf)[len(*buf):]) // behind the token, in what is wiped
	*buf = (*buf)[:min(cap(*buf), len(*buf)+len(plain))]
	return r, v.rows.SealShown(r, plain)
}

// keepPast adds the state of a token that deliveries tell, before it changes: card as it
// was opened.
func (o *outbox) keepPast(card *store.Record, t *Token) error {
	r := o.vault.rows.NewRecord(kindPast, t.lastEvent)
	r.Parent, r.Due = card.ID, rowkey.Time(t.lastEvent).Add(pastRetention)
	if err := o.vault.rows.SealSecret(r, card.Shown); err != nil {
		return err
	}
	o.records = append(o.records, r)
	return nil
}

// lastState returns the token of a record that is deleted, an empty one if it cannot be
// read: that keeps nobody from deleting it.
func (v *Vault) lastState(ctx context.Context, card *store.Record) (*Token, error) {
	c := *card
	c.Shown = slices.Clone(card.Shown)
	t, err := v.openToken(ctx, &c)
	if errors.Is(err, ErrDamaged) {
		return new(Token), nil
	}
	return t, err
}

// put writes the event. It returns errStale if the webhooks of the account have
// changed: whoever has registered one misses nothing from then on.
func (o *outbox) put(tx store.Tx) error {
	a, err := tx.Get(kindAccount, o.heard.account)
	if err != nil {
		return err
	}
	if a.Version != o.heard.version {
		o.vault.listening.forget(o.vault.rows.ID)
		return errStale
	}
	for _, r := range o.records {
		if r.Kind == kindPast {
			// Somebody who has put back the token's former record may have left one.
			switch _, err := tx.Get(kindPast, r.ID); {
			case err == nil:
				continue
			case !errors.Is(err, store.ErrNotFound):
				return err
			}
		}
		tx.Put(r)
	}
	return o.queues.put(tx, o.vault)
}

// written tells Run of an event that was stored.
func (o *outbox) written() {
	o.vault.workDue(o.records...)
	o.queues.written(o.vault)
}

// reasonOf says what has changed of a token.
func reasonOf(was, is *Token) EventReason {
	switch {
	case was.Status != is.Status:
		return ReasonInvalidated
	case was.NetworkTokenStatus != is.NetworkTokenStatus,
		was.NetworkTokenStatusReason != is.NetworkTokenStatusReason:
		return ReasonNetworkTokenStatusChanged
	}
	return ReasonCardUpdated
}

// ordered selects the first event of a token, from a row key on, that holds back
// others.
func (v *Vault) ordered(token, from uuid.UUID) *store.Query {
	q := &store.Query{Kind: kindEvent, Account: v.rows.ID, Parent: token, Min: from, Limit: 1}
	q.Classes.Add(eventOrdered)
	return q
}

// heldBy returns the row key of the event that holds r back, or zero.
func (v *Vault) heldBy(ctx context.Context, r *store.Record) (uuid.UUID, error) {
	if r.Class != eventOrdered {
		return uuid.Nil, nil
	}
	list, err := v.rows.Siblings(ctx, v.ordered(r.Parent, uuid.Nil))
	if err != nil || len(list.Records) == 0 || list.Records[0].ID == r.ID {
		return uuid.Nil, err
	}
	return list.Records[0].ID, nil
}

// event returns an event without its token.
func (v *Vault) event(row uuid.UUID, typ EventType, reason EventReason, token uuid.UUID) *Event {
	return &Event{
		ID:        v.rows.Mask(kindEvent, row),
		CreatedAt: rowkey.Time(row),
		Account:   v.rows.ID,
		Type:      typ,
		Reason:    reason,
		Sequence:  rowkey.Sequence(row),
		TokenID:   v.rows.Mask(kindToken, token),
	}
}

// tell passes an event that was claimed to the sink and stores what came of it.
func (v *Vault) tell(ctx context.Context, rec *store.Record, plain []byte) error {
	o, err := decodeEvent(plain)
	if err != nil {
		return err
	}
	e := v.event(rec.ID, o.typ, o.reason, o.row)
	if o.typ != TokenDeleted {
		if e.Token, err = v.decodeToken(o.row, o.token); err != nil {
			return err
		}
		e.Token.Fingerprint = Fingerprint{}
	}
	// The event of a deletion waits for what is under way, and what has not begun
	// by then is gone with the token.
	waits, cancel := context.WithDeadline(ctx, rec.Due.Add(-eventTimeout))
	over := v.work.telling.take(waits, o.row)
	cancel()
	if over == nil {
		return nil // the lease ends: it comes again then
	}
	defer over()
	err = v.rows.View(ctx, func(tx store.ReadTx) error {
		r, err := tx.Get(kindEvent, rec.ID)
		if err != nil {
			return err
		}
		return v.rows.Belongs(tx, r)
	})
	switch {
	case errors.Is(err, ErrNotFound):
		return nil // nor is it told later: it goes with its token
	case err != nil:
		return err
	case time.Until(rec.Due) < eventTimeout:
		return nil // the lease might end first: it comes again then
	}
	err = v.callSink(ctx, e)
	if err == nil {
		return v.settle(ctx, rec, nil)
	}
	o.tries++
	log := v.log.With("event", e.ID, "type", e.Type, "token", e.TokenID, "tries", o.tries, "error", printable(err))
	if o.tries > uint64(len(eventRetries)) {
		log.Error("event is dropped: the sink has failed too often")
		return v.settle(ctx, rec, nil)
	}
	log.Warn("event could not be passed on")
	next := *rec
	next.Version++
	next.Due = now().Add(v.pace(eventRetries[o.tries-1]))
	if next.Class == eventOrdered && o.tries >= eventHolds {
		next.Class = eventUnordered
	}
	failed := o.encode(nil)
	err = v.rows.SealShown(&next, failed)
	clear(failed)
	if err != nil {
		return err
	}
	return v.settle(ctx, rec, &next)
}

var errSinkPanic = errors.New("cardvault: event sink panicked")

// callSink calls the sink with a deadline.
func (c *core) callSink(ctx context.Context, e *Event) (err error) {
	ctx, cancel := context.WithTimeout(ctx, eventTimeout)
	defer cancel()
	defer func() {
		if recover() != nil { // the value may hold anything
			c.log.Error("event sink panicked", "stack", string(debug.Stack()))
			err = errSinkPanic
		}
	}()
	return c.opts.Events.Event(ctx, e)
}

// settle replaces the record of an event that was claimed by another, or deletes
// it if that is nil, and wakes the event that it holds back no longer.
func (v *Vault) settle(ctx context.Context, rec, by *store.Record) error {
	frees := rec.Class == eventOrdered && (by == nil || by.Class != eventOrdered)
	after := v.ordered(rec.Parent, rowkey.Above(rec.ID))
	for {
		var held, woken *store.Record
		if frees {
			list, err := v.rows.Siblings(ctx, after)
			if err != nil {
				return err
			}
			if len(list.Records) > 0 && list.Records[0].Due.IsZero() {
				held = list.Records[0]
				if woken, err = v.wake(ctx, *held); err != nil {
					return err
				}
			}
		}
		err := v.rows.Update(ctx, opStep, func(tx store.Tx) error {
			if ok, err := ledger.Same(tx, rec); err != nil || !ok {
				return err // gone with its token, or taken over
			}
			if by == nil {
				tx.Delete(kindEvent, rec.ID)
			} else {
				tx.Put(by)
			}
			if !frees {
				return nil
			}
			list, err := tx.List(after)
			if err != nil || len(list.Records) == 0 || !list.Records[0].Due.IsZero() {
				return err
			}
			if next := list.Records[0]; held == nil || next.ID != held.ID || next.Version != held.Version {
				return store.ErrConflict // it was held back since
			}
			if woken != nil {
				tx.Put(woken)
			}
			return nil
		})
		if errors.Is(err, store.ErrConflict) {
			continue // somebody else was faster, so there is progress
		}
		if err == nil {
			v.workDue(by, woken)
		}
		return err
	}
}

// wake returns an event that was held back as it is due now, or nil if it cannot
// be read: then it, and those after it, never are.
func (v *Vault) wake(ctx context.Context, r store.Record) (*store.Record, error) {
	r.Shown = bytes.Clone(r.Shown)
	plain, err := v.rows.OpenShown(ctx, &r)
	if errors.Is(err, ErrDamaged) {
		v.log.Error("the events of a token cannot be passed on", "token", v.rows.Mask(kindToken, r.Parent), "error", err)
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	r.Version++
	r.Due = now()
	return &r, v.rows.SealShown(&r, plain)
}

// turns are taken by what must not be done twice at a time for one token.
// The zero value is ready.
type turns struct {
	mu    sync.Mutex
	taken map[uuid.UUID]chan struct{} // closed when the turn is over
}

// take waits for a turn and returns what ends it, nil if ctx ends before.
func (t *turns) take(ctx context.Context, row uuid.UUID) (over func()) {
	for {
		t.mu.Lock()
		before := t.taken[row]
		if before == nil {
			break
		}
		t.mu.Unlock()
		select {
		case <-before:
		case <-ctx.Done():
			return nil
		}
	}
	defer t.mu.Unlock()
	if t.taken == nil {
		t.taken = map[uuid.UUID]chan struct{}{}
	}
	ended := make(chan struct{})
	t.taken[row] = ended
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.taken, row)
		close(ended)
	}
}
