// Bench prints the figures of the vault as ratios, taken in one run: durable
// imports against raw bbolt, reads against a bare View and one GCM open, pages
// of a list against its first, HTTP against a bare net/http handler, imports with a
// webhook or a sink against those without, and beside the erasure of a large family. cost prints
// what calls take of the processor and of the heap instead, to compare two versions.
//
//	go run -C internal/bench . [-tokens 1000000] [-rounds 3] [-for 2s] [-family 100000] [import get list disk open sweep http network webhooks sinks families cost]
//
// The things compared take turns, and the medians of the rounds count. Absolute figures
// depend on the machine; the ratios hardly do.
package main

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/webhook"
	"github.com/google/uuid"
)

type bench struct {
	tokens, rounds int
	family         int // records below one
	span           time.Duration
	dir            string
	keys           *cardvault.Keyring
	vault          *cardvault.Vault
	ids            []uuid.UUID // a sample of the tokens
	rowBytes       int         // of one record: columns and sealed parts
}

func main() {
	b := new(bench)
	flag.IntVar(&b.tokens, "tokens", 1_000_000, "tokens in the vault")
	flag.IntVar(&b.rounds, "rounds", 3, "rounds, of which the median counts")
	flag.DurationVar(&b.span, "for", 2*time.Second, "duration of one run")
	flag.IntVar(&b.family, "family", 100_000, "records below the one that is deleted, of families")
	child := flag.String("import-until-killed", "", "used by open: import into the vault in this `directory`")
	flag.Parse()

	if *child != "" {
		b.dir = *child
		must(b.importUntilKilled())
		return
	}

	parts := []struct {
		name string
		run  func(context.Context) error
	}{
		{"import", b.imports}, {"get", b.gets}, {"list", b.lists}, {"disk", b.disk},
		{"open", b.opens}, {"sweep", b.sweep}, {"http", b.http}, {"network", b.network},
		{"webhooks", b.webhooks}, {"sinks", b.sinks}, {"families", b.families}, {"cost", b.costs},
	}

	dir, err := os.MkdirTemp("", "cardvault-bench-*")
	must(err)
	defer os.RemoveAll(dir)
	b.dir = dir

	ctx := context.Background()
	must(b.fill(ctx))
	for _, p := range parts {
		if flag.NArg() > 0 && !slices.Contains(flag.Args(), p.name) {
			continue
		}
		fmt.Printf("\n%s\n", p.name)
		must(p.run(ctx))
	}
	must(b.vault.Close())
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// prefixes of the schemes in the filled vault, with their share in 1000.
var prefixes = []struct {
	share  int
	digits string
	scheme card.Scheme
}{
	{600, "411111000000000", card.VISA},
	{300, "555555000000000", card.Mastercard},
	{89, "601111000000000", card.Discover},
	{10, "356600000000000", card.JCB},
	{1, "620000000000000", card.UnionPay},
}

// testCard returns a card of the n-th of 1000 parts.
func testCard(n int) cardvault.Card {
	for _, p := range prefixes {
		if n -= p.share; n < 0 {
			d := []byte(p.digits)
			for i := 6; i < len(d); i++ {
				d[i] = byte('0' + rand.IntN(10))
			}

			return cardvault.Card{
				PAN:    card.NewPAN(append(d, luhn(d))),
				Expiry: card.Expiry{Month: 1 + rand.IntN(12), Year: 2030},
				Name:   card.NewName([]byte("A Customer")),
			}
		}
	}
	panic("the shares do not add up to 1000")
}

func luhn(d []byte) byte {
	sum := 0
	for i := range d {
		n := int(d[len(d)-1-i] - '0')
		if i%2 == 0 {
			if n *= 2; n > 9 {
				n -= 9
			}
		}
		sum += n
	}
	return byte('0' + (10-sum%10)%10)
}

func (b *bench) open(ctx context.Context) (err error) {
	b.keys, err = cardvault.KeyFile(filepath.Join(b.dir, "keys", "vault.key"), nil)
	if err != nil {
		return err
	}
	b.vault, err = cardvault.Open(ctx, filepath.Join(b.dir, "vault"), b.keys, &cardvault.Options{
		Webhooks: webhook.New(&webhook.Options{AllowPrivateTargets: true}),
	})
	return err
}

// fill makes the vault with its tokens.
func (b *bench) fill(ctx context.Context) error {
	if err := b.open(ctx); err != nil {
		return err
	}
	var err error
	if b.rowBytes, err = rowBytes(ctx); err != nil {
		return err
	}

	start := time.Now()
	var mu sync.Mutex
	var left atomic.Int64
	left.Store(int64(b.tokens))
	err = parallel(256, func(int) error {
		for n := left.Add(-1); n >= 0; n = left.Add(-1) {
			t, err := b.vault.Import(ctx, testCard(int(n%1000)), bulk)
			if err != nil {
				return err
			}
			if n%max(1, int64(b.tokens/10000)) == 0 {
				mu.Lock()
				b.ids = append(b.ids, t.ID)
				mu.Unlock()
			}
		}
		return nil
	})

	took := time.Since(start)
	fmt.Printf("%s, %d CPUs; %d tokens imported by 256 goroutines at %.0f a second; a record is %d bytes\n",
		runtime.Version(), runtime.NumCPU(), b.tokens, float64(b.tokens)/took.Seconds(), b.rowBytes)
	return err
}

// parallel runs f in n goroutines and returns the first error.
func parallel(n int, f func(i int) error) error {
	errs := make(chan error, n)
	for i := range n {
		go func() { errs <- f(i) }()
	}
	var first error
	for range n {
		if err := <-errs; first == nil {
			first = err
		}
	}
	return first
}

// rate runs f in n goroutines for a while and returns the calls a second, and
// the given quantiles of their durations.
func rate(n int, span time.Duration, f func(i int) error) (perSecond float64, latencies []time.Duration, err error) {
	var mu sync.Mutex
	start := time.Now()
	end := start.Add(span)
	err = parallel(n, func(i int) error {
		var own []time.Duration
		for now := time.Now(); now.Before(end); {
			if err := f(i); err != nil {
				return err
			}
			then := now
			now = time.Now()
			own = append(own, now.Sub(then))
		}

		mu.Lock()
		latencies = append(latencies, own...)
		mu.Unlock()
		return nil
	})

	slices.Sort(latencies)
	return float64(len(latencies)) / time.Since(start).Seconds(), latencies, err
}

func quantile(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}

func median(values []float64) float64 {
	slices.Sort(values)
	return values[len(values)/2]
}

// A contender is one side of a comparison.
type contender struct {
	name string
	run  func(i int) error
}

// compare runs contenders in turn with n goroutines, and prints the median rate
// of each and the median ratio of the first to it.
func (b *bench) compare(n int, cs ...contender) error {
	rates := make([][]float64, len(cs))
	ratios := make([][]float64, len(cs))
	p99 := make([]time.Duration, len(cs))
	for range b.rounds {
		for j, c := range cs {
			r, latencies, err := rate(n, b.span, c.run)
			if err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			rates[j] = append(rates[j], r)
			ratios[j] = append(ratios[j], rates[0][len(rates[0])-1]/r)
			p99[j] = quantile(latencies, .99)
		}
	}

	for j, c := range cs {
		fmt.Printf("  %4d  %-44s %10.0f/s  p99 %9v", n, c.name, median(rates[j]), p99[j].Round(time.Microsecond))
		if j > 0 {
			fmt.Printf("   ratio %.2f", median(ratios[j]))
		}
		fmt.Println()
	}
	return nil
}

// recorder keeps the size of the largest record that was put.
type recorder struct {
	store.Store
	size int
}

func (r *recorder) Update(ctx context.Context, fn func(store.Tx) error) error {
	return r.Store.Update(ctx, func(tx store.Tx) error { return fn(&recorderTx{tx, r}) })
}

type recorderTx struct {
	store.Tx
	r *recorder
}

func (tx *recorderTx) Put(r *store.Record) {
	// Kind, id, account, class and version beside the sealed columns.
	tx.r.size = max(tx.r.size, 16+16+1+1+8+len(r.Shown)+len(r.Secret))
	tx.Tx.Put(r)
}
