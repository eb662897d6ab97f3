package receive_test

import (
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/cardvault/cardvault/receive"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

// delivery returns a request like a vault's.
func delivery(secret, body string) *http.Request {
	const id = "7d7f3a52-6f0e-4d0b-8a43-0d2f9ddc2b11"
	sender, err := standardwebhooks.NewWebhook(secret)
	if err != nil {
		log.Fatal(err)
	}
	at := time.Now()
	signature, err := sender.Sign(id, at, []byte(body))
	if err != nil {
		log.Fatal(err)
	}
	r := httptest.NewRequest("POST", "/hook", strings.NewReader(body))
	r.Header.Set("Webhook-Id", id)
	r.Header.Set("Webhook-Timestamp", fmt.Sprint(at.Unix()))
	r.Header.Set("Webhook-Signature", signature)
	return r
}

// A program that receives deliveries without package endpoint limits the size of the body,
// and verifies it unchanged. During a rotation of the webhook's secret it passes both
// secrets.
func ExampleVerify() {
	const text, formerText = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_bm90IHVzZWQgYW55IG1vcmUsIG5vdCByZWFsbHk="
	secret, former := receive.NewWebhookSecret([]byte(text)), receive.NewWebhookSecret([]byte(formerText))

	r := delivery(formerText, `{"id":"7d7f3a52-6f0e-4d0b-8a43-0d2f9ddc2b11","created_at":"2026-01-02T03:04:05.000000Z",
		"event_type":"token.deleted","reason":"expired","sequence":1042,"token":{"id":"1b2d3a52-6f0e-4d0b-8a43-0d2f9ddc2b11"}}`)
	body, err := io.ReadAll(io.LimitReader(r.Body, receive.MaxBody+1))
	if err != nil {
		log.Fatal(err)
	}
	event, err := receive.Verify(r.Header, body, secret, former)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(event.Type, event.Reason, event.TokenID)

	_, err = receive.Verify(r.Header, append(body, ' '), secret, former)
	fmt.Println(errors.Is(err, receive.ErrSignature), err)
	// Output:
	// token.deleted expired 1b2d3a52-6f0e-4d0b-8a43-0d2f9ddc2b11
	// true receive: delivery is not signed with one of the secrets
}

// An event that was verified on arrival is parsed again, for example from a queue.
func ExampleParse() {
	event, err := receive.Parse([]byte(`{"id":"7d7f3a52-6f0e-4d0b-8a43-0d2f9ddc2b11","created_at":"2026-01-02T03:04:05.000000Z",
		"event_type":"token.updated","reason":"network_token_status_changed","sequence":1043,
		"token":{"id":"1b2d3a52-6f0e-4d0b-8a43-0d2f9ddc2b11","network_token_status":"active","scheme":"VISA"}}`))
	if err != nil {
		log.Fatal(err)
	}
	if event.Type == receive.TokenUpdated && event.Token.NetworkTokenStatus == receive.NetworkTokenActive {
		fmt.Println(event.Token.Scheme, "can pay since", event.CreatedAt)
	}

	_, err = receive.Parse([]byte(`{"id":"7d7f3a52-6f0e-4d0b-8a43-0d2f9ddc2b11","created_at":"yesterday"}`))
	fmt.Println(err)
	// Output:
	// VISA can pay since 2026-01-02 03:04:05 +0000 UTC
	// receive: body is not an event: created_at has another type
}

// A merchant opens the payment data of a payment, and passes the number, expiry, cryptogram
// and ECI on to its acquirer. Nothing else exposes them.
func ExampleOpenPaymentData() {
	secret := receive.NewSharedSecret([]byte("shared-secret"))
	const jwe = "eyJhbGciOiJBMjU2R0NNS1ciLCJlbmMiOiJBMjU2R0NNIiwiaXYiOiJSY0pDbnl2QjV2c3d1anZrIiwidGFnIjoiczY4Y18yQlJ1R2Nid3hmRHFTU21lZyJ9.VcLwb9ALnoaMhqFK6gYw7xlY6FqdiZhKFaqg5apt3uk.xLUV4q4CWqPGsi4l.VI5pIlCsfZ9WH73K_GGqVPHghmXZgNWovR6wCOgBJ5OL4HRGtgeBm91b-83e4RXmJf74G5rYRBO83jDl8YIISTcqsDFK8VGP7RxyUEAAFs6s6imJjk02gkV0EMmNk43HtYpWqpguSBsrCCvmaQhmLCWiuessGQ.SiDVGLeHQMXr8xusq_SV9A"

	credential, err := receive.OpenPaymentData(jwe, secret)
	if err != nil {
		log.Fatal(err)
	}
	defer credential.Wipe()
	credential.Cryptogram.Expose(func(value []byte) { fmt.Println(len(value), "characters") })
	fmt.Println(credential.Number, credential.Cryptogram, credential.Expiry.Month, credential.Expiry.Year)

	_, err = receive.OpenPaymentData(jwe, receive.NewSharedSecret([]byte("another")))
	fmt.Println(errors.Is(err, receive.ErrPaymentData))
	// Output:
	// 8 characters
	// 489537******0000 *** 12 2030
	// true
}

// Text returns a shared secret for storage by the merchant.
func ExampleSharedSecret_Text() {
	secret := receive.NewSharedSecret([]byte("shared-secret"))
	fmt.Println(secret, secret.Text())
	// Output: *** shared-secret
}
