package storetest

import (
	"context"
	"errors"

	"github.com/cardvault/cardvault/store"
)

// Twice returns a store that keeps its records in s and runs the fn of every View and
// Update twice, as any backend may: first for nothing, then for good. The tests of a vault
// pass on it only if no fn has an effect except its writes and the results of its last run.
// Other Updates may come between the two runs. Closing it closes s.
func Twice(s store.Store) store.Store { return twice{s} }

type twice struct{ store.Store }

var errRehearsal = errors.New("storetest: first of two runs")

func (s twice) View(ctx context.Context, fn func(store.ReadTx) error) error {
	err := s.Store.View(ctx, func(tx store.ReadTx) error {
		_ = fn(tx)
		return errRehearsal
	})
	if err != errRehearsal {
		return err
	}
	return s.Store.View(context.WithoutCancel(ctx), fn)
}

func (s twice) Update(ctx context.Context, fn func(store.Tx) error) error {
	err := s.Store.Update(ctx, func(tx store.Tx) error {
		_ = fn(tx) // the second run's counts
		return errRehearsal
	})
	if err != errRehearsal {
		return err
	}
	// fn has started, so ctx counts no more.
	return s.Store.Update(context.WithoutCancel(ctx), fn)
}
