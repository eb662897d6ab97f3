package codes_test

import (
	"bytes"
	"log/slog"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cardvault/cardvault/internal/bubble"
	"github.com/cardvault/cardvault/internal/codes"
	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/internal/ledgertest"
	"github.com/cardvault/cardvault/store"
)

func TestKeeper(t *testing.T) {
	for _, shared := range []bool{false, true} {
		bubble.Test(t, func(t *testing.T) {
			l := ledgertest.New(t, nil)
			config := codes.Config{Capacity: 10, Ledger: l, Log: slog.New(slog.DiscardHandler)}
			var cache store.CodeCache
			if shared {
				cache = codes.New(10, nil)
				defer cache.Close()
				config.Shared = cache
			}
			k := codes.NewKeeper(config)
			rows, other, id := l.In(l.First), l.In(uuid.New()), uuid.New()
			until := ledger.Now().Add(time.Minute)
			if err := k.Keep(t.Context(), rows, id, codes.NewCode([]byte("737"), 3, until), codes.Wait); err != nil {
				t.Fatal(err)
			}

			if c := k.Find(t.Context(), rows, id); string(c.Digits()) != "737" || c.Number != 3 || !c.Until.Equal(until) {
				t.Errorf("found %+v", c)
			}
			if c := k.Find(t.Context(), other, id); c.Digits() != nil {
				t.Error("another account finds the code")
			}
			if shared {
				if sealed, err := cache.Get(t.Context(), id); err != nil || bytes.Contains(sealed, []byte("737")) {
					t.Errorf("the cache has %q, %v", sealed, err)
				}
			}

			if err := k.Erase(t.Context(), rows, id, 3); err != nil {
				t.Error(err)
			}
			k.DropBefore(t.Context(), rows, id, 2)
			if c := k.Find(t.Context(), rows, id); c.Number != 3 {
				t.Error("a later code is erased with those before it")
			}
			if err := k.Erase(t.Context(), rows, id, 4); err != nil {
				t.Error(err)
			}
			if c := k.Find(t.Context(), rows, id); c.Digits() != nil {
				t.Error("the code still exists after Erase")
			}
			if err := k.Keep(t.Context(), rows, id, codes.NewCode([]byte("737"), 0, until), codes.Wait); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Minute)
			if c := k.Find(t.Context(), rows, id); c.Digits() != nil {
				t.Error("the code still exists after its expiry")
			}
			if err := k.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}
