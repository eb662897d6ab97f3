package payone_test

import (
	"testing"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/payone"
	"github.com/cardvault/cardvault/payone/payonetest"
	"github.com/cardvault/cardvault/ppan"
	"github.com/cardvault/cardvault/ppantest"
	"github.com/cardvault/cardvault/simnet"
)

// TestContract: the client keeps the contract of a provider.
func TestContract(t *testing.T) {
	of := payone.HashParameters{AID: "22222", MID: "11111", PortalID: "3333333", Sandbox: true}
	account := func(key string) ppan.Account {
		return ppan.Account{AID: of.AID, MID: of.MID, PortalID: of.PortalID, Hash: payone.Hash(key, of)}
	}
	testCard := func(scenario int) cardvault.Card {
		return cardvault.Card{PAN: simnet.ScenarioPAN(card.VISA, scenario), Expiry: card.Expiry{Month: 12, Year: 2090}}
	}

	s := open(t, true, payonetest.NewHandler(simnet.PortalKey, newSimulator(t).PPAN()), payone.Options{})
	ppantest.Run(t, ppantest.Harness{
		Open:     func(testing.TB) ppan.Provider { return s.Client },
		Account:  account(simnet.PortalKey),
		Card:     testCard(0),
		Refused:  testCard(81),
		Stranger: account("another key"),
	})
}
