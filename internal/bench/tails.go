package main

import (
	"context"
	"math/rand/v2"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/network"
	"github.com/cardvault/cardvault/store/boltstore"
)

// tails compares the 99th percentiles of imports over HTTP, into an account without features,
// of a busy vault and a quiet one. In a busy vault tokens of another account are provisioned,
// delivered and erased, and pages of a long list are read.
func (b *bench) tails(ctx context.Context) (err error) {
	var open closers
	defer open.close(&err)
	t, err := b.newTailed(ctx, &open)
	if err != nil {
		return err
	}

	quiet := contender{name: "import beside nothing", run: t.run}
	busy := contender{name: "import beside sweep, provisioning, deliveries and lists", run: t.run,
		ready: func(int) error { t.start(ctx); return nil }, settle: func(int) error { return t.stop() }}
	lanes, err := b.race(64, quiet, busy)
	if err != nil {
		return err
	}
	b.compared("tails/p99", 64, most(3), lanes[1], lanes[0], func(o, a sample) float64 { return float64(o.p99) / float64(a.p99) })
	b.figures("tails/transaction", "ms", most(20), "longest write transaction", milliseconds(time.Duration(t.store.longest.Load())))
	b.figures("tails/work", "/s", reported, "tokens that were made to be provisioned, delivered and to expire", t.per...)
	return nil
}

// A tailed vault has a long list in one account, features in another, and is imported into in
// a third.
type tailed struct {
	*site
	store  *watched
	long   *cardvault.Vault
	tokens int // in long
	run    func(i int) error

	cancel context.CancelFunc
	ended  chan error
	begun  time.Time
	made   atomic.Int64
	per    []float64 // tokens a second
}

func (b *bench) newTailed(ctx context.Context, open *closers) (t *tailed, err error) {
	if err := b.loadKeys(); err != nil {
		return nil, err
	}
	s, err := boltstore.Open(ctx, filepath.Join(b.dir, "tails.db"), nil)
	if err != nil {
		return nil, err
	}
	open.later(s.Close)
	t = &tailed{store: &watched{Store: s}, tokens: b.table.Tokens}
	with := everything
	with.on = t.store
	if t.site, err = b.newSite(ctx, "", with); err != nil {
		return nil, err
	}
	open.later(t.shut)

	long, err := t.vault.CreateAccount(ctx, "", nil)
	if err != nil {
		return nil, err
	}
	t.long = t.vault.In(long.ID)
	var left atomic.Int64
	left.Store(int64(t.tokens))
	err = parallel(256, func(int) error {
		for left.Add(-1) >= 0 {
			if _, err := t.long.Import(ctx, testCard(rand.IntN(1000)), bulk); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if err := until(func() (bool, error) { return t.taken.Load() >= int64(t.tokens), nil }); err != nil {
		return nil, err
	}

	plain, err := t.vault.CreateAccount(ctx, "", nil)
	if err != nil {
		return nil, err
	}
	c, stop, err := served(ctx, t.vault.In(plain.ID), cardvault.AccountUpdate{ImportApproved: new(true)})
	if err != nil {
		return nil, err
	}
	t.later(func() error { stop(); return nil })
	t.run = func(i int) error {
		_, err := c.do(i, importing.method, importing.path, importing.body)
		return err
	}
	return t, nil
}

// start begins the work beside the imports, at rates that leave most of the processors to
// these.
func (t *tailed) start(ctx context.Context) {
	ctx, t.cancel = context.WithCancel(ctx)
	t.ended, t.begun = make(chan error, 1), time.Now()
	t.made.Store(0)
	tasks := []func() error{
		func() error {
			t.made.Add(1)
			_, err := t.vault.Import(ctx, testCard(0), bulk)
			return err
		},
		func() error {
			t.made.Add(1)
			s, err := t.vault.CreateSession(ctx, &cardvault.SessionOptions{TokenTTL: time.Second})
			if err != nil {
				return err
			}
			_, err = t.vault.Tokenize(ctx, s.ID, testCard(0))
			return err
		},
		func() error {
			_, err := t.long.List(ctx, &cardvault.TokenListOptions{Page: 1 + rand.IntN(max(1, t.tokens/50))})
			return err
		},
	}

	go func() {
		t.ended <- parallel(len(tasks), func(i int) error {
			for range time.Tick(5 * time.Millisecond) {
				if err := tasks[i](); ctx.Err() != nil {
					return nil
				} else if err != nil {
					return err
				}
			}
			return nil
		})
	}()
}

// stop ends the work beside the imports, and waits until it is done.
func (t *tailed) stop() error {
	t.per = append(t.per, float64(t.made.Load())/time.Since(t.begun).Seconds())
	t.cancel()
	if err := <-t.ended; err != nil {
		return err
	}
	return until(func() (bool, error) { return t.none(context.Background(), network.Pending) })
}
