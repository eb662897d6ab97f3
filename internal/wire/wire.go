// Package wire writes the JSON of answers and deliveries, member by member:
// encoding/json costs three times as much for a token, and sixty allocations for a
// page.
package wire

import (
	"encoding/hex"
	"encoding/json"
	"strconv"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/google/uuid"
)

// An Object appends a JSON object to B. Every documented member is always present:
// what is absent is null. Names are written as they are.
type Object struct{ B []byte }

// Open begins the object, or that of a member after Name.
func (o *Object) Open() { o.B = append(o.B, '{') }

// Close ends the object that was opened last.
func (o *Object) Close() { o.B = append(o.B, '}') }

// Name begins a member, whose value the caller appends.
func (o *Object) Name(name string) {
	if o.B[len(o.B)-1] != '{' {
		o.B = append(o.B, ',')
	}
	o.B = append(o.B, '"')
	o.B = append(o.B, name...)
	o.B = append(o.B, '"', ':')
}

// Null appends a member that is absent.
func (o *Object) Null(name string) {
	o.Name(name)
	o.B = append(o.B, "null"...)
}

// Text appends a string, null if it is empty.
func (o *Object) Text(name, value string) {
	if value == "" {
		o.Null(name)
		return
	}
	o.Name(name)
	o.B = AppendString(o.B, value)
}

// Int appends a number.
func (o *Object) Int(name string, n int64) {
	o.Name(name)
	o.B = strconv.AppendInt(o.B, n, 10)
}

// Bool appends true or false.
func (o *Object) Bool(name string, value bool) {
	o.Name(name)
	o.B = strconv.AppendBool(o.B, value)
}

// ID appends an id, null if it is zero.
func (o *Object) ID(name string, id uuid.UUID) {
	if id == uuid.Nil {
		o.Null(name)
		return
	}
	o.Name(name)
	o.B = append(o.B, '"')
	o.B = append(o.B, id.String()...)
	o.B = append(o.B, '"')
}

// Time appends a time in UTC with microseconds, null if it is zero.
func (o *Object) Time(name string, t time.Time) {
	if t.IsZero() {
		o.Null(name)
		return
	}
	o.Name(name)
	o.B = t.UTC().AppendFormat(o.B, `"2006-01-02T15:04:05.000000Z"`)
}

// Failure appends the members of a failure, which a reason has too.
func (o *Object) Failure(f cardvault.Failure) {
	o.Text("source", f.Source.String())
	o.Text("code", f.Code)
	o.Text("message", f.Message)
	o.Bool("retryable", f.Retryable)
	o.Text("scheme_code", f.SchemeCode)
}

// AppendString appends a JSON string.
func AppendString(b []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			quoted, _ := json.Marshal(s) // a string always has a JSON form
			return append(b, quoted...)
		}
	}
	b = append(b, '"')
	b = append(b, s...)
	return append(b, '"')
}

// AppendToken appends a token.
func AppendToken(b []byte, t *cardvault.Token) []byte {
	o := Object{b}
	o.Open()
	o.ID("id", t.ID)
	if t.CardholderName.IsZero() {
		o.Null("cardholder_name")
	} else {
		o.Name("cardholder_name")
		t.CardholderName.Expose(func(name []byte) { o.B = AppendString(o.B, string(name)) })
	}

	o.Text("card_art_url", t.CardArtURL)
	o.Time("created_at", t.CreatedAt)
	o.Int("expiry_month", int64(t.Expiry.Month))
	o.Int("expiry_year", int64(t.Expiry.Year))
	o.Time("expires_at", t.ExpiresAt)
	o.Time("invalidated_at", t.InvalidatedAt)
	o.Text("issuer_identification_number", t.IIN)
	o.Text("account_number_last_four", t.LastFour)
	o.Int("account_number_length", int64(t.AccountNumberLength))
	o.Text("masked_account_number", t.MaskedAccountNumber)
	o.Text("bank_name", t.BankName)
	o.Text("segment", t.Segment)
	o.Text("status", t.Status.String())
	o.Text("type", t.Type)
	o.Text("country_code", t.CountryCode)

	o.Text("network_token_status", t.NetworkTokenStatus.String())
	if r := t.NetworkTokenStatusReason; r == nil {
		o.Null("network_token_status_reason")
	} else {
		o.Name("network_token_status_reason")
		o.Open()
		o.Failure(cardvault.Failure{Source: r.Source, Code: r.Code, Message: r.Message, Retryable: r.Retryable, SchemeCode: r.SchemeCode})
		o.Time("occurred_at", r.OccurredAt)
		o.Close()
	}

	o.Text("scheme", t.Scheme.String())
	o.Text("identity_and_verification", t.Identification.String())
	o.Name("authentication_data")
	o.Open()
	if a := t.Authentication; a != nil {
		o.Text("method", a.Method)
		o.Text("status", a.Status)
		o.Text("eci", a.ECI)
		o.Text("ds_transaction_id", a.DSTransactionID)
		o.Time("authenticated_at", a.At)
	}
	o.Close()

	o.Bool("supports_device_binding", t.SupportsDeviceBinding)
	o.Text("business_key", t.BusinessKey)
	o.Text("import_provider", t.ImportProvider)
	if t.Fingerprint == (cardvault.Fingerprint{}) {
		o.Null("fingerprint")
	} else {
		o.Name("fingerprint")
		o.B = append(o.B, '"')
		o.B = hex.AppendEncode(o.B, t.Fingerprint[:])
		o.B = append(o.B, '"')
	}

	o.Close()
	return o.B
}
