package vaultsuite

import (
	"context"
	"crypto/fips140"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/internal/bubble"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/updater"
	"github.com/google/uuid"
)

// These tests take hours by the clock of a bubble; the store stays outside. In FIPS 140-3
// mode a bubble must not run beside other tests, so they are left out.
func timeBehaviours() []behaviour {
	if fips140.Enabled() {
		return nil
	}
	return []behaviour{
		{"Lapse", lapse},
		{"RenewalKilled", renewalKilled},
		{"RenewalFeedDown", renewalFeedDown},
		{"RetireTerm", retired},
		{"RotateFingerprint", rotateFingerprint},
		{"RotateFingerprintLate", printedLate},
		{"RotateFingerprintRace", printRace},
		{"RotateAndRetire", rotateAndRetire},
		{"RotateLookup", rotateLookup},
		{"RotateLookupLate", lookupLate},
		{"RotateLookupDamaged", lookupDamaged},
		{"RotateLookupRace", lookupRace},
	}
}

// inBubble runs f in a bubble, on a store outside of it.
func inBubble(t *testing.T, s store.Store, f func(t *testing.T, s store.Store)) {
	t.Helper()
	outside := bubble.Outside(t, s)
	bubble.Test(t, func(t *testing.T) { f(t, outside) })
}

// goOn lets time pass.
func goOn(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// renewalKilled: wherever a process dies in a round of the updater, the next one submits each
// card, under the same key and reference if it was submitted before.
func renewalKilled(t *testing.T, s store.Store) {
	const cards = 3
	inBubble(t, s, func(t *testing.T, s store.Store) {
		plain := vaultOn(t, s, nil)
		for i := range cards {
			importCard(t, plain, testCard(i), nil)
		}
		again := 0
		for writes, ended := int64(1), false; !ended; writes++ {
			if writes > 100 {
				t.Fatal("a round writes too often")
			}
			o := newOffice() // another updater begins anew
			o.name = fmt.Sprint("office-", writes)
			opts := &cardvault.Options{Mode: cardvault.Sandbox, Updater: o}
			sound := vaultOn(t, s, opts)
			goOn(time.Second)
			d := &dying{Store: s}
			d.left.Store(writes)
			_ = vaultOn(t, d, opts).Drain(t.Context()) // may be killed
			ended = d.left.Load() > 0
			before := len(o.all())
			goOn(5 * time.Minute)
			drain(t, sound)

			of := map[string]inquiry{}
			for _, c := range o.all() {
				if former, known := of[c.number]; known && (former.key != c.key || former.Reference != c.Reference) {
					t.Errorf("killed after %d writes: a card is in two submissions", writes)
				}
				of[c.number] = c
			}
			if len(of) != cards {
				t.Errorf("killed after %d writes: %d cards are submitted, want %d", writes, len(of), cards)
			}
			if before > 0 && len(o.all()) > before {
				again++
			}
		}
		if again == 0 {
			t.Error("no process died between a submission and its record")
		}
	})
}

// An interrupted office has a feed that fails until it is up.
type interrupted struct {
	*office
	up    atomic.Bool
	calls atomic.Int64
}

func (o *interrupted) Feed(ctx context.Context, sink func(context.Context, *updater.Outcome) error) error {
	if o.calls.Add(1); !o.up.Load() {
		return errors.New("the feed is down")
	}
	return o.office.Feed(ctx, sink)
}

// renewalFeedDown: a feed that is down for a day, with -short for two hours, is called again,
// and outcomes of submissions before that count.
func renewalFeedDown(t *testing.T, s store.Store) {
	inBubble(t, s, func(t *testing.T, s store.Store) {
		o := &interrupted{office: newOffice()}
		v := vaultOn(t, s, &cardvault.Options{Mode: cardvault.Sandbox, Updater: o, Purposes: []string{purpose}})
		ids := []uuid.UUID{importCard(t, v, testCard(0), nil).ID, importCard(t, v, testCard(1), nil).ID}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- v.Run(ctx) }()
		hours := 24
		if testing.Short() {
			hours = 2
		}
		goOn(time.Duration(hours) * time.Hour)
		if n := o.calls.Load() / int64(hours); n < 5 || n > 400 {
			t.Errorf("the feed is called %d times an hour", n)
		}

		o.up.Store(true)
		goOn(5 * time.Minute)
		o.tells(t, "updated", o.outcome(t, 0, updater.Updated, 100, renewedTo))
		o.tells(t, "expiry changed", o.outcome(t, 1, updater.ExpiryChanged, 0, renewedTo))
		cancel()
		noError(t, <-ended)
		shows(t, v, "updated", ids[0], 100, renewedTo)
		shows(t, v, "expiry changed", ids[1], 1, renewedTo)
	})
}
