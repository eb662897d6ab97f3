package reseal

import (
	"context"
	"errors"
	"slices"

	"github.com/cardvault/cardvault/internal/jobs"
	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/store"
)

// printed reports whether a record has the fingerprints of the present keys, and no others.
// Only while the key is rotated can one have others.
func (s *Sealer) printed(ctx context.Context, r *store.Record, care Care) (bool, error) {
	series := s.Ledger.Box.Keys().Fingerprints
	if care.Prints == nil || !series.Rotating() {
		return true, nil
	}
	terms, err := care.Prints(ctx, r)
	return len(terms) == 0 || slices.Equal(terms, series.Hashing()), err
}

// advance takes the next step of a rotation of the fingerprint key, after a pass that has left
// nothing. All of that pass was done since the last step, because each step has another round
// begin. No clock matters for that: nothing is written with the keys of before the step. It
// reports whether another round has begun, which erases former fingerprints; that waits until
// no process shows them any more. A former key is not destroyed as long as a damaged record
// may need it once it is restored.
func (s *Sealer) advance(ctx context.Context, j *jobs.Job, r *round) (further bool, err error) {
	series := s.Ledger.Box.Keys().Fingerprints
	further = series.Pending()
	if !series.Rotating() || !further && r.damaged > 0 {
		return false, nil
	}

	err = s.Ledger.AdvanceFingerprint(ctx, func(tx store.Tx) error {
		same, err := ledger.Same(tx, j.Record)
		switch {
		case err != nil:
			return err
		case !same:
			return errBegunAnew
		case further:
			return s.begin(tx, ledger.Now().Add(settled))
		}
		return nil
	})
	switch {
	case errors.Is(err, errBegunAnew):
		return true, nil
	case err != nil:
		return true, err
	case further:
		s.jobs.Due(&store.Record{Kind: s.Round, ID: roundID, Due: ledger.Now().Add(settled)})
		s.Log.Info("fingerprints are made with the new key")
	default:
		s.Log.Info("the former fingerprint key was destroyed")
	}
	return further, nil
}
