//go:build unix

package pgstore_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/storetest"
	"github.com/cardvault/cardvault/vaulttest/vaultsuite"
)

// A replicas is several stores on one schema, which take calls in turn.
type replicas struct {
	stores []store.Store
	turn   atomic.Uint64
}

func (r *replicas) next() store.Store { return r.stores[r.turn.Add(1)%uint64(len(r.stores))] }

func (r *replicas) View(ctx context.Context, fn func(store.ReadTx) error) error {
	return r.next().View(ctx, fn)
}

func (r *replicas) Update(ctx context.Context, fn func(store.Tx) error) error {
	return r.next().Update(ctx, fn)
}

func (r *replicas) Repair(ctx context.Context, place []byte, limit int) ([]byte, error) {
	return r.next().(store.Repairer).Repair(ctx, place, limit)
}

func (r *replicas) Close() error {
	var errs []error
	for _, s := range r.stores {
		errs = append(errs, s.Close())
	}
	return errors.Join(errs...)
}

func openReplicas(t testing.TB, p *pgxpool.Pool, schema string) store.Store {
	r := new(replicas)
	for range 3 {
		r.stores = append(r.stores, open(t, p, schema))
	}
	return r
}

// Several stores on one database keep all promises of a single store.
func TestReplicas(t *testing.T) {
	storetest.Run(t, harness(postgres.Get(t).URL("postgres"), openReplicas))
}

// Every third store has partitions.
func TestVaultReplicas(t *testing.T) {
	var opened atomic.Int64
	vaultsuite.Run(t, harnessOf(postgres.Get(t).URL("postgres"), openReplicas, func() int {
		if opened.Add(1)%3 == 0 {
			return some()
		}
		return 0
	}))
}
