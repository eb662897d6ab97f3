package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/google/uuid"
)

// reseals compares the 99th percentiles of imports while Run seals the tokens anew after a
// rotation, and while it has nothing to do. Tokens are read all the time, and each read has to
// succeed. In the end no record may be left under a former term, and killReseals begins.
func (b *bench) reseals(ctx context.Context) (err error) {
	var open closers
	defer open.close(&err)
	r, err := b.newResealed(ctx, &open, "reseal.db", nil)
	if err != nil {
		return err
	}

	stop := r.reads(ctx)
	quiet := contender{name: "import while all is under one key term", run: r.run}
	busy := contender{name: "import while tokens are sealed anew", run: r.run,
		ready: func(int) error { return r.start(ctx) }, settle: func(int) error { return r.stop() }}
	lanes, err := b.race(64, quiet, busy)
	if err = errors.Join(err, stop()); err != nil {
		return err
	}
	b.compared("reseal/p99", 64, most(2), lanes[1], lanes[0], func(o, a sample) float64 { return float64(o.p99) / float64(a.p99) })
	b.figures("reseal/reads", "", reported, "tokens read meanwhile, none in vain", float64(r.read.Load()))

	began := time.Now()
	if err := r.vault.Drain(ctx); err != nil {
		return err
	}
	sealed, err := underOneTerm(ctx, r.vault)
	if err != nil {
		return err
	}
	b.figures("reseal/drain", "/s", reported, "records sealed anew by Drain alone, at least", float64(sealed)/time.Since(began).Seconds())

	if err := open.shut(); err != nil {
		return err
	}
	return b.killReseals(ctx, r.ids)
}

// A resealing is a vault whose keys are rotated.
type resealing struct {
	vault *cardvault.Vault
	ids   []uuid.UUID
	read  atomic.Int64

	cancel context.CancelFunc
	ended  chan error
}

func (b *bench) newResealed(ctx context.Context, open *closers, file string, log *slog.Logger) (r *resealing, err error) {
	r = &resealing{ids: make([]uuid.UUID, b.table.Tokens)}
	if r.vault, err = b.openReseal(ctx, open, file, log); err != nil {
		return nil, err
	}

	var next atomic.Int64
	return r, parallel(256, func(int) error {
		for i := next.Add(1) - 1; i < int64(len(r.ids)); i = next.Add(1) - 1 {
			t, err := r.vault.Import(ctx, testCard(rand.IntN(1000)), bulk)
			if err != nil {
				return err
			}
			r.ids[i] = t.ID
		}
		return nil
	})
}

func (r *resealing) run(int) error {
	_, err := r.vault.Import(context.Background(), testCard(rand.IntN(1000)), bulk)
	return err
}

// reads reads tokens until the result is called, which returns the first error.
func (r *resealing) reads(ctx context.Context) (stop func() error) {
	over, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		for {
			select {
			case <-over:
				ended <- nil
				return
			default:
			}

			if err := r.get(ctx); err != nil {
				ended <- err
				return
			}
		}
	}()

	return func() error {
		close(over)
		return <-ended
	}
}

// get reads one token, and rests.
func (r *resealing) get(ctx context.Context) error {
	if _, err := r.vault.Get(ctx, r.ids[rand.IntN(len(r.ids))]); err != nil {
		return fmt.Errorf("a read has failed: %w", err)
	}
	r.read.Add(1)
	time.Sleep(time.Millisecond)
	return nil
}

// start rotates the keys, and seals the tokens anew until stop is called.
func (r *resealing) start(ctx context.Context) error {
	if _, err := r.vault.RotateKeys(ctx, nil); err != nil {
		return err
	}
	ctx, r.cancel = context.WithCancel(ctx)
	r.ended = make(chan error, 1)
	go func() { r.ended <- r.vault.Run(ctx) }()
	return nil
}

func (r *resealing) stop() error {
	r.cancel()
	return <-r.ended
}
