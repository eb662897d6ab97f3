package vaultsuite

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/internal/codes"
	"github.com/cardvault/cardvault/internal/use"
	"github.com/cardvault/cardvault/network"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// Calls that a replacement of the card overtakes.
var overtakenBehaviours = []behaviour{
	{"OvertakenRefresh", overtakenRefresh},
	{"OvertakenConsume", overtakenConsume},
	{"OvertakenReplace", overtakenReplace},
	{"OvertakenUse", overtakenUse},
	{"OvertakenUpdate", overtakenUpdate},
	{"OvertakenPayment", overtakenPayment},
	{"OvertakenNotice", overtakenNotice},
	{"OvertakenCardNotice", overtakenCardNotice},
}

// A trailer is a store on which something happens once, after the next write. If that is an
// error, the outcome of the write is that.
type trailer struct {
	store.Store
	follow func() error
}

func (f *trailer) Update(ctx context.Context, fn func(store.Tx) error) error {
	err := f.Store.Update(ctx, fn)
	if follow := f.follow; follow != nil && err == nil {
		f.follow = nil
		err = follow()
	}
	return err
}

// overtakenRefresh: the security code that is entered for one card never becomes another's.
func overtakenRefresh(t *testing.T, s store.Store) {
	m := &meddler{Store: s}
	v, ctx := replacing(t, m, nil, nil), t.Context()
	browser := v.In(uuid.Nil)
	token := importCard(t, v, coded(0, "100"), nil)
	before, midway, done := must(v.RefreshSession(ctx, token.ID, nil))(t), must(v.RefreshSession(ctx, token.ID, underKey))(t), must(v.RefreshSession(ctx, token.ID, nil))(t)
	must(v.RefreshSecurityCode(ctx, done.ID, codeOf("101")))(t)
	payload := encrypted(t, must(browser.Session(ctx, before.ID))(t), `{"security_code":"998"}`)

	m.meddle = func() { must(v.Replace(ctx, token.ID, coded(1, "102"), nil))(t) }
	fails(t, "a code while the card is replaced", errorOf(v.RefreshSecurityCode(ctx, midway.ID, codeOf("999"))), cardvault.ErrNotFound)
	fails(t, "a code after the card was replaced", errorOf(v.RefreshSecurityCode(ctx, before.ID, codeOf("999"))), cardvault.ErrNotFound)
	fails(t, "a payload after it", errorOf(browser.CompleteSession(ctx, before.ID, payload)), cardvault.ErrNotFound)
	fails(t, "the session", errorOf(browser.Session(ctx, before.ID)), cardvault.ErrNotFound)
	hasCode(t, "of the new card", v, token.ID, "102")
	if is := must(browser.Session(ctx, done.ID))(t); is.State != cardvault.SessionSucceeded || is.TokenID != token.ID {
		t.Errorf("a session that was completed before: %+v", is)
	}
	after := must(v.RefreshSession(ctx, token.ID, nil))(t)
	must(v.RefreshSecurityCode(ctx, after.ID, codeOf("103")))(t)
	hasCode(t, "refreshed", v, token.ID, "103")
}

// overtakenConsume: a use that consumes the code of its card ends no code of the next card.
func overtakenConsume(t *testing.T, s store.Store) {
	m := &meddler{Store: s}
	v, ctx := replacing(t, m, nil, nil), t.Context()
	token := importCard(t, v, coded(0, "100"), nil)
	replace := func(n int) func() {
		return func() { must(v.Replace(ctx, token.ID, coded(n, fmt.Sprint(100+n)), nil))(t) }
	}
	uses := func(before func(), meddle func()) {
		t.Helper()
		noError(t, v.Use(ctx, token.ID, purpose, func(ctx context.Context, c *cardvault.UsedCard) error {
			before()
			m.meddle = meddle
			return c.Consume(ctx)
		}))
	}

	uses(replace(1), nil)
	hasCode(t, "replaced before it is consumed", v, token.ID, "101")
	uses(func() {}, replace(2))
	hasCode(t, "replaced while it is consumed", v, token.ID, "102")
	b := &branch{fail: func(_ context.Context, n int) (*use.Sent, error) {
		m.meddle = replace(3)
		sent := outcomeOf(n)
		sent.Consume = true
		return sent, nil
	}}
	must(v.Forward(ctx, token.ID, b.call("", "a"), nil))(t)
	hasCode(t, "replaced while a forward consumes it", v, token.ID, "103")
	uses(func() {}, nil)
	hasCode(t, "consumed", v, token.ID, "")
}

// overtakenReplace: a replacement, or the end of a code, erases no code of a later replacement.
// A replacement whose outcome is unknown has erased the code of before.
func overtakenReplace(t *testing.T, s store.Store) {
	f, cache := &trailer{Store: s}, codes.New(10, nil)
	v := vaultOn(t, f, &cardvault.Options{Mode: cardvault.Sandbox, PPAN: desk{}, Codes: cache})
	t.Cleanup(func() { noError(t, cache.Close()) })
	ctx := t.Context()
	token := importCard(t, v, coded(0, "100"), nil)
	replace := func(n int) func() error {
		return func() error { return errorOf(v.Replace(ctx, token.ID, coded(n, fmt.Sprint(100+n)), nil)) }
	}

	f.follow = replace(2)
	must(v.Replace(ctx, token.ID, testCard(1), nil))(t)
	hasCode(t, "replaced by a card without a code, then with one", v, token.ID, "102")
	f.follow = replace(3)
	must(v.Consume(ctx, token.ID, nil))(t)
	hasCode(t, "consumed, then replaced", v, token.ID, "103")

	f.follow = func() error { return store.ErrOutcomeUnknown }
	fails(t, "a lost outcome", errorOf(v.Replace(ctx, token.ID, coded(4, "104"), nil)), cardvault.ErrOutcomeUnknown)
	fails(t, "the code in the cache", errorOf(cache.Get(ctx, token.ID)), store.ErrNotFound)
}

// A turning cache calls turn before and after the next look for a code.
type turning struct {
	store.CodeCache
	before, after func()
}

func (c *turning) Get(ctx context.Context, id uuid.UUID) ([]byte, error) {
	before, after := c.before, c.after
	if c.before, c.after = nil, nil; before != nil {
		before()
	}
	value, err := c.CodeCache.Get(ctx, id)
	if after != nil {
		after()
	}
	return value, err
}

// overtakenUse: a use has number and security code of one card.
func overtakenUse(t *testing.T, s store.Store) {
	cache := &turning{CodeCache: codes.New(10, nil)}
	t.Cleanup(func() { noError(t, cache.Close()) })
	v, ctx := vaultOn(t, s, &cardvault.Options{Mode: cardvault.Sandbox, Purposes: []string{purpose}, Codes: cache}), t.Context()
	token := importCard(t, v, coded(0, "100"), nil)
	replace := func(n int) func() {
		return func() { must(v.Replace(ctx, token.ID, coded(n, fmt.Sprint(100+n)), nil))(t) }
	}

	cache.before = replace(1)
	if text := cardIn(t, v, token.ID); text != spelledOf(0) {
		t.Errorf("replaced before the code is read: %s is used", text)
	}
	cache.after = replace(2)
	if text := cardIn(t, v, token.ID); text != spelledOf(1) {
		t.Errorf("replaced after the code was read: %s is used", text)
	}
	if text := cardIn(t, v, token.ID); text != spelledOf(2)+" 102" {
		t.Errorf("in the end %s is used", text)
	}
}

// overtakenUpdate: an expiry of one card does not become another's. What is not the card's is
// updated all the same.
func overtakenUpdate(t *testing.T, s store.Store) {
	m := &meddler{Store: s}
	v, ctx := replacing(t, m, nil, nil), t.Context()
	token := importCard(t, v, testCard(0), nil)
	next := testCard(1)
	next.Expiry = card.Expiry{Month: 3, Year: 2093}
	of := card.Expiry{Month: 2, Year: 2092}

	m.meddle = func() { must(v.Replace(ctx, token.ID, next, nil))(t) }
	fails(t, "an expiry while the card is replaced", errorOf(v.Update(ctx, token.ID, cardvault.TokenUpdate{Expiry: &of})), cardvault.ErrCardReplaced)
	if is := must(v.Get(ctx, token.ID))(t); is.Expiry != next.Expiry {
		t.Errorf("the new card has the expiry %v", is.Expiry)
	}
	m.meddle = func() { must(v.Replace(ctx, token.ID, testCard(2), nil))(t) }
	rename(t, v, token, "a")
	m.meddle = func() { rename(t, v, token, "b") }
	if is := must(v.Update(ctx, token.ID, cardvault.TokenUpdate{Expiry: &of}))(t); is.Expiry != of || is.BusinessKey != canary+"b" {
		t.Errorf("an expiry beside another update: %+v", flat(is))
	}
	m.meddle = func() { must(v.Update(ctx, token.ID, cardvault.TokenUpdate{Expiry: &of}))(t) }
	if is := must(v.Replace(ctx, token.ID, next, nil))(t); is.Expiry != next.Expiry || cardIn(t, v, token.ID) != cardNumber(canaryNumber, 16, 1)+" 3 2093" {
		t.Errorf("a replacement beside an update of the expiry: %+v", flat(is))
	}
}

// overtakenPayment: a cryptogram that comes for the former card is not stored, whatever else
// changes the token.
func overtakenPayment(t *testing.T, s store.Store) {
	n, w := new(clerk), &watched{Store: s}
	v, ctx := replacing(t, w, n, nil), t.Context()
	secret := newSecret(t, v)
	token := importCard(t, v, testCard(0), nil)
	drain(t, v)
	stores := func(what string, want int) {
		t.Helper()
		p := pay(t, v, token)
		if stored := len(w.last()); stored != want || !p.Success {
			t.Errorf("%s: %d records are stored, want %d; %+v", what, stored, want, p)
		}
		if want == 2 {
			pays(t, p, secret)
		}
	}

	stores("a payment", 2)
	n.asks = func(*network.CryptogramRequest) { n.asks = nil; rename(t, v, token, "a") }
	stores("a payment beside an update", 2)
	n.asks = func(*network.CryptogramRequest) {
		n.asks = nil
		noError(t, errors.Join(errorOf(v.Replace(ctx, token.ID, testCard(1), nil)), v.Drain(ctx)))
	}
	stores("a payment with the card of before", 1)
	stores("a payment with the new card", 2)
}

// overtakenNotice: a notice of a provisioning whose card is replaced while the notice is applied
// does not change the next provisioning, though no id of a network token is known of either.
func overtakenNotice(t *testing.T, s store.Store) {
	m := &meddler{Store: s}
	n := new(clerk)
	v, ctx := replacing(t, m, n, nil), t.Context()

	for i, kind := range []network.NoticeKind{network.NoticeDeleted, network.NoticeRefused, network.NoticeInvalidated} {
		token := importCard(t, v, testCard(2*i), nil)
		n.lost.Store(true) // so that the idempotency key alone names its network token
		drain(t, v)
		n.lost.Store(false)
		notice := &network.Notice{
			ID: fmt.Sprint(canary, i), Kind: kind, By: network.OwnerIssuer, OccurredAt: time.Now(),
			Token:   network.Ref{IdempotencyKey: token.ID.String() + ":1"},
			Failure: &network.Error{Source: network.SourceScheme, Code: network.CodeDeclined},
		}
		m.meddle = func() { must(v.Replace(ctx, token.ID, testCard(2*i+1), nil))(t) }
		noError(t, v.Notify(ctx, notice))
		checkState(t, v, token.ID, network.Pending, "")
		drain(t, v)
		checkState(t, v, token.ID, network.Active, "")
		if is := must(v.Get(ctx, token.ID))(t); is.Status != cardvault.StatusActive {
			t.Errorf("%v: the token is %v", kind, is.Status)
		}
	}
}

// overtakenCardNotice: a notice that a card was replaced comes after one of two tokens has the new
// number. The network token that they share was moved to the new card before, so that number is
// not stale.
func overtakenCardNotice(t *testing.T, s store.Store) {
	n := &bureau{shared: true}
	v, ctx := provisioning(t, s, n), t.Context()
	ahead, behind := importCard(t, v, testCard(0), nil), importCard(t, v, testCard(0), nil)
	drain(t, v)
	n.mu.Lock()
	n.ids[suiteNumber(1)] = n.ids[suiteNumber(0)]
	n.mu.Unlock()
	notice := suspended(1, time.Now(), n.left()[0])
	notice.Kind, notice.Card = network.NoticeCardReplaced, &network.CardState{LastFour: suiteNumber(1)[12:], Expiry: testCard(1).Expiry}

	replaced := must(v.Replace(ctx, ahead.ID, testCard(1), nil))(t)
	drain(t, v)
	n.remains(t, 1)
	noError(t, v.Notify(ctx, notice))
	if is := must(v.Get(ctx, ahead.ID))(t); is.AccountNumberStale || is.LastFour != replaced.LastFour {
		t.Errorf("the new number is stale: %+v", flat(is))
	}
	if is := must(v.Get(ctx, behind.ID))(t); !is.AccountNumberStale {
		t.Errorf("the number before is not stale: %+v", flat(is))
	}

	// A later replacement concerns both.
	notice = suspended(2, time.Now(), n.left()[0])
	notice.Kind, notice.Card = network.NoticeCardReplaced, &network.CardState{LastFour: suiteNumber(2)[12:], Expiry: renewedTo}
	noError(t, v.Notify(ctx, notice))
	for _, token := range []*cardvault.Token{ahead, behind} {
		if is := must(v.Get(ctx, token.ID))(t); !is.AccountNumberStale || is.LastFour != suiteNumber(2)[12:] {
			t.Errorf("after the next replacement: %+v", flat(is))
		}
	}
}
