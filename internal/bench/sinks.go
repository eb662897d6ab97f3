package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/httpapi"
)

// A counter is a sink that counts the events it takes.
type counter struct{ taken atomic.Int64 }

func (c *counter) Event(context.Context, *cardvault.Event) error {
	c.taken.Add(1)
	return nil
}

// sinks compares imports over HTTP into a vault with an EventSink, which takes the events
// meanwhile, with those into one without.
func (b *bench) sinks(ctx context.Context) error {
	var taken counter
	silent, end, err := b.importer(ctx, "silent", nil)
	if err != nil {
		return err
	}
	defer end()
	heard, end, err := b.importer(ctx, "heard", &taken)
	if err != nil {
		return err
	}
	defer end()

	for _, n := range []int{1, 64} {
		var ratios, silence, hearing, within, passing []float64
		for range b.rounds {
			without, _, err := rate(n, b.span, func(int) error { return silent.post() })
			if err != nil {
				return err
			}

			before, start := taken.taken.Load(), time.Now()
			with, _, err := rate(n, b.span, func(int) error { return heard.post() })
			if err != nil {
				return err
			}
			meanwhile := float64(taken.taken.Load()-before) / time.Since(start).Seconds()
			for last := int64(-1); last != taken.taken.Load(); time.Sleep(200 * time.Millisecond) {
				last = taken.taken.Load()
			}
			all := float64(taken.taken.Load()-before) / (time.Since(start) - 200*time.Millisecond).Seconds()
			silence, hearing = append(silence, without), append(hearing, with)
			ratios = append(ratios, with/without)
			within, passing = append(within, meanwhile), append(passing, all)
		}
		fmt.Printf("  %4d  imports over HTTP, no sink %.0f/s, with a sink %.0f/s: ratio %.2f (%.2f to %.2f); events meanwhile %.0f/s, until all are taken %.0f/s\n",
			n, median(silence), median(hearing), median(ratios), slices.Min(ratios), slices.Max(ratios), median(within), median(passing))
	}
	return nil
}

// importer serves a new vault with a sink, which may be nil, and runs it.
func (b *bench) importer(ctx context.Context, name string, sink cardvault.EventSink) (*caller, func(), error) {
	v, err := cardvault.Open(ctx, filepath.Join(b.dir, name), b.keys, &cardvault.Options{Events: sink})
	if err != nil {
		return nil, nil, err
	}
	_, key, err := v.CreateAPIKey(ctx, "bench", cardvault.AllScopes(), nil)
	if err == nil {
		err = v.SetApprovals(ctx, cardvault.Approvals{Import: true})
	}
	if err != nil {
		return nil, nil, errors.Join(err, v.Close())
	}
	api, err := httpapi.NewHandler(v, nil)
	if err != nil {
		return nil, nil, errors.Join(err, v.Close())
	}
	c, stop, err := client(ctx, api, key.Text())
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
