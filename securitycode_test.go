package cardvault_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	codecache "github.com/cardvault/cardvault/internal/codes"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/memstore"
	"github.com/google/uuid"
)

func coded(c cardvault.Card, digits string) cardvault.Card {
	c.SecurityCode = cardvault.NewSecurityCode([]byte(digits))
	return c
}

func (l *lab) hasCode(id uuid.UUID, want bool) time.Time {
	l.Helper()
	got, until, err := l.SecurityCodeStatus(l.Context(), id)
	l.must(err)
	if got != want || got == until.IsZero() {
		l.Errorf("after %v: a security code is available: %v until %v", time.Since(l.get(id).CreatedAt), got, until)
	}
	return until
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

			session, err := l.RefreshSession(l.Context(), id)
			l.must(err)
			l.pass(time.Minute)
			l.must2(l.RefreshSecurityCode(l.Context(), session, cardvault.NewSecurityCode([]byte("999"))))
			if d := time.Until(l.hasCode(id, true)); d != want {
				l.Errorf("after the refresh kept for %v, want %v", d, want)
			}
		})
	}
	for _, ttl := range []time.Duration{time.Second, time.Minute - 1, 15*time.Minute + 1, -1} {
		if _, err := newVault(t, &cardvault.Options{SecurityCodeTTL: ttl}); err == nil {
			t.Errorf("a TTL of %v is taken", ttl)
		}
	}
	for _, n := range []int{-1, 1e8 + 1} {
		if _, err := newVault(t, &cardvault.Options{SecurityCodeCapacity: n}); err == nil {
			t.Errorf("a capacity of %d is taken", n)
		}
	}
}

// TestRefreshSessionEnds: a session in which a code is entered lapses like any.
func TestRefreshSessionEnds(t *testing.T) {
	inLab(t, nil, func(l *lab) {
		id := l.imports(visa)
		session, err := l.RefreshSession(l.Context(), id)
		l.must(err)
		l.pass(15 * time.Minute)
		_, err = l.RefreshSecurityCode(l.Context(), session, cardvault.NewSecurityCode([]byte("999")))
		if !errors.Is(err, cardvault.ErrNotFound) {
			l.Errorf("after a quarter of an hour: %v", err)
		}
		l.hasCode(id, false)
	})
}

// TestSecurityCodeInProvisioning: the network gets the code while it is there,
// and does not use it up.
func TestSecurityCodeInProvisioning(t *testing.T) {
	inLab(t, &cardvault.Options{Mode: cardvault.Live, SecurityCodeTTL: time.Minute}, func(l *lab) {
		l.net.script(refuse("Provision", schemeError("issuer_unavailable")), nil)
		id := l.imports(coded(visa, "737"))
		l.drain()
		l.hasCode(id, true)
		l.net.script(nil, nil)
		l.pass(40 * time.Second) // the second try
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
		l.must2(l.Provision(l.Context(), late))
		l.drain()
		if got := l.net.codes[len(l.net.codes)-1]; got != "" {
			l.Error("a code came after its time")
		}
	})
}

func TestSecurityCodeCapacity(t *testing.T) {
	inLab(t, &cardvault.Options{Mode: cardvault.Sandbox, SecurityCodeCapacity: 2}, func(l *lab) {
		first, second, third := l.imports(coded(visa, "111")), l.imports(coded(visa, "222")), l.imports(coded(visa, "333"))
		l.hasCode(first, false)
		l.hasCode(second, true)
		l.hasCode(third, true)
		if n := strings.Count(l.log.text(), "security codes went early"); n != 1 {
			l.Errorf("the log tells of it %d times", n)
		}
	})
}

// TestLateCodes: a cache that keeps a code too long is not believed.
func TestLateCodes(t *testing.T) {
	inLab(t, &cardvault.Options{Mode: cardvault.Sandbox, Codes: lateCodes{codecache.New(10, nil)}}, func(l *lab) {
		id := l.imports(coded(visa, "737"))
		l.pass(time.Until(l.hasCode(id, true)) - time.Microsecond)
		l.hasCode(id, true)
		l.pass(time.Microsecond)
		l.hasCode(id, false)
	})
}

// lateCodes is a cache that forgets nothing in time.
type lateCodes struct{ store.CodeCache }

func (c lateCodes) Put(ctx context.Context, id uuid.UUID, value []byte, ttl time.Duration) error {
	return c.CodeCache.Put(ctx, id, value, ttl+time.Hour)
}

// TestHangingCodes: a cache that does not answer costs an import 50 milliseconds.
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
		if err := l.Consume(l.Context(), id); !errors.Is(err, cardvault.ErrUnavailable) {
			l.Errorf("consuming: %v", err)
		}
		if d := time.Since(start); d != time.Second {
			l.Errorf("consuming takes %v", d)
		}
		l.must(l.Delete(l.Context(), id))
		if n := strings.Count(l.log.text(), "security code could not be"); n != 1 {
			l.Errorf("the log tells of it %d times", n)
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
