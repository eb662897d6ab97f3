package memstore_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cardvault/cardvault/internal/bubble"
	"github.com/google/uuid"

	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/memstore"
	"github.com/cardvault/cardvault/store/storetest"
)

func TestContract(t *testing.T) {
	storetest.Run(t, storetest.Harness{Open: func(testing.TB) store.Store { return memstore.New() }})
}

func put(n byte) func(store.Tx) error {
	return func(tx store.Tx) error {
		tx.Put(&store.Record{Kind: 1, ID: uuid.UUID{n}, Version: 1})
		return nil
	}
}

// A call waiting for its turn is durably blocked, so that a bubble's clock advances and a
// deadline ends the wait.
func TestWaitInBubble(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := memstore.New()
		hold := make(chan struct{})
		go s.Update(t.Context(), func(store.Tx) error { <-hold; return nil })
		synctest.Wait()

		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		start := time.Now()
		if err := s.Update(ctx, put(1)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Update behind a long one = %v, want %v", err, context.DeadlineExceeded)
		}
		if waited := time.Since(start); waited != time.Hour {
			t.Errorf("waited %v, want %v", waited, time.Hour)
		}
		close(hold)
		if err := s.Update(t.Context(), put(2)); err != nil {
			t.Errorf("Update afterwards = %v", err)
		}
		err := s.View(t.Context(), func(tx store.ReadTx) error {
			_, err := tx.Get(1, uuid.UUID{1})
			return err
		})
		if !errors.Is(err, store.ErrNotFound) {
			t.Errorf("Get of the record not written = %v, want %v", err, store.ErrNotFound)
		}
	})
}

func TestLateUsePanics(t *testing.T) {
	s := memstore.New()
	var late store.ReadTx
	if err := s.View(t.Context(), func(tx store.ReadTx) error { late = tx; return nil }); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if recover() == nil {
			t.Error("a ReadTx still reads after its View")
		}
	}()
	_, _ = late.Get(1, uuid.UUID{1})
}
