package updatertest_test

import (
	"context"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/simnet"
	"github.com/cardvault/cardvault/store/memstore"
	"github.com/cardvault/cardvault/updater"
	"github.com/cardvault/cardvault/updatertest"
)

// The whole test of an adapter, here of the simulator.
func ExampleRun() {
	_ = func(t *testing.T) {
		sim, err := simnet.New(t.Context(), memstore.New(), nil)
		if err != nil {
			t.Fatal(err)
		}
		updatertest.Run(t, updatertest.Harness{
			Open:   func(testing.TB) updater.Provider { return sim.Updater() },
			Scheme: card.VISA,
			Cards: map[updater.Kind]cardvault.Card{
				updater.Updated: {PAN: simnet.ScenarioPAN(card.VISA, 90), Expiry: card.Expiry{Month: 12, Year: 2090}},
			},
			Answer: func(context.Context, updater.Provider) error { sim.Advance(2 * time.Second); return nil },
		})
	}
}
