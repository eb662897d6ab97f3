package vaulttest_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/internal/bubble"
	"github.com/cardvault/cardvault/network"
	"github.com/cardvault/cardvault/simnet"
	"github.com/cardvault/cardvault/vaulttest"
	"github.com/google/uuid"
)

// A card has a network token, which its issuer suspends.
func ExampleNewNetwork() {
	_ = func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			n := vaulttest.NewNetwork(t)
			go n.Vault.Run(t.Context()) // passes on the network's notices

			token, err := n.Vault.Import(t.Context(), cardvault.Card{
				PAN:    simnet.ScenarioPAN(card.VISA, 0),
				Expiry: card.Expiry{Month: 12, Year: 2090},
			}, nil)
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
			if err := n.Simulator.Control().Suspend(t.Context(), token.ID); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)

			token, err = n.Vault.Get(t.Context(), token.ID)
			if err != nil || token.NetworkTokenStatus != network.Inactive {
				t.Errorf("%v, %v", token, err)
			}
		})
	}
}

func TestNewNetwork(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var events vaulttest.Recorder
		n := vaulttest.NewNetworkWith(t, &cardvault.Options{Events: &events})
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- n.Vault.Run(ctx) }()
		defer func() {
			stop()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}()

		imported := func(scenario int) uuid.UUID {
			token, err := n.Vault.Import(ctx, cardvault.Card{
				PAN: simnet.ScenarioPAN(card.VISA, scenario), Expiry: card.Expiry{Month: 12, Year: 2090},
			}, nil)
			if err != nil {
				t.Fatal(err)
			}
			return token.ID
		}
		status := func(id uuid.UUID, want network.Status) {
			t.Helper()
			time.Sleep(time.Minute)
			token, err := n.Vault.Get(ctx, id)
			if err != nil || token.NetworkTokenStatus != want {
				t.Errorf("%+v, %v; want %v", token, err, want)
			}
		}

		active, refused := imported(0), imported(12)
		status(active, network.Active)
		status(refused, network.Failed)
		if err := n.Simulator.Control().Suspend(ctx, active); err != nil {
			t.Fatal(err)
		}
		status(active, network.Inactive)
		if n.Vault.Mode() != cardvault.Sandbox || len(events.Events()) < 3 || !n.Vault.PPANEnabled() {
			t.Errorf("the vault is %v, and has sent %d events", n.Vault.Mode(), len(events.Events()))
		}
	})
}
