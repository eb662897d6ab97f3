package reseal

import (
	"context"
	"time"

	"github.com/cardvault/cardvault/internal/jobs"
	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/internal/seal"
)

// searchedUntil returns until when a process that has not followed yet may search under a
// former lookup key: the zero time without one under which hashes are still made.
func searchedUntil(k *seal.Keys) time.Time {
	if since := k.SearchedBoth(); !since.IsZero() {
		return since.Add(settled)
	}
	return time.Time{}
}

// advanceLookup takes the next step of a rotation of the lookup key, as advance does. All
// records have hashes under both keys before any process searches under the new one. That waits
// for damaged records too, since they would not be found: their names could be taken again, and
// deliveries that wait for a damaged one would never be sent. Records keep both hashes until no
// process searches under the former key. It is destroyed once a pass has found no hash of it,
// unless a damaged record has one.
func (s *Sealer) advanceLookup(ctx context.Context, j *jobs.Job, r *round) (further bool, err error) {
	keys := s.Ledger.Box.Keys()
	switch until := searchedUntil(keys); {
	case !keys.LookupRotating():
		return false, nil
	case ledger.Now().Before(until), until.IsZero() && r.damaged > 0:
		return false, nil
	case keys.Lookups.Pending():
		return s.take(ctx, j, s.Ledger.AdvanceLookup, settled, "records are searched with the new lookup key")
	case !until.IsZero():
		return s.take(ctx, j, s.Ledger.AdvanceLookup, time.Microsecond, "former hashes are erased")
	}
	return s.take(ctx, j, s.Ledger.AdvanceLookup, 0, "the former lookup key was destroyed")
}
