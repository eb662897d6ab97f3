package vaultsuite

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/idv"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

var sessionBehaviours = []behaviour{
	{"Session", sessionUse},
	{"SessionRace", sessionRace},
	{"SessionKeyRace", sessionKeyRace},
	{"LapseInRun", lapseInRun},
}

func sessionUse(t *testing.T, s store.Store) {
	v, ctx := vaultOn(t, s, nil), t.Context()
	plain := must(v.CreateSession(ctx, nil))(t)
	bypass := must(v.CreateSession(ctx, &cardvault.SessionOptions{BypassIdentification: true, TokenTTL: 100 * time.Second}))(t)
	if plain.ID.UUID().Version() != 4 || bypass.ID.UUID().Version() != 4 || plain.ID.UUID() == bypass.ID.UUID() {
		t.Error("session ids are not random UUIDv4s")
	}

	c := testCard(1)
	c.Name = holder(canary)
	got := must(v.Tokenize(ctx, plain.ID, c))(t)
	if got.Identification != idv.None || !got.ExpiresAt.IsZero() || got.NetworkTokenStatusReason.Code != "no_network" {
		t.Errorf("tokenized: %+v", flat(got))
	}

	same(t, "read", must(v.Get(ctx, got.ID))(t), got)
	if imported := importCard(t, v, testCard(1), nil); imported.Fingerprint != got.Fingerprint {
		t.Error("an imported and a tokenized number have different fingerprints")
	}

	short := must(v.Tokenize(ctx, bypass.ID, testCard(2)))(t)
	if short.Identification != idv.Skipped || !short.ExpiresAt.Equal(short.CreatedAt.Add(100*time.Second)) ||
		short.NetworkTokenStatusReason.Code != "ephemeral_token" {
		t.Errorf("tokenized for 100 seconds: %+v", flat(short))
	}

	same(t, "read", must(v.Get(ctx, short.ID))(t), short)
	key := canary
	updated := must(v.Update(ctx, short.ID, cardvault.TokenUpdate{BusinessKey: &key}))(t)
	if !updated.ExpiresAt.Equal(short.ExpiresAt) {
		t.Error("an update changes when the token expires")
	}

	// Completed stays completed, also when the token is gone.
	noError(t, v.Delete(ctx, got.ID))
	for _, id := range []cardvault.SessionID{plain.ID, bypass.ID} {
		_, err := v.Tokenize(ctx, id, testCard(3))
		fails(t, "a completed session", err, cardvault.ErrSessionCompleted)
	}

	_, err := v.Tokenize(ctx, cardvault.NewSessionID(uuid.New()), testCard(3))
	fails(t, "an unknown session", err, cardvault.ErrNotFound)
	_, err = v.Tokenize(ctx, cardvault.NewSessionID(uuid.Nil), testCard(3))
	fails(t, "no session", err, cardvault.ErrNotFound)
	_, err = v.Tokenize(ctx, cardvault.NewSessionID(short.ID), testCard(3))
	fails(t, "the id of a token", err, cardvault.ErrNotFound)
	if p := must(v.List(ctx, nil))(t); p.TotalItems != 2 {
		t.Errorf("%d tokens, want 2", p.TotalItems)
	}
}

func sessionRace(t *testing.T, s store.Store) {
	v, ctx := vaultOn(t, s, nil), t.Context()
	id := must(v.CreateSession(ctx, nil))(t)
	var won atomic.Pointer[cardvault.Token]
	parallel(t, 32, func(i int) error {
		token, err := v.Tokenize(ctx, id.ID, testCard(i))
		switch {
		case err == nil && won.Swap(token) != nil:
			return errors.New("two calls completed the same session")
		case err != nil && !errors.Is(err, cardvault.ErrSessionCompleted):
			return err
		}
		return nil
	})
	if won.Load() == nil {
		t.Fatal("no call completed the session")
	}
	checkListed(t, v, won.Load())
}

// sessionKeyRace has several vaults find no key for sessions: one of them makes it, so that
// a payload which names no key has few to be tried with.
func sessionKeyRace(t *testing.T, s store.Store) {
	var vaults []*cardvault.Vault
	for range 4 {
		vaults = append(vaults, vaultOn(t, s, nil))
	}
	id := must(vaults[0].CreateSession(t.Context(), nil))(t)
	var first atomic.Pointer[string]
	parallel(t, len(vaults), func(i int) error {
		session, err := vaults[i].Session(t.Context(), id.ID)
		if err != nil {
			return err
		}
		if !first.CompareAndSwap(nil, &session.Key.ID) && *first.Load() != session.Key.ID {
			return errors.New("there are several keys at the same time")
		}
		return nil
	})
}

// passed waits until a time has come.
func passed(t testing.TB, at time.Time) {
	t.Helper()
	timer := time.NewTimer(time.Until(at))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-t.Context().Done():
	}
}

// everything returns how many records of any kind lapse before until.
func everything(t testing.TB, s store.Store, until time.Time) (n int) {
	t.Helper()
	noError(t, s.View(t.Context(), func(tx store.ReadTx) error {
		n = 0
		for kind := range store.Kind(255) {
			due, err := tx.Due(kind+1, store.AllShards, until, 100)
			if err != nil {
				return err
			}
			n += len(due)
		}
		return nil
	}))
	return n
}

// ephemeral makes a token that lives for a few seconds.
func ephemeral(t testing.TB, v *cardvault.Vault, n int, ttl time.Duration) *cardvault.Token {
	t.Helper()
	id := must(v.CreateSession(t.Context(), &cardvault.SessionOptions{TokenTTL: ttl}))(t)
	return must(v.Tokenize(t.Context(), id.ID, testCard(n)))(t)
}

func lapse(t *testing.T, s store.Store) { inBubble(t, s, lapseOn) }

func lapseOn(t *testing.T, s store.Store) {
	const life = 4 * time.Second
	v, ctx := vaultOn(t, s, nil), t.Context()
	keep := importCard(t, v, testCard(0), nil)
	known := importCard(t, v, testCard(1), &cardvault.ImportOptions{BusinessKey: canary})
	creator := must(v.CreateAPIKey(ctx, canary, cardvault.AllScopes(), nil))(t)
	key, err := v.CreateAPIKey(ctx, canary, cardvault.AllScopes(), &cardvault.APIKeyOptions{TTL: life, Creator: creator.ID})
	noError(t, err)
	short := []*cardvault.Token{ephemeral(t, v, 2, life), ephemeral(t, v, 3, life)}
	late := ephemeral(t, v, 4, 1000*time.Second)
	lifted := importCard(t, v, testCard(5), &cardvault.ImportOptions{TokenTTL: life})
	lifted = must(v.Update(ctx, lifted.ID, cardvault.TokenUpdate{ExpiresAt: new(time.Time)}))(t)
	business := canary

	short[1] = must(v.Update(ctx, short[1].ID, cardvault.TokenUpdate{BusinessKey: &business}))(t)

	checkListed(t, v, keep, known, short[0], short[1], late, lifted)
	lists(t, v, cardvault.TokenListOptions{BusinessKey: canary}, []*cardvault.Token{known, short[1]})
	if p := must(v.Authenticate(ctx, key.Text.Text()))(t); p.Key.ID != key.ID || !p.Key.ExpiresAt.Equal(p.Key.CreatedAt.Add(life)) {
		t.Errorf("key %+v", p.Key)
	}

	passed(t, short[1].ExpiresAt)
	gone := func(when string) {
		t.Helper()
		checkListed(t, v, keep, known, late, lifted)
		lists(t, v, cardvault.TokenListOptions{}, []*cardvault.Token{keep, known, late, lifted})
		lists(t, v, cardvault.TokenListOptions{BusinessKey: canary}, []*cardvault.Token{known})

		for _, token := range short {
			_, err := v.Get(ctx, token.ID)
			fails(t, when+": Get of a lapsed token", err, cardvault.ErrNotFound)
			_, err = v.Update(ctx, token.ID, cardvault.TokenUpdate{BusinessKey: &business})
			fails(t, when+": Update of a lapsed token", err, cardvault.ErrNotFound)
			fails(t, when+": Delete of a lapsed token", v.Delete(ctx, token.ID), cardvault.ErrNotFound)
		}

		_, err := v.Authenticate(ctx, key.Text.Text())
		fails(t, when+": lapsed key", err, cardvault.ErrUnauthenticated)
		fails(t, when+": revoking a lapsed key", v.DeleteAPIKey(ctx, key.ID), cardvault.ErrNotFound)
		_, err = v.CreateAPIKey(ctx, canary, cardvault.AllScopes(), &cardvault.APIKeyOptions{Creator: key.ID})
		fails(t, when+": a lapsed key as creator", err, cardvault.ErrNotFound)
		if p := must(v.ListAPIKeys(ctx, nil))(t); p.TotalItems != 1 || p.Items[0].ID != creator.ID {
			t.Errorf("%s: %d keys listed, want the creator", when, p.TotalItems)
		}
	}

	gone("before the sweep")
	now := time.Now()
	if n := everything(t, s, now); n != 3 {
		t.Errorf("%d lapsed records in the store, want 2 tokens and a key", n)
	}

	noError(t, v.Drain(ctx))
	if n := everything(t, s, now); n != 0 {
		t.Errorf("Drain left %d lapsed records", n)
	}
	gone("after the sweep")
}

func lapseInRun(t *testing.T, s store.Store) {
	v := vaultOn(t, s, nil)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- v.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run = %v, want nil when its context ends", err)
		}
	}()

	tokens := []*cardvault.Token{ephemeral(t, v, 1, time.Second), ephemeral(t, v, 2, time.Second)}
	end := slices.MaxFunc(tokens, func(a, b *cardvault.Token) int { return a.ExpiresAt.Compare(b.ExpiresAt) }).ExpiresAt
	poll, patience := time.NewTicker(20*time.Millisecond), time.After(5*time.Minute)
	defer poll.Stop()

	for {
		select {
		case <-poll.C:
		case <-patience:
			t.Fatal("Run erases nothing")
		}
		if n := everything(t, s, end); n == 0 {
			break
		}
	}

	if time.Now().Before(end) {
		t.Error("Run erased tokens before they lapsed")
	}
}
