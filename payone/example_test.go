package payone_test

import (
	"context"
	"fmt"
	"net/http/httptest"

	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/payone"
	"github.com/cardvault/cardvault/payone/payonetest"
	"github.com/cardvault/cardvault/ppan"
	"github.com/cardvault/cardvault/simnet"
	"github.com/cardvault/cardvault/store/memstore"
)

// A merchant does this once, where the portal key is kept.
func ExampleHash() {
	hash := payone.Hash("secretTestKey", payone.HashParameters{
		AID: "22222", MID: "11111", PortalID: "3333333", Sandbox: true,
	})
	hash.Expose(func(text []byte) { fmt.Printf("%s\n", text) })
	// Output:
	// 72a4a5acd535aa5eb87bee93f288b8016fb44134767a36d323dafe2105f491bc555e47d7e2cdc1ee6f291f0999e30d68
}

// A client and a test provider. The simulator decides about cards. In production the vault
// calls the client for ObtainPPAN.
func ExampleNew() {
	ctx := context.Background()
	sim, err := simnet.New(ctx, memstore.New(), nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	server := httptest.NewServer(payonetest.NewHandler(simnet.PortalKey, sim.PPAN()))
	defer server.Close()
	provider, err := payone.New(server.URL, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer provider.Close()

	merchant := payone.HashParameters{AID: "22222", MID: "11111", PortalID: "3333333", Sandbox: true}
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
		return
	}
	fmt.Println(answer.Status, answer.CardType, answer.TruncatedPAN, answer.CardExpiry)
	// Output: VALID V 411111XXXXXX0807 4012
}
