package main

import (
	"context"
	"fmt"
)

// sums compares imports into a vault that keeps sums of its records with imports into one that has
// none, of one account and of many.
func (b *bench) sums(ctx context.Context) (err error) {
	var open closers
	defer open.close(&err)
	if err := b.loadKeys(); err != nil {
		return err
	}

	m := matchup{name: "sums", with: "sums", goal: .92, span: b.span}
	for i := range m.vaults {
		if m.vaults[i], err = b.openMany(ctx, &open, fmt.Sprint("sums-", i), nil); err != nil {
			return err
		}
		open.later(runs(ctx, m.vaults[i][0]))
	}
	if err := m.vaults[1][0].BeginSums(ctx, nil); err != nil {
		return err
	}
	return m.play(ctx, b)
}
