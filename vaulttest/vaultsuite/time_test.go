package vaultsuite_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/internal/bubble"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/memstore"
	"github.com/cardvault/cardvault/vaulttest"
	"github.com/google/uuid"
)

// These tests run in bubbles, whose clock stands still while any goroutine runs. Each test
// looks at an instant and just before it.

func testCard(number string) cardvault.Card {
	return cardvault.Card{PAN: card.NewPAN([]byte(number)), Expiry: card.Expiry{Month: 12, Year: 2090}}
}

const (
	visa       = "4111110000000005"
	mastercard = "5555555555554444"
)

// until moves the clock of the bubble to an instant.
func until(t testing.TB, at time.Time) {
	t.Helper()
	time.Sleep(time.Until(at))
	if !time.Now().Equal(at) {
		t.Fatalf("the clock shows %v, want %v", time.Now(), at)
	}
}

func want(t testing.TB, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: error %v, want %v", what, err, want)
	}
}

func total(t testing.TB, v *cardvault.Vault) int64 {
	t.Helper()
	p, err := v.List(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if int64(len(p.Items)) != p.TotalItems {
		t.Errorf("%d tokens on the only page of %d", len(p.Items), p.TotalItems)
	}
	n := int64(0)
	for _, err := range v.All(t.Context(), nil) {
		if err != nil {
			t.Fatal(err)
		}
		n++
	}
	if n != p.TotalItems {
		t.Errorf("All yields %d tokens of %d", n, p.TotalItems)
	}
	return n
}

func session(t testing.TB, v *cardvault.Vault, ttl time.Duration) uuid.UUID {
	t.Helper()
	id, err := v.CreateSession(t.Context(), &cardvault.SessionOptions{TokenTTL: ttl})
	if err != nil {
		t.Fatal(err)
	}
	return id.ID.UUID()
}

func tokenize(t testing.TB, v *cardvault.Vault, ttl time.Duration) *cardvault.Token {
	t.Helper()
	token, err := v.Tokenize(t.Context(), cardvault.NewSessionID(session(t, v, ttl)), testCard(visa))
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func TestSessionTTL(t *testing.T) {
	for _, opts := range []*cardvault.Options{nil, {SessionTTL: time.Minute}, {SessionTTL: time.Hour}} {
		ttl := 15 * time.Minute
		if opts != nil {
			ttl = opts.SessionTTL
		}
		bubble.Test(t, func(t *testing.T) {
			v := vaulttest.NewWith(t, opts)
			early, late := session(t, v, 0), session(t, v, 0)
			end := time.Now().Add(ttl)
			until(t, end.Add(-time.Microsecond))
			if _, err := v.Tokenize(t.Context(), cardvault.NewSessionID(early), testCard(visa)); err != nil {
				t.Errorf("%v: just before the end: %v", ttl, err)
			}
			until(t, end)
			for _, id := range []uuid.UUID{early, late} {
				_, err := v.Tokenize(t.Context(), cardvault.NewSessionID(id), testCard(visa))
				want(t, fmt.Sprintf("%v: at the end", ttl), err, cardvault.ErrNotFound)
			}
			if n := total(t, v); n != 1 {
				t.Errorf("%v: %d tokens, want 1", ttl, n)
			}
		})
	}
}

func TestIdempotencyTTL(t *testing.T) {
	for _, opts := range []*cardvault.Options{nil, {IdempotencyTTL: time.Hour}, {IdempotencyTTL: 7 * 24 * time.Hour}} {
		ttl := 24 * time.Hour
		if opts != nil {
			ttl = opts.IdempotencyTTL
		}
		for _, drain := range []bool{false, true} {
			bubble.Test(t, func(t *testing.T) {
				v := vaulttest.NewWith(t, opts)
				call := func(number string) (uuid.UUID, bool, error) {
					token, err := v.Import(t.Context(), testCard(number), &cardvault.ImportOptions{IdempotencyKey: "k"})
					if err != nil {
						return uuid.Nil, false, err
					}
					return token.ID, token.Replayed, nil
				}
				id, _, err := call(visa)
				if err != nil {
					t.Fatal(err)
				}
				end := time.Now().Add(ttl)
				until(t, end.Add(-time.Microsecond))
				if drain {
					if err := v.Drain(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				if again, replayed, err := call(visa); again != id || !replayed || err != nil {
					t.Errorf("%v: just before the end: replayed %v, error %v", ttl, replayed, err)
				}
				_, _, err = call(mastercard)
				want(t, "another request just before the end", err, cardvault.ErrIdempotencyKeyReused)
				until(t, end)
				if drain {
					if err := v.Drain(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				other, replayed, err := call(mastercard) // the key is free
				if other == id || replayed || err != nil {
					t.Errorf("%v: at the end: replayed %v, error %v", ttl, replayed, err)
				}
				if again, replayed, err := call(mastercard); again != other || !replayed || err != nil {
					t.Errorf("%v: again under the freed key: replayed %v, error %v", ttl, replayed, err)
				}
				if n := total(t, v); n != 2 {
					t.Errorf("%v: %d tokens, want 2", ttl, n)
				}
			})
		}
	}
}

// TestLapse runs on bbolt too, which works in a bubble.
func TestLapse(t *testing.T) {
	for name, open := range map[string]func(testing.TB) store.Store{"mem": mem, "bolt": bolt} {
		t.Run(name, func(t *testing.T) {
			for _, ttl := range []time.Duration{time.Second, time.Minute, cardvault.MaxTokenTTL} {
				bubble.Test(t, func(t *testing.T) { lapseOf(t, open(t), ttl) })
			}
		})
	}
}

func lapseOf(t *testing.T, s store.Store, ttl time.Duration) {
	defer s.Close()
	keys, err := cardvault.KeyBytes(make([]byte, cardvault.KeySize))
	if err != nil {
		t.Fatal(err)
	}
	v, err := cardvault.New(t.Context(), s, keys, &cardvault.Options{Mode: cardvault.Sandbox})
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	ctx := t.Context()
	token := tokenize(t, v, ttl)
	until(t, time.Now().Add(time.Microsecond))
	tokenize(t, v, ttl) // expires a little later
	tokenize(t, v, 0*time.Second)
	expiry := card.Expiry{Month: 1, Year: 2031}
	until(t, token.ExpiresAt.Add(-time.Microsecond))
	if _, err := v.Get(ctx, token.ID); err != nil {
		t.Errorf("%v: Get just before the end: %v", ttl, err)
	}
	if _, err := v.Update(ctx, token.ID, cardvault.TokenUpdate{Expiry: &expiry}); err != nil {
		t.Errorf("%v: Update just before the end: %v", ttl, err)
	}
	if n := total(t, v); n != 3 {
		t.Errorf("%v: %d tokens just before the end, want 3", ttl, n)
	}
	// A token that expires during All is not seen.
	seen := 0
	for _, err := range v.All(ctx, nil) {
		if err != nil {
			t.Fatal(err)
		}
		if seen++; seen == 1 {
			until(t, token.ExpiresAt)
		}
	}
	if seen != 2 {
		t.Errorf("%v: All saw %d tokens although one lapsed, want 2", ttl, seen)
	}
	for _, drained := range []bool{false, true} {
		_, err := v.Get(ctx, token.ID)
		want(t, "Get", err, cardvault.ErrNotFound)
		_, err = v.Update(ctx, token.ID, cardvault.TokenUpdate{Expiry: &expiry})
		want(t, "Update", err, cardvault.ErrNotFound)
		want(t, "Delete", v.Delete(ctx, token.ID), cardvault.ErrNotFound)
		if n := total(t, v); n != 2 {
			t.Errorf("%v, drained %v: %d tokens at the end, want 2", ttl, drained, n)
		}
		if err := v.Drain(ctx); err != nil {
			t.Fatal(err)
		}
	}
	until(t, time.Now().Add(time.Hour))
	if n := total(t, v); n != 1 {
		t.Errorf("%v: %d tokens in the end, want 1", ttl, n)
	}
}

func TestAPIKeyExpiry(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		v, ctx := vaulttest.New(t), t.Context()
		creator, err := v.CreateAPIKey(ctx, "by", cardvault.AllScopes(), &cardvault.APIKeyOptions{TTL: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		child, err := v.CreateAPIKey(ctx, "made", cardvault.AllScopes(), &cardvault.APIKeyOptions{Creator: creator.ID})
		if err != nil {
			t.Fatal(err)
		}
		until(t, creator.ExpiresAt.Add(-time.Microsecond))
		for _, text := range []string{creator.Text.Text(), child.Text.Text()} {
			if _, err := v.Authenticate(ctx, text); err != nil {
				t.Errorf("just before the end: %v", err)
			}
		}
		until(t, creator.ExpiresAt)
		for range 2 {
			for _, text := range []string{creator.Text.Text(), child.Text.Text()} {
				_, err := v.Authenticate(ctx, text)
				want(t, "at the end", err, cardvault.ErrUnauthenticated)
			}
			if err := v.Drain(ctx); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// TestAPIKeyLastUse: the hour of the last use is written by itself, and deleted with the key.
func TestAPIKeyLastUse(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := memstore.New()
		v, ctx := vaultOn(t, s, nil), t.Context()
		before := recordsOf(t, s)
		key, err := v.CreateAPIKey(ctx, "brief", cardvault.AllScopes(), &cardvault.APIKeyOptions{TTL: 3 * time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		last := func() time.Time {
			t.Helper()
			k, err := v.APIKey(ctx, key.ID)
			if err != nil {
				t.Fatal(err)
			}
			return k.LastUsedAt
		}
		use := func() {
			t.Helper()
			_, err := v.Authenticate(ctx, key.Text.Text())
			if err != nil {
				t.Fatal(err)
			}
		}

		use()
		if !last().IsZero() {
			t.Error("a use is written at once")
		}
		time.Sleep(61 * time.Second) // without Run
		if at := last(); !at.Equal(key.CreatedAt) {
			t.Errorf("in the hour in which it was made the key was used at %v", at)
		}
		time.Sleep(time.Hour)
		if at := last(); !at.Equal(key.CreatedAt) {
			t.Errorf("the last use is at %v without another", at)
		}
		use()
		time.Sleep(61 * time.Second)
		if at, want := last(), time.Now().UTC().Truncate(time.Hour); !at.Equal(want) {
			t.Errorf("last used at %v, want %v", at, want)
		}

		time.Sleep(2 * time.Hour) // the key lapses
		if err := v.Drain(ctx); err != nil {
			t.Fatal(err)
		}
		if n := recordsOf(t, s); n != before {
			t.Errorf("a key that has lapsed leaves %d records", n-before)
		}
	})
}

// recordsOf returns the number of records in a store.
func recordsOf(t *testing.T, s store.Store) (n int) {
	t.Helper()
	err := s.View(t.Context(), func(tx store.ReadTx) error {
		n = 0
		for kind := store.Kind(1); kind != 0; kind++ {
			found, err := tx.Scan(kind, uuid.Nil, 1000)
			if err != nil {
				return err
			}
			n += len(found)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// A payment secret is used from its time on, and the one before it is removed at the next
// rotation.
func TestPaymentSecretActivation(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		v, ctx := vaulttest.New(t), t.Context()
		m, err := v.PrimaryMerchant(ctx)
		if err != nil {
			t.Fatal(err)
		}
		var ids []string
		for i, want := range []struct{ secrets, kept int }{{1, 0}, {2, 0}, {2, 1}} {
			if _, err := v.RotatePaymentSecret(ctx, m.ID, nil); err != nil {
				t.Fatal(err)
			}
			if m, err = v.PrimaryMerchant(ctx); err != nil {
				t.Fatal(err)
			}
			if len(m.Secrets) != want.secrets || i > 0 && m.Secrets[0].KeyID != ids[want.kept] {
				t.Errorf("rotation %d leaves %d secrets, want %d", i, len(m.Secrets), want.secrets)
			}
			last := m.Secrets[len(m.Secrets)-1]
			ids = append(ids, last.KeyID)
			until(t, last.ActivateAt)
		}
	})
}

func TestSessionCardExpiry(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		v := vaulttest.New(t)
		c := testCard(visa)
		c.Expiry = card.Expiry{Month: 2, Year: 2024}
		// Valid through the last day of its month, anywhere on earth.
		end := time.Date(2024, 3, 1, 12, 0, 0, 0, time.UTC)
		until(t, end.Add(-time.Microsecond))
		if _, err := v.Tokenize(t.Context(), cardvault.NewSessionID(session(t, v, 0)), c); err != nil {
			t.Errorf("just before the end: %v", err)
		}
		until(t, end)
		_, err := v.Tokenize(t.Context(), cardvault.NewSessionID(session(t, v, 0)), c)
		if errs := cardvault.FieldErrors(err); len(errs) != 1 || errs[0].Code != "card_expired" {
			t.Errorf("at the end: %v", err)
		}
	})
}

// Run erases expired records at their instant, or within half a minute if another vault
// stored them.
func TestRunSweeps(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := mem(t)
		v, other := vaultOn(t, s, nil), vaultOn(t, s, nil)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- v.Run(ctx) }()
		synctest.Wait()
		for _, test := range []struct {
			by        *cardvault.Vault
			ttl, late time.Duration
		}{{v, time.Second, 0}, {v, 29 * time.Second, 0}, {v, 100 * time.Second, 0}, {other, time.Second, 30 * time.Second}, {other, 10 * time.Minute, 0}} {
			before := rows(t, s)
			token := tokenize(t, test.by, test.ttl)
			until(t, token.ExpiresAt.Add(-1))
			synctest.Wait()
			if n := rows(t, s); n != before+2 { // token and session
				t.Errorf("%v: %d more rows before the end, want 2", test.ttl, n-before)
			}
			until(t, token.ExpiresAt.Add(test.late))
			synctest.Wait()
			if n := rows(t, s); n != before+1 {
				t.Errorf("%v: %d more rows at the end, want 1", test.ttl, n-before)
			}
			until(t, time.Now().Add(time.Hour)) // the session lapses
			synctest.Wait()
		}
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run = %v", err)
		}
	})
}

// rows returns the number of records that will lapse.
func rows(t testing.TB, s store.Store) (n int) {
	t.Helper()
	err := s.View(t.Context(), func(tx store.ReadTx) error {
		for kind := range store.Kind(255) {
			due, err := tx.Due(kind+1, store.AllShards, time.Now().AddDate(100, 0, 0), 100)
			if err != nil {
				return err
			}
			n += len(due)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func vaultOn(t testing.TB, s store.Store, opts *cardvault.Options) *cardvault.Vault {
	t.Helper()
	keys, err := cardvault.KeyBytes(make([]byte, cardvault.KeySize))
	if err != nil {
		t.Fatal(err)
	}
	if opts == nil {
		opts = &cardvault.Options{Mode: cardvault.Sandbox}
	}
	v, err := cardvault.New(t.Context(), s, keys, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := v.Close(); err != nil {
			t.Errorf("closing the vault: %v", err)
		}
	})
	return v
}

// If Run is not running, the vault warns once about waiting work.
func TestWarnsWithoutRun(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var log lines
		v := vaulttest.NewWith(t, &cardvault.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		tokenize(t, v, 1*time.Second)
		if log.String() != "" {
			t.Errorf("warned at once: %s", log.String())
		}
		until(t, time.Now().Add(time.Hour))
		tokenize(t, v, 1*time.Second)
		tokenize(t, v, 1*time.Second)
		if n := strings.Count(log.String(), "Run"); n != 1 {
			t.Errorf("%d warnings, want 1: %s", n, log.String())
		}
	})
}

// lines collects logged text, from any goroutine.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// A failing store is tried again until it answers.
func TestRunGoesOn(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := &failing{Store: mem(t)}
		var log strings.Builder
		v := vaultOn(t, s, &cardvault.Options{Mode: cardvault.Sandbox, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		token := tokenize(t, v, 5*time.Second)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- v.Run(ctx) }()
		synctest.Wait()
		s.down.Store(true)
		until(t, token.ExpiresAt.Add(10*time.Second))
		synctest.Wait()
		if !strings.Contains(log.String(), "will be retried") {
			t.Error("a failure is not logged")
		}
		s.down.Store(false)
		until(t, time.Now().Add(2*time.Second))
		synctest.Wait()
		if n := rows(t, s); n != 1 {
			t.Errorf("%d rows, want only the session", n)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run = %v", err)
		}
	})
}

type failing struct {
	store.Store
	down atomic.Bool
}

func (s *failing) View(ctx context.Context, fn func(store.ReadTx) error) error {
	if s.down.Load() {
		return store.ErrUnavailable
	}
	return s.Store.View(ctx, fn)
}
