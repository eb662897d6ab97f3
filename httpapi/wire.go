package httpapi

import (
	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/internal/wire"
)

// appendPaymentData appends a payment data record: chapter 2.3 of the interface
// document.
func appendPaymentData(b []byte, p *cardvault.PaymentData) []byte {
	o := wire.Object{B: b}
	o.Open()
	o.ID("id", p.ID)
	o.Int("amount", p.Amount)
	o.Text("currency_code", p.Currency)
	o.Time("created_at", p.CreatedAt)
	o.Text("encrypted_authentication_data", p.Encrypted)
	o.Name("failure_details")
	o.B = append(o.B, '[')
	for i, f := range p.Failures {
		if i > 0 {
			o.B = append(o.B, ',')
		}
		o.Open()
		o.Failure(f)
		o.Close()
	}
	o.B = append(o.B, ']')
	o.ID("merchant_id", p.Merchant)
	o.Text("reference", p.Reference)
	o.Bool("success", p.Success)
	o.ID("token_id", p.TokenID)
	o.Close()
	return o.B
}

// appendAPIKey appends an API key, with its text if that is to be shown.
func appendAPIKey(b []byte, k *cardvault.APIKey, text string) []byte {
	o := wire.Object{B: b}
	o.Open()
	o.ID("id", k.ID)
	o.Text("label", k.Label)
	o.Time("created_at", k.CreatedAt)
	o.Time("expires_at", k.ExpiresAt)
	o.Name("scopes")
	o.B = append(o.B, '[')
	for i, s := range k.Scopes {
		if i > 0 {
			o.B = append(o.B, ',')
		}
		o.B = wire.AppendString(o.B, string(s))
	}
	o.B = append(o.B, ']')
	if text != "" {
		o.Text("key", text)
	}
	o.Close()
	return o.B
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
	o := wire.Object{B: b}
	o.Open()
	o.Int("current_page", int64(p.Page))
	o.Int("page_size", int64(p.Limit))
	o.Int("total_items", p.TotalItems)
	o.Int("total_pages", p.TotalPages)
	o.Close()
	return append(o.B, '}')
}
