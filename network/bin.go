package network

import (
	"context"

	"github.com/cardvault/cardvault/card"
)

// A BINProvider looks up issuer identification numbers.
type BINProvider interface {
	// LookupBIN returns nil for an unknown number. It must not keep the request. An error
	// is logged and treated as nil: a card is stored all the same. The deadline is one
	// second.
	LookupBIN(ctx context.Context, r *BINRequest) (*BIN, error)
}

// A BINRequest asks about an issuer identification number.
type BINRequest struct {
	IIN []byte // the first eight digits of a card number, or six of one shorter than sixteen
}

// A BIN is the answer of a BINProvider. A field that is "" or nil is unknown.
type BIN struct {
	Scheme      *card.Scheme // overrides the scheme found by the vault
	BankName    string       // 1 to 255 characters, else not known
	Segment     string       // business, consumer, commercial or other
	Type        string       // credit, debit, charge (stored as credit) or prepaid (as debit)
	CountryCode string       // ISO 3166-1 alpha-2
}
