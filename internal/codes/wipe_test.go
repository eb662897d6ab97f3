package codes

import (
	"bytes"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
)

// held returns the memory in which the cache holds the value of id.
func held(t *testing.T, c *Cache, id uuid.UUID) []byte {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.entries.Peek(id)
	if !ok || string(e.value) != "secret" {
		t.Fatal("the cache does not hold the value")
	}
	return e.value
}

// TestWiped: however a value leaves the cache, its memory is zeroed and its timer stopped. A
// running timer would keep the entry until it expires.
func TestWiped(t *testing.T) {
	const ttl = time.Hour
	one, two := uuid.UUID{1}, uuid.UUID{2}
	for _, way := range []struct {
		name string
		want string
		end  func(t *testing.T, c *Cache) error
	}{
		{"nothing", "secret", func(t *testing.T, c *Cache) error { <-time.After(ttl - 1); synctest.Wait(); return nil }},
		{"expired", "", func(t *testing.T, c *Cache) error { <-time.After(ttl); synctest.Wait(); return nil }},
		{"overwritten", "", func(t *testing.T, c *Cache) error { return c.Put(t.Context(), one, []byte("secret"), 2*ttl) }},
		{"overwritten without a lifetime", "", func(t *testing.T, c *Cache) error { return c.Put(t.Context(), one, []byte("secret"), 0) }},
		{"evicted", "", func(t *testing.T, c *Cache) error { return c.Put(t.Context(), two, nil, ttl) }},
		{"deleted", "", func(t *testing.T, c *Cache) error { return c.Delete(t.Context(), one) }},
		{"closed", "", func(t *testing.T, c *Cache) error { return c.Close() }},
	} {
		t.Run(way.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := New(1, nil)
				if err := c.Put(t.Context(), one, []byte("secret"), ttl); err != nil {
					t.Fatal(err)
				}
				value := held(t, c, one)
				timer := c.entry(one).timer
				if err := way.end(t, c); err != nil {
					t.Error(err)
				}
				want := append([]byte(way.want), make([]byte, len(value)-len(way.want))...)
				if !bytes.Equal(value, want) {
					t.Error("the memory of the value holds something else")
				}
				if way.name != "nothing" {
					if timer.Stop() {
						t.Error("the timer still runs")
					}
					<-time.After(3 * ttl)
					if !bytes.Equal(value, want) {
						t.Error("the memory of the value changes afterwards")
					}
				}
				if err := c.Close(); err != nil || c.entries.Len() != 0 {
					t.Errorf("Close: %v, %d entries left", err, c.entries.Len())
				}
			})
		})
	}
}

// TestLateTimer: a timer that fires while its entry is being removed waits for the lock. Then it
// finds another entry under the id, or no entry.
func TestLateTimer(t *testing.T) {
	id := uuid.UUID{1}
	c := New(1, nil)
	defer c.Close()
	put := func() *entry {
		if err := c.Put(t.Context(), id, []byte("secret"), time.Hour); err != nil {
			t.Fatal(err)
		}
		return c.entry(id)
	}
	old := put()
	put()
	c.expire(old)
	value := held(t, c, id)

	if string(value) != "secret" {
		t.Error("a late timer wipes another value")
	}
	gone := c.entry(id)
	if err := c.Delete(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	c.expire(gone)
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	c.expire(gone)
}

// TestTimerThatNeverFires: a timer may also be late for its own entry. The clock decides.
func TestTimerThatNeverFires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(2, nil)
		for _, id := range []uuid.UUID{{1}, {2}} {
			if err := c.Put(t.Context(), id, []byte("secret"), time.Hour); err != nil {
				t.Fatal(err)
			}
			c.entry(id).timer.Stop()
		}
		<-time.After(time.Hour)
		value := held(t, c, uuid.UUID{1})
		if _, err := c.Get(t.Context(), uuid.UUID{1}); err == nil {
			t.Error("Get returns an expired value")
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if !bytes.Equal(value, make([]byte, 6)) {
			t.Error("Close leaves the value")
		}
	})
}

func (c *Cache) entry(id uuid.UUID) *entry {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, _ := c.entries.Peek(id)
	return e
}
