// Package network is for authors of adapters to token services: networks that issue network
// tokens, substitute card numbers of a scheme. An adapter implements [Provider]; package
// networktest proves it, and package simnet is a simulator.
//
// A vault with a network (cardvault.Options.Network) calls it in this order:
//
//  1. Info, when the vault is opened, and Eligible, by each import.
//  2. Provision, in the background, for each card that is imported. A lost answer is
//     followed by Provision under the same idempotency key, or by Lookup.
//  3. Lookup, while the network token is [Pending], after a notice that leaves its state
//     open, and for reconciliation of active ones. [ArtFetcher] is asked after an answer
//     that names card art.
//  4. Cryptogram, for each payment, while the network token is [Active]; Credential of a
//     [Credentialer] for a payment that the merchant initiates.
//  5. Suspend and Resume of a [Suspender], at the request of a caller.
//  6. Delete, once the token is deleted or the network token is replaced, until it succeeds.
//
// Changes come as a [Notice], by a [Feeder] or through cardvault.Vault.Notify, at any time.
// A refusal is an [Error]. [BINProvider] is a second, smaller adapter: a table of issuers.
//
// Users of a vault meet [Status], [Source] and [Owners] in its tokens.
package network

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/idv"
	"github.com/cardvault/cardvault/internal/layers"
	"github.com/google/uuid"
)

// A Provider issues network tokens: substitute card numbers of a scheme. An
// implementation adapts one token service, or an aggregator of several. Package
// networktest has the contract as a test; package simnet is a simulator.
//
// Methods are called concurrently, and all except Info and Eligible with a deadline,
// cardvault.Options.NetworkTimeout. They bound what they read and keep no card data. A
// refusal by the network is returned as an [*Error]. Any other error means that the outcome
// is unknown: the vault repeats the call under the same idempotency key, and looks the
// token up. An error never holds card data: it is logged.
//
// A Provider may also be a [Suspender], a [Feeder], an [ArtFetcher] and a [Credentialer], as its
// [Info] says.
//
// A decorator embeds the Provider that it wraps, which passes Info on, and has the method
//
//	Unwrap() network.Provider
//
// through which the vault finds the optional methods that the decorator does not have
// itself. Without Unwrap, a vault refuses to open with capabilities that it cannot find.
type Provider interface {
	// Info describes the network. It does no I/O and always returns the same.
	Info() Info

	// Eligible returns nil if cards of a scheme can have network tokens for a
	// merchant, by configuration alone, or an Error of
	// SourceConfiguration. It does no I/O: it is called by every import.
	Eligible(r *EligibilityRequest) error

	// Provision asks for a network token of a card. Under an idempotency key that was used
	// before it returns the result of the first call and never makes another token. Cards of
	// one number may share a network token.
	Provision(ctx context.Context, r *ProvisionRequest) (*Token, error)

	// Lookup returns the present state of a network token, or
	// ErrUnknown if the network has no such token and never will
	// make one under that idempotency key. A provisioning that was refused after
	// it had been accepted is the Error of the refusal.
	Lookup(ctx context.Context, ref Ref) (*Token, error)

	// Cryptogram asks for a cryptogram for one payment. Each idempotency key is
	// one cryptogram.
	Cryptogram(ctx context.Context, r *CryptogramRequest) (*Cryptogram, error)

	// Delete deletes a network token for good. A deleted or unknown one is not an error.
	Delete(ctx context.Context, ref Ref) error
}

// Info describes a [Provider].
type Info struct {
	// Name identifies the network in stored records: 1 to 40 of a-z, 0-9, "_" and "-",
	// beginning with a letter or digit. "" of a Provider of several networks.
	Name string

	// SandboxOnly is for networks that must not see real cards: a live vault refuses
	// one, and any Provider that unwraps to one.
	SandboxOnly bool

	// The optional interfaces that the network implements. The vault uses only those that
	// are set here.
	Suspender, Feeder, ArtFetcher, Credentialer bool

	// Members are the networks behind a Provider of several, such as networks.Route. A
	// network token belongs to the member that made it, and each request has the Name of the
	// member in its field Network. Nil of a single network, which does not need that field.
	Members []Member
}

// A Member is a network behind a Provider of several.
type Member struct {
	Info // Name is unique among the members; Members is nil

	// Schemes are those whose cards it is asked to provision. No two members have the same.
	// A member without any still serves the network tokens that it has made.
	Schemes []card.Scheme
}

// For returns the Name of the network that is asked to provision cards of a scheme, "" if
// none is.
func (i Info) For(s card.Scheme) string {
	for _, m := range i.Members {
		if slices.Contains(m.Schemes, s) {
			return m.Name
		}
	}
	return i.Name
}

// Networks returns the Info of each network: of i itself, or of its Members.
func (i Info) Networks() []Info {
	if i.Members == nil {
		return []Info{i}
	}
	all := make([]Info, len(i.Members))
	for n, m := range i.Members {
		all[n] = m.Info
	}
	return all
}

// As returns p as a T, such as a [Suspender]: p itself or the first T among the Providers
// that it unwraps to, 16 at most.
func As[T any](p Provider) (T, bool) { return layers.As[T](p) }

// A Suspender is a Provider that suspends and resumes network tokens at the
// request of a caller, on behalf of the cardholder: [OwnerCardholder]. Doing
// so twice is not an error.
type Suspender interface {
	Suspend(ctx context.Context, ref Ref) error
	Resume(ctx context.Context, ref Ref) error
}

// A Feeder is a Provider that the vault asks for notices, by polling or over a
// stream. A network that calls the application instead needs no interface: its
// HTTP handler passes what it receives to cardvault.Vault.Notify.
type Feeder interface {
	// Feed passes notices to sink until ctx ends, and returns nil then. A notice
	// for which sink returns an error is passed again later, under the same ID.
	// cardvault.Vault.Run calls Feed, and calls it again some time after an error. Every
	// process that runs the vault does so, so that a notice may come several
	// times, and also out of order.
	Feed(ctx context.Context, r *FeedRequest, sink func(context.Context, *Notice) error) error
}

// A FeedRequest asks for notices.
type FeedRequest struct {
	Network string // see Info.Members
}

// An ArtFetcher is a Provider that has card art.
type ArtFetcher interface {
	// CardArt returns the image of an id, which never changes.
	CardArt(ctx context.Context, r *ArtRequest) (*Art, error)
}

// An ArtRequest asks for card art.
type ArtRequest struct {
	Network string // see Info.Members
	ID      string // Token.Art
}

// Art is an image of a card.
type Art struct {
	MediaType string // image/png or image/jpeg
	Image     []byte // at most MaxCardArt bytes
}

// A Credentialer is a Provider that gives the number of a network token without a
// cryptogram: for payments that the merchant initiates, such as the renewals of a
// subscription.
type Credentialer interface {
	// Credential returns the present number and expiry of a network token. It makes nothing,
	// and may be called any number of times. Without a number for payments, such as for a
	// network token that is not active, it returns an Error.
	Credential(ctx context.Context, r *CredentialRequest) (*Credential, error)
}

// A CredentialRequest asks for a network token without a cryptogram.
type CredentialRequest struct {
	Token    Ref
	Scheme   card.Scheme
	Merchant uuid.UUID
}

// A Credential is what a merchant sends for a payment that it initiates.
type Credential struct {
	TokenID string      // Token.ID of the token that it is of
	Number  card.PAN    // of the network token
	Expiry  card.Expiry // of the network token
}

// MaxCardArt is the largest card art that a vault keeps, in bytes.
const MaxCardArt = 512 << 10

// ErrUnknown is returned by Lookup of a [Provider].
var ErrUnknown = errors.New("cardvault: network token is unknown to the network")

// A Ref says which network token is meant.
type Ref struct {
	Network string // that was asked for it: see Info.Members
	ID      string // Token.ID; "" if the answer to Provision was lost

	// IdempotencyKey belongs to the ProvisionRequest. Never "".
	IdempotencyKey string
}

// An EligibilityRequest asks whether cards can have network tokens.
type EligibilityRequest struct {
	Network  string // see Info.Members; "" for the one of the scheme
	Scheme   card.Scheme
	Merchant uuid.UUID
}

// A ProvisionRequest asks for a network token.
type ProvisionRequest struct {
	Network        string    // see Info.Members
	IdempotencyKey string    // at most 64 of a-z, 0-9, "-" and ":"
	TokenID        uuid.UUID // of the token, as API clients know it
	Merchant       uuid.UUID // primary merchant of the account
	Scheme         card.Scheme
	PAN            card.PAN
	Expiry         card.Expiry
	Name           card.Name         // may be empty
	SecurityCode   card.SecurityCode // may be empty
	Contact        card.Contact      // may be empty
	Identification idv.Identification
}

// A Token is a network's answer about a network token. Its number is
// never kept: it comes with each cryptogram.
type Token struct {
	ID string // the network's handle for it: 1 to 255 bytes, not secret

	// State is pending, active, inactive or deleted. A token that was never
	// active and cannot be used yet is pending.
	State Status

	// StateAt is the time of that state, by the clock of the network. A state older than
	// the vault's is dropped. Zero: as of the answer.
	StateAt time.Time

	// SuspendedBy names who suspends it. Empty means OwnerScheme.
	SuspendedBy Owners

	// Reason is the network's own code for the state, "" for none.
	Reason string

	// Invalidated is set if the card itself is dead, such as after its account
	// was closed. State is deleted then.
	Invalidated bool

	// Card is the network's data on the card, nil without any.
	Card *CardState

	Art                   string // id of the card art, at most 255 bytes; "" for none
	SupportsDeviceBinding bool

	// PaymentAccountReference is the PAR of EMVCo, 29 of A-Z and 0-9: one for each card
	// number, whatever stands for it. "" if the network does not say; a vault drops another
	// text.
	PaymentAccountReference string
}

// A CardState describes the card behind a network token. A network never reports its
// number.
type CardState struct {
	LastFour string      // digits; "" if they are not known
	Expiry   card.Expiry // zero if it is not known
}

// A CryptogramRequest asks for a cryptogram.
type CryptogramRequest struct {
	IdempotencyKey string // at most 64 of a-z, 0-9, "-" and ":"
	Token          Ref
	Scheme         card.Scheme
	Merchant       uuid.UUID
	Amount         int64 // in minor units of Currency, at least 0
	Currency       string
	Reference      string // of the caller
}

// A Cryptogram authenticates one payment with a network token.
type Cryptogram struct {
	TokenID string      // Token.ID of the token that it is for
	Number  card.PAN    // of the network token; the cryptogram belongs to this number
	Expiry  card.Expiry // of the network token
	Value   card.CryptogramValue

	// ECI is the electronic commerce indicator, two digits, or "" if the
	// network assigned none.
	ECI string
}

// An Error is a refusal by a network. It never holds card data.
type Error struct {
	// Source is SourceScheme if the network or issuer decided about this card or payment, and
	// SourceConfiguration if the set-up does not allow the request.
	Source Source

	// Code is one of the codes that belong to its source: see [SourceOf]. It decides
	// whether a provisioning is tried again. An unknown code is treated as
	// scheme_unavailable or, for SourceConfiguration, invalid_request, and is reported as
	// the scheme code.
	Code Code

	SchemeCode string // the network's own code, at most 255 characters; "" for none

	// Retryable says of a cryptogram that was refused whether the same request
	// may succeed later.
	Retryable bool

	// RetryAfter is the least pause before a provisioning is tried again, if the network
	// named one.
	RetryAfter time.Duration
}

func (e *Error) Error() string {
	return "cardvault: network refuses: " + string(e.Reason())
}

// Reason returns Code, or the replacement of an unknown Code.
func (e *Error) Reason() Code {
	switch source := SourceOf(e.Code); {
	case source != 0 && source == e.Source:
		return e.Code
	case e.Source == SourceConfiguration:
		return CodeInvalidRequest
	}
	return CodeSchemeUnavailable
}
