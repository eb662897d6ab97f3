// Package spread is the job that applies a notice of a network to more tokens than one call
// should wait for, as it is stored.
package spread

import (
	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/internal/tlv"
	"github.com/cardvault/cardvault/network"
	"github.com/google/uuid"
)

// A Spread is a notice with how far it has come. It goes through all network tokens of the
// vault in the order of their row keys, because an index by hash has no places to go on from.
type Spread struct {
	Notice network.Notice // its Token names the network
	From   uuid.UUID      // row key of the last network token that was looked at
}

const (
	tagNetwork = iota + 1
	tagFrom
	tagToken
	tagKey
	tagKind
	tagAt
	tagBy
	tagSchemeCode
	tagArt
	tagLastFour // of a card, and that there is one
	tagMonth
	tagYear
	tagSource // of a failure, and that there is one
	tagCode
	tagFailure
)

func (s *Spread) fields(f *tlv.Fields) {
	n := &s.Notice
	tlv.Text(f, tagNetwork, &n.Token.Network)
	f.Array(tagFrom, s.From[:])

	tlv.Text(f, tagToken, &n.Token.ID)
	tlv.Text(f, tagKey, &n.Token.IdempotencyKey)
	tlv.Uint(f, tagKind, &n.Kind)
	f.Time(tagAt, &n.OccurredAt)
	tlv.UintFrom(f, tagBy, &n.By, network.OwnerIssuer)
	tlv.Text(f, tagSchemeCode, &n.SchemeCode)
	tlv.Text(f, tagArt, &n.Art)

	if f.Has(tagLastFour, n.Card != nil) {
		if n.Card == nil {
			n.Card = new(network.CardState)
		}
		tlv.Text(f, tagLastFour, &n.Card.LastFour)
		tlv.Uint(f, tagMonth, &n.Card.Expiry.Month)
		tlv.Uint(f, tagYear, &n.Card.Expiry.Year)
	}
	if f.Has(tagSource, n.Failure != nil) {
		if n.Failure == nil {
			n.Failure = new(network.Error)
		}
		tlv.Uint(f, tagSource, &n.Failure.Source)
		tlv.Text(f, tagCode, &n.Failure.Code)
		tlv.Text(f, tagFailure, &n.Failure.SchemeCode)
	}
}

// Encode returns what Decode reads.
func (s *Spread) Encode() []byte { return tlv.Encode(s.fields) }

// Decode returns the spread that Encode wrote.
func Decode(plain []byte) (*Spread, error) {
	s := new(Spread)
	return s, ledger.Decode(plain, s.fields)
}
