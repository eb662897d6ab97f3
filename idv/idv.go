// Package idv is for authors of adapters that identify and verify cardholders (ID&V): a
// [Provider] of 3-D Secure, one-time passwords or any other method of issuers.
//
// A vault with a provider (cardvault.Options.IDV) calls it for each card that is entered
// in a session, before the card becomes a token:
//
//  1. Identify, once the card is entered. Its [Result] may be final at once. An error,
//     including a missed deadline, leaves the outcome open: the vault calls Identify again
//     under the same idempotency key.
//  2. LookupIdentification, while the Result is [Pending], about once a second as long as
//     the session is read. The shopper is shown its ChallengeURL meanwhile.
//  3. Nothing after [Passed], [NotNeeded] or [Failed].
//
// Users of a vault meet only two of the package's types, in its tokens: [Authentication]
// and [Identification].
package idv

import (
	"context"
	"time"

	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/internal/enum"
)

// A Provider identifies and verifies the cardholder before a card that is entered in a
// session becomes a token.
//
// Methods are called concurrently, with a deadline of cardvault.Options.IDVTimeout, even
// after the caller of the vault has left. They bound their reads and keep no card data.
// An error means that the outcome is unknown, and the vault calls again. It never holds
// anything that the shopper entered: it is logged.
//
// A decorator embeds the Provider that it wraps, which passes Info on. It may have the
// method Unwrap() idv.Provider.
type Provider interface {
	// Info describes the provider. It does no I/O and always returns the same.
	Info() Info

	// Identify begins an identification. Under an idempotency key that was used
	// before it returns the state of that one, and never begins another; the security
	// code may be missing then, if it was there before.
	Identify(ctx context.Context, r *Request) (*Result, error)

	// LookupIdentification returns the state of an identification that was pending. A
	// reference that the provider does not know is Failed: after an error the shopper
	// waits until the session lapses.
	LookupIdentification(ctx context.Context, r *LookupRequest) (*Result, error)
}

// Info describes a [Provider].
type Info struct {
	// Name names the provider in errors and in the log: 1 to 40 of a-z, 0-9, "_" and
	// "-", beginning with a letter or digit.
	Name string

	// SandboxOnly is for providers that must not see real cards: a live vault refuses
	// one, and any Provider that unwraps to one.
	SandboxOnly bool
}

// A Request is a card whose holder needs to be identified.
type Request struct {
	IdempotencyKey string // a UUID
	Scheme         card.Scheme
	PAN            card.PAN
	Expiry         card.Expiry
	SecurityCode   card.SecurityCode // may be empty
	Name           card.Name         // may be empty
	Contact        card.Contact      // may be empty
}

// A LookupRequest asks how far an identification is.
type LookupRequest struct {
	Reference string // Result.Reference
}

// A Result is the state of an identification.
type Result struct {
	State State

	// Reference is the provider's handle of an identification that is pending: 1
	// to 255 bytes, not secret.
	Reference string

	// ChallengeURL is a page on which the shopper proves who they are while the
	// identification is pending, shown in a frame of the shop's page: https, in a
	// sandbox also http on the loopback. "" if there is nothing to show (yet).
	ChallengeURL string

	// Authentication describes an identification that was passed.
	Authentication *Authentication
}

// A State says how far an identification is.
type State uint8

const (
	Pending   State = iota + 1
	Passed          // the cardholder is identified
	NotNeeded       // no identification is asked for: the token is made without
	Failed          // final: there is no token
)

// String returns "pending", "passed", "not_needed" or "failed".
func (s State) String() string { return states.Of(uint8(s)) }

var states = enum.Names{Pending: "pending", Passed: "passed", NotNeeded: "not_needed", Failed: "failed"}

// MarshalText returns the name, nothing for zero, and an error for a number without a name.
func (s State) MarshalText() ([]byte, error) { return enum.Text(s, State.String) }

// UnmarshalText reads what MarshalText writes.
func (s *State) UnmarshalText(text []byte) error { return enum.Read(text, s, State.String) }

// Authentication describes a passed identification, for the token that was made
// after it. It never holds an authentication value.
type Authentication struct {
	Method          string    `wire:"method"`            // three_ds, security_code, otp or passkey
	Status          string    `wire:"status"`            // of the transaction in EMV 3-D Secure, such as "Y": one letter, or ""
	ECI             string    `wire:"eci"`               // two digits, or ""
	DSTransactionID string    `wire:"ds_transaction_id"` // of the directory server: a UUID, or ""
	At              time.Time `wire:"authenticated_at"`  // in microseconds
}

// Identification says which identification and verification of the cardholder
// was submitted when a token was created.
type Identification uint8

const (
	// None: there was neither an identification nor a request to skip it. Imports have it.
	// So do sessions if the vault has no Provider, or if the Provider found that the card
	// needs none.
	None Identification = iota
	// Checked: a Provider has identified the cardholder. Authentication in the token
	// says how.
	Checked
	// Skipped: cardvault.SessionOptions.BypassIdentification was set.
	Skipped
)

// String returns "none", "checked" or "skipped".
func (i Identification) String() string { return identifications.Of(uint8(i)) }

var identifications = enum.Names{None: "none", Checked: "checked", Skipped: "skipped"}

// MarshalText returns the name, or an error for a number without one.
func (i Identification) MarshalText() ([]byte, error) { return enum.Text(i, Identification.String) }

// UnmarshalText reads what MarshalText writes.
func (i *Identification) UnmarshalText(text []byte) error {
	return enum.Read(text, i, Identification.String)
}
