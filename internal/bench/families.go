package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/boltstore"
	"github.com/google/uuid"
)

// families measures how long it takes to revoke an API key and to delete a token that has
// many descendants. It also measures the effect on another account until all of them are
// erased: the 99th percentile of its imports then, against its imports alone. The keys are
// at most as many as an account can have.
func (b *bench) families(ctx context.Context) error {
	s, err := boltstore.Open(ctx, filepath.Join(b.dir, "families.db"), nil)
	if err != nil {
		return err
	}
	defer s.Close()
	last := &keeper{Store: s}
	v, err := cardvault.New(ctx, last, b.keys, &cardvault.Options{
		Quotas: cardvault.Quotas{APIKeys: 100_000, PaymentData: 1_000_000},
	})
	if err != nil {
		return err
	}
	defer v.Close()
	other, err := v.CreateAccount(ctx, "", nil)
	if err != nil {
		return err
	}

	running, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- v.Run(running) }()

	for _, grow := range []func(context.Context, *cardvault.Vault, *keeper) (*family, error){b.keysBelow, b.paymentsBelow} {
		f, err := grow(ctx, v, last)
		if err != nil {
			return err
		}
		if err := b.endFamily(ctx, f, v.In(other.ID), last); err != nil {
			return err
		}
	}
	stop()
	return <-ended
}

// A family is a record with n below it.
type family struct {
	name, ending, of string // as they are shown
	n                int
	kind             store.Kind
	end              func() error
}

// keysBelow makes API keys below one.
func (b *bench) keysBelow(ctx context.Context, v *cardvault.Vault, last *keeper) (*family, error) {
	n := min(b.family, 99_999)
	root, err := v.CreateAPIKey(ctx, "root", cardvault.AllScopes(), &cardvault.APIKeyOptions{TTL: cardvault.MaxAPIKeyTTL})
	if err != nil {
		return nil, err
	}

	var left atomic.Int64
	left.Store(int64(n))
	err = parallel(256, func(int) error {
		for left.Add(-1) >= 0 {
			if _, err := v.CreateAPIKey(ctx, "made", cardvault.AllScopes(), &cardvault.APIKeyOptions{TTL: cardvault.MaxAPIKeyTTL, Creator: root.ID}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return &family{"keys", "revoke an API key", "keys below it", n, last.mostPut(), func() error { return v.DeleteAPIKey(ctx, root.ID) }}, nil
}

// paymentsBelow makes payment data below a token.
func (b *bench) paymentsBelow(ctx context.Context, v *cardvault.Vault, last *keeper) (*family, error) {
	t, err := v.Import(ctx, testCard(0), nil)
	if err != nil {
		return nil, err
	}
	_, err = v.RequestPaymentData(ctx, t.ID, cardvault.PaymentRequest{Amount: 1, Currency: "EUR", Reference: "a reference"})
	if err != nil {
		return nil, err
	}

	payment := last.record.Load()
	if err := clones(ctx, last.Store, payment, b.family-1); err != nil {
		return nil, err
	}
	return &family{"payments", "delete a token", "records of payment data", b.family, payment.Kind, func() error { return v.Delete(ctx, t.ID) }}, nil
}

// endFamily ends a family, and measures another account's imports until the family is
// erased.
func (b *bench) endFamily(ctx context.Context, f *family, other *cardvault.Vault, last *keeper) error {
	visa := testCard(0)
	imports := func(span time.Duration) ([]time.Duration, error) {
		_, latencies, err := rate(16, span, func(int) error {
			_, err := other.Import(ctx, visa, nil)
			return err
		})
		return latencies, err
	}
	alone, err := imports(b.span)
	if err != nil {
		return err
	}

	erased := &last.deleted[f.kind]
	size := erased.Load()
	start := time.Now()
	if err := f.end(); err != nil {
		return err
	}
	took := time.Since(start)

	var meanwhile []time.Duration
	for erased.Load()-size < int64(f.n) {
		more, err := imports(100 * time.Millisecond)
		if err != nil {
			return err
		}
		meanwhile = append(meanwhile, more...)
	}

	slices.Sort(meanwhile)
	what := fmt.Sprintf("%s with %d %s", f.ending, f.n, f.of)
	b.figures("families-"+f.name+"/call", "ms", most(100), what, milliseconds(took))
	b.figures("families-"+f.name+"/erased", "s", reported, what+", until all are erased", time.Since(start).Seconds())
	b.figures("families-"+f.name+"/p99", "", most(2), "imports of another account meanwhile / before, 99th percentile",
		float64(quantile(meanwhile, .99))/float64(quantile(alone, .99)))
	return nil
}

// clones puts n records beside one, in which nothing can be read.
func clones(ctx context.Context, s store.Store, r *store.Record, n int) error {
	for done := 0; done < n; done += 1000 {
		err := s.Update(ctx, func(tx store.Tx) error {
			for i := done; i < min(n, done+1000); i++ {
				c := *r
				binary.BigEndian.PutUint64(c.ID[8:], uint64(i))
				tx.Put(&c)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// A keeper is a store that remembers the last record put with a parent, and counts
// puts and deletions by kind.
type keeper struct {
	store.Store
	record       atomic.Pointer[store.Record]
	put, deleted [256]atomic.Int64
}

// mostPut returns the kind of most records that were put.
func (k *keeper) mostPut() (leads store.Kind) {
	for i := range k.put {
		if k.put[i].Load() > k.put[leads].Load() {
			leads = store.Kind(i)
		}
	}
	return leads
}

func (k *keeper) Update(ctx context.Context, fn func(store.Tx) error) error {
	var tx *keeperTx
	err := k.Store.Update(ctx, func(inner store.Tx) error {
		tx = &keeperTx{Tx: inner}
		return fn(tx)
	})
	if err == nil && tx.record != nil {
		k.record.Store(tx.record)
	}
	if err == nil {
		for _, written := range tx.put {
			k.put[written].Add(1)
		}
		for _, erased := range tx.deleted {
			k.deleted[erased].Add(1)
		}
	}
	return err
}

type keeperTx struct {
	store.Tx
	record       *store.Record
	put, deleted []store.Kind
}

func (tx *keeperTx) Put(r *store.Record) {
	tx.put = append(tx.put, r.Kind)
	if r.Parent != uuid.Nil {
		tx.record = r
	}
	tx.Tx.Put(r)
}

func (tx *keeperTx) Delete(k store.Kind, id uuid.UUID) {
	tx.deleted = append(tx.deleted, k)
	tx.Tx.Delete(k, id)
}
