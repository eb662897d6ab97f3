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
	"github.com/cardvault/cardvault/internal/replay"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

var idempotencyBehaviours = []behaviour{
	{"Replay", replaying},
	{"ReplayScope", replayScope},
	{"ReplayRace", replayRace},
	{"ReplayEvery", replayEvery},
	{"ReplayOthers", replayOthers},
	{"ReplayEveryRace", replayEveryRace},
	{"ReplayUnknown", replayUnknown},
	{"Bootstrap", bootstrap},
	{"EnsureMerchant", ensureMerchant},
	{"EnsureAPIKey", ensureAPIKey},
	{"Mistakes", mistakes},
	{"MistakesRace", mistakesRace},
	{"MistakesStoreFails", mistakesStoreFails},
}

const idemKey = canary + "idempotency"

var (
	underKey       = &cardvault.CallOptions{IdempotencyKey: idemKey}
	importUnderKey = &cardvault.ImportOptions{IdempotencyKey: idemKey}
)

func replaying(t *testing.T, s store.Store) {
	spy := &watched{Store: s}
	v, ctx := vaultOn(t, spy, nil), t.Context()
	c := testCard(1)
	c.Name, c.SecurityCode = holder(canary), card.NewSecurityCode([]byte("7373"))
	opts := &cardvault.ImportOptions{BusinessKey: canary + "key", ImportProvider: "p", IdempotencyKey: idemKey}

	first := must(v.Import(ctx, c, opts))(t)
	if first.Replayed {
		t.Error("the first call is reported as a replay")
	}

	wrote := spy.wrote(func() {
		again := must(v.Import(ctx, c, opts))(t)
		if same(t, "replayed", again, first); !again.Replayed {
			t.Error("the second call is not a replay")
		}
		// A security code is not part of the request: replays must not reveal which was
		// right.
		for _, code := range []string{"7374", "737", ""} {
			other := c
			setCode(code)(&other)
			again := must(v.Import(ctx, other, opts))(t)
			if same(t, "replayed with code "+code, again, first); !again.Replayed {
				t.Error("a call with another code is not a replay")
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

	// The first call's result is returned, however the token has changed since.
	changed := canary + "changed"
	must(v.Update(ctx, first.ID, cardvault.TokenUpdate{BusinessKey: &changed}))(t)
	same(t, "replayed after an update", must(v.Import(ctx, c, opts))(t), first)

	noError(t, v.Delete(ctx, first.ID))
	_, err := v.Import(ctx, c, opts)
	fails(t, "replay after the token is deleted", err, cardvault.ErrNotFound)
	checkListed(t, v)

	// Without a key, and under another, the same request is another call.
	opts.IdempotencyKey = ""
	importCard(t, v, c, opts)
	opts.IdempotencyKey = strings.Repeat("k", 255)
	must(v.Import(ctx, c, opts))(t)
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
		_, err := v.Import(cardvault.WithActor(ctx, cardvault.Actor{RootKeyID: uuid.New()}), other, &o)
		fails(t, "same key, other "+what, err, cardvault.ErrIdempotencyKeyReused)
	}
}

// requestsByWord: httpapi says what the request is.
func requestsByWord(t *testing.T, v *cardvault.Vault) {
	opts := &cardvault.ImportOptions{IdempotencyKey: canary + "2"}
	asked := func(body string, n int) (*cardvault.Token, bool, error) {
		border := &replay.Border{Request: func() []byte { return []byte(body) }}
		token, err := v.Import(replay.WithBorder(t.Context(), border), testCard(n), opts)
		return token, border.Replayed, err
	}

	one, replayed, err := asked("body", 3)
	if noError(t, err); replayed {
		t.Error("the first call is reported as a replay")
	}
	two, replayed, err := asked("body", 4)
	noError(t, err)
	if same(t, "same request, as the caller says", two, one); !replayed {
		t.Error("the second call is not a replay")
	}
	_, replayed, err = asked("Body", 3)
	if fails(t, "another request, as the caller says", err, cardvault.ErrIdempotencyKeyReused); replayed {
		t.Error("an error is reported as a replay")
	}
}

func replayScope(t *testing.T, s store.Store) {
	v, ctx := vaultOn(t, s, nil), t.Context()
	account := must(v.CreateAccount(ctx, canary, nil))(t)
	session := func(v *cardvault.Vault, o cardvault.SessionOptions) (uuid.UUID, error) {
		o.IdempotencyKey = idemKey
		s, err := v.CreateSession(ctx, &o)
		if err != nil {
			return uuid.Nil, err
		}
		return s.ID.UUID(), nil
	}

	imported := func(v *cardvault.Vault) *cardvault.Token { return must(v.Import(ctx, testCard(1), importUnderKey))(t) }

	// One key: two operations, two accounts.
	a, b := imported(v), imported(v.In(account.ID))
	if a.ID == b.ID {
		t.Error("one account's key replays in another")
	}

	one := must(session(v, cardvault.SessionOptions{}))(t)
	if two := must(session(v, cardvault.SessionOptions{}))(t); two != one {
		t.Error("a repeated CreateSession made another session")
	}
	if other := must(session(v.In(account.ID), cardvault.SessionOptions{}))(t); other == one {
		t.Error("one account's key replays in another")
	}

	_, err := session(v, cardvault.SessionOptions{BypassIdentification: true})
	fails(t, "other options", err, cardvault.ErrIdempotencyKeyReused)
	_, err = session(v, cardvault.SessionOptions{TokenTTL: time.Second})
	fails(t, "other options", err, cardvault.ErrIdempotencyKeyReused)
	must(v.Tokenize(ctx, cardvault.NewSessionID(one), testCard(2)))(t)
	if again := must(session(v, cardvault.SessionOptions{}))(t); again != one {
		t.Error("a replay after completion returns another session")
	}
}

func replayRace(t *testing.T, s store.Store) {
	v := vaultOn(t, s, nil)
	var repeated atomic.Int64
	var token atomic.Pointer[cardvault.Token]
	parallel(t, 50, func(int) error {
		got, err := v.Import(t.Context(), testCard(1), importUnderKey)
		if err != nil {
			return err
		}
		if got.Replayed {
			repeated.Add(1)
		}
		if first := token.Load(); first == nil && !token.CompareAndSwap(nil, got) || first != nil && !equal(first, got) {
			if first = token.Load(); !equal(first, got) {
				return errors.New("two tokens under one key")
			}
		}
		return nil
	})

	if repeated.Load() != 49 {
		t.Errorf("%d of 50 calls were replays, want 49", repeated.Load())
	}
	checkListed(t, v, token.Load())
}

// byActor imports a card under a key, on behalf of a root API key.
func byActor(ctx context.Context, v *cardvault.Vault, root byte, key string, n int) (*cardvault.Token, error) {
	return v.Import(onBehalf(ctx, root), testCard(n), &cardvault.ImportOptions{IdempotencyKey: key})
}

func onBehalf(ctx context.Context, root byte) context.Context {
	return cardvault.WithActor(ctx, cardvault.Actor{RootKeyID: uuid.UUID{15: root}})
}

func mistakes(t *testing.T, s store.Store) {
	spy := &watched{Store: s}
	v, ctx := vaultOn(t, spy, nil), t.Context()
	other := must(v.CreateAccount(ctx, canary, nil))(t)
	first := must(byActor(ctx, v, 1, idemKey, 1))(t)

	right := func(root byte, key string) error {
		got, err := byActor(ctx, v, root, key, 1)
		if err == nil && got.ID != first.ID {
			t.Error("a repeated call returns another token")
		}
		return err
	}

	wrong := func(root byte, n int) {
		_, err := byActor(ctx, v, root, idemKey, n)
		fails(t, "another request", err, cardvault.ErrIdempotencyKeyReused)
	}

	// A right request in between costs nothing.
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

	// It lasts, and affects no other caller and no other key.
	v = vaultOn(t, spy, nil)
	fails(t, "the right request to another vault on the store", right(2, idemKey), cardvault.ErrIdempotencyKeyReused)
	noError(t, right(1, idemKey))
	noError(t, right(0, idemKey))
	must(byActor(ctx, v, 2, idemKey+"2", 1))(t)
	must(byActor(ctx, v.In(other.ID), 2, idemKey, 1))(t)

	// All operations and objects have keys of their own.
	must(v.CreateSession(onBehalf(ctx, 2), &cardvault.SessionOptions{IdempotencyKey: idemKey}))(t)
	must(v.Provision(onBehalf(ctx, 2), importCard(t, v, testCard(3), nil).ID, underKey))(t)

	// Nor does a deleted token show which request was right.
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
		first := must(byActor(t.Context(), vaults[0], 1, key, 0))(t)
		v := vaults[k%2]
		parallel(t, others+1, func(n int) error {
			token, err := byActor(t.Context(), v, 2, key, (n+others/2)%(others+1))
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
			_, err := byActor(t.Context(), v, 2, key, 0)
			fails(t, "the right request after many others", err, cardvault.ErrIdempotencyKeyReused)
		}
	}

	if answered.Load() > keys/2 || wrong.Load()+answered.Load() != keys*(others+1) {
		t.Errorf("%d of %d right requests were answered, %d others refused", answered.Load(), keys, wrong.Load())
	}
}

// While mistakes cannot be counted, no caller learns that it made one.
func mistakesStoreFails(t *testing.T, s store.Store) {
	full := &fullStore{Store: s}
	v := vaultOn(t, full, nil)
	must(byActor(t.Context(), v, 1, idemKey, 0))(t)
	full.full.Store(true)
	_, err := byActor(t.Context(), v, 2, idemKey, 1)
	fails(t, "another request", err, cardvault.ErrStorageFull)
	for n := range 3 {
		_, err = byActor(t.Context(), v, 2, idemKey, n)
		fails(t, "any request", err, cardvault.ErrStorageFull)
	}
	full.full.Store(false)
	must(byActor(t.Context(), v, 2, idemKey, 0))(t)
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
