package main

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/google/uuid"
)

// scrubbed is the number of tokens whose remains a scrub overwrites.
const scrubbed = 10_000

// scrubs compares the 99th percentiles of imports while a scrub overwrites the remains of deleted
// tokens, and at rest. Imports beside it are measured as long as it goes on.
func (b *bench) scrubs(ctx context.Context) (err error) {
	var open closers
	defer open.close(&err)
	parts := &partsLog{}
	r, err := b.newResealed(ctx, &open, "scrub.db", slog.New(parts))
	if err != nil {
		return err
	}

	var took []float64
	s := &scrubbing{vault: r.vault}
	lanes, err := b.race(64, contender{name: "import at rest", run: r.run}, contender{name: "import beside a scrub",
		ready: func(int) error { return s.start(ctx) },
		run: func(i int) error {
			if s.over.Load() {
				return errUsedUp
			}
			return r.run(i)
		},
		settle: func(int) error {
			err := <-s.ended
			took = append(took, milliseconds(s.took))
			return err
		},
	})
	if err != nil {
		return err
	}
	b.compared("scrub/p99", 64, most(2), lanes[1], lanes[0], func(o, a sample) float64 { return float64(o.p99) / float64(a.p99) })
	parts.mu.Lock()
	defer parts.mu.Unlock()
	b.figures("scrub/part", "ms", reported, "the longest part of a scrub, with its syncs", parts.longest...)
	b.figures("scrub/time", "ms", reported, "scrub beside imports, after 10,000 tokens were deleted", took...)
	return nil
}

// A partsLog takes the longest part of each scrub from the log of a store.
type partsLog struct {
	mu      sync.Mutex
	longest []float64 // milliseconds
}

func (*partsLog) Enabled(context.Context, slog.Level) bool { return true }
func (l *partsLog) WithAttrs([]slog.Attr) slog.Handler     { return l }
func (l *partsLog) WithGroup(string) slog.Handler          { return l }

func (l *partsLog) Handle(_ context.Context, r slog.Record) error {
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "longest" && a.Value.Kind() == slog.KindDuration {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.longest = append(l.longest, milliseconds(a.Value.Duration()))
		}
		return true
	})
	return nil
}

// A scrubbing deletes tokens, and overwrites what they leave.
type scrubbing struct {
	vault *cardvault.Vault
	over  atomic.Bool
	ended chan error
	took  time.Duration
}

func (s *scrubbing) start(ctx context.Context) error {
	var tokens supply[uuid.UUID]
	err := tokens.fill(scrubbed, func() (uuid.UUID, error) {
		t, err := s.vault.Import(ctx, testCard(rand.IntN(1000)), bulk)
		if err != nil {
			return uuid.Nil, err
		}
		return t.ID, nil
	})
	if err != nil {
		return err
	}
	err = parallel(64, func(int) error {
		for id, err := tokens.take(); err == nil; id, err = tokens.take() {
			if err := s.vault.Delete(ctx, id); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := s.vault.Drain(ctx); err != nil {
		return err
	}

	s.over.Store(false)
	s.ended = make(chan error, 1)
	go func() {
		began := time.Now()
		err := s.vault.Scrub(ctx)
		s.took = time.Since(began)
		s.over.Store(true)
		s.ended <- err
	}()
	return nil
}
