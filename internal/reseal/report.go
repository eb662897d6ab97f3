package reseal

import (
	"context"

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
	Unread  int64                           // records whose terms cannot be read
}

// Count reads all records, in the order of their row keys. Each record that exists all the
// while counts once, by the terms that it has when it is read.
func (s *Sealer) Count(ctx context.Context) (*Count, error) {
	c := &Count{Records: map[uint32]map[store.Kind]int64{}}
	for kind, from := ledger.KindMeta+1, uuid.Nil; kind != 0; {
		var rows []*store.Record
		err := s.Ledger.View(ctx, func(tx store.ReadTx) (err error) {
			for range readKinds {
				if rows, err = tx.Scan(kind, from, countRows); len(rows) > 0 || err != nil || kind == 0 {
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
		c.count(shown, r.Kind)
	}
	if sealedSecret && !(sealedShown && secret == shown) {
		c.count(secret, r.Kind)
	}
}

func (c *Count) count(term uint32, kind store.Kind) {
	if c.Records[term] == nil {
		c.Records[term] = map[store.Kind]int64{}
	}
	c.Records[term][kind]++
}
