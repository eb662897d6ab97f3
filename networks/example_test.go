package networks_test

import (
	"context"
	"fmt"
	"log"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/network"
	"github.com/cardvault/cardvault/networks"
	"github.com/cardvault/cardvault/simnet"
	"github.com/cardvault/cardvault/store/memstore"
)

// Two networks, each for the cards of its scheme. The vault asks the one that made a network
// token.
func ExampleRoute() {
	ctx := context.Background()
	one, err := simnet.New(ctx, memstore.New(), &simnet.Options{Name: "visa"})
	if err != nil {
		log.Fatal(err)
	}
	other, err := simnet.New(ctx, memstore.New(), &simnet.Options{Name: "mastercard"})
	if err != nil {
		log.Fatal(err)
	}

	keys, err := cardvault.KeyBytes(make([]byte, cardvault.KeySize))
	if err != nil {
		log.Fatal(err)
	}
	v, err := cardvault.New(ctx, memstore.New(), keys, &cardvault.Options{
		Mode: cardvault.Sandbox,
		Network: networks.Route(map[card.Scheme]network.Provider{
			card.VISA:       one,
			card.Mastercard: other,
		}),
	})
	if err != nil {
		log.Fatal(err)
	}
	defer v.Close()

	for _, scheme := range []card.Scheme{card.VISA, card.Mastercard, card.Discover} {
		t, err := v.Import(ctx, cardvault.Card{PAN: simnet.ScenarioPAN(scheme, 0), Expiry: card.Expiry{Month: 12, Year: 2090}}, nil)
		if err == nil {
			err = v.Drain(ctx)
		}
		if err == nil {
			t, err = v.Get(ctx, t.ID)
		}
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(t.Scheme, t.NetworkTokenStatus)
	}
	// Output:
	// VISA active
	// Mastercard active
	// Discover not_available
}
