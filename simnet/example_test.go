package simnet_test

import (
	"context"
	"fmt"
	"time"

	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/network"
	"github.com/cardvault/cardvault/simnet"
	"github.com/cardvault/cardvault/store/memstore"
	"github.com/google/uuid"
)

// A network token that its issuer suspends after two seconds.
func ExampleNetwork_Advance() {
	ctx := context.Background()
	sim, err := simnet.New(ctx, memstore.New(), nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	show := func(t *network.Token, err error) {
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(t.State)
	}
	show(sim.Provision(ctx, &network.ProvisionRequest{
		IdempotencyKey: "first",
		TokenID:        uuid.New(),
		Scheme:         card.VISA,
		PAN:            simnet.ScenarioPAN(card.VISA, 30),
		Expiry:         card.Expiry{Month: 12, Year: 2040},
	}))
	sim.Advance(2 * time.Second)
	show(sim.Lookup(ctx, network.Ref{IdempotencyKey: "first"}))
	// Output:
	// active
	// inactive
}
