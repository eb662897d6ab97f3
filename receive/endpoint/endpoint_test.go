package endpoint_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/cardvault/cardvault/internal/signature"
	"github.com/cardvault/cardvault/receive"
	"github.com/cardvault/cardvault/receive/endpoint"
)

const (
	secret  = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	eventID = "7d7f3a52-6f0e-4d0b-8a43-0d2f9ddc2b11"
	event   = `{"id":"` + eventID + `","created_at":"2026-01-02T03:04:05.000006Z","event_type":"webhook.test"}`
)

// request returns a signed delivery.
func request(t *testing.T, method string, body string) *http.Request {
	t.Helper()
	at := strconv.FormatInt(time.Now().Unix(), 10)
	made, err := signature.Sign([]byte(secret), eventID, at, []byte(body))
	if err != nil {
		t.Fatal(err)
	}
	r := httptest.NewRequest(method, "/hook", strings.NewReader(body))
	r.Header.Set("Webhook-Id", eventID)
	r.Header.Set("Webhook-Timestamp", at)
	r.Header.Set("Webhook-Signature", made)
	return r
}

func TestHandler(t *testing.T) {
	var fails error
	calls := 0
	h, err := endpoint.New(func(_ context.Context, e *receive.Event) error {
		calls++
		if e.ID.String() != eventID {
			t.Errorf("took %+v", e)
		}
		return fails
	}, receive.NewWebhookSecret([]byte("whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA")), receive.NewWebhookSecret([]byte(secret)))
	if err != nil {
		t.Fatal(err)
	}

	for _, c := range []struct {
		name, method, body string
		change             func(*http.Request)
		fails              error
		status, calls      int
	}{
		{"an event", "POST", event, nil, nil, 204, 1},
		{"an error", "POST", event, nil, errors.New("no database"), 500, 1},
		{"GET", "GET", event, nil, nil, 405, 0},
		{"not signed", "POST", event, func(r *http.Request) { r.Header.Del("Webhook-Signature") }, nil, 400, 0},
		{"forged", "POST", event, func(r *http.Request) { r.Header.Set("Webhook-Id", "x") }, nil, 400, 0},
		{"old", "POST", event, func(r *http.Request) { r.Header.Set("Webhook-Timestamp", "1614265330") }, nil, 400, 0},
		{"not an event", "POST", `{"test": 2432232314}`, nil, nil, 400, 0},
		{"large", "POST", event + strings.Repeat(" ", receive.MaxBody), nil, nil, 413, 0},
		{"cut", "POST", event, func(r *http.Request) {
			r.Body = io.NopCloser(io.MultiReader(strings.NewReader(event[:20]), iotest.ErrReader(io.ErrUnexpectedEOF)))
		}, nil, 400, 0},
	} {
		r := request(t, c.method, c.body)
		if c.change != nil {
			c.change(r)
		}
		calls, fails = 0, c.fails
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != c.status || calls != c.calls || w.Body.Len() > 0 {
			t.Errorf("%s: %d %q after %d calls", c.name, w.Code, w.Body, calls)
		}
	}
}

func TestSecrets(t *testing.T) {
	for name, secrets := range map[string][]receive.WebhookSecret{
		"none": nil, "zero": {{}}, "not a secret": {receive.NewWebhookSecret([]byte("hunter2"))},
	} {
		if _, err := endpoint.New(nil, secrets...); !errors.Is(err, receive.ErrSecret) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestWipedSecrets: the handler has its own copies of the secrets.
func TestWipedSecrets(t *testing.T) {
	mine := receive.NewWebhookSecret([]byte(secret))
	h, err := endpoint.New(func(context.Context, *receive.Event) error { return nil }, mine)
	if err != nil {
		t.Fatal(err)
	}
	mine.Wipe()

	w := httptest.NewRecorder()
	h.ServeHTTP(w, request(t, "POST", event))
	if w.Code != 204 {
		t.Errorf("answered %d", w.Code)
	}
}
