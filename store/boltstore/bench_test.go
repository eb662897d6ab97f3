package boltstore_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	bolt "go.etcd.io/bbolt"

	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/boltstore"
)

const benchKind store.Kind = 1

// keys makes row keys like those in a vault: 60 bits of time, then random bits.
type keys struct{ last atomic.Int64 }

func (k *keys) next() (id uuid.UUID) {
	now := time.Now().UnixMicro()
	for {
		last := k.last.Load()
		if now <= last {
			now = last + 1
		}
		if k.last.CompareAndSwap(last, now) {
			break
		}
	}
	id = uuid.New()
	binary.BigEndian.PutUint64(id[:], uint64(now)<<4)
	return id
}

func benchRecord(id, account uuid.UUID) *store.Record {
	return &store.Record{
		Kind: benchKind, ID: id, Account: account, Class: id[15]%7 + 1, Version: 1,
		Shown: make([]byte, 224), Secret: make([]byte, 82),
	}
}

func openBench(b testing.TB) *boltstore.Store {
	s, err := boltstore.Open(b.Context(), filepath.Join(b.TempDir(), "vault.db"), nil)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := s.Close(); err != nil {
			b.Error(err)
		}
	})
	return s
}

// fillStore puts n records into s, alternating between accounts.
func fillStore(b testing.TB, s store.Store, ids *keys, n, accounts int) {
	const batch = 2000
	for done := 0; done < n; done += batch {
		err := s.Update(context.Background(), func(tx store.Tx) error {
			for i := range batch {
				tx.Put(benchRecord(ids.next(), uuid.UUID{0: 1, 14: byte(i % accounts >> 8), 15: byte(i % accounts)}))
			}
			return nil
		})
		if err != nil {
			b.Fatal(err)
		}
	}
}

// A rawLoop appends rows to a bare bbolt bucket with the same group commit and nothing
// else: the best that disk and bbolt can do.
type rawLoop struct {
	db    *bolt.DB
	queue chan rawCall
	done  chan struct{}
}

type rawCall struct {
	key, value []byte
	done       chan error
}

func openRaw(b testing.TB) *rawLoop {
	db, err := bolt.Open(filepath.Join(b.TempDir(), "raw.db"), 0o600, &bolt.Options{
		FreelistType: bolt.FreelistMapType, InitialMmapSize: 1 << 30, NoStatistics: true,
	})
	if err != nil {
		b.Fatal(err)
	}
	r := &rawLoop{db: db, queue: make(chan rawCall, 1024), done: make(chan struct{})}
	go func() {
		defer close(r.done)
		for c := range r.queue {
			group := []rawCall{c}
			err := db.Update(func(tx *bolt.Tx) error {
				rows, err := tx.CreateBucketIfNotExists([]byte("rows"))
				if err != nil {
					return err
				}
				rows.FillPercent = 0.95
				for {
					c := group[len(group)-1]
					if err := rows.Put(c.key, c.value); err != nil {
						return err
					}
					if len(group) == 256 {
						return nil
					}
					select {
					case c, ok := <-r.queue:
						if !ok {
							return nil
						}
						group = append(group, c)
					default:
						return nil
					}
				}
			})
			for _, c := range group {
				c.done <- err
			}
		}
	}()
	b.Cleanup(func() {
		close(r.queue)
		<-r.done
		if err := db.Close(); err != nil {
			b.Error(err)
		}
	})
	return r
}

func (r *rawLoop) put(key, value []byte) error {
	c := rawCall{key, value, make(chan error, 1)}
	r.queue <- c
	return <-c.done
}

// spread runs n calls of f in a number of goroutines and returns the calls per second.
func spread(b testing.TB, goroutines, n int, f func() error) float64 {
	var left atomic.Int64
	left.Store(int64(n))
	var wg sync.WaitGroup
	begin := time.Now()
	for range goroutines {
		wg.Go(func() {
			for left.Add(-1) >= 0 {
				if err := f(); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	return float64(n) / time.Since(begin).Seconds()
}

// BenchmarkUpdate reports durable imports per second, and the ratio to a raw bbolt loop
// with rows of the same size in the same run.
func BenchmarkUpdate(b *testing.B) {
	for _, accounts := range []int{1, 1000} {
		b.Run(fmt.Sprintf("accounts=%d", accounts), func(b *testing.B) { benchUpdate(b, accounts) })
	}
}

func benchUpdate(b *testing.B, accounts int) {
	s, raw, ids := openBench(b), openRaw(b), new(keys)
	fillStore(b, s, ids, 100_000, accounts)
	value := make([]byte, 328)
	for range 100_000 / 256 { // the same file size
		spread(b, 256, 256, func() error { id := ids.next(); return raw.put(id[:], value) })
	}
	var turn atomic.Int64
	for _, goroutines := range []int{1, 16, 64, 256} {
		b.Run(fmt.Sprintf("goroutines=%d", goroutines), func(b *testing.B) {
			var ours, bare float64
			const rounds = 4 // alternate, so that both meet the same disk
			for range rounds {
				n := max(1, b.N/rounds)
				ours += spread(b, goroutines, n, func() error {
					a := int(turn.Add(1)) % accounts
					r := benchRecord(ids.next(), uuid.UUID{0: 1, 14: byte(a >> 8), 15: byte(a)})
					return s.Update(b.Context(), func(tx store.Tx) error { tx.Put(r); return nil })
				})
				bare += spread(b, goroutines, n, func() error {
					id := ids.next()
					return raw.put(id[:], value)
				})
			}
			b.ReportMetric(ours/rounds, "ours/s")
			b.ReportMetric(bare/rounds, "raw/s")
			b.ReportMetric(ours/bare, "ratio")
		})
	}
}

func BenchmarkGet(b *testing.B) {
	s, ids := openBench(b), new(keys)
	var all []uuid.UUID
	for range 20 {
		err := s.Update(b.Context(), func(tx store.Tx) error {
			for range 1000 {
				id := ids.next()
				all = append(all, id)
				tx.Put(benchRecord(id, uuid.UUID{1}))
			}
			return nil
		})
		if err != nil {
			b.Fatal(err)
		}
	}
	raw := openRaw(b)
	if err := raw.db.Update(func(tx *bolt.Tx) error {
		rows, err := tx.CreateBucket([]byte("rows"))
		for _, id := range all {
			err = errors.Join(err, rows.Put(id[:], make([]byte, 328)))
		}
		return err
	}); err != nil {
		b.Fatal(err)
	}
	i := 0
	b.Run("ours", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			i++
			err := s.View(b.Context(), func(tx store.ReadTx) error {
				_, err := tx.Get(benchKind, all[i*7919%len(all)])
				return err
			})
			if err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("raw", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			i++
			err := raw.db.View(func(tx *bolt.Tx) error {
				if tx.Bucket([]byte("rows")).Get(all[i*7919%len(all)][:]) == nil {
					return store.ErrNotFound
				}
				return nil
			})
			if err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkOpen reports the time to open a store of a million records, and the cost of a
// record on disk and on the heap.
func BenchmarkOpen(b *testing.B) {
	path := filepath.Join(b.TempDir(), "vault.db")
	s, err := boltstore.Open(b.Context(), path, nil)
	if err != nil {
		b.Fatal(err)
	}
	const n = 1_000_000
	fillStore(b, s, new(keys), n, 1)
	var before, after runtime.MemStats
	for b.Loop() {
		if err := s.Close(); err != nil {
			b.Fatal(err)
		}
		runtime.GC()
		runtime.ReadMemStats(&before)
		if s, err = boltstore.Open(b.Context(), path, nil); err != nil {
			b.Fatal(err)
		}
		runtime.ReadMemStats(&after)
	}
	info, err := os.Stat(path)
	if err := errors.Join(err, s.Close()); err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(info.Size())/n, "disk-B/record")
	b.ReportMetric(float64(after.HeapAlloc)-float64(before.HeapAlloc), "heap-B")
}

func BenchmarkList(b *testing.B) {
	s, ids := openBench(b), new(keys)
	const n = 1_000_000
	fillStore(b, s, ids, n, 1)
	var third store.Classes
	third.Add(3)
	account := uuid.UUID{0: 1}
	for _, bench := range []struct {
		name  string
		query store.Query
	}{
		{"first", store.Query{}},
		{"first-counted", store.Query{Count: true}},
		{"middle", store.Query{Offset: n / 2, Count: true}},
		{"last", store.Query{Offset: n - 50, Count: true}},
		{"desc", store.Query{Offset: n / 3, Count: true, Desc: true}},
		{"class", store.Query{Offset: n / 20, Classes: third, Count: true}},
		{"live", store.Query{Offset: n / 2, Count: true, Live: time.Now()}},
		{"none", store.Query{Count: true}},
	} {
		q := bench.query
		q.Kind, q.Account = benchKind, account
		if bench.name != "none" {
			q.Limit = 50
		}
		b.Run(bench.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				err := s.View(b.Context(), func(tx store.ReadTx) error {
					l, err := tx.List(&q)
					if err == nil && len(l.Records) != q.Limit {
						return fmt.Errorf("%d records", len(l.Records))
					}
					return err
				})
				if err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
