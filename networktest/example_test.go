package networktest_test

import (
	"testing"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/network"
	"github.com/cardvault/cardvault/networktest"
	"github.com/cardvault/cardvault/simnet"
	"github.com/cardvault/cardvault/store/memstore"
)

// The whole test of an adapter, here of the simulator. It makes a network token for Card,
// and refuses one for Refused.
func ExampleRun() {
	_ = func(t *testing.T) {
		networktest.Run(t, networktest.Harness{
			Open: func(t testing.TB) network.Provider {
				n, err := simnet.New(t.Context(), memstore.New(), nil)
				if err != nil {
					t.Fatal(err)
				}
				return n
			},
			Scheme:  card.VISA,
			Card:    cardvault.Card{PAN: simnet.ScenarioPAN(card.VISA, 0), Expiry: card.Expiry{Month: 12, Year: 2090}},
			Refused: cardvault.Card{PAN: simnet.ScenarioPAN(card.VISA, 10), Expiry: card.Expiry{Month: 12, Year: 2090}},
		})
	}
}
