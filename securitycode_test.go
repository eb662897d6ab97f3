package cardvault_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	codecache "github.com/cardvault/cardvault/internal/codes"
	"github.com/cardvault/cardvault/network"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/memstore"
	"github.com/cardvault/cardvault/vaulttest"
	"github.com/google/uuid"
)

func coded(c cardvault.Card, digits string) cardvault.Card {
	c.SecurityCode = card.NewSecurityCode([]byte(digits))
	return c
}

func (l *lab) hasCode(id uuid.UUID, want bool) time.Time {
	l.Helper()
	got, err := l.SecurityCodeStatus(l.Context(), id)
	l.must(err)
	if got.Available != want || got.Available == got.ExpiresAt.IsZero() {
		l.Errorf("after %v: a security code is available: %+v", time.Since(l.get(id).CreatedAt), got)
	}
	return got.ExpiresAt
}

func TestSecurityCodeTTL(t *testing.T) {
	for ttl, want := range map[time.Duration]time.Duration{0: 10 * time.Minute, time.Minute: time.Minute, 15 * time.Minute: 15 * time.Minute} {
		inLab(t, &cardvault.Options{Mode: cardvault.Sandbox, SecurityCodeTTL: ttl}, func(l *lab) {
			id := l.imports(coded(visa, "737"))
			until := l.hasCode(id, true)
			if d := until.Sub(l.get(id).CreatedAt); d != want {
				l.Errorf("kept for %v, want %v", d, want)
			}
			l.pass(time.Until(until) - time.Microsecond)
			l.hasCode(id, true)
			l.pass(time.Microsecond)
			l.hasCode(id, false)

			session, err := l.RefreshSession(l.Context(), id, nil)
			l.must(err)
			l.pass(time.Minute)
			l.must2(l.RefreshSecurityCode(l.Context(), session.ID, card.NewSecurityCode([]byte("999"))))
			if d := time.Until(l.hasCode(id, true)); d != want {
				l.Errorf("after the refresh kept for %v, want %v", d, want)
			}
		})
	}
	for _, ttl := range []time.Duration{time.Second, time.Minute - 1, 15*time.Minute + 1, -1} {
		if _, err := newVault(t, &cardvault.Options{SecurityCodeTTL: ttl}); err == nil {
			t.Errorf("a TTL of %v is accepted", ttl)
		}
	}
	for _, n := range []int{-1, 1e8 + 1} {
		if _, err := newVault(t, &cardvault.Options{SecurityCodeCapacity: n}); err == nil {
			t.Errorf("a capacity of %d is accepted", n)
		}
	}
}

// TestRefreshSessionEnds: a session for entering a code expires like any other.
func TestRefreshSessionEnds(t *testing.T) {
	inLab(t, nil, func(l *lab) {
		id := l.imports(visa)
		session, err := l.RefreshSession(l.Context(), id, nil)
		l.must(err)
		l.pass(15 * time.Minute)
		_, err = l.RefreshSecurityCode(l.Context(), session.ID, card.NewSecurityCode([]byte("999")))
		if !errors.Is(err, cardvault.ErrNotFound) {
			l.Errorf("after a quarter of an hour: %v", err)
		}
		l.hasCode(id, false)
	})
}

// TestSecurityCodeInProvisioning: the network receives the code while it is stored, without
// consuming it.
func TestSecurityCodeInProvisioning(t *testing.T) {
	inLab(t, &cardvault.Options{Mode: cardvault.Live, SecurityCodeTTL: time.Minute}, func(l *lab) {
		l.net.script(refuse("Provision", schemeError("issuer_unavailable")), nil)
		id := l.imports(coded(visa, "737"))
		l.drain()
		l.hasCode(id, true)
		l.net.script(nil, nil)
		l.pass(40 * time.Second) // until the second attempt
		l.drain()
		l.is(id, active, "")
		other := l.imports(visa)
		l.drain()
		l.is(other, active, "")
		if want := []string{"737", ""}; !slices.Equal(l.net.codes, want) {
			l.Errorf("the network got codes %q, want %q", l.net.codes, want)
		}
		l.net.script(refuse("Provision", schemeError("declined")), nil)
		late := l.imports(coded(visa, "737"))
		l.drain()
		l.is(late, failed, "declined")
		l.net.script(nil, nil)
		l.pass(2 * time.Minute)
		l.must2(l.Provision(l.Context(), late, nil))
		l.drain()
		if got := l.net.codes[len(l.net.codes)-1]; got != "" {
			l.Error("an expired code was sent")
		}
	})
}

// TestConsumedInProvisioning: a code consumed between two attempts is not sent to the
// network, even if the cache still has it.
func TestConsumedInProvisioning(t *testing.T) {
	cache := &undeleting{codecache.New(10, nil)}
	inLab(t, &cardvault.Options{Mode: cardvault.Live, Codes: cache}, func(l *lab) {
		l.net.script(refuse("Provision", schemeError("issuer_unavailable")), nil)
		id := l.imports(coded(visa, "737"))
		l.drain()
		l.must2(l.Consume(l.Context(), id, nil))
		l.net.script(nil, nil)
		l.pass(40 * time.Second)
		l.drain()
		l.is(id, active, "")
		if want := []string{""}; !slices.Equal(l.net.codes, want) {
			l.Errorf("the network got codes %q, want %q", l.net.codes, want)
		}
	})
}

// An undeleting cache erases nothing.
type undeleting struct{ store.CodeCache }

func (undeleting) Delete(context.Context, uuid.UUID) error { return nil }

// TestConsumeDies: wherever a process dies while consuming a code, the code is either erased
// or unchanged. Repeating the call under its idempotency key erases no later code.
func TestConsumeDies(t *testing.T) {
	for survived := range 3 { // number of writes before the process dies
		inLab(t, &cardvault.Options{Mode: cardvault.Sandbox, Codes: codecache.New(10, nil)}, func(l *lab) {
			id := l.imports(coded(visa, "111"))
			ctx, under := l.Context(), &cardvault.CallOptions{IdempotencyKey: "order 1"}
			n := 0
			l.store.hook(func() error {
				if n++; n > survived {
					return store.ErrUnavailable
				}
				return nil
			})
			if _, err := l.Consume(ctx, id, under); (err == nil) != (survived == 2) {
				l.Errorf("dying after %d writes: %v", survived, err)
			}
			l.store.hook(nil)
			l.hasCode(id, survived == 0)
			session, err := l.RefreshSession(l.Context(), id, nil)
			l.must(err)
			l.must2(l.RefreshSecurityCode(l.Context(), session.ID, card.NewSecurityCode([]byte("222"))))
			l.pass(2 * time.Minute)
			l.must2(l.Consume(ctx, id, under))
			l.hasCode(id, survived > 0)
			l.must2(l.Consume(ctx, id, under))
		})
	}
}

// TestSecurityCodeInRefusals: a network may repeat the code in an answer, against its
// contract. The code does not reach a log, an answer or an event.
func TestSecurityCodeInRefusals(t *testing.T) {
	events := new(vaulttest.Recorder)
	inLab(t, &cardvault.Options{Mode: cardvault.Sandbox, Events: events}, func(l *lab) {
		for what, test := range map[string]struct {
			err  error
			code string // the part of it that the reason shows
		}{
			"an error":                {errors.New(`400: {"cvc2":"7373"}`), ""},
			"an error with a number":  {errors.New("card 4242 and 4242, 4242: 4242"), ""},
			"a scheme code":           {&network.Error{Source: network.SourceScheme, Code: "declined", SchemeCode: "CVC2 7373 MISMATCH"}, ""},
			"a code of its own":       {&network.Error{Source: network.SourceConfiguration, Code: "CVC 7373"}, ""},
			"something else":          {&network.Error{Source: network.SourceScheme, Code: "declined", SchemeCode: "17373"}, "17373"},
			"wrapped, something else": {fmt.Errorf("7373: %w", &network.Error{Source: network.SourceScheme, Code: "declined", SchemeCode: "N7"}), "N7"},
		} {
			l.net.script(refuse("Provision", test.err), nil)
			id := l.imports(coded(visa, "7373"))
			l.drain()
			if r := l.get(id).NetworkTokenStatusReason; r != nil && r.SchemeCode != test.code {
				l.Errorf("%s: the scheme code shows as %q, want %q", what, r.SchemeCode, test.code)
			}
			l.drain()
		}
		vaulttest.AssertNoLeak(t, []string{"7373"}, l.log.text(), events.Events())
		if text := l.log.text(); strings.Contains(text, "4242 and") || !strings.Contains(text, "contains data that was sent") {
			l.Errorf("logged: %s", text)
		}
	})
}

// TestCallerGone: a caller that leaves during a call loses no code, and leaves none behind.
func TestCallerGone(t *testing.T) {
	cache := &countedCodes{CodeCache: codecache.New(10, nil), ids: map[uuid.UUID]bool{}}
	inLab(t, &cardvault.Options{Mode: cardvault.Sandbox, Codes: cache}, func(l *lab) {
		id := l.imports(visa)
		session, err := l.RefreshSession(l.Context(), id, nil)
		l.must(err)
		ctx, leave := context.WithCancel(l.Context())
		l.store.then = leave
		l.must2(l.RefreshSecurityCode(ctx, session.ID, card.NewSecurityCode([]byte("999"))))
		l.hasCode(id, true)

		ctx, leave = context.WithCancel(l.Context())
		l.store.hook(func() error { leave(); return errors.New("disk full") })
		if _, err := l.Import(ctx, coded(visa, "737"), nil); err == nil {
			l.Fatal("an import on a full disk succeeds")
		}
		if n := cache.left(l); n != 1 || len(cache.ids) != 2 {
			l.Errorf("%d of %d codes are stored, want 1 of 2", n, len(cache.ids))
		}
	})
}

// TestUnknownDeletion: a token's code is erased even if the outcome of the token's deletion
// is unknown.
func TestUnknownDeletion(t *testing.T) {
	cache := &countedCodes{CodeCache: codecache.New(10, nil), ids: map[uuid.UUID]bool{}}
	inLab(t, &cardvault.Options{Mode: cardvault.Sandbox, Codes: cache}, func(l *lab) {
		id := l.imports(coded(visa, "737"))
		l.store.set(store.ErrOutcomeUnknown, true)
		if err := l.Delete(l.Context(), id); !errors.Is(err, cardvault.ErrOutcomeUnknown) {
			l.Fatalf("deleting: %v", err)
		}
		l.store.set(nil, false)
		if n := cache.left(l); n != 0 || len(cache.ids) != 1 {
			l.Errorf("%d of %d codes are stored, want none of 1", n, len(cache.ids))
		}
	})
}

// countedCodes is a cache that records the ids it was given.
type countedCodes struct {
	store.CodeCache
	mu  sync.Mutex
	ids map[uuid.UUID]bool
}

func (c *countedCodes) Put(ctx context.Context, id uuid.UUID, value []byte, ttl time.Duration) error {
	c.mu.Lock()
	c.ids[id] = true
	c.mu.Unlock()
	return c.CodeCache.Put(ctx, id, value, ttl)
}

func (c *countedCodes) left(l *lab) (n int) {
	for id := range c.ids {
		if _, err := c.Get(l.Context(), id); err == nil {
			n++
		}
	}
	return n
}

func TestSecurityCodeCapacity(t *testing.T) {
	inLab(t, &cardvault.Options{Mode: cardvault.Sandbox, SecurityCodeCapacity: 2}, func(l *lab) {
		first, second, third := l.imports(coded(visa, "111")), l.imports(coded(visa, "222")), l.imports(coded(visa, "333"))
		l.hasCode(first, false)
		l.hasCode(second, true)
		l.hasCode(third, true)
		if n := strings.Count(l.log.text(), "security codes were evicted early"); n != 1 {
			l.Errorf("the log mentions it %d times", n)
		}
	})
}

// TestLateCodes: a vault does not trust a cache that keeps a code too long.
func TestLateCodes(t *testing.T) {
	inLab(t, &cardvault.Options{Mode: cardvault.Sandbox, Codes: lateCodes{codecache.New(10, nil)}}, func(l *lab) {
		id := l.imports(coded(visa, "737"))
		l.pass(time.Until(l.hasCode(id, true)) - time.Microsecond)
		l.hasCode(id, true)
		l.pass(time.Microsecond)
		l.hasCode(id, false)
	})
}

// lateCodes is a cache that keeps everything too long.
type lateCodes struct{ store.CodeCache }

func (c lateCodes) Put(ctx context.Context, id uuid.UUID, value []byte, ttl time.Duration) error {
	return c.CodeCache.Put(ctx, id, value, ttl+time.Hour)
}

// TestConsumedWhileKept: a refresh that reaches the cache after its code was consumed leaves
// no code there.
func TestConsumedWhileKept(t *testing.T) {
	codes := &waitingCodes{CodeCache: codecache.New(10, nil)}
	inLab(t, &cardvault.Options{Mode: cardvault.Sandbox, Codes: codes}, func(l *lab) {
		id := l.imports(coded(visa, "111"))
		session, err := l.RefreshSession(l.Context(), id, nil)
		l.must(err)
		codes.release = make(chan struct{})
		refreshed := make(chan error, 1)
		go func() {
			_, err := l.RefreshSecurityCode(l.Context(), session.ID, card.NewSecurityCode([]byte("222")))
			refreshed <- err
		}()
		synctest.Wait()
		l.must2(l.Consume(l.Context(), id, nil))
		close(codes.release)
		l.must(<-refreshed)
		l.hasCode(id, false)
		if _, err := codes.CodeCache.Get(l.Context(), id); !errors.Is(err, store.ErrNotFound) {
			l.Errorf("the cache has the code: %v", err)
		}
	})
}

// waitingCodes is a cache that stores nothing until it is released.
type waitingCodes struct {
	store.CodeCache
	release chan struct{}
}

func (c *waitingCodes) Put(ctx context.Context, id uuid.UUID, value []byte, ttl time.Duration) error {
	if c.release != nil {
		<-c.release
	}
	return c.CodeCache.Put(ctx, id, value, ttl)
}

// TestHangingCodes: a cache that does not answer delays an import by 50 milliseconds.
func TestHangingCodes(t *testing.T) {
	inLab(t, &cardvault.Options{Mode: cardvault.Sandbox, Codes: hangingCodes{}}, func(l *lab) {
		start := time.Now()
		id := l.imports(coded(visa, "737"))
		if d := time.Since(start); d != 50*time.Millisecond {
			l.Errorf("an import takes %v", d)
		}
		start = time.Now()
		l.imports(visa)
		l.get(id)
		if d := time.Since(start); d != 0 {
			l.Errorf("calls that need no code take %v", d)
		}
		l.hasCode(id, false)
		start = time.Now()
		if _, err := l.Consume(l.Context(), id, nil); !errors.Is(err, cardvault.ErrUnavailable) {
			l.Errorf("consuming: %v", err)
		}
		if d := time.Since(start); d != 50*time.Millisecond+time.Second { // it looks for a later code first
			l.Errorf("consuming takes %v", d)
		}
		l.must(l.Delete(l.Context(), id))
		if n := strings.Count(l.log.text(), "security code could not be"); n != 1 {
			l.Errorf("the log mentions it %d times", n)
		}
	})
}

// hangingCodes is a cache that does not answer.
type hangingCodes struct{ store.CodeCache }

func (hangingCodes) Put(ctx context.Context, _ uuid.UUID, _ []byte, _ time.Duration) error {
	<-ctx.Done()
	return ctx.Err()
}

func (hangingCodes) Get(ctx context.Context, _ uuid.UUID) ([]byte, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func (hangingCodes) Delete(ctx context.Context, _ uuid.UUID) error {
	<-ctx.Done()
	return ctx.Err()
}

func newVault(t *testing.T, opts *cardvault.Options) (*cardvault.Vault, error) {
	t.Helper()
	return cardvault.New(t.Context(), memstore.New(), newKey(t), opts)
}
