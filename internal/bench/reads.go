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
	"runtime"
	"sync/atomic"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/network"
	"github.com/google/uuid"
	"go.etcd.io/bbolt"
)

// gets compares Get with a bbolt View and one GCM open of the same bytes, at as
// many rows.
func (b *bench) gets(ctx context.Context) error {
	block, err := aes.NewCipher(make([]byte, 32))
	if err != nil {
		return err
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		return err
	}

	db, err := bbolt.Open(filepath.Join(b.dir, "get.db"), 0o600, &bbolt.Options{NoSync: true})
	if err != nil {
		return err
	}
	defer db.Close()
	aad := make([]byte, 100)
	keys, err := b.rows(db, aead.Seal(nil, nil, make([]byte, b.rowBytes-150), aad))
	if err != nil {
		return err
	}

	for _, n := range []int{1, 2} {
		err := b.compare(n,
			contender{"Get", func(int) error {
				_, err := b.vault.Get(ctx, b.ids[rand.IntN(len(b.ids))])
				return err
			}},
			contender{"bbolt View and one GCM open", func(int) error {
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
			}},
		)
		if err != nil {
			return err
		}
	}
	return nil
}

// rows puts a row for each token into db, all with the same value, and returns a sample of
// their keys.
func (b *bench) rows(db *bbolt.DB, value []byte) (keys []uuid.UUID, err error) {
	for done := 0; done < b.tokens; {
		err := db.Update(func(tx *bbolt.Tx) error {
			rows, err := tx.CreateBucketIfNotExists([]byte("rows"))
			if err != nil {
				return err
			}
			rows.FillPercent = 1

			for range min(10000, b.tokens-done) {
				key, err := uuid.NewV7()
				if err != nil {
					return err
				}
				if err := rows.Put(key[:], value); err != nil {
					return err
				}
				if done%max(1, b.tokens/10000) == 0 {
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

// lists prints the median duration of pages, and their ratio to page 1.
func (b *bench) lists(ctx context.Context) error {
	first, err := b.vault.List(ctx, nil)
	if err != nil {
		return err
	}
	from := first.Items[0].CreatedAt.Add(-time.Hour)

	middle, err := b.vault.List(ctx, &cardvault.TokenListOptions{Page: int(first.TotalPages / 2)})
	if err != nil {
		return err
	}
	half := middle.Items[0].CreatedAt

	visa, rare := []card.Scheme{card.VISA}, []card.Scheme{card.UnionPay}
	mixed := []card.Scheme{card.VISA, card.JCB, card.UnionPay}
	status := []network.Status{network.NotAvailable, network.Active}
	pages := int(first.TotalPages)
	cases := []struct {
		name string
		opts cardvault.TokenListOptions
	}{
		{"page 1", cardvault.TokenListOptions{}},
		{"page 10,000", cardvault.TokenListOptions{Page: min(10000, pages)}},
		{"middle page", cardvault.TokenListOptions{Page: pages / 2}},
		{"last page", cardvault.TokenListOptions{Page: pages}},
		{"middle page, ascending", cardvault.TokenListOptions{Page: pages / 2, Ascending: true}},
		{"scheme, middle page", cardvault.TokenListOptions{Scheme: visa, Page: pages / 4}},
		{"three schemes and status, middle page", cardvault.TokenListOptions{Scheme: mixed, NetworkTokenStatus: status, Page: pages / 4}},
		{"rare scheme (0.1 %), page 1", cardvault.TokenListOptions{Scheme: rare}},
		{"rare scheme (0.1 %), middle page", cardvault.TokenListOptions{Scheme: rare, Page: max(1, pages/2000)}},
		{"half of the time, middle page", cardvault.TokenListOptions{From: half, Page: pages / 4}},
		{"time, schemes and status, middle page", cardvault.TokenListOptions{From: from, To: half, Scheme: mixed, NetworkTokenStatus: status, Page: pages / 8}},
		{"empty page past the end: total alone", cardvault.TokenListOptions{Page: pages + 1}},
	}

	medians := make([][]float64, len(cases))
	for range b.rounds {
		for i, c := range cases {
			_, latencies, err := rate(1, b.span/10, func(int) error {
				_, err := b.vault.List(ctx, &c.opts)
				return err
			})
			if err != nil {
				return err
			}
			medians[i] = append(medians[i], float64(quantile(latencies, .5)))
		}
	}
	for i, c := range cases {
		p, err := b.vault.List(ctx, &c.opts)
		if err != nil {
			return err
		}
		m := median(medians[i])
		fmt.Printf("  %-42s p50 %8v  ratio %5.2f  of %d\n",
			c.name, time.Duration(m).Round(100*time.Nanosecond), m/median(medians[0]), p.TotalItems)
	}
	return nil
}

// disk prints bytes on disk and in the heap.
func (b *bench) disk(ctx context.Context) error {
	p, err := b.vault.List(ctx, &cardvault.TokenListOptions{Limit: 1})
	if err != nil {
		return err
	}

	info, err := os.Stat(filepath.Join(b.dir, "vault", "cardvault.db"))
	if err != nil {
		return err
	}

	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)

	fmt.Printf("  %d tokens in the default account; file %.0f bytes a token, %.2f of the sealed records; heap %.1f MiB\n",
		p.TotalItems, float64(info.Size())/float64(p.TotalItems), float64(info.Size())/float64(p.TotalItems)/float64(b.rowBytes), float64(m.HeapAlloc)/(1<<20))
	return nil
}

// opens prints how long opening takes after a close, and after a kill -9 in the
// middle of imports.
func (b *bench) opens(ctx context.Context) error {
	reopen := func(what string) error {
		start := time.Now()
		if err := b.open(ctx); err != nil {
			return err
		}
		_, err := b.vault.Get(ctx, b.ids[0])
		fmt.Printf("  open and first read after %-8s %v\n", what, time.Since(start).Round(time.Microsecond))
		return err
	}

	for range b.rounds {
		if err := b.vault.Close(); err != nil {
			return err
		}
		if err := reopen("close"); err != nil {
			return err
		}
	}
	if err := b.vault.Close(); err != nil {
		return err
	}

	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(self, "-import-until-killed", b.dir)
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
	if err != nil {
		return err
	}
	return reopen("kill -9")
}

// sweep prints how long erasing lapsed tokens takes while imports go on.
func (b *bench) sweep(ctx context.Context) error {
	lapsing := b.tokens / 10
	var left atomic.Int64
	left.Store(int64(lapsing))

	// All lapse within a second of the last one made.
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
	if err != nil {
		return err
	}

	before, err := b.vault.List(ctx, &cardvault.TokenListOptions{Limit: 1})
	if err != nil {
		return err
	}

	<-time.After(time.Until(started.Add(33 * time.Second)))
	working, stop := context.WithCancel(ctx)
	imported := make(chan []time.Duration, 1)
	failed := make(chan error, 1)
	go func() {
		var latencies []time.Duration
		for working.Err() == nil {
			_, l, err := rate(4, 100*time.Millisecond, func(int) error {
				_, err := b.vault.Import(ctx, testCard(0), nil)
				return err
			})
			if err != nil {
				failed <- err
				break
			}
			latencies = append(latencies, l...)
		}
		imported <- latencies
	}()

	start := time.Now()
	err = b.vault.Drain(ctx)
	took := time.Since(start)
	stop()

	latencies := <-imported
	select {
	case err = <-failed:
	default:
	}
	if err != nil {
		return err
	}

	var worst time.Duration
	for _, l := range latencies {
		worst = max(worst, l)
	}
	fmt.Printf("  %d lapsed tokens and their sessions among %d erased in %v; %d imports meanwhile, slowest %v\n",
		lapsing, before.TotalItems, took.Round(time.Millisecond), len(latencies), worst.Round(time.Microsecond))
	return nil
}
