package simnet_test

import (
	"context"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/simnet"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/memstore"
	"github.com/cardvault/cardvault/store/storetest"
	"github.com/cardvault/cardvault/updater"
	"github.com/cardvault/cardvault/updatertest"
)

// reported are the scenarios of the account updater. 033 to 035 are also the network's.
var reported = map[int]updater.Kind{
	0: updater.NoMatch, 33: updater.Closed, 34: updater.Updated, 35: updater.ExpiryChanged,
	90: updater.Updated, 91: updater.ExpiryChanged, 92: updater.Closed, 93: updater.ContactCardholder, 94: updater.OptedOut,
}

// The simulator keeps the contract of an account updater, on every store and for every scheme.
func TestUpdaterContract(t *testing.T) {
	for name, of := range map[string]struct {
		store  store.Store
		scheme card.Scheme
	}{
		"memory":             {memstore.New(), card.AmericanExpress},
		"every update twice": {storetest.Twice(memstore.New()), card.DinersClub},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNetwork(t, of.store, nil)
			cards := map[updater.Kind]cardvault.Card{}
			for scenario, kind := range reported {
				cards[kind] = cardvault.Card{PAN: simnet.ScenarioPAN(of.scheme, scenario), Expiry: card.Expiry{Month: 2, Year: 2040}}
			}
			updatertest.Run(t, updatertest.Harness{
				Open:   func(testing.TB) updater.Provider { return n.Updater() },
				Scheme: of.scheme,
				Cards:  cards,
				Answer: func(context.Context, updater.Provider) error { n.Advance(2 * time.Second); return nil },
			})
		})
	}
}

// reports submits a card and returns the outcome.
func reports(t *testing.T, n *simnet.Network, key string, of card.Scheme, pan card.PAN) (got updater.Outcome) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	err := n.Updater().Submit(ctx, &updater.SubmitRequest{
		IdempotencyKey: key,
		Cards:          []updater.CardRef{{Reference: key, Scheme: of, PAN: pan, Expiry: card.Expiry{Month: 2, Year: 2090}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	n.Advance(2 * time.Second)
	err = n.Updater().Feed(ctx, func(_ context.Context, o *updater.Outcome) error {
		got = *o
		cancel()
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func TestUpdaterScenarios(t *testing.T) {
	n := newNetwork(t, memstore.New(), nil)
	for scenario, kind := range reported {
		pan := simnet.ScenarioPAN(card.VISA, scenario)
		got := reports(t, n, time.Duration(scenario).String(), card.VISA, pan)
		if got.Kind != kind {
			t.Errorf("scenario %d: %v, want %v", scenario, got.Kind, kind)
		}
		if kind != updater.Updated {
			continue
		}

		// The new number is what the notice of the network shows, and of no scenario.
		var digits string
		got.PAN.Expose(func(d []byte) { digits = string(d) })
		if digits[:6] != "411111" || digits[12:] != "4242" || got.Expiry != (card.Expiry{Month: 2, Year: 2094}) {
			t.Errorf("scenario %d: %v, %v", scenario, got.PAN, got.Expiry)
		}
		if next := reports(t, n, "next"+digits, card.VISA, got.PAN); next.Kind != updater.NoMatch {
			t.Errorf("the new card of scenario %d: %v", scenario, next.Kind)
		}
	}
	if got := reports(t, n, "unknown", card.UnknownScheme, card.NewPAN([]byte("9999999999999995"))); got.Kind != updater.NoMatch {
		t.Errorf("a card of an unknown scheme: %v", got.Kind)
	}
}

// TestUpdaterReport: a report about a number that was not submitted counts for its next
// submission, whatever the scenario.
func TestUpdaterReport(t *testing.T) {
	n := newNetwork(t, memstore.New(), nil)
	pan := simnet.ScenarioPAN(card.VISA, 92)
	for _, kind := range []updater.Kind{updater.NoMatch, updater.Updated} {
		if err := n.Control().Report(t.Context(), pan, kind); err != nil {
			t.Fatal(err)
		}
	}
	for i, want := range []updater.Kind{updater.Updated, updater.Closed} {
		if got := reports(t, n, string(rune('a'+i)), card.VISA, pan); got.Kind != want {
			t.Errorf("submission %d: %v, want %v", i, got.Kind, want)
		}
	}
	for _, kind := range []updater.Kind{0, updater.NoMatch + 1} {
		if err := n.Control().Report(t.Context(), pan, kind); err == nil {
			t.Error("an outcome without a kind is reported")
		}
	}
}

// fed returns the next outcomes by their references.
func fed(t *testing.T, n *simnet.Network, many int) map[string]updater.Outcome {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	got := map[string]updater.Outcome{}
	err := n.Updater().Feed(ctx, func(_ context.Context, o *updater.Outcome) error {
		if got[o.Reference] = *o; len(got) == many {
			cancel()
		}
		return nil
	})
	if err != nil || len(got) != many {
		t.Fatalf("%d outcomes, want %d: %v", len(got), many, err)
	}
	return got
}

// TestUpdaterReportSubmitted: a report about a number that was submitted comes at once, for
// all tokens that have it and no other, under ids of its own, any number of times.
func TestUpdaterReportSubmitted(t *testing.T) {
	n := newNetwork(t, storetest.Twice(memstore.New()), nil)
	pan, other := simnet.ScenarioPAN(card.VISA, 92), simnet.ScenarioPAN(card.Mastercard, 0)
	is := card.Expiry{Month: 2, Year: 2090}
	r := &updater.SubmitRequest{IdempotencyKey: "a", Cards: []updater.CardRef{
		{Reference: "one", Scheme: card.VISA, PAN: pan, Expiry: is},
		{Reference: "two", Scheme: card.VISA, PAN: pan, Expiry: card.Expiry{Month: 3, Year: 2091}},
		{Reference: "other", Scheme: card.Mastercard, PAN: other, Expiry: is},
	}}
	for range 2 { // the second time it changes nothing
		if err := n.Updater().Submit(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	if err := n.Control().Report(t.Context(), pan, updater.ExpiryChanged); err != nil {
		t.Fatal(err)
	}
	got := fed(t, n, 2) // before those of the submission
	one, two := got["one"], got["two"]
	if one.Kind != updater.ExpiryChanged || one.Expiry != (card.Expiry{Month: 2, Year: 2093}) || two.Expiry != (card.Expiry{Month: 3, Year: 2094}) {
		t.Errorf("reported: %+v, %+v", one, two)
	}

	token := provision(t, n, request(card.VISA, 92))
	ids := map[string]bool{one.ID: true, two.ID: true}
	for _, kind := range []updater.Kind{updater.Updated, updater.Closed, updater.Closed} {
		if err := n.Control().ReportAccount(t.Context(), token.PaymentAccountReference, kind); err != nil {
			t.Fatal(err)
		}
		got := fed(t, n, 2)
		one, two := got["one"], got["two"]
		if one.Kind != kind || two.Kind != kind || one.PAN.IsZero() != (kind == updater.Closed) || ids[one.ID] || ids[two.ID] {
			t.Errorf("%v: reported %+v, %+v", kind, one, two)
		}
		ids[one.ID], ids[two.ID] = true, true
	}
	n.Advance(2 * time.Second)
	if got := fed(t, n, 1); got["other"].Kind != updater.NoMatch {
		t.Errorf("the other card: %+v", got)
	}
}
