package ppantest_test

import (
	"testing"

	"github.com/cardvault/cardvault/payone"
	"github.com/cardvault/cardvault/ppan"
	"github.com/cardvault/cardvault/ppantest"
	"github.com/cardvault/cardvault/simnet"
	"github.com/cardvault/cardvault/store/memstore"
)

// The whole test of an adapter, here of the simulator.
func ExampleRun() {
	merchant := payone.HashParameters{AID: "22222", MID: "11111", PortalID: "3333333", Sandbox: true}
	_ = func(t *testing.T) {
		sim, err := simnet.New(t.Context(), memstore.New(), nil)
		if err != nil {
			t.Fatal(err)
		}
		ppantest.Run(t, ppantest.Harness{
			Open:    func(testing.TB) ppan.Provider { return sim.PPAN() },
			Account: ppan.Account{AID: merchant.AID, MID: merchant.MID, PortalID: merchant.PortalID, Hash: payone.Hash(simnet.PortalKey, merchant)},
			Card:    testCard(0),
			Refused: testCard(81),
		})
	}
}
