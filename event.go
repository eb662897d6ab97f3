package cardvault

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cardvault/cardvault/internal/rowkey"
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
	// Every event arrives at least once. It arrives again, with the same ID, when Event
	// has returned an error, panicked or taken too long, or the process has died.
	// After failures the pauses are 5 s, 5 min, 30 min, 2, 5, 10, 14, 20 and 24 h,
	// in sandbox mode 5 s at most. An event that has failed ten times is dropped,
	// with an error in the log.
	//
	// The events of a token arrive in their order, one by one. An event that has failed
	// three times no longer holds back the later ones. Deleting a token drops its
	// undelivered events, except the event of the deletion. That event waits for a call
	// in progress in this process. A call in progress in another process may still return
	// after it.
	//
	// Undelivered events stay stored until a vault with a sink runs on the store. One
	// process at a time passes them on. If it dies, all wait until its lease ends, about
	// a minute.
	Event(ctx context.Context, e *Event) error
}

// An outbox holds the records that are written with an event of a token: a delivery for
// each webhook, and for the sink. If there is neither it holds none.
//
// Deliveries hold nothing of the token. The state of the token at the event is its record,
// as long as that stays as it was then, and a child of the token once it has changed. So
// it costs nothing when a token is created, and is gone with the token.
type outbox struct {
	vault   *Vault // of the account
	heard   *listeners
	records []*store.Record
	queues  wakings
}

// errStale is returned by the put of an outbox that was made for other webhooks, or
// for queues that have come to rest since: it has to be made again.
var errStale = fmt.Errorf("%w: others listen to events", store.ErrConflict)

// newEvent returns the outbox of an event of a token, and notes the event in t: the token
// is sealed afterwards, as the next version of card, so that the next event comes after
// this one whatever clock it is made by. For the event of a deletion t is nil, and of card
// the row key will do. For any other event, card was opened.
func (v *Vault) newEvent(ctx context.Context, card *store.Record, t *Token, typ EventType, reason EventReason) (*outbox, error) {
	heard, err := v.webhooks(ctx)
	if err != nil {
		return nil, err
	}
	o := &outbox{vault: v, heard: heard}
	if t != nil && t.toldVersion > 0 && t.toldVersion == card.Version {
		if err := o.keepPast(ctx, card, t); err != nil {
			return nil, err
		}
	}

	receivers := heard.of[typ]
	if v.opts.Events != nil {
		receivers = append(slices.Clip(receivers), sinkRow)
	}
	if len(receivers) == 0 {
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
	t.lastEvent, t.toldVersion = id, card.Version+1

	for _, receiver := range receivers {
		r := v.newDelivery(receiver, id)
		d := &delivery{typ: typ, reason: reason, account: v.rows.ID, token: card.ID, class: deliveryReady}
		if err := v.sealDelivery(r, d); err != nil {
			return nil, err
		}
		o.records = append(o.records, r)
	}
	o.queues, err = v.wakingsOf(ctx, receivers...)
	return o, err
}

// keepPast adds the state of a token that deliveries contain, before it changes: card as it
// was opened. Webhooks have deliveries in their log, the sink only until it has taken them.
func (o *outbox) keepPast(ctx context.Context, card *store.Record, t *Token) error {
	if o.heard.none {
		waits := false
		err := o.vault.rows.View(ctx, func(tx store.ReadTx) error {
			r, err := present(tx, kindDelivery, rowkey.Beside(t.lastEvent, sinkRow))
			waits = r != nil
			return err
		})
		if err != nil || !waits {
			return err
		}
	}

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
	o.vault.jobs.Due(o.records...)
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
