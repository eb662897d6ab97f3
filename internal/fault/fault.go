// Package fault holds what the misbehaving servers of test kits have in common: a plan
// of answers, and the answers of a server at fault.
package fault

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"
)

// A Plan holds the answers to the requests to come.
type Plan[A any] struct {
	// The lock guards the plan, and what its owner records of requests: both change
	// together, so that the n-th request of the record got the n-th answer.
	sync.Mutex

	always A
	next   []A
}

// NewPlan returns a plan that has one answer to all requests.
func NewPlan[A any](always A) *Plan[A] { return &Plan[A]{always: always} }

// Next appends answers to the next requests, one each.
func (p *Plan[A]) Next(answers ...A) {
	p.Lock()
	defer p.Unlock()
	p.next = append(p.next, answers...)
}

// Always sets the answer to all requests for which Next has none.
func (p *Plan[A]) Always(answer A) {
	p.Lock()
	defer p.Unlock()
	p.always = answer
}

// Take returns the answer to a request. The caller holds the lock.
func (p *Plan[A]) Take() A {
	answer := p.always
	if len(p.next) > 0 {
		answer, p.next = p.next[0], p.next[1:]
	}
	return answer
}

// Body reads the body of a request, up to a limit, so that it can be read again. It
// aborts the request if the body cannot be read.
func Body(r *http.Request, limit int64) []byte {
	body, err := io.ReadAll(io.LimitReader(r.Body, limit))
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	return body
}

// Redirect returns an answer with a status of 300 to 399 and another URL.
func Redirect(status int, url string) func(http.ResponseWriter, *http.Request) {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Location", url)
		w.WriteHeader(status)
	}
}

// Raw returns an answer that is text, be it HTTP or not, and closes the connection.
func Raw(text string) func(http.ResponseWriter, *http.Request) {
	return func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			panic(err)
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, text) // the client may have gone
	}
}

// Drip begins an answer at once and sends a byte of it every few milliseconds, without
// an end, until the client has gone.
func Drip(w http.ResponseWriter, r *http.Request) {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()

	for control := http.NewResponseController(w); ; {
		if _, err := io.WriteString(w, " "); err != nil {
			return
		}
		if err := control.Flush(); err != nil {
			return
		}

		select {
		case <-r.Context().Done():
			return
		case <-tick.C:
		}
	}
}

// Fill writes n bytes to a client; a negative n is without an end. Its error is that the
// client has gone.
func Fill(w io.Writer, n int) error {
	chunk := strings.Repeat("x", 64<<10)
	for n != 0 {
		size := len(chunk)
		if n > 0 {
			size = min(size, n)
			n -= size
		}
		if _, err := io.WriteString(w, chunk[:size]); err != nil {
			return err
		}
	}
	return nil
}
