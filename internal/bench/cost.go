package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cardvault/cardvault"
)

// A work is a number of calls, by so many goroutines, whose cost is measured.
type work struct {
	name           string
	callers, calls int
	run            func(i int) error
	ready, settle  func(calls int) error // as of a contender; the cost of settle counts
}

// A cost is what one call takes of the processor and of the heap, of this whole process.
type cost struct {
	cpu           time.Duration
	allocs, bytes float64
}

// lowest returns the lower of each of the costs. Other work on the machine can only raise
// them.
func (c cost) lowest(d cost) cost {
	if c == (cost{}) {
		return d
	}
	return cost{min(c.cpu, d.cpu), min(c.allocs, d.allocs), min(c.bytes, d.bytes)}
}

// measure returns the cost of a call.
func (w *work) measure() (c cost, err error) {
	if w.ready != nil {
		if err := w.ready(w.calls); err != nil {
			return c, err
		}
	}

	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	began, err := processTime()
	if err != nil {
		return c, err
	}
	if err := parallel(w.callers, func(i int) error { return w.calling(i) }); err != nil {
		return c, fmt.Errorf("%s: %w", w.name, err)
	}
	if w.settle != nil {
		if err := w.settle(w.calls); err != nil {
			return c, err
		}
	}

	ended, err := processTime()
	runtime.ReadMemStats(&after)
	n := time.Duration(w.calls)
	return cost{(ended - began) / n, float64(after.Mallocs-before.Mallocs) / float64(n), float64(after.TotalAlloc-before.TotalAlloc) / float64(n)}, err
}

// calling makes the calls of the i-th goroutine.
func (w *work) calling(i int) error {
	for range w.calls / w.callers {
		if err := w.run(i); err != nil {
			return err
		}
	}
	return nil
}

// processTime returns what this process has taken of the processor.
func processTime() (time.Duration, error) {
	var u syscall.Rusage
	err := syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), err
}

// costs prints the lowest cost of calls in any round. To compare two versions, run the one
// and the other by turns, several times, and compare the lowest.
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

	var all []work
	for _, c := range []struct{ callers, n int }{{1, 500}, {16, 4000}, {64, 8000}, {256, 16128}} {
		all = append(all,
			work{name: "Import of one card", callers: c.callers, calls: c.n, run: imports(same, nil)},
			work{name: "Import of different cards", callers: c.callers, calls: c.n, run: imports(different, nil)},
			work{name: "Import of different cards, in bulk", callers: c.callers, calls: c.n, run: imports(different, bulk)})
	}
	all = append(all,
		work{name: "Import with business_key", callers: 64, calls: 8000, run: func(int) error {
			_, err := b.vault.Import(ctx, visa, &cardvault.ImportOptions{BusinessKey: fmt.Sprint(rand.Int64())})
			return err
		}},
		work{name: "Import with an idempotency key", callers: 64, calls: 8000, run: func(int) error {
			_, err := b.vault.Import(ctx, visa, keyed())
			return err
		}},
		work{name: "Get", callers: 1, calls: 50_000, run: get},
		work{name: "Get", callers: 2, calls: 50_000, run: get},
		work{name: "CreateSession", callers: 64, calls: 8000, run: func(int) error {
			_, err := b.vault.CreateSession(ctx, nil)
			return err
		}})

	vault, stop, err := b.rest(ctx)
	if err != nil {
		return err
	}
	defer stop()
	for _, l := range b.loads(ctx) {
		c := l.contender(vault)
		all = append(all, work{name: l.what, callers: 64, calls: 6400, run: c.run, ready: c.ready})
	}

	for i := range all {
		if err := all[i].print(b.table.Rounds); err != nil {
			return err
		}
	}
	return nil
}

// print prints the lowest cost of a call in any round.
func (w *work) print(rounds int) error {
	var c cost
	for range rounds {
		d, err := w.measure()
		if err != nil {
			return err
		}
		c = c.lowest(d)
	}
	fmt.Printf("  %4d  %-36s %8.2f µs CPU  %7.1f allocations  %8.0f bytes\n", w.callers, w.name, c.cpu.Seconds()*1e6, c.allocs, c.bytes)
	return nil
}
