package outbox

import (
	"context"
	"sync"

	"github.com/google/uuid"
)

// receivers returns the webhooks of an account as they were last read. An event that is
// written for them compares their version: see [Parcel.Put].
func (o *Outbox) receivers(ctx context.Context, account uuid.UUID) (*Receivers, error) {
	if known := o.known.of(account); known != nil {
		return known, nil
	}
	r, err := o.config.Source.Receivers(ctx, account)
	if err != nil {
		return nil, err
	}
	o.known.set(account, r)
	return r, nil
}

// maxKnown bounds the accounts whose receivers are cached. Beyond it the cache starts over.
const maxKnown = 4096

// A roll holds the receivers of accounts as they were last read. The zero value is
// ready.
type roll struct {
	mu sync.RWMutex
	m  map[uuid.UUID]*Receivers // mu
}

func (r *roll) of(account uuid.UUID) *Receivers {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.m[account]
}

func (r *roll) set(account uuid.UUID, to *Receivers) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.m == nil || len(r.m) >= maxKnown {
		r.m = map[uuid.UUID]*Receivers{}
	}
	r.m[account] = to
}

func (r *roll) forget(account uuid.UUID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.m, account)
}
