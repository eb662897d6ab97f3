// Package watch lets others know which records a store writes: see store.Watcher.
package watch

import (
	"sync"

	"github.com/cardvault/cardvault/store"
)

// A List holds the watchers of a store. The zero value is empty.
type List struct {
	mu  sync.RWMutex // held to read while changes are made
	all map[*watcher]bool
}

type watcher struct {
	changing func([]store.Key) (changed func())
}

// Watch implements store.Watcher.
func (l *List) Watch(changing func([]store.Key) (changed func())) (stop func()) {
	w := &watcher{changing}
	l.mu.Lock() // once the changes under way are made
	defer l.mu.Unlock()
	if l.all == nil {
		l.all = map[*watcher]bool{}
	}
	l.all[w] = true
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.all, w)
	}
}

// Changing is called before changes are made. keys returns the keys of their records, and is
// not called without a watcher.
func (l *List) Changing(keys func() []store.Key) Change {
	l.mu.RLock()
	c := Change{list: l}
	if len(l.all) == 0 {
		return c
	}
	ks := keys()
	for w := range l.all {
		c.ends = append(c.ends, w.changing(ks))
	}
	return c
}

// A Change is a change under way. It is a value, as a function would be an allocation.
type Change struct {
	list *List
	ends []func()
}

// End is called when the changes are visible, or never will be.
func (c Change) End() {
	defer c.list.mu.RUnlock()
	for _, end := range c.ends {
		end()
	}
}
