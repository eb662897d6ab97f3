package cardvault

import (
	"context"
	"errors"
	"time"

	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/internal/images"
	"github.com/cardvault/cardvault/internal/leak"
	"github.com/google/uuid"
)

// A Network issues network tokens: substitute card numbers of a scheme. An
// implementation adapts one token service, or an aggregator of several. Package
// networktest has the contract as a test; package simnet is a simulator.
//
// Methods are called concurrently, and all but Name and Eligible with a
// deadline, [Options.NetworkTimeout]. They bound what they read and keep no card
// data. An answer of the network that is a refusal is returned as a
// [*NetworkError]. Any other error says that the outcome is unknown: the vault
// repeats the call under the same idempotency key, and looks the token up. An
// error never holds card data: it is logged.
//
// What else a network can do it says by implementing [Suspender], [Feeder],
// [ArtFetcher] or [SandboxOnly].
type Network interface {
	// Name names the network in what is stored: 1 to 40 of a-z, 0-9, "_" and
	// "-". It never changes.
	Name() string

	// Eligible returns nil if cards of a scheme can have network tokens for a
	// merchant, by configuration alone, or a NetworkError of
	// SourceConfiguration. It does no I/O: it is called by every import.
	Eligible(scheme card.Scheme, merchant uuid.UUID) error

	// Provision asks for a network token of a card. Under an idempotency key
	// that was used before it returns what the first call came to and never
	// makes another token. Cards of one number may share a network token.
	Provision(ctx context.Context, r *ProvisionRequest) (*NetworkToken, error)

	// Lookup returns the present state of a network token, or
	// ErrUnknownNetworkToken if the network has no such token and never will
	// make one under that idempotency key. A provisioning that was refused after
	// it had been accepted is the NetworkError of the refusal.
	Lookup(ctx context.Context, ref NetworkTokenRef) (*NetworkToken, error)

	// Cryptogram asks for a cryptogram for one payment. Each idempotency key is
	// one cryptogram.
	Cryptogram(ctx context.Context, r *CryptogramRequest) (*Cryptogram, error)

	// Delete deletes a network token for good. One that is deleted or unknown
	// is no error.
	Delete(ctx context.Context, ref NetworkTokenRef) error
}

// A Suspender is a Network that suspends and resumes network tokens at the
// request of a caller, on behalf of the cardholder: [OwnerCardholder]. Doing
// so twice is no error.
type Suspender interface {
	Suspend(ctx context.Context, ref NetworkTokenRef) error
	Resume(ctx context.Context, ref NetworkTokenRef) error
}

// A Feeder is a Network that the vault asks for notices, by polling or over a
// stream. A network that calls the application instead needs no interface: its
// HTTP handler passes what it receives to [Vault.Notify].
type Feeder interface {
	// Feed passes notices to sink until ctx ends, and returns nil then. A notice
	// for which sink returns an error is passed again later, under the same ID.
	// [Vault.Run] calls Feed, and calls it again some time after an error. Every
	// process that runs the vault does so, so that a notice may come several
	// times, and also out of order.
	Feed(ctx context.Context, sink func(context.Context, *Notice) error) error
}

// An ArtFetcher is a Network that has card art.
type ArtFetcher interface {
	// CardArt returns an image: image/png or image/jpeg, at most MaxCardArt
	// bytes. The image of an id never changes.
	CardArt(ctx context.Context, id string) (mediaType string, image []byte, err error)
}

// SandboxOnly is implemented by a Network, PPANProvider or IDVProvider that must not see real
// cards. A live vault refuses it with ErrWrongMode.
type SandboxOnly interface{ SandboxOnly() }

// MaxCardArt is the largest card art that a vault keeps: 512 KiB.
const MaxCardArt = images.MaxSize

// ErrUnknownNetworkToken is returned by Lookup of a [Network].
var ErrUnknownNetworkToken = errors.New("cardvault: network token is unknown to the network")

// A NetworkTokenRef says which network token is meant.
type NetworkTokenRef struct {
	ID string // NetworkToken.ID; "" if the answer to Provision was lost

	// IdempotencyKey is that of the ProvisionRequest. Never "".
	IdempotencyKey string
}

// A ProvisionRequest asks for a network token.
type ProvisionRequest struct {
	IdempotencyKey string    // at most 64 of a-z, 0-9, "-" and ":"
	TokenID        uuid.UUID // of the token, as the world knows it
	Merchant       uuid.UUID // primary merchant of the account
	Scheme         card.Scheme
	PAN            card.PAN
	Expiry         card.Expiry
	Name           card.Name         // may be none
	SecurityCode   card.SecurityCode // may be none
	Contact        card.Contact      // may be none
	Identification Identification
}

// A NetworkToken is what a network says of a network token. Its number is
// never kept: it comes with each cryptogram.
type NetworkToken struct {
	ID string // the network's handle for it: 1 to 255 bytes, not secret

	// State is pending, active, inactive or deleted. A token that was never
	// active and cannot be used yet is pending.
	State NetworkTokenStatus

	// StateAt is when it took that state, by the clock of the network. What is
	// older than what the vault knows is dropped. Zero: as of the answer.
	StateAt time.Time

	// SuspendedBy is why it is inactive. None counts as OwnerScheme.
	SuspendedBy Owners

	// Reason is the network's own code for the state, "" for none.
	Reason string

	// Invalidated is set if the card itself is dead, such as after its account
	// was closed. State is deleted then.
	Invalidated bool

	// Card is what the network knows of the card, nil for nothing.
	Card *CardState

	Art                   string // id of the card art, at most 255 bytes; "" for none
	SupportsDeviceBinding bool
}

// A CardState is what a network tells about a card behind a network token. A
// network never tells its number.
type CardState struct {
	LastFour string      // digits; "" if they are not known
	Expiry   card.Expiry // zero if it is not known
}

// An Owner is somebody who can suspend a network token. It is active again
// when nobody suspends it.
type Owner uint8

const (
	OwnerIssuer Owner = iota
	OwnerScheme
	OwnerCardholder // or somebody on behalf of the cardholder
	ownerCount
)

// Owners is a set of owners: bit 1<<o for each Owner o.
type Owners uint8

// OwnersOf returns the set of some owners.
func OwnersOf(owners ...Owner) (all Owners) {
	for _, o := range owners {
		all |= 1 << o
	}
	return all
}

// A CryptogramRequest asks for a cryptogram.
type CryptogramRequest struct {
	IdempotencyKey string // at most 64 of a-z, 0-9, "-" and ":"
	Token          NetworkTokenRef
	Scheme         card.Scheme
	Merchant       uuid.UUID
	Amount         int64 // in minor units of Currency, at least 0
	Currency       string
	Reference      string // of the caller
}

// A Cryptogram is what authenticates one payment with a network token.
type Cryptogram struct {
	TokenID string      // NetworkToken.ID of the token that it is for
	Number  card.PAN    // of the network token; the cryptogram belongs to this number
	Expiry  card.Expiry // of the network token
	Value   card.CryptogramValue

	// ECI is the electronic commerce indicator, two digits, or "" if the
	// network assigned none.
	ECI string
}

// A NetworkError is a refusal by a network. It never holds card data.
type NetworkError struct {
	// Source is SourceScheme if the network or issuer judged this card or
	// payment, SourceConfiguration if the request never had a chance because of
	// the set-up.
	Source Source

	// Code is one of the codes of [Reason] for its source, and says whether a
	// provisioning is tried again: after a look-up, if it may be. Any other counts as scheme_unavailable or, of
	// SourceConfiguration, invalid_request, with Code as scheme code.
	Code string

	SchemeCode string // the network's own code, at most 255 characters; "" for none

	// Retryable says of a cryptogram that was refused whether the same request
	// may succeed later.
	Retryable bool

	// RetryAfter is how long to wait at least before a provisioning is tried
	// again, if the network said so.
	RetryAfter time.Duration
}

func (e *NetworkError) Error() string {
	code, _ := e.reason(e.Source)
	return "cardvault: network refuses: " + code
}

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
	Token      NetworkTokenRef
	By         Owner
	SchemeCode string // the network's reason, "" for none
	Card       *CardState
	Art        string
	Failure    *NetworkError
}

// A NetworkTokenStatus is the state of the network token of a token:
// chapter 3.2 of the interface document.
type NetworkTokenStatus uint8

const (
	NetworkTokenNotAvailable NetworkTokenStatus = iota // cannot be provisioned with the current configuration
	NetworkTokenPending                                // being provisioned
	NetworkTokenActive                                 // can be used
	NetworkTokenInactive                               // cannot be used now, such as while suspended
	NetworkTokenDeleted                                // final
	NetworkTokenFailed                                 // provisioning failed
	networkTokenStatuses     = 6
)

var networkTokenStatusNames = [networkTokenStatuses]string{
	"not_available", "pending", "active", "inactive", "deleted", "failed",
}

// String returns the name that the interface document uses.
func (s NetworkTokenStatus) String() string {
	if int(s) < len(networkTokenStatusNames) {
		return networkTokenStatusNames[s]
	}
	return "unknown"
}

// MarshalText returns what String does.
func (s NetworkTokenStatus) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// ParseNetworkTokenStatus returns the status of a name that String gives.
func ParseNetworkTokenStatus(name string) (NetworkTokenStatus, bool) {
	for s, n := range networkTokenStatusNames {
		if n == name {
			return NetworkTokenStatus(s), true
		}
	}
	return 0, false
}

// A Source says who caused a failure.
type Source uint8

const (
	SourceScheme        Source = iota + 1 // the network or the issuer judged this card
	SourceConfiguration                   // the request never had a chance because of the set-up
)

// String returns "scheme" or "configuration".
func (s Source) String() string {
	switch s {
	case SourceScheme:
		return "scheme"
	case SourceConfiguration:
		return "configuration"
	}
	return "unknown"
}

// MarshalText returns what String does.
func (s Source) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// A Reason explains a network token status other than active and pending.
type Reason struct {
	Source Source
	// Code is, of SourceScheme,
	//   - card_not_eligible, card_not_allowed, card_verification_failed, declined,
	//     invalid_card_data, provision_not_allowed: failed for good
	//   - provision_data_expired, issuer_unavailable, scheme_unavailable, timeout:
	//     failed, after some tries
	//   - suspended_by_issuer, suspended_by_scheme, suspended_by_cardholder
	//   - deleted_by_issuer, deleted_by_scheme, account_closed
	//
	// and, of SourceConfiguration, network_tokens_not_activated, no_network,
	// scheme_not_enabled, merchant_not_enrolled, ephemeral_token, card_expired,
	// stale_account_number or invalid_request.
	Code       string
	Message    string // for humans
	Retryable  bool
	SchemeCode string // what the network said, "" if it said nothing
	OccurredAt time.Time
}

// Identification says which identification and verification of the cardholder
// was submitted when a token was created.
type Identification uint8

const (
	// IdentificationNone: nobody asked to skip it, and none was made. So it is of an
	// import, and of a session if the vault has no IDVProvider or that found the card
	// needs none.
	IdentificationNone Identification = iota
	// IdentificationChecked: an IDVProvider has identified the cardholder. Token.Authentication
	// says how.
	IdentificationChecked
	// IdentificationSkipped: SessionOptions.BypassIdentification was set.
	IdentificationSkipped
)

// String returns the name that the interface document uses.
func (i Identification) String() string {
	return [...]string{"none", "checked", "skipped"}[i%3]
}

// MarshalText returns what String does.
func (i Identification) MarshalText() ([]byte, error) { return []byte(i.String()), nil }

// reason returns the code of a refusal and the network's own. A code that is
// not one of the source counts as scheme_unavailable or invalid_request.
func (e *NetworkError) reason(source Source) (code, schemeCode string) {
	code, schemeCode = e.Code, e.SchemeCode
	if r, ok := reasons[code]; !ok || r.source != source {
		if schemeCode == "" {
			schemeCode = code
		}
		code = "scheme_unavailable"
		if source == SourceConfiguration {
			code = "invalid_request"
		}
	}
	return code, schemeText(schemeCode)
}

// Each code with its source and text, and whether
// what it explains may pass.
var reasons = map[string]struct {
	source    Source
	retryable bool
	text      string
}{
	"card_not_eligible":        {SourceScheme, false, "The issuer does not allow tokens for this card."},
	"card_not_allowed":         {SourceScheme, false, "The issuer allows no further tokens for this card."},
	"card_verification_failed": {SourceScheme, false, "The issuer could not verify the card."},
	"declined":                 {SourceScheme, false, "The issuer declined the request."},
	"invalid_card_data":        {SourceScheme, false, "The issuer does not know the card by this data."},
	"provision_not_allowed":    {SourceScheme, false, "The issuer does not allow provisioning for this card."},

	"provision_data_expired": {SourceScheme, true, "The data of the provisioning has expired."},
	"issuer_unavailable":     {SourceScheme, true, "The issuer is unavailable."},
	"scheme_unavailable":     {SourceScheme, true, "The scheme is unavailable."},
	"timeout":                {SourceScheme, true, "The scheme did not answer in time."},

	"suspended_by_issuer":     {SourceScheme, false, "The issuer has suspended the network token."},
	"suspended_by_scheme":     {SourceScheme, false, "The scheme has suspended the network token."},
	"suspended_by_cardholder": {SourceScheme, false, "The network token was suspended on behalf of the cardholder."},
	"deleted_by_issuer":       {SourceScheme, false, "The issuer has deleted the network token."},
	"deleted_by_scheme":       {SourceScheme, false, "The scheme has deleted the network token."},
	"account_closed":          {SourceScheme, false, "The card is no longer valid."},

	"network_tokens_not_activated": {SourceConfiguration, false, "Network tokens are not activated for the account."},
	"no_network":                   {SourceConfiguration, false, "No network is configured."},
	"scheme_not_enabled":           {SourceConfiguration, false, "Network tokens are not enabled for the scheme."},
	"merchant_not_enrolled":        {SourceConfiguration, false, "The merchant is not enrolled for network tokens."},
	"ephemeral_token":              {SourceConfiguration, false, "A token that expires gets no network token."},
	"card_expired":                 {SourceConfiguration, false, "The card has expired."},
	"stale_account_number":         {SourceConfiguration, false, "The card has a new number that is not known."},
	"invalid_request":              {SourceConfiguration, false, "The network cannot use the request."},
}

// schemeText returns a code of the network as it may be kept.
func schemeText(code string) string {
	if checkText("scheme_code", []byte(code)) != nil || leak.MayHoldPAN(code) {
		return ""
	}
	return code
}
