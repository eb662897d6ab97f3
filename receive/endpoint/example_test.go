package endpoint_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"time"

	"github.com/cardvault/cardvault/receive"
	"github.com/cardvault/cardvault/receive/endpoint"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

// A receiver acts on an event once, even if it arrives several times.
func ExampleNew() {
	const secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	var seen sync.Map // in production a unique column, written in the same transaction as the effect
	hook, err := endpoint.New(func(ctx context.Context, e *receive.Event) error {
		if _, again := seen.LoadOrStore(e.ID, true); again {
			return nil
		}
		switch e.Type {
		case receive.TokenDeleted:
			fmt.Println("forget", e.TokenID, "which is", e.Reason)
		}
		return nil
	}, receive.NewWebhookSecret([]byte(secret)))
	if err != nil {
		log.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("/hook", hook)

	// A vault sends this twice.
	const id, body = "7d7f3a52-6f0e-4d0b-8a43-0d2f9ddc2b11", `{"id":"7d7f3a52-6f0e-4d0b-8a43-0d2f9ddc2b11","created_at":"2026-01-02T03:04:05.000000Z",
		"event_type":"token.deleted","reason":"expired","sequence":1042,"token":{"id":"1b2d3a52-6f0e-4d0b-8a43-0d2f9ddc2b11"}}`
	sender, err := standardwebhooks.NewWebhook(secret)
	if err != nil {
		log.Fatal(err)
	}
	for range 2 {
		at := time.Now()
		signature, err := sender.Sign(id, at, []byte(body))
		if err != nil {
			log.Fatal(err)
		}
		r := httptest.NewRequest("POST", "/hook", strings.NewReader(body))
		r.Header.Set("Webhook-Id", id)
		r.Header.Set("Webhook-Timestamp", fmt.Sprint(at.Unix()))
		r.Header.Set("Webhook-Signature", signature)
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, r)
		fmt.Println(w.Code)
	}
	// Output:
	// forget 1b2d3a52-6f0e-4d0b-8a43-0d2f9ddc2b11 which is expired
	// 204
	// 204
}
