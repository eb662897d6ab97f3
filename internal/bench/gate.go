package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cardvault/cardvault/internal/bench/table"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/boltstore"
)

// The gate compares costs of calls with stored ones. A cost is the processor's time of a
// call divided by the time of a floor in the same run, or a number of allocations. Neither
// depends on how fast the machine is, and hardly on other work.

// A stored is the file of the gate.
type stored struct {
	Machine table.Machine      `json:"machine"`
	Costs   map[string]float64 `json:"costs"`
}

// A gated is a pair of works: the costs of ours are judged.
type gated struct {
	name       string
	ours, bare work
}

// Shares by which a cost may rise. A loss of a quarter of the speed is a rise by a third.
// Allocations vary less: a few belong to background work.
const (
	cpuRise   = 1.0 / 3
	allocRise = .1
)

// turns is the number of measurements in a run: the lowest counts. attempts is the number
// of runs: two must show a rise.
const (
	turns    = 6
	attempts = 3
)

// gate fails if a cost has risen in two of three runs, or writes the costs into the file.
func (b *bench) gate(ctx context.Context, file string, update bool) (err error) {
	b.table.Tokens = 20_000
	if b.table.Machine, err = table.ThisMachine(b.dir); err != nil {
		return err
	}
	if err := b.fill(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.vault.Close()) }()
	var open closers
	defer open.close(&err)

	works, err := b.gatedWorks(ctx, &open)
	if err != nil {
		return err
	}

	take := func(names []string) (map[string]float64, error) { return costsOf(works, names) }
	if update {
		return b.storeCosts(file, take)
	}

	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var s stored
	if err := json.Unmarshal(text, &s); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	return judge(s.Costs, take)
}

// storeCosts writes the highest costs of three runs into the file, so that chance in one of
// them makes no later run fail.
func (b *bench) storeCosts(file string, take func(names []string) (map[string]float64, error)) error {
	highest := map[string]float64{}
	for range attempts {
		costs, err := take(nil)
		if err != nil {
			return err
		}
		for name, c := range costs {
			highest[name] = max(highest[name], math.Round(c*1000)/1000)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(highest)) {
		fmt.Printf("  %-28s %8.3f\n", name, highest[name])
	}
	text, err := json.MarshalIndent(stored{b.table.Machine, highest}, "", "\t")
	return cmp.Or(err, os.WriteFile(file, append(text, '\n'), 0o644))
}

// judge measures at most three times, and fails if a cost has risen in two runs. Costs that
// have not risen in the first run are not measured again. A nil list of names means all.
func judge(want map[string]float64, take func(names []string) (map[string]float64, error)) error {
	var names []string
	risen := map[string]int{}
	for run := range attempts {
		got, err := take(names)
		if err != nil {
			return err
		}
		if run == 0 && !slices.Equal(slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want))) {
			return errors.New("the stored costs are of other calls: make bench-gate UPDATE=1 on a quiet machine")
		}

		for _, name := range slices.Sorted(maps.Keys(got)) {
			rise := got[name]/want[name] - 1
			note := ""
			if rise > allowed(name) {
				risen[name]++
				note = "  has risen"
			}
			fmt.Printf("  run %d  %-24s %8.3f, stored %8.3f: %+.0f %%%s\n", run+1, name, got[name], want[name], 100*rise, note)
		}
		names = slices.Sorted(maps.Keys(risen))
		if len(names) == 0 {
			return nil
		}
	}

	names = slices.DeleteFunc(names, func(name string) bool { return risen[name] < 2 })
	if len(names) > 0 {
		return fmt.Errorf("these cost more than stored: %s", strings.Join(names, ", "))
	}
	return nil
}

// allowed returns the share by which a cost may rise.
func allowed(name string) float64 {
	if strings.HasSuffix(name, allocations) {
		return allocRise
	}
	return cpuRise
}

// The suffixes of the names of costs.
const (
	processor   = "/cpu"
	allocations = "/allocations"
)

// costsOf measures the works which have one of these costs, in turns with their floors.
func costsOf(works []gated, names []string) (map[string]float64, error) {
	got := map[string]float64{}
	for _, g := range works {
		if names != nil && !slices.Contains(names, g.name+processor) && !slices.Contains(names, g.name+allocations) {
			continue
		}

		var ours, bare cost
		for range turns {
			for _, side := range []struct {
				work *work
				low  *cost
			}{{&g.bare, &bare}, {&g.ours, &ours}} {
				c, err := side.work.measure()
				if err != nil {
					return nil, err
				}
				*side.low = side.low.lowest(c)
			}
		}

		got[g.name+processor] = ours.cpu.Seconds() / bare.cpu.Seconds()
		got[g.name+allocations] = ours.allocs
	}
	return got, nil
}

// gatedWorks returns what the gate measures. Writes are into memory, or of one transaction:
// in a group commit a call costs less the more calls wait, which depends on the machine.
func (b *bench) gatedWorks(ctx context.Context, open *closers) ([]gated, error) {
	get, view, shut, err := b.getAndView(ctx)
	if err != nil {
		return nil, err
	}
	open.later(shut)
	get.ready, view.ready = nil, nil
	update, loop, err := b.transactions(ctx, open)
	if err != nil {
		return nil, err
	}
	s, err := b.newSite(ctx, "", features{memory: true})
	if err != nil {
		return nil, err
	}
	open.later(s.shut)

	all := []gated{
		{name: "get", ours: of(get, 1, 10_000), bare: of(view, 1, 10_000)},
		{name: "import", ours: of(b.importing("Import", s.vault, nil), 1, 2000), bare: of(view, 1, 10_000)},
		{name: "import-keyed", ours: of(b.importing("Import with a key", s.vault, keyed), 1, 1000), bare: of(view, 1, 10_000)},
		{name: "put", ours: of(update, 1, 20), bare: of(loop, 1, 20)},
	}

	vault, stop, err := b.rest(ctx)
	if err != nil {
		return nil, err
	}
	open.later(func() error { stop(); return nil })
	inMemory := *b
	inMemory.vault = s.vault
	for _, on := range []struct {
		b      *bench
		caller *caller
		loads  []string
	}{{b, vault, []string{"read", "list"}}, {&inMemory, s.caller, []string{"import", "delete"}}} {
		for _, l := range on.b.loads(ctx) {
			if !slices.Contains(on.loads, l.name) {
				continue
			}
			g, err := l.gated(on.caller, open)
			if err != nil {
				return nil, err
			}
			all = append(all, g)
		}
	}

	with := everything
	with.memory = true
	full, err := b.newSite(ctx, "", with)
	if err != nil {
		return nil, err
	}
	open.later(full.shut)
	bare := all[slices.IndexFunc(all, func(g gated) bool { return g.name == "http-import" })].bare
	return append(all, gated{name: "http-import-all", ours: of(full.importer("import with all features"), 64, 640), bare: bare}), nil
}

// transactions returns transactions of boltstore that put 256 records of the size of
// a token, and transactions of bbolt that append as many rows.
func (b *bench) transactions(ctx context.Context, open *closers) (update, loop contender, err error) {
	s, err := boltstore.Open(ctx, filepath.Join(b.dir, "put.db"), nil)
	if err != nil {
		return update, loop, err
	}
	open.later(s.Close)
	appending, err := newFloor(filepath.Join(b.dir, "append.db"), b.shape[:1], 0)
	if err != nil {
		return update, loop, err
	}
	open.later(appending.close)

	const records = 256
	var ids rowKeys
	update = contender{name: "Update of boltstore", run: func(int) error {
		return s.Update(ctx, func(tx store.Tx) error {
			for range records {
				r := newRecord(kind, owner, ids.next())
				r.Shown, r.Secret = r.Shown[:b.rowBytes()/2], r.Secret[:b.rowBytes()/4]
				tx.Put(r)
			}
			return nil
		})
	}}
	loop = contender{name: "Update of bbolt", run: func(int) error { return appending.append(records, b.shape[:1]) }}
	return update, loop, nil
}

// of returns a contender as work.
func of(c contender, callers, calls int) work {
	return work{c.name, callers, calls, c.run, c.ready, c.settle}
}

// gated returns a load with its bare handler, at 64 connections.
func (l *load) gated(vault *caller, open *closers) (g gated, err error) {
	bare, stop, err := l.bare(vault)
	if err != nil {
		return g, err
	}
	open.later(stop)
	calls := 960
	if l.name == "list" {
		calls /= 5
	}
	return gated{name: "http-" + l.name, ours: of(l.contender(vault), 64, calls), bare: of(bare, 64, calls)}, nil
}
