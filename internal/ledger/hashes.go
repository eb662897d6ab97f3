package ledger

import (
	"errors"
	"slices"
	"time"

	"github.com/cardvault/cardvault/internal/seal"
	"github.com/cardvault/cardvault/store"
)

// Hashes returns the Lookup of a record under the present keys. Shown of the record is plain.
type Hashes func(r *store.Record, plain []byte) ([][]byte, error)

// outdated reports whether a record has other hashes than some keys make.
func (s *checkedStore) outdated(keys *seal.Keys, r *store.Record) bool {
	return len(keys.Lookups) > 1 && s.hashes[r.Kind] != nil && !keys.Findable(r.Lookup)
}

// Outdated reports whether a record has other hashes than the present keys make.
func (l *Ledger) Outdated(r *store.Record) bool { return l.store.outdated(l.Box.Keys(), r) }

// HashAnew makes the hashes of a record anew under the present keys, before it is sealed. Its
// shown part is plain.
func (l *Ledger) HashAnew(r *store.Record, plain []byte) error {
	hashes, err := l.config.Hashes[r.Kind](r, plain)
	if err != nil {
		return l.Named(r, err)
	}
	r.Lookup = hashes
	return nil
}

// HashTerms returns the numbers of the keys of a record's hashes, none for a kind that has no
// hashes of these keys.
func (l *Ledger) HashTerms(r *store.Record) (terms []uint32) {
	if l.config.Hashes[r.Kind] == nil {
		return nil
	}
	for _, hash := range r.Lookup {
		if term := l.Box.Keys().LookupTerm(hash); !slices.Contains(terms, term) {
			terms = append(terms, term)
		}
	}
	return terms
}

// searched returns an error with which a caller looks again, unless all records that have a
// value are found by this hash of it. The hash may be under a key that they need not have any
// more, because the caller was stopped after it had made the hash. Or this process does not
// follow, and has not looked for a minute whether another process has taken a step of a rotation.
// A hash finds all for two minutes after the step that has another key searched.
func (tx checkedReadTx) searched(kind store.Kind, hash []byte) error {
	if tx.s.hashes[kind] == nil {
		return nil
	}
	keys, at := tx.s.keys(), time.Now()
	if len(keys.Lookups) > 1 && !slices.Contains(keys.Lookups.Hashing(), keys.LookupTerm(hash)) {
		return errRehash
	}
	// One clock may be set back, and the other stands still while the machine sleeps.
	if f := tx.s.followed.Load(); f != nil && lately(at.Sub(*f)) && lately(at.Round(0).Sub(f.Round(0))) {
		return nil
	}
	_, err := tx.Get(KindMeta, countID(keys))
	if errors.Is(err, store.ErrNotFound) {
		return &outdated{keys.Generation, true}
	}
	asked := at                 // which stays off the heap for most calls
	tx.s.followed.Store(&asked) // a count that cannot be read has not moved
	return nil
}

func lately(since time.Duration) bool { return 0 <= since && since < time.Minute }
