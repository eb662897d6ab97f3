package network_test

import (
	"context"
	"fmt"
	"log"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/network"
	"github.com/cardvault/cardvault/simnet"
	"github.com/cardvault/cardvault/store/memstore"
)

// A counted network counts the calls of Provision.
type counted struct {
	network.Provider
	provisions int
}

func (c *counted) Provision(ctx context.Context, r *network.ProvisionRequest) (*network.Token, error) {
	c.provisions++
	return c.Provider.Provision(ctx, r)
}

// Unwrap lets the vault find the other capabilities of the network.
func (c *counted) Unwrap() network.Provider { return c.Provider }

// A decorator, for example for metrics, embeds a network and has Unwrap. A live vault
// refuses a decorated simulator too.
func ExampleProvider_decorator() {
	ctx := context.Background()
	sim, err := simnet.New(ctx, memstore.New(), nil)
	if err != nil {
		log.Fatal(err)
	}
	keys, err := cardvault.KeyBytes(make([]byte, cardvault.KeySize)) // use a random key
	if err != nil {
		log.Fatal(err)
	}

	net := &counted{Provider: sim}
	v, err := cardvault.New(ctx, memstore.New(), keys, &cardvault.Options{Mode: cardvault.Sandbox, Network: net})
	if err != nil {
		log.Fatal(err)
	}
	defer v.Close()
	token, err := v.Import(ctx, cardvault.Card{
		PAN:    simnet.ScenarioPAN(card.VISA, 0),
		Expiry: card.Expiry{Month: 12, Year: 2090},
	}, nil)
	if err != nil {
		log.Fatal(err)
	}
	if err := v.Drain(ctx); err != nil {
		log.Fatal(err)
	}
	token, err = v.SuspendNetworkToken(ctx, token.ID)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(token.NetworkTokenStatus, net.provisions)

	_, err = cardvault.New(ctx, memstore.New(), keys, &cardvault.Options{Network: net})
	fmt.Println(err)

	// Output:
	// inactive 1
	// cardvault: wrong mode: Options.Network is "simulator", which is for sandboxes, and Options.Mode is Live
}
