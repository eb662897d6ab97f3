package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync/atomic"
	"time"

	"github.com/cardvault/cardvault"
)

// webhooks compares imports into an account with a webhook, whose deliveries go on
// meanwhile, signed and over loopback to this process, with those into one without.
func (b *bench) webhooks(ctx context.Context) error {
	silent, err := b.vault.CreateAccount(ctx, "", nil)
	if err != nil {
		return err
	}
	heard, err := b.vault.CreateAccount(ctx, "", nil)
	if err != nil {
		return err
	}

	var received atomic.Int64
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err == nil {
			received.Add(1)
		}
	}))
	defer receiver.Close()
	if _, err := b.vault.In(heard.ID).CreateWebhook(ctx, receiver.URL, nil); err != nil {
		return err
	}

	running, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- b.vault.Run(running) }()

	visa := testCard(0)
	for _, n := range []int{1, 64, 256} {
		var ratios, silence, hearing, sending []float64
		for range b.rounds {
			imports := func(a *cardvault.Account) (float64, error) {
				perSecond, _, err := rate(n, b.span, func(int) error {
					_, err := b.vault.In(a.ID).Import(ctx, visa, nil)
					return err
				})
				return perSecond, err
			}

			without, err := imports(silent)
			if err != nil {
				return err
			}

			before, start := received.Load(), time.Now()
			with, err := imports(heard)
			if err != nil {
				return err
			}

			// The deliveries have ended once none arrives for a while.
			for last := int64(-1); last != received.Load(); time.Sleep(100 * time.Millisecond) {
				last = received.Load()
			}

			taken := float64(received.Load() - before)
			sending = append(sending, taken/(time.Since(start)-100*time.Millisecond).Seconds())
			silence, hearing = append(silence, without), append(hearing, with)
			ratios = append(ratios, with/without)
		}

		fmt.Printf("  %4d  imports, no webhook %.0f/s, one webhook %.0f/s: ratio %.2f (%.2f to %.2f); deliveries %.0f/s\n",
			n, median(silence), median(hearing), median(ratios), slices.Min(ratios), slices.Max(ratios), median(sending))
	}

	stop()
	return <-ended
}
