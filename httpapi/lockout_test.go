package httpapi_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync"
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

// settle waits until nothing goes on any more, and compares a counter.
func settle(t *testing.T, counter *atomic.Int64, want int64) {
	t.Helper()
	if synctest.Wait(); counter.Load() != want {
		t.Fatalf("%d of %d", counter.Load(), want)
	}
}

// shop completes a session of its own over a connection of its own, after a number of refused
// cards, and checks how long that takes. A shopper who is told to wait does so.
func (a *ambush) shop(t *testing.T, when string, refusals int, http2 bool, takes time.Duration) {
	t.Helper()
	transport := over(t, a.dial, http2)
	do := func(method, path, body string) *answer {
		t.Helper()
		for tries := 0; ; tries++ {
			req, err := http.NewRequestWithContext(t.Context(), method, "http://vault"+path, strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Content-Type", "application/json")
			resp, err := transport.RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			text, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			if err != nil {
				t.Fatal(err)
			}
			seconds, err := strconv.Atoi(resp.Header.Get("Retry-After"))
			if err != nil || tries == 10 {
				return &answer{resp.StatusCode, resp.Header, string(text)}
			}
			time.Sleep(time.Duration(seconds) * time.Second)
		}
	}
	path := a.newSession(t)
	start := time.Now()
	open := do("GET", path, "")
	open.want(t, 200)
	for range refusals {
		do("POST", path+"/complete-action", completion(t, open, refused, "")).want(t, 200)
	}
	done := do("POST", path+"/complete-action", completion(t, open, entered, ""))
	done.want(t, 200)
	if took := time.Since(start); took != takes || done.member(t, "status") != "success" {
		t.Errorf("%s, a shopper whose card was refused %d times before is answered after %v, not %v: %s", when, refusals, took, takes, done.body)
	}
}

// TestLockout has hostile requests come from the address of honest shoppers, hang as far as
// they are let in, and then all fail at once. Shoppers complete their sessions meanwhile and
// afterwards, and none waits for them: in a bubble time passes only while all wait.
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
	a.shop(t, "before", 0, http2, 0)
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

	// Over HTTP/2 those that find no place are answered before they have been read: see
	// limitCompletion. Over HTTP/1.1 the server reads a body before it answers.
	attack, hang := a.overHTTP1, hostile()
	if http2 {
		attack, hang = a.overHTTP2, 30
		if own {
			hang += len(sessions)
		}
	}
	came, answered := a.came.Load()+int64(hostile()), a.came.Load()+int64(hostile()-hang)
	fail := attack(t, path)
	settle(t, &a.came, came)
	settle(t, &a.answered, answered)
	a.shop(t, "while they hang", 0, http2, 0)
	if !own {
		a.shop(t, "while they hang", 1, http2, 0)
	}
	fail()
	settle(t, &a.answered, a.came.Load())
	a.shop(t, "when they have failed", 0, http2, 0)

	// A shopper may share the address of a client with many sessions, and then has to wait
	// before a second try.
	again := time.Duration(0)
	if own {
		again = time.Minute
	}
	a.shop(t, "when they have failed", 1, http2, again)
}

// overHTTP1 opens connections that each begin a completion. The returned function finishes them.
func (a *ambush) overHTTP1(t *testing.T, path func(i int) string) (fail func()) {
	conns := make([]net.Conn, hostile())
	for i := range conns {
		conns[i] = a.dial()
		write(t, conns[i], fmt.Sprintf("POST %s/complete-action HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{", path(i)))
		go func() { _, _ = io.Copy(io.Discard, conns[i]) }() // until the test ends
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
			transports = append(transports, over(t, a.dial, true))
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
	fail = sync.OnceFunc(func() { close(release) })
	t.Cleanup(fail) // a bubble must not end while they hang
	return fail
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
