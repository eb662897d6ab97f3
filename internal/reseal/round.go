package reseal

import (
	"time"

	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/internal/tlv"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// A round seals the records of former terms anew.
type round struct {
	term   uint32    // the present one when it began; 0: it has not begun
	began  time.Time // zero once it has ended
	passes uint64    // that have ended
	pass   time.Time // when the present pass began; zero: it has not

	kind store.Kind // of the next record; 0: the pass has gone through all
	from uuid.UUID  // row key of the last record before it

	sealed        uint64 // records in this round
	left, damaged uint64 // records in this pass

	clean bool // it has ended with a pass that found no record of a former term, and none that is damaged
}

const (
	roundTerm = iota + 1
	roundBegan
	roundPasses
	roundPass
	roundKind
	roundFrom
	roundSealed
	roundLeft
	roundDamaged
	roundClean
)

func (r *round) fields(f *tlv.Fields) {
	tlv.Uint(f, roundTerm, &r.term)
	f.Time(roundBegan, &r.began)
	tlv.Uint(f, roundPasses, &r.passes)
	f.Time(roundPass, &r.pass)
	tlv.Uint(f, roundKind, &r.kind)
	f.Array(roundFrom, r.from[:])
	tlv.Uint(f, roundSealed, &r.sealed)
	tlv.Uint(f, roundLeft, &r.left)
	tlv.Uint(f, roundDamaged, &r.damaged)
	f.Bool(roundClean, &r.clean)
}

func (r *round) encode() []byte { return tlv.Encode(r.fields) }

// decode returns the round that encode wrote. Anything else is a round that has not begun:
// nothing is lost then but its place.
func decode(plain []byte) *round {
	r := new(round)
	if ledger.Decode(plain, r.fields) != nil {
		return new(round)
	}
	return r
}

// over returns the round when it has ended with a pass that has left nothing.
func (r *round) over() *round { return &round{term: r.term, sealed: r.sealed, clean: r.damaged == 0} }
