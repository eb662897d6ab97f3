package httpapi

import (
	"encoding/hex"
	"encoding/json"
	"strconv"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/google/uuid"
)

// The answers, appended member by member: encoding/json costs three times as
// much for a token, and sixty allocations for a page.

// An object appends a JSON object. Every documented member is always present:
// what is absent is null.
type object struct{ b []byte }

func (o *object) name(name string) {
	if o.b[len(o.b)-1] != '{' {
		o.b = append(o.b, ',')
	}
	o.b = append(o.b, '"')
	o.b = append(o.b, name...)
	o.b = append(o.b, '"', ':')
}

func (o *object) null(name string) {
	o.name(name)
	o.b = append(o.b, "null"...)
}

// text appends a string, null if it is empty.
func (o *object) text(name, value string) {
	if value == "" {
		o.null(name)
		return
	}
	o.name(name)
	o.b = appendString(o.b, value)
}

func (o *object) int(name string, n int64) {
	o.name(name)
	o.b = strconv.AppendInt(o.b, n, 10)
}

func (o *object) bool(name string, value bool) {
	o.name(name)
	o.b = strconv.AppendBool(o.b, value)
}

// id appends an id, null if it is zero.
func (o *object) id(name string, id uuid.UUID) {
	if id == uuid.Nil {
		o.null(name)
		return
	}
	o.name(name)
	o.b = append(o.b, '"')
	o.b = append(o.b, id.String()...)
	o.b = append(o.b, '"')
}

// time appends a time in UTC with microseconds, null if it is zero.
func (o *object) time(name string, t time.Time) {
	if t.IsZero() {
		o.null(name)
		return
	}
	o.name(name)
	o.b = t.UTC().AppendFormat(o.b, `"2006-01-02T15:04:05.000000Z"`)
}

// failure appends the members of a failure, which a reason has too.
func (o *object) failure(f cardvault.Failure) {
	o.text("source", f.Source.String())
	o.text("code", f.Code)
	o.text("message", f.Message)
	o.bool("retryable", f.Retryable)
	o.text("scheme_code", f.SchemeCode)
}

func (o *object) open()  { o.b = append(o.b, '{') }
func (o *object) close() { o.b = append(o.b, '}') }

// appendString appends a JSON string.
func appendString(b []byte, s string) []byte {
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

// appendToken appends a token: chapter 2.1 of the interface document.
func appendToken(b []byte, t *cardvault.Token) []byte {
	o := object{b}
	o.open()
	o.id("id", t.ID)
	if t.CardholderName.IsZero() {
		o.null("cardholder_name")
	} else {
		o.name("cardholder_name")
		t.CardholderName.Expose(func(name []byte) { o.b = appendString(o.b, string(name)) })
	}
	o.text("card_art_url", t.CardArtURL)
	o.time("created_at", t.CreatedAt)
	o.int("expiry_month", int64(t.Expiry.Month))
	o.int("expiry_year", int64(t.Expiry.Year))
	o.time("expires_at", t.ExpiresAt)
	o.time("invalidated_at", t.InvalidatedAt)
	o.text("issuer_identification_number", t.IIN)
	o.text("account_number_last_four", t.LastFour)
	o.int("account_number_length", int64(t.AccountNumberLength))
	o.text("masked_account_number", t.MaskedAccountNumber)
	o.text("bank_name", t.BankName)
	o.text("segment", t.Segment)
	o.text("status", t.Status.String())
	o.text("type", t.Type)
	o.text("country_code", t.CountryCode)
	o.text("network_token_status", t.NetworkTokenStatus.String())
	if r := t.NetworkTokenStatusReason; r == nil {
		o.null("network_token_status_reason")
	} else {
		o.name("network_token_status_reason")
		o.open()
		o.failure(cardvault.Failure{Source: r.Source, Code: r.Code, Message: r.Message, Retryable: r.Retryable, SchemeCode: r.SchemeCode})
		o.time("occurred_at", r.OccurredAt)
		o.close()
	}
	o.text("scheme", t.Scheme.String())
	o.text("identity_and_verification", t.Identification.String())
	o.name("authentication_data")
	o.open()
	if a := t.Authentication; a != nil {
		o.text("method", a.Method)
		o.text("status", a.Status)
		o.text("eci", a.ECI)
		o.text("ds_transaction_id", a.DSTransactionID)
		o.time("authenticated_at", a.At)
	}
	o.close()
	o.bool("supports_device_binding", t.SupportsDeviceBinding)
	o.text("business_key", t.BusinessKey)
	o.text("import_provider", t.ImportProvider)
	o.name("fingerprint")
	o.b = append(o.b, '"')
	o.b = hex.AppendEncode(o.b, t.Fingerprint[:])
	o.b = append(o.b, '"')
	o.close()
	return o.b
}

// appendPaymentData appends a payment data record: chapter 2.3 of the interface
// document.
func appendPaymentData(b []byte, p *cardvault.PaymentData) []byte {
	o := object{b}
	o.open()
	o.id("id", p.ID)
	o.int("amount", p.Amount)
	o.text("currency_code", p.Currency)
	o.time("created_at", p.CreatedAt)
	o.text("encrypted_authentication_data", p.Encrypted)
	o.name("failure_details")
	o.b = append(o.b, '[')
	for i, f := range p.Failures {
		if i > 0 {
			o.b = append(o.b, ',')
		}
		o.open()
		o.failure(f)
		o.close()
	}
	o.b = append(o.b, ']')
	o.id("merchant_id", p.Merchant)
	o.text("reference", p.Reference)
	o.bool("success", p.Success)
	o.id("token_id", p.TokenID)
	o.close()
	return o.b
}

// appendAPIKey appends an API key, with its text if that is to be shown.
func appendAPIKey(b []byte, k *cardvault.APIKey, text string) []byte {
	o := object{b}
	o.open()
	o.id("id", k.ID)
	o.text("label", k.Label)
	o.time("created_at", k.CreatedAt)
	o.time("expires_at", k.ExpiresAt)
	o.name("scopes")
	o.b = append(o.b, '[')
	for i, s := range k.Scopes {
		if i > 0 {
			o.b = append(o.b, ',')
		}
		o.b = appendString(o.b, string(s))
	}
	o.b = append(o.b, ']')
	if text != "" {
		o.text("key", text)
	}
	o.close()
	return o.b
}

// appendPage appends a page of a list: its items in data, and pagination.
func appendPage[T any](b []byte, p *cardvault.Page[T], item func([]byte, T) []byte) []byte {
	b = append(b, `{"data":[`...)
	for i, x := range p.Items {
		if i > 0 {
			b = append(b, ',')
		}
		b = item(b, x)
	}
	b = append(b, `],"pagination":`...)
	o := object{b}
	o.open()
	o.int("current_page", int64(p.Page))
	o.int("page_size", int64(p.Limit))
	o.int("total_items", p.TotalItems)
	o.int("total_pages", p.TotalPages)
	o.close()
	return append(o.b, '}')
}
