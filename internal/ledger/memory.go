package ledger

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/binary"
	"sync/atomic"

	"github.com/cardvault/cardvault/store"
)

// A Memory keeps values that were read from records of some kinds, until a record of one of
// these changes. It keeps none unless the store is a store.Counter. All methods may be
// called concurrently.
type Memory[V any] struct {
	ledger *Ledger
	kinds  []store.Kind
	slots  [1 << 10]atomic.Pointer[kept[V]]
}

type kept[V any] struct {
	key   [sha256.Size]byte
	state uint64
	value V
}

// NewMemory returns an empty Memory for values that depend on records of kinds alone.
func NewMemory[V any](l *Ledger, kinds ...store.Kind) *Memory[V] {
	return &Memory[V]{ledger: l, kinds: kinds}
}

// Of returns the value under a key, the digest of a secret. read returns the value if it is
// not kept, and must read it from the store. The value may be kept, and must not be changed.
func (m *Memory[V]) Of(ctx context.Context, key [sha256.Size]byte, read func() (V, error)) (V, error) {
	state := m.state(ctx)
	slot := &m.slots[binary.BigEndian.Uint16(key[:])%uint16(len(m.slots))]
	if k := slot.Load(); k != nil && state != 0 && k.state == state && subtle.ConstantTimeCompare(k.key[:], key[:]) == 1 {
		return k.value, nil
	}

	value, err := read()
	if err == nil && state != 0 {
		slot.Store(&kept[V]{key, state, value})
	}
	return value, err
}

// state returns a number that differs after every change, or 0 if a value has to be read.
func (m *Memory[V]) state(ctx context.Context) (sum uint64) {
	counter, ok := m.ledger.store.Store.(store.Counter)
	if !ok || m.ledger.Closed() || ctx.Err() != nil {
		return 0
	}
	for _, kind := range m.kinds {
		n := counter.Changes(kind)
		if n == 0 {
			return 0
		}
		sum += n // no number ever falls, so the sum stands for all of them
	}
	return sum
}
