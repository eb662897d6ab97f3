package httpapi_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cardvault/cardvault/httpapi"
	"github.com/google/uuid"
)

// hostile returns the number of concurrent requests of a hostile client.
func hostile() int {
	if testing.Short() {
		return 1_500
	}
	return 10_000
}

// An ambush is a vault on a server in a bubble. Its shoppers and hostile requests share one
// address.
type ambush struct {
	*rig
	dial           func() net.Conn
	came, answered atomic.Int64 // requests
}

func newAmbush(t *testing.T) *ambush {
	a := new(ambush)
	shared := netip.MustParseAddr("192.0.2.1")
	a.rig = newRig(t, nil, &httpapi.Options{ClientAddr: func(*http.Request) netip.Addr {
		a.came.Add(1)
		return shared
	}})
	a.dial = serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer a.answered.Add(1)
		a.handler.ServeHTTP(w, r)
	}))
	return a
}

// transport returns a client. Over HTTP/2 it has one connection, with as many streams as the
// server allows.
func (a *ambush) transport(t *testing.T, http2 bool) *http.Transport {
	transport := &http.Transport{
		DialContext: func(context.Context, string, string) (net.Conn, error) { return a.dial(), nil },
		Protocols:   new(http.Protocols),
		HTTP2:       &http.HTTP2Config{StrictMaxConcurrentRequests: true},
	}
	transport.Protocols.SetHTTP1(!http2)
	transport.Protocols.SetUnencryptedHTTP2(http2)
	t.Cleanup(transport.CloseIdleConnections)
	return transport
}

// await lets a second pass at the most until a counter has reached n.
func await(t *testing.T, counter *atomic.Int64, n int64) {
	t.Helper()
	for range 100 {
		if synctest.Wait(); counter.Load() == n {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("%d of %d", counter.Load(), n)
}

// shop completes a session of its own over a connection of its own, after a number of refused
// cards, and returns the last answer.
func (a *ambush) shop(t *testing.T, when string, refusals int, http2 bool) *answer {
	t.Helper()
	transport := a.transport(t, http2)
	do := func(method, path, body string) *answer {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, "http://vault"+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		resp, err := transport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return &answer{resp.StatusCode, resp.Header, string(text)}
	}
	path := a.newSession(t)
	start := time.Now()
	open := do("GET", path, "")
	open.want(t, 200)
	for range refusals {
		do("POST", path+"/complete-action", completion(t, open, refused, "")).want(t, 200)
	}
	done := do("POST", path+"/complete-action", completion(t, open, entered, ""))
	if took := time.Since(start); took > 2*time.Second {
		t.Errorf("%s, a shopper whose card was refused %d times before is answered %d after %v", when, refusals, done.status, took)
	}
	return done
}

func (a *ambush) wantToken(t *testing.T, when string, refusals int, http2 bool) {
	t.Helper()
	done := a.shop(t, when, refusals, http2)
	done.want(t, 200)
	if done.member(t, "status") != "success" {
		t.Errorf("%s: %s", when, done.body)
	}
}

// TestLockout has hostile requests come from the address of honest shoppers, hang, and then
// all fail at once. Shoppers complete their sessions meanwhile and afterwards, within two
// seconds each.
func TestLockout(t *testing.T) {
	for name, own := range map[string]bool{
		"ids that never were": false, // shoppers with refused cards go on too
		"sessions of its own": true,
	} {
		for _, http2 := range []bool{false, true} {
			version := map[bool]string{false: "HTTP/1.1", true: "HTTP/2"}[http2]
			t.Run(name+" over "+version, func(t *testing.T) {
				inBubble(t, func(t *testing.T) { lockOut(t, own, http2) })
			})
		}
	}
}

// lockOut has a client with sessions of its own, or with none, attack over one version of HTTP.
func lockOut(t *testing.T, own, http2 bool) {
	a := newAmbush(t)
	a.wantToken(t, "before", 0, http2)
	var sessions []string
	for range 100 {
		sessions = append(sessions, a.newSession(t))
	}
	path := func(i int) string {
		switch {
		case own:
			return sessions[i%len(sessions)]
		case i%10 == 0:
			return "/sessions/x"
		}
		return "/sessions/" + uuid.NewString()
	}

	came := a.came.Load()
	attack := a.overHTTP1
	if http2 {
		attack = a.overHTTP2
	}
	fail := attack(t, path)
	await(t, &a.came, came+int64(hostile()))
	a.wantToken(t, "while they hang", 0, http2)
	if !own {
		a.wantToken(t, "while they hang", 1, http2)
	}
	fail()
	await(t, &a.answered, a.came.Load())
	a.wantToken(t, "when they have failed", 0, http2)
	if !own {
		a.wantToken(t, "when they have failed", 1, http2)
		return
	}
	// A shopper may share the address of a client with many sessions, and may then have to
	// wait before a second try, for a minute at a time.
	again := a.shop(t, "when they have failed", 1, http2)
	if seconds, err := strconv.Atoi(again.header.Get("Retry-After")); again.status != 200 && (err != nil || seconds < 1 || seconds > 60) {
		t.Errorf("a second try is answered %d, Retry-After %d", again.status, seconds)
	}
}

// overHTTP1 opens connections that each begin a completion. The returned function finishes them.
func (a *ambush) overHTTP1(t *testing.T, path func(i int) string) (fail func()) {
	conns := make([]net.Conn, hostile())
	for i := range conns {
		conns[i] = a.dial()
		write(t, conns[i], fmt.Sprintf("POST %s/complete-action HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{", path(i)))
		go func() { _, _ = io.Copy(io.Discard, conns[i]) }() // until the server closes it
	}
	return func() {
		for _, c := range conns {
			write(t, c, "}")
		}
	}
}

// overHTTP2 does the same with streams, as many per connection as the server allows.
func (a *ambush) overHTTP2(t *testing.T, path func(i int) string) (fail func()) {
	const streams = 250
	release := make(chan struct{})
	var transports []*http.Transport
	for i := range hostile() {
		if i%streams == 0 {
			transports = append(transports, a.transport(t, true))
		}
		transport := transports[len(transports)-1]
		req, err := http.NewRequestWithContext(t.Context(), "POST", "http://vault"+path(i)+"/complete-action", &hangingBody{release: release})
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		go func() {
			resp, err := transport.RoundTrip(req)
			if err != nil {
				if t.Context().Err() == nil {
					t.Error(err)
				}
				return
			}
			_, _ = io.Copy(io.Discard, resp.Body) // the server may close it
			resp.Body.Close()
		}()
	}
	return func() { close(release) }
}

// A hangingBody is half a body until it is released.
type hangingBody struct {
	release chan struct{}
	sent    int
}

func (b *hangingBody) Read(p []byte) (int, error) {
	b.sent++
	switch b.sent {
	case 1:
		return copy(p, "{"), nil
	case 2:
		<-b.release
		return copy(p, "}"), nil
	}
	return 0, io.EOF
}
