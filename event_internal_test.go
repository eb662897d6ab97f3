package cardvault

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/cardvault/cardvault/internal/bubble"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/memstore"
)

// acceptAll is a sink that accepts every event.
type acceptAll struct{}

func (acceptAll) Event(context.Context, *Event) error { return nil }

// TestFormerEvents: a due event record written by a former version is erased.
func TestFormerEvents(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		keys, err := KeyBytes(make([]byte, KeySize))
		if err != nil {
			t.Fatal(err)
		}
		s := memstore.New()
		v, err := New(t.Context(), s, keys, &Options{Events: acceptAll{}})
		if err != nil {
			t.Fatal(err)
		}
		defer v.Close()
		row, err := v.rows.NewRow()
		if err != nil {
			t.Fatal(err)
		}

		r := &store.Record{Kind: kindEvent, ID: row, Account: v.rows.ID, Version: 1, Due: now()}
		if err := v.rows.SealShown(r, make([]byte, 64)); err != nil {
			t.Fatal(err)
		}
		if err := s.Update(t.Context(), func(tx store.Tx) error { tx.Put(r); return nil }); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if err := v.Drain(t.Context()); err != nil {
			t.Fatal(err)
		}
		err = s.View(t.Context(), func(tx store.ReadTx) error {
			if _, err := tx.Get(kindEvent, row); !errors.Is(err, store.ErrNotFound) {
				t.Error("the record still exists", err)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	})
}
