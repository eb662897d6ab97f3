package webhook_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/webhook"
	"github.com/google/uuid"
)

// A receiver: it bounds the body, verifies it as it came, and acts on an event once,
// however often it arrives. What it returns when it could not act on an event is a
// status of 500: then it comes again.
func ExampleVerify() {
	secret := cardvault.NewWebhookSecret([]byte("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"))
	var seen sync.Map // in earnest a unique column, written in the transaction of what is done
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 64<<10))
		if err != nil {
			w.WriteHeader(http.StatusRequestEntityTooLarge)
			return
		}
		event, err := webhook.Verify([]cardvault.WebhookSecret{secret}, r.Header, body)
		if err != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		if _, again := seen.LoadOrStore(event.ID, true); !again {
			fmt.Println(event.Type, event.Reason, event.TokenID)
		}
		w.WriteHeader(http.StatusNoContent)
	}))
	defer server.Close()

	// What a vault does with it.
	sender := webhook.New(&webhook.Options{AllowPrivateTargets: true})
	defer sender.Close()
	event := &cardvault.Event{
		ID:        uuid.MustParse("7d7f3a52-6f0e-4d0b-8a43-0d2f9ddc2b11"),
		CreatedAt: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
		Type:      cardvault.TokenDeleted,
		Reason:    cardvault.ReasonExpired,
		TokenID:   uuid.MustParse("1b2d3a52-6f0e-4d0b-8a43-0d2f9ddc2b11"),
	}
	for range 2 {
		got, err := sender.Send(context.Background(), &cardvault.Delivery{
			Event: event, ID: event.ID, CreatedAt: event.CreatedAt,
			URL: server.URL, Secrets: []cardvault.WebhookSecret{secret},
		})
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(got.StatusCode)
	}
	// Output:
	// token.deleted expired 1b2d3a52-6f0e-4d0b-8a43-0d2f9ddc2b11
	// 204
	// 204
}
