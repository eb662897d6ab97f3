package valkeycodes_test

import (
	"bytes"
	"context"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/internal/realtest"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/boltstore"
)

// BenchmarkImport imports cards with a security code, durably and 16 at a time. It does so
// without a shared cache, with a working one, and with one hanging from the start. It
// reports the median, the 99th percentile, and the number of imports that waited for a
// silent server.
func BenchmarkImport(b *testing.B) {
	for _, hangs := range []string{"memory", "shared", "hung"} {
		b.Run(hangs, func(b *testing.B) {
			s := realtest.Redis(b, nil)
			var waits atomic.Int64
			var codes store.CodeCache
			if hangs != "memory" {
				codes = waiting{open(b, s.Addr(), nil), &waits}
			}
			v := durable(b, codes)
			imports(b, v)
			if hangs == "hung" {
				s.Stop()
			}
			var mu sync.Mutex
			var took []time.Duration
			b.SetParallelism(8) // for each of two cores
			b.ResetTimer()
			b.RunParallel(func(p *testing.PB) {
				var mine []time.Duration
				for p.Next() {
					start := time.Now()
					imports(b, v)
					mine = append(mine, time.Since(start))
				}
				mu.Lock()
				defer mu.Unlock()
				took = append(took, mine...)
			})
			b.StopTimer()
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "ms/p50")
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "ms/p99")
			b.ReportMetric(float64(waits.Load()), "waits")
		})
	}
}

// waiting counts the Puts that wait in vain.
type waiting struct {
	store.CodeCache
	n *atomic.Int64
}

func (w waiting) Put(ctx context.Context, id uuid.UUID, value []byte, ttl time.Duration) error {
	err := w.CodeCache.Put(ctx, id, value, ttl)
	if ctx.Err() != nil {
		w.n.Add(1)
	}
	return err
}

func durable(b *testing.B, codes store.CodeCache) *cardvault.Vault {
	b.Helper()
	s, err := boltstore.Open(b.Context(), filepath.Join(b.TempDir(), "vault.db"), nil)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := s.Close(); err != nil {
			b.Error(err)
		}
	})
	keys, err := cardvault.KeyBytes(bytes.Repeat([]byte{7}, cardvault.KeySize))
	if err != nil {
		b.Fatal(err)
	}
	v, err := cardvault.New(b.Context(), s, keys, &cardvault.Options{Codes: codes})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := v.Close(); err != nil {
			b.Error(err)
		}
	})
	return v
}

// BenchmarkCalls measures a Put, a Get and a Delete, with one caller or 64.
func BenchmarkCalls(b *testing.B) {
	c := open(b, realtest.Redis(b, nil).Addr(), nil)
	value := make([]byte, 128)
	for _, callers := range []int{1, 64} {
		b.Run("", func(b *testing.B) {
			b.ReportAllocs()
			var group sync.WaitGroup
			for i := range callers {
				group.Go(func() {
					for range b.N / callers {
						if err := c.Put(b.Context(), id(i), value, time.Minute); err != nil {
							b.Error(err)
						}
						if _, err := c.Get(b.Context(), id(i)); err != nil {
							b.Error(err)
						}
						if err := c.Delete(b.Context(), id(i)); err != nil {
							b.Error(err)
						}
					}
				})
			}
			group.Wait()
		})
	}
}
