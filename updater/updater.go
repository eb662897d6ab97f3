// Package updater is for authors of adapters to account updaters: services of the schemes that
// report the new number or expiry of a card after its issuer has replaced it. An adapter
// implements [Provider]; package updatertest proves it, and package simnet has a simulator.
//
// A vault with an updater (cardvault.Options.Updater) calls it from cardvault.Vault.Run:
//
//  1. Submit, once in cardvault.Options.UpdaterPeriod for each card, a batch at a time. After a
//     crash or an error it submits the batch again, under the same idempotency key.
//  2. Feed, all the time. Each [Outcome] names its card by the [CardRef].Reference of the
//     submission, minutes or weeks later.
//
// An outcome changes the token of its reference and no other: a reference is a keyed hash of
// account, token and submission. It is of no use once the card of the token was replaced.
package updater

import (
	"context"

	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/internal/enum"
	"github.com/google/uuid"
)

// MaxCards is the largest number of cards in a [SubmitRequest].
const MaxCards = 100

// A Provider adapts an account updater, such as the services of VISA or Mastercard or an
// aggregator of several. A submission of one process may be answered in another.
//
// Methods are called concurrently. They keep no number after the call, except to pass it on
// to the updater, and no error holds card data: errors are logged.
//
// A decorator embeds the Provider that it wraps, which passes Info on. It may have the method
// Unwrap() updater.Provider.
type Provider interface {
	// Info describes the updater. It does no I/O and always returns the same.
	Info() Info

	// Submit asks the updater about cards, and returns nil once it has accepted them durably.
	// It has 30 seconds, the deadline of ctx.
	//
	// After an error the vault does not know which cards the updater has accepted. It repeats the
	// call under the same idempotency key, with the same cards or, if tokens were deleted or
	// replaced meanwhile, with fewer. A repetition asks about no card twice.
	Submit(ctx context.Context, r *SubmitRequest) error

	// Feed passes outcomes to sink until ctx ends, and returns nil then. sink returns nil once
	// the vault has applied the outcome, or has refused it for good. An outcome for which it
	// returns an error is passed again later, under the same ID. sink may be called
	// concurrently, and may wait for its turn.
	//
	// The vault calls Feed in every process that runs it, and calls it again some time after
	// an error. An outcome may reach any of them, in any order and more than once. An updater
	// that calls the application instead, over HTTP, passes each outcome to a Feed that is
	// running, and acknowledges it after sink.
	Feed(ctx context.Context, sink func(context.Context, *Outcome) error) error
}

// Info describes a [Provider].
type Info struct {
	// Name identifies the updater in stored records, in errors and in the log: 1 to 40 of
	// a-z, 0-9, "_" and "-", beginning with a letter or digit. A vault that opens with another
	// name submits every card anew, and refuses outcomes of earlier submissions.
	Name string

	// SandboxOnly is for updaters that must not see real cards: a live vault refuses one, and
	// any Provider that unwraps to one.
	SandboxOnly bool
}

// A SubmitRequest asks about cards of one account.
type SubmitRequest struct {
	IdempotencyKey string    // a UUID
	Merchant       uuid.UUID // primary merchant of the account
	Cards          []CardRef // 1 to MaxCards
}

// A CardRef is a card of a [SubmitRequest]. The vault wipes PAN when Submit has returned.
type CardRef struct {
	// Reference names the card in its outcomes: 52 of a-z and 2-7, different in every
	// submission. It reveals nothing about card and token.
	Reference string

	Scheme card.Scheme
	PAN    card.PAN
	Expiry card.Expiry // may be past
}

// An Outcome is the answer of the updater about one card. Sink keeps nothing of it.
type Outcome struct {
	ID        string // 1 to 255 bytes, the same when it is passed again; it may be logged
	Reference string // CardRef.Reference
	Kind      Kind

	// PAN is the new number of an Updated card. Other kinds have none.
	PAN card.PAN

	// Expiry is the new expiry of a card that is Updated or ExpiryChanged, which must not be
	// past. Other kinds have none.
	Expiry card.Expiry
}

// A Kind is a result of an inquiry about a card. Numbers are stable.
type Kind uint8

const (
	Updated           Kind = iota + 1 // the card has a new number and expiry
	ExpiryChanged                     // the card has a new expiry and its number has stayed
	Closed                            // the account of the card was closed
	ContactCardholder                 // the issuer reports nothing: ask the cardholder
	OptedOut                          // the cardholder wants no updates
	NoMatch                           // the updater knows nothing new about the card
)

// String returns the name of the constant in lower case, such as "expiry_changed".
func (k Kind) String() string { return kinds.Of(uint8(k)) }

var kinds = enum.Names{
	Updated: "updated", ExpiryChanged: "expiry_changed", Closed: "closed",
	ContactCardholder: "contact_cardholder", OptedOut: "opted_out", NoMatch: "no_match",
}

// MarshalText returns the name, nothing for zero, and an error for a number without a name.
func (k Kind) MarshalText() ([]byte, error) { return enum.Text(k, Kind.String) }

// UnmarshalText reads what MarshalText writes.
func (k *Kind) UnmarshalText(text []byte) error { return enum.Read(text, k, Kind.String) }
