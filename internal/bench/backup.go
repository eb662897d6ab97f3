package main

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"os"

	"github.com/cardvault/cardvault"
)

// backups compares the 99th percentiles of imports beside backups, one after another, and at rest.
// It has the longest read transaction meanwhile, and the growth of the file.
func (b *bench) backups(ctx context.Context) (err error) {
	var open closers
	defer open.close(&err)
	c, err := b.newChurn(ctx, &open)
	if err != nil {
		return err
	}
	if err := c.turnOver(ctx, b.table.Tokens, 0, nil); err != nil {
		return err
	}

	run := func(int) error {
		_, err := c.vault.Import(ctx, testCard(rand.IntN(1000)), bulk)
		return err
	}
	made := &backing{vault: c.vault}
	c.store.longestView.Store(0)
	lanes, err := b.race(64, contender{name: "import at rest", run: run}, contender{name: "import beside backups", run: run,
		ready: func(int) error { made.start(ctx); return nil }, settle: func(int) error { return made.stop() }})
	if err != nil {
		return err
	}
	b.compared("backup/p99", 64, most(2), lanes[1], lanes[0], func(o, a sample) float64 { return float64(o.p99) / float64(a.p99) })

	var sizes []float64
	for turn := range 4 { // the last one beside a backup
		if turn == 3 {
			made.start(ctx)
		}
		if err := c.turnOver(ctx, b.table.Tokens/10, b.table.Tokens/10, rand.IntN); err != nil {
			return err
		}
		info, err := os.Stat(c.path)
		if err != nil {
			return err
		}
		sizes = append(sizes, float64(info.Size()))
	}
	if err := made.stop(); err != nil {
		return err
	}
	b.figures("backup/view", "ms", most(100), "longest read transaction beside imports and backups", float64(c.store.longestView.Load())/1e6)
	b.figures("backup/growth", "", most(1.1), "file after a tenth of the tokens was replaced beside a backup / before", sizes[3]/sizes[2])
	b.figures("backup/growth-at-rest", "", reported, "the same without a backup", sizes[2]/sizes[1])
	return nil
}

// A backing makes backups, one after another.
type backing struct {
	vault  *cardvault.Vault
	cancel context.CancelFunc
	ended  chan error
}

func (m *backing) start(ctx context.Context) {
	ctx, m.cancel = context.WithCancel(ctx)
	m.ended = make(chan error, 1)
	go func() {
		for {
			if _, err := m.vault.Backup(ctx, io.Discard, nil); err != nil {
				m.ended <- err
				return
			}
		}
	}()
}

func (m *backing) stop() error {
	m.cancel()
	if err := <-m.ended; !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}
