package exchange

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"sync"
	"sync/atomic"

	"github.com/cardvault/cardvault/internal/egress"
)

// newHTTP2 returns a transport that speaks HTTP/2 alone.
func (c *Client) newHTTP2() *http.Transport {
	var protocols http.Protocols
	protocols.SetHTTP2(true)

	return &http.Transport{
		DialTLSContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			plain, err := c.dial(ctx, "tcp", c.address)
			if err != nil {
				return nil, egress.DialError(err)
			}

			secure := tls.Client(plain, c.tls)
			err = secure.HandshakeContext(ctx)
			if err == nil && secure.ConnectionState().NegotiatedProtocol != "h2" {
				err = errors.New("exchange: no HTTP/2")
			}
			if err != nil {
				_ = plain.Close()
				return nil, egress.TLSError(err)
			}
			return secure, nil
		},
		DisableCompression:     true,
		IdleConnTimeout:        idleTimeout,
		MaxResponseHeaderBytes: maxHeader,
		Protocols:              &protocols,
	}
}

// do2 is Do over HTTP/2. Without GetBody the transport repeats only what the other side has
// refused to look at.
func (c *Client) do2(ctx context.Context, r *Request) (*http.Response, error) {
	var written atomic.Bool
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { written.Store(true) }})
	out := (&http.Request{
		Method: r.Method,
		URL:    &url.URL{Scheme: "https", Host: c.host, Path: r.Target.Path, RawPath: r.Target.RawPath, RawQuery: r.Target.RawQuery},
		Host:   c.host,
		Header: http.Header{},
	}).WithContext(ctx)
	for _, f := range r.Header {
		out.Header.Add(f.Name, string(f.Value))
	}
	body := &withdrawn{reader: r.Body}
	if r.Body != nil {
		out.Body, out.ContentLength = body, r.Size
	}

	resp, err := c.http2.RoundTrip(out)
	if err != nil {
		body.withdraw()
		return nil, failure(ctx, written.Load(), err)
	}
	resp.Body = &body2{resp.Body, body}
	return resp, nil
}

// A withdrawn body can be taken back from the transport, which may read it after the answer.
type withdrawn struct {
	mu     sync.Mutex
	reader io.Reader // nil once it is taken back
}

func (w *withdrawn) Read(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.reader == nil {
		return 0, io.ErrClosedPipe
	}
	return w.reader.Read(p)
}

func (w *withdrawn) Close() error { return nil }

func (w *withdrawn) withdraw() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reader = nil
}

// body2 is the body of an answer over HTTP/2.
type body2 struct {
	io.ReadCloser
	request *withdrawn
}

func (b *body2) Close() error {
	b.request.withdraw()
	return b.ReadCloser.Close()
}
