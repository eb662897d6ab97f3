package vaultsuite

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/receive"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

var webhookBehaviours = []behaviour{
	{"Webhooks", webhooks},
	{"WebhookRules", webhookRules},
	{"WebhookRaces", webhookRaces},
	{"Deliveries", deliveries},
	{"DeliveriesUnheard", deliveriesUnheard},
	{"DeliveriesRefused", deliveriesRefused},
	{"DeliveriesOfADeletedToken", deliveriesOfADeletedToken},
	{"DeliveriesOfTwoVaults", deliveriesOfTwoVaults},
	{"DeliveriesOfADeletedWebhook", deliveriesOfADeletedWebhook},
	{"DeliveriesDamaged", deliveriesDamaged},
	{"Redelivered", redelivered},
	{"WebhookSecretsRevoked", webhookSecretsRevoked},
}

// A mailbox is a Sender that keeps its deliveries, and rejects deliveries by refuse.
type mailbox struct {
	mu      sync.Mutex
	refuse  func(*cardvault.Delivery) bool
	taken   []*cardvault.Delivery
	refused []*cardvault.Delivery
}

func (*mailbox) Check(t *cardvault.Target) error {
	if !strings.HasPrefix(t.URL, "https://") {
		return errors.New("must be an https URL")
	}
	return nil
}

func (m *mailbox) Send(_ context.Context, d *cardvault.Delivery) (*cardvault.SendResult, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.refuse != nil && m.refuse(d) {
		m.refused = append(m.refused, d)
		return &cardvault.SendResult{StatusCode: 500}, nil
	}
	m.taken = append(m.taken, d)
	return &cardvault.SendResult{StatusCode: 200}, nil
}

// set changes which deliveries are refused and returns those refused until now.
func (m *mailbox) set(refuse func(*cardvault.Delivery) bool) []*cardvault.Delivery {
	m.mu.Lock()
	defer m.mu.Unlock()
	refused := m.refused
	m.refuse, m.refused = refuse, nil
	return refused
}

// at returns the events that were taken for a URL.
func (m *mailbox) at(url string) (events []*cardvault.Event) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, d := range m.taken {
		if d.URL == url {
			events = append(events, d.Event)
		}
	}
	return events
}

const receiver = "https://receiver.example/" + canary

// sending returns a sandbox on s whose events are delivered by m.
func sending(t testing.TB, s store.Store, m *mailbox) *cardvault.Vault {
	t.Helper()
	return vaultOn(t, s, &cardvault.Options{Mode: cardvault.Sandbox, Webhooks: m})
}

// newHook registers a webhook.
func newHook(t testing.TB, v *cardvault.Vault, url string, events ...receive.EventType) *cardvault.Webhook {
	t.Helper()
	w, err := v.CreateWebhook(t.Context(), url, &cardvault.WebhookOptions{Events: events})
	noError(t, err)
	return w
}

// sameWebhook checks that two webhooks show the same.
func sameWebhook(t testing.TB, what string, got, want *cardvault.Webhook) {
	t.Helper()
	if got.ID != want.ID || !got.CreatedAt.Equal(want.CreatedAt) || got.URL != want.URL || got.Description != want.Description ||
		!slices.Equal(got.Events, want.Events) || got.LegacyHMAC != want.LegacyHMAC ||
		got.Disabled != want.Disabled || got.DisabledReason != want.DisabledReason {
		t.Errorf("%s: webhook\n got %+v\nwant %+v", what, got, want)
	}
}

func webhooks(t *testing.T, s store.Store) {
	spy := &watched{Store: s}
	v, ctx := sending(t, spy, new(mailbox)), t.Context()
	all := []receive.EventType{receive.TokenCreated, receive.TokenUpdated, receive.TokenDeleted}

	plain, err := v.CreateWebhook(ctx, receiver, nil)
	noError(t, err)
	plain.Secret.Expose(func(text []byte) {
		for _, r := range spy.last() {
			if bytes.Contains(slices.Concat(r.Shown, r.Secret), text[len("whsec_"):]) {
				t.Error("a signing secret is stored in clear")
			}
		}
	})

	if plain.ID.Version() != 4 || plain.URL != receiver || plain.Description != "" || !slices.Equal(plain.Events, all) ||
		plain.LegacyHMAC || plain.Disabled || plain.DisabledReason != "" || time.Since(plain.CreatedAt) > time.Minute {
		t.Errorf("a new webhook: %+v", plain)
	}

	full, err := v.CreateWebhook(ctx, receiver+"2", &cardvault.WebhookOptions{
		Events:      []receive.EventType{receive.TokenDeleted, receive.TokenCreated, receive.TokenDeleted},
		Description: canary + "description", LegacyHMAC: true,
	})
	noError(t, err)
	if full.Description != canary+"description" || !full.LegacyHMAC || !slices.Equal(full.Events, []receive.EventType{receive.TokenCreated, receive.TokenDeleted}) {
		t.Errorf("a webhook with options: %+v", full)
	}

	for _, v := range []*cardvault.Vault{v, sending(t, s, new(mailbox))} {
		for _, w := range []*cardvault.Webhook{plain, full} {
			sameWebhook(t, "read", must(v.Webhook(ctx, w.ID))(t), w)
		}
		page := must(v.ListWebhooks(ctx, &cardvault.ListOptions{Limit: 1, Page: 2}))(t)
		if page.TotalItems != 2 || page.TotalPages != 2 || len(page.Items) != 1 {
			t.Fatalf("page %+v", page)
		}
		sameWebhook(t, "the oldest, listed last", page.Items[0], plain)
	}

	webhookUpdates(t, v, full.ID)

	sameWebhook(t, "another", must(v.Webhook(ctx, plain.ID))(t), plain)
	must(v.RotateWebhookSecret(ctx, plain.ID, nil))(t)
	sameWebhook(t, "a new secret", must(v.Webhook(ctx, plain.ID))(t), plain)

	noError(t, v.DeleteWebhook(ctx, full.ID))
	_, err = v.Webhook(ctx, full.ID)
	fails(t, "a deleted webhook", err, cardvault.ErrNotFound)
	fails(t, "deleting it again", v.DeleteWebhook(ctx, full.ID), cardvault.ErrNotFound)
	if page := must(v.ListWebhooks(ctx, nil))(t); page.TotalItems != 1 {
		t.Errorf("%d webhooks are listed, want 1", page.TotalItems)
	}
}

func webhookUpdates(t *testing.T, v *cardvault.Vault, id uuid.UUID) {
	ctx, all := t.Context(), []receive.EventType{receive.TokenCreated, receive.TokenUpdated, receive.TokenDeleted}
	text := func(s string) *string { return &s }
	on, off := true, false

	for what, test := range map[string]struct {
		update cardvault.WebhookUpdate
		change func(*cardvault.Webhook)
	}{
		"nothing":     {cardvault.WebhookUpdate{}, func(*cardvault.Webhook) {}},
		"the URL":     {cardvault.WebhookUpdate{URL: text(receiver + "3")}, func(w *cardvault.Webhook) { w.URL = receiver + "3" }},
		"the text":    {cardvault.WebhookUpdate{Description: text(canary)}, func(w *cardvault.Webhook) { w.Description = canary }},
		"no text":     {cardvault.WebhookUpdate{Description: text("")}, func(w *cardvault.Webhook) { w.Description = "" }},
		"the events":  {cardvault.WebhookUpdate{Events: all[1:2]}, func(w *cardvault.Webhook) { w.Events = all[1:2] }},
		"all events":  {cardvault.WebhookUpdate{Events: []receive.EventType{}}, func(w *cardvault.Webhook) { w.Events = all }},
		"no legacy":   {cardvault.WebhookUpdate{LegacyHMAC: &off}, func(w *cardvault.Webhook) { w.LegacyHMAC = false }},
		"legacy":      {cardvault.WebhookUpdate{LegacyHMAC: &on}, func(w *cardvault.Webhook) { w.LegacyHMAC = true }},
		"disabled":    {cardvault.WebhookUpdate{Disabled: &on}, func(w *cardvault.Webhook) { w.Disabled, w.DisabledReason = true, "requested" }},
		"enabled":     {cardvault.WebhookUpdate{Disabled: &off}, func(w *cardvault.Webhook) { w.Disabled, w.DisabledReason = false, "" }},
		"two of them": {cardvault.WebhookUpdate{URL: text(receiver), Disabled: &on}, func(w *cardvault.Webhook) { w.URL, w.Disabled, w.DisabledReason = receiver, true, "requested" }},
	} {
		want := *must(v.Webhook(ctx, id))(t)
		test.change(&want)
		sameWebhook(t, what, must(v.UpdateWebhook(ctx, id, test.update))(t), &want)
		sameWebhook(t, what+", read", must(v.Webhook(ctx, id))(t), &want)
	}
}

func webhookRules(t *testing.T, s store.Store) {
	v, ctx := sending(t, s, new(mailbox)), t.Context()
	create := func(url string, o cardvault.WebhookOptions) error {
		_, err := v.CreateWebhook(ctx, url, &o)
		return err
	}

	refuses(t, "no URL", create("", cardvault.WebhookOptions{}), "URL required")
	refuses(t, "a URL that the sender refuses", create("http://receiver.example/", cardvault.WebhookOptions{}), "URL invalid_format")
	refuses(t, "a long URL", create("https://"+longText(2041), cardvault.WebhookOptions{}), "URL too_long")
	refuses(t, "a long description", create(receiver, cardvault.WebhookOptions{Description: longText(256)}), "Description too_long")
	refuses(t, "an unknown event", create(receiver, cardvault.WebhookOptions{Events: []receive.EventType{"token.moved"}}), "Events invalid_enum")
	refuses(t, "the zero event", create(receiver, cardvault.WebhookOptions{Events: []receive.EventType{""}}), "Events invalid_enum")
	refuses(t, "everything", create("ftp:", cardvault.WebhookOptions{Description: longText(256), Events: []receive.EventType{receive.WebhookTest}}),
		"URL invalid_format", "Description too_long", "Events invalid_enum")

	noError(t, create(receiver, cardvault.WebhookOptions{Description: longText(255)}))
	w := must(v.ListWebhooks(ctx, nil))(t).Items[0]
	empty := ""
	got, err := v.UpdateWebhook(ctx, w.ID, cardvault.WebhookUpdate{URL: &empty, Events: []receive.EventType{"x"}})
	refuses(t, "an update", err, "URL required", "Events invalid_enum")
	if got != nil {
		t.Error("a refused update returns a webhook")
	}

	sameWebhook(t, "after a refused update", must(v.Webhook(ctx, w.ID))(t), w)
}

// webhookRaces puts calls in the way of others.
func webhookRaces(t *testing.T, s store.Store) {
	m := &meddler{Store: s}
	var mail mailbox
	v, ctx := sending(t, m, &mail), t.Context()
	w := newHook(t, v, receiver)
	text, on := canary, true
	m.meddle = func() { must(v.UpdateWebhook(ctx, w.ID, cardvault.WebhookUpdate{Description: &text}))(t) }
	if got := must(v.UpdateWebhook(ctx, w.ID, cardvault.WebhookUpdate{LegacyHMAC: &on}))(t); got.Description != canary || !got.LegacyHMAC {
		t.Error("UpdateWebhook while another field is updated: one of them is lost")
	}

	var first receive.WebhookSecret
	m.meddle = func() { first = must(v.RotateWebhookSecret(ctx, w.ID, nil))(t).Secret }
	second := must(v.RotateWebhookSecret(ctx, w.ID, nil))(t)
	importCard(t, v, testCard(1), nil)
	noError(t, v.Drain(ctx))
	var want, got []string
	keep := func(to *[]string) func([]byte) { return func(b []byte) { *to = append(*to, string(b)) } }
	first.Expose(keep(&want))
	second.Secret.Expose(keep(&want))
	for _, s := range mail.taken[0].Secrets {
		s.Expose(keep(&got))
	}

	if len(got) != 3 || !slices.Equal(got[1:], want) { // the first reports the creation
		t.Error("RotateWebhookSecret while another call does: one of them does not sign")
	}

	m.meddle = func() {
		must(v.UpdateAccount(ctx, cardvault.AccountUpdate{ImportApproved: new(true), NetworkTokensActive: new(false)}))(t)
	}
	must(v.RotateWebhookSecret(ctx, w.ID, nil))(t)
	if a := must(v.Account(ctx))(t); !a.ImportApproved || a.NetworkTokensActive {
		t.Errorf("UpdateAccount while a webhook is changed: %+v", a)
	}

	m.meddle = func() { noError(t, v.DeleteWebhook(ctx, w.ID)) }
	_, err := v.UpdateWebhook(ctx, w.ID, cardvault.WebhookUpdate{LegacyHMAC: &on})
	fails(t, "UpdateWebhook while it is deleted", err, cardvault.ErrNotFound)
	w = newHook(t, v, receiver)
	m.meddle = func() { noError(t, v.DeleteWebhook(ctx, w.ID)) }
	fails(t, "DeleteWebhook while it is deleted", v.DeleteWebhook(ctx, w.ID), cardvault.ErrNotFound)

	m.meddle = func() { newHook(t, v, receiver+"late") }
	token := importCard(t, v, testCard(2), nil)
	noError(t, v.Drain(ctx))
	checkArrived(t, "an import while a webhook is registered", mail.at(receiver+"late"),
		eventLine(token, receive.TokenCreated, receive.ReasonImported))
}

func deliveries(t *testing.T, s store.Store) {
	var mail mailbox
	v, ctx := sending(t, s, &mail), t.Context()
	account := must(v.CreateAccount(ctx, canary, nil))(t)
	all, some := newHook(t, v, receiver+"all"), newHook(t, v, receiver+"some", receive.TokenDeleted)
	newHook(t, v.In(account.ID), receiver+"theirs")

	c := testCard(1)
	c.Name = holder(canary)
	imported := importCard(t, v, c, &cardvault.ImportOptions{BusinessKey: canary})
	patched := rename(t, v, imported, "a")
	theirs := importCard(t, v.In(account.ID), testCard(2), nil)
	if len(mail.taken) != 0 {
		t.Error("events are delivered before there is background work")
	}

	noError(t, v.Drain(ctx))
	got := mail.at(all.URL)
	checkArrived(t, "all events", got,
		eventLine(imported, receive.TokenCreated, receive.ReasonImported),
		eventLine(imported, receive.TokenUpdated, receive.ReasonPatched))

	sameTold(t, "the token as it was then", got[0].Token, imported)
	sameTold(t, "the token as it is", got[1].Token, patched)
	if got[0].Sequence >= got[1].Sequence || got[1].Sequence >= 1<<53 || got[0].ID == got[1].ID {
		t.Errorf("events %+v, %+v", got[0], got[1])
	}

	checkArrived(t, "only deletion events", mail.at(some.URL))
	checkArrived(t, "another account", mail.at(receiver+"theirs"), eventLine(theirs, receive.TokenCreated, receive.ReasonImported))
	if e := mail.at(receiver + "theirs")[0]; e.Account != account.ID {
		t.Error("an event of another account than the token's")
	}

	noError(t, v.Delete(ctx, imported.ID))
	noError(t, v.Drain(ctx))
	gone := eventLine(imported, receive.TokenDeleted, receive.ReasonRequested)
	checkArrived(t, "a deletion", mail.at(all.URL)[2:], gone)
	checkArrived(t, "a deletion, at the other webhook", mail.at(some.URL), gone)
	if mail.at(all.URL)[2].ID != mail.at(some.URL)[0].ID {
		t.Error("one event has two ids")
	}

	for _, d := range mail.taken {
		if d.ID != d.Event.ID || !d.CreatedAt.Equal(d.Event.CreatedAt) || len(d.Secrets) != 1 || d.Legacy {
			t.Errorf("delivery %+v", d)
		}
	}

	deliveryLog(t, v, &mail, all.ID, some.ID)

	_, err := v.In(account.ID).ListDeliveries(ctx, all.ID, nil)
	fails(t, "the log of a webhook of another account", err, cardvault.ErrNotFound)
	if n := everything(t, s, time.Now().Add(24*time.Hour)); n != 0 {
		t.Errorf("%d records are due, although everything was delivered", n)
	}
}

// deliveryLog checks the log after all events, of two webhooks.
func deliveryLog(t *testing.T, v *cardvault.Vault, mail *mailbox, all, some uuid.UUID) {
	ctx := t.Context()
	events := mail.at(receiver + "all")
	page := must(v.ListDeliveries(ctx, all, &cardvault.ListOptions{Limit: 2, Ascending: true}))(t)
	if page.TotalItems != 3 || len(page.Items) != 2 {
		t.Fatalf("page %+v", page)
	}

	for i, d := range page.Items {
		e := events[i]
		if d.EventID != e.ID || d.EventType != e.Type || d.TokenID != e.TokenID || d.Status != cardvault.DeliveryDelivered || d.Attempts != 1 ||
			d.LastStatusCode != 200 || d.LastAttemptAt.Before(e.CreatedAt) || !d.NextAttemptAt.IsZero() || d.ID.Version() != 4 || d.ID == page.Items[1-i].ID {
			t.Errorf("entry %d of the log: %+v", i, d)
		}
	}

	from := must(v.ListDeliveries(ctx, all, &cardvault.ListOptions{From: events[1].CreatedAt}))(t)
	if from.TotalItems != 2 {
		t.Errorf("%d entries from the second event on, want 2", from.TotalItems)
	}
	if n := must(v.ListDeliveries(ctx, some, nil))(t).TotalItems; n != 1 {
		t.Errorf("%d entries in the log of the other webhook, want 1", n)
	}
}

// deliveriesUnheard: nothing is stored without a receiver, and stored deliveries wait for a
// vault that can send.
func deliveriesUnheard(t *testing.T, s store.Store) {
	spy, ctx := &watched{Store: s}, t.Context()
	var mail mailbox
	v, silent := sending(t, spy, &mail), vaultOn(t, spy, nil)
	stores := func(what string, want int) {
		t.Helper()
		if n := len(spy.last()); n != want {
			t.Errorf("%s puts %d records, want %d", what, n, want)
		}
	}

	importCard(t, v, testCard(1), nil)
	stores("an import without webhooks", 1)
	w := newHook(t, v, receiver, receive.TokenDeleted)
	token := importCard(t, v, testCard(2), nil)
	stores("an import without a webhook for its event", 1)
	on := true
	must(v.UpdateWebhook(ctx, w.ID, cardvault.WebhookUpdate{Events: []receive.EventType{}}))(t)
	must(v.UpdateWebhook(ctx, w.ID, cardvault.WebhookUpdate{Disabled: &on}))(t)
	rename(t, v, token, "a")
	stores("an update while the webhook is disabled", 1)

	on = false
	must(v.UpdateWebhook(ctx, w.ID, cardvault.WebhookUpdate{Disabled: &on}))(t)
	rename(t, silent, token, "b")
	stores("an update in a vault without a sender", 3) // token, delivery, queue
	rename(t, silent, token, "c")
	stores("another update", 3) // token, the state of the first delivery, delivery
	_, err := silent.CreateWebhook(ctx, receiver, nil)
	fails(t, "registering in a vault without a sender", err, cardvault.ErrNotEnabled)
	noError(t, silent.Drain(ctx))
	if len(mail.taken) != 0 {
		t.Error("a vault without a sender has sent")
	}

	noError(t, v.Drain(ctx))
	checkArrived(t, "a vault with a sender", mail.at(receiver),
		eventLine(token, receive.TokenUpdated, receive.ReasonPatched), eventLine(token, receive.TokenUpdated, receive.ReasonPatched))
	if wrote := spy.wrote(func() { noError(t, v.Drain(ctx)) }); wrote != 0 {
		t.Errorf("with nothing to do Drain wrote %d times", wrote)
	}
}

// deliveriesRefused: a webhook that fails receives the same event again, and the events of
// a token in their order, while other tokens do not wait.
func deliveriesRefused(t *testing.T, s store.Store) {
	var mail mailbox
	v, ctx := sending(t, s, &mail), t.Context()
	w := newHook(t, v, receiver)
	token, other := importCard(t, v, testCard(1), nil), importCard(t, v, testCard(2), nil)
	rename(t, v, token, "a")
	failures := 2 // the third would let the later events pass

	mail.set(func(d *cardvault.Delivery) bool {
		if d.Event.TokenID != token.ID || failures == 0 {
			return false
		}
		failures--
		return true
	})

	noError(t, v.Drain(ctx))
	checkArrived(t, "another token", mail.at(receiver), eventLine(other, receive.TokenCreated, receive.ReasonImported))
	log := must(v.ListDeliveries(ctx, w.ID, &cardvault.ListOptions{Ascending: true}))(t).Items
	if d := log[0]; d.Status != cardvault.DeliveryPending || d.Attempts == 0 || d.LastStatusCode != 500 || d.NextAttemptAt.Before(d.LastAttemptAt) {
		t.Errorf("a failed delivery: %+v", d)
	}
	if d := log[2]; d.Status != cardvault.DeliveryPending || d.Attempts != 0 || !d.LastAttemptAt.IsZero() || !d.NextAttemptAt.IsZero() {
		t.Errorf("a delivery that waits for it: %+v", d)
	}

	rename(t, v, token, "b")
	poll, patience := time.NewTicker(20*time.Millisecond), time.After(5*time.Minute)
	defer poll.Stop()
	for len(mail.at(receiver)) < 4 {
		select {
		case <-poll.C:
			noError(t, v.Drain(ctx))
		case <-patience:
			t.Fatal("the event is not sent again")
		}
	}

	refused, got := mail.set(nil), mail.at(receiver)[1:]
	checkArrived(t, "a webhook that works again", got,
		eventLine(token, receive.TokenCreated, receive.ReasonImported),
		eventLine(token, receive.TokenUpdated, receive.ReasonPatched),
		eventLine(token, receive.TokenUpdated, receive.ReasonPatched))

	for _, d := range refused {
		if d.ID != got[0].ID || !d.CreatedAt.Equal(got[0].CreatedAt) {
			t.Error("an event changes when it is sent again, or later ones do not wait")
		}
	}

	if got[1].Token.BusinessKey != canary+"a" || got[2].Token.BusinessKey != canary+"b" {
		t.Error("the events of a token are out of order")
	}
}

func deliveriesOfADeletedToken(t *testing.T, s store.Store) {
	var mail mailbox
	v, ctx := sending(t, s, &mail), t.Context()
	w := newHook(t, v, receiver)
	mail.set(func(*cardvault.Delivery) bool { return true })
	token := importCard(t, v, testCard(1), nil)
	rename(t, v, token, "a")
	noError(t, v.Drain(ctx)) // one waits for its next attempt, the other for the first
	rename(t, v, token, "b")
	mail.set(nil)
	noError(t, v.Delete(ctx, token.ID))
	passed(t, time.Now().Add(60*time.Millisecond)) // a hundredth of 5 seconds, up to a fifth longer
	noError(t, v.Drain(ctx))
	checkArrived(t, "after the deletion", mail.at(receiver), eventLine(token, receive.TokenDeleted, receive.ReasonRequested))
	if n := must(v.ListDeliveries(ctx, w.ID, nil))(t).TotalItems; n != 1 {
		t.Errorf("%d entries in the log, want only the deletion", n)
	}
}

// deliveriesOfTwoVaults: if two vaults work on one store at the same time, one sends an
// event, and the order holds.
func deliveriesOfTwoVaults(t *testing.T, s store.Store) {
	var mail mailbox
	vaults := []*cardvault.Vault{sending(t, s, &mail), sending(t, s, &mail)}
	newHook(t, vaults[0], receiver)
	inOrder(t, vaults, func() []*cardvault.Event { return mail.at(receiver) })
}

// deliveriesOfADeletedWebhook: they are erased, and those to others stay.
func deliveriesOfADeletedWebhook(t *testing.T, s store.Store) {
	spy := &watched{Store: s}
	var mail mailbox
	v, ctx := sending(t, spy, &mail), t.Context()
	first, second := newHook(t, v, receiver+"1"), newHook(t, v, receiver+"2", receive.TokenCreated)
	var put []*store.Record // stored records of events
	for i := range 3 {
		token := importCard(t, v, testCard(i), nil)
		put = append(put, spy.last()[1:]...)
		rename(t, v, token, "a")
		put = append(put, spy.last()[1:]...)
	}

	kinds := map[store.Kind]int{}
	left := func() (n int) {
		noError(t, s.View(ctx, func(tx store.ReadTx) error {
			n = 0
			clear(kinds)
			for _, r := range put {
				_, err := tx.Get(r.Kind, r.ID)
				if err == nil {
					n++
					kinds[r.Kind]++
				} else if !errors.Is(err, store.ErrNotFound) {
					return err
				}
			}
			return nil
		}))
		return n
	}

	noError(t, v.Drain(ctx))
	noError(t, v.DeleteWebhook(ctx, first.ID))
	noError(t, v.Drain(ctx))

	// The deliveries of the creations, their token states, and the queue are left.
	if n := left(); n != 3+3+1 {
		t.Errorf("%d records are left when one webhook is deleted, want 7: by kind %v", n, kinds)
	}
	if n := must(v.ListDeliveries(ctx, second.ID, nil))(t).TotalItems; n != 3 {
		t.Errorf("%d entries in the log of the other webhook, want 3", n)
	}

	noError(t, v.DeleteWebhook(ctx, second.ID))
	noError(t, v.Drain(ctx))

	// Only states of tokens are left, which are kept for another week.
	if n := left(); n != 3 {
		t.Errorf("%d records are left when all webhooks are deleted, want 3: by kind %v", n, kinds)
	}
}

// deliveriesDamaged: a delivery that an attacker has changed is not sent, and does not
// delay those for another token or webhook.
func deliveriesDamaged(t *testing.T, s store.Store) {
	spy := &watched{Store: s}
	var mail mailbox
	v, ctx := sending(t, spy, &mail), t.Context()
	newHook(t, v, receiver)
	importCard(t, v, testCard(0), nil)

	// The queue is due by now. So the records put are the token and its delivery, then the
	// token, the delivery's token state, and another delivery.
	changed := func(n int) (delivery, past *store.Record) {
		token := importCard(t, v, testCard(n), nil)
		delivery = spy.last()[1]
		rename(t, v, token, "new")
		return delivery, spy.last()[1]
	}

	delivery, past := changed(1)
	otherDelivery, otherPast := changed(2)
	noError(t, v.Drain(ctx))
	taken := len(mail.at(receiver))
	token := importCard(t, v, testCard(3), nil)
	noError(t, v.Drain(ctx))
	taken++

	// put makes a pending delivery of a given row.
	put := func(delivery *store.Record) {
		noError(t, s.Update(ctx, func(tx store.Tx) error {
			tx.Delete(delivery.Kind, delivery.ID)
			return nil
		}))
		noError(t, s.Update(ctx, func(tx store.Tx) error {
			tx.Put(delivery)
			return nil
		}))
	}

	check := func(what string) {
		t.Helper()
		rename(t, v, token, what)
		noError(t, v.Drain(ctx))
		checkArrived(t, what, mail.at(receiver)[taken:], eventLine(token, receive.TokenUpdated, receive.ReasonPatched))
		taken = len(mail.at(receiver))
	}

	part := &store.Record{Shown: past.Secret}
	for what, change := range shownDamage(part, &store.Record{Shown: otherPast.Secret}) {
		spoiled, sealed := past.Clone(), part.Clone()
		change(sealed)
		spoiled.Secret = sealed.Shown
		put(delivery)
		put(spoiled)
		check("a state, " + what)
	}

	put(past)
	damage := shownDamage(delivery, otherDelivery)
	damage["another class"] = func(r *store.Record) { r.Class = 4 }
	damage["a hash"] = func(r *store.Record) { r.Lookup = [][]byte{[]byte("hash")} }
	for what, change := range damage {
		spoiled := delivery.Clone()
		change(spoiled)
		put(spoiled)
		check("a delivery, " + what)
	}

	put(delivery)
	rename(t, v, token, "whole")
	noError(t, v.Drain(ctx))
	if n := len(mail.at(receiver)) - taken; n != 2 {
		t.Errorf("%d events arrive after the repair, want 2", n)
	}
}

func redelivered(t *testing.T, s store.Store) {
	var mail mailbox
	v, ctx := sending(t, s, &mail), t.Context()
	w := newHook(t, v, receiver)
	newHook(t, v, receiver+"other", receive.TokenDeleted)
	token := importCard(t, v, testCard(1), nil)
	created := eventLine(token, receive.TokenCreated, receive.ReasonImported)
	noError(t, v.Drain(ctx))
	event := mail.at(receiver)[0].ID
	late := newHook(t, v, receiver+"late")
	noError(t, errorOf(v.Redeliver(ctx, event, nil)))

	noError(t, errorOf(v.Redeliver(ctx, event, nil)))
	if d := must(v.ListDeliveries(ctx, w.ID, nil))(t).Items[0]; d.Status != cardvault.DeliveryPending || d.Attempts != 1 {
		t.Errorf("a redelivery: %+v", d)
	}

	noError(t, v.Drain(ctx))
	checkArrived(t, "delivered again", mail.at(receiver), created, created)
	checkArrived(t, "a webhook made later", mail.at(late.URL), created)
	checkArrived(t, "a webhook for other events", mail.at(receiver+"other"))
	if got := mail.at(receiver)[1]; got.ID != event || got.Sequence != mail.at(receiver)[0].Sequence {
		t.Error("the event changes when it is delivered again")
	}
	if n := must(v.ListDeliveries(ctx, w.ID, nil))(t).TotalItems; n != 1 {
		t.Errorf("%d entries in the log, want 1", n)
	}

	account := must(v.CreateAccount(ctx, canary, nil))(t)
	fails(t, "an event of another account", errorOf(v.In(account.ID).Redeliver(ctx, event, nil)), cardvault.ErrNotFound)
	fails(t, "no event", errorOf(v.Redeliver(ctx, uuid.New(), nil)), cardvault.ErrNotFound)
	noError(t, v.Delete(ctx, token.ID))
	fails(t, "an event of a deleted token", errorOf(v.Redeliver(ctx, event, nil)), cardvault.ErrNotFound)
}
