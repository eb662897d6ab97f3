// Package sums shows the changes of a store to a store.Sums: see store.Summer.
package sums

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/cardvault/cardvault/store"
)

// A List holds what Sum was called with. The zero value is empty. Its methods except Add belong
// to the goroutine that writes.
type List struct {
	mu  sync.Mutex // held to replace all
	all atomic.Pointer[[]*member]

	present store.Sums // is shown the transaction; nil: none is yet
}

type member struct{ store.Sums }

// Add is the method Sum of a store.Summer.
func (l *List) Add(s store.Sums) (stop func()) {
	m := &member{s}
	l.change(func(all []*member) []*member { return append(all, m) })
	return func() {
		l.change(func(all []*member) []*member {
			return slices.DeleteFunc(all, func(is *member) bool { return is == m })
		})
	}
}

func (l *List) change(to func([]*member) []*member) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []*member
	if is := l.all.Load(); is != nil {
		all = slices.Clone(*is)
	}
	all = to(all)
	l.all.Store(&all)
}

// Begin is called when a transaction begins, or begins again.
func (l *List) Begin() { l.present = nil }

// Wants reports whether Change takes a change of the transaction.
func (l *List) Wants() bool {
	all := l.all.Load()
	if l.present != nil || all == nil {
		return l.present != nil
	}
	for _, m := range *all {
		if m.Begin() {
			l.present = m.Sums
			return true
		}
	}
	return false
}

// Change shows a change, if Wants has returned true.
func (l *List) Change(former, next *store.Record) { l.present.Change(former, next) }

// Records returns what to put in the transaction.
func (l *List) Records(anew bool) []*store.Record {
	if l.present == nil {
		return nil
	}
	return l.present.Records(anew)
}

// Committed is called once the transaction is durable.
func (l *List) Committed() {
	if l.present != nil {
		l.present.Committed()
		l.present = nil
	}
}
