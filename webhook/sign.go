package webhook

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/google/uuid"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

// Errors of Verify about a delivery.
var (
	ErrSignature = errors.New("webhook: delivery is not signed with one of the secrets")
	ErrTimestamp = errors.New("webhook: delivery was signed more than 5 minutes ago, or ahead")
	ErrBody      = errors.New("webhook: body is not an event")
)

const (
	minKey, maxKey = 24, 64  // bytes, of Standard Webhooks
	maxSignatures  = 4 << 10 // bytes of all of a delivery
)

// withKey calls f with what signs and verifies with a secret. The library takes
// secrets of any length, also none.
func withKey(s cardvault.WebhookSecret, f func(*standardwebhooks.Webhook) error) (err error) {
	s.Expose(func(text []byte) {
		encoded, found := bytes.CutPrefix(text, []byte("whsec_"))
		key, bad := base64.StdEncoding.Strict().AppendDecode(nil, encoded)
		defer clear(key)
		if !found || bad != nil || len(key) < minKey || len(key) > maxKey ||
			len(encoded) != base64.StdEncoding.EncodedLen(len(key)) { // line breaks are skipped else
			err = errors.New("webhook: secret is not whsec_ and the base64 of 24 to 64 bytes")
			return
		}
		var w *standardwebhooks.Webhook
		if w, err = standardwebhooks.NewWebhookRaw(key); err == nil {
			err = f(w)
		}
	})
	return err
}

// sign returns the header webhook-signature.
func sign(secrets []cardvault.WebhookSecret, id string, at time.Time, body []byte) (string, error) {
	if len(secrets) == 0 {
		return "", errors.New("webhook: no secret")
	}
	signatures := make([]string, len(secrets))
	for i, s := range secrets {
		err := withKey(s, func(w *standardwebhooks.Webhook) (err error) {
			signatures[i], err = w.Sign(id, at, body)
			return err
		})
		if err != nil {
			return "", err
		}
	}
	return strings.Join(signatures, " "), nil
}

// A Token is the JSON of a token, which may hold the name of the cardholder. However it
// is printed, logged or encoded, nothing of it shows. The zero value is none.
type Token struct{ json func() []byte } // fmt and encoders cannot look into a closure

// JSON returns the token itself, which nothing hides from then on, or nil.
func (t Token) JSON() json.RawMessage {
	if t.json == nil {
		return nil
	}
	return t.json()
}

// IsZero reports whether there is no token.
func (t Token) IsZero() bool { return t.json == nil }

// String returns a text of fixed length.
func (t Token) String() string {
	if t.IsZero() {
		return ""
	}
	return "***"
}

func (t Token) Format(s fmt.State, _ rune)   { fmt.Fprint(s, t.String()) }
func (t Token) LogValue() slog.Value         { return slog.StringValue(t.String()) }
func (t Token) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// An Event is what a receiver gets.
type Event struct {
	ID        uuid.UUID // the same when it is delivered again
	CreatedAt time.Time

	// Type is token.created, token.updated, token.deleted or TypeTest. A receiver
	// ignores types that it does not know.
	Type string

	Reason   cardvault.EventReason // "" of a test
	Sequence uint64                // rises in an account, with gaps; 0 of a test

	// TokenID and Token are zero of a test. Token is as in the answer of
	// GET /tokens/{id} at the time of the event; of one that was deleted it has only
	// its id.
	TokenID uuid.UUID
	Token   Token
}

// Verify returns the event of a delivery: of its headers, and its body as it came.
// One of secrets has to have signed it, at most five minutes ago or, by a clock that is
// fast, ahead; during a rotation there are two. It takes the same time for any signature
// of a length.
//
// Errors: ErrSignature, ErrTimestamp and ErrBody, which call for status 400; one
// about secrets that are none. A receiver bounds the body before: 64 KiB are ample.
func Verify(secrets []cardvault.WebhookSecret, header http.Header, body []byte) (*Event, error) {
	if err := verify(secrets, header, body); err != nil {
		return nil, err
	}
	return Parse(body)
}

func verify(secrets []cardvault.WebhookSecret, header http.Header, body []byte) error {
	if len(header.Get(standardwebhooks.HeaderWebhookSignature)) > maxSignatures {
		return ErrSignature
	}

	for _, s := range secrets {
		var failed error
		err := withKey(s, func(w *standardwebhooks.Webhook) error {
			failed = w.Verify(body, header)
			return nil
		})

		switch {
		case err != nil:
			return err
		case failed == nil:
			return nil
		case errors.Is(failed, standardwebhooks.ErrMessageTooOld), errors.Is(failed, standardwebhooks.ErrMessageTooNew):
			return ErrTimestamp
		}
	}
	return ErrSignature
}

// Parse reads a body that was verified before, such as one out of a queue. Its error
// is ErrBody.
func Parse(body []byte) (*Event, error) {
	var e struct {
		ID        uuid.UUID             `json:"id"`
		CreatedAt time.Time             `json:"created_at"`
		Type      string                `json:"event_type"`
		Reason    cardvault.EventReason `json:"reason"`
		Sequence  uint64                `json:"sequence"`
		Token     json.RawMessage       `json:"token"`
	}
	if json.Unmarshal(body, &e) != nil || e.ID == uuid.Nil || e.Type == "" {
		return nil, ErrBody
	}

	event := &Event{ID: e.ID, CreatedAt: e.CreatedAt, Type: e.Type, Reason: e.Reason, Sequence: e.Sequence}
	if len(e.Token) == 0 || string(e.Token) == "null" {
		return event, nil
	}

	var token struct {
		ID uuid.UUID `json:"id"`
	}
	if json.Unmarshal(e.Token, &token) != nil || token.ID == uuid.Nil {
		return nil, ErrBody
	}
	event.TokenID, event.Token = token.ID, Token{func() []byte { return e.Token }}
	return event, nil
}
