package forward

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/cardvault/cardvault/forward/internal/template"
	"github.com/google/uuid"
)

// Client returns a client that sends requests with the card of a token, whose placeholders
// are fixed texts. It follows no redirect. A request whose context comes from With has that
// token and its placeholders. token may be zero for a client of such requests alone. opts may
// be nil.
func (f *Forwarder) Client(token uuid.UUID, opts *CallOptions) *http.Client {
	return &http.Client{
		Transport:     f.RoundTripper(token, opts),
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// RoundTripper returns the transport of [Forwarder.Client], for a client of one's own. Its
// errors are the errors of [Forwarder.Do]. A request that follows a redirect is refused.
func (f *Forwarder) RoundTripper(token uuid.UUID, opts *CallOptions) http.RoundTripper {
	return &transport{f, bound{token: token, opts: opts, syntax: syntaxOf(opts)}}
}

// Placeholders are texts of letters and digits that stand for a card in requests with the
// context that With has returned with them.
type Placeholders struct {
	AccountNumber  string
	ExpiryMonth    string // two digits
	ExpiryYear     string // four digits
	ExpiryYY       string // two digits
	CardholderName string
	SecurityCode   string

	// Only with [CallOptions.Payment].
	NetworkToken            string
	NetworkTokenExpiryMonth string
	NetworkTokenExpiryYear  string
	Cryptogram              string
	ECI                     string
}

// With returns a context for one call of a library, and the placeholders of a token's card
// in its requests. They are random, so that no text of someone else is a
// placeholder, and libraries leave them as they are. The context is for clients of a
// Forwarder. A Marker in opts has no effect. opts may be nil.
func (f *Forwarder) With(ctx context.Context, token uuid.UUID, opts *CallOptions) (context.Context, *Placeholders) {
	s := template.Random()
	return context.WithValue(ctx, boundKey{}, &bound{token, opts, s}), &Placeholders{
		AccountNumber:           s.Placeholder(template.AccountNumber),
		ExpiryMonth:             s.Placeholder(template.ExpiryMonth),
		ExpiryYear:              s.Placeholder(template.ExpiryYear),
		ExpiryYY:                s.Placeholder(template.ExpiryYY),
		CardholderName:          s.Placeholder(template.CardholderName),
		SecurityCode:            s.Placeholder(template.SecurityCode),
		NetworkToken:            s.Placeholder(template.NetworkToken),
		NetworkTokenExpiryMonth: s.Placeholder(template.NetworkTokenExpiryMonth),
		NetworkTokenExpiryYear:  s.Placeholder(template.NetworkTokenExpiryYear),
		Cryptogram:              s.Placeholder(template.Cryptogram),
		ECI:                     s.Placeholder(template.ECI),
	}
}

// bound is what a request is bound to.
type bound struct {
	token  uuid.UUID
	opts   *CallOptions
	syntax template.Syntax
}

type boundKey struct{}

type transport struct {
	*Forwarder
	bound bound
}

var (
	errRedirect = errors.New("forward: a redirect is not followed")
	errNoToken  = errors.New("forward: request has no token: its context must come from With")
)

// RoundTrip implements [http.RoundTripper].
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	to := &t.bound
	if with, ok := r.Context().Value(boundKey{}).(*bound); ok {
		to = with
	}
	body, err := bodyOf(r)
	switch {
	case err != nil:
		return nil, err
	case r.Response != nil: // http.Client repeats the request, with the card
		return nil, errRedirect
	case to.token == uuid.Nil:
		return nil, errNoToken
	}

	out := &Request{Method: r.Method, URL: r.URL.String(), Header: r.Header, Body: body, library: true}
	if out.Method == "" {
		out.Method = http.MethodGet
	}
	a, err := t.do(r.Context(), to.token, out, to.opts, to.syntax)
	if err != nil {
		return nil, err
	}
	return a.response(r), nil
}

// bodyOf reads and closes the body of a request.
func bodyOf(r *http.Request) ([]byte, error) {
	if r.Body == nil {
		return nil, nil
	}
	defer r.Body.Close()
	if r.ContentLength > MaxBody {
		return nil, ErrTooLarge
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, MaxBody+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("forward: reading the body: %w", err)
	case len(body) > MaxBody:
		return nil, ErrTooLarge
	}
	return body, nil
}

// response returns an answer as net/http has it.
func (a *Answer) response(r *http.Request) *http.Response {
	resp := &http.Response{
		Status:        fmt.Sprintf("%d %s", a.StatusCode, http.StatusText(a.StatusCode)),
		StatusCode:    a.StatusCode,
		Proto:         "HTTP/1.1",
		ProtoMajor:    1,
		ProtoMinor:    1,
		Header:        a.Header,
		Body:          io.NopCloser(bytes.NewReader(a.Body)),
		ContentLength: int64(len(a.Body)),
		Request:       r,
	}
	if a.Truncated {
		resp.Body, resp.ContentLength = io.NopCloser(truncated{}), -1
	}
	return resp
}

type truncated struct{}

func (truncated) Read([]byte) (int, error) { return 0, ErrTruncated }
