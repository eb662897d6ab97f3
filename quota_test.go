package cardvault_test

import (
	"errors"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
)

// What quotas do on any store is tested by vaulttest.Suite.

func TestQuotaBounds(t *testing.T) {
	for _, q := range []cardvault.Quotas{
		{APIKeys: -1}, {APIKeys: 100_001}, {Webhooks: -1}, {Webhooks: cardvault.MaxWebhooks + 1},
		{OpenSessions: -1}, {OpenSessions: 10_000_001}, {PaymentData: -1}, {PaymentData: 1_000_001},
	} {
		if _, err := newVault(t, &cardvault.Options{Quotas: q}); err == nil {
			t.Errorf("%+v is taken", q)
		}
	}
}

// TestQuotaOfLapsed: what has lapsed does not count, also if nobody has erased it.
func TestQuotaOfLapsed(t *testing.T) {
	inLab(t, &cardvault.Options{Mode: cardvault.Sandbox, Quotas: cardvault.Quotas{APIKeys: 2}}, func(l *lab) {
		create := func(life int) error {
			_, _, err := l.CreateAPIKey(l.Context(), "key", cardvault.AllScopes(), &cardvault.APIKeyOptions{ExpirationTime: life})
			return err
		}
		l.must(create(60))
		l.must(create(120))
		for range 2 {
			l.pass(59 * time.Second)
			if err := create(60); !errors.Is(err, cardvault.ErrQuotaExceeded) {
				l.Errorf("one too many: %v", err)
			}
			l.pass(time.Second)
			l.must(create(60))
		}
	})
}
