package cardvault_test

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/idv"
	"github.com/cardvault/cardvault/network"
	"github.com/cardvault/cardvault/receive"
	"github.com/google/uuid"
	"pgregory.net/rapid"
)

// These generate values as a vault makes them.
var (
	someText = rapid.StringN(0, 40, 255)
	someID   = rapid.Custom(func(t *rapid.T) uuid.UUID {
		return uuid.UUID(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "id"))
	})
	someTime = rapid.Custom(func(t *rapid.T) time.Time {
		if rapid.Bool().Draw(t, "absent") {
			return time.Time{}
		}
		return time.UnixMicro(rapid.Int64Range(0, 4e15).Draw(t, "time")).UTC()
	})
	someFailure = rapid.Custom(func(t *rapid.T) cardvault.Failure {
		return cardvault.Failure{
			Source: network.Source(rapid.IntRange(0, 2).Draw(t, "source")), Code: network.Code(someText.Draw(t, "code")), Message: someText.Draw(t, "message"),
			Retryable: rapid.Bool().Draw(t, "retryable"), SchemeCode: someText.Draw(t, "scheme code"),
		}
	})
	someToken = rapid.Custom(func(t *rapid.T) *cardvault.Token {
		tok := &cardvault.Token{
			ID: someID.Draw(t, "id"), CardholderName: card.NewName([]byte(someText.Draw(t, "name"))), CardArtURL: someText.Draw(t, "art"),
			CreatedAt: someTime.Draw(t, "created"), Expiry: card.Expiry{Month: rapid.IntRange(1, 12).Draw(t, "month"), Year: rapid.IntRange(2000, 2099).Draw(t, "year")},
			ExpiresAt: someTime.Draw(t, "expires"), InvalidatedAt: someTime.Draw(t, "invalidated"),
			IIN: someText.Draw(t, "IIN"), LastFour: someText.Draw(t, "last four"), AccountNumberLength: rapid.IntRange(12, 19).Draw(t, "length"),
			MaskedAccountNumber: someText.Draw(t, "masked"), BankName: someText.Draw(t, "bank"), Segment: someText.Draw(t, "segment"),
			Status: cardvault.Status(rapid.IntRange(0, 2).Draw(t, "status")), Type: someText.Draw(t, "type"), CountryCode: someText.Draw(t, "country"),
			NetworkTokenStatus: network.Status(rapid.IntRange(0, 5).Draw(t, "network token")), Scheme: card.Scheme(rapid.IntRange(0, 7).Draw(t, "scheme")),
			Identification: idv.Identification(rapid.IntRange(0, 2).Draw(t, "identification")), SupportsDeviceBinding: rapid.Bool().Draw(t, "binding"),
			BusinessKey: someText.Draw(t, "key"), ImportProvider: someText.Draw(t, "provider"), PaymentAccountReference: someText.Draw(t, "account reference"),
		}
		copy(tok.Fingerprint[:], rapid.SliceOfN(rapid.Byte(), 0, 32).Draw(t, "fingerprint"))
		if rapid.Bool().Draw(t, "reason") {
			f := someFailure.Draw(t, "reason")
			tok.NetworkTokenStatusReason = &cardvault.Reason{Source: f.Source, Code: f.Code, Message: f.Message, Retryable: f.Retryable, SchemeCode: f.SchemeCode, OccurredAt: someTime.Draw(t, "occurred")}
		}
		if rapid.Bool().Draw(t, "authentication") {
			tok.Authentication = &idv.Authentication{Method: someText.Draw(t, "method"), Status: someText.Draw(t, "status"), ECI: someText.Draw(t, "ECI"),
				DSTransactionID: someText.Draw(t, "transaction"), At: someTime.Draw(t, "authenticated")}
		}
		return tok
	})
)

// TestJSONReadsAsWritten: a value that is marshaled and unmarshaled stays the same.
func TestJSONReadsAsWritten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tok := someToken.Draw(t, "token")
		again(t, tok)
		again(t, tok.NetworkTokenStatusReason)
		again(t, &cardvault.PaymentData{
			ID: someID.Draw(t, "id"), Amount: rapid.Int64Range(0, 1<<53-1).Draw(t, "amount"), Currency: "EUR", CreatedAt: someTime.Draw(t, "created"),
			Encrypted: someText.Draw(t, "JWE"), Failures: rapid.SliceOfN(someFailure, 0, 3).Draw(t, "failures"), Merchant: someID.Draw(t, "merchant"),
			Reference: someText.Draw(t, "reference"), Success: rapid.Bool().Draw(t, "success"), TokenID: tok.ID,
			Initiator: cardvault.Initiator(rapid.IntRange(0, 1).Draw(t, "initiator")), NetworkTransactionID: someText.Draw(t, "transaction"),
		})
		again(t, &cardvault.Page[*cardvault.Token]{Items: []*cardvault.Token{tok}, Page: 3, Limit: 50, TotalItems: 1 << 40, TotalPages: 7})
		again(t, &cardvault.Page[*cardvault.Token]{Items: []*cardvault.Token{}, Page: 1, Limit: 50})

		e := &cardvault.Event{ID: someID.Draw(t, "event"), CreatedAt: someTime.Draw(t, "time"), Sequence: rapid.Uint64().Draw(t, "sequence"), TokenID: tok.ID}
		if e.Type, e.Reason, e.Token = receive.TokenUpdated, receive.ReasonPatched, tok; tok.ID == uuid.Nil || rapid.Bool().Draw(t, "deleted") {
			e.Type, e.Reason, e.Token = receive.TokenDeleted, receive.ReasonExpired, nil
		}
		again(t, e)
	})
}

// again checks that a value survives a round trip through JSON.
func again[T any](t *rapid.T, value *T) {
	if value == nil {
		return
	}
	text, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	var read T
	if err := json.Unmarshal(text, &read); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	if got, want := revealed(reflect.ValueOf(read)), revealed(reflect.ValueOf(*value)); !reflect.DeepEqual(got, want) {
		t.Fatalf("%s\nreads as %+v\nnot      %+v", text, got, want)
	}
}

// revealed returns the exported fields of a value by name. It includes the text of
// cardholder names.
func revealed(v reflect.Value) any {
	switch x := v.Interface().(type) {
	case card.Name:
		var text string
		x.Expose(func(b []byte) { text = string(b) })
		return text
	case time.Time, uuid.UUID, cardvault.Fingerprint:
		return x
	}
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			return nil
		}
		return revealed(v.Elem())
	case reflect.Slice:
		all := []any{}
		for i := range v.Len() {
			all = append(all, revealed(v.Index(i)))
		}
		return all
	case reflect.Struct:
		all := map[string]any{}
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.IsExported() && f.Type != reflect.TypeFor[cardvault.SessionID]() {
				all[f.Name] = revealed(v.Field(i))
			}
		}
		return all
	}
	return v.Interface()
}

// TestJSONErrors: the error names the bad member and does not show its value.
func TestJSONErrors(t *testing.T) {
	for _, test := range []struct {
		to         any
		text, want string
	}{
		{new(cardvault.Token), `{"network_token_status":"Hidden"}`, "cardvault: token: network_token_status is not one of its values"},
		{new(cardvault.Token), `{"scheme":"Hidden"}`, "cardvault: token: scheme is not one of its values"},
		{new(cardvault.Token), `{"identity_and_verification":"Hidden"}`, "cardvault: token: identity_and_verification is not one of its values"},
		{new(cardvault.Token), `{"status":"Hidden"}`, "cardvault: token: status is not one of its values"},
		{new(cardvault.Token), `{"network_token_status_reason":{"source":"Hidden"}}`, "cardvault: token: network_token_status_reason source is not one of its values"},
		{new(cardvault.Token), `{"cardholder_name":["Hidden"]}`, "cardvault: token: cardholder_name is not a string"},
		{new(cardvault.Token), `["Hidden"]`, "cardvault: token: is not an object"},
		{new(cardvault.PaymentData), `{"amount":9007199254740992}`, "cardvault: payment data: amount is not a number from 0 to 2^53 - 1"},
		{new(cardvault.Event), `{"sequence":-1}`, "cardvault: event: sequence is not a number of at least 0"},
		{new(cardvault.Webhook), `{"status":"Hidden"}`, "cardvault: webhook: status is not one of its values"},
		{new(cardvault.DeliveryRecord), `{"status":"Hidden"}`, "cardvault: delivery: status is not one of its values"},
		{new(cardvault.APIKey), `{"scopes":"Hidden"}`, "cardvault: API key: scopes is not a list"},
		{new(cardvault.Page[*cardvault.Token]), `{"data":[{"id":"Hidden"}]}`, "cardvault: page: data item: id is not an id"},
		{new(cardvault.Page[*cardvault.Token]), `{"data":[` + strings.Repeat("{},", 1000) + `{}]}`, "cardvault: page: data has more than 1000 items"},
	} {
		if err := json.Unmarshal([]byte(test.text), test.to); err == nil || err.Error() != test.want {
			t.Errorf("%.60s: %v\nwant %s", test.text, err, test.want)
		}
	}
}

// TestLogHasNoName: values whose JSON contains a cardholder name are logged as JSON without
// it.
func TestLogHasNoName(t *testing.T) {
	tok := cardvault.Token{ID: uuid.New(), MaskedAccountNumber: "424242******4242", CardholderName: card.NewName([]byte(secretName))}
	e := cardvault.Event{ID: uuid.New(), Type: receive.TokenCreated, TokenID: tok.ID, Token: &tok}
	var b bytes.Buffer
	log := slog.New(slog.NewJSONHandler(&b, nil))
	log.Info("x", "token", tok, "pointer", &tok, "event", e, "delivery", &cardvault.Delivery{ID: e.ID, Event: &e}, "page", cardvault.Page[*cardvault.Token]{Items: []*cardvault.Token{&tok}})
	if got := b.String(); strings.Contains(got, secretName) || strings.Count(got, tok.MaskedAccountNumber) != 2 || strings.Count(got, e.ID.String()) != 2 || strings.Contains(got, "PANIC") {
		t.Error(got)
	}
}
