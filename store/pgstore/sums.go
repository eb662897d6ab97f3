package pgstore

import (
	"github.com/google/uuid"

	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/internal/sums"
)

// Sum implements [store.Summer] for the Updates of this Store. Other Stores of the schema show
// theirs to sums of their own.
func (s *Store) Sum(to store.Sums) (stop func()) { return s.summed.Add(to) }

// A summer shows the changes of groups to sums, and adds their records to the group.
type summer struct {
	*sums.List
	shown [2]store.Record // a change

	// The rows of the last group that was written with some, by id. A record of sums follows one
	// of them, or is new.
	last, next map[uuid.UUID]*row
}

// sum adds the records of sums to a group whose calls have run. The transaction checks that the
// rows which they follow are current. Each attempt has its own, since sums take a transaction
// that is not committed for one that may be.
func (s *summer) sum(g *group) error {
	s.Begin()
	s.next = nil
	for k, after := range g.overlay {
		before := g.stored(k)
		if before == after {
			continue
		}
		if !s.Wants() {
			return nil
		}
		s.Change(s.show(0, before), s.show(1, after))
	}

	records := s.Records(false)
	for _, r := range records {
		if was := s.last[r.ID]; (was == nil) != (r.Version == 1) || was != nil && was.version+1 != r.Version {
			records = s.Records(true)
			break
		}
	}

	for _, r := range records {
		after := rowOf(r)
		if after == nil {
			return store.ErrInvalid
		}
		k := g.keyOf(after)
		g.known[k], g.relied[k] = s.last[r.ID], struct{}{}
		g.set(k, after)
		if s.next == nil {
			s.next = map[uuid.UUID]*row{}
		}
		s.next[r.ID] = after
	}
	return nil
}

// committed is called once the group is written.
func (s *summer) committed() {
	s.Committed()
	if s.next != nil {
		s.last, s.next = s.next, nil
	}
}

// show returns a row as a record, in one of two places, which the row backs.
func (s *summer) show(place int, r *row) *store.Record {
	if r == nil {
		return nil
	}
	rec := &s.shown[place]
	*rec = store.Record{Kind: r.kind, ID: r.id, Account: r.account, Parent: r.parent}
	if r.damaged {
		return rec
	}
	rec.Class, rec.Version, rec.Shown, rec.Secret = r.class, r.version, r.shown, r.secret
	if r.due.Valid {
		rec.Due = r.due.Time
	}
	return rec
}
