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
		var ratios, silence, hearing, passing, plain, costly []float64
		for range b.rounds {
			without, each, err := b.posts(n, silent, nil)
			if err != nil {
				return err
			}
			silence, plain = append(silence, without), append(plain, each)

			before, start := taken.taken.Load(), time.Now()
			with, each, err := b.posts(n, heard, &taken)
			if err != nil {
				return err
			}
			hearing, costly = append(hearing, with), append(costly, each)
			passing = append(passing, float64(taken.taken.Load()-before)/time.Since(start).Seconds())
			ratios = append(ratios, with/without)
		}
		fmt.Printf("  %4d  imports over HTTP, no sink %.0f/s, with a sink %.0f/s: ratio %.2f (%.2f to %.2f); processor %.0f and %.0f µs an import: ratio %.2f; events %.0f/s\n",
			n, median(silence), median(hearing), median(ratios), slices.Min(ratios), slices.Max(ratios),
			median(plain), median(costly), median(plain)/median(costly), median(passing))
	}
	return nil
}

// posts imports with n connections, and waits until the sink has taken the events. It
// returns the imports a second, and the microseconds of the processor that each has cost
// with its event.
func (b *bench) posts(n int, into *caller, taken *counter) (perSecond, cost float64, err error) {
	began, before := processTime(), int64(0)
	if taken != nil {
		before = taken.taken.Load()
	}
	perSecond, all, err := rate(n, b.span, func(int) error { return into.post() })
	for end := time.Now().Add(time.Minute); err == nil && taken != nil && taken.taken.Load()-before < int64(len(all)); {
		if time.Now().After(end) {
			return 0, 0, errors.New("events do not arrive")
		}
		time.Sleep(10 * time.Millisecond)
	}
	return perSecond, float64((processTime() - began).Microseconds()) / float64(len(all)), err
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
