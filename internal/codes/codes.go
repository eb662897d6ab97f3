// Package codes keeps security codes, sealed: in the memory of this process, or in a cache
// that several processes share.
package codes

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/cardvault/cardvault/store"
)

var _ store.CodeCache = (*Cache)(nil)

// A Cache is a [store.CodeCache]. It overwrites a value with zeros at the instant it
// expires, and whenever it is dropped earlier. It has no goroutine of its own; dropped
// without Close it still erases each value in time.
type Cache struct {
	capacity int
	evicted  func(uint64)

	mu        sync.Mutex
	entries   *simplelru.LRU[uuid.UUID, *entry] // in the order of their last Put or Get
	evictions uint64
	closed    bool
}

type entry struct {
	id    uuid.UUID
	value []byte
	until time.Time
	timer *time.Timer
}

// New returns a cache for capacity values, which must be more than 0. When there is no
// room, the value that was put or read longest ago is evicted. On each eviction, the
// goroutine of the Put calls evicted with the number of evictions so far, unless evicted is
// nil.
func New(capacity int, evicted func(n uint64)) *Cache {
	// The only error is about a capacity that is not more than 0.
	entries, _ := simplelru.NewLRU[uuid.UUID, *entry](capacity, nil)
	return &Cache{capacity: capacity, evicted: evicted, entries: entries}
}

// Evicted returns how many values have gone for want of room.
func (c *Cache) Evicted() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.evictions
}

// Put implements [store.CodeCache]. A value that is too long is a
// [store.ErrInvalid].
func (c *Cache) Put(ctx context.Context, id uuid.UUID, value []byte, ttl time.Duration) error {
	if len(value) > store.MaxCode {
		return fmt.Errorf("%w: security code of more than %d bytes", store.ErrInvalid, store.MaxCode)
	}
	evictions, err := c.put(ctx, id, value, ttl)
	if evictions > 0 && c.evicted != nil {
		c.evicted(evictions) // without the lock: it may take its time, or call the cache
	}
	return err
}

// put returns the number of evictions so far if it has evicted.
func (c *Cache) put(ctx context.Context, id uuid.UUID, value []byte, ttl time.Duration) (evictions uint64, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.usable(ctx); err != nil {
		return 0, err
	}

	c.erase(id)
	if ttl <= 0 {
		return 0, nil
	}
	if c.entries.Len() == c.capacity {
		_, oldest, _ := c.entries.RemoveOldest()
		oldest.wipe()
		c.evictions++
		evictions = c.evictions
	}

	e := &entry{id: id, value: bytes.Clone(value), until: time.Now().Add(ttl)}
	e.timer = time.AfterFunc(ttl, func() { c.expire(e) })
	c.entries.Add(id, e)
	return evictions, nil
}

// Get implements [store.CodeCache].
func (c *Cache) Get(ctx context.Context, id uuid.UUID) ([]byte, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, err := c.find(ctx, id)
	if err != nil {
		return nil, err
	}
	return bytes.Clone(e.value), nil
}

// Delete implements [store.CodeCache].
func (c *Cache) Delete(ctx context.Context, id uuid.UUID) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.usable(ctx); err != nil {
		return err
	}
	c.erase(id)
	return nil
}

// Close implements [store.CodeCache].
func (c *Cache) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range c.entries.Values() {
		e.wipe()
	}
	c.entries.Purge()
	c.closed = true
	return nil
}

func (c *Cache) usable(ctx context.Context) error {
	if c.closed {
		return store.ErrClosed
	}
	return ctx.Err()
}

// find returns the entry of id if its time is not over: its timer may be late.
func (c *Cache) find(ctx context.Context, id uuid.UUID) (*entry, error) {
	if err := c.usable(ctx); err != nil {
		return nil, err
	}
	e, ok := c.entries.Get(id)
	if !ok || !time.Now().Before(e.until) {
		return nil, store.ErrNotFound
	}
	return e, nil
}

func (c *Cache) erase(id uuid.UUID) {
	if e, ok := c.entries.Peek(id); ok {
		c.entries.Remove(id)
		e.wipe()
	}
}

// expire erases e, unless it was removed while the timer waited for the lock: its id may
// name another entry by now.
func (c *Cache) expire(e *entry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now, ok := c.entries.Peek(e.id); ok && now == e {
		c.erase(e.id)
	}
}

func (e *entry) wipe() {
	e.timer.Stop()
	clear(e.value)
}
