package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cardvault/cardvault/internal/leak"
	"github.com/google/uuid"
)

const (
	dialTimeout   = 2 * time.Second
	answerTimeout = 70 * time.Second // longer than replicas take
	probeEvery    = 100 * time.Millisecond

	// readyPath reports whether a replica accepts requests, and whether a proxy has a replica
	// that does. It is not part of the API.
	readyPath = "/ready"
)

// A proxy passes requests on to replicas in turn. A request that could not be sent to one
// goes to the next. A request that was sent is not sent again, even if it fails. The
// exceptions are requests that net/http repeats on a connection that it reuses: a GET, or a
// request without a body under an idempotency key.
//
// It sees cards in the clear: it is in scope of PCI DSS just like the replicas.
type proxy struct {
	pass      *httputil.ReverseProxy
	log       *slog.Logger
	replicas  []*upstream
	turn      atomic.Uint64
	transport *http.Transport // of probes

	probeWithin time.Duration // how long a replica may take to say that it accepts requests
}

// newProxy returns a proxy for replicas at some URLs, none of them ready yet. dial makes
// its connections; nil: over TCP.
func newProxy(at []*url.URL, dial func(ctx context.Context, network, addr string) (net.Conn, error), log *slog.Logger) *proxy {
	if dial == nil {
		dial = (&net.Dialer{Timeout: dialTimeout}).DialContext
	}

	p := &proxy{log: log, probeWithin: time.Second, transport: &http.Transport{
		DialContext:           dial,
		ResponseHeaderTimeout: answerTimeout,
		DisableCompression:    true,
		MaxIdleConnsPerHost:   256,
		IdleConnTimeout:       30 * time.Second, // shorter than the replicas'
	}}

	for _, u := range at {
		p.replicas = append(p.replicas, &upstream{url: u, idle: closed(), transport: p.transport.Clone()})
	}

	p.pass = &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetXForwarded() // the client's own headers, and Forwarded, were removed before
			r.Out.Header.Del("X-Real-Ip")
			r.Out.Host = r.In.Host
			r.Out.URL.RawQuery = r.In.URL.RawQuery // also what cannot be parsed: the replica says so
		},
		Transport:    p,
		ErrorLog:     slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		ErrorHandler: p.fail,
	}
	return p
}

// ServeHTTP implements [http.Handler].
func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if asksReady(r) {
		answerReady(w, slices.ContainsFunc(p.replicas, (*upstream).isReady))
		return
	}
	if !leak.RequestID(r.Header.Get("X-Request-Id")) {
		r.Header.Set("X-Request-Id", uuid.NewString()) // shows in failures and in the replica's log
	}
	r.Header.Del("Upgrade") // there is nothing to upgrade to
	p.pass.ServeHTTP(w, r)
}

func asksReady(r *http.Request) bool { return r.Method == http.MethodGet && r.URL.Path == readyPath }

func answerReady(w http.ResponseWriter, ready bool) {
	status := http.StatusServiceUnavailable
	if ready {
		status = http.StatusNoContent
	}
	w.WriteHeader(status)
}

var errNoReplica = errors.New("no replica accepts requests")

// RoundTrip implements [http.RoundTripper].
func (p *proxy) RoundTrip(r *http.Request) (*http.Response, error) {
	turn, err := p.turn.Add(1), errNoReplica
	for i := range uint64(len(p.replicas)) {
		u := p.replicas[(turn+i)%uint64(len(p.replicas))]
		transport, ready := u.acquire()
		if !ready {
			continue
		}
		out := r.Clone(r.Context())
		out.URL.Scheme, out.URL.Host = u.url.Scheme, u.url.Host
		if r.Body != nil {
			out.Body = io.NopCloser(r.Body) // the next one may need it
		}
		var answer *http.Response
		if answer, err = transport.RoundTrip(out); err == nil {
			answer.Body = &body{answer.Body, sync.OnceFunc(u.release)}
			return answer, nil
		}
		u.release()
		if op, ok := errors.AsType[*net.OpError](err); !ok || op.Op != "dial" || r.Context().Err() != nil {
			return nil, err
		}
	}

	return nil, err
}

// fail answers in the form of the REST API.
func (p *proxy) fail(w http.ResponseWriter, r *http.Request, err error) {
	h := w.Header()
	h.Set("X-Api-Version", "1.0")
	h.Set("X-Request-Id", r.Header.Get("X-Request-Id"))
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Type", "application/json")
	h.Set("X-Content-Type-Options", "nosniff")
	if op, ok := errors.AsType[*net.OpError](err); err == errNoReplica || ok && op.Op == "dial" {
		h.Set("Retry-After", "1")
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = io.WriteString(w, `{"status":"503","classifier":"SERVICE_UNAVAILABLE","message":"The service is unavailable."}`) // the client is gone if this fails
		return
	}
	if r.Context().Err() == nil { // the client waits
		p.log.Warn("a request has no answer from a replica", "request_id", r.Header.Get("X-Request-Id"), "error", err)
	}
	w.WriteHeader(http.StatusBadGateway)
	_, _ = io.WriteString(w, `{"status":"502","classifier":"OUTCOME_UNKNOWN","message":"The replica did not respond. Repeat the request with its idempotency key."}`)
}

// watch probes replicas in processes of their own until ctx ends.
func (p *proxy) watch(ctx context.Context) {
	var group sync.WaitGroup
	for _, u := range p.replicas {
		group.Go(func() {
			tick := time.NewTicker(probeEvery)
			defer tick.Stop()
			for ctx.Err() == nil {
				switch ready := p.probe(ctx, u); {
				case ready == u.setReady(ready) || ctx.Err() != nil:
				case ready:
					p.log.Info("a replica accepts requests", "at", u.url.Host)
				default:
					p.log.Info("a replica accepts no requests", "at", u.url.Host)
				}
				select {
				case <-tick.C:
				case <-ctx.Done():
				}
			}
		})
	}

	group.Wait()
	p.closeIdle()
}

// closeIdle closes the connections to replicas that no request uses.
func (p *proxy) closeIdle() {
	p.transport.CloseIdleConnections()
	for _, u := range p.replicas {
		u.closeIdle()
	}
}

// probe asks a replica whether it takes requests.
func (p *proxy) probe(ctx context.Context, u *upstream) bool {
	ctx, cancel := context.WithTimeout(ctx, p.probeWithin)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, u.url.JoinPath(readyPath).String(), nil)
	if err != nil {
		return false
	}
	answer, err := p.transport.RoundTrip(r)
	if err != nil {
		return false
	}
	answer.Body.Close()
	return answer.StatusCode == http.StatusNoContent
}

// An upstream is a replica as the proxy sees it.
type upstream struct {
	url *url.URL

	mu    sync.Mutex
	ready bool
	busy  int           // requests that it has
	idle  chan struct{} // closed while it has none

	// A replica that is ready again has a new one. Its predecessor has closed the connections
	// of the former, and a request that is sent on one of these gets no answer.
	transport *http.Transport
}

func closed() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

// setReady returns the former value.
func (u *upstream) setReady(ready bool) (before bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	before, u.ready = u.ready, ready
	if ready && !before {
		former := u.transport
		u.transport = former.Clone()
		former.CloseIdleConnections()
	}
	return before
}

func (u *upstream) closeIdle() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.transport.CloseIdleConnections()
}

func (u *upstream) isReady() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.ready
}

// acquire takes a place for a request, if the replica is ready, and returns what sends it.
func (u *upstream) acquire() (*http.Transport, bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if !u.ready {
		return nil, false
	}
	if u.busy == 0 {
		u.idle = make(chan struct{})
	}
	u.busy++
	return u.transport, true
}

func (u *upstream) release() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.busy--; u.busy == 0 {
		close(u.idle)
	}
}

// drain sends the replica no more requests, and waits until its running requests are
// answered or ctx ends.
func (u *upstream) drain(ctx context.Context) {
	u.mu.Lock()
	u.ready = false
	idle := u.idle
	u.mu.Unlock()
	select {
	case <-idle:
	case <-ctx.Done():
	}
}

// A body calls a function when it is closed.
type body struct {
	io.ReadCloser
	closed func()
}

func (b *body) Close() error {
	defer b.closed()
	return b.ReadCloser.Close()
}

// client returns who has sent a request to the proxy that has passed it on.
func client(r *http.Request) netip.Addr {
	// Other proxies may keep the client's addresses, in front of their own.
	chain := strings.Join(r.Header.Values("X-Forwarded-For"), ",")
	a, err := netip.ParseAddr(strings.TrimSpace(chain[strings.LastIndexByte(chain, ',')+1:]))
	if err != nil {
		return netip.Addr{}
	}
	return a.Unmap()
}
