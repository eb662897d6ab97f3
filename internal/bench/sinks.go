package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/httpapi"
	"github.com/cardvault/cardvault/network"
	"github.com/cardvault/cardvault/simnet"
	"github.com/cardvault/cardvault/store/memstore"
)

// A counter is a sink that counts the events it takes.
type counter struct{ taken atomic.Int64 }

func (c *counter) Event(context.Context, *cardvault.Event) error {
	c.taken.Add(1)
	return nil
}

// sinks compares imports over HTTP into three vaults: with an EventSink that takes the
// events meanwhile, with unbounded provisioning of network tokens as well, and with
// neither.
func (b *bench) sinks(ctx context.Context) error {
	sim, err := simnet.New(ctx, memstore.New(), nil)
	if err != nil {
		return err
	}
	silent, end, err := b.importer(ctx, "silent", &cardvault.Options{})
	if err != nil {
		return err
	}
	defer end()

	for _, with := range []struct {
		name    string
		network network.Provider
		events  int64 // of an import
	}{{"a sink", nil, 1}, {"a sink and a network", sim, 2}} {
		var taken counter
		opts := &cardvault.Options{Events: &taken, Network: with.network}
		if with.network != nil {
			opts.Mode = cardvault.Sandbox
		}
		heard, end, err := b.importer(ctx, strings.ReplaceAll(with.name, " ", "-"), opts)
		if err != nil {
			return err
		}
		err = b.hear(with.name, silent, heard, &taken, with.events)
		end()
		if err != nil {
			return err
		}
	}
	return nil
}

// hear compares imports over HTTP into a vault with a sink, which takes some events of each,
// with those into one without.
func (b *bench) hear(what string, silent, heard *caller, taken *counter, events int64) error {
	for _, n := range []int{1, 64} {
		var ratios, silence, hearing, passing, plain, costly []float64
		for range b.rounds {
			without, each, err := b.posts(n, silent, nil, 0)
			if err != nil {
				return err
			}
			silence, plain = append(silence, without), append(plain, each)

			before, start := taken.taken.Load(), time.Now()
			with, each, err := b.posts(n, heard, taken, events)
			if err != nil {
				return err
			}
			hearing, costly = append(hearing, with), append(costly, each)
			passing = append(passing, float64(taken.taken.Load()-before)/time.Since(start).Seconds())
			ratios = append(ratios, with/without)
		}
		fmt.Printf("  %4d  imports over HTTP, no sink %.0f/s, with %s %.0f/s: ratio %.2f (%.2f to %.2f); processor %.0f and %.0f µs an import: ratio %.2f; events %.0f/s\n",
			n, median(silence), what, median(hearing), median(ratios), slices.Min(ratios), slices.Max(ratios),
			median(plain), median(costly), median(plain)/median(costly), median(passing))
	}
	return nil
}

// posts imports with n connections, and waits until the sink has taken some events of each.
// It returns the imports a second, and the microseconds of the processor that each has cost
// with these.
func (b *bench) posts(n int, into *caller, taken *counter, events int64) (perSecond, cost float64, err error) {
	began, before := processTime(), int64(0)
	if taken != nil {
		before = taken.taken.Load()
	}
	perSecond, all, err := rate(n, b.span, func(int) error { return into.post() })
	for end := time.Now().Add(time.Minute); err == nil && taken != nil && taken.taken.Load()-before < events*int64(len(all)); {
		if time.Now().After(end) {
			return 0, 0, errors.New("events do not arrive")
		}
		time.Sleep(10 * time.Millisecond)
	}
	return perSecond, float64((processTime() - began).Microseconds()) / float64(len(all)), err
}

// importer serves a new vault and runs it.
func (b *bench) importer(ctx context.Context, name string, opts *cardvault.Options) (*caller, func(), error) {
	v, err := cardvault.Open(ctx, filepath.Join(b.dir, name), b.keys, opts)
	if err != nil {
		return nil, nil, err
	}
	key, err := v.CreateAPIKey(ctx, "bench", cardvault.AllScopes(), nil)
	if err == nil {
		_, err = v.UpdateAccount(ctx, cardvault.AccountUpdate{ImportApproved: new(true), NetworkTokensActive: new(true)})
	}
	if err != nil {
		return nil, nil, errors.Join(err, v.Close())
	}
	api, err := httpapi.NewHandler(v, nil)
	if err != nil {
		return nil, nil, errors.Join(err, v.Close())
	}
	c, stop, err := client(ctx, api, key.Text.Text())
	if err != nil {
		return nil, nil, errors.Join(err, v.Close())
	}

	running, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- v.Run(running) }()
	return c, func() {
		stop()
		cancel()
		must(errors.Join(<-ended, v.Close()))
	}, nil
}
