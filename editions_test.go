package cardvault_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/internal/bubble"
	"github.com/cardvault/cardvault/network"
	"github.com/cardvault/cardvault/receive"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/memstore"
	"github.com/google/uuid"
)

// formerRows are what a vault has written that knew no editions of card numbers: two tokens with
// their network tokens. The scheme has replaced the number of one.
func formerRows(t *testing.T) (s store.Store, intact, stale uuid.UUID) {
	t.Helper()
	text, err := os.ReadFile("testdata/before_editions.json")
	if err != nil {
		t.Fatal(err)
	}
	var rows struct {
		Intact, Stale uuid.UUID
		Records       []*store.Record
	}
	if err := json.Unmarshal(text, &rows); err != nil {
		t.Fatal(err)
	}
	s = memstore.New()
	for _, r := range rows.Records {
		for last, version := r.Version, uint64(1); version <= last; version++ { // a store lets nothing begin later
			r.Version = version
			if err := s.Update(t.Context(), func(tx store.Tx) error { tx.Put(r.Clone()); return nil }); err != nil {
				t.Fatal(err)
			}
		}
	}
	return s, rows.Intact, rows.Stale
}

// TestBeforeEditions: a card that was stored before numbers had editions is read, used and
// replaced. A number that was stale then is listed as such from the next look-up on, of which
// there is no event, and its own digits are in the event of the replacement.
func TestBeforeEditions(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s, intact, stale := formerRows(t)
		sink := &listener{t: t}
		l := &lab{TB: t, net: new(scripted)}
		l.net.tokens, l.net.keys, l.net.cards = map[string]*network.Token{}, map[string]string{}, map[string]string{}
		l.net.tokens["network-token-1"] = &network.Token{ID: "network-token-1", State: active}
		l.net.tokens["network-token-2"] = &network.Token{ID: "network-token-2", State: active, Card: &network.CardState{LastFour: "9876", Expiry: card.Expiry{Month: 2, Year: 2035}}}
		l.net.made = 2
		l.opts = cardvault.Options{Mode: cardvault.Sandbox, Network: l.net, Events: sink, Purposes: []string{"test"}, Logger: slog.New(slog.NewTextHandler(&l.log, nil))}
		l.Vault = l.on(s)

		token := l.get(intact)
		if token.LastFour != "4242" || token.Expiry != visa.Expiry || token.BusinessKey != "order-1" || token.NetworkTokenStatus != active ||
			token.AccountNumberStale || !token.UpdatedAt.Equal(token.CreatedAt) || used(l, intact) != "4242424242424242" {
			l.Errorf("a token of before: %+v", token)
		}
		if token := l.get(stale); !token.AccountNumberStale || token.LastFour != "9876" {
			l.Errorf("a stale token of before: %+v", token)
		}
		listed := func(isStale bool) (ids []uuid.UUID) {
			l.Helper()
			p, err := l.List(l.Context(), &cardvault.TokenListOptions{AccountNumberStale: &isStale})
			l.must(err)
			for _, token := range p.Items {
				ids = append(ids, token.ID)
			}
			return ids
		}
		l.run(func() { l.pass(30 * time.Hour) })
		if ids := listed(true); !slices.Equal(ids, []uuid.UUID{stale}) {
			l.Errorf("stale after the look-up: %v", ids)
		}
		if ids := listed(false); !slices.Equal(ids, []uuid.UUID{intact}) {
			l.Errorf("not stale after the look-up: %v", ids)
		}
		if n := len(about(sink, intact)) + len(about(sink, stale)); n != 0 {
			l.Errorf("%d events of no change", n)
		}

		for _, id := range []uuid.UUID{intact, stale} {
			l.must2(l.Replace(l.Context(), id, amex, nil))
			if number := used(l, id); number != "378282246310005" {
				l.Errorf("replaced by %s", number)
			}
		}
		l.drain()
		for id, want := range map[uuid.UUID]string{intact: "4242", stale: "4444"} {
			events := about(sink, id)
			if i := slices.IndexFunc(events, func(e passing) bool { return e.Reason == receive.ReasonCardReplaced }); i < 0 || events[i].PreviousLastFour != want {
				l.Errorf("events of the replacement of %s: %+v", want, events)
			}
		}
	})
}

// used returns the number that a use of a token's card receives.
func used(l *lab, id uuid.UUID) (number string) {
	l.Helper()
	l.must(l.Use(l.Context(), id, "test", func(_ context.Context, c *cardvault.UsedCard) error {
		c.PAN.Expose(func(b []byte) { number = string(b) })
		return nil
	}))
	return number
}
