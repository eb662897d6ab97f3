package cardvault_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/internal/bubble"
	"github.com/cardvault/cardvault/internal/iin"
	"github.com/cardvault/cardvault/store/memstore"
	"github.com/google/uuid"
)

// behindMask returns cards whose numbers have the same first six and last four digits.
func behindMask(last string, n int) (cards []cardvault.Card) {
	for i := 0; len(cards) < n; i++ {
		number := fmt.Appendf(nil, "453201%06d%s", i, last)
		if iin.Luhn(number) {
			cards = append(cards, cardvault.Card{PAN: card.NewPAN(number), Expiry: card.Expiry{Month: 12, Year: 2090}})
		}
	}
	return cards
}

func memVault(t testing.TB, opts *cardvault.Options) *cardvault.Vault {
	t.Helper()
	keys, err := cardvault.KeyBytes(make([]byte, cardvault.KeySize))
	if err != nil {
		t.Fatal(err)
	}
	v, err := cardvault.New(t.Context(), memstore.New(), keys, opts)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// letThrough returns the number of cards imported. The others fail with ErrTooManyNumbers.
func letThrough(t testing.TB, v *cardvault.Vault, cards []cardvault.Card, opts *cardvault.ImportOptions) (n int) {
	t.Helper()
	for _, c := range cards {
		switch _, err := v.Import(t.Context(), c, opts); {
		case err == nil:
			n++
		case !errors.Is(err, cardvault.ErrTooManyNumbers):
			t.Fatal(err)
		}
	}
	return n
}

func TestNumbersOfADay(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		v := memVault(t, nil)
		other, err := v.CreateAccount(t.Context(), "other", nil)
		if err != nil {
			t.Fatal(err)
		}
		cards := behindMask("0366", 1000)
		for day := range 3 {
			today := cards[200*day : 200*(day+1)]
			for range 3 { // as in an honest shop
				if n := letThrough(t, v, today[:100], nil); n != 100 {
					t.Errorf("day %d, as many as the limit: %d", day, n)
				}
			}
			if n := letThrough(t, v, today[100:], nil); n != 0 {
				t.Errorf("day %d: %d", day, n)
			}
			if n := letThrough(t, v.In(other.ID), today[:10], nil); n != 10 {
				t.Errorf("day %d, another account: %d", day, n)
			}
			if n := letThrough(t, v, today, nil); n != 0 { // otherwise a caller could find out which were let through
				t.Errorf("day %d, the same once more: %d", day, n)
			}
			// Bulk imports of the program itself are neither counted nor refused.
			if n := letThrough(t, v, cards, &cardvault.ImportOptions{Bulk: true}); n != 1000 {
				t.Errorf("day %d, in bulk: %d", day, n)
			}
			time.Sleep(24*time.Hour - time.Microsecond)
			if n := letThrough(t, v, cards[900:], nil); n != 0 {
				t.Errorf("day %d, at its end: %d", day, n)
			}
			time.Sleep(time.Microsecond)
		}
		id, err := v.CreateSession(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		letThrough(t, v, cards[:100], nil)
		for range 7 { // five bad cards would end the session
			if _, err := v.Tokenize(t.Context(), id.ID, cards[100]); !errors.Is(err, cardvault.ErrTooManyNumbers) {
				t.Errorf("in a session: %v", err)
			}
		}
		if _, err := v.Tokenize(t.Context(), id.ID, behindMask("0367", 1)[0]); err != nil {
			t.Errorf("another card in the session: %v", err)
		}
	})
}

// TestSuspicion: the operator is notified once a day for each mask, and never sees a number.
func TestSuspicion(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var reports []cardvault.Suspicion
		var log lockedBuffer
		v := memVault(t, &cardvault.Options{
			Replicas: 100,
			Logger:   slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn})),
			OnSuspicion: func(_ context.Context, s cardvault.Suspicion) {
				mu.Lock()
				defer mu.Unlock()
				if reports = append(reports, s); len(reports) == 2 {
					panic("a faulty receiver")
				}
			},
		})
		actor := cardvault.Actor{KeyID: uuid.New(), RootKeyID: uuid.New(), Address: "192.0.2.1"}
		ctx := cardvault.WithActor(t.Context(), actor)
		guess := func(cards []cardvault.Card) {
			for _, c := range cards {
				_, _ = v.Import(ctx, c, nil)
			}
		}
		a, b := behindMask("0366", 20), behindMask("0367", 20)
		guess(a[:1])
		if len(reports) != 0 {
			t.Errorf("reported %v", reports)
		}
		guess(a)
		guess(b)
		guess(a)
		s := cardvault.Suspicion{At: time.Now().UTC().Truncate(time.Microsecond), Account: reports[0].Account, Actor: actor, IIN: "453201", LastFour: "0366", AccountNumberLength: 16, Limit: 1}
		if len(reports) != 2 || reports[0] != s || reports[1].LastFour != "0367" {
			t.Errorf("reported %+v, want %+v", reports, s)
		}
		text := log.text()
		if n := strings.Count(text, "level=WARN"); n != 2 || !strings.Contains(text, actor.KeyID.String()) ||
			strings.Contains(text, "0366") || !strings.Contains(text, "iin=453201") {
			t.Errorf("log: %s", text)
		}
		if !strings.Contains(text, "OnSuspicion panicked") {
			t.Errorf("the panic is not in the log: %s", text)
		}

		// Guessing does not flood the operator.
		for i := range 3000 {
			guess(behindMask(fmt.Sprintf("%04d", i), 2))
		}
		if len(reports) != 64 || strings.Count(log.text(), "last_of_day=true") != 1 {
			t.Errorf("reported %d times", len(reports))
		}
		// Nor does it suppress reports about other accounts.
		other, err := v.CreateAccount(t.Context(), "other", nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range a {
			_, _ = v.In(other.ID).Import(ctx, c, nil)
		}
		if len(reports) != 65 || reports[64].Account != other.ID {
			t.Errorf("reported %d times, for another account: %+v", len(reports), reports[len(reports)-1])
		}
		time.Sleep(24 * time.Hour)
		guess(a)
		if len(reports) != 66 {
			t.Errorf("reported %d times on the next day", len(reports)-65)
		}
	})
}

func TestReplicas(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		for _, n := range []int{-1, 1001} {
			if _, err := cardvault.New(t.Context(), memstore.New(), nil, &cardvault.Options{Replicas: n}); err == nil || !strings.Contains(err.Error(), "Replicas") {
				t.Errorf("Replicas %d: %v", n, err)
			}
		}
		for replicas, want := range map[int]int{0: 100, 1: 100, 3: 33, 100: 1, 1000: 1} {
			if n := letThrough(t, memVault(t, &cardvault.Options{Replicas: replicas}), behindMask("0366", 110), nil); n != want {
				t.Errorf("Replicas %d: %d are let through, want %d", replicas, n, want)
			}
		}
	})
}

// TestNumbersOfFailingCalls: a request that fails for another reason counts too, since it
// has also revealed something.
func TestNumbersOfFailingCalls(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		v := memVault(t, &cardvault.Options{Replicas: 20}) // the limit is five a day
		cards := behindMask("0366", 10)
		unknown := v.In(uuid.New())
		for _, c := range cards[:5] {
			if _, err := unknown.Import(t.Context(), c, nil); !errors.Is(err, cardvault.ErrNotFound) {
				t.Errorf("import into an unknown account: %v", err)
			}
		}
		if _, err := unknown.Import(t.Context(), cards[5], nil); !errors.Is(err, cardvault.ErrTooManyNumbers) {
			t.Errorf("the sixth: %v", err)
		}
	})
}
