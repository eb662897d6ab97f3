package codes_test

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cardvault/cardvault/internal/goroutines"
	"github.com/google/uuid"
	"go.uber.org/goleak"

	"github.com/cardvault/cardvault/internal/codes"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/storetest"
)

func TestMain(m *testing.M) { goroutines.Verify(m) }

func TestContract(t *testing.T) {
	storetest.RunCodes(t, storetest.CodesHarness{Open: func(testing.TB) store.CodeCache { return codes.New(1000, nil) }})
}

func id(n uint64) (id uuid.UUID) {
	binary.BigEndian.PutUint64(id[:], n)
	return id
}

func put(t testing.TB, c *codes.Cache, n uint64, ttl time.Duration) {
	t.Helper()
	if err := c.Put(t.Context(), id(n), []byte(strconv.FormatUint(n, 10)), ttl); err != nil {
		t.Fatal(err)
	}
}

// has checks whether the value that put stored for n exists.
func has(t testing.TB, c *codes.Cache, n uint64, want bool) {
	t.Helper()
	got, err := c.Get(t.Context(), id(n))
	switch {
	case !want && !errors.Is(err, store.ErrNotFound):
		t.Errorf("Get(%d) = %v, want %v", n, err, store.ErrNotFound)
	case want && (err != nil || string(got) != strconv.FormatUint(n, 10)):
		t.Errorf("Get(%d) = %d bytes, %v", n, len(got), err)
	}
}

func closed(t testing.TB, c *codes.Cache) {
	t.Helper()
	if err := c.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
}

func TestExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := codes.New(10, nil)
		const ttl = 10 * time.Minute
		put(t, c, 1, ttl)
		put(t, c, 2, ttl+1)
		put(t, c, 3, math.MaxInt64)
		<-time.After(ttl - 1)
		has(t, c, 1, true)
		put(t, c, 2, ttl)
		<-time.After(1)
		has(t, c, 1, false)
		has(t, c, 2, true)
		<-time.After(ttl - 1)
		has(t, c, 2, false)
		<-time.After(100 * 365 * 24 * time.Hour)
		has(t, c, 3, true)
		closed(t, c)
	})
}

// A bubble whose test ends with a goroutine left panics.
func TestNoGoroutine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := codes.New(10, nil)
		for n := range uint64(100) {
			put(t, c, n%20, time.Duration(1+n))
		}
		<-time.After(50)
		put(t, c, 1, time.Hour)
		goleak.VerifyNone(t, goleak.IgnoreCurrent())
		closed(t, c)
		closed(t, c)
	})
}

func TestEvictions(t *testing.T) {
	var reported []uint64
	c := codes.New(3, func(n uint64) { reported = append(reported, n) })
	defer closed(t, c)
	for n := range uint64(3) {
		put(t, c, n, time.Hour)
	}
	has(t, c, 0, true)        // as new
	put(t, c, 1, time.Hour)   // as new as 0
	put(t, c, 3, time.Minute) // evicts 2
	for n, want := range []bool{true, true, false, true} {
		has(t, c, uint64(n), want)
	}
	has(t, c, 1, true)
	has(t, c, 3, true)
	put(t, c, 4, time.Hour) // evicts 0
	for n, want := range []bool{false, true, false, true, true} {
		has(t, c, uint64(n), want)
	}
	if err := c.Delete(t.Context(), id(1)); err != nil {
		t.Error(err)
	}
	put(t, c, 5, time.Hour) // takes the place of 1
	put(t, c, 6, 0)         // needs no place
	for n, want := range []bool{false, false, false, true, true, true, false} {
		has(t, c, uint64(n), want)
	}
	if want := []uint64{1, 2}; !slices.Equal(reported, want) || c.Evicted() != 2 {
		t.Errorf("evictions reported: %v, Evicted = %d, want %v", reported, c.Evicted(), want)
	}
}

func TestEvictedMayCall(t *testing.T) {
	var c *codes.Cache
	c = codes.New(1, func(n uint64) {
		if got := c.Evicted(); got != n {
			t.Errorf("Evicted = %d while %d is reported", got, n)
		}
	})
	put(t, c, 1, time.Hour)
	put(t, c, 2, time.Hour)
	closed(t, c)
}

func TestEvictionsAtOnce(t *testing.T) {
	const workers, each, room = 4, 1000, 10
	var calls, sum atomic.Int64
	c := codes.New(room, func(n uint64) { calls.Add(1); sum.Add(int64(n)) })
	defer closed(t, c)
	var group sync.WaitGroup
	for w := range uint64(workers) {
		group.Go(func() {
			for n := range uint64(each) {
				if err := c.Put(context.Background(), id(w*each+n), nil, time.Hour); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	const want = workers*each - room
	if c.Evicted() != want || calls.Load() != want || sum.Load() != want*(want+1)/2 {
		t.Errorf("%d evictions, %d reported that sum up to %d, want each of %d once", c.Evicted(), calls.Load(), sum.Load(), want)
	}
}

func TestTooLong(t *testing.T) {
	c := codes.New(1, nil)
	defer closed(t, c)
	if err := c.Put(t.Context(), id(1), make([]byte, store.MaxCode+1), time.Hour); !errors.Is(err, store.ErrInvalid) {
		t.Errorf("Put = %v, want %v", err, store.ErrInvalid)
	}
}

func BenchmarkPutGetDelete(b *testing.B) {
	for _, goroutines := range []int{1, 2} {
		b.Run(strconv.Itoa(goroutines), func(b *testing.B) {
			c := codes.New(1000, nil)
			defer closed(b, c)
			value := make([]byte, 96)
			b.ReportAllocs()
			var group sync.WaitGroup
			for g := range uint64(goroutines) {
				group.Go(func() {
					for n := range uint64(b.N / goroutines) {
						id := id(g<<32 | n)
						if err := c.Put(context.Background(), id, value, time.Minute); err != nil {
							b.Error(err)
						}
						if _, err := c.Get(context.Background(), id); err != nil {
							b.Error(err)
						}
						if err := c.Delete(context.Background(), id); err != nil {
							b.Error(err)
						}
					}
				})
			}
			group.Wait()
		})
	}
}
