// Package webhook delivers events over HTTP: a [Sender] implements the sender of
// [cardvault.Options].
//
// It speaks Standard Webhooks 1.0, as the comment of package receive describes; receivers
// use that package. Each secret adds a signature, so that one can be replaced without a
// gap. The token has the members of the REST API; a deleted token has only its id. A
// test has the event_type webhook.test, the sequence 0, and neither reason nor token.
//
// # Refused targets
//
// Registering a webhook makes this machine send requests. So the address is checked when
// the connection is made, after the name was resolved: it has to be a public one. A
// caller's Options.Transport has to check that itself. The Sender uses only https on port
// 443 or from 1024 on, and HTTP/1.1. It follows no redirect and uses no proxy. Only the
// status and Retry-After of an answer matter; the rest is read up to 64 KiB and dropped. No
// error or log holds anything of an answer.
package webhook

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/internal/egress"
	"github.com/cardvault/cardvault/internal/wire"
	"github.com/cardvault/cardvault/receive"
)

// Options are the optional parts of a sender.
type Options struct {
	// Timeout limits an attempt, from looking up the host to the end of the answer.
	// Defaults to 15 seconds, which is also the most that a vault allows.
	Timeout time.Duration

	// AllowPrivateTargets lifts the rules about hosts, addresses and ports, and allows
	// http. It is for sandboxes and tests: any registered webhook then reaches everything
	// that this machine reaches.
	AllowPrivateTargets bool

	// TLS says whom to trust, such as a private CA. If nil, the roots of the system.
	TLS *tls.Config

	// Transport makes the requests in place of the sender's own connections, such as through
	// an egress proxy, or in memory for a test. Which addresses it connects to is then its
	// own to guard, and TLS is not used. It must follow no redirect.
	Transport http.RoundTripper
}

// A Sender is a [cardvault.Sender].
type Sender struct {
	timeout   time.Duration
	private   bool
	tls       *tls.Config
	dialer    *net.Dialer
	own       *http.Transport
	transport http.RoundTripper // own, or from the options
	closed    atomic.Bool
}

var _ cardvault.Sender = (*Sender)(nil)

const (
	timeout       = 15 * time.Second
	maxHeader     = 16 << 10
	maxAnswer     = 64 << 10
	maxRetryAfter = 24 * time.Hour

	// Below the five seconds after which Node.js closes: an attempt that meets the
	// end of an idle connection has failed.
	idleTimeout = 4 * time.Second
	maxIdle     = 64 // connections
	maxPerHost  = 16 // likewise, to one host; how many are in use is the vault's to say
)

// New returns a sender. opts may be nil. It connects to nothing yet.
func New(opts *Options) *Sender {
	if opts == nil {
		opts = &Options{}
	}
	s := &Sender{timeout: opts.Timeout, private: opts.AllowPrivateTargets, tls: &tls.Config{}, dialer: &net.Dialer{}}
	if s.timeout <= 0 {
		s.timeout = timeout
	}

	if !s.private {
		s.dialer.Control = egress.Control
	}
	if opts.TLS != nil {
		s.tls = opts.TLS.Clone()
	}

	s.tls.NextProtos = []string{"http/1.1"}
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	s.own = &http.Transport{
		DialContext:            s.connect,
		DialTLSContext:         s.connectTLS,
		DisableCompression:     true,
		IdleConnTimeout:        idleTimeout,
		MaxIdleConns:           maxIdle,
		MaxIdleConnsPerHost:    maxPerHost,
		MaxResponseHeaderBytes: maxHeader,
		Protocols:              &protocols,
	}

	s.transport = s.own
	if opts.Transport != nil {
		s.transport = opts.Transport
	}
	return s
}

// Close closes the connections; connections of running attempts end a few seconds after
// them. Later attempts fail.
func (s *Sender) Close() {
	s.closed.Store(true)
	s.own.CloseIdleConnections()
}

// Check implements [cardvault.Sender]. A URL is a URI of RFC 3986 of at most 2048
// characters, begins with https in lower case, and has neither user nor fragment. Its host
// is a name with a dot, with punycode for other scripts, or a public address written in
// full; its port is 443 or from 1024 on.
func (s *Sender) Check(t *cardvault.Target) error {
	if _, err := s.target(t.URL); err != nil {
		return err
	}
	if !uri.MatchString(t.URL) {
		return errors.New("must be a URI: https in lower case, and %XX for characters that a URI cannot hold")
	}
	return nil
}

// Send implements [cardvault.Sender]. Secrets decode to 24 to 64 bytes. The first is the
// oldest: it alone makes the x-hmac-signature of Delivery.Legacy, which is the HMAC-SHA-256
// of the body under the text of the secret, in hexadecimal digits. That header has room for
// one signature, and a receiver has until the oldest secret ends to adopt the next.
//
// Errors wrap context.DeadlineExceeded and context.Canceled. They hold neither the URL nor
// the answer. An answer whose body is late or cut still counts.
func (s *Sender) Send(ctx context.Context, d *cardvault.Delivery) (*cardvault.SendResult, error) {
	if s.closed.Load() {
		return nil, errors.New("webhook: sender is closed")
	}
	to, err := s.target(d.URL)
	if err != nil {
		return nil, fmt.Errorf("webhook: URL %w", err)
	}

	body, timestamp := bodyOf(d), strconv.FormatInt(time.Now().Unix(), 10)
	signatures, err := sign(d.Secrets, d.ID.String(), timestamp, body)
	if err != nil {
		return nil, err
	}

	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	r := (&http.Request{
		Method: http.MethodPost,
		URL:    to,
		Header: http.Header{
			"Content-Type":      {"application/json"},
			"User-Agent":        {"cardvault/1"},
			"Webhook-Id":        {d.ID.String()},
			"Webhook-Timestamp": {timestamp},
			"Webhook-Signature": {signatures},
		},
		Body:          io.NopCloser(bytes.NewReader(body)),
		GetBody:       func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil },
		ContentLength: int64(len(body)),
	}).WithContext(ctx)

	if d.Legacy {
		d.Secrets[0].Expose(func(text []byte) {
			mac := hmac.New(sha256.New, text)
			mac.Write(body)
			r.Header.Set("X-Hmac-Signature", hex.EncodeToString(mac.Sum(nil)))
		})
	}

	resp, err := s.transport.RoundTrip(r) // http.Client would follow redirects
	if err != nil {
		return nil, failure(ctx, err)
	}
	defer resp.Body.Close()
	// Reading to the end frees the connection for the next delivery. The body of a 101 is
	// the connection itself, whose reads no deadline ends.
	if resp.StatusCode != http.StatusSwitchingProtocols {
		_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, maxAnswer))
	}
	return &cardvault.SendResult{
		StatusCode: resp.StatusCode,
		RetryAfter: retryAfter(resp.Header.Get("Retry-After")),
	}, nil
}

// bodyOf returns the body of a delivery.
func bodyOf(d *cardvault.Delivery) []byte {
	e := d.Event
	if e == nil {
		e = &cardvault.Event{ID: d.ID, CreatedAt: d.CreatedAt, Type: receive.WebhookTest}
	}
	return wire.Append(nil, e)
}

// retryAfter reads seconds or a date: RFC 9110, section 10.2.3.
func retryAfter(value string) time.Duration {
	seconds, err := strconv.ParseUint(value, 10, 64)
	if err == nil || errors.Is(err, strconv.ErrRange) {
		return time.Duration(min(seconds, uint64(maxRetryAfter/time.Second))) * time.Second
	}
	at, err := http.ParseTime(value)
	if err != nil {
		return 0
	}
	return min(max(time.Until(at), 0), maxRetryAfter)
}
