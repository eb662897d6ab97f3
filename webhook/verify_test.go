package webhook_test

import (
	"errors"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/internal/bubble"
	"github.com/cardvault/cardvault/vaulttest"
	"github.com/cardvault/cardvault/webhook"
	"github.com/google/uuid"
)

const (
	eventID = "7d7f3a52-6f0e-4d0b-8a43-0d2f9ddc2b11"
	tokenID = "1b2d3a52-6f0e-4d0b-8a43-0d2f9ddc2b11"
	body    = `{"id":"` + eventID + `","created_at":"2026-01-02T03:04:05.000006Z","event_type":"token.deleted",` +
		`"reason":"expired","sequence":1042,"token":{"id":"` + tokenID + `"}}`
)

func headers(id, at, signature string) http.Header {
	return http.Header{"Webhook-Id": {id}, "Webhook-Timestamp": {at}, "Webhook-Signature": {signature}}
}

// signed returns the headers of a delivery that was signed a while ago.
func signed(t *testing.T, ago time.Duration, body string, secrets ...cardvault.WebhookSecret) http.Header {
	t.Helper()
	at := time.Now().Add(-ago)
	signature, err := webhook.Sign(secrets, eventID, at, []byte(body))
	if err != nil {
		t.Fatal(err)
	}
	return headers(eventID, strconv.FormatInt(at.Unix(), 10), signature)
}

// until waits in a bubble.
func until(t *testing.T, at time.Time) {
	t.Helper()
	timer := time.NewTimer(time.Until(at))
	defer timer.Stop()
	<-timer.C
}

// The vector of Standard Webhooks, in both directions.
func TestVector(t *testing.T) {
	const (
		id        = "msg_p5jXN8AQM9LWM0D4loKWxJek"
		payload   = `{"test": 2432232314}`
		signature = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
	)
	secrets := text("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
	at := time.Unix(1614265330, 0)
	if got, err := webhook.Sign(secrets, id, at, []byte(payload)); err != nil || got != signature {
		t.Errorf("signature is %s, %v", got, err)
	}
	bubble.Test(t, func(t *testing.T) {
		until(t, at)
		header := headers(id, "1614265330", signature)
		if err := webhook.Signed(secrets, header, []byte(payload)); err != nil {
			t.Error(err)
		}
		if _, err := webhook.Verify(secrets, header, []byte(payload)); !errors.Is(err, webhook.ErrBody) {
			t.Errorf("Verify = %v", err)
		}
		if err := webhook.Signed(secrets, header, []byte(payload+" ")); !errors.Is(err, webhook.ErrSignature) {
			t.Errorf("another payload: %v", err)
		}
	})
}

func TestVerify(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		good := signed(t, 0, body, newest)
		only := good.Get("Webhook-Signature")
		at := good.Get("Webhook-Timestamp")
		type secrets = []cardvault.WebhookSecret
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
			{"behind what is not known", both, headers(eventID, at, "v1a,AAAA v2,"+only[3:]+" x v1, v1,AAAA "+only), body, nil},
			{"5 minutes old", both, signed(t, 5*time.Minute, body, newest), body, nil},
			{"5 minutes ahead", both, signed(t, -5*time.Minute, body, newest), body, nil},

			{"older", both, signed(t, 5*time.Minute+time.Second, body, newest), body, webhook.ErrTimestamp},
			{"further ahead", both, signed(t, -5*time.Minute-time.Second, body, newest), body, webhook.ErrTimestamp},
			{"another secret", secrets{former}, good, body, webhook.ErrSignature},
			{"no secret", nil, good, body, webhook.ErrSignature},
			{"another body", both, good, body + " ", webhook.ErrSignature},
			{"no body", both, good, "", webhook.ErrSignature},
			{"another id", both, headers(tokenID, at, only), body, webhook.ErrSignature},
			{"another time", both, headers(eventID, at[:len(at)-1]+"1", only), body, webhook.ErrSignature},
			{"no id", both, headers("", at, only), body, webhook.ErrSignature},
			{"no time", both, headers(eventID, "", only), body, webhook.ErrSignature},
			{"no number", both, headers(eventID, canary+"x", only), body, webhook.ErrSignature},
			{"no signature", both, headers(eventID, at, ""), body, webhook.ErrSignature},
			{"no headers", both, http.Header{}, body, webhook.ErrSignature},
			{"nil headers", both, nil, body, webhook.ErrSignature},
			{"another version", both, headers(eventID, at, "v2"+only[2:]), body, webhook.ErrSignature},
			{"a part of it", both, headers(eventID, at, only[:len(only)-1]), body, webhook.ErrSignature},
			{"empty", both, headers(eventID, at, "v1,"), body, webhook.ErrSignature},
			{"commas", both, headers(eventID, at, ",,, , v1"), body, webhook.ErrSignature},
			{"too many", both, headers(eventID, at, strings.Repeat("v1,x ", 1000)+only), body, webhook.ErrSignature},
			{"not an event", both, signed(t, 0, `{}`, newest), `{}`, webhook.ErrBody},
		} {
			e, err := webhook.Verify(c.secrets, c.header, []byte(c.body))
			if !errors.Is(err, c.want) || (err == nil) != (e != nil) {
				t.Errorf("%s: Verify = %+v, %v", c.name, e, err)
			}
			if err != nil {
				vaulttest.AssertNoLeak(t, canaries, err)
			}
		}
	})
}

func TestParse(t *testing.T) {
	e, err := webhook.Parse([]byte(body))
	if err != nil {
		t.Fatal(err)
	}
	if e.ID != uuid.MustParse(eventID) || !e.CreatedAt.Equal(time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)) ||
		e.Type != cardvault.TokenDeleted.String() || e.Reason != cardvault.ReasonExpired || e.Sequence != 1042 ||
		e.TokenID != uuid.MustParse(tokenID) || string(e.Token.JSON()) != `{"id":"`+tokenID+`"}` {
		t.Errorf("Parse = %+v", e)
	}
	const unknown = `{"id":"` + eventID + `","event_type":"token.` + canary + `","sequence":18446744073709551615,"more":[]}`
	if e, err := webhook.Parse([]byte(unknown)); err != nil || e.Type != "token."+canary || e.Sequence != 1<<64-1 || !e.Token.IsZero() {
		t.Errorf("Parse of a type to come = %+v, %v", e, err)
	}
	for _, bad := range []string{
		``, `null`, `[]`, `"` + canary + `"`, `{`, `{}`, body + `x`, body + body,
		`{"id":"` + canary + `","event_type":"x"}`,
		`{"id":7,"event_type":"x"}`,
		`{"event_type":"x"}`,
		`{"id":"` + eventID + `"}`,
		`{"id":"` + eventID + `","event_type":7}`,
		`{"id":"` + eventID + `","event_type":"x","sequence":-1}`,
		`{"id":"` + eventID + `","event_type":"x","sequence":"` + canary + `"}`,
		`{"id":"` + eventID + `","event_type":"x","created_at":"` + canary + `"}`,
		`{"id":"` + eventID + `","event_type":"x","token":[]}`,
		`{"id":"` + eventID + `","event_type":"x","token":{}}`,
		`{"id":"` + eventID + `","event_type":"x","token":{"id":"` + canary + `"}}`,
	} {
		e, err := webhook.Parse([]byte(bad))
		if !errors.Is(err, webhook.ErrBody) {
			t.Errorf("Parse(%s) = %+v, %v", bad, e, err)
			continue
		}
		vaulttest.AssertNoLeak(t, canaries, err)
	}
}

func FuzzVerify(f *testing.F) {
	f.Add(eventID, "1614265330", "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=", []byte(body))
	f.Add(eventID, "x", "v1a,x v1,", []byte(`{"id":null}`))
	f.Fuzz(func(t *testing.T, id, at, signature string, body []byte) {
		secrets := []cardvault.WebhookSecret{former, newest}
		if e, err := webhook.Verify(secrets, headers(id, at, signature), body); err == nil {
			t.Errorf("forged: %+v", e)
		}
		if e, err := webhook.Parse(body); err == nil && (e.ID == uuid.Nil || e.Type == "" || (e.TokenID == uuid.Nil) != e.Token.IsZero()) {
			t.Errorf("Parse = %+v", e)
		}
	})
}
