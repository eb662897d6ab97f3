package main

import (
	"cmp"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cardvault/cardvault/internal/bench/table"
)

// A contender is one side of a comparison.
type contender struct {
	name string
	run  func(i int) error // one call of the i-th goroutine

	ready  func(calls int) error // prepares about so many calls before each measurement; may be nil
	settle func(calls int) error // waits for the work that so many calls have left; may be nil
}

// A lane holds what a contender has done in the rounds.
type lane struct {
	name    string
	samples []sample
}

// A sample is one measurement.
type sample struct {
	calls     int
	perSecond float64
	p50, p99  time.Duration
	settled   float64 // calls a second, until their work was done
}

// errUsedUp ends a measurement early: the calls have used up what was prepared.
var errUsedUp = errors.New("nothing prepared is left")

// prepared is the number of calls to prepare for the first measurement.
const prepared = 1000

// race measures the contenders in turn with n goroutines, each once a round. Every second
// round has the reverse order.
func (b *bench) race(n int, cs ...contender) ([]*lane, error) { return b.raceFor(b.span, n, cs...) }

func (b *bench) raceFor(span time.Duration, n int, cs ...contender) ([]*lane, error) {
	lanes := make([]*lane, len(cs))
	order := make([]int, len(cs))
	for i, c := range cs {
		lanes[i], order[i] = &lane{name: c.name}, i
	}

	for range b.table.Rounds {
		for _, i := range order {
			s, err := measure(span, n, &cs[i], lanes[i].samples)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", cs[i].name, err)
			}
			lanes[i].samples = append(lanes[i].samples, s)
		}
		slices.Reverse(order)
	}
	return lanes, nil
}

// measure runs a contender once.
func measure(span time.Duration, n int, c *contender, before []sample) (s sample, err error) {
	if err := calm(); err != nil {
		return s, err
	}
	if c.ready != nil {
		calls := prepared
		if len(before) > 0 {
			calls = min(max(calls, before[len(before)-1].calls*3/2), 50_000)
		}
		if err := c.ready(calls); err != nil {
			return s, err
		}
	}
	runtime.GC() // so that others' garbage costs nothing here

	start := time.Now()
	perSecond, latencies, err := rate(n, span, c.run)
	if err != nil {
		return s, err
	}
	s = sample{len(latencies), perSecond, quantile(latencies, .5), quantile(latencies, .99), perSecond}
	if c.settle != nil {
		err = c.settle(s.calls)
		s.settled = float64(s.calls) / time.Since(start).Seconds()
	}
	return s, err
}

// calm waits until the work that others have left takes a tenth of a processor at most, and
// no longer than ten seconds.
func calm() error {
	const pause = 100 * time.Millisecond
	before, err := processTime()
	for end := time.Now().Add(100 * pause); err == nil && time.Now().Before(end); {
		<-time.After(pause)
		now, failed := processTime()
		if now-before < pause/10 {
			return failed
		}
		before, err = now, failed
	}
	return err
}

// rate runs f in n goroutines for a while, once at least, or until it returns errUsedUp. It
// returns the calls a second, and their durations in ascending order.
func rate(n int, span time.Duration, f func(i int) error) (perSecond float64, latencies []time.Duration, err error) {
	var mu sync.Mutex
	start := time.Now()
	end := start.Add(span)
	err = parallel(n, func(i int) error {
		var own []time.Duration
		defer func() {
			mu.Lock()
			latencies = append(latencies, own...)
			mu.Unlock()
		}()
		for now := time.Now(); ; {
			if err := f(i); errors.Is(err, errUsedUp) {
				return nil
			} else if err != nil {
				return err
			}
			then := now
			now = time.Now()
			if own = append(own, now.Sub(then)); !now.Before(end) {
				return nil
			}
		}
	})

	took := time.Since(start)
	slices.Sort(latencies)
	return float64(len(latencies)) / took.Seconds(), latencies, err
}

// parallel runs f in n goroutines and returns the first error.
func parallel(n int, f func(i int) error) error {
	errs := make(chan error, n)
	for i := range n {
		go func() { errs <- f(i) }()
	}
	var first error
	for range n {
		first = cmp.Or(first, <-errs)
	}
	return first
}

func quantile(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}

// A supply holds items that calls use up, such as tokens to delete.
type supply[T any] struct {
	items []T
	next  atomic.Int64
}

// fill replaces the items by n that produce returns, called by 64 goroutines.
func (s *supply[T]) fill(n int, produce func() (T, error)) error {
	s.items = make([]T, n)
	s.next.Store(0)
	var at atomic.Int64
	return parallel(64, func(int) error {
		for i := at.Add(1) - 1; i < int64(n); i = at.Add(1) - 1 {
			item, err := produce()
			if err != nil {
				return err
			}
			s.items[i] = item
		}
		return nil
	})
}

// take returns an item, or errUsedUp.
func (s *supply[T]) take() (item T, err error) {
	i := s.next.Add(1) - 1
	if i >= int64(len(s.items)) {
		return item, errUsedUp
	}
	return s.items[i], nil
}

// least and most are goals.
func least(ratio float64) table.Goal { return table.Goal{AtLeast: ratio} }
func most(ratio float64) table.Goal  { return table.Goal{AtMost: ratio} }

// reported is the goal of rows without one.
var reported table.Goal

// ratio adds a row: the rates of ours against those of another.
func (b *bench) ratio(name string, at int, goal table.Goal, ours, against *lane) {
	b.compared(name, at, goal, ours, against, func(o, a sample) float64 { return o.perSecond / a.perSecond })
}

// compared adds a row whose figures compute makes of the samples of each round.
func (b *bench) compared(name string, at int, goal table.Goal, ours, against *lane, compute func(ours, against sample) float64) {
	r := &table.Row{Name: name, What: ours.name, Against: against.name, At: at, Goal: goal}
	for i, o := range ours.samples {
		a := against.samples[i]
		r.Rounds = append(r.Rounds, table.Round{Figure: compute(o, a),
			Ours: o.perSecond, Against: a.perSecond, OursP99: milliseconds(o.p99), AgainstP99: milliseconds(a.p99)})
	}
	b.add(r)
}

// figures adds a row of figures that need no comparison in the same run.
func (b *bench) figures(name, unit string, goal table.Goal, what string, figures ...float64) {
	r := &table.Row{Name: name, What: what, Unit: unit, Goal: goal}
	for _, f := range figures {
		r.Rounds = append(r.Rounds, table.Round{Figure: f})
	}
	b.add(r)
}

// notRun adds rows that nothing was measured for.
func (b *bench) notRun(reason, what, against string, goals map[string]table.Goal, names ...string) {
	for _, name := range names {
		b.add(&table.Row{Name: name, What: what, Against: against, Goal: goals[name], NotRun: reason})
	}
}

func (b *bench) add(r *table.Row) {
	r.Part = b.part
	b.table.Rows = append(b.table.Rows, r)
	fmt.Println(" ", r)
}

func milliseconds(d time.Duration) float64 { return d.Seconds() * 1000 }

// closers close things, the last one first.
type closers []func() error

func (c *closers) later(f func() error) { *c = append(*c, f) }

func (c *closers) shut() (err error) {
	for len(*c) > 0 {
		last := len(*c) - 1
		err = errors.Join(err, (*c)[last]())
		*c = (*c)[:last]
	}
	return err
}

// close adds what fails to the error of a function that returns.
func (c *closers) close(err *error) { *err = errors.Join(*err, c.shut()) }
