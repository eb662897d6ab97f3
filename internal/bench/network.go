package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/network"
	"github.com/cardvault/cardvault/simnet"
	"github.com/cardvault/cardvault/store/memstore"
)

// activations is the number of imports that must become active.
const activations = 10_000

// network compares imports with and without a network, which answers or fails, and reports
// how fast imports become active while others continue.
func (b *bench) network(ctx context.Context) error {
	var vaults []*cardvault.Vault
	open := func(name string, provider network.Provider) error {
		opts := &cardvault.Options{Mode: cardvault.Sandbox, Network: provider, NetworkRate: 100} // the rate of a live vault
		v, err := cardvault.Open(ctx, filepath.Join(b.dir, name), b.keys, opts)
		vaults = append(vaults, v)
		return err
	}

	defer func() {
		for _, v := range vaults {
			if v != nil {
				must(v.Close())
			}
		}
	}()

	sim, err := simnet.New(ctx, memstore.New(), nil)
	if err == nil {
		err = errors.Join(open("none", nil), open("idle", sim), open("up", sim), open("down", &down{Provider: sim}))
	}
	if err != nil {
		return err
	}

	running, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 2)
	for _, v := range vaults[2:] {
		go func() { ended <- v.Run(running) }()
	}

	visa := testCard(0)
	into := func(v *cardvault.Vault) func(int) error {
		return func(int) error {
			_, err := v.Import(ctx, visa, nil)
			return err
		}
	}
	for _, n := range []int{1, 64} {
		err := b.compare(n,
			contender{"vault without a network", into(vaults[0])},
			contender{"with one, no work done", into(vaults[1])},
			contender{"with one that answers, Run beside", into(vaults[2])},
			contender{"with one that fails always, Run beside", into(vaults[3])},
		)
		if err != nil {
			return errors.Join(err, fmt.Errorf("importing"))
		}
	}

	stop()
	if err := errors.Join(<-ended, <-ended); err != nil {
		return err
	}
	return b.activate(ctx)
}

// activate imports without end until enough imports are active.
func (b *bench) activate(ctx context.Context) error {
	sim, err := simnet.Open(ctx, filepath.Join(b.dir, "simulator"), nil)
	if err != nil {
		return err
	}
	defer func() { must(sim.Close()) }()

	v, err := cardvault.Open(ctx, filepath.Join(b.dir, "active"), b.keys, &cardvault.Options{Mode: cardvault.Sandbox, Network: sim})
	if err != nil {
		return err
	}
	defer func() { must(v.Close()) }()

	running, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- v.Run(running) }()

	var imported atomic.Int64
	begun := time.Now()
	importers := make(chan error, 1)
	go func() {
		importers <- parallel(16, func(int) error {
			for running.Err() == nil {
				if _, err := v.Import(ctx, testCard(0), nil); err != nil {
					return err
				}
				imported.Add(1)
			}
			return nil
		})
	}()

	active := int64(0)
	for active < activations {
		time.Sleep(10 * time.Millisecond)
		p, err := v.List(ctx, &cardvault.TokenListOptions{Limit: 1, NetworkTokenStatus: []network.Status{network.Active}})
		if err != nil {
			return err
		}
		active = p.TotalItems
	}

	took := time.Since(begun)
	fmt.Printf("        %d active in %v: %.0f a second, with a durable simulator, while 16 goroutines import %.0f a second\n",
		active, took.Round(time.Millisecond), float64(active)/took.Seconds(), float64(imported.Load())/took.Seconds())

	stop()
	return errors.Join(<-importers, <-ended)
}

// down is a network that is not there.
type down struct{ network.Provider }

func (n down) Unwrap() network.Provider { return n.Provider }

func (down) Provision(context.Context, *network.ProvisionRequest) (*network.Token, error) {
	return nil, errors.New("503 Service Unavailable")
}
