// Package webhooktest is the integrator's side of package webhook, for tests: a [Receiver]
// is a webhook that keeps its deliveries, and fails in any way that a test asks for.
//
// It is reached over loopback, at the URL of [Receiver.Start], or in memory, by the
// sender of [NewSender]. In a bubble of testing/synctest only the latter works: a
// goroutine that waits for a socket keeps the clock of the bubble from moving.
package webhooktest

import (
	"context"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/cardvault/cardvault/internal/fault"
	"github.com/cardvault/cardvault/receive"
)

const maxBody = 64 << 10

// A Delivery is a request as it came.
type Delivery struct {
	At     time.Time
	Header http.Header
	Body   []byte // its first 64 KiB

	// Event is what receive.Verify returned, and Err its error.
	Event *receive.Event
	Err   error
}

// A Receiver is a webhook, on any path. It answers with status 204, unless a test asks
// otherwise. Its methods may be called concurrently.
type Receiver struct {
	plan       *fault.Plan[Answer] // its lock guards the fields below
	secrets    []receive.WebhookSecret
	deliveries []Delivery
	arrived    chan struct{} // closed and replaced with each delivery
}

// New returns a receiver with the secrets whose signatures it accepts. [Receiver.Trust]
// adds later secrets. Until it has one, Delivery.Err is set.
func New(secrets ...receive.WebhookSecret) *Receiver {
	return &Receiver{secrets: secrets, plan: fault.NewPlan(Status(http.StatusNoContent)), arrived: make(chan struct{})}
}

// Start serves on a loopback address until the end of the test, and returns the URL.
// That is http: the sender needs Options.AllowPrivateTargets.
func (r *Receiver) Start(t testing.TB) string {
	t.Helper()
	server := httptest.NewUnstartedServer(r)
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.Start()
	t.Cleanup(server.Close)
	return server.URL
}

// Trust has the receiver accept signatures of more secrets, such as the secret that the
// vault has made for the URL of the receiver. Deliveries that came before stay as they are.
func (r *Receiver) Trust(secrets ...receive.WebhookSecret) {
	r.plan.Lock()
	defer r.plan.Unlock()
	r.secrets = append(r.secrets, secrets...)
}

// Next has the next deliveries answered so, one each.
func (r *Receiver) Next(answers ...Answer) { r.plan.Next(answers...) }

// Always has all deliveries answered so for which Next has nothing.
func (r *Receiver) Always(a Answer) { r.plan.Always(a) }

// Deliveries returns all that have come, in their order.
func (r *Receiver) Deliveries() []Delivery {
	r.plan.Lock()
	defer r.plan.Unlock()
	return slices.Clone(r.deliveries)
}

// Wait returns the first n deliveries as soon as they have come, or the error of ctx.
func (r *Receiver) Wait(ctx context.Context, n int) ([]Delivery, error) {
	for {
		r.plan.Lock()
		got, arrived := r.deliveries, r.arrived
		r.plan.Unlock()
		if len(got) >= n {
			return slices.Clone(got[:n]), nil
		}
		select {
		case <-arrived:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// ServeHTTP takes a delivery.
func (r *Receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body := fault.Body(req, maxBody)
	d := Delivery{At: time.Now(), Header: req.Header.Clone(), Body: body}

	r.plan.Lock()
	d.Event, d.Err = receive.Verify(req.Header, body, r.secrets...)
	r.deliveries = append(r.deliveries, d)
	close(r.arrived)
	r.arrived = make(chan struct{})
	answer := r.plan.Take()
	r.plan.Unlock()
	answer(w, req)
}

// An Answer answers a delivery, whose body can be read again.
type Answer func(w http.ResponseWriter, r *http.Request)

// Status answers with a status alone, such as 410 for a webhook that is gone.
func Status(code int) Answer {
	return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
}

// RetryAfter answers with a status and a header Retry-After.
func RetryAfter(code int, value string) Answer {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", value)
		w.WriteHeader(code)
	}
}

// Redirect answers with a status of 300 to 399 and another URL.
func Redirect(code int, url string) Answer { return fault.Redirect(code, url) }

// Delay answers after a while, unless the sender has gone by then.
func Delay(d time.Duration, answer Answer) Answer {
	return func(w http.ResponseWriter, r *http.Request) {
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-timer.C:
			answer(w, r)
		case <-r.Context().Done():
			panic(http.ErrAbortHandler)
		}
	}
}

// Hang answers nothing, until the sender has gone. Nor then: while TLS is being closed,
// an answer would still be read.
func Hang(_ http.ResponseWriter, r *http.Request) {
	<-r.Context().Done()
	panic(http.ErrAbortHandler)
}

// Cut closes the connection without an answer.
func Cut(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }

// Drip begins an answer with status 200 at once and sends a byte of it every few
// milliseconds, without an end, until the sender has gone.
func Drip(w http.ResponseWriter, r *http.Request) { fault.Drip(w, r) }

// Body answers with status 200 and a body of n bytes; a negative n is without an end,
// until the sender has gone.
func Body(n int) Answer {
	return func(w http.ResponseWriter, _ *http.Request) { _ = fault.Fill(w, n) }
}

// Raw sends text in place of an answer, be it HTTP or not, and closes the connection. It
// needs a connection: in memory it panics.
func Raw(text string) Answer { return fault.Raw(text) }
