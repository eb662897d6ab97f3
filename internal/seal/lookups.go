package seal

import (
	"encoding/binary"
	"slices"
	"time"

	"github.com/cardvault/cardvault/internal/hiding"
	"github.com/google/uuid"
)

// LookupSize is the size of a hash under the first lookup key, in bytes. The number of a later
// key, in 4 bytes, stands before its hashes, so that rows say which key they need.
const LookupSize = 16

// Lookup returns the keyed hash under the active key, by which an account finds value.
func (b *Box) Lookup(account uuid.UUID, purpose string, value []byte) []byte {
	k := b.Keys()
	return b.lookup(k, account, k.Lookups.Active().Number, purpose, value)
}

// Lookups returns the hashes by which value can be found: under the active key and, during a
// rotation, another one.
func (b *Box) Lookups(account uuid.UUID, purpose string, value []byte) (all [][]byte) {
	k := b.Keys()
	for i := range k.Lookups {
		if k.Lookups[i].hashes() {
			all = append(all, b.lookup(k, account, k.Lookups[i].Number, purpose, value))
		}
	}
	return all
}

func (b *Box) lookup(k *Keys, account uuid.UUID, number uint32, purpose string, value []byte) []byte {
	sum := b.account(k, account).lookups[number].labelled(purpose, value)
	if number == k.Lookups[0].Number {
		return sum[:LookupSize]
	}
	return append(binary.BigEndian.AppendUint32(nil, number), sum[:LookupSize]...)
}

// Stable returns a keyed hash of LookupSize bytes that no rotation changes: it is under the
// first lookup key, which is never destroyed.
func (b *Box) Stable(account uuid.UUID, purpose string, value []byte) []byte {
	k := b.Keys()
	return b.lookup(k, account, k.Lookups[0].Number, purpose, value)
}

// LookupTerm returns the number of the key of a hash, 0 for a hash that Lookup has not made.
func (k *Keys) LookupTerm(hash []byte) uint32 {
	switch len(hash) {
	case LookupSize:
		return k.Lookups[0].Number
	case LookupSize + 4:
		return binary.BigEndian.Uint32(hash)
	}
	return 0
}

// Findable reports whether some values have the hashes that Lookups makes: as many under each
// of the keys, and none under others. No hashes are right too.
func (k *Keys) Findable(hashes [][]byte) bool {
	under := k.Lookups.Hashing()
	left := len(hashes)
	for _, number := range under {
		n := 0
		for _, hash := range hashes {
			if k.LookupTerm(hash) == number {
				n++
			}
		}
		if left -= n; n*len(under) != len(hashes) {
			return false
		}
	}
	return left == 0
}

// Searched returns the hashes under the active key.
func (k *Keys) Searched(hashes [][]byte) (active [][]byte) {
	for _, hash := range hashes {
		if k.LookupTerm(hash) == k.Lookups.Active().Number {
			active = append(active, hash)
		}
	}
	return active
}

// NextLookup returns a copy of k with a pending lookup key, or nil if there is no room.
func (k *Keys) NextLookup(at time.Time, room int) *Keys {
	if k.terms() >= room {
		return nil
	}
	next := k.after()
	next.Lookups.begin(Pending, at)
	return next
}

// LookupRotating reports whether a rotation of the lookup key is under way. Hashes of a first
// key that is closed may be left: they harm no rotation, and no step waits for them.
func (k *Keys) LookupRotating() bool {
	return slices.ContainsFunc(k.Lookups[1:], func(t Term) bool { return t.State == Closed || t.State == Pending }) ||
		!k.SearchedBoth().IsZero()
}

// SearchedBoth returns when the last rotation had every process begin to search under another
// key, while records still have hashes under the former one too. Else it is the zero time.
func (k *Keys) SearchedBoth() time.Time {
	for _, t := range k.Lookups {
		if t.State == Readable {
			return t.Closed
		}
	}
	return time.Time{}
}

// AdvanceLookup returns a copy of k with the next step of a rotation. The pending key becomes
// the active one, and hashes are made under the former one still. Then they are not, and then
// the former one is destroyed, unless it is the first.
func (k *Keys) AdvanceLookup(at time.Time) *Keys {
	next := k.after()
	pending, both := next.Lookups.Pending(), !k.SearchedBoth().IsZero()
	for i := range next.Lookups {
		switch t := &next.Lookups[i]; {
		case pending && t.State == Active:
			t.State, t.Closed = Readable, at
		case pending && t.State == Pending:
			t.State = Active
		case !pending && t.State == Readable:
			t.State, t.Closed = Closed, at
		case !pending && !both && t.State == Closed && i > 0:
			t.State, t.Key, t.Destroyed = Destroyed, Key{}, at
		}
	}
	return next
}

// lookupMACs returns what computes the hashes of an account, by the numbers of the keys.
func (k *Keys) lookupMACs(account uuid.UUID) map[uint32]*keyedMAC {
	macs := map[uint32]*keyedMAC{}
	for _, t := range k.Lookups {
		if t.State != Destroyed {
			macs[t.Number] = newMAC(derive(hiding.Of(t.Key), "lookup", k.Vault, account))
		}
	}
	return macs
}
