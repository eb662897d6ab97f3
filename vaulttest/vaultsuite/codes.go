package vaultsuite

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/internal/codes"
	"github.com/cardvault/cardvault/ppan"
	"github.com/cardvault/cardvault/receive"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/vaulttest"
	"github.com/google/uuid"
)

var codeBehaviours = []behaviour{
	{"SecurityCode", securityCode},
	{"SecurityCodeErased", securityCodeErased},
	{"SecurityCodeRepeated", securityCodeRepeated},
	{"Refresh", refreshCode},
	{"RefreshRace", refreshRace},
	{"SharedCodes", sharedCodes},
	{"CodesGone", codesGone},
	{"StubbornCodes", stubbornCodes},
	{"ConsumedUntold", consumedUntold},
}

func codeOf(digits string) card.SecurityCode { return card.NewSecurityCode([]byte(digits)) }

// coded returns the n-th card with a security code.
func coded(n int, digits string) cardvault.Card {
	c := testCard(n)
	c.SecurityCode = codeOf(digits)
	return c
}

// A desk is a provider of pseudo card numbers. It reports the security code of the request
// as its error code.
type desk struct{}

func (desk) Info() ppan.Info { return ppan.Info{Name: "desk"} }

func (desk) ObtainPPAN(ctx context.Context, r *ppan.Request) (*ppan.Answer, error) {
	p := &ppan.Answer{Status: ppan.Invalid}
	r.SecurityCode.Expose(func(digits []byte) { p.ErrorCode = string(digits) })
	return p, ctx.Err()
}

func ppanAccount() ppan.Account {
	return ppan.Account{AID: "1", MID: "2", PortalID: "3", Hash: ppan.NewHash([]byte("4"))}
}

// hasCode checks which security code the vault has of a token, "" for none.
func hasCode(t testing.TB, what string, v *cardvault.Vault, id uuid.UUID, want string) {
	t.Helper()
	status := must(v.SecurityCodeStatus(t.Context(), id))(t)
	if status.Available != (want != "") || status.ExpiresAt.IsZero() == status.Available {
		t.Errorf("%s: %+v", what, status)
	}
	if got := must(v.ObtainPPAN(t.Context(), id, ppanAccount()))(t).ErrorCode; got != want {
		t.Errorf("%s: the provider receives another security code", what)
	}
}

// coding returns a vault whose codes can be seen to be used.
func coding(t testing.TB, s store.Store, shared store.CodeCache) *cardvault.Vault {
	t.Helper()
	return vaultOn(t, s, &cardvault.Options{Mode: cardvault.Sandbox, PPAN: desk{}, Codes: shared})
}

func securityCode(t *testing.T, s store.Store) {
	v, ctx := coding(t, s, nil), t.Context()
	before := time.Now().Truncate(time.Microsecond)
	with := must(v.Import(ctx, coded(1, "737"), nil))(t)
	after := time.Now()
	without := importCard(t, v, testCard(1), nil)
	session := must(v.CreateSession(ctx, nil))(t)
	tokenized := must(v.Tokenize(ctx, session.ID, coded(2, "7373")))(t)
	short := must(v.CreateSession(ctx, &cardvault.SessionOptions{TokenTTL: 9 * time.Minute}))(t)
	brief := must(v.Tokenize(ctx, short.ID, coded(3, "999")))(t)

	hasCode(t, "imported", v, with.ID, "737")
	hasCode(t, "already used", v, with.ID, "737")
	hasCode(t, "imported without one", v, without.ID, "")
	hasCode(t, "tokenized", v, tokenized.ID, "7373")
	until := must(v.SecurityCodeStatus(ctx, with.ID))(t).ExpiresAt
	if d := 10 * time.Minute; until.Before(before.Add(d)) || until.After(after.Add(d)) {
		t.Errorf("a code that was stored from %v to %v is kept until %v, want 10 minutes", before, after, until)
	}

	if until = must(v.SecurityCodeStatus(ctx, brief.ID))(t).ExpiresAt; !until.Equal(brief.ExpiresAt) {
		t.Errorf("the code of a token that expires at %v is kept until %v", brief.ExpiresAt, until)
	}

	other := must(v.CreateAccount(ctx, canary, nil))(t)
	for _, v := range []*cardvault.Vault{v.In(other.ID), v.In(uuid.New())} {
		_, err := v.SecurityCodeStatus(ctx, with.ID)
		fails(t, "the status in another account", err, cardvault.ErrNotFound)
		fails(t, "consuming in another account", errorOf(v.Consume(ctx, with.ID, nil)), cardvault.ErrNotFound)
		_, err = v.RefreshSession(ctx, with.ID, nil)
		fails(t, "refreshing in another account", err, cardvault.ErrNotFound)
	}

	hasCode(t, "tried from another account", v, with.ID, "737")

	_, err := v.Import(ctx, coded(4, "12"), nil)
	refuses(t, "two digits", err, "SecurityCode too_short")
	_, err = v.Import(ctx, coded(4, "12a"), nil)
	refuses(t, "a letter", err, "SecurityCode invalid_format")
}

func securityCodeErased(t *testing.T, s store.Store) {
	cache := &cacheSpy{CodeCache: codes.New(100, nil)}
	v, ctx := coding(t, s, cache), t.Context()
	consumed := must(v.Import(ctx, coded(1, "737"), nil))(t)
	deleted := must(v.Import(ctx, coded(2, "737"), nil))(t)
	noError(t, errorOf(v.Consume(ctx, consumed.ID, nil)))
	hasCode(t, "consumed", v, consumed.ID, "")
	noError(t, errorOf(v.Consume(ctx, consumed.ID, nil)))
	noError(t, v.Delete(ctx, deleted.ID))
	fails(t, "consuming the code of a deleted token", errorOf(v.Consume(ctx, deleted.ID, nil)), cardvault.ErrNotFound)
	if n := cache.left(t); n != 0 {
		t.Errorf("%d codes are left in the cache", n)
	}

	// A token that was not stored leaves no code behind.
	broken := &failingStore{Store: s}
	failing := coding(t, broken, cache)
	importCard(t, failing, testCard(3), nil)
	broken.err = errors.New("disk full")
	_, err := failing.Import(ctx, coded(4, "737"), nil)
	fails(t, "importing", err, broken.err)
	if n := cache.left(t); n != 0 || len(cache.ids) != 3 {
		t.Errorf("%d of %d codes are left in the cache", n, len(cache.ids))
	}
}

// A failingStore takes no writes once it has an error.
type failingStore struct {
	store.Store
	err error
}

func (s *failingStore) Update(ctx context.Context, fn func(store.Tx) error) error {
	if s.err != nil {
		return s.err
	}
	return s.Store.Update(ctx, fn)
}

func securityCodeRepeated(t *testing.T, s store.Store) {
	v, ctx := coding(t, s, nil), t.Context()
	token := must(v.Import(ctx, coded(1, "737"), importUnderKey))(t)
	must(v.Consume(ctx, token.ID, underKey))(t)

	must(v.Import(ctx, coded(1, "737"), importUnderKey))(t)
	hasCode(t, "imported again under the same key", v, token.ID, "")

	session := must(v.RefreshSession(ctx, token.ID, underKey))(t)
	if again := must(v.RefreshSession(ctx, token.ID, underKey))(t); again.ID.UUID() != session.ID.UUID() || session.Replayed || !again.Replayed {
		t.Error("a repeated call makes another session")
	}

	must(v.RefreshSecurityCode(ctx, session.ID, codeOf("999")))(t)
	if !must(v.Consume(ctx, token.ID, underKey))(t).Replayed {
		t.Error("consuming again under the same key is not reported as a replay")
	}

	hasCode(t, "consumed again under the same key", v, token.ID, "999")

	noError(t, v.Delete(ctx, token.ID))
	fails(t, "consuming under the key after the token was deleted", errorOf(v.Consume(ctx, token.ID, underKey)), cardvault.ErrNotFound)
	_, err := v.RefreshSession(ctx, token.ID, underKey)
	fails(t, "refreshing under the key after the token was deleted", err, cardvault.ErrNotFound)

	// A slow consumer does not erase a code that is entered after another has consumed.
	cache := &cacheSpy{CodeCache: codes.New(100, nil)}
	v = coding(t, s, cache)
	token = must(v.Import(ctx, coded(4, "737"), nil))(t)
	cache.fail(func(context.Context) error {
		cache.fail(nil)
		fails(t, "consuming under the same key meanwhile", errorOf(v.Consume(ctx, token.ID, underKey)), cardvault.ErrIdempotencyInProgress)
		return nil
	})

	must(v.Consume(ctx, token.ID, underKey))(t)
	hasCode(t, "consumed", v, token.ID, "")

	one, two := must(v.Import(ctx, coded(2, "111"), nil))(t), must(v.Import(ctx, coded(3, "222"), nil))(t)
	must(v.Consume(ctx, one.ID, underKey))(t)
	hasCode(t, "consumed", v, one.ID, "")
	hasCode(t, "another token", v, two.ID, "222")
}

func refreshCode(t *testing.T, s store.Store) {
	events, ctx := new(vaulttest.Recorder), t.Context()
	v := vaultOn(t, s, &cardvault.Options{Mode: cardvault.Sandbox, PPAN: desk{}, Events: events})
	token := must(v.Import(ctx, coded(1, "737"), nil))(t)
	session := must(v.RefreshSession(ctx, token.ID, nil))(t)
	if session.ID.UUID().Version() != 4 {
		t.Error("the session id is not a random UUIDv4")
	}

	hasCode(t, "before the session is completed", v, token.ID, "737")

	_, err := v.RefreshSecurityCode(ctx, session.ID, codeOf("99"))
	refuses(t, "two digits", err, "SecurityCode too_short")
	_, err = v.RefreshSecurityCode(ctx, session.ID, card.SecurityCode{})
	refuses(t, "no code", err, "SecurityCode required")
	_, err = v.Tokenize(ctx, session.ID, testCard(2))
	fails(t, "tokenizing in it", err, cardvault.ErrSessionKind)
	_, err = v.In(must(v.CreateAccount(ctx, canary, nil))(t).ID).RefreshSecurityCode(ctx, session.ID, codeOf("999"))
	fails(t, "from another account", err, cardvault.ErrNotFound)
	hasCode(t, "after a refused code", v, token.ID, "737")

	got := must(v.RefreshSecurityCode(ctx, session.ID, codeOf("999")))(t)
	same(t, "refreshed", got, must(v.Get(ctx, token.ID))(t))
	hasCode(t, "refreshed", v, token.ID, "999")
	noError(t, v.Drain(ctx))
	reported := events.Events()
	if last := reported[len(reported)-1]; len(reported) != 2 || last.Type != receive.TokenUpdated || last.Reason != receive.ReasonSecurityCodeRefreshed || last.TokenID != token.ID {
		t.Errorf("%d events, the last %+v", len(reported), last)
	}

	_, err = v.RefreshSecurityCode(ctx, session.ID, codeOf("111"))
	fails(t, "a completed session", err, cardvault.ErrSessionCompleted)
	_, err = v.Tokenize(ctx, session.ID, testCard(2))
	fails(t, "tokenizing in a completed session", err, cardvault.ErrSessionCompleted)
	hasCode(t, "refreshed once", v, token.ID, "999")

	noError(t, errorOf(v.Consume(ctx, token.ID, nil)))
	again := must(v.RefreshSession(ctx, token.ID, nil))(t)
	must(v.RefreshSecurityCode(ctx, again.ID, codeOf("111")))(t)
	hasCode(t, "consumed and refreshed", v, token.ID, "111")

	plain := must(v.CreateSession(ctx, nil))(t)
	_, err = v.RefreshSecurityCode(ctx, plain.ID, codeOf("999"))
	fails(t, "a session that makes a token", err, cardvault.ErrSessionKind)
	_, err = v.RefreshSecurityCode(ctx, cardvault.NewSessionID(uuid.New()), codeOf("999"))
	fails(t, "an unknown session", err, cardvault.ErrNotFound)

	noError(t, v.Delete(ctx, token.ID))
	token = importCard(t, v, testCard(1), nil)
	late := must(v.RefreshSession(ctx, token.ID, nil))(t)
	done := must(v.RefreshSession(ctx, token.ID, nil))(t)
	must(v.RefreshSecurityCode(ctx, done.ID, codeOf("999")))(t)
	noError(t, v.Delete(ctx, token.ID))
	for _, session := range []cardvault.SessionID{late.ID, done.ID} {
		_, err = v.Session(ctx, session)
		fails(t, "reading a session whose token was deleted", err, cardvault.ErrNotFound)
	}

	_, err = v.RefreshSecurityCode(ctx, late.ID, codeOf("999"))
	fails(t, "a session whose token was deleted", err, cardvault.ErrNotFound)
	_, err = v.RefreshSession(ctx, token.ID, nil)
	fails(t, "a deleted token", err, cardvault.ErrNotFound)
}

// refreshRace: if several calls complete a session at a time one succeeds, and the vault
// has its code.
func refreshRace(t *testing.T, s store.Store) {
	v, ctx := coding(t, s, nil), t.Context()
	token := importCard(t, v, testCard(1), nil)
	session := must(v.RefreshSession(ctx, token.ID, nil))(t)
	var won atomic.Pointer[string]

	parallel(t, 32, func(i int) error {
		digits := string([]byte{'7', byte('0' + i/10), byte('0' + i%10)})
		_, err := v.RefreshSecurityCode(ctx, session.ID, codeOf(digits))
		switch {
		case err == nil && won.Swap(&digits) != nil:
			return errors.New("two calls completed the same session")
		case err != nil && !errors.Is(err, cardvault.ErrSessionCompleted):
			return err
		}
		return nil
	})

	if won.Load() == nil {
		t.Fatal("no call completed the session")
	}

	hasCode(t, "after the race", v, token.ID, *won.Load())

	// A code that comes while its token is deleted does not stay.
	cache := &cacheSpy{CodeCache: codes.New(100, nil)}
	v = coding(t, s, cache)
	token = importCard(t, v, testCard(2), nil)
	session = must(v.RefreshSession(ctx, token.ID, nil))(t)
	cache.fail(func(ctx context.Context) error {
		cache.fail(nil)
		return v.Delete(ctx, token.ID)
	})

	_, err := v.RefreshSecurityCode(ctx, session.ID, codeOf("999"))
	fails(t, "refreshing a token that is deleted meanwhile", err, cardvault.ErrNotFound)
	if n := cache.left(t); n != 0 || len(cache.ids) != 1 {
		t.Errorf("%d of %d codes of deleted tokens are left", n, len(cache.ids))
	}
}

// sharedCodes: vaults on one store that share a cache know each other's codes. The content
// of the cache is useless to anybody else and under any other token.
func sharedCodes(t *testing.T, s store.Store) {
	ctx := t.Context()
	cache := &cacheSpy{CodeCache: codes.New(100, nil)}
	first, second := coding(t, s, cache), coding(t, s, cache)
	alone := coding(t, s, nil)
	token := must(first.Import(ctx, coded(1, "737"), nil))(t)
	other := must(first.Import(ctx, coded(2, "999"), nil))(t)
	hasCode(t, "in another vault", second, token.ID, "737")
	hasCode(t, "in a vault with a cache of its own", alone, token.ID, "")
	hasCode(t, "after that", second, token.ID, "737")

	noError(t, errorOf(first.RotateKeys(ctx, nil)))
	noError(t, errorOf(first.Consume(ctx, token.ID, nil)))
	session := must(first.RefreshSession(ctx, token.ID, nil))(t)
	must(first.RefreshSecurityCode(ctx, session.ID, codeOf("111")))(t)
	hasCode(t, "sealed under a term that this vault does not know yet", second, token.ID, "111")

	sealed := must(cache.Get(ctx, token.ID))(t)
	if bytes.Contains(sealed, []byte("111")) {
		t.Error("the code is in the cache in clear text")
	}

	noError(t, cache.Put(ctx, other.ID, sealed, time.Minute))
	hasCode(t, "moved to another token", first, other.ID, "")
	for i := range sealed {
		sealed[i] ^= 1
		noError(t, cache.Put(ctx, token.ID, sealed, time.Minute))
		sealed[i] ^= 1
		if must(first.SecurityCodeStatus(ctx, token.ID))(t).Available {
			t.Fatalf("byte %d changed: the code is available", i)
		}
	}

	noError(t, cache.Put(ctx, token.ID, nil, time.Minute))
	hasCode(t, "emptied", first, token.ID, "")
	noError(t, cache.Put(ctx, token.ID, sealed, time.Minute))
	noError(t, errorOf(second.Consume(ctx, token.ID, nil)))
	hasCode(t, "consumed in another vault", first, token.ID, "")
}

// codesGone: a cache that fails or hangs costs the code and nothing else.
func codesGone(t *testing.T, s store.Store) {
	ctx := t.Context()
	cache := &cacheSpy{CodeCache: codes.New(100, nil)}
	v := coding(t, s, cache)
	token := must(v.Import(ctx, coded(1, "737"), nil))(t)

	for what, err := range map[string]error{"dead": errors.New("connection refused"), "hanging": nil} {
		cache.fail(func(ctx context.Context) error {
			if err == nil {
				<-ctx.Done()
				return ctx.Err()
			}
			return err
		})

		imported := must(v.Import(ctx, coded(2, "737"), nil))(t)
		must(v.Get(ctx, imported.ID))(t)
		hasCode(t, what, v, token.ID, "")
		fails(t, what+": consuming", errorOf(v.Consume(ctx, token.ID, nil)), cardvault.ErrUnavailable)
		consumed := &cardvault.CallOptions{IdempotencyKey: idemKey + what}
		fails(t, what+": consuming", errorOf(v.Consume(ctx, token.ID, consumed)), cardvault.ErrUnavailable)
		session := must(v.RefreshSession(ctx, token.ID, nil))(t)
		_, failed := v.RefreshSecurityCode(ctx, session.ID, codeOf("999"))
		fails(t, what+": refreshing", failed, cardvault.ErrUnavailable)
		noError(t, v.Delete(ctx, imported.ID))

		// The cache still has the former code, to no avail.
		cache.fail(nil)
		hasCode(t, what+": afterwards", v, token.ID, "")
		if err == nil {
			continue
		}

		// What could not be done under a key can be done under it later.
		must(v.Consume(ctx, token.ID, consumed))(t)
		hasCode(t, "consumed afterwards", v, token.ID, "")
		session = must(v.RefreshSession(ctx, token.ID, nil))(t)
		must(v.RefreshSecurityCode(ctx, session.ID, codeOf("737")))(t)
	}

	// A new code that is not taken leaves none: the shopper has replaced the old one.
	session := must(v.RefreshSession(ctx, token.ID, nil))(t)
	cache.fail(func(context.Context) error {
		cache.fail(nil)
		return errors.New("out of memory")
	})

	_, err := v.RefreshSecurityCode(ctx, session.ID, codeOf("999"))
	fails(t, "refreshing", err, cardvault.ErrUnavailable)
	hasCode(t, "a new code was refused", v, token.ID, "")

	// Nor does one of a token that may be gone.
	token = must(v.Import(ctx, coded(3, "737"), nil))(t)
	session = must(v.RefreshSession(ctx, token.ID, nil))(t)
	cache.fail(func(context.Context) error {
		cache.fail(nil)
		return v.Close()
	})

	_, err = v.RefreshSecurityCode(ctx, session.ID, codeOf("999"))
	fails(t, "refreshing in a vault that is closed meanwhile", err, cardvault.ErrClosed)
	if _, err := cache.CodeCache.Get(ctx, token.ID); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("a code is left: %v", err)
	}
}

// stubbornCodes: a security code that was consumed or replaced is not used again, also if
// its cache erases nothing and gives whatever it ever had.
func stubbornCodes(t *testing.T, s store.Store) {
	ctx := t.Context()
	cache := new(stubborn)
	v, replica := coding(t, s, cache), coding(t, s, cache)
	has := func(what string, id uuid.UUID, want ...string) {
		t.Helper()
		for i := range cache.kept(id) {
			cache.give = i
			text := ""
			if i < len(want) {
				text = want[i]
			}
			hasCode(t, what, v, id, text)
			hasCode(t, what+", in another vault", replica, id, text)
		}
	}

	token := must(v.Import(ctx, coded(1, "111"), nil))(t)
	has("imported", token.ID, "111")
	must(v.Consume(ctx, token.ID, underKey))(t)
	has("consumed", token.ID)

	enter := func(digits string) {
		t.Helper()
		session := must(replica.RefreshSession(ctx, token.ID, nil))(t)
		must(replica.RefreshSecurityCode(ctx, session.ID, codeOf(digits)))(t)
	}

	enter("222")
	has("refreshed", token.ID, "", "222")
	must(replica.Consume(ctx, token.ID, underKey))(t)
	has("refreshed and consumed again under the former key", token.ID, "", "222")
	must(v.Update(ctx, token.ID, cardvault.TokenUpdate{Expiry: &card.Expiry{Month: 11, Year: 2090}}))(t)
	has("updated", token.ID, "", "222")
	enter("333")
	has("refreshed twice", token.ID, "", "", "333")
	noError(t, errorOf(replica.Consume(ctx, token.ID, nil)))
	has("consumed", token.ID)

	noError(t, errorOf(v.Consume(ctx, token.ID, nil)))
	enter("444")
	has("consumed twice and refreshed", token.ID, "", "", "", "444")

	session := must(v.CreateSession(ctx, nil))(t)
	token = must(v.Tokenize(ctx, session.ID, coded(2, "555")))(t)
	has("tokenized", token.ID, "555")
	noError(t, errorOf(v.Consume(ctx, token.ID, nil)))
	has("tokenized and consumed", token.ID)
}

// A stubborn is a cache that keeps every value it was ever given, and returns the value of
// an id that a test chooses.
type stubborn struct {
	mu     sync.Mutex
	values map[uuid.UUID][][]byte
	give   int
}

func (c *stubborn) kept(id uuid.UUID) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.values[id])
}

func (c *stubborn) Put(_ context.Context, id uuid.UUID, value []byte, _ time.Duration) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.values == nil {
		c.values = map[uuid.UUID][][]byte{}
	}
	c.values[id] = append(c.values[id], bytes.Clone(value))
	return nil
}

func (c *stubborn) Get(_ context.Context, id uuid.UUID) ([]byte, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := c.values[id]
	if c.give >= len(all) {
		return nil, store.ErrNotFound
	}
	return bytes.Clone(all[c.give]), nil
}

func (c *stubborn) Delete(context.Context, uuid.UUID) error { return nil }
func (c *stubborn) Close() error                            { return nil }

// consumedUntold: the fate of a security code does not show in events.
func consumedUntold(t *testing.T, s store.Store) {
	var mail mailbox
	v, ctx := sending(t, s, &mail), t.Context()
	newHook(t, v, receiver)
	token := must(v.Import(ctx, coded(1, "737"), nil))(t)
	noError(t, errorOf(v.Consume(ctx, token.ID, nil)))
	noError(t, v.Drain(ctx))
	updated := must(v.Update(ctx, token.ID, cardvault.TokenUpdate{Expiry: &card.Expiry{Month: 11, Year: 2090}}))(t)
	noError(t, errorOf(v.Consume(ctx, token.ID, nil)))
	noError(t, errorOf(v.Consume(ctx, token.ID, nil)))
	last := must(v.Update(ctx, token.ID, cardvault.TokenUpdate{Expiry: &card.Expiry{Month: 10, Year: 2090}}))(t)

	noError(t, errorOf(v.Consume(ctx, token.ID, nil)))
	noError(t, v.Drain(ctx))
	var got, want []card.Expiry
	for _, e := range mail.at(receiver) {
		got = append(got, e.Token.Expiry)
	}

	for _, t := range []*cardvault.Token{token, updated, last} {
		want = append(want, t.Expiry)
	}
	if !slices.Equal(got, want) {
		t.Errorf("events have the expiries %v, want %v", got, want)
	}
}

// A cacheSpy notes which ids a cache is given. Before a call does anything it asks
// failed, if that is set, for an error.
type cacheSpy struct {
	store.CodeCache
	mu     sync.Mutex
	ids    map[uuid.UUID]bool
	failed func(context.Context) error
}

func (c *cacheSpy) fail(f func(context.Context) error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failed = f
}

func (c *cacheSpy) call(ctx context.Context, f func() error) error {
	c.mu.Lock()
	failed := c.failed
	c.mu.Unlock()
	if failed != nil {
		if err := failed(ctx); err != nil {
			return err
		}
	}
	return f()
}

func (c *cacheSpy) Put(ctx context.Context, id uuid.UUID, value []byte, ttl time.Duration) error {
	return c.call(ctx, func() error {
		c.mu.Lock()
		if c.ids == nil {
			c.ids = map[uuid.UUID]bool{}
		}
		c.ids[id] = true
		c.mu.Unlock()
		return c.CodeCache.Put(ctx, id, value, ttl)
	})
}

func (c *cacheSpy) Get(ctx context.Context, id uuid.UUID) (value []byte, err error) {
	err = c.call(ctx, func() (err error) {
		value, err = c.CodeCache.Get(ctx, id)
		return err
	})
	return value, err
}

func (c *cacheSpy) Delete(ctx context.Context, id uuid.UUID) error {
	return c.call(ctx, func() error { return c.CodeCache.Delete(ctx, id) })
}

// left returns how many of the codes it was given the cache still has.
func (c *cacheSpy) left(t testing.TB) (n int) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	for id := range c.ids {
		switch _, err := c.CodeCache.Get(t.Context(), id); {
		case err == nil:
			n++
		case !errors.Is(err, store.ErrNotFound):
			t.Fatal(err)
		}
	}
	return n
}
