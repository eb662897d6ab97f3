package vaulttest

import (
	"context"
	"slices"
	"sync"

	"github.com/cardvault/cardvault"
)

// A Recorder is a sink of events that keeps them for a test to look at. The zero
// value is ready. It may be used concurrently, and by several vaults.
//
//	var events vaulttest.Recorder
//	v := vaulttest.NewWith(t, &cardvault.Options{Mode: cardvault.Sandbox, Events: &events})
//	… // the program that is tested
//	err := v.Drain(t.Context())
//	got := events.Events()
type Recorder struct {
	mu     sync.Mutex
	events []*cardvault.Event
}

var _ cardvault.EventSink = (*Recorder)(nil)

// Event implements [cardvault.EventSink]. It takes every event.
func (r *Recorder) Event(_ context.Context, e *cardvault.Event) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, e)
	return nil
}

// Events returns the received events, in that order: an event that arrived twice is there
// twice. The slice is the caller's.
func (r *Recorder) Events() []*cardvault.Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.events)
}
