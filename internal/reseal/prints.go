package reseal

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/cardvault/cardvault/internal/jobs"
	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/internal/seal"
	"github.com/cardvault/cardvault/store"
)

// unprinted reports whether a record lacks fingerprints of the present keys, or has others whose
// time is over. If no rotation is under way only a record that was restored can: it is
// looked at if it is sealed anew in any case.
func (s *Sealer) unprinted(ctx context.Context, r *store.Record, care Care, anew bool) (bool, error) {
	series := s.Ledger.Box.Keys().Fingerprints
	if care.Prints == nil || len(series) == 1 || !series.Rotating() && !anew {
		return false, nil
	}
	terms, err := care.Prints(ctx, r)
	if err != nil || len(terms) == 0 {
		return false, err
	}
	if !series.Pending() && ledger.Now().Before(shownUntil(series)) {
		return false, nil
	}
	return !slices.Equal(terms, series.Hashing()), nil
}

// shownUntil returns until when a process that has not followed yet may show fingerprints of a
// former key: the zero time without one.
func shownUntil(series seal.Series) time.Time {
	if closed := series.Former(); !closed.IsZero() {
		return closed.Add(settled)
	}
	return time.Time{}
}

// advance takes the next step of a rotation of the fingerprint key, after a pass that has left
// nothing. All of that pass was done since the last step, because each step has another round
// begin. No clock matters for that: nothing is written with the keys of before the step. It
// reports whether another round has begun, which erases former fingerprints once no process
// shows them any more. A former key is not destroyed as long as a damaged record may need it
// once it is restored.
func (s *Sealer) advance(ctx context.Context, j *jobs.Job, r *round) (further bool, err error) {
	series := s.Ledger.Box.Keys().Fingerprints
	further = series.Pending()
	if !series.Rotating() || !further && (r.damaged > 0 || r.pass.Before(shownUntil(series))) {
		return false, nil
	}
	if further {
		return s.take(ctx, j, s.Ledger.AdvanceFingerprint, settled, "fingerprints are made with the new key")
	}
	return s.take(ctx, j, s.Ledger.AdvanceFingerprint, 0, "the former fingerprint key was destroyed")
}

// take takes a step of a rotation, and logs it. Unless the step is the last one another round
// begins after a time, and take returns true.
func (s *Sealer) take(ctx context.Context, j *jobs.Job, step func(context.Context, func(store.Tx) error) error, after time.Duration, done string) (further bool, err error) {
	further = after > 0
	due := ledger.Now().Add(after)
	err = step(ctx, func(tx store.Tx) error {
		same, err := ledger.Same(tx, j.Record)
		switch {
		case err != nil:
			return err
		case !same:
			return errBegunAnew
		case further:
			return s.begin(tx, due)
		}
		return nil
	})

	switch {
	case errors.Is(err, errBegunAnew), errors.Is(err, store.ErrConflict):
		return true, nil
	case err != nil:
		return true, err
	case further:
		s.jobs.Due(&store.Record{Kind: s.Round, ID: roundID, Due: due})
	}
	s.Log.Info(done)
	return further, nil
}
