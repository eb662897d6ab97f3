package removal

import (
	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/internal/tlv"
	"github.com/google/uuid"
)

// A Retention is the job that deletes the records of an account at an age.
type Retention struct {
	From uuid.UUID // row key to go on from
}

func (r *Retention) fields(f *tlv.Fields) { tlv.ID(f, 1, &r.From) }

// Encode returns what the record of the job holds.
func (r *Retention) Encode() []byte { return tlv.Encode(r.fields) }

// DecodeRetention returns the job of a record.
func DecodeRetention(plain []byte) (*Retention, error) {
	r := new(Retention)
	return r, ledger.Decode(plain, r.fields)
}
