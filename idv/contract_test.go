package idv_test

import (
	"testing"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/idv"
	"github.com/cardvault/cardvault/idvtest"
)

// The example's adapter keeps the contract.
func TestExample(t *testing.T) {
	service := &phone{call: sayYes, calls: map[string]*idv.Result{}}
	idvtest.Run(t, idvtest.Harness{
		Open:   func(testing.TB) idv.Provider { return service },
		Scheme: card.VISA,
		Card:   cardvault.Card{PAN: card.NewPAN([]byte("4242424242424242")), Expiry: card.Expiry{Month: 12, Year: 2090}},
	})
}
