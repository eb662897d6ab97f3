package boltstore

import (
	"bytes"
	"slices"
	"sync"

	bolt "go.etcd.io/bbolt"

	"github.com/cardvault/cardvault/store"
)

// A View leaves its transaction of bbolt to the next one, since beginning and ending one costs
// as much as finding a row. Snapshots rest only while no writable transaction is open or about
// to be: so each shows the last commit, keeps no page from becoming free, and no commit that
// needs a longer mapping waits for it.

// restingSnapshots limits them: about as many are used at once.
const restingSnapshots = 16

// A snapshot is a read-only transaction, used by one View at a time.
type snapshot struct {
	tx    *bolt.Tx
	round uint64 // of resting when it began
	rows  []kindRows
}

// A kindRows finds records of a kind by id.
type kindRows struct {
	kind store.Kind
	cur  *bolt.Cursor // nil: the kind has no records
}

// row returns a record as it is in the file, nil if it is not there.
func (s *snapshot) row(kind store.Kind, id []byte) []byte {
	at := slices.IndexFunc(s.rows, func(r kindRows) bool { return r.kind == kind })
	if at < 0 {
		name, found := rowsBucket(kind), kindRows{kind: kind}
		if b := s.tx.Bucket(name[:]); b != nil { // panics in a damaged file
			found.cur = b.Cursor()
		}
		at, s.rows = len(s.rows), append(s.rows, found)
	}

	if s.rows[at].cur == nil {
		return nil
	}
	key, raw := s.rows[at].cur.Seek(id)
	if !bytes.Equal(key, id) {
		return nil
	}
	return raw
}

// resting are the snapshots of a file that no View uses.
type resting struct {
	mu       sync.Mutex
	round    uint64   // rises when a writable transaction is about to begin, and when it has ended
	waiting  int      // writable transactions that are about to begin
	writable *bolt.Tx // the open one
	all      []*snapshot
}

// snapshot returns a transaction that shows the last commit.
func (h *handle) snapshot() (*snapshot, error) {
	h.resting.mu.Lock()
	round := h.resting.round
	if n := len(h.resting.all); n > 0 && !h.stuck.Load() {
		s := h.resting.all[n-1]
		h.resting.all[n-1], h.resting.all = nil, h.resting.all[:n-1]
		h.resting.mu.Unlock()
		return s, nil
	}
	h.resting.mu.Unlock()

	tx, err := h.begin(false)
	return &snapshot{tx: tx, round: round}, err
}

// rest has a snapshot rest, or ends it: if it may no longer show the last commit.
func (h *handle) rest(s *snapshot) {
	r := &h.resting
	r.mu.Lock()
	current := r.round == s.round && r.waiting == 0 && r.writable == nil && len(r.all) < restingSnapshots
	if current {
		r.all = append(r.all, s)
	}
	r.mu.Unlock()
	if !current {
		h.rollback(s.tx)
	}
}

// wake ends the snapshots that rest. None rests until wokenBy says that the transaction has
// ended for which this was called.
func (h *handle) wake() {
	r := &h.resting
	r.mu.Lock()
	r.round++
	r.waiting++
	all := slices.Clone(r.all)
	clear(r.all)
	r.all = r.all[:0]
	r.mu.Unlock()
	for _, s := range all {
		h.rollback(s.tx)
	}
}

// writes notes the writable transaction for which wake was called, nil if it did not begin.
func (h *handle) writes(tx *bolt.Tx) {
	h.resting.mu.Lock()
	defer h.resting.mu.Unlock()
	h.resting.waiting--
	if tx != nil {
		h.resting.writable = tx // another one may still be open if tx is nil
	}
}

// ended notes that a transaction has ended, in the case that it was writable.
func (h *handle) ended(tx *bolt.Tx) {
	h.resting.mu.Lock()
	defer h.resting.mu.Unlock()
	if tx != nil && h.resting.writable == tx {
		h.resting.round++
		h.resting.writable = nil
	}
}
