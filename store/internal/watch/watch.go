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
// not called without a watcher. The returned function is called when they are visible, or
// never will be.
func (l *List) Changing(keys func() []store.Key) (changed func()) {
	l.mu.RLock()
	if len(l.all) == 0 {
		return l.mu.RUnlock
	}
	ks := keys()
	var ends []func()
	for w := range l.all {
		ends = append(ends, w.changing(ks))
	}
	return func() {
		defer l.mu.RUnlock()
		for _, end := range ends {
			end()
		}
	}
}
