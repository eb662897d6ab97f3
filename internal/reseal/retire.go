package reseal

import (
	"context"
	"errors"
	"time"

	"github.com/cardvault/cardvault/internal/jobs"
	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/internal/seal"
	"github.com/cardvault/cardvault/store"
)

// A Rest is the reason why the key of a closed term is not destroyed yet.
type Rest struct {
	Term       uint32
	Records    int64 // with a part under the term
	Unreadable int64 // whose terms cannot be read
	Until      time.Time
}

// Retire closes a former term, and destroys its key as soon as nothing needs it: a Rest says
// that something does, and a round goes on then. Nothing is written under a closed term, so
// a count of none is final.
func (s *Sealer) Retire(ctx context.Context, term uint32) (*Rest, error) {
	t, err := s.Ledger.CloseTerm(ctx, term)
	if err != nil || t.State == seal.Destroyed {
		return nil, err
	}
	s.Woken()

	count, err := s.Count(ctx)
	if err != nil {
		return nil, err
	}
	rest := &Rest{Term: term, Unreadable: count.Unread, Until: s.until(t)}
	for _, n := range count.Records[term] {
		rest.Records += n
	}
	switch {
	case rest.Records+rest.Unreadable > 0:
		return rest, s.again(ctx, true)
	case ledger.Now().Before(rest.Until):
		return rest, nil
	}

	err = s.Ledger.DestroyTerms(ctx, []uint32{term}, func(store.Tx) error { return nil })
	if err == nil {
		s.destroyed(term)
	}
	return nil, err
}

// until returns when nothing outside of the store needs the key of a closed term any more.
func (s *Sealer) until(t *seal.Term) time.Time { return t.Closed.Add(s.Keep) }

func (s *Sealer) destroyed(terms ...uint32) {
	s.Log.Info("keys of former terms were destroyed", "terms", terms)
}

// ripe returns the closed terms whose keys may be destroyed now, and the time when the next
// may: zero if no other term is closed.
func (s *Sealer) ripe() (now []uint32, next time.Time) {
	at := ledger.Now()
	for _, t := range s.Ledger.Box.Keys().Masters {
		until := s.until(&t)
		switch {
		case t.State != seal.Closed:
		case !at.Before(until):
			now = append(now, t.Number)
		case next.IsZero() || until.Before(next):
			next = until
		}
	}
	return now, next
}

// errBegunAnew is the error of a round that another has taken the place of.
var errBegunAnew = errors.New("reseal: the round has begun anew")

// destroy destroys the keys of ripe terms after a round that is clean. That round began after
// the terms were closed, because closing a term has a round begin anew.
func (s *Sealer) destroy(ctx context.Context, j *jobs.Job, r *round) error {
	ripe, next := s.ripe()
	if len(ripe) > 0 {
		err := s.Ledger.DestroyTerms(ctx, ripe, func(tx store.Tx) error {
			same, err := ledger.Same(tx, j.Record)
			if err == nil && !same {
				err = errBegunAnew
			}
			return err
		})
		if errors.Is(err, errBegunAnew) {
			return nil
		}
		if err != nil {
			return err
		}
		s.destroyed(ripe...)
	}
	return s.keep(ctx, j, r, next)
}
