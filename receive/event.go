package receive

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/cardvault/cardvault/card"
	"github.com/google/uuid"
)

// An Event reports a change of a token. It holds no card number, security code or
// cryptogram. To pass it on, pass on the body that [Parse] reads: an Event has no JSON form
// of its own.
type Event struct {
	ID        uuid.UUID // the same when it is delivered again
	CreatedAt time.Time

	// Type can be unknown to this version: ignore such events.
	Type   EventType
	Reason EventReason // "" of a test

	// Sequence rises in the order in which the events of an account come about, with gaps,
	// and may pass 2^53. It is 0 in a test.
	Sequence uint64

	TokenID uuid.UUID // zero in a test

	// PreviousLastFour shows the former card number, for ReasonCardReplaced and
	// ReasonCardUpdatedByIssuer.
	PreviousLastFour string

	// Token is as in the answer of GET /tokens/{id} at the time of the event. It is nil for
	// TokenDeleted and WebhookTest.
	Token *Token
}

// An EventType names a change of a token.
type EventType string

const (
	TokenCreated EventType = "token.created"
	TokenUpdated EventType = "token.updated"
	TokenDeleted EventType = "token.deleted"

	// WebhookTest is the type of a requested test event. It reports nothing and has no token.
	WebhookTest EventType = "webhook.test"
)

// An EventReason says why a token has changed. A receiver can meet reasons that it does not
// know.
type EventReason string

const (
	ReasonImported                  EventReason = "imported"  // created by an import
	ReasonTokenized                 EventReason = "tokenized" // created by a session
	ReasonNetworkTokenStatusChanged EventReason = "network_token_status_changed"
	ReasonCardUpdated               EventReason = "card_updated" // by its issuer: expiry, digits or art
	ReasonInvalidated               EventReason = "invalidated"  // the scheme invalidated the card
	ReasonPatched                   EventReason = "patched"      // by a call
	ReasonSecurityCodeRefreshed     EventReason = "security_code_refreshed"
	ReasonCardReplaced              EventReason = "card_replaced"          // the token has another card
	ReasonCardUpdatedByIssuer       EventReason = "card_updated_by_issuer" // likewise, by the account updater
	ReasonRequested                 EventReason = "requested"              // deleted by a call
	ReasonExpired                   EventReason = "expired"                // deleted at its expiration time
)

// A Token is a token as a vault shows it over REST and in events. Its UnmarshalJSON reads
// both. Members that this version does not know are ignored.
type Token struct {
	ID             uuid.UUID
	CreatedAt      time.Time
	ExpiresAt      time.Time // zero: it does not expire
	InvalidatedAt  time.Time // zero: the card is valid
	Expiry         card.Expiry
	CardholderName card.Name // may be empty

	IIN                 string // the first six or eight digits
	LastFour            string
	AccountNumberLength int
	MaskedAccountNumber string // such as "424242******4242"

	Scheme      string // such as "VISA"
	Type        string // of the card, such as "credit"; "" if it is not known
	BankName    string // likewise
	Segment     string // likewise
	CountryCode string // likewise
	CardArtURL  string // may be ""

	Status                   TokenStatus
	NetworkTokenStatus       NetworkTokenStatus
	NetworkTokenStatusReason *StatusReason // nil if active or pending

	// Identification is none, checked or skipped: whether the cardholder was identified
	// when the card was entered. Authentication holds the result, or nil.
	Identification string
	Authentication *Authentication

	SupportsDeviceBinding bool
	BusinessKey           string // may be ""
	ImportProvider        string // may be ""
	AccountNumberStale    bool   // the scheme has replaced the card number, and the vault has the old one
	UpdatedAt             time.Time

	// Fingerprint is the same for two tokens of one card number in an account. Events have
	// none, and answers only for an API key that may read it.
	Fingerprint string

	// PaymentAccountReference is the PAR of EMVCo. Events have none: it is as telling as
	// the fingerprint.
	PaymentAccountReference string
}

// A TokenStatus says whether the card of a token is valid.
type TokenStatus string

const (
	TokenActive  TokenStatus = "active"
	TokenInvalid TokenStatus = "invalid" // the scheme has invalidated the card; another can replace it
)

// A NetworkTokenStatus says whether payment data can be requested for a token.
type NetworkTokenStatus string

const (
	NetworkTokenNotAvailable NetworkTokenStatus = "not_available" // cannot be provisioned with the current configuration
	NetworkTokenPending      NetworkTokenStatus = "pending"       // being provisioned
	NetworkTokenActive       NetworkTokenStatus = "active"        // can be used
	NetworkTokenInactive     NetworkTokenStatus = "inactive"      // cannot be used now, such as while suspended
	NetworkTokenDeleted      NetworkTokenStatus = "deleted"       // final
	NetworkTokenFailed       NetworkTokenStatus = "failed"        // provisioning failed
)

// A StatusReason explains the status of a network token.
type StatusReason struct {
	Source     string // scheme, if the network or the issuer decided about this card, or configuration
	Code       string
	Message    string // for humans
	Retryable  bool
	SchemeCode string // of the network, "" if it gave none
	OccurredAt time.Time
}

// An Authentication is the result of the identification of a cardholder.
type Authentication struct {
	Method          string    // three_ds, security_code, otp or passkey
	Status          string    // of the transaction in EMV 3-D Secure: one letter, or ""
	ECI             string    // two digits, or ""
	DSTransactionID string    // of the directory server; may be ""
	At              time.Time // zero if it is not known
}

// Parse reads a body that was verified before, such as one out of a queue. Verify calls it.
// Its error wraps ErrBody and names the member that is wrong.
func Parse(body []byte) (*Event, error) {
	if len(body) > MaxBody {
		return nil, ErrTooLarge
	}
	e := &Event{}
	if err := e.decode(body); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrBody, err)
	}
	return e, nil
}

func (e *Event) decode(body []byte) error {
	var token json.RawMessage
	err := decode(body, []member{
		{"id", &e.ID},
		{"created_at", &e.CreatedAt},
		{"event_type", &e.Type},
		{"reason", &e.Reason},
		{"sequence", &e.Sequence},
		{"previous_account_number_last_four", &e.PreviousLastFour},
		{"token", &token},
	})

	switch {
	case err != nil:
		return err
	case e.ID == uuid.Nil:
		return missing("id")
	case e.CreatedAt.IsZero():
		return missing("created_at")
	case e.Type == "":
		return missing("event_type")
	case absent(token) && (e.Type == TokenCreated || e.Type == TokenUpdated || e.Type == TokenDeleted):
		return missing("token")
	case absent(token):
		return nil
	}

	t := &Token{}
	switch err := t.decode(token); {
	case err != nil && e.Type != TokenCreated && e.Type != TokenUpdated && e.Type != TokenDeleted:
		return nil // a type of later: its token may be another thing
	case err != nil:
		return fmt.Errorf("token: %w", err)
	}
	e.TokenID = t.ID
	if e.Type != TokenDeleted { // which has only the id
		e.Token = t
	}
	return nil
}

// UnmarshalJSON reads a token as it is in an event or an answer of the REST API. Its
// errors name the member that is wrong, without its value. null changes nothing.
func (t *Token) UnmarshalJSON(object []byte) error {
	if string(object) == "null" {
		return nil
	}
	*t = Token{}
	if err := t.decode(object); err != nil {
		return fmt.Errorf("receive: token: %w", err)
	}
	return nil
}

func (t *Token) decode(object []byte) error {
	var name quoted
	var reason, authentication json.RawMessage
	err := decode(object, []member{
		{"id", &t.ID},
		{"created_at", &t.CreatedAt},
		{"expires_at", &t.ExpiresAt},
		{"invalidated_at", &t.InvalidatedAt},
		{"expiry_month", &t.Expiry.Month},
		{"expiry_year", &t.Expiry.Year},
		{"cardholder_name", &name},
		{"issuer_identification_number", &t.IIN},
		{"account_number_last_four", &t.LastFour},
		{"account_number_length", &t.AccountNumberLength},
		{"masked_account_number", &t.MaskedAccountNumber},
		{"scheme", &t.Scheme},
		{"type", &t.Type},
		{"bank_name", &t.BankName},
		{"segment", &t.Segment},
		{"country_code", &t.CountryCode},
		{"card_art_url", &t.CardArtURL},
		{"status", &t.Status},
		{"network_token_status", &t.NetworkTokenStatus},
		{"network_token_status_reason", &reason},
		{"identity_and_verification", &t.Identification},
		{"authentication_data", &authentication},
		{"supports_device_binding", &t.SupportsDeviceBinding},
		{"business_key", &t.BusinessKey},
		{"import_provider", &t.ImportProvider},
		{"account_number_stale", &t.AccountNumberStale},
		{"updated_at", &t.UpdatedAt},
		{"fingerprint", &t.Fingerprint},
		{"payment_account_reference", &t.PaymentAccountReference},
	})
	t.CardholderName = card.NewName(name)
	clear(name)

	if err == nil && t.ID == uuid.Nil {
		err = missing("id")
	}
	if err == nil && !absent(reason) {
		t.NetworkTokenStatusReason = &StatusReason{}
		err = t.NetworkTokenStatusReason.decode(reason)
	}
	if err == nil && !absent(authentication) {
		var a Authentication
		if err = a.decode(authentication); a != (Authentication{}) {
			t.Authentication = &a
		}
	}
	return err
}

func (r *StatusReason) decode(object []byte) error {
	return decode(object, []member{
		{"source", &r.Source},
		{"code", &r.Code},
		{"message", &r.Message},
		{"retryable", &r.Retryable},
		{"scheme_code", &r.SchemeCode},
		{"occurred_at", &r.OccurredAt},
	})
}

func (a *Authentication) decode(object []byte) error {
	return decode(object, []member{
		{"method", &a.Method},
		{"status", &a.Status},
		{"eci", &a.ECI},
		{"ds_transaction_id", &a.DSTransactionID},
		{"authenticated_at", &a.At},
	})
}

// A member of a JSON object goes to a variable.
type member struct {
	name string
	to   any
}

// decode reads the members of an object. A member that is missing or null leaves its
// variable as it is. Errors of encoding/json would quote values.
func decode(object []byte, members []member) error {
	var all map[string]json.RawMessage
	if err := json.Unmarshal(object, &all); err != nil || all == nil {
		return errors.New("not a JSON object")
	}
	for _, m := range members {
		if value, ok := all[m.name]; ok && json.Unmarshal(value, m.to) != nil {
			return fmt.Errorf("%s has another type", m.name)
		}
	}
	return nil
}

// absent reports whether a member is missing or null.
func absent(value json.RawMessage) bool { return len(value) == 0 || string(value) == "null" }

func missing(name string) error { return fmt.Errorf("%s is missing", name) }

// A quoted text is a JSON string that can be overwritten.
type quoted []byte

func (q *quoted) UnmarshalText(b []byte) error {
	*q = append(quoted(nil), b...)
	return nil
}
