package httpapi

import (
	"encoding/base64"

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

// state answers with the state of a session.
func (c *call) state(s *cardvault.Session, err error) error {
	if err != nil {
		return err
	}
	c.refused = s.ReasonCode != ""
	o := wire.Object{B: c.answer}
	o.Open()
	switch {
	case c.refused:
		o.Name("data")
		o.Open()
		o.Text("reason", reasons[s.ReasonCode])
		o.Text("reason_code", s.ReasonCode)
		o.Close()
		o.Text("status", "failed")
	case s.State == cardvault.SessionSucceeded:
		o.Name("data")
		o.Open()
		o.ID("token_id", s.TokenID)
		o.Close()
		o.Text("status", "success")
	case s.State == cardvault.SessionOpen:
		o.Name("data")
		o.Open()
		o.Name("jwk")
		o.Open()
		o.Text("kty", "RSA")
		o.Text("n", base64.RawURLEncoding.EncodeToString(s.Key.N))
		o.Text("e", "AQAB")
		o.Text("alg", "RSA-OAEP-256")
		o.Text("use", "enc")
		o.Text("kid", s.Key.ID)
		o.Close()
		if s.Refresh {
			o.Text("masked_account_number", s.MaskedAccountNumber)
			o.Text("scheme", s.Scheme.String())
		}
		o.Close()
	case s.ChallengeURL != "":
		o.Name("data")
		o.Open()
		o.Text("url", s.ChallengeURL)
		o.Close()
	}
	if s.State == cardvault.SessionOpen || s.State == cardvault.SessionIdentifying {
		o.Text("next_action", nextAction(s))
	}
	o.Close()
	c.answer = o.B
	return nil
}

func appendWebhook(b []byte, w *cardvault.Webhook, secret cardvault.WebhookSecret) []byte {
	o := wire.Object{B: b}
	o.Open()
	o.ID("id", w.ID)
	o.Time("created_at", w.CreatedAt)
	o.Text("url", w.URL)
	o.Text("description", w.Description)
	o.Name("events")
	o.B = append(o.B, '[')
	for i, e := range w.Events {
		if i > 0 {
			o.B = append(o.B, ',')
		}
		o.B = wire.AppendString(o.B, e.String())
	}
	o.B = append(o.B, ']')
	o.Bool("legacy_hmac", w.LegacyHMAC)
	if w.Disabled {
		o.Text("status", disabled)
	} else {
		o.Text("status", enabled)
	}
	o.Text("disabled_reason", w.DisabledReason)
	if !secret.IsZero() {
		secret.Expose(func(text []byte) { o.Text("signing_secret", string(text)) })
	}
	o.Close()
	return o.B
}

func appendDelivery(b []byte, d *cardvault.DeliveryRecord) []byte {
	o := wire.Object{B: b}
	o.Open()
	o.ID("id", d.ID)
	o.ID("event_id", d.EventID)
	o.Text("event_type", d.EventType.String())
	o.ID("token_id", d.TokenID)
	o.Text("status", d.Status.String())
	o.Int("attempts", int64(d.Attempts))
	o.Time("last_attempt_at", d.LastAttemptAt)
	o.Time("next_attempt_at", d.NextAttemptAt)
	status(&o, "last_status_code", d.LastStatusCode)
	o.Close()
	return o.B
}

// status appends a status of HTTP, null if there was no answer.
func status(o *wire.Object, name string, code int) {
	if code == 0 {
		o.Null(name)
		return
	}
	o.Int(name, int64(code))
}

// appendPPAN appends the answer of a provider: chapter 2.6 of the interface
// document. Unlike elsewhere, what is absent is left out.
func appendPPAN(b []byte, p *cardvault.PPAN) []byte {
	o := wire.Object{B: b}
	o.Open()
	for _, m := range []struct{ name, value string }{
		{"status", p.Status.String()},
		{"cardtype", p.CardType},
		{"cardexpiredate", p.CardExpiry},
		{"pseudocardpan", p.PseudoPAN.Text()},
		{"truncatedcardpan", p.TruncatedPAN},
		{"tcdata", p.TravelCard},
		{"tcprovider", p.TravelCardProvider},
		{"tcinvoice", p.TravelCardInvoice},
		{"errorcode", p.ErrorCode},
		{"errormessage", p.ErrorMessage},
		{"customermessage", p.CustomerMessage},
	} {
		if m.value != "" {
			o.Text(m.name, m.value)
		}
	}
	o.Close()
	return o.B
}
