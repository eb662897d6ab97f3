package outbox

import (
	"context"
	"errors"

	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/store"
)

// An erasure is an ended delivery that waits to be erased. Its fields belong to the
// goroutine that has a place in shift.erasing.
type erasure struct {
	rec    *store.Record
	hash   []byte // of deliveries of the token
	done   bool   // it was tried
	erased bool
	err    error
}

// erase erases a delivery, in one write with concurrent erasures for other tokens. It
// returns false if settle has to look closer: another delivery is held back by this one, or
// this one has changed.
func (s *shift) erase(ctx context.Context, p *pending) (ok bool, err error) {
	e := &erasure{rec: p.rec, hash: s.orderedHash(p)}
	s.mu.Lock()
	s.erasures = append(s.erasures, e)
	s.mu.Unlock()

	s.erasing <- struct{}{}
	defer func() { <-s.erasing }()
	if e.done {
		return e.erased, e.err
	}

	s.mu.Lock()
	all := s.erasures // at most one for each token that is worked on
	s.erasures = nil
	s.mu.Unlock()

	err = s.rows.Update(ctx, ledger.Step, func(tx store.Tx) error {
		for _, e := range all {
			if e.erased, err = s.lastOf(tx, e); err != nil {
				return err
			}
			if e.erased {
				ledger.Delete(tx, e.rec)
			}
		}
		return nil
	})

	// After a conflict settle looks closer at each.
	conflict := errors.Is(err, store.ErrConflict)
	for _, e := range all {
		e.done = true
		if err != nil {
			e.erased = false
		}
		if !conflict {
			e.err = err
		}
	}
	return e.erased, e.err
}

// lastOf reports whether a delivery is as it was, and holds back no other.
func (s *shift) lastOf(tx store.ReadTx, e *erasure) (bool, error) {
	if ok, err := ledger.Same(tx, e.rec); err != nil || !ok {
		return false, err
	}
	first, err := firstWith(tx, e.hash, e.rec.ID, s.damaged)
	return err == nil && (first == nil || first.Class != Held), err
}
