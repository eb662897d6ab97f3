package ppan_test

import (
	"testing"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/ppan"
	"github.com/cardvault/cardvault/ppantest"
)

// The example's adapter keeps the contract.
func TestExample(t *testing.T) {
	ppantest.Run(t, ppantest.Harness{
		Open:    func(testing.TB) ppan.Provider { return psp{} },
		Account: ppan.Account{AID: "22222", MID: "11111", PortalID: "3333333", Hash: ppan.NewHash([]byte("hash"))},
		Card:    cardvault.Card{PAN: card.NewPAN([]byte("4242424242424242")), Expiry: card.Expiry{Month: 12, Year: 2090}},
	})
}
