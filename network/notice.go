package network

import (
	"time"

	"github.com/cardvault/cardvault/internal/enum"
)

// A NoticeKind says what a notice is about.
type NoticeKind uint8

const (
	NoticeActivated    NoticeKind = iota + 1 // the network token can be used; even after a provisioning that seemed to have failed
	NoticeRefused                            // provisioning was refused after it had been accepted: Failure
	NoticeSuspended                          // by By
	NoticeResumed                            // By suspends it no longer
	NoticeDeleted                            // by By, for good
	NoticeInvalidated                        // the card is dead
	NoticeCardReplaced                       // the card has a new number: Card, without its full number
	NoticeCardRenewed                        // the card has a new expiry: Card
	NoticeTokenRenewed                       // the network token has a new number or expiry
	NoticeArtChanged                         // the card has new art: Art
)

// String returns the name of the constant in lower case, such as "card_replaced".
func (k NoticeKind) String() string { return kindNames.Of(uint8(k)) }

var kindNames = enum.Names{
	NoticeActivated: "activated", NoticeRefused: "refused", NoticeSuspended: "suspended", NoticeResumed: "resumed",
	NoticeDeleted: "deleted", NoticeInvalidated: "invalidated", NoticeCardReplaced: "card_replaced",
	NoticeCardRenewed: "card_renewed", NoticeTokenRenewed: "token_renewed", NoticeArtChanged: "art_changed",
}

// MarshalText returns the name, nothing for zero, and an error for a number without a name.
func (k NoticeKind) MarshalText() ([]byte, error) { return enum.Text(k, NoticeKind.String) }

// UnmarshalText reads what MarshalText writes.
func (k *NoticeKind) UnmarshalText(text []byte) error { return enum.Read(text, k, NoticeKind.String) }

// HasOwner reports whether notices of this kind have By: suspended, resumed or deleted.
func (k NoticeKind) HasOwner() bool {
	return k == NoticeSuspended || k == NoticeResumed || k == NoticeDeleted
}

// A Notice reports a change at the network.
type Notice struct {
	// ID identifies the notice: 1 to 255 bytes. A notice that is delivered again has the
	// same ID, and is dropped.
	ID string

	Kind       NoticeKind
	OccurredAt time.Time // by the clock of the network; older ones than the state are dropped

	// Token is the network token by its ID, or by IdempotencyKey while the answer to
	// Provision that has the ID is lost. A Feeder leaves out its Network. A vault with several
	// networks needs it in a notice that the application passes on.
	Token      Ref
	By         Owner  // of the kinds that have one: see [NoticeKind.HasOwner]
	SchemeCode string // the network's reason, "" for none
	Card       *CardState
	Art        string
	Failure    *Error
}
