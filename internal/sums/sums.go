// Package sums adds up the records of a vault, by account and kind. A record has an element, which
// is a MAC of it. A sum is the addition of elements mod 2^128, with a count: so neither the order
// of writes matters nor the process that makes them, and a record that is removed is subtracted.
package sums

import (
	"cmp"
	"encoding/binary"
	"errors"
	"math/bits"
	"slices"

	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// ElementSize is the size of an element, in bytes.
const ElementSize = 16

// A Sum is the sum of elements, and their number, which is negative in a difference that removes
// more than it adds. The zero value is the sum of none.
type Sum struct {
	hi, lo uint64
	Count  int64
}

// Of returns the sum of one element.
func Of(element [ElementSize]byte) Sum {
	return Sum{binary.BigEndian.Uint64(element[:]), binary.BigEndian.Uint64(element[8:]), 1}
}

// Plus returns the sum of both.
func (s Sum) Plus(t Sum) Sum {
	lo, carry := bits.Add64(s.lo, t.lo, 0)
	hi, _ := bits.Add64(s.hi, t.hi, carry)
	return Sum{hi, lo, s.Count + t.Count}
}

// Minus returns the sum without t.
func (s Sum) Minus(t Sum) Sum {
	lo, borrow := bits.Sub64(s.lo, t.lo, 0)
	hi, _ := bits.Sub64(s.hi, t.hi, borrow)
	return Sum{hi, lo, s.Count - t.Count}
}

// A Place names the records that are added up together. Records of the whole vault have no account.
type Place struct {
	Account uuid.UUID
	Kind    store.Kind
}

// A Set holds sums by place. A place that it lacks has the zero Sum.
type Set map[Place]Sum

// Add adds a sum at a place.
func (s Set) Add(at Place, sum Sum) { s.set(at, s[at].Plus(sum)) }

// AddAll adds the sums of another set.
func (s Set) AddAll(other Set) {
	for at, sum := range other {
		s.Add(at, sum)
	}
}

// Subtract subtracts the sums of another set.
func (s Set) Subtract(other Set) {
	for at, sum := range other {
		s.set(at, s[at].Minus(sum))
	}
}

func (s Set) set(at Place, sum Sum) {
	if sum == (Sum{}) {
		delete(s, at)
		return
	}
	s[at] = sum
}

// Places returns the places in the order of accounts and kinds.
func (s Set) Places() []Place {
	places := make([]Place, 0, len(s))
	for at := range s {
		places = append(places, at)
	}
	slices.SortFunc(places, func(a, b Place) int {
		return cmp.Or(slices.Compare(a.Account[:], b.Account[:]), cmp.Compare(a.Kind, b.Kind))
	})
	return places
}

// EntrySize is what a place takes in the text of a set, in bytes.
const EntrySize = 16 + 1 + 16 + 8

// Append appends the text of the set to b, in no order.
func (s Set) Append(b []byte) []byte {
	for at, sum := range s {
		b = append(append(b, at.Account[:]...), byte(at.Kind))
		b = binary.BigEndian.AppendUint64(b, sum.hi)
		b = binary.BigEndian.AppendUint64(b, sum.lo)
		b = binary.BigEndian.AppendUint64(b, uint64(sum.Count))
	}
	return b
}

// ErrMalformed is returned for a text that Append has not written.
var ErrMalformed = errors.New("sums: the text of a set is malformed")

// Parse reads what Append has written.
func Parse(b []byte) (Set, error) {
	if len(b)%EntrySize != 0 {
		return nil, ErrMalformed
	}
	s := make(Set, len(b)/EntrySize)
	for ; len(b) > 0; b = b[EntrySize:] {
		at := Place{uuid.UUID(b[:16]), store.Kind(b[16])}
		if _, twice := s[at]; twice {
			return nil, ErrMalformed
		}
		s[at] = Sum{binary.BigEndian.Uint64(b[17:]), binary.BigEndian.Uint64(b[25:]), int64(binary.BigEndian.Uint64(b[33:]))}
	}
	return s, nil
}
