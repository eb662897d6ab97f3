package seal

import (
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"time"

	"github.com/google/uuid"
)

// A Print is the fingerprint of a card number under one term of the fingerprint key.
type Print struct {
	Term uint32 // 0: absent
	Sum  [sha256.Size]byte
}

// Prints are the fingerprints of one card number: one, or two while the key is rotated.
type Prints [2]Print

// Prints returns the fingerprints of a card number in an account under the active key and, if
// there is one, the pending key of k.
func (b *Box) Prints(k *Keys, account uuid.UUID, pan []byte) (all Prints) {
	macs := b.account(k, account).fingerprints
	for i, term := range k.Fingerprints.Hashing() {
		all[i] = Print{term, macs[term].sum(pan)}
	}
	return all
}

// Compare reports whether fingerprints are those of a card number in an account. It is not
// known if none of their keys is there any more, or yet.
func (b *Box) Compare(p *Prints, account uuid.UUID, pan []byte) (same, known bool) {
	macs := b.account(b.Keys(), account).fingerprints
	for _, f := range p {
		if mac := macs[f.Term]; mac != nil {
			return f.Sum == mac.sum(pan), true
		}
	}
	return false, false
}

// Under returns the fingerprint of a term, or nil.
func (p *Prints) Under(term uint32) *Print {
	if i := slices.IndexFunc(p[:], func(f Print) bool { return f.Term == term }); i >= 0 {
		return &p[i]
	}
	return nil
}

// Shown returns the fingerprint under the active key of k, or the first one.
func (p *Prints) Shown(k *Keys) [sha256.Size]byte {
	if f := p.Under(k.Fingerprints.Active().Number); f != nil {
		return f.Sum
	}
	return p[0].Sum
}

// Has reports whether a fingerprint is one of p.
func (p *Prints) Has(sum [sha256.Size]byte) bool {
	return slices.ContainsFunc(p[:], func(f Print) bool { return f.Term != 0 && f.Sum == sum })
}

// Terms returns the terms of p.
func (p *Prints) Terms() (all []uint32) {
	for _, f := range p {
		if f.Term != 0 {
			all = append(all, f.Term)
		}
	}
	return all
}

// Only returns the fingerprints of p under some terms.
func (p *Prints) Only(terms []uint32) (all Prints) {
	n := 0
	for _, f := range p {
		if slices.Contains(terms, f.Term) {
			all[n] = f
			n++
		}
	}
	return all
}

// Encode appends all except the first sum, nothing for a fingerprint of the first term alone.
// A term takes 4 bytes. For two fingerprints the second term and its sum follow.
func (p *Prints) Encode(b []byte) []byte {
	if p[0].Term <= 1 && p[1].Term == 0 {
		return b
	}
	b = binary.BigEndian.AppendUint32(b, p[0].Term)
	if p[1].Term == 0 {
		return b
	}
	b = binary.BigEndian.AppendUint32(b, p[1].Term)
	return append(b, p[1].Sum[:]...)
}

// DecodePrints returns the Prints of a first sum and of the bytes that Encode has appended.
func DecodePrints(first [sha256.Size]byte, rest []byte) (p Prints, ok bool) {
	switch {
	case first == [sha256.Size]byte{}: // none was kept
		return p, len(rest) == 0
	case len(rest) == 0:
		return Prints{{1, first}}, true
	case len(rest) != 4 && len(rest) != 8+sha256.Size:
		return p, false
	}
	p[0] = Print{binary.BigEndian.Uint32(rest), first}
	if len(rest) > 4 {
		p[1] = Print{binary.BigEndian.Uint32(rest[4:]), [sha256.Size]byte(rest[8:])}
	}
	return p, p[0].Term != 0
}

// Hashing returns the terms of a series under which hashes are made: the active one and,
// during a rotation, another.
func (s Series) Hashing() (terms []uint32) {
	for i := range s {
		if s[i].hashes() {
			terms = append(terms, s[i].Number)
		}
	}
	return terms
}

// hashes reports whether hashes are made under a key.
func (t *Term) hashes() bool { return t.State == Active || t.State == Pending || t.State == Readable }

// Rotating reports whether a rotation of a series is under way: a key is pending, or there is
// one of before.
func (s Series) Rotating() bool { return s.Pending() || s.former() != nil }

// Pending reports whether the last key of a series is pending.
func (s Series) Pending() bool { return s[len(s)-1].State == Pending }

// Former returns when the last rotation closed the former key, if that is there still, else
// the zero time.
func (s Series) Former() (closed time.Time) {
	if t := s.former(); t != nil {
		closed = t.Closed
	}
	return closed
}

func (s Series) former() *Term {
	if i := slices.IndexFunc(s, func(t Term) bool { return t.State == Closed }); i >= 0 {
		return &s[i]
	}
	return nil
}

// Steps counts the steps of rotations after which nothing may be written any more, nor searched
// for long, that was hashed with the keys of before: a pending key, another active one, and a
// closed lookup key.
func (k *Keys) Steps() (n uint32) {
	for _, s := range []Series{k.Fingerprints, k.Lookups} {
		n += uint32(len(s)-1) + s.Active().Number - 1
	}
	for _, t := range k.Lookups {
		if t.State == Closed || t.State == Destroyed {
			n++
		}
	}
	return n
}

// NextFingerprint returns a copy of k with a pending fingerprint key, or nil if there is no
// room.
func (k *Keys) NextFingerprint(at time.Time, room int) *Keys {
	if k.terms() >= room {
		return nil
	}
	next := k.after()
	next.Fingerprints.begin(Pending, at)
	return next
}

// AdvanceFingerprint returns a copy of k with the next step of a rotation: the pending
// fingerprint key becomes the active one or, if none is pending, former ones are destroyed.
func (k *Keys) AdvanceFingerprint(at time.Time) *Keys {
	next := k.after()
	pending := next.Fingerprints.Pending()
	for i := range next.Fingerprints {
		switch t := &next.Fingerprints[i]; {
		case pending && t.State == Active:
			t.State, t.Closed = Closed, at
		case pending && t.State == Pending:
			t.State = Active
		case !pending && t.State == Closed:
			t.State, t.Key, t.Destroyed = Destroyed, Key{}, at
		}
	}
	return next
}
