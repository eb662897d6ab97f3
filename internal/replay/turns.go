package replay

import (
	"context"
	"sync"

	"github.com/google/uuid"
)

// turns let one call at a time look under a key. The zero value is ready.
type turns struct {
	mu    sync.Mutex
	taken map[uuid.UUID]chan struct{} // closed when the turn ends
}

// take waits for a turn and returns a function that ends it, nil if ctx ends before.
func (t *turns) take(ctx context.Context, id uuid.UUID) (over func()) {
	for {
		t.mu.Lock()
		former := t.taken[id]
		if former == nil {
			break
		}
		t.mu.Unlock()

		select {
		case <-former:
		case <-ctx.Done():
			return nil
		}
	}

	defer t.mu.Unlock()
	if t.taken == nil {
		t.taken = map[uuid.UUID]chan struct{}{}
	}
	ended := make(chan struct{})
	t.taken[id] = ended
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.taken, id)
		close(ended)
	}
}
