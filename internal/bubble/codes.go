package bubble

import (
	"context"
	"testing"
	"time"

	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// OutsideCodes is [Outside] for a cache of security codes. The cache has a clock of its
// own, so a value that has expired by the clock of the bubble is erased before it is read.
// It makes one call at a time.
func OutsideCodes(t testing.TB, c store.CodeCache) store.CodeCache {
	o := outsideCodes{c, make(chan func()), make(chan struct{}), map[uuid.UUID]time.Time{}}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for call := range o.calls {
			call()
			o.done <- struct{}{}
		}
	}()
	t.Cleanup(func() {
		close(o.calls)
		<-ended
	})
	return o
}

type outsideCodes struct {
	cache store.CodeCache
	calls chan func()
	done  chan struct{}           // a call has ended
	until map[uuid.UUID]time.Time // of calls
}

// do has call made outside, with a context of there and the time of the bubble.
func (o outsideCodes) do(ctx context.Context, id uuid.UUID, call func(ctx context.Context, now time.Time) error) (err error) {
	if err := ctx.Err(); err != nil {
		return err
	}
	now := time.Now()
	o.calls <- func() {
		unbound := context.Background()
		if until, ok := o.until[id]; ok && !now.Before(until) {
			delete(o.until, id)
			if err = o.cache.Delete(unbound, id); err != nil {
				return
			}
		}
		err = call(unbound, now)
	}
	<-o.done
	return err
}

func (o outsideCodes) Put(ctx context.Context, id uuid.UUID, value []byte, ttl time.Duration) error {
	return o.do(ctx, id, func(ctx context.Context, now time.Time) error {
		o.until[id] = now.Add(ttl)
		return o.cache.Put(ctx, id, value, ttl)
	})
}

func (o outsideCodes) Get(ctx context.Context, id uuid.UUID) (value []byte, err error) {
	err = o.do(ctx, id, func(ctx context.Context, _ time.Time) (err error) {
		value, err = o.cache.Get(ctx, id)
		return err
	})
	return value, err
}

func (o outsideCodes) Delete(ctx context.Context, id uuid.UUID) error {
	return o.do(ctx, id, func(ctx context.Context, _ time.Time) error { return o.cache.Delete(ctx, id) })
}

// Close does nothing: the opener of the cache closes it.
func (o outsideCodes) Close() error { return nil }
