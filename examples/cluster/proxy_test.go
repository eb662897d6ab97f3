//go:build unix

package main

import (
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cardvault/cardvault/internal/realtest"
	"github.com/google/uuid"
)

// proxyOf returns a proxy for replicas at some addresses, all ready.
func proxyOf(t testing.TB, at ...string) *proxy {
	t.Helper()
	var urls []*url.URL
	for _, a := range at {
		urls = append(urls, &url.URL{Scheme: "http", Host: a})
	}
	p := newProxy(urls, nil, quiet)
	for _, u := range p.replicas {
		u.setReady(true)
	}
	t.Cleanup(p.closeIdle)
	return p
}

func post(p *proxy, body string) *httptest.ResponseRecorder {
	r := httptest.NewRequest("POST", "/cde-import?a;b=%zz", strings.NewReader(body))
	r.RemoteAddr = "192.0.2.7:1234"
	r.Header.Set("X-Forwarded-For", "198.51.100.1")
	w := httptest.NewRecorder()
	p.ServeHTTP(w, r)
	return w
}

// A request that could not be sent goes to the next replica, with its body. A request that
// was sent goes to no other replica, whatever its outcome.
func TestProxy(t *testing.T) {
	const body = `{"account_number":"4242424242424242"}`
	var served, lost atomic.Int32
	good := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		served.Add(1)
		if got, err := io.ReadAll(r.Body); err != nil || string(got) != body {
			t.Errorf("the body is %q, %v", got, err)
		}
		if r.URL.RawQuery != "a;b=%zz" || r.Host != "example.com" {
			t.Errorf("asked for %s of %s", r.URL, r.Host)
		}
		if from := client(r); from != netip.MustParseAddr("192.0.2.7") {
			t.Errorf("it is from %s", from)
		}
	}))
	t.Cleanup(good.Close)
	dying, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dying.Close() })
	go func() { // a replica that is killed after it has read a request
		for {
			c, err := dying.Accept()
			if err != nil {
				return
			}
			if n, _ := c.Read(make([]byte, 1)); n > 0 {
				lost.Add(1)
			}
			c.Close()
		}
	}()

	p := proxyOf(t, realtest.Address(t), good.Listener.Addr().String(), realtest.Address(t))
	for n := range int32(6) {
		if w := post(p, body); w.Code != 200 || served.Load() != n+1 {
			t.Fatalf("the answer is %d, served %d times", w.Code, served.Load())
		}
	}

	served.Store(0)
	p = proxyOf(t, dying.Addr().String(), good.Listener.Addr().String())
	refused := 0
	for range 6 {
		if w := post(p, body); w.Code == http.StatusBadGateway {
			wantFailure(t, w, "OUTCOME_UNKNOWN")
			refused++
		} else if w.Code != 200 {
			t.Errorf("the answer is %d", w.Code)
		}
	}
	if refused != 3 || served.Load() != 3 || lost.Load() != 3 {
		t.Errorf("%d refused, %d served, %d lost: want 3 each", refused, served.Load(), lost.Load())
	}

	p = proxyOf(t, realtest.Address(t))
	w := post(p, body)
	wantFailure(t, w, "SERVICE_UNAVAILABLE")
	if w.Code != 503 || w.Header().Get("Retry-After") != "1" {
		t.Errorf("without a replica that listens the answer is %d", w.Code)
	}
	p.replicas[0].setReady(false)
	w = post(p, body)
	wantFailure(t, w, "SERVICE_UNAVAILABLE")
	if w.Code != 503 {
		t.Errorf("without a replica that is ready the answer is %d", w.Code)
	}
}

// A request has the same id at the replica, at the client and in the proxy's failures. It
// is the client's own id if replicas accept that.
func TestRequestID(t *testing.T) {
	ids := make(chan string, 1)
	replica := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		ids <- r.Header.Get("X-Request-Id")
		panic(http.ErrAbortHandler)
	}))
	t.Cleanup(replica.Close)
	p := proxyOf(t, replica.Listener.Addr().String())
	const id = "0b6d6a0e-3a4e-4c0b-8f0e-1d2c3b4a5968"
	for _, given := range []string{"", "a b", "4242424242424242", strings.ToUpper(id), id} {
		r := httptest.NewRequest("POST", "/cde-import", nil)
		r.Header.Set("X-Request-Id", given)
		r.Header.Set("Connection", "Upgrade")
		r.Header.Set("Upgrade", "é") // which a proxy need not pass on
		w := httptest.NewRecorder()
		p.ServeHTTP(w, r)
		wantFailure(t, w, "OUTCOME_UNKNOWN")
		got := <-ids
		if answered := w.Header().Get("X-Request-Id"); answered != got || (answered == given) != strings.EqualFold(given, id) {
			t.Errorf("given %q, the replica has %q, the client is sent %q", given, got, answered)
		}
	}
}

// The proxy is ready as long as a replica is. Methods other than GET are ordinary requests.
func TestReady(t *testing.T) {
	replica := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(replica.Close)
	p := proxyOf(t, realtest.Address(t), replica.Listener.Addr().String())
	want := func(when, method string, status int) {
		t.Helper()
		w := httptest.NewRecorder()
		p.ServeHTTP(w, httptest.NewRequest(method, readyPath, nil))
		if w.Code != status {
			t.Errorf("%s: %s answers %d, want %d", when, method, w.Code, status)
		}
	}
	want("all ready", "GET", 204)
	want("all ready", "POST", 404)
	p.replicas[0].setReady(false)
	want("one ready", "GET", 204)
	p.replicas[1].setReady(false)
	want("none ready", "GET", 503)
}

// A client cannot forge its address, host or protocol: the proxy sets them.
func TestForwarded(t *testing.T) {
	var got http.Header
	var from netip.Addr
	replica := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got, from = r.Header, client(r) }))
	t.Cleanup(replica.Close)
	p := proxyOf(t, replica.Listener.Addr().String())
	const forged = "198.51.100.1"
	names := []string{"X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "Forwarded", "X-Real-Ip"}
	for _, connection := range []string{"", "X-Forwarded-For, X-Forwarded-Host, X-Forwarded-Proto"} {
		r := httptest.NewRequest("GET", "/tokens", nil)
		r.RemoteAddr = "192.0.2.7:1234"
		for _, name := range names {
			r.Header[name] = []string{forged, forged}
		}
		if connection != "" {
			r.Header.Set("Connection", connection)
		}
		p.ServeHTTP(httptest.NewRecorder(), r)
		want := http.Header{"X-Forwarded-For": {"192.0.2.7"}, "X-Forwarded-Host": {"example.com"}, "X-Forwarded-Proto": {"http"}}
		for _, name := range names {
			if !slices.Equal(got[name], want[name]) {
				t.Errorf("%s is %q at the replica, want %q", name, got[name], want[name])
			}
		}
		if from != netip.MustParseAddr("192.0.2.7") {
			t.Errorf("it is from %s", from)
		}
	}
}

// If several proxies name a client, the last proxy is believed.
func TestClient(t *testing.T) {
	for _, test := range []struct {
		lines []string
		want  string
	}{
		{nil, "invalid IP"},
		{[]string{""}, "invalid IP"},
		{[]string{"192.0.2.7, nobody"}, "invalid IP"},
		{[]string{"192.0.2.7"}, "192.0.2.7"},
		{[]string{"::ffff:192.0.2.7"}, "192.0.2.7"},
		{[]string{"198.51.100.1, 192.0.2.7"}, "192.0.2.7"},
		{[]string{"198.51.100.1", "192.0.2.7"}, "192.0.2.7"},
	} {
		r := httptest.NewRequest("GET", "/", nil)
		r.Header["X-Forwarded-For"] = test.lines
		if got := client(r).String(); got != test.want {
			t.Errorf("%q is from %s, want %s", test.lines, got, test.want)
		}
	}
}

func wantFailure(t *testing.T, w *httptest.ResponseRecorder, classifier string) {
	t.Helper()
	if h := w.Header(); uuid.Validate(h.Get("X-Request-Id")) != nil || h.Get("X-Api-Version") != "1.0" {
		t.Errorf("headers of the answer: %v", h)
	}
	var f struct{ Status, Classifier, Message string }
	if err := json.Unmarshal(w.Body.Bytes(), &f); err != nil || f.Classifier != classifier || f.Message == "" {
		t.Errorf("the answer is %s: %v", w.Body, err)
	}
}
