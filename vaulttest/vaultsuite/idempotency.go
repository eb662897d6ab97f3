package vaultsuite

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

var idempotencyBehaviours = []behaviour{
	{"Replay", replay},
	{"ReplayScope", replayScope},
	{"ReplayRace", replayRace},
	{"Mistakes", mistakes},
	{"MistakesRace", mistakesRace},
	{"MistakesStoreFails", mistakesStoreFails},
}

const idemKey = canary + "idempotency"

func withKey(ctx context.Context, key string) (context.Context, *cardvault.Idempotency) {
	i := &cardvault.Idempotency{Key: key}
	return cardvault.WithIdempotency(ctx, i), i
}

func replay(t *testing.T, s store.Store) {
	spy := &watched{Store: s}
	v, ctx := vaultOn(t, spy, nil), t.Context()
	c := testCard(1)
	c.Name, c.SecurityCode = holder(canary), card.NewSecurityCode([]byte("7373"))
	opts := &cardvault.ImportOptions{BusinessKey: canary + "key", ImportProvider: "p"}

	once, i := withKey(ctx, idemKey)
	first := must(v.Import(once, c, opts))(t)
	if i.Replayed() {
		t.Error("the first call is called a replay")
	}

	wrote := spy.wrote(func() {
		again, i := withKey(ctx, idemKey)
		same(t, "replayed", must(v.Import(again, c, opts))(t), first)
		if !i.Replayed() {
			t.Error("the second call is no replay")
		}
		// A security code is no part of the request: nobody is to find out which was right.
		for _, code := range []string{"7374", "737", ""} {
			other := c
			setCode(code)(&other)
			again, i := withKey(ctx, idemKey)
			same(t, "replayed with code "+code, must(v.Import(again, other, opts))(t), first)
			if !i.Replayed() {
				t.Error("a call with another code is no replay")
			}
		}
	})
	if wrote != 0 {
		t.Errorf("repetitions made the vault write %d times", wrote)
	}

	wrote = spy.wrote(func() { otherRequests(t, v, c, opts) })
	if wrote != 7 {
		t.Errorf("7 other requests made the vault write %d times", wrote)
	}

	checkListed(t, v, first)

	// The result is that of the first call, whatever has happened to the token.
	changed := canary + "changed"
	must(v.Update(ctx, first.ID, cardvault.TokenUpdate{BusinessKey: &changed}))(t)
	again, _ := withKey(ctx, idemKey)
	same(t, "replayed after an update", must(v.Import(again, c, opts))(t), first)

	noError(t, v.Delete(ctx, first.ID))
	again, i = withKey(ctx, idemKey)
	_, err := v.Import(again, c, opts)
	fails(t, "replay after the token is deleted", err, cardvault.ErrNotFound)
	if i.Replayed() {
		t.Error("what was not replayed is called a replay")
	}

	checkListed(t, v)

	// Without a key, and under another, the same request is another call.
	importCard(t, v, c, opts)
	other, _ := withKey(ctx, strings.Repeat("k", 255))
	must(v.Import(other, c, opts))(t)
	if p := must(v.List(ctx, nil))(t); p.TotalItems != 2 {
		t.Errorf("%d tokens, want 2", p.TotalItems)
	}

	requestsByWord(t, v)
}

// otherRequests: every other part of a request counts.
func otherRequests(t *testing.T, v *cardvault.Vault, c cardvault.Card, opts *cardvault.ImportOptions) {
	ctx := t.Context()

	for what, change := range map[string]func(*cardvault.Card, *cardvault.ImportOptions){
		"number":   func(c *cardvault.Card, _ *cardvault.ImportOptions) { c.PAN = testCard(2).PAN },
		"month":    func(c *cardvault.Card, _ *cardvault.ImportOptions) { c.Expiry.Month = 1 },
		"year":     func(c *cardvault.Card, _ *cardvault.ImportOptions) { c.Expiry.Year = 2091 },
		"name":     func(c *cardvault.Card, _ *cardvault.ImportOptions) { c.Name = holder(canary + "x") },
		"no name":  func(c *cardvault.Card, _ *cardvault.ImportOptions) { c.Name = card.Name{} },
		"key":      func(_ *cardvault.Card, o *cardvault.ImportOptions) { o.BusinessKey = canary },
		"provider": func(_ *cardvault.Card, o *cardvault.ImportOptions) { o.ImportProvider = "" },
	} {
		other, o := c, *opts
		change(&other, &o)
		again, i := withKey(cardvault.WithActor(ctx, cardvault.Actor{RootKeyID: uuid.New()}), idemKey)
		_, err := v.Import(again, other, &o)
		fails(t, "same key, other "+what, err, cardvault.ErrIdempotencyKeyReused)
		if i.Replayed() {
			t.Errorf("same key, other %s: called a replay", what)
		}
	}
}

// requestsByWord: a caller may say what the request is.
func requestsByWord(t *testing.T, v *cardvault.Vault) {
	ctx := t.Context()
	asked := &cardvault.Idempotency{Key: canary + "2", Request: cardvault.NewIdempotentRequest([]byte("body"))}
	one := must(v.Import(cardvault.WithIdempotency(ctx, asked), testCard(3), nil))(t)
	asked = &cardvault.Idempotency{Key: canary + "2", Request: cardvault.NewIdempotentRequest([]byte("body"))}
	two := must(v.Import(cardvault.WithIdempotency(ctx, asked), testCard(4), nil))(t)
	same(t, "same request by the caller's word", two, one)
	asked = &cardvault.Idempotency{Key: canary + "2", Request: cardvault.NewIdempotentRequest([]byte("Body"))}
	_, err := v.Import(cardvault.WithIdempotency(ctx, asked), testCard(3), nil)
	fails(t, "another request by the caller's word", err, cardvault.ErrIdempotencyKeyReused)
}

func replayScope(t *testing.T, s store.Store) {
	v, ctx := vaultOn(t, s, nil), t.Context()
	account := must(v.CreateAccount(ctx, canary, nil))(t)
	session := func(v *cardvault.Vault, o *cardvault.SessionOptions) (uuid.UUID, error) {
		ctx, _ := withKey(ctx, idemKey)
		id, err := v.CreateSession(ctx, o)
		return id.UUID(), err
	}

	imported := func(v *cardvault.Vault) *cardvault.Token {
		ctx, _ := withKey(ctx, idemKey)
		return must(v.Import(ctx, testCard(1), nil))(t)
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
	_, err = session(v, &cardvault.SessionOptions{TokenTTL: time.Second})
	fails(t, "other options", err, cardvault.ErrIdempotencyKeyReused)
	must(v.Tokenize(ctx, cardvault.NewSessionID(one), testCard(2)))(t)
	if again := must(session(v, &cardvault.SessionOptions{}))(t); again != one {
		t.Error("a replay after completion gives another session")
	}
}

func replayRace(t *testing.T, s store.Store) {
	v := vaultOn(t, s, nil)
	var replays atomic.Int64
	var token atomic.Pointer[cardvault.Token]
	parallel(t, 50, func(int) error {
		ctx, i := withKey(t.Context(), idemKey)
		got, err := v.Import(ctx, testCard(1), nil)
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
	checkListed(t, v, token.Load())
}

// byActor returns a context of a call under a key, on behalf of a root API key.
func byActor(ctx context.Context, root byte, key string) context.Context {
	ctx, _ = withKey(cardvault.WithActor(ctx, cardvault.Actor{RootKeyID: uuid.UUID{15: root}}), key)
	return ctx
}

func mistakes(t *testing.T, s store.Store) {
	spy := &watched{Store: s}
	v, ctx := vaultOn(t, spy, nil), t.Context()
	other := must(v.CreateAccount(ctx, canary, nil))(t)
	first := must(v.Import(byActor(ctx, 1, idemKey), testCard(1), nil))(t)

	right := func(root byte, key string) error {
		got, err := v.Import(byActor(ctx, root, key), testCard(1), nil)
		if err == nil && got.ID != first.ID {
			t.Error("a repetition gives another token")
		}
		return err
	}

	wrong := func(root byte, n int) {
		_, err := v.Import(byActor(ctx, root, idemKey), testCard(n), nil)
		fails(t, "another request", err, cardvault.ErrIdempotencyKeyReused)
	}

	// What is right in between costs nothing.
	for n := range 5 {
		noError(t, right(2, idemKey))
		wrong(2, 2+n)
	}

	fails(t, "the right request after five others", right(2, idemKey), cardvault.ErrIdempotencyKeyReused)
	wrote := spy.wrote(func() {
		for n := range 20 {
			wrong(2, 10+n)
		}
		fails(t, "the right request", right(2, idemKey), cardvault.ErrIdempotencyKeyReused)
	})
	if wrote != 0 {
		t.Errorf("after five other requests the vault wrote %d times", wrote)
	}

	// It lasts, and concerns nobody else and no other key.
	v = vaultOn(t, spy, nil)
	fails(t, "the right request to another vault on the store", right(2, idemKey), cardvault.ErrIdempotencyKeyReused)
	noError(t, right(1, idemKey))
	noError(t, right(0, idemKey))
	must(v.Import(byActor(ctx, 2, idemKey+"2"), testCard(1), nil))(t)
	must(v.In(other.ID).Import(byActor(ctx, 2, idemKey), testCard(1), nil))(t)

	// All operations and objects have keys of their own.
	must(v.CreateSession(byActor(ctx, 2, idemKey), nil))(t)
	must(v.Provision(byActor(ctx, 2, idemKey), importCard(t, v, testCard(3), nil).ID))(t)

	// Nor does a token that is gone show what was right.
	noError(t, v.Delete(ctx, first.ID))
	fails(t, "the right request for a deleted token", right(2, idemKey), cardvault.ErrIdempotencyKeyReused)
	fails(t, "the right request for a deleted token", right(1, idemKey), cardvault.ErrNotFound)
}

// The right request comes amid thirty others at once. Among the first six it is answered;
// if those were not counted one by one it would be every time.
func mistakesRace(t *testing.T, s store.Store) {
	vaults := []*cardvault.Vault{vaultOn(t, s, nil), vaultOn(t, s, nil)}
	const keys, others = 20, 30
	var answered, wrong atomic.Int64
	for k := range keys {
		key := fmt.Sprint(idemKey, k)
		first := must(vaults[0].Import(byActor(t.Context(), 1, key), testCard(0), nil))(t)
		v := vaults[k%2]
		parallel(t, others+1, func(n int) error {
			token, err := v.Import(byActor(t.Context(), 2, key), testCard((n+others/2)%(others+1)), nil)
			switch {
			case err == nil && token.ID == first.ID:
				answered.Add(1)
			case errors.Is(err, cardvault.ErrIdempotencyKeyReused):
				wrong.Add(1)
			default:
				return fmt.Errorf("another request is answered with %v", err)
			}
			return nil
		})

		for _, v := range vaults {
			_, err := v.Import(byActor(t.Context(), 2, key), testCard(0), nil)
			fails(t, "the right request after many others", err, cardvault.ErrIdempotencyKeyReused)
		}
	}

	if answered.Load() > keys/2 || wrong.Load()+answered.Load() != keys*(others+1) {
		t.Errorf("%d of %d right requests were answered, %d others refused", answered.Load(), keys, wrong.Load())
	}
}

// While mistakes cannot be counted, nobody learns what is one.
func mistakesStoreFails(t *testing.T, s store.Store) {
	full := &fullStore{Store: s}
	v := vaultOn(t, full, nil)
	must(v.Import(byActor(t.Context(), 1, idemKey), testCard(0), nil))(t)
	full.full.Store(true)
	_, err := v.Import(byActor(t.Context(), 2, idemKey), testCard(1), nil)
	fails(t, "another request", err, cardvault.ErrStorageFull)
	for n := range 3 {
		_, err = v.Import(byActor(t.Context(), 2, idemKey), testCard(n), nil)
		fails(t, "a request right or wrong", err, cardvault.ErrStorageFull)
	}
	full.full.Store(false)
	must(v.Import(byActor(t.Context(), 2, idemKey), testCard(0), nil))(t)
}

// A fullStore has no room while it is full.
type fullStore struct {
	store.Store
	full atomic.Bool
}

func (s *fullStore) Update(ctx context.Context, fn func(store.Tx) error) error {
	if s.full.Load() {
		return store.ErrFull
	}
	return s.Store.Update(ctx, fn)
}
