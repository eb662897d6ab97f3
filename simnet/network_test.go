package simnet_test

import (
	"context"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/internal/goroutines"
	"github.com/cardvault/cardvault/network"
	"github.com/cardvault/cardvault/networktest"
	"github.com/cardvault/cardvault/simnet"
	"github.com/cardvault/cardvault/store/memstore"
	"github.com/cardvault/cardvault/store/storetest"
)

func TestMain(m *testing.M) { goroutines.Verify(m) }

// The simulator keeps the contract of a network, on every store, and whether its network
// tokens become active at once or later.
func TestContract(t *testing.T) {
	file := func(t testing.TB) network.Provider {
		n, err := simnet.Open(t.Context(), t.TempDir(), nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := n.Close(); err != nil {
				t.Error(err)
			}
		})
		return n
	}
	for _, c := range []struct {
		name          string
		open          func(testing.TB) network.Provider
		scheme        card.Scheme
		code, refused int
	}{
		{"file", file, card.VISA, 0, 10},
		{"memory", func(t testing.TB) network.Provider {
			return newNetwork(t, memstore.New(), nil)
		}, card.Mastercard, 1, 20},
		{"shared", func(t testing.TB) network.Provider {
			return newNetwork(t, memstore.New(), &simnet.Options{Shared: true})
		}, card.Discover, 71, 70},
		{"every update twice", func(t testing.TB) network.Provider {
			return newNetwork(t, storetest.Twice(memstore.New()), &simnet.Options{Shared: true})
		}, card.AmericanExpress, 2, 13},
	} {
		t.Run(c.name, func(t *testing.T) {
			// Drawn once per process: under -race, drawing takes longer than the suite
			// waits.
			n := newNetwork(t, memstore.New(), nil)
			if _, err := n.CardArt(t.Context(), &network.ArtRequest{ID: provision(t, n, request(c.scheme, 0)).Art}); err != nil {
				t.Fatal(err)
			}
			expiry := card.Expiry{Month: 12, Year: 2040}
			networktest.Run(t, networktest.Harness{
				Open:    c.open,
				Scheme:  c.scheme,
				Card:    cardvault.Card{PAN: simnet.ScenarioPAN(c.scheme, c.code), Expiry: expiry},
				Refused: cardvault.Card{PAN: simnet.ScenarioPAN(c.scheme, c.refused), Expiry: expiry},
				Activate: func(_ context.Context, n network.Provider, _ network.Ref) error {
					n.(*simnet.Network).Advance(2 * time.Second)
					return nil
				},
			})
		})
	}
}
