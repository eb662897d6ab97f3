// Package receive is for programs that receive from a vault and do not contain one, such as
// a shop. [Verify] checks and parses an event that the vault has delivered to a webhook, and
// [OpenPaymentData] opens payment data. Package endpoint makes an http.Handler of them.
//
// # Events
//
// A vault delivers events by Standard Webhooks 1.0:
//
//	POST /hook HTTP/1.1
//	Content-Type: application/json
//	Webhook-Id: 7d7f3a52-6f0e-4d0b-8a43-0d2f9ddc2b11
//	Webhook-Timestamp: 1735689600
//	Webhook-Signature: v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=
//
//	{"id":"7d7f3a52-…","created_at":"2026-01-01T00:00:00.000000Z",
//	 "event_type":"token.updated","reason":"patched","sequence":1042,"token":{…}}
//
// A receiver bounds the body by [MaxBody], verifies it exactly as received, and answers
// with a status of 200 to 299 once the event is stored or acted on. After any other answer,
// or none in 15 seconds, the vault delivers the event again: ten times in three days.
//
// So an event can arrive more than once, even when nothing has failed, and a delivery that
// was intercepted can be repeated for [Tolerance]. Keep the ids of events in a unique
// column, written in the transaction of an event's effects, and answer 204 to an event that
// is there. Keep ids for 14 days, longer if you redeliver an event more than once: a delivery
// can be redelivered until seven days after it ended. The events of a token arrive in their
// order, unless one has failed three times; compare [Event.Sequence] where that matters.
//
// When the secret of a webhook is rotated, its former secrets sign next to the new one for
// 24 hours. A receiver passes each secret that it has.
//
// # Payment data
//
// Payment data is a JWE in compact form (RFC 7516) with the algorithms A256GCMKW and
// A256GCM. Its key is the SHA-256 of the text of a shared secret of the merchant, not of
// the bytes that the text encodes, and kid names the secret. It holds
//
//	{"network_token":{"token":"4895…","expiry_year":2030,"expiry_month":12},
//	 "cryptogram":"AgAAAABB6qqnJd0oAmbuXgu8AAAA=","eci":"07"}
//
// in which eci is null if none was assigned. Receivers in other languages can open it too.
//
// # Secrets
//
// [WebhookSecret] and [SharedSecret] hide their text, as the values of package card do:
// formatting, log/slog and encoders show "***".
package receive

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/cardvault/cardvault/internal/hiding"
	"github.com/cardvault/cardvault/internal/signature"
)

const (
	// MaxBody is the largest body of a delivery, in bytes. A vault's bodies have a few
	// thousand.
	MaxBody = 64 << 10

	// MaxSecrets limits the secrets of a webhook that sign at a time.
	MaxSecrets = signature.MaxSecrets

	// Tolerance limits the age of a delivery, and how far it may be ahead of this machine's
	// clock.
	Tolerance = 5 * time.Minute
)

// Errors of Verify and Parse, for errors.Is. Their texts name the fault and hold nothing of
// the request.
var (
	ErrHeader    = errors.New("receive: headers do not belong to a delivery")
	ErrSignature = errors.New("receive: delivery is not signed with one of the secrets")
	ErrTimestamp = errors.New("receive: delivery was signed more than 5 minutes ago, or in the future")
	ErrTooLarge  = errors.New("receive: body has more than 64 KiB")
	ErrBody      = errors.New("receive: body is not an event")

	// ErrSecret reports a fault of the program itself: it passes no secret, too many, or a
	// malformed secret.
	ErrSecret = errors.New("receive: secrets must be 1 to 8 texts of whsec_ and the base64 of 24 to 64 bytes")
)

// hidden is embedded under this name, so that other packages cannot name the field.
type hidden = hiding.Bytes

// A WebhookSecret signs deliveries: "whsec_" and the base64 of 32 random bytes. However it
// is printed, logged or encoded, nothing of it shows. The zero value is empty.
type WebhookSecret struct{ hidden }

// NewWebhookSecret returns a WebhookSecret of a copy of text. Verify checks it.
func NewWebhookSecret(text []byte) WebhookSecret { return WebhookSecret{hiding.New(text)} }

// Verify returns the event of a delivery: of its header, an http.Header or any map that names
// the same, and its body exactly as received. One of the secrets must have signed it at most
// [Tolerance] ago. It takes the same time for any signature of a length.
//
// ErrHeader, ErrSignature, ErrTimestamp, ErrTooLarge and ErrBody are about the delivery and
// call for a status of 400. ErrSecret is about the program.
func Verify(header map[string][]string, body []byte, secrets ...WebhookSecret) (*Event, error) {
	if len(secrets) == 0 || len(secrets) > MaxSecrets {
		return nil, ErrSecret
	}
	for _, s := range secrets {
		if signature.Check(hiding.Of(s)) != nil {
			return nil, ErrSecret
		}
	}
	if len(body) > MaxBody {
		return nil, ErrTooLarge
	}

	id, err := only(header, "webhook-id", 255)
	if err != nil {
		return nil, err
	}
	timestamp, err := only(header, "webhook-timestamp", 18)
	if err != nil {
		return nil, err
	}
	signatures, err := only(header, "webhook-signature", signature.MaxList)
	if err != nil {
		return nil, err
	}

	seconds, err := strconv.ParseUint(timestamp, 10, 63)
	if err != nil {
		return nil, fmt.Errorf("%w: webhook-timestamp is not a number", ErrHeader)
	}

	// Each secret signs, whichever matches.
	signed := false
	for _, s := range secrets {
		made, err := signature.Sign(hiding.Of(s), id, timestamp, body)
		if err != nil {
			return nil, ErrSecret
		}
		signed = signature.Match(signatures, made) || signed
	}
	if !signed {
		return nil, ErrSignature
	}

	if age := time.Since(time.Unix(int64(seconds), 0)); age > Tolerance || age < -Tolerance {
		return nil, ErrTimestamp
	}
	return Parse(body)
}

// maxHeaders bounds the headers that are looked through.
const maxHeaders = 256

// only returns the one value of a header, whose name may be in letters of any case.
func only(header map[string][]string, name string, atMost int) (value string, err error) {
	if len(header) > maxHeaders {
		return "", fmt.Errorf("%w: there are more than %d", ErrHeader, maxHeaders)
	}

	count := 0
	for n, values := range header {
		if strings.EqualFold(n, name) && len(values) > 0 {
			value, count = values[0], count+len(values)
		}
	}

	switch {
	case value == "":
		return "", fmt.Errorf("%w: %s is missing", ErrHeader, name)
	case count > 1:
		return "", fmt.Errorf("%w: %s is present more than once", ErrHeader, name)
	case len(value) > atMost:
		return "", fmt.Errorf("%w: %s has more than %d bytes", ErrHeader, name, atMost)
	}
	return value, nil
}
