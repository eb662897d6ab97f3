package sinktest_test

import (
	"context"
	"sync"
	"testing"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/sinktest"
	"github.com/google/uuid"
)

// A table has a row for each event that a sink has handled, like a database table.
// Inserting an existing row changes nothing.
type table struct {
	mu   sync.Mutex
	rows map[uuid.UUID]bool
}

func (t *table) insert(_ context.Context, id uuid.UUID) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.rows[id] = true
	return nil
}

func (t *table) count(_ context.Context, id uuid.UUID) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.rows[id] {
		return 1, nil
	}
	return 0, nil
}

// A handler is a sink on a table. The id of an event makes repetitions harmless.
type handler struct{ db *table }

func (h handler) Event(ctx context.Context, e *cardvault.Event) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return h.db.insert(ctx, e.ID)
}

// The whole test of a sink. All sinks returned by Open work on the same database.
func ExampleRun() {
	_ = func(t *testing.T) {
		db := &table{rows: map[uuid.UUID]bool{}}
		sinktest.Run(t, sinktest.Harness{
			Open:  func(testing.TB) cardvault.EventSink { return handler{db} },
			Count: db.count,
		})
	}
}
