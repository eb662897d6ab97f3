// Package exchange sends a request to one origin, once, and returns the answer.
//
// http.Transport may send a request again, does not report whether a byte of it was written,
// needs strings as values of headers, and keeps written bytes. So this package uses it for
// HTTP/2 alone.
package exchange

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/cardvault/cardvault/internal/egress"
)

// Config says where to connect. All fields except HTTP2 are needed.
type Config struct {
	Origin *url.URL    // scheme and host
	TLS    *tls.Config // cloned
	Dial   Dial        // checks the address
	HTTP2  bool        // and nothing else
}

// A Dial makes a connection, without TLS.
type Dial func(ctx context.Context, network, address string) (net.Conn, error)

// A Client sends requests to its origin. Its methods may be called concurrently.
type Client struct {
	address string // host and port
	host    string // as the header has it
	tls     *tls.Config
	dial    Dial
	http2   *http.Transport // nil for HTTP/1.1

	mu     sync.Mutex
	idle   []*connection
	closed bool
}

const (
	maxIdle     = 16
	idleTimeout = 30 * time.Second
	grace       = 50 * time.Millisecond // for the rest of a request that was answered
	maxHeader   = 64 << 10
)

// New returns a client. It connects to nothing yet.
func New(c Config) *Client {
	port := c.Origin.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[c.Origin.Scheme]
	}
	client := &Client{
		address: net.JoinHostPort(c.Origin.Hostname(), port),
		host:    c.Origin.Host,
		dial:    c.Dial,
	}

	if c.Origin.Scheme == "https" {
		client.tls = c.TLS.Clone()
		client.tls.ServerName = c.Origin.Hostname()
		client.tls.NextProtos = []string{"http/1.1"}
		if client.tls.ClientSessionCache == nil {
			client.tls.ClientSessionCache = tls.NewLRUClientSessionCache(maxIdle)
		}
	}
	if c.HTTP2 && client.tls != nil {
		client.tls.NextProtos = []string{"h2"}
		client.http2 = client.newHTTP2()
	}
	return client
}

// Close closes idle connections. A connection in use is closed after its answer.
func (c *Client) Close() {
	c.mu.Lock()
	idle := c.idle
	c.idle, c.closed = nil, true
	c.mu.Unlock()

	for _, conn := range idle {
		_ = conn.Close()
	}
	if c.http2 != nil {
		c.http2.CloseIdleConnections()
	}
}

// A Request is sent once.
type Request struct {
	Method string
	Target *url.URL // only path and query are sent
	Header []Field  // without Host, Content-Length and hop-by-hop headers

	// Body has Size bytes. nil for none.
	Body io.Reader
	Size int64
}

// A Field is a header of a request.
type Field struct {
	Name  string
	Value []byte // without CR, LF and NUL
}

// A Failure is the error of a request without an answer.
type Failure struct {
	Written bool // the other side may have received some of the request
	Err     error
}

// Error returns words that quote neither request nor answer.
func (f *Failure) Error() string { return f.Err.Error() }
func (f *Failure) Unwrap() error { return f.Err }

// failure returns the Failure of a request whose context or connection failed.
func failure(ctx context.Context, written bool, err error) *Failure {
	if cause := ctx.Err(); cause != nil {
		return &Failure{written, cause}
	}
	if egress.Late(err) {
		return &Failure{written, context.DeadlineExceeded}
	}
	return &Failure{written, egress.AnswerError(err)}
}

// Do sends a request and returns the answer, whose body the caller closes before ctx ends.
// Close waits until nothing of the request is in use any more, and keeps the connection if
// the body was read to its end and Close of the answer is not set. The error is a *Failure. Errors of the body have other
// words: see [BodyError].
func (c *Client) Do(ctx context.Context, r *Request) (*http.Response, error) {
	if c.http2 != nil {
		return c.do2(ctx, r)
	}

	conn, err := c.take(ctx)
	if err != nil {
		return nil, failure(ctx, false, err)
	}
	x := &exchange{Client: c, conn: conn, sent: make(chan error, 1)}
	deadline, _ := ctx.Deadline()
	_ = conn.SetDeadline(deadline) // a connection that is closed fails below
	x.stop = context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })

	go func() { x.sent <- conn.send(c.host, r) }()
	resp, err := conn.receive(r.Method)
	if err != nil {
		x.end(false)
		return nil, failure(ctx, conn.written, err)
	}
	x.body, resp.Body = resp.Body, x
	x.resp = resp
	return resp, nil
}

// BodyError returns the Failure of an answer whose body could not be read.
func BodyError(ctx context.Context, err error) error { return failure(ctx, true, err) }

// An exchange is a request under way, and the body of its answer.
type exchange struct {
	*Client
	conn  *connection
	body  io.ReadCloser
	stop  func() bool
	sent  chan error // of the goroutine that sends
	resp  *http.Response
	whole bool // the body was read to its end
	ended bool
}

func (x *exchange) Read(p []byte) (int, error) {
	n, err := x.body.Read(p)
	x.whole = x.whole || err == io.EOF
	return n, err
}

// Close ends the exchange. The connection is kept if nothing is left on it.
func (x *exchange) Close() error {
	if !x.ended {
		x.ended = true
		x.end(!x.resp.Close && x.whole)
	}
	return nil
}

// end waits until the request is not in use any more.
func (x *exchange) end(keep bool) {
	keep = x.stop() && keep && x.conn.in.Buffered() == 0
	if keep { // the answer may have come before the end of the request
		keep = x.conn.SetWriteDeadline(time.Now().Add(grace)) == nil
	}
	if !keep {
		_ = x.conn.Close()
	}
	err := <-x.sent
	clear(x.conn.source.buffer) // it has the answer
	switch {
	case keep && err == nil:
		x.park(x.conn)
	case keep:
		_ = x.conn.Close()
	}
}

var errHeaderTooLong = errors.New("exchange: header is too long")
