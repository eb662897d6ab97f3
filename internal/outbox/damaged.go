package outbox

import (
	"errors"
	"maps"
	"sync"
	"time"

	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// A recordSet remembers records at the version at which they were seen. The zero value is
// ready; it is safe for concurrent use.
type recordSet struct {
	mu       sync.Mutex
	versions map[uuid.UUID]uint64 // mu
}

func (c *recordSet) add(r *store.Record) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.versions == nil {
		c.versions = map[uuid.UUID]uint64{}
	}
	c.versions[r.ID] = r.Version
}

func (c *recordSet) has(r *store.Record) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	version, ok := c.versions[r.ID]
	return ok && version == r.Version
}

func (c *recordSet) reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.versions)
}

func (c *recordSet) all() map[uuid.UUID]uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.versions)
}

// An unread remembers records that are due and could not be read, so that they take neither
// places nor time of others in each batch. It forgets them all after unreadTime. The zero
// value is ready; it is safe for concurrent use.
type unread struct {
	recordSet
	since time.Time // recordSet.mu: when it was last empty
}

const (
	unreadTime = 5 * time.Minute
	unreadMost = 1 << 16
)

// add remembers a record.
func (u *unread) add(r *store.Record) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.versions) == 0 || len(u.versions) >= unreadMost {
		u.versions, u.since = map[uuid.UUID]uint64{}, time.Now()
	}
	u.versions[r.ID] = r.Version
}

// count returns the number of remembered records. After unreadTime it drops them all, for
// another look.
func (u *unread) count() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	if time.Since(u.since) > unreadTime {
		clear(u.versions)
	}
	return len(u.versions)
}

// damagedMost bounds the unreadable deliveries that a transaction passes over.
const damagedMost = 1024

// firstWith returns the first delivery with a hash, or nil. It skips the delivery with the
// id except, and damaged ones.
func firstWith(tx store.ReadTx, hash []byte, except uuid.UUID, damaged *recordSet) (*store.Record, error) {
	known := damaged.all()
	line, err := tx.Lookup(KindDelivery, hash, min(len(known), damagedMost)+2)
	if errors.Is(err, ledger.ErrDamaged) { // a record that was found by mistake holds back nothing
		err = nil
	}
	for _, r := range line {
		if r.ID != except && known[r.ID] != r.Version {
			return r, err
		}
	}
	return nil, err
}
