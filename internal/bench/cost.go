package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"github.com/cardvault/cardvault"
)

// costs prints what calls take of the processor and of the heap, of this whole process:
// the lowest of the rounds, which other work on the machine changes least. To compare
// two versions, run the one and the other by turns, several times, and compare the lowest.
func (b *bench) costs(ctx context.Context) error {
	visa := testCard(0)
	var cards [1 << 14]cardvault.Card
	for i := range cards {
		cards[i] = testCard(i % 1000)
	}

	var turn atomic.Int64
	imports := func(c func() cardvault.Card, opts *cardvault.ImportOptions) func(int) error {
		return func(int) error {
			_, err := b.vault.Import(ctx, c(), opts)
			return err
		}
	}
	same := func() cardvault.Card { return visa }
	different := func() cardvault.Card { return cards[turn.Add(1)%int64(len(cards))] }
	get := func(int) error {
		_, err := b.vault.Get(ctx, b.ids[rand.IntN(len(b.ids))])
		return err
	}

	var all []measured
	for _, c := range []struct{ callers, n int }{{1, 500}, {16, 4000}, {64, 8000}, {256, 16000}} {
		all = append(all,
			measured{"Import of one card", c.callers, c.n, imports(same, nil)},
			measured{"Import of different cards", c.callers, c.n, imports(different, nil)},
			measured{"Import of different cards, in bulk", c.callers, c.n, imports(different, bulk)})
	}
	all = append(all,
		measured{"Import with business_key", 64, 8000, func(int) error {
			key := fmt.Sprint(rand.Int64())
			_, err := b.vault.Import(ctx, visa, &cardvault.ImportOptions{BusinessKey: key})
			return err
		}},
		measured{"Get", 1, 50_000, get},
		measured{"Get", 2, 50_000, get},
		measured{"CreateSession", 64, 8000, func(int) error {
			_, err := b.vault.CreateSession(ctx, nil)
			return err
		}})

	vault, stop, err := b.rest(ctx)
	if err != nil {
		return err
	}
	defer stop()
	all = append(all, measured{"GET /tokens/{id}", 64, 8000, func(int) error { return vault.get(b) }},
		measured{"POST /cde-import", 64, 8000, func(int) error { return vault.post() }})

	for _, m := range all {
		if err := b.measure(m); err != nil {
			return err
		}
	}
	return nil
}

// A measured is a call whose cost is measured: n times, by so many goroutines.
type measured struct {
	name       string
	callers, n int
	run        func(int) error
}

// measure prints the lowest cost of a call in any round.
func (b *bench) measure(m measured) error {
	var cpu []time.Duration
	var allocs, size []uint64
	for range b.rounds {
		runtime.GC()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		began := processTime()
		if err := share(m.callers, m.n, m.run); err != nil {
			return fmt.Errorf("%s: %w", m.name, err)
		}

		cpu = append(cpu, processTime()-began)
		runtime.ReadMemStats(&after)
		allocs = append(allocs, after.Mallocs-before.Mallocs)
		size = append(size, after.TotalAlloc-before.TotalAlloc)
	}

	n := float64(m.n)
	fmt.Printf("  %4d  %-36s %8.2f µs CPU  %7.1f allocations  %8.0f bytes\n", m.callers, m.name,
		slices.Min(cpu).Seconds()*1e6/n, float64(slices.Min(allocs))/n, float64(slices.Min(size))/n)
	return nil
}

// share calls f n times from so many goroutines.
func share(callers, n int, f func(i int) error) error {
	return parallel(callers, func(i int) error {
		for range n / callers {
			if err := f(i); err != nil {
				return err
			}
		}
		return nil
	})
}
