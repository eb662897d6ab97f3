package main

import (
	"bufio"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/internal/bench/table"
	"github.com/cardvault/cardvault/network"
	"github.com/google/uuid"
	"go.etcd.io/bbolt"
)

// reads compares Get with a bbolt View and one GCM open of the same bytes, at as many rows.
func (b *bench) reads(ctx context.Context) (err error) {
	get, view, shut, err := b.getAndView(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, shut()) }()

	name, goals := "get", []table.Goal{least(.65), least(.75)}
	if b.cold {
		name, goals = "get-cold", make([]table.Goal, 2)
	} else {
		get.ready, view.ready = nil, nil
	}
	for i, n := range []int{1, 2} {
		lanes, err := b.race(n, get, view)
		if err != nil {
			return err
		}
		b.ratio(fmt.Sprintf("%s/%d", name, n), n, goals[i], lanes[0], lanes[1])
	}
	return nil
}

// getAndView returns Get and its floor. Their ready empties the page cache.
func (b *bench) getAndView(ctx context.Context) (get, view contender, shut func() error, err error) {
	block, err := aes.NewCipher(make([]byte, 32))
	if err != nil {
		return get, view, nil, err
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		return get, view, nil, err
	}

	path := filepath.Join(b.dir, "get.db")
	db, err := bbolt.Open(path, 0o600, nil)
	if err != nil {
		return get, view, nil, err
	}

	aad := make([]byte, 100)
	keys, err := b.rows(db, aead.Seal(nil, nil, make([]byte, b.rowBytes()-150), aad))
	if err != nil {
		return get, view, nil, errors.Join(err, db.Close())
	}

	view = contender{name: "bbolt View and one GCM open",
		ready: func(int) (err error) {
			if err := errors.Join(db.Close(), evict(path)); err != nil {
				return err
			}
			db, err = bbolt.Open(path, 0o600, nil)
			return err
		},
		run: func(int) error {
			var row []byte
			err := db.View(func(tx *bbolt.Tx) error {
				key := keys[rand.IntN(len(keys))]
				row = append(row, tx.Bucket([]byte("rows")).Get(key[:])...)
				return nil
			})
			if err != nil {
				return err
			}
			_, err = aead.Open(nil, nil, row, aad)
			return err
		}}
	get = contender{name: "Get",
		ready: func(int) error { return b.reopenCold(ctx) },
		run: func(int) error {
			_, err := b.vault.Get(ctx, b.ids[rand.IntN(len(b.ids))])
			return err
		}}
	return get, view, func() error { return db.Close() }, nil
}

// rows puts a row for each token into db, all with the same value, and returns a sample of
// their keys.
func (b *bench) rows(db *bbolt.DB, value []byte) (keys []uuid.UUID, err error) {
	tokens := b.table.Tokens
	for done := 0; done < tokens; {
		err := db.Update(func(tx *bbolt.Tx) error {
			rows, err := tx.CreateBucketIfNotExists([]byte("rows"))
			if err != nil {
				return err
			}
			rows.FillPercent = 1

			for range min(10000, tokens-done) {
				key, err := uuid.NewV7()
				if err != nil {
					return err
				}
				if err := rows.Put(key[:], value); err != nil {
					return err
				}
				if done%max(1, tokens/10000) == 0 {
					keys = append(keys, key)
				}
				done++
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return keys, nil
}

// A page is a list whose duration is measured.
type page struct {
	name, what string
	opts       cardvault.TokenListOptions
}

// pages returns pages of the filled vault: the first, and others by place and filters.
func (b *bench) pages(ctx context.Context) ([]page, error) {
	first, err := b.vault.List(ctx, nil)
	if err != nil {
		return nil, err
	}

	from := first.Items[0].CreatedAt.Add(-time.Hour)
	middle, err := b.vault.List(ctx, &cardvault.TokenListOptions{Page: int(first.TotalPages+1) / 2})
	if err != nil {
		return nil, err
	}
	half := middle.Items[0].CreatedAt

	visa, rare := []card.Scheme{card.VISA}, []card.Scheme{card.UnionPay}
	mixed := []card.Scheme{card.VISA, card.JCB, card.UnionPay}
	status := []network.Status{network.NotAvailable, network.Active}
	pages := int(first.TotalPages)

	return []page{
		{"1", "page 1", cardvault.TokenListOptions{}},
		{"10000", "page 10,000", cardvault.TokenListOptions{Page: min(10000, pages)}},
		{"middle", "middle page", cardvault.TokenListOptions{Page: max(1, pages/2)}},
		{"last", "last page", cardvault.TokenListOptions{Page: pages}},
		{"ascending", "middle page, ascending", cardvault.TokenListOptions{Page: max(1, pages/2), Ascending: true}},
		{"scheme", "scheme, middle page", cardvault.TokenListOptions{Scheme: visa, Page: max(1, pages/4)}},
		{"schemes", "three schemes and status, middle page", cardvault.TokenListOptions{Scheme: mixed, NetworkTokenStatus: status, Page: max(1, pages/4)}},
		{"rare", "rare scheme (0.1 %), page 1", cardvault.TokenListOptions{Scheme: rare}},
		{"rare-middle", "rare scheme (0.1 %), middle page", cardvault.TokenListOptions{Scheme: rare, Page: max(1, pages/2000)}},
		{"half", "half of the time, middle page", cardvault.TokenListOptions{From: half, Page: max(1, pages/4)}},
		{"mix", "time, schemes and status, middle page", cardvault.TokenListOptions{From: from, To: half, Scheme: mixed, NetworkTokenStatus: status, Page: max(1, pages/8)}},
		{"total", "empty page past the end: total alone", cardvault.TokenListOptions{Page: pages + 1}},
	}, nil
}

// lists compares the median durations of pages with the first, and of a total with the
// total of a small vault.
func (b *bench) lists(ctx context.Context) (err error) {
	pages, err := b.pages(ctx)
	if err != nil {
		return err
	}
	var open closers
	defer open.close(&err)
	small, err := b.smallVault(ctx)
	if err != nil {
		return err
	}
	open.later(small.Close)

	list := func(name string, v *cardvault.Vault, opts *cardvault.TokenListOptions) contender {
		return contender{name: name, run: func(int) error {
			_, err := v.List(ctx, opts)
			return err
		}}
	}
	var contenders []contender
	for i := range pages {
		contenders = append(contenders, list(pages[i].what, b.vault, &pages[i].opts))
	}
	few := &cardvault.TokenListOptions{Page: smallTokens}
	contenders = append(contenders, list("total of 10,000 tokens", small, few))

	lanes, err := b.raceFor(max(b.span/10, 20*time.Millisecond), 1, contenders...)
	if err != nil {
		return err
	}

	slower := func(o, a sample) float64 { return float64(o.p50) / float64(a.p50) }
	last := len(pages) - 1
	for i, p := range pages[1:last] {
		goal := most(2.5)
		if p.name == "10000" {
			goal = most(1.2)
		}
		b.compared("list/"+p.name, 0, goal, lanes[i+1], lanes[0], slower)
	}

	b.compared("list/total", 0, most(1.5), lanes[last], lanes[last+1], slower)
	b.figures("list/first", "µs", reported, "median of page 1", micros(lanes[0])...)
	b.figures("list/total-time", "µs", most(5), "median of a total", micros(lanes[last])...)
	return nil
}

func micros(l *lane) (medians []float64) {
	for _, s := range l.samples {
		medians = append(medians, s.p50.Seconds()*1e6)
	}
	return medians
}

// smallTokens are in the vault whose total a large one is compared with.
const smallTokens = 10_000

func (b *bench) smallVault(ctx context.Context) (*cardvault.Vault, error) {
	v, err := cardvault.Open(ctx, filepath.Join(b.dir, "small"), b.keys, nil)
	if err != nil {
		return nil, err
	}
	var left atomic.Int64
	left.Store(smallTokens)
	return v, parallel(64, func(int) error {
		for left.Add(-1) >= 0 {
			if _, err := v.Import(ctx, testCard(0), bulk); err != nil {
				return err
			}
		}
		return nil
	})
}

// disk measures bytes on disk and in the heap. It comes first, so that all tokens belong
// to one account.
func (b *bench) disk(ctx context.Context) error {
	p, err := b.vault.List(ctx, &cardvault.TokenListOptions{Limit: 1})
	if err != nil {
		return err
	}
	info, err := os.Stat(b.file())
	if err != nil {
		return err
	}

	n, goal := float64(p.TotalItems), most(1.5)
	if n < 100_000 {
		goal = reported // the file grows by megabytes
	}
	b.figures("disk/file", "", goal, "file with all indexes / sealed records", float64(info.Size())/n/float64(b.rowBytes()))
	b.figures("disk/bytes", "B", reported, "file, a token", float64(info.Size())/n)
	b.figures("disk/heap", "", most(1), "heap / 32 MB and 2 bytes a token", heap()/(32e6+2*n))
	return nil
}

// file returns the path of the filled vault's records.
func (b *bench) file() string { return filepath.Join(b.dir, "vault", "cardvault.db") }

// reopen closes the vault, makes the time of opening it and of a first read a figure, and
// returns it in milliseconds.
func (b *bench) reopen(ctx context.Context, between func() error) (float64, error) {
	if err := errors.Join(b.vault.Close(), between()); err != nil {
		return 0, err
	}
	start := time.Now()
	if err := b.open(ctx); err != nil {
		return 0, err
	}
	_, err := b.vault.Get(ctx, b.ids[0])
	return milliseconds(time.Since(start)), err
}

// reopenCold opens the vault whose file is in no page cache.
func (b *bench) reopenCold(ctx context.Context) error {
	_, err := b.reopen(ctx, func() error { return evict(b.file()) })
	return err
}

// opens measures how long opening takes: after a close, with a cold page cache, and after
// a kill -9 in the middle of imports.
func (b *bench) opens(ctx context.Context) error {
	ways := []struct {
		name, what string
		most       float64 // milliseconds
		between    func() error
	}{
		{"open/warm", "open and first read after a close", 250, func() error { return nil }},
		{"open/cold", "the same, not in the page cache", 2000, func() error { return evict(b.file()) }},
		{"open/killed", "the same, after kill -9 in the middle of imports", 2000, b.importAndKill},
		{"open/killed-cold", "the same, not in the page cache", 2000, func() error { return errors.Join(b.importAndKill(), evict(b.file())) }},
	}

	for _, w := range ways {
		var times []float64
		for range b.table.Rounds {
			ms, err := b.reopen(ctx, w.between)
			if err != nil {
				return err
			}
			times = append(times, ms)
		}

		if b.table.Tokens > 1_000_000 {
			w.most = 3000
		}
		b.figures(w.name, "ms", most(w.most), w.what, times...)
	}
	return nil
}

// importAndKill lets another process import into the vault, and kills it.
func (b *bench) importAndKill() error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(self, "-import-until-killed", b.dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}

	// The child is in the middle of imports once it has printed a line.
	_, readErr := bufio.NewReader(out).ReadString('\n')
	err = errors.Join(readErr, cmd.Process.Kill())
	_ = cmd.Wait() // says that it was killed
	return err
}

// sweep measures how long erasing expired tokens takes while imports continue.
func (b *bench) sweep(ctx context.Context) error {
	lapsing := min(b.table.Tokens/10, 100_000)
	if err := b.expiring(ctx, lapsing); err != nil {
		return err
	}

	working, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	var latencies []time.Duration
	go func() {
		var err error
		for working.Err() == nil && err == nil {
			var some []time.Duration
			_, some, err = rate(4, 100*time.Millisecond, func(int) error {
				_, err := b.vault.Import(ctx, testCard(0), nil)
				return err
			})
			latencies = append(latencies, some...)
		}
		ended <- err
	}()

	start := time.Now()
	err := b.vault.Drain(ctx)
	took := time.Since(start)
	stop()
	if err := errors.Join(err, <-ended); err != nil {
		return err
	}

	slices.Sort(latencies)
	b.figures("sweep/time", "s", most(3), fmt.Sprintf("erasing %d expired tokens and their sessions, while 4 goroutines import", lapsing), took.Seconds())
	b.figures("sweep/p99", "ms", most(25), "99th percentile of the imports meanwhile", milliseconds(quantile(latencies, .99)))
	b.figures("sweep/slowest", "ms", reported, "slowest of the imports meanwhile", milliseconds(quantile(latencies, 1)))
	return nil
}

// expiring makes tokens that expire, and returns when they have.
func (b *bench) expiring(ctx context.Context, n int) error {
	var left atomic.Int64
	left.Store(int64(n))

	// All expire within a second of the last.
	started := time.Now()
	err := parallel(256, func(int) error {
		for left.Add(-1) >= 0 {
			ttl := time.Second + max(0, 30*time.Second-time.Since(started))
			session, err := b.vault.CreateSession(ctx, &cardvault.SessionOptions{TokenTTL: ttl})
			if err != nil {
				return err
			}
			if _, err := b.vault.Tokenize(ctx, session.ID, testCard(0)); err != nil {
				return err
			}
		}
		return nil
	})
	<-time.After(time.Until(started.Add(33 * time.Second)))
	return err
}
