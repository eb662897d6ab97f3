package webhooktest

import (
	"bytes"
	"io"
	"net/http"

	"github.com/cardvault/cardvault/webhook"
)

// NewSender returns a sender that passes each delivery to h in memory, whatever host its URL
// names: h is a [Receiver], or the handler of the program that is tested. It uses no socket
// and no goroutine, so it works in a bubble of testing/synctest.
//
//	r := webhooktest.New()
//	v := vaulttest.NewWith(t, &cardvault.Options{Mode: cardvault.Sandbox, Webhooks: webhooktest.NewSender(r)})
//
// It is the sender of package webhook up to the connection: URLs are https with a public
// host, such as https://shop.example/hook. h has to return when the context of its
// request ends.
func NewSender(h http.Handler) *webhook.Sender {
	return webhook.New(&webhook.Options{Transport: memory{h}})
}

// A memory is a transport to a handler.
type memory struct{ handler http.Handler }

// RoundTrip returns the answer of the handler once the handler has returned.
func (m memory) RoundTrip(r *http.Request) (resp *http.Response, err error) {
	w := &reply{header: http.Header{}}
	defer func() {
		switch p := recover(); {
		case p == nil:
		case p != http.ErrAbortHandler:
			panic(p)
		case w.sent == nil:
			resp, err = nil, io.EOF
		default:
			resp, err = w.response(r), nil
		}
	}()

	m.handler.ServeHTTP(w, received(r))
	if err := r.Context().Err(); err != nil && w.sent == nil {
		return nil, err
	}
	w.WriteHeader(http.StatusOK)
	return w.response(r), nil
}

// received returns a request as a server has it.
func received(r *http.Request) *http.Request {
	in := r.Clone(r.Context())
	in.Host, in.RequestURI, in.RemoteAddr = r.URL.Host, r.URL.RequestURI(), "192.0.2.1:1234"
	in.URL.Scheme, in.URL.Host = "", ""
	return in
}

// A reply is the answer of a handler.
type reply struct {
	header http.Header // as the handler changes it
	sent   http.Header // as it was when the answer began; nil before
	status int
	body   bytes.Buffer
}

func (a *reply) Header() http.Header { return a.header }

// WriteHeader begins the answer. Statuses of an answer that is still to come do not.
func (a *reply) WriteHeader(status int) {
	if a.sent == nil && (status >= 200 || status == http.StatusSwitchingProtocols) {
		a.sent, a.status = a.header.Clone(), status
	}
}

// Write takes as much as a sender reads, and then fails, as it does for a sender that has gone.
func (a *reply) Write(b []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	if a.body.Len()+len(b) > maxBody {
		return 0, io.ErrClosedPipe
	}
	return a.body.Write(b)
}

// Flush implements [http.Flusher].
func (a *reply) Flush() { a.WriteHeader(http.StatusOK) }

func (a *reply) response(r *http.Request) *http.Response {
	return &http.Response{
		StatusCode: a.status, ProtoMajor: 1, ProtoMinor: 1,
		Header: a.sent, Body: io.NopCloser(&a.body), Request: r,
	}
}
