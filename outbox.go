package cardvault

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/cardvault/cardvault/internal/leak"
	"github.com/cardvault/cardvault/internal/outbox"
	"github.com/cardvault/cardvault/internal/replay"
	"github.com/cardvault/cardvault/receive"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// sendTimeout bounds one attempt to send an event.
const sendTimeout = outbox.SendTimeout

// errStale is returned by the Put of a parcel that has to be packed again.
var errStale = outbox.ErrStale

// newOutbox returns the outbox of the vault.
func (v *Vault) newOutbox() *outbox.Outbox {
	c := outbox.Config{
		Ledger:      v.ledger,
		Log:         v.log,
		Source:      outboxSource{v.core},
		Webhooks:    v.opts.Webhooks != nil,
		MaxWebhooks: MaxWebhooks,
		Claim:       v.claimOfAccount,
		Pace:        v.pace,
		TypeName:    func(typ uint8) string { return string(eventType(uint64(typ))) },
	}

	if v.opts.Events != nil {
		c.Sink = &outbox.Receiver{
			Types: outbox.Any,
			Message: func(ctx context.Context, d *outbox.Delivery, token, past *store.Record) (func(context.Context) *outbox.Reply, error) {
				e, err := v.In(d.Account).eventOf(ctx, d, token, past)
				return func(ctx context.Context) *outbox.Reply { return v.pass(ctx, e) }, err
			},
		}
	}
	return outbox.New(c)
}

// An outboxSource answers what the outbox asks of the vault.
type outboxSource struct{ *core }

// in returns a handle on an account, whatever its state.
func (s outboxSource) in(account uuid.UUID) *Vault { return s.of(account) }

// Receivers returns the webhooks of an account.
func (s outboxSource) Receivers(ctx context.Context, account uuid.UUID) (*outbox.Receivers, error) {
	v := s.in(account)
	r, err := v.whole().rows.Get(ctx, kindAccount, account)
	if err != nil {
		return nil, err
	}
	all, err := v.rows.List(ctx, &store.Query{Kind: kindWebhook, Account: account, Limit: MaxWebhooks})
	if all == nil {
		return nil, err
	}

	to := &outbox.Receivers{Account: r.ID, Version: r.Version, None: len(all.Records) == 0}
	for _, r := range all.Records {
		w, err := v.listedWebhook(ctx, r)
		if errors.Is(err, ErrDamaged) {
			// It keeps no token from being changed, and has missed nothing when it is put
			// back: events that it does not take are sorted out then.
			w, err = &Webhook{row: r.ID, Events: allEvents}, nil
		}
		if err != nil {
			return nil, err
		}
		if w.Disabled {
			continue
		}
		for _, typ := range w.Events {
			n := typeNumber(typ)
			to.Of[n] = append(to.Of[n], w.row)
		}
	}
	return to, nil
}

// Webhook returns the receiver of the record of a webhook.
func (s outboxSource) Webhook(ctx context.Context, r *store.Record) (*outbox.Receiver, error) {
	v := s.in(r.Account)
	if err := v.rows.Usable(ctx); err != nil { // the shift had begun before
		return nil, err
	}
	w, err := v.openWebhook(ctx, r)
	if err != nil {
		return nil, err
	}

	to := &outbox.Receiver{
		Version:  w.version,
		Since:    w.since,
		Disabled: w.Disabled,
		Message: func(ctx context.Context, d *outbox.Delivery, token, past *store.Record) (func(context.Context) *outbox.Reply, error) {
			e, err := v.eventOf(ctx, d, token, past)
			if err != nil {
				return nil, err
			}
			return func(ctx context.Context) *outbox.Reply {
				return v.send(ctx, w, &Delivery{Event: e, ID: e.ID, CreatedAt: e.CreatedAt})
			}, nil
		},
		Disable: func(ctx context.Context, why string) error { return v.disable(ctx, w, why) },
	}
	for _, typ := range w.Events {
		to.Types.Add(typeNumber(typ))
	}
	return to, nil
}

// LastEvent returns the row key of the last event of a token, zero for a record that cannot
// be read: that keeps no token from being deleted.
func (s outboxSource) LastEvent(ctx context.Context, token *store.Record) (uuid.UUID, error) {
	c := *token
	c.Shown = slices.Clone(token.Shown)
	t, err := s.in(token.Account).openToken(ctx, &c)
	switch {
	case errors.Is(err, ErrDamaged):
		return uuid.Nil, nil
	case err != nil:
		return uuid.Nil, err
	}
	return t.lastEvent, nil
}

// newEvent returns the parcel of an event of a token, and notes the event in t: the token
// is sealed afterwards, as the next version of card, so that the next event comes after
// this one whatever clock it is made by. For the event of a deletion t is nil, and of card
// the row key will do. For any other event, card was opened.
func (v *Vault) newEvent(ctx context.Context, card *store.Record, t *Token, typ receive.EventType, reason receive.EventReason) (*outbox.Parcel, error) {
	c := &outbox.Change{Account: v.rows.ID, Token: card, Type: typeNumber(typ), Reason: string(reason)}
	if t != nil {
		c.Last, c.Told = t.lastEvent, t.toldVersion
	}
	if typ == receive.TokenUpdated {
		if at := now(); at.After(t.UpdatedAt) { // whatever clock it was changed by
			t.UpdatedAt = at
		}
	}
	p, err := v.outbox.Pack(ctx, c)
	if err == nil && t != nil && p.Event != uuid.Nil {
		t.lastEvent, t.toldVersion = p.Event, card.Version+1
	}
	return p, err
}

// eventOf returns the event of a delivery. card is the record of its token, and past the
// state of the token at the event if it has changed since; each may be nil.
func (v *Vault) eventOf(ctx context.Context, d *outbox.Delivery, card, past *store.Record) (*Event, error) {
	e := v.event(d.Event, eventType(uint64(d.Type)), receive.EventReason(d.Reason), d.Token)
	if e.Type == receive.TokenDeleted {
		return e, nil
	}

	if past != nil {
		plain, err := v.rows.OpenSecret(ctx, past)
		if err != nil {
			return nil, err
		}
		t, err := v.decodeToken(d.Token, v.rows.Mask(kindToken, d.Token), plain)
		if err != nil {
			return nil, err
		}
		e.shows(t)
		return e, nil
	}

	t, err := v.openToken(ctx, card)
	if err != nil {
		return nil, err
	}
	if t.lastEvent != d.Event || t.toldVersion != card.Version {
		return nil, fmt.Errorf("%w: the state of a token at an event is missing", ErrDamaged)
	}
	e.shows(t)
	return e, nil
}

// send makes one attempt with a deadline.
func (v *Vault) send(ctx context.Context, w *Webhook, d *Delivery) *outbox.Reply {
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
		return &outbox.Reply{Began: began}
	}
	return &outbox.Reply{Began: began, Code: got.StatusCode, After: got.RetryAfter}
}

// pass makes one attempt to pass an event to the sink. Its reply has no status of its own.
func (v *Vault) pass(ctx context.Context, e *Event) *outbox.Reply {
	a := &outbox.Reply{Began: now()}
	ctx, cancel := context.WithTimeout(ctx, sendTimeout)
	defer cancel()
	err := v.guard("event sink", func() error { return v.opts.Events.Event(ctx, e) })
	if err != nil {
		v.log.Warn("event could not be passed on", "event", e.ID, "type", e.Type, "token", e.TokenID, "error", leak.Printable(err))
		return a
	}
	a.Code = 200
	return a
}

// disable disables a webhook, unless its URL or state has changed since an attempt.
func (v *Vault) disable(ctx context.Context, w *Webhook, why string) error {
	_, err := v.editWebhook(ctx, replay.Request{Operation: opUpdateWebhook, Object: w.ID}, func(is *Webhook) error {
		if is.Disabled || is.URL != w.URL || !is.since.Equal(w.since) {
			return errChanged
		}
		is.Disabled, is.DisabledReason = true, DisabledReason(why)
		return nil
	})
	switch {
	case err == nil:
		v.log.Warn("webhook is disabled", "webhook", w.ID, "reason", why)
	case errors.Is(err, errChanged), errors.Is(err, ErrNotFound):
		return nil
	}
	return err
}

var errChanged = errors.New("cardvault: webhook has changed")
