package network_test

import (
	"testing"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/network"
	"github.com/cardvault/cardvault/networktest"
)

// The example's adapter keeps the contract.
func TestExample(t *testing.T) {
	s := &service{tokens: map[string]*network.Token{}}
	networktest.Run(t, networktest.Harness{
		Open:   func(testing.TB) network.Provider { return s },
		Scheme: card.VISA,
		Card:   cardvault.Card{PAN: card.NewPAN([]byte("4242424242424242")), Expiry: card.Expiry{Month: 12, Year: 2090}},
	})
}
