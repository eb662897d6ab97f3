package network

import (
	"context"

	"github.com/cardvault/cardvault/card"
)

// A BINProvider knows what an issuer identification number tells about a card.
type BINProvider interface {
	// LookupBIN returns nil for a number that it does not know. It must not keep the
	// request. An error is logged and counts as nil: a card is stored all the same. The
	// deadline is one second.
	LookupBIN(ctx context.Context, r *BINRequest) (*BIN, error)
}

// A BINRequest asks about an issuer identification number.
type BINRequest struct {
	IIN []byte // the first eight digits of a card number, or six of one shorter than sixteen
}

// A BIN is the answer of a BINProvider. What is "" or nil is not known.
type BIN struct {
	Scheme      *card.Scheme // overrides the scheme found by the vault
	BankName    string       // 1 to 255 characters, else not known
	Segment     string       // business, consumer, commercial or other
	Type        string       // credit, debit, charge (counts as credit) or prepaid (as debit)
	CountryCode string       // ISO 3166-1 alpha-2
}
