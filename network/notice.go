package network

import "time"

// A NoticeKind says what a notice is about.
type NoticeKind uint8

const (
	NoticeActivated    NoticeKind = iota + 1 // the network token can be used; also by a provisioning that was thought to have failed
	NoticeRefused                            // provisioning was refused after it had been accepted: Failure
	NoticeSuspended                          // by By
	NoticeResumed                            // By suspends it no longer
	NoticeDeleted                            // by By, for good
	NoticeInvalidated                        // the card is dead
	NoticeCardReplaced                       // the card has a new number: Card; its full number is not told
	NoticeCardRenewed                        // the card has a new expiry: Card
	NoticeTokenRenewed                       // the network token has a new number or expiry
	NoticeArtChanged                         // the card has new art: Art
)

// A Notice tells of a change at the network.
type Notice struct {
	// ID tells notices apart: 1 to 255 bytes. A notice that is delivered again
	// has the same ID, and is dropped.
	ID string

	Kind       NoticeKind
	OccurredAt time.Time // by the clock of the network; older ones than the state are dropped

	// Token is the network token by its ID, or by IdempotencyKey while the answer
	// to Provision that tells the ID is lost.
	Token      Ref
	By         Owner
	SchemeCode string // the network's reason, "" for none
	Card       *CardState
	Art        string
	Failure    *Error
}
