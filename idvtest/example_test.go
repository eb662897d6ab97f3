package idvtest_test

import (
	"context"
	"testing"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/idv"
	"github.com/cardvault/cardvault/idvtest"
	"github.com/cardvault/cardvault/simnet"
	"github.com/cardvault/cardvault/store/memstore"
)

// The whole test of an adapter, here of the simulator, which asks the shopper about Card.
func ExampleRun() {
	_ = func(t *testing.T) {
		sim, err := simnet.New(t.Context(), memstore.New(), &simnet.Options{ChallengeURL: "https://issuer.example/"})
		if err != nil {
			t.Fatal(err)
		}
		idvtest.Run(t, idvtest.Harness{
			Open:   func(testing.TB) idv.Provider { return sim.IDV() },
			Scheme: card.VISA,
			Card:   cardvault.Card{PAN: simnet.ScenarioPAN(card.VISA, 70), Expiry: card.Expiry{Month: 12, Year: 2090}},
			Answer: func(ctx context.Context, _ idv.Provider, reference string, pass bool) error {
				return sim.Control().EndIdentification(ctx, reference, pass)
			},
		})
	}
}
