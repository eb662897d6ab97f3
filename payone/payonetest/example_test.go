package payonetest_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"

	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/payone"
	"github.com/cardvault/cardvault/payone/payonetest"
	"github.com/cardvault/cardvault/ppan"
	"github.com/cardvault/cardvault/simnet"
	"github.com/cardvault/cardvault/store/memstore"
)

// A program whose provider is down for one request.
func ExampleNewFaulty() {
	ctx := context.Background()
	sim, err := simnet.New(ctx, memstore.New(), nil)
	if err != nil {
		log.Fatal(err)
	}
	faulty := payonetest.NewFaulty(payonetest.NewHandler(simnet.PortalKey, sim.PPAN()))
	faulty.Next(payonetest.Answer(http.StatusServiceUnavailable, "maintenance"))
	server := httptest.NewServer(faulty)
	defer server.Close()
	provider, err := payone.New(server.URL, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer provider.Close()

	merchant := payone.HashParameters{AID: "22222", MID: "11111", PortalID: "3333333", Sandbox: true}
	for range 2 {
		answer, err := provider.ObtainPPAN(ctx, &ppan.Request{
			Account: ppan.Account{
				AID: merchant.AID, MID: merchant.MID, PortalID: merchant.PortalID,
				Hash: payone.Hash(simnet.PortalKey, merchant),
			},
			Sandbox: true,
			PAN:     simnet.ScenarioPAN(card.VISA, 80),
			Expiry:  card.Expiry{Month: 12, Year: 2040},
		})
		if err != nil {
			fmt.Println(err)
			continue
		}
		fmt.Println(answer.Status, "after", faulty.Requests(), "requests, with a card of", faulty.Form().Get("cardexpiredate"))
	}
	// Output:
	// payone: provider answers with status 503
	// VALID after 2 requests, with a card of 4012
}
