package cardvault

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"
)

// A Webhook is an endpoint of an integrator to which the events of an account are
// delivered: decisions, chapter 13.
type Webhook struct {
	ID        uuid.UUID
	CreatedAt time.Time
	URL       string // https, in a sandbox also http; without user and fragment

	// Description is for people: 1 to 255 characters, or "" for none.
	Description string

	// Events are the types that are delivered, in the order of EventType. Never empty.
	Events []EventType

	// LegacyHMAC adds the header x-hmac-signature to deliveries.
	LegacyHMAC bool

	// Disabled is whether nothing is delivered, and DisabledReason why: requested,
	// gone (it has answered 410) or failing (five days without success).
	Disabled       bool
	DisabledReason string
}

// A WebhookSecret signs deliveries: "whsec_" and the base64 of 32 random bytes.
// However it is printed, logged or encoded, nothing of it shows. The zero value is
// none.
type WebhookSecret struct{ hidden }

// NewWebhookSecret returns a WebhookSecret of a copy of text.
func NewWebhookSecret(text []byte) WebhookSecret { return WebhookSecret{hide(text)} }

// A Sender delivers events to webhooks, one attempt a call. Package webhook is one
// over HTTP. Its methods are called concurrently.
type Sender interface {
	// Check returns nil if deliveries may go to a URL, else why not, as the end of a
	// sentence that begins with the name of the field, without the URL. It does no
	// I/O: what a name leads to is looked at by Send.
	Check(url string) error

	// Send makes one attempt. It has the deadline of ctx and bounds what it reads.
	// An error says why there is no answer, or none that can be understood; it never
	// holds what was answered.
	Send(ctx context.Context, d *Delivery) (*SendResult, error)
}

// A Delivery is an event on its way to a webhook.
type Delivery struct {
	// Event is what is told; nil for a test, which has only ID and CreatedAt.
	Event *Event

	ID        uuid.UUID // of the event, the same at every attempt: webhook-id
	CreatedAt time.Time // of the event
	URL       string
	Secrets   []WebhookSecret // each signs; at least one
	Legacy    bool            // Webhook.LegacyHMAC
}

// A SendResult is what a webhook has answered.
type SendResult struct {
	StatusCode int // of HTTP; 2xx is success

	// RetryAfter is how long the webhook asks to be left alone, 0 if it does not.
	RetryAfter time.Duration
}

// String returns a text of fixed length.
func (s WebhookSecret) String() string { return masked(len(s.get())) }

func (s WebhookSecret) Format(f fmt.State, _ rune)   { fmt.Fprint(f, s.String()) }
func (s WebhookSecret) LogValue() slog.Value         { return slog.StringValue(s.String()) }
func (s WebhookSecret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }
