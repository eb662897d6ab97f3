package vaulttest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

var webhookBehaviours = []behaviour{
	{"Webhooks", webhooks},
	{"WebhooksHeard", webhooksHeard},
	{"WebhooksShared", webhooksShared},
	{"WebhookAccounts", webhookAccounts},
}

const hookURL = "https://" + "canary.example/hook"

// A postman is a Sender that notes what it delivers, and fails while it is told to.
type postman struct {
	mu   sync.Mutex
	got  []string // URL, type of event and token
	ids  []uuid.UUID
	keys []int // how many secrets signed
	code int
}

func (p *postman) Check(url string) error {
	if len(url) < len("https://") || url[:8] != "https://" {
		return errors.New("must be https")
	}
	return nil
}

func (p *postman) Send(_ context.Context, d *cardvault.Delivery) (*cardvault.SendResult, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.code != 0 {
		return &cardvault.SendResult{StatusCode: p.code}, nil
	}
	what := "test"
	if d.Event != nil {
		what = fmt.Sprint(d.Event.Type, " ", d.Event.TokenID)
	}
	p.got, p.ids, p.keys = append(p.got, d.URL+" "+what), append(p.ids, d.ID), append(p.keys, len(d.Secrets))
	return &cardvault.SendResult{StatusCode: 204}, nil
}

func (p *postman) says(code int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.code = code
}

// delivered checks what has been delivered since it was last asked.
func (p *postman) delivered(t testing.TB, what string, want ...string) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if !slices.Equal(p.got, want) {
		t.Errorf("%s: delivered\n got %q\nwant %q", what, p.got, want)
	}
	p.got = nil
}

func posting(t testing.TB, s store.Store, p *postman) *cardvault.Vault {
	t.Helper()
	return vaultOn(t, s, &cardvault.Options{Mode: cardvault.Sandbox, Webhooks: p})
}

// webhooks: a webhook is told of the life of a token in its order, what failed is told
// again, and the log says what became of it.
func webhooks(t *testing.T, s store.Store) {
	p := new(postman)
	v, ctx := posting(t, s, p), t.Context()
	w, secret, err := v.CreateWebhook(ctx, hookURL, &cardvault.WebhookOptions{Description: canary + "hook"})
	noError(t, err)
	if secret.IsZero() || w.Disabled || len(w.Events) != 3 {
		t.Errorf("webhook %+v", w)
	}
	if got := must(v.Webhook(ctx, w.ID))(t); got.URL != hookURL || got.Description != canary+"hook" {
		t.Errorf("webhook %+v", got)
	}
	token := importCard(t, v, card(1), nil)
	rename(t, v, token, canary+"a")
	noError(t, v.Drain(ctx))
	created, updated := hookURL+" token.created "+token.ID.String(), hookURL+" token.updated "+token.ID.String()
	p.delivered(t, "created and updated", created, updated)

	must(v.RotateWebhookSecret(ctx, w.ID))(t)
	p.says(503)
	rename(t, v, token, canary+"b")
	noError(t, v.Drain(ctx))
	p.says(0)
	noError(t, v.Drain(ctx))
	log := must(v.ListDeliveries(ctx, w.ID, nil))(t)
	if log.TotalItems != 3 || log.Items[0].Status != cardvault.DeliveryPending || log.Items[0].Attempts != 1 || log.Items[0].LastStatusCode != 503 ||
		log.Items[2].Status != cardvault.DeliveryDelivered || log.Items[2].TokenID != token.ID || log.Items[2].EventType != cardvault.TokenCreated {
		t.Errorf("the log has %d entries; first and last are %+v, %+v", log.TotalItems, log.Items[0], log.Items[2])
	}
	p.delivered(t, "before it is tried again")
	noError(t, v.Redeliver(ctx, log.Items[2].EventID))
	noError(t, v.Drain(ctx))
	if p.ids[len(p.ids)-1] != log.Items[2].EventID || p.keys[len(p.keys)-1] != 2 {
		t.Error("an event that is redelivered has another id, or is not signed twice after a rotation")
	}
	p.mu.Lock()
	p.got = nil
	p.mu.Unlock()

	disabled := true
	must(v.UpdateWebhook(ctx, w.ID, cardvault.WebhookUpdate{Disabled: &disabled}))(t)
	importCard(t, v, card(2), nil)
	noError(t, v.Drain(ctx))
	p.delivered(t, "to one that is disabled")
	disabled = false
	must(v.UpdateWebhook(ctx, w.ID, cardvault.WebhookUpdate{Disabled: &disabled, Events: []cardvault.EventType{cardvault.TokenDeleted}}))(t)
	rename(t, v, token, canary+"c")
	noError(t, v.Delete(ctx, token.ID))
	noError(t, v.Drain(ctx))
	p.delivered(t, "to one for deletions", hookURL+" token.deleted "+token.ID.String())
	fails(t, "redelivering what is gone with its token", v.Redeliver(ctx, log.Items[2].EventID), cardvault.ErrNotFound)
	if test := must(v.TestWebhook(ctx, w.ID))(t); test.StatusCode != 204 {
		t.Errorf("a test is answered %d", test.StatusCode)
	}
	p.delivered(t, "a test", hookURL+" test")

	noError(t, v.DeleteWebhook(ctx, w.ID))
	importCard(t, v, card(3), nil)
	noError(t, v.Drain(ctx))
	p.delivered(t, "to one that is deleted")
	for what, err := range map[string]error{
		"reading":  second(v.Webhook(ctx, w.ID)),
		"deleting": v.DeleteWebhook(ctx, w.ID),
		"its log":  second(v.ListDeliveries(ctx, w.ID, nil)),
	} {
		fails(t, what+" of a webhook that is gone", err, cardvault.ErrNotFound)
	}
}

// webhooksHeard: nothing is stored while nobody listens, and whoever has registered a
// webhook in one process misses nothing that happens in another.
func webhooksHeard(t *testing.T, s store.Store) {
	p, spy, ctx := new(postman), &spy{Store: s}, t.Context()
	v, other := posting(t, s, p), vaultOn(t, spy, nil)
	importCard(t, other, card(1), nil)
	if n := len(spy.last()); n != 1 {
		t.Errorf("an import that nobody hears of puts %d records", n)
	}
	w, _, err := v.CreateWebhook(ctx, hookURL, nil)
	noError(t, err)
	token := importCard(t, other, card(2), nil)
	noError(t, v.Drain(ctx))
	p.delivered(t, "of another process", hookURL+" token.created "+token.ID.String())
	noError(t, v.DeleteWebhook(ctx, w.ID))
	importCard(t, other, card(3), nil)
	if n := len(spy.last()); n != 1 {
		t.Errorf("an import that nobody hears of any more puts %d records", n)
	}
}

// webhooksShared: of several vaults that work at a time each delivers what no other
// one does.
func webhooksShared(t *testing.T, s store.Store) {
	p, ctx := new(postman), t.Context()
	vaults := []*cardvault.Vault{posting(t, s, p), posting(t, s, p), posting(t, s, p)}
	_, _, err := vaults[0].CreateWebhook(ctx, hookURL, nil)
	noError(t, err)
	parallel(t, 24, func(i int) error { return second(vaults[i%3].Import(ctx, card(i), nil)) })
	for range 3 {
		parallel(t, 3, func(i int) error { return vaults[i].Drain(ctx) })
	}
	seen := map[uuid.UUID]bool{}
	for _, id := range p.ids {
		if seen[id] {
			t.Error("an event was delivered twice")
		}
		seen[id] = true
	}
	if len(seen) != 24 {
		t.Errorf("%d of 24 events were delivered", len(seen))
	}
}

// webhookAccounts: nothing of one account is told to another, or changed by it.
func webhookAccounts(t *testing.T, s store.Store) {
	p, ctx := new(postman), t.Context()
	v := posting(t, s, p)
	account := must(v.CreateAccount(ctx, canary, nil))(t)
	other := v.In(account.ID)
	w, _, err := v.CreateWebhook(ctx, hookURL, nil)
	noError(t, err)
	importCard(t, other, card(1), nil)
	token := importCard(t, v, card(2), nil)
	noError(t, v.Drain(ctx))
	p.delivered(t, "of this account alone", hookURL+" token.created "+token.ID.String())
	event := must(v.ListDeliveries(ctx, w.ID, nil))(t).Items[0].EventID
	disabled := true
	for what, err := range map[string]error{
		"Webhook":             second(other.Webhook(ctx, w.ID)),
		"UpdateWebhook":       second(other.UpdateWebhook(ctx, w.ID, cardvault.WebhookUpdate{Disabled: &disabled})),
		"DeleteWebhook":       other.DeleteWebhook(ctx, w.ID),
		"RotateWebhookSecret": second(other.RotateWebhookSecret(ctx, w.ID)),
		"TestWebhook":         second(other.TestWebhook(ctx, w.ID)),
		"ListDeliveries":      second(other.ListDeliveries(ctx, w.ID, nil)),
		"Redeliver":           other.Redeliver(ctx, event),
	} {
		fails(t, what+" from another account", err, cardvault.ErrNotFound)
	}
	if p := must(other.ListWebhooks(ctx, nil))(t); p.TotalItems != 0 {
		t.Errorf("another account has %d webhooks", p.TotalItems)
	}
	refuses(t, "no https", third(v.CreateWebhook(ctx, "http://canary.example/", nil)), "url invalid_format")
	for range cardvault.MaxWebhooks - 1 {
		noError(t, third(v.CreateWebhook(ctx, hookURL, nil)))
	}
	refuses(t, "one too many", third(v.CreateWebhook(ctx, hookURL, nil)), "url out_of_range")
}

func third[A, B any](_ A, _ B, err error) error { return err }
