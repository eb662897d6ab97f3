package vaulttest

import (
	"testing"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/simnet"
	"github.com/cardvault/cardvault/store/memstore"
)

// A Network is a vault and the simulated network that it is connected to.
type Network struct {
	Vault *cardvault.Vault

	// Simulator answers the vault as package simnet describes. Its Control does to stored
	// cards what a scheme does.
	Simulator *simnet.Network
}

// NewNetwork returns a new sandbox vault in memory, as [New] does, with a simulated network:
//
//	n := vaulttest.NewNetwork(t)
//	token, err := n.Vault.Import(ctx, visa, nil)
//	err = n.Vault.Drain(ctx) // the network token is there
//
// The simulator also identifies cardholders and makes pseudo card numbers.
func NewNetwork(t testing.TB) *Network {
	t.Helper()
	return NewNetworkWith(t, nil)
}

// NewNetworkWith is NewNetwork with options, which may be nil. Mode is Sandbox whatever they
// say. Where they have no Network, IDV or PPAN it is the simulator.
func NewNetworkWith(t testing.TB, opts *cardvault.Options) *Network {
	t.Helper()
	sim, err := simnet.New(t.Context(), memstore.New(), nil)
	if err != nil {
		t.Fatal(err)
	}

	var o cardvault.Options
	if opts != nil {
		o = *opts
	}
	o.Mode = cardvault.Sandbox
	if o.Network == nil {
		o.Network = sim
	}
	if o.IDV == nil {
		o.IDV = sim.IDV()
	}
	if o.PPAN == nil {
		o.PPAN = sim.PPAN()
	}
	return &Network{Vault: NewWith(t, &o), Simulator: sim}
}
