// Package forward sends a stored card to a payment provider, in a request that the caller
// has written with placeholders in place of the card. The caller never has the card.
//
//	f, err := forward.New(v, []forward.Destination{{
//		Name: "psp",
//		URL:  "https://api.psp.example/v1/",
//	}}, nil)
//	client := f.Client(token.ID, nil)
//	resp, err := client.Post("https://api.psp.example/v1/charges", "application/json", strings.NewReader(
//		`{"number":"{{ account_number }}","month":"{{ expiry_month }}","year":"{{ expiry_year }}","amount":1999}`))
//
// Any library that takes an *http.Client pays with a token in this way. A library that
// builds and checks its own requests receives random placeholders, from [Forwarder.With].
// Over REST it is POST /forward, see httpapi.Options.
//
// # Placeholders
//
//	{{ account_number }} {{ expiry_month }} {{ expiry_year }} {{ expiry_yy }}
//	{{ cardholder_name }} {{ security_code }}
//
// The month has two digits, the year four. Spaces inside the braces do not matter. With
// [CallOptions.Payment] a cryptogram is made for the payment, and there are also
//
//	{{ network_token }} {{ network_token_expiry_month }} {{ network_token_expiry_year }}
//	{{ cryptogram }} {{ eci }}
//
// Placeholders stand in the strings of JSON that are values, in the values of a form (where
// the braces may be percent-encoded), in the text and the attributes of XML, and in headers.
// Each value is encoded for its place. As a whole string of JSON,
// "{{ expiry_month | number }}" becomes a number, and so do the other parts of an expiry.
// The placeholder of a security code is a whole value. Anywhere else a placeholder is
// refused, and nothing is sent. A body without any is sent byte for byte. Inserted values
// are never searched for placeholders.
//
// A text of someone else, such as the name of a shopper, could be a placeholder.
// [Forwarder.With] and [CallOptions.Marker] are for requests that have such text.
//
// {{ destination.NAME }} in a header is a credential of the operator, so that the caller
// need not have it: see [Forwarder.SetCredential] and [Destination.Credential].
//
// # Sending
//
// A request is sent once. No redirect is followed: it is the answer. Every address is
// checked when the connection is made, no proxy is used. Host, Content-Length,
// Accept-Encoding and the headers of a connection are not the caller's.
//
// An error wraps [cardvault.ErrProviderUnavailable] or [cardvault.ErrProviderTimeout] if
// there is no answer. It wraps [ErrOutcomeUnknown] besides if the destination may have
// received the request. With an idempotency key a repetition is never a second payment: it
// has the answer or error of the first call, also after a crash.
//
// # Answers
//
// In an answer every number is masked that has the length, the first six and the last four
// digits of the card number, so that the mask does not show which is the card's; likewise
// the network token. If the request has the security code, every number of its length that
// stands alone in a string value is masked; if it has it in a field whose name is not that of
// a security code, numbers of JSON too. The cryptogram and the operator's credentials
// are masked too. All are found also with escapes of JSON, percent-encoded, as entities, in
// hexadecimal digits, base64 and base64url. Set-Cookie is left out.
//
// The card is in one buffer of this package and in the buffer of a connection while it is
// sent, and both are erased.
package forward

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/internal/use"
	"github.com/google/uuid"
)

// Errors of a forward, beside those of package cardvault.
var (
	// ErrDestination is returned for a request to a URL, with a method or from an account
	// that no [Destination] allows.
	ErrDestination = errors.New("forward: destination is not allowed")

	// ErrTooLarge is returned for a body over [MaxBody], and for headers that have more than
	// 64 KiB with the card and credentials in them.
	ErrTooLarge = errors.New("forward: body is too large")

	// ErrNoSecurityCode is returned for a request with the security code if the vault does
	// not have it.
	ErrNoSecurityCode = use.ErrNoCode

	// ErrOutcomeUnknown comes with an error after which the destination may have received the
	// request, or not. Ask the destination, or repeat the request under an idempotency key
	// of its own.
	ErrOutcomeUnknown = errors.New("forward: outcome unknown")

	// ErrTruncated is returned by reading the body of an answer that is longer than
	// [Destination.MaxAnswer], or in an encoding that cannot be searched for cards.
	ErrTruncated = errors.New("forward: body of the answer is left out")
)

// MaxBody limits the body of a request, before and after the card is put into it, in bytes.
const MaxBody = 1 << 20

// Options are the optional parts of a forwarder.
type Options struct {
	// AllowLoopback lets destinations be on loopback addresses, also with http. It is for
	// sandbox vaults alone.
	AllowLoopback bool

	// Dial makes connections in place of the forwarder's own, such as through an egress
	// proxy, or in memory for a test. TLS is made above them. Which addresses it connects to
	// is then its own to guard.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)

	// KeptAnswers limits what an account keeps of answers under idempotency keys, in bytes
	// of a day in UTC and this process. Further answers are kept without header and body, as
	// the log of their use says. Defaults to 1 GiB.
	KeptAnswers int64
}

// A Forwarder forwards cards of one account: of the vault that New was given, unless it came
// from In. Its methods may be called concurrently.
type Forwarder struct {
	vault        *cardvault.Vault
	destinations []*destination
	kept         *allowance // of all accounts
}

// New returns a forwarder. It connects to nothing yet. opts may be nil.
func New(v *cardvault.Vault, destinations []Destination, opts *Options) (*Forwarder, error) {
	if v == nil {
		return nil, errors.New("forward: no vault")
	}
	if opts == nil {
		opts = new(Options)
	}
	if opts.AllowLoopback && v.Mode() != cardvault.Sandbox {
		return nil, fmt.Errorf("%w: forward.Options.AllowLoopback is for sandboxes", cardvault.ErrWrongMode)
	}

	if opts.KeptAnswers < 0 {
		return nil, errors.New("forward: Options.KeptAnswers must not be negative")
	}

	f := &Forwarder{vault: v, kept: &allowance{daily: cmp.Or(opts.KeptAnswers, defaultKept)}}
	for i := range destinations {
		d, err := newDestination(destinations[i], opts)
		if err != nil {
			return nil, err
		}
		for _, other := range f.destinations {
			switch {
			case other.Name == d.Name:
				return nil, fmt.Errorf("forward: two destinations have the name %s", d.Name)
			case other.prefix == d.prefix && origin(other.url) == origin(d.url):
				return nil, fmt.Errorf("forward: destinations %s and %s have the same URL", other.Name, d.Name)
			}
		}
		f.destinations = append(f.destinations, d)
	}
	return f, nil
}

// In returns a forwarder for cards of another account, with the same destinations.
func (f *Forwarder) In(account uuid.UUID) *Forwarder {
	return &Forwarder{f.vault.In(account), f.destinations, f.kept}
}

// Timeout returns the longest that a destination may take.
func (f *Forwarder) Timeout() (longest time.Duration) {
	for _, d := range f.destinations {
		longest = max(longest, d.Timeout)
	}
	return longest
}

// Close closes idle connections. A running forward goes on.
func (f *Forwarder) Close() {
	for _, d := range f.destinations {
		d.client.Close()
	}
}
