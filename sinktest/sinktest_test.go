package sinktest_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/internal/contract"
	"github.com/cardvault/cardvault/receive"
	"github.com/cardvault/cardvault/sinktest"
	"github.com/google/uuid"
)

// A ledger is the storage of a sink: the number of effects of each event.
type ledger struct {
	mu      sync.Mutex
	effects map[uuid.UUID]int
}

func (l *ledger) count(_ context.Context, id uuid.UUID) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.effects[id], nil
}

func (l *ledger) add(id uuid.UUID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.effects[id]++
}

// take applies the effect of an event, once.
func (l *ledger) take(ctx context.Context, e *cardvault.Event) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.effects[e.ID] = 1
	return nil
}

// A sink is a cardvault.EventSink.
type sink func(ctx context.Context, e *cardvault.Event) error

func (f sink) Event(ctx context.Context, e *cardvault.Event) error { return f(ctx, e) }

// open makes a sink on a ledger, like a starting process.
type open func(l *ledger) sink

func right(l *ledger) sink { return l.take }

var errRefused = errors.New("the sink does not want it")

// faults lists faults, each with a rule that must detect it.
var faults = []struct {
	fault, rule string
	open        open
}{
	{"deletions have no token", "Takes", func(l *ledger) sink {
		return func(ctx context.Context, e *cardvault.Event) error {
			if e.Token == nil {
				return errRefused
			}
			return l.take(ctx, e)
		}
	}},
	{"events have no effect", "Takes", func(*ledger) sink {
		return func(context.Context, *cardvault.Event) error { return nil }
	}},
	{"events of unknown types are refused", "Unknown", func(l *ledger) sink {
		return func(ctx context.Context, e *cardvault.Event) error {
			if !slices.Contains([]receive.EventType{receive.TokenCreated, receive.TokenUpdated, receive.TokenDeleted}, e.Type) {
				return errRefused
			}
			return l.take(ctx, e)
		}
	}},
	{"a repeated event has a second effect", "Again", func(l *ledger) sink {
		return func(_ context.Context, e *cardvault.Event) error { l.add(e.ID); return nil }
	}},
	{"a repeated event is refused", "Again", func(l *ledger) sink {
		return func(ctx context.Context, e *cardvault.Event) error {
			if n, _ := l.count(ctx, e.ID); n > 0 {
				return errRefused
			}
			return l.take(ctx, e)
		}
	}},
	{"it reads first and writes later", "AtOnce", func(l *ledger) sink {
		return func(ctx context.Context, e *cardvault.Event) error {
			n, err := l.count(ctx, e.ID)
			<-time.After(10 * time.Millisecond)
			if n == 0 {
				l.add(e.ID)
			}
			return err
		}
	}},
	{"seen events are only in memory", "Restart", func(l *ledger) sink {
		seen := new(sync.Map)
		return func(_ context.Context, e *cardvault.Event) error {
			if _, known := seen.LoadOrStore(e.ID, true); !known {
				l.add(e.ID)
			}
			return nil
		}
	}},
	{"older events are refused", "Late", func(l *ledger) sink {
		var mu sync.Mutex
		latest := uint64(0)
		return func(ctx context.Context, e *cardvault.Event) error {
			mu.Lock()
			defer mu.Unlock()
			if e.Sequence < latest {
				return errRefused
			}
			latest = e.Sequence
			return l.take(ctx, e)
		}
	}},
	{"it hangs", "ContextEnded", func(l *ledger) sink {
		return func(ctx context.Context, e *cardvault.Event) error {
			<-time.After(30 * time.Second)
			return l.take(ctx, e)
		}
	}},
	{"a cut-off call succeeds", "ContextEnded", func(l *ledger) sink {
		return func(ctx context.Context, e *cardvault.Event) error {
			if ctx.Err() != nil {
				return nil
			}
			return l.take(ctx, e)
		}
	}},
	{"one at a time", "Concurrency", func(l *ledger) sink {
		var busy sync.Mutex
		return func(ctx context.Context, e *cardvault.Event) error {
			if !busy.TryLock() {
				return errRefused
			}
			defer busy.Unlock()
			<-time.After(10 * time.Millisecond)
			return l.take(ctx, e)
		}
	}},
}

func harness(o open) sinktest.Harness {
	l := &ledger{effects: map[uuid.UUID]int{}}
	return sinktest.Harness{Open: func(testing.TB) cardvault.EventSink { return o(l) }, Count: l.count}
}

// Every rule must detect its faults.
func TestRulesCanFail(t *testing.T) {
	noticed := contract.Faults(t, sinktest.Names())
	for _, f := range faults {
		noticed(f.rule, f.fault, func(t *testing.T) []string {
			return sinktest.Failures(t, f.rule, harness(f.open))
		})
	}
}

// A sink without a fault passes, so that a failure is due to the fault.
func TestRulesPassWithoutFault(t *testing.T) { sinktest.Run(t, harness(right)) }

// The second of two concurrent calls may fail: the event is repeated.
func TestLoserFails(t *testing.T) {
	sinktest.Run(t, harness(func(l *ledger) sink {
		busy := new(sync.Map)
		return func(ctx context.Context, e *cardvault.Event) error {
			if _, other := busy.LoadOrStore(e.ID, true); other {
				return errRefused
			}
			defer busy.Delete(e.ID)
			<-time.After(10 * time.Millisecond)
			return l.take(ctx, e)
		}
	}))
}

// A sink may ignore events of some types.
func TestEffects(t *testing.T) {
	for _, typ := range []receive.EventType{receive.TokenCreated, receive.TokenUpdated, receive.TokenDeleted} {
		h := harness(func(l *ledger) sink {
			return func(ctx context.Context, e *cardvault.Event) error {
				if e.Type != typ {
					return nil
				}
				return l.take(ctx, e)
			}
		})
		if len(sinktest.Failures(t, "Takes", h)) == 0 {
			t.Errorf("Takes did not notice that only %s has an effect", typ)
		}
		h.Effects = []receive.EventType{typ}
		t.Run(string(typ), func(t *testing.T) { sinktest.Run(t, h) })
	}
}
