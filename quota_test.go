package cardvault_test

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/store/memstore"
)

// vaultsuite.Run tests quotas on any store.

func TestQuotaBounds(t *testing.T) {
	for _, q := range []cardvault.Quotas{
		{APIKeys: -1}, {APIKeys: 100_001}, {Webhooks: -1}, {Webhooks: cardvault.MaxWebhooks + 1},
		{OpenSessions: -1}, {OpenSessions: 10_000_001}, {PaymentData: -1}, {PaymentData: 1_000_001},
	} {
		if _, err := newVault(t, &cardvault.Options{Quotas: q}); err == nil {
			t.Errorf("%+v is accepted", q)
		}
	}
}

// TestQuotaOfLapsed: lapsed records are not counted, even if they have not been erased.
func TestQuotaOfLapsed(t *testing.T) {
	for what, create := range map[string]func(l *lab) error{
		"an API key": func(l *lab) error {
			_, err := l.CreateAPIKey(l.Context(), "key", cardvault.AllScopes(), &cardvault.APIKeyOptions{TTL: time.Minute})
			return err
		},
		"a session": func(l *lab) error {
			_, err := l.CreateSession(l.Context(), nil)
			return err
		},
	} {
		opts := &cardvault.Options{Mode: cardvault.Sandbox, SessionTTL: time.Minute, Quotas: cardvault.Quotas{APIKeys: 2, OpenSessions: 2}}
		inLab(t, opts, func(l *lab) {
			l.must(create(l))
			l.pass(30 * time.Second)
			l.must(create(l))
			for range 3 {
				l.pass(29 * time.Second)
				if err := create(l); !errors.Is(err, cardvault.ErrQuotaExceeded) {
					l.Errorf("%s beyond the quota: %v", what, err)
				}
				l.pass(time.Second)
				l.must(create(l))
			}
		})
	}
}

// TestQuotaOfMany: even when calls do not count each time, an account can use its whole
// quota and no more.
func TestQuotaOfMany(t *testing.T) {
	const limit = 9000
	l := &lab{TB: t, net: new(scripted), store: &frail{base: memstore.New()}}
	l.opts = cardvault.Options{Mode: cardvault.Sandbox, Quotas: cardvault.Quotas{OpenSessions: limit}}
	vaults := []*cardvault.Vault{l.open(), l.open()}
	var made atomic.Int32
	var group sync.WaitGroup
	for i := range 32 {
		group.Go(func() {
			for made.Load() < 2*limit {
				_, err := vaults[i%2].CreateSession(t.Context(), nil)
				if err != nil {
					if !errors.Is(err, cardvault.ErrQuotaExceeded) {
						t.Error(err)
					}
					return
				}
				made.Add(1)
			}
		})
	}
	group.Wait()
	if n := made.Load(); n != limit {
		t.Errorf("%d sessions were made, want %d", n, limit)
	}
}
