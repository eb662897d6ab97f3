// Package ppan is for authors of adapters to payment providers that keep a card and give a
// pseudo card number (PPAN) for it: a [Provider]. Package payone is one over HTTP.
//
// A vault with a provider (cardvault.Options.PPAN) calls ObtainPPAN once for each call of
// cardvault.Vault.ObtainPPAN, after it has checked the [Account] against those for which
// cards may be sent. It never calls again by itself. Users of a vault pass an Account and
// get the [Answer].
package ppan

import (
	"context"

	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/internal/enum"
	"github.com/cardvault/cardvault/internal/hiding"
)

// hidden is embedded under this name, so that other packages cannot name the field. Its
// methods are described in package card.
type hidden = hiding.Bytes

// A Provider keeps a card and gives a pseudo card number for it, which only that provider
// accepts.
//
// ObtainPPAN is called concurrently, with a deadline of cardvault.Options.PPANTimeout. It
// sends the request at most once: the outcome of a request that was sent and not answered
// is unknown, and asking again is the caller's decision. It keeps nothing of the request
// and of the answer, and no error holds any of it: errors are logged.
//
// An answer of the provider, whatever its status, is an [Answer]. An error means that there
// is no intelligible answer: the provider was not reached, or answered something else.
//
// A decorator embeds the Provider that it wraps, which passes Info on. It may have the
// method Unwrap() ppan.Provider.
type Provider interface {
	// Info describes the provider. It does no I/O and always returns the same.
	Info() Info

	ObtainPPAN(ctx context.Context, r *Request) (*Answer, error)
}

// Info describes a [Provider].
type Info struct {
	// Name names the provider in errors and in the log: 1 to 40 of a-z, 0-9, "_" and
	// "-", beginning with a letter or digit.
	Name string

	// SandboxOnly is for providers that must not see real cards: a live vault refuses
	// one, and any Provider that unwraps to one. [Request.Sandbox] says to the others
	// which system to ask.
	SandboxOnly bool
}

// An Account says on whose behalf a card is sent to the provider: the four
// provider headers of the REST API. The vault keeps none
// of it, and not the portal key that the hash is made with.
type Account struct {
	AID      string // sub-account
	MID      string // merchant
	PortalID string
	Hash     Hash // computed by the caller over the parameters that are sent
}

// A Request is sent to a provider.
type Request struct {
	Account Account // each field 1 to 255 printable ASCII characters
	Sandbox bool    // the provider's test system is asked: the vault is in sandbox mode
	PAN     card.PAN
	Expiry  card.Expiry

	// SecurityCode is the shopper's, if the vault still has it.
	SecurityCode card.SecurityCode
}

// An Answer is the answer of a provider. Text has at most 255 characters; "" means absent.
// None of it is a card number.
type Answer struct {
	Status Status

	PseudoPAN    PseudoPAN
	TruncatedPAN string // such as "401200XXXXXX1112"
	CardType     string // the provider's code, such as "V"
	CardExpiry   string // YYMM

	TravelCard         string // yes or no, only where it was asked for: tcdata
	TravelCardProvider string
	TravelCardInvoice  string

	// Why the status is not Valid, in the words of the provider.
	ErrorCode       string
	ErrorMessage    string // for the merchant
	CustomerMessage string // for the shopper
}

// A PseudoPAN is a pseudo card number: 16 to 19 digits if Valid. It is enough to charge the
// card, together with an account at the provider. However it is printed, logged or encoded,
// nothing of it shows. The zero value is empty.
type PseudoPAN struct{ hidden }

// NewPseudoPAN returns a PseudoPAN of a copy of digits.
func NewPseudoPAN(digits []byte) PseudoPAN { return PseudoPAN{hiding.New(digits)} }

// Text returns the number itself, which nothing hides from then on.
func (p PseudoPAN) Text() string { return string(hiding.Of(p)) }

// A Hash authenticates requests to the provider. It is the same for every card, so a stolen
// hash can be used for others. However it is printed, logged or encoded, nothing of it
// shows. The zero value is empty.
type Hash struct{ hidden }

// NewHash returns a Hash of a copy of text.
func NewHash(text []byte) Hash { return Hash{hiding.New(text)} }

// A Status is the provider's answer to a request.
type Status uint8

const (
	Valid   Status = iota + 1 // the card is stored there
	Invalid                   // the card was refused
	Error                     // the request was refused
)

// String returns the name that answers use.
func (s Status) String() string { return statusNames.Of(uint8(s)) }

var statusNames = enum.Names{Valid: "VALID", Invalid: "INVALID", Error: "ERROR"}

// MarshalText returns the name, nothing for zero, and an error for a number without a name.
func (s Status) MarshalText() ([]byte, error) { return enum.Text(s, Status.String) }

// UnmarshalText reads what MarshalText writes.
func (s *Status) UnmarshalText(text []byte) error { return enum.Read(text, s, Status.String) }
