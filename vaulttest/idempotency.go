package vaulttest

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

var idempotencyBehaviours = []behaviour{
	{"Replay", replay},
	{"ReplayScope", replayScope},
	{"ReplayRace", replayRace},
}

const idemKey = canary + "idempotency"

func keyed(ctx context.Context, key string) (context.Context, *cardvault.Idempotency) {
	i := &cardvault.Idempotency{Key: key}
	return cardvault.WithIdempotency(ctx, i), i
}

func replay(t *testing.T, s store.Store) {
	spy := &spy{Store: s}
	v, ctx := vaultOn(t, spy, nil), t.Context()
	c := card(1)
	c.Name, c.SecurityCode = name(canary), cardvault.NewSecurityCode([]byte("7373"))
	opts := &cardvault.ImportOptions{BusinessKey: canary + "key", ImportProvider: "p"}

	once, i := keyed(ctx, idemKey)
	first := must(v.Import(once, c, opts))(t)
	if i.Replayed() {
		t.Error("the first call is called a replay")
	}
	wrote := spy.wrote(func() {
		again, i := keyed(ctx, idemKey)
		same(t, "replayed", must(v.Import(again, c, opts))(t), first)
		if !i.Replayed() {
			t.Error("the second call is no replay")
		}
		// Every part of the request counts.
		for what, change := range map[string]func(*cardvault.Card, *cardvault.ImportOptions){
			"number":   func(c *cardvault.Card, _ *cardvault.ImportOptions) { c.PAN = card(2).PAN },
			"month":    func(c *cardvault.Card, _ *cardvault.ImportOptions) { c.Expiry.Month = 1 },
			"year":     func(c *cardvault.Card, _ *cardvault.ImportOptions) { c.Expiry.Year = 2091 },
			"name":     func(c *cardvault.Card, _ *cardvault.ImportOptions) { c.Name = name(canary + "x") },
			"no name":  func(c *cardvault.Card, _ *cardvault.ImportOptions) { c.Name = cardvault.Name{} },
			"code":     func(c *cardvault.Card, _ *cardvault.ImportOptions) { setCode("7374")(c) },
			"key":      func(_ *cardvault.Card, o *cardvault.ImportOptions) { o.BusinessKey = canary },
			"provider": func(_ *cardvault.Card, o *cardvault.ImportOptions) { o.ImportProvider = "" },
		} {
			other, o := c, *opts
			change(&other, &o)
			again, i := keyed(ctx, idemKey)
			_, err := v.Import(again, other, &o)
			fails(t, "same key, other "+what, err, cardvault.ErrIdempotencyKeyReused)
			if i.Replayed() {
				t.Errorf("same key, other %s: called a replay", what)
			}
		}
	})
	if wrote != 0 {
		t.Errorf("repetitions made the vault write %d times", wrote)
	}
	listed(t, v, first)

	// The result is that of the first call, whatever has happened to the token.
	changed := canary + "changed"
	must(v.Update(ctx, first.ID, cardvault.TokenUpdate{BusinessKey: &changed}))(t)
	again, _ := keyed(ctx, idemKey)
	same(t, "replayed after an update", must(v.Import(again, c, opts))(t), first)

	noError(t, v.Delete(ctx, first.ID))
	again, i = keyed(ctx, idemKey)
	_, err := v.Import(again, c, opts)
	fails(t, "replay after the token is deleted", err, cardvault.ErrNotFound)
	if i.Replayed() {
		t.Error("what was not replayed is called a replay")
	}
	listed(t, v)

	// Without a key, and under another, the same request is another call.
	importCard(t, v, c, opts)
	other, _ := keyed(ctx, strings.Repeat("k", 255))
	must(v.Import(other, c, opts))(t)
	if p := must(v.List(ctx, nil))(t); p.TotalItems != 2 {
		t.Errorf("%d tokens, want 2", p.TotalItems)
	}

	// A caller may say what the request is.
	asked := &cardvault.Idempotency{Key: canary + "2", Request: cardvault.NewIdempotentRequest([]byte("body"))}
	one := must(v.Import(cardvault.WithIdempotency(ctx, asked), card(3), nil))(t)
	asked = &cardvault.Idempotency{Key: canary + "2", Request: cardvault.NewIdempotentRequest([]byte("body"))}
	two := must(v.Import(cardvault.WithIdempotency(ctx, asked), card(4), nil))(t)
	same(t, "same request by the caller's word", two, one)
	asked = &cardvault.Idempotency{Key: canary + "2", Request: cardvault.NewIdempotentRequest([]byte("Body"))}
	_, err = v.Import(cardvault.WithIdempotency(ctx, asked), card(3), nil)
	fails(t, "another request by the caller's word", err, cardvault.ErrIdempotencyKeyReused)
}

func replayScope(t *testing.T, s store.Store) {
	v, ctx := vaultOn(t, s, nil), t.Context()
	account := must(v.CreateAccount(ctx, canary, nil))(t)
	session := func(v *cardvault.Vault, o *cardvault.SessionOptions) (uuid.UUID, error) {
		ctx, _ := keyed(ctx, idemKey)
		id, err := v.CreateSession(ctx, o)
		return id.UUID(), err
	}
	imported := func(v *cardvault.Vault) *cardvault.Token {
		ctx, _ := keyed(ctx, idemKey)
		return must(v.Import(ctx, card(1), nil))(t)
	}
	// One key: two operations, two accounts.
	a, b := imported(v), imported(v.In(account.ID))
	if a.ID == b.ID {
		t.Error("one account's key replays in another")
	}
	one := must(session(v, nil))(t)
	if two := must(session(v, nil))(t); two != one {
		t.Error("a repeated CreateSession made another session")
	}
	if other := must(session(v.In(account.ID), nil))(t); other == one {
		t.Error("one account's key replays in another")
	}
	_, err := session(v, &cardvault.SessionOptions{BypassIdentification: true})
	fails(t, "other options", err, cardvault.ErrIdempotencyKeyReused)
	_, err = session(v, &cardvault.SessionOptions{ExpirationTime: 1})
	fails(t, "other options", err, cardvault.ErrIdempotencyKeyReused)
	must(v.Tokenize(ctx, cardvault.NewSessionID(one), card(2)))(t)
	if again := must(session(v, &cardvault.SessionOptions{}))(t); again != one {
		t.Error("a replay after completion gives another session")
	}
}

func replayRace(t *testing.T, s store.Store) {
	v := vaultOn(t, s, nil)
	var replays atomic.Int64
	var token atomic.Pointer[cardvault.Token]
	parallel(t, 50, func(int) error {
		ctx, i := keyed(t.Context(), idemKey)
		got, err := v.Import(ctx, card(1), nil)
		if err != nil {
			return err
		}
		if i.Replayed() {
			replays.Add(1)
		}
		if first := token.Load(); first == nil && !token.CompareAndSwap(nil, got) || first != nil && !equal(first, got) {
			if first = token.Load(); !equal(first, got) {
				return errors.New("two tokens under one key")
			}
		}
		return nil
	})
	if replays.Load() != 49 {
		t.Errorf("%d of 50 calls were replays, want 49", replays.Load())
	}
	listed(t, v, token.Load())
}
