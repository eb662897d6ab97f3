package receive_test

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/internal/bubble"
	"github.com/cardvault/cardvault/internal/signature"
	"github.com/cardvault/cardvault/receive"
	"github.com/cardvault/cardvault/vaulttest"
	"github.com/google/uuid"
)

const (
	eventID = "7d7f3a52-6f0e-4d0b-8a43-0d2f9ddc2b11"
	tokenID = "1b2d3a52-6f0e-4d0b-8a43-0d2f9ddc2b11"
	body    = `{"id":"` + eventID + `","created_at":"2026-01-02T03:04:05.000006Z","event_type":"token.deleted",` +
		`"reason":"expired","sequence":1042,"token":{"id":"` + tokenID + `"}}`
)

// A number that appears in no error.
const canary = "6011000990139424"

// secret returns a secret of n bytes.
func secret(fill byte, n int) receive.WebhookSecret {
	key := base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{fill}, n))
	return receive.NewWebhookSecret([]byte("whsec_" + key))
}

var (
	former = secret(1, 24)
	newest = secret(2, 64)
)

func headers(id, at, signature string) http.Header {
	return http.Header{"Webhook-Id": {id}, "Webhook-Timestamp": {at}, "Webhook-Signature": {signature}}
}

// signed returns the headers of a delivery signed some time ago.
func signed(t testing.TB, ago time.Duration, body string, secrets ...receive.WebhookSecret) http.Header {
	t.Helper()
	at := strconv.FormatInt(time.Now().Add(-ago).Unix(), 10)
	var signatures []string
	for _, s := range secrets {
		s.Expose(func(text []byte) {
			made, err := signature.Sign(text, eventID, at, []byte(body))
			if err != nil {
				t.Fatal(err)
			}
			signatures = append(signatures, made)
		})
	}
	return headers(eventID, at, strings.Join(signatures, " "))
}

// The vector of Standard Webhooks is signed, and is not an event.
func TestVector(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		timer := time.NewTimer(time.Until(time.Unix(1614265330, 0)))
		defer timer.Stop()
		<-timer.C

		secret := receive.NewWebhookSecret([]byte("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"))
		header := headers("msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330", "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=")
		for payload, want := range map[string]error{
			`{"test": 2432232314}`:  receive.ErrBody,
			`{"test": 2432232314} `: receive.ErrSignature,
		} {
			if _, err := receive.Verify(header, []byte(payload), secret); !errors.Is(err, want) {
				t.Errorf("Verify = %v, want %v", err, want)
			}
		}
	})
}

func TestVerify(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		good := signed(t, 0, body, newest)
		only, at := good.Get("Webhook-Signature"), good.Get("Webhook-Timestamp")
		with := func(name string, values ...string) http.Header {
			h := good.Clone()
			h[name] = values
			return h
		}
		many := good.Clone()
		for i := range 300 {
			many[fmt.Sprint("X-", i)] = []string{"x"}
		}

		type secrets = []receive.WebhookSecret
		both := secrets{former, newest}
		for _, c := range []struct {
			name    string
			secrets secrets
			header  http.Header
			body    string
			want    error
		}{
			{"good", secrets{newest}, good, body, nil},
			{"one of two secrets", both, good, body, nil},
			{"the other way round", secrets{newest, former}, good, body, nil},
			{"one of two signatures", secrets{former}, signed(t, 0, body, former, newest), body, nil},
			{"after unknown ones", both, headers(eventID, at, "v1a,AAAA v2,"+only[3:]+" x v1, v1,AAAA "+only), body, nil},
			{"5 minutes old", both, signed(t, 5*time.Minute, body, newest), body, nil},
			{"5 minutes ahead", both, signed(t, -5*time.Minute, body, newest), body, nil},
			{"names in small letters", both, http.Header{"webhook-id": {eventID}, "webhook-timestamp": {at}, "webhook-signature": {only}}, body, nil},
			{"eight secrets", secrets{former, former, former, former, former, former, former, newest}, good, body, nil},

			{"older", both, signed(t, 5*time.Minute+time.Second, body, newest), body, receive.ErrTimestamp},
			{"further ahead", both, signed(t, -5*time.Minute-time.Second, body, newest), body, receive.ErrTimestamp},
			{"older, and another secret", secrets{former}, signed(t, time.Hour, body, newest), body, receive.ErrSignature},
			{"another secret", secrets{former}, good, body, receive.ErrSignature},
			{"another body", both, good, body + " ", receive.ErrSignature},
			{"no body", both, good, "", receive.ErrSignature},
			{"another id", both, headers(tokenID, at, only), body, receive.ErrSignature},
			{"another time", both, headers(eventID, at[:len(at)-1]+"1", only), body, receive.ErrSignature},
			{"another writing of the time", both, headers(eventID, "0"+at, only), body, receive.ErrSignature},
			{"another version", both, headers(eventID, at, "v2"+only[2:]), body, receive.ErrSignature},
			{"a part of it", both, headers(eventID, at, only[:len(only)-1]), body, receive.ErrSignature},
			{"empty", both, headers(eventID, at, "v1,"), body, receive.ErrSignature},
			{"commas", both, headers(eventID, at, ",,, , v1"), body, receive.ErrSignature},

			{"no id", both, headers("", at, only), body, receive.ErrHeader},
			{"no time", both, headers(eventID, "", only), body, receive.ErrHeader},
			{"no number", both, headers(eventID, canary+"x", only), body, receive.ErrHeader},
			{"a sign", both, headers(eventID, "+"+at, only), body, receive.ErrHeader},
			{"no signature", both, headers(eventID, at, ""), body, receive.ErrHeader},
			{"no headers", both, http.Header{}, body, receive.ErrHeader},
			{"nil headers", both, nil, body, receive.ErrHeader},
			{"two ids", both, with("Webhook-Id", eventID, canary), body, receive.ErrHeader},
			{"two names of an id", both, with("webhook-id", eventID), body, receive.ErrHeader},
			{"two times", both, with("Webhook-Timestamp", at, at), body, receive.ErrHeader},
			{"two headers of signatures", both, with("Webhook-Signature", only, only), body, receive.ErrHeader},
			{"a long id", both, headers(strings.Repeat(canary, 20), at, only), body, receive.ErrHeader},
			{"a long time", both, headers(eventID, strings.Repeat("0", 19)+at, only), body, receive.ErrHeader},
			{"too many signatures", both, headers(eventID, at, strings.Repeat("v1,x ", 1000)+only), body, receive.ErrHeader},
			{"too many headers", both, many, body, receive.ErrHeader},

			{"not an event", both, signed(t, 0, `{}`, newest), `{}`, receive.ErrBody},
			{"too large", both, good, strings.Repeat(canary, 4097), receive.ErrTooLarge},

			{"no secret", nil, good, body, receive.ErrSecret},
			{"a zero secret", secrets{newest, {}}, good, body, receive.ErrSecret},
			{"a short secret", secrets{newest, secret(1, 23)}, good, body, receive.ErrSecret},
			{"a long secret", secrets{secret(1, 65), newest}, good, body, receive.ErrSecret},
			{"a text that is not a secret", secrets{receive.NewWebhookSecret([]byte(canary))}, good, body, receive.ErrSecret},
			{"nine secrets", secrets{newest, newest, newest, newest, newest, newest, newest, newest, newest}, good, body, receive.ErrSecret},
		} {
			e, err := receive.Verify(c.header, []byte(c.body), c.secrets...)
			if !errors.Is(err, c.want) || (err == nil) != (e != nil) {
				t.Errorf("%s: Verify = %+v, %v", c.name, e, err)
			}
			if err != nil {
				vaulttest.AssertNoLeak(t, []string{canary}, err)
			}
		}
	})
}

// event returns a body with extra members, which replace its own.
func event(members string) string {
	return `{"id":"` + eventID + `","created_at":"2026-01-02T03:04:05Z","event_type":"x",` + members + `}`
}

func TestParse(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	full := receive.Token{
		ID: uuid.MustParse(tokenID), CreatedAt: at, ExpiresAt: at.Add(time.Hour), InvalidatedAt: at.Add(time.Minute),
		Expiry: card.Expiry{Month: 4, Year: 2031}, IIN: "424242", LastFour: "4242", AccountNumberLength: 16,
		MaskedAccountNumber: "424242******4242", Scheme: "VISA", Type: "credit", BankName: "Bänk", Segment: "business",
		CountryCode: "DE", CardArtURL: "https://vault.example/art", Status: receive.TokenInvalid,
		NetworkTokenStatus: receive.NetworkTokenFailed,
		NetworkTokenStatusReason: &receive.StatusReason{
			Source: "scheme", Code: "declined", Message: "No.", Retryable: true, SchemeCode: "05", OccurredAt: at,
		},
		Identification:        "checked",
		Authentication:        &receive.Authentication{Method: "three_ds", Status: "Y", ECI: "05", DSTransactionID: "x", At: at},
		SupportsDeviceBinding: true, BusinessKey: "order 7", ImportProvider: "import", Fingerprint: "ab",
	}
	const fullJSON = `{"id":"` + tokenID + `","created_at":"2026-01-02T03:04:05Z","expires_at":"2026-01-02T04:04:05Z",` +
		`"invalidated_at":"2026-01-02T03:05:05Z","expiry_month":4,"expiry_year":2031,"issuer_identification_number":"424242",` +
		`"account_number_last_four":"4242","account_number_length":16,"masked_account_number":"424242******4242","scheme":"VISA",` +
		`"type":"credit","bank_name":"B\u00e4nk","segment":"business","country_code":"DE","card_art_url":"https://vault.example/art",` +
		`"status":"invalid","network_token_status":"failed","network_token_status_reason":{"source":"scheme","code":"declined",` +
		`"message":"No.","retryable":true,"scheme_code":"05","occurred_at":"2026-01-02T03:04:05Z","more":1},` +
		`"identity_and_verification":"checked","authentication_data":{"method":"three_ds","status":"Y","eci":"05",` +
		`"ds_transaction_id":"x","authenticated_at":"2026-01-02T03:04:05Z"},"supports_device_binding":true,` +
		`"business_key":"order 7","import_provider":"import","fingerprint":"ab","more":{"deep":[1]}}`
	id := uuid.MustParse(eventID)

	for _, c := range []struct {
		name, body string
		want       receive.Event
	}{
		{"deleted", body, receive.Event{
			ID: id, CreatedAt: at.Add(6 * time.Microsecond), Type: receive.TokenDeleted, Reason: receive.ReasonExpired,
			Sequence: 1042, TokenID: uuid.MustParse(tokenID),
		}},
		{"test", `{"id":"` + eventID + `","created_at":"2026-01-02T03:04:05Z","event_type":"webhook.test","reason":null,"sequence":0,"token":null}`,
			receive.Event{ID: id, CreatedAt: at, Type: receive.WebhookTest}},
		{"a type to come", event(`"sequence":18446744073709551615,"more":[],"reason":"new"`),
			receive.Event{ID: id, CreatedAt: at, Type: "x", Reason: "new", Sequence: 1<<64 - 1}},
		{"above 2^53", event(`"sequence":9007199254740993`), receive.Event{ID: id, CreatedAt: at, Type: "x", Sequence: 1<<53 + 1}},
		{"a whole token", event(`"event_type":"token.updated","reason":"patched","token":` + fullJSON), receive.Event{
			ID: id, CreatedAt: at, Type: receive.TokenUpdated, Reason: receive.ReasonPatched, TokenID: full.ID, Token: &full,
		}},
		{"another token of a later type", event(`"event_type":"card.updated","token":{"number":"x"}`),
			receive.Event{ID: id, CreatedAt: at, Type: "card.updated"}},
		{"no object of a later type", event(`"event_type":"card.updated","token":[]`),
			receive.Event{ID: id, CreatedAt: at, Type: "card.updated"}},
		{"a token of nulls", event(`"event_type":"token.created","token":{"id":"` + tokenID + `","created_at":null,"expires_at":null,` +
			`"status":null,"cardholder_name":null,"network_token_status_reason":null,"authentication_data":{},"expiry_month":null}`),
			receive.Event{ID: id, CreatedAt: at, Type: receive.TokenCreated, TokenID: full.ID, Token: &receive.Token{ID: full.ID}}},
	} {
		e, err := receive.Parse([]byte(c.body))
		if err != nil || !reflect.DeepEqual(*e, c.want) {
			t.Errorf("%s: Parse = %+v, %v\nwant %+v", c.name, e, err, c.want)
		}
	}

	e, err := receive.Parse([]byte(event(`"token":{"id":"` + tokenID + `","cardholder_name":"Zo\u00eb \"Z\" Quux"}`)))
	if err != nil {
		t.Fatal(err)
	}
	e.Token.CardholderName.Expose(func(name []byte) {
		if string(name) != `Zoë "Z" Quux` {
			t.Errorf("the name is %q", name)
		}
	})
	vaulttest.AssertNoLeak(t, []string{"Quux"}, fmt.Sprintf("%+v %#v", e.Token, e.Token))
}

func TestParseRefuses(t *testing.T) {
	for bad, want := range map[string]string{
		``:                                       "not a JSON object",
		`null`:                                   "not a JSON object",
		`[]`:                                     "not a JSON object",
		`"` + canary + `"`:                       "not a JSON object",
		`{`:                                      "not a JSON object",
		`{}`:                                     "id is missing",
		body + `x`:                               "not a JSON object",
		body + body:                              "not a JSON object",
		`{"ID":"` + eventID + `"}`:               "id is missing",
		`{"id":"` + canary + `"}`:                "id has another type",
		`{"id":7}`:                               "id has another type",
		`{"id":"` + eventID + `"}`:               "created_at is missing",
		event(`"created_at":"` + canary + `"`):   "created_at has another type",
		event(`"event_type":""`):                 "event_type is missing",
		event(`"event_type":7`):                  "event_type has another type",
		event(`"reason":{}`):                     "reason has another type",
		event(`"sequence":-1`):                   "sequence has another type",
		event(`"sequence":1.5`):                  "sequence has another type",
		event(`"sequence":18446744073709551616`): "sequence has another type",
		event(`"sequence":"` + canary + `"`):     "sequence has another type",
		event(`"event_type":"token.created"`):    "token is missing",
		event(`"event_type":"token.updated","token":null`):                                                                       "token is missing",
		event(`"event_type":"token.deleted"`):                                                                                    "token is missing",
		event(`"event_type":"token.updated","token":[]`):                                                                         "token: not a JSON object",
		event(`"event_type":"token.updated","token":{}`):                                                                         "token: id is missing",
		event(`"event_type":"token.updated","token":{"id":"` + canary + `"}`):                                                    "token: id has another type",
		event(`"event_type":"token.updated","token":{"id":"` + tokenID + `","expiry_month":"` + canary + `"}`):                   "token: expiry_month has another type",
		event(`"event_type":"token.updated","token":{"id":"` + tokenID + `","cardholder_name":["` + canary + `"]}`):              "token: cardholder_name has another type",
		event(`"event_type":"token.updated","token":{"id":"` + tokenID + `","network_token_status_reason":{"retryable":"yes"}}`): "token: retryable has another type",
		event(`"event_type":"token.updated","token":{"id":"` + tokenID + `","authentication_data":[]}`):                          "token: not a JSON object",
	} {
		e, err := receive.Parse([]byte(bad))
		if !errors.Is(err, receive.ErrBody) || e != nil || err.Error() != receive.ErrBody.Error()+": "+want {
			t.Errorf("Parse(%s) = %+v, %v\nwant %s", bad, e, err, want)
			continue
		}
		vaulttest.AssertNoLeak(t, []string{canary}, err)
	}
	if _, err := receive.Parse([]byte(strings.Repeat(" ", receive.MaxBody) + body)); !errors.Is(err, receive.ErrTooLarge) {
		t.Errorf("a large body: %v", err)
	}
}

func FuzzVerify(f *testing.F) {
	f.Add(eventID, "1614265330", "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=", []byte(body))
	f.Add(eventID, "x", "v1a,x v1,", []byte(`{"id":null}`))
	f.Fuzz(func(t *testing.T, id, at, signature string, body []byte) {
		if e, err := receive.Verify(headers(id, at, signature), body, former, newest); err == nil {
			t.Errorf("forged: %+v", e)
		}
	})
}

// A parsed event is complete, and errors contain no received text.
func FuzzParse(f *testing.F) {
	f.Add([]byte(body))
	f.Add([]byte(event(`"event_type":"token.updated","token":{"id":"` + tokenID + `","cardholder_name":"x","authentication_data":{"eci":"05"}}`)))
	f.Add([]byte(`{"id":null,"token":{"id":7}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		e, err := receive.Parse(body)
		switch {
		case err != nil:
			if len(err.Error()) > 120 || e != nil {
				t.Errorf("Parse = %+v, %v", e, err)
			}
		case e.ID == uuid.Nil, e.CreatedAt.IsZero(), e.Type == "",
			e.Token != nil && e.Token.ID != e.TokenID,
			e.Type == receive.TokenDeleted && e.Token != nil,
			e.Type == receive.TokenCreated && e.Token == nil:
			t.Errorf("Parse = %+v", e)
		}
	})
}
