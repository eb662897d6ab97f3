package reseal

import (
	"context"
	"slices"

	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/internal/seal"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// countRows bounds the records that are read in one View to count them.
const countRows = 256

// A Count says how many records are sealed under which term.
type Count struct {
	Records map[uint32]map[store.Kind]int64 // by term; a record with parts of two terms counts in both
	Prints  map[uint32]map[store.Kind]int64 // by term of their fingerprints, likewise
	Lookups map[uint32]map[store.Kind]int64 // by term of their other hashes, likewise
	Unread  int64                           // records whose terms cannot be read
}

// Count reads all records, in the order of their row keys. Each record that exists all the
// while counts once, by the terms that it has when it is read.
func (s *Sealer) Count(ctx context.Context) (*Count, error) {
	c := &Count{Records: map[uint32]map[store.Kind]int64{}, Prints: map[uint32]map[store.Kind]int64{}, Lookups: map[uint32]map[store.Kind]int64{}}
	for kind, from := ledger.KindMeta+1, uuid.Nil; kind != 0; {
		var rows []*store.Record
		err := s.Ledger.View(ctx, func(tx store.ReadTx) (err error) {
			for range readKinds {
				if rows = nil; !ledger.OfSums(kind) {
					rows, err = tx.Scan(kind, from, countRows)
				}
				if len(rows) > 0 || err != nil || kind == 0 {
					return err
				}
				kind, from = kind+1, uuid.Nil // 0 after the last
			}
			return nil
		})
		if err != nil {
			return nil, err
		}

		for _, r := range rows {
			c.add(r)
			s.countLookups(c, r)
			if err := s.countPrints(ctx, c, r); err != nil {
				return nil, err
			}
			from = r.ID
		}
	}
	return c, nil
}

func (c *Count) add(r *store.Record) {
	shown, sealedShown := seal.TermOf(r.Shown)
	secret, sealedSecret := seal.TermOf(r.Secret)
	if r.Version == 0 || !sealedShown && len(r.Shown) > 0 || !sealedSecret && len(r.Secret) > 0 {
		c.Unread++
		return
	}
	if sealedShown {
		tallied(c.Records, shown, r.Kind)
	}
	if sealedSecret && !(sealedShown && secret == shown) {
		tallied(c.Records, secret, r.Kind)
	}
}

func tallied(to map[uint32]map[store.Kind]int64, term uint32, kind store.Kind) {
	if to[term] == nil {
		to[term] = map[store.Kind]int64{}
	}
	to[term][kind]++
}

// countLookups counts the terms of other hashes, which records say in clear.
func (s *Sealer) countLookups(c *Count, r *store.Record) {
	for _, term := range s.Ledger.HashTerms(r) {
		tallied(c.Lookups, term, r.Kind)
	}
	if slices.Contains(s.Named, r.Kind) {
		tallied(c.Lookups, s.Ledger.Box.Keys().Lookups[0].Number, r.Kind)
	}
}

// countPrints counts the terms of fingerprints. A record is opened only if there was another
// term than the first.
func (s *Sealer) countPrints(ctx context.Context, c *Count, r *store.Record) error {
	care := s.Cares[r.Kind]
	if care.Prints == nil || r.Version == 0 {
		return nil
	}
	terms := s.Ledger.Box.Keys().Fingerprints.Hashing()
	if len(s.Ledger.Box.Keys().Fingerprints) > 1 {
		var err error
		if terms, err = care.Prints(ctx, r); err != nil && !ledger.Unreadable(err) {
			return err
		}
	}
	for _, term := range terms {
		tallied(c.Prints, term, r.Kind)
	}
	return nil
}
