package network

import (
	"errors"
	"strings"

	"github.com/cardvault/cardvault/internal/enum"
)

// An Owner is a party that can suspend a network token. The network token is active again
// when no owner suspends it.
type Owner uint8

const (
	OwnerIssuer Owner = iota + 1
	OwnerScheme
	OwnerCardholder // or a party on behalf of the cardholder
)

// String returns "issuer", "scheme" or "cardholder".
func (o Owner) String() string { return ownerNames.Of(uint8(o)) }

var ownerNames = enum.Names{OwnerIssuer: "issuer", OwnerScheme: "scheme", OwnerCardholder: "cardholder"}

// MarshalText returns the name, nothing for zero, and an error for a number without a name.
func (o Owner) MarshalText() ([]byte, error) { return enum.Text(o, Owner.String) }

// UnmarshalText reads what MarshalText writes.
func (o *Owner) UnmarshalText(text []byte) error { return enum.Read(text, o, Owner.String) }

// Owners is a set of owners: bit 1<<(o-1) for each Owner o. Zero is the empty set.
type Owners uint8

// OwnersOf returns the set of some owners.
func OwnersOf(owners ...Owner) (all Owners) {
	for _, o := range owners {
		all |= 1 << (o - 1)
	}
	return all
}

// Has reports whether an owner is in the set.
func (o Owners) Has(owner Owner) bool { return o&OwnersOf(owner) != 0 }

// String returns the names of the owners, such as "issuer scheme".
func (o Owners) String() string {
	var all []string
	for owner := OwnerIssuer; owner <= OwnerCardholder; owner++ {
		if o.Has(owner) {
			all = append(all, owner.String())
		}
	}
	return strings.Join(all, " ")
}

// MarshalText returns what String does, and an error for a set with another bit.
func (o Owners) MarshalText() ([]byte, error) {
	if o&^OwnersOf(OwnerIssuer, OwnerScheme, OwnerCardholder) != 0 {
		return nil, errors.New("cardvault: set has an owner that does not exist")
	}
	return []byte(o.String()), nil
}

// UnmarshalText reads what MarshalText writes.
func (o *Owners) UnmarshalText(text []byte) error {
	var all Owners
	for name := range strings.FieldsSeq(string(text)) {
		var owner Owner
		if err := owner.UnmarshalText([]byte(name)); err != nil {
			return err
		}
		all |= OwnersOf(owner)
	}
	*o = all
	return nil
}
