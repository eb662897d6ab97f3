package card

import (
	"github.com/cardvault/cardvault/internal/enum"
	"github.com/cardvault/cardvault/internal/iin"
)

// A Scheme is a card scheme.
type Scheme uint8

// The schemes that a vault knows. Their numbers are stored, and agree with internal/iin.
const (
	UnknownScheme Scheme = iota // also domestic schemes
	VISA
	Mastercard // with Maestro
	AmericanExpress
	Discover
	DinersClub
	JCB
	UnionPay
)

// String returns the name that answers use, such as "VISA".
func (s Scheme) String() string { return iin.Scheme(s).String() }

// MarshalText returns the name, or an error for a number without one.
func (s Scheme) MarshalText() ([]byte, error) { return enum.Text(s, Scheme.String) }

// UnmarshalText reads what MarshalText writes.
func (s *Scheme) UnmarshalText(text []byte) error { return enum.Read(text, s, Scheme.String) }
