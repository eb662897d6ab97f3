package cardvault

import (
	"log/slog"

	"github.com/cardvault/cardvault/internal/wire"
)

// The JSON of these types equals the REST API's, byte for byte, and UnmarshalJSON restores
// every field that has a tag from it. An object with more than 1,000 members, known or not,
// or a list with more items is an error. json.Marshal also escapes <, > and &; an Encoder
// with SetEscapeHTML(false) does not.

// MarshalJSON writes a token as REST answers with it: with cardholder name and fingerprint.
func (t Token) MarshalJSON() ([]byte, error) { return wire.Append(nil, &t), nil }

// MarshalJSON writes a reason as it is in a token.
func (r Reason) MarshalJSON() ([]byte, error) { return wire.Append(nil, &r), nil }

// MarshalJSON writes payment data as REST answers with them.
func (p PaymentData) MarshalJSON() ([]byte, error) { return wire.Append(nil, &p), nil }

// MarshalJSON writes a failure as it is in payment data.
func (f Failure) MarshalJSON() ([]byte, error) { return wire.Append(nil, &f), nil }

// MarshalJSON writes an event as webhooks receive it: with cardholder name, no fingerprint.
func (e Event) MarshalJSON() ([]byte, error) { return wire.Append(nil, &e), nil }

// MarshalJSON writes a webhook as REST lists it: without its secrets.
func (w Webhook) MarshalJSON() ([]byte, error) { return wire.Append(nil, &w), nil }

// MarshalJSON writes a delivery as REST lists it.
func (d DeliveryRecord) MarshalJSON() ([]byte, error) { return wire.Append(nil, &d), nil }

// MarshalJSON writes a merchant as REST lists it: without the values of its secrets.
func (m Merchant) MarshalJSON() ([]byte, error) { return wire.Append(nil, &m), nil }

// MarshalJSON writes a payment secret as it is in a merchant: without its value.
func (s PaymentSecret) MarshalJSON() ([]byte, error) { return wire.Append(nil, &s), nil }

// MarshalJSON writes an API key as REST lists it: without its text.
func (k APIKey) MarshalJSON() ([]byte, error) { return wire.Append(nil, &k), nil }

// UnmarshalJSON reads a token as MarshalJSON writes it.
func (t *Token) UnmarshalJSON(data []byte) error { return wire.Read("token", data, t) }

// UnmarshalJSON reads a reason as MarshalJSON writes it.
func (r *Reason) UnmarshalJSON(data []byte) error { return wire.Read("reason", data, r) }

// UnmarshalJSON reads payment data as MarshalJSON writes it.
func (p *PaymentData) UnmarshalJSON(data []byte) error { return wire.Read("payment data", data, p) }

// UnmarshalJSON reads a failure as MarshalJSON writes it.
func (f *Failure) UnmarshalJSON(data []byte) error { return wire.Read("failure", data, f) }

// UnmarshalJSON reads an event as MarshalJSON writes it.
func (e *Event) UnmarshalJSON(data []byte) error { return wire.Read("event", data, e) }

// UnmarshalJSON reads a webhook as MarshalJSON writes it.
func (w *Webhook) UnmarshalJSON(data []byte) error { return wire.Read("webhook", data, w) }

// UnmarshalJSON reads a delivery as MarshalJSON writes it.
func (d *DeliveryRecord) UnmarshalJSON(data []byte) error { return wire.Read("delivery", data, d) }

// UnmarshalJSON reads a merchant as MarshalJSON writes it.
func (m *Merchant) UnmarshalJSON(data []byte) error { return wire.Read("merchant", data, m) }

// UnmarshalJSON reads a payment secret as MarshalJSON writes it.
func (s *PaymentSecret) UnmarshalJSON(data []byte) error { return wire.Read("payment secret", data, s) }

// UnmarshalJSON reads an API key as MarshalJSON writes it.
func (k *APIKey) UnmarshalJSON(data []byte) error { return wire.Read("API key", data, k) }

// MarshalJSON returns the answer of REST for the page, with the ids of damaged records.
func (p Page[T]) MarshalJSON() ([]byte, error) {
	return wire.Append(make([]byte, 0, 1024*(1+len(p.Items))), &wire.Page[T]{Items: p.Items, Damaged: p.damaged,
		Pagination: wire.Pagination{Page: p.Page, Limit: p.Limit, TotalItems: p.TotalItems, TotalPages: p.TotalPages}}), nil
}

// UnmarshalJSON reads a page as MarshalJSON writes it.
func (p *Page[T]) UnmarshalJSON(data []byte) error {
	var w wire.Page[T]
	err := wire.Read("page", data, &w)
	if err == nil && string(data) != "null" {
		n := w.Pagination
		*p = Page[T]{w.Items, n.Page, n.Limit, n.TotalItems, n.TotalPages, w.Damaged}
	}
	return err
}

// LogValue keeps the name of the cardholder, which MarshalJSON writes, out of logs in JSON.
// It cannot where a token is inside a value that is logged.
func (t Token) LogValue() slog.Value {
	return slog.GroupValue(slog.String("id", t.ID.String()), slog.String("account_number", t.MaskedAccountNumber))
}

// LogValue keeps the name of the cardholder out of logs, as a token's does.
func (e Event) LogValue() slog.Value {
	return slog.GroupValue(slog.String("id", e.ID.String()), slog.String("type", string(e.Type)), slog.String("token", e.TokenID.String()))
}

// LogValue keeps the name of the cardholder out of logs, as a token's does.
func (d Delivery) LogValue() slog.Value {
	return slog.GroupValue(slog.String("id", d.ID.String()), slog.String("url", d.URL))
}

// LogValue keeps the names of cardholders out of logs, as a token's does.
func (p Page[T]) LogValue() slog.Value {
	return slog.GroupValue(slog.Int("page", p.Page), slog.Int("items", len(p.Items)))
}
