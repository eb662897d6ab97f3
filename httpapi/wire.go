package httpapi

import (
	"bytes"
	"encoding/base64"
	"strconv"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/internal/wire"
	"github.com/cardvault/cardvault/ppan"
)

// appendAPIKey appends an API key with its text, which is shown once.
func appendAPIKey(b []byte, k *cardvault.APIKey) []byte {
	o := wire.Object{B: wire.Append(b, k)}
	o.Reopen()
	o.Text("key", k.Text.Text())
	o.Close()
	return o.B
}

func appendViolation(b []byte, v violation) []byte {
	o := wire.Object{B: b}
	o.Open()
	o.Name("field")
	o.B = wire.AppendString(o.B, v.Field)
	o.Name("code")
	o.B = wire.AppendString(o.B, string(v.Code))
	o.Name("message")
	o.B = wire.AppendString(o.B, v.Message)
	o.Close()
	return o.B
}

// appendWebhook appends a webhook, with its secret if that may be shown.
func appendWebhook(b []byte, w *cardvault.Webhook) []byte {
	o := wire.Object{B: wire.Append(b, w)}
	if !w.Secret.IsZero() {
		o.Reopen()
		w.Secret.Expose(func(text []byte) { o.Text("signing_secret", string(text)) })
		o.Close()
	}
	return o.B
}

// appendPaymentSecret appends a payment secret with its value, which is shown once.
func appendPaymentSecret(b []byte, s *cardvault.PaymentSecret) []byte {
	o := wire.Object{B: wire.Append(b, s)}
	o.Reopen()
	o.Text("secret", s.Secret.Text())
	o.Close()
	return o.B
}

// appendStatus appends a status of HTTP, null if there was no answer.
func appendStatus(o *wire.Object, name string, code int) {
	if code == 0 {
		o.Null(name)
		return
	}
	o.Int(name, int64(code))
}

// appendPPAN appends the answer of a provider. Unlike elsewhere, absent members are left
// out.
func appendPPAN(b []byte, p *ppan.Answer) []byte {
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

// appendWebhookTest appends the outcome of a test of a webhook.
func appendWebhookTest(b []byte, r *cardvault.WebhookTest) []byte {
	o := wire.Object{B: b}
	o.Open()
	appendStatus(&o, "status_code", r.StatusCode)
	o.Int("duration_ms", r.Duration.Milliseconds())
	o.Close()
	return o.B
}

// appendSecurityCode appends whether a security code is there, and until when.
func appendSecurityCode(b []byte, s *cardvault.SecurityCodeStatus) []byte {
	o := wire.Object{B: b}
	o.Open()
	o.Bool("security_code_available", s.Available)
	o.Time("expires_at", s.ExpiresAt)
	o.Close()
	return o.B
}

// appendSessionID appends the id of a session that was made.
func appendSessionID(b []byte, id cardvault.SessionID) []byte {
	o := wire.Object{B: b}
	o.Open()
	o.ID("session_id", id.UUID())
	o.Close()
	return o.B
}

// appendSession appends the state of a session, as the browser that has its id sees it.
func appendSession(b []byte, s *cardvault.Session) []byte {
	o := wire.Object{B: b}
	o.Open()

	switch {
	case s.ReasonCode != "":
		o.Name("data")
		o.Open()
		o.Text("reason", reasons[s.ReasonCode])
		o.Text("reason_code", string(s.ReasonCode))
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
		appendTask(&o, s)
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
	return o.B
}

// appendTask appends what the browser needs to send a card in an open session.
func appendTask(o *wire.Object, s *cardvault.Session) {
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

	if s.Kind != cardvault.SessionTokenizes {
		o.Text("masked_account_number", s.MaskedAccountNumber)
		o.Text("scheme", s.Scheme.String())
	}
	o.Close()
}

// omitNull removes the members that are null from JSON without spaces, in place.
func omitNull(b []byte) []byte {
	kept := b[:0]
	for i := 0; i < len(b); {
		if b[i] != '"' {
			if b[i] == '}' {
				kept = bytes.TrimSuffix(kept, []byte(",")) // of members that are left out
			}
			kept = append(kept, b[i])
			i++
			continue
		}

		end := i + 1
		for b[end] != '"' {
			if b[end] == '\\' {
				end++
			}
			end++
		}
		end++

		if rest, ok := bytes.CutPrefix(b[end:], []byte(":null")); ok {
			i = len(b) - len(bytes.TrimPrefix(rest, []byte(",")))
			continue
		}
		kept = append(kept, b[i:end]...)
		i = end
	}
	return kept
}

// appendFailure appends the answer to a call that failed.
func appendFailure(b []byte, f *failure) []byte {
	b = append(b, `{"status":"`...)
	b = strconv.AppendInt(b, int64(f.status), 10)
	b = append(b, `","classifier":"`...)
	b = append(b, f.classifier...)
	b = append(b, `","message":`...)
	b = wire.AppendString(b, f.message)
	if f.violations != nil {
		b = append(b, `,"validation_errors":`...)
		b = appendList(b, f.violations, appendViolation)
	}
	if f.details != nil {
		b = append(b, `,"failure_details":`...)
		b = appendList(b, f.details, func(b []byte, d cardvault.Failure) []byte { return wire.Append(b, &d) })
	}
	return append(b, '}')
}

// appendList appends a JSON array, each item as appendItem appends it.
func appendList[T any](b []byte, items []T, appendItem func([]byte, T) []byte) []byte {
	b = append(b, '[')
	for i, x := range items {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendItem(b, x)
	}
	return append(b, ']')
}
