package updater_test

import (
	"testing"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/updater"
	"github.com/cardvault/cardvault/updatertest"
)

// The example's adapter keeps the contract.
func TestExample(t *testing.T) {
	a := newAdapter()
	updatertest.Run(t, updatertest.Harness{
		Open:   func(testing.TB) updater.Provider { return a },
		Scheme: card.VISA,
		Cards: map[updater.Kind]cardvault.Card{
			updater.NoMatch: {PAN: card.NewPAN([]byte("4242424242424242")), Expiry: card.Expiry{Month: 12, Year: 2090}},
		},
	})
}
