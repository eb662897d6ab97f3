package httpapi_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
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

// An ambush is a vault on a server. Its shoppers and hostile requests share one address.
type ambush struct {
	*rig
	came, answered atomic.Int64 // requests; a repeated one came once
	turns          sync.Map     // of hostile requests that came
	sockets        net.Listener
	memory         *pipeListener
}

// turnHeader has the number of a hostile request.
const turnHeader = "X-Turn"

func newAmbush(t *testing.T) *ambush {
	a := new(ambush)
	shared := netip.MustParseAddr("192.0.2.1")
	a.rig = newRig(t, nil, &httpapi.Options{ClientAddr: func(r *http.Request) netip.Addr {
		again := false
		if turn := r.Header.Get(turnHeader); turn != "" {
			_, again = a.turns.LoadOrStore(turn, true)
		}
		if !again {
			a.came.Add(1)
		}
		return shared
	}})
	var err error
	if a.sockets, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	a.memory = &pipeListener{conns: make(chan net.Conn), closed: make(chan struct{})}
	s := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			defer a.answered.Add(1)
			a.handler.ServeHTTP(w, r)
		}),
		Protocols: protocols(),
		ErrorLog:  log.New(io.Discard, "", 0),
	}
	var served sync.WaitGroup
	for _, l := range []net.Listener{a.sockets, a.memory} {
		served.Go(func() {
			if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				t.Error(err)
			}
		})
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		served.Wait()
	})
	return a
}

func protocols() *http.Protocols {
	p := new(http.Protocols)
	p.SetHTTP1(true)
	p.SetUnencryptedHTTP2(true)
	return p
}

// await waits until a counter reaches n. A busy machine may take minutes.
func await(t *testing.T, counter *atomic.Int64, n int64) {
	t.Helper()
	for deadline := time.Now().Add(4 * time.Minute); counter.Load() < n; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d", counter.Load(), n)
		}
	}
}

// roundTrip sends a request and reads the whole answer.
func roundTrip(transport *http.Transport, req *http.Request) (*answer, error) {
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return &answer{resp.StatusCode, resp.Header, string(text)}, err
}

// shop completes a session of its own after a number of refused cards, and returns the last
// answer. It opens its own connection, and another one if the server has closed that: see
// overHTTP2.
func (a *ambush) shop(t *testing.T, when string, refusals int, http2 bool) *answer {
	t.Helper()
	transport := &http.Transport{Protocols: new(http.Protocols)}
	defer transport.CloseIdleConnections()
	transport.Protocols.SetHTTP1(!http2)
	transport.Protocols.SetUnencryptedHTTP2(http2)
	repeated := false
	do := func(method, path, body string) *answer {
		t.Helper()
		for tries := 0; ; tries++ {
			req, err := http.NewRequestWithContext(t.Context(), method, "http://"+a.sockets.Addr().String()+path, strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Content-Type", "application/json")
			got, err := roundTrip(transport, req)
			if err == nil {
				return got
			}
			if t.Log(err); tries == 10 {
				t.Fatal("no answer")
			}
			repeated = true
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
	if repeated && done.status == http.StatusConflict { // the first one has had its effect
		done = do("GET", path, "")
	}
	t.Logf("%s, a shopper whose card was refused %d times before is answered %d after %v", when, refusals, done.status, time.Since(start).Round(time.Millisecond))
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
// all fail at once. Shoppers complete their sessions meanwhile and afterwards.
func TestLockout(t *testing.T) {
	for name, own := range map[string]bool{
		"ids that never were": false, // shoppers with refused cards go on too
		"sessions of its own": true,
	} {
		for _, http2 := range []bool{false, true} {
			version := map[bool]string{false: "HTTP/1.1", true: "HTTP/2"}[http2]
			t.Run(name+" over "+version, func(t *testing.T) {
				a := newAmbush(t)
				a.shop(t, "before", 0, http2).want(t, 200)
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
				before := a.came.Load()
				attack := a.overHTTP1
				if http2 {
					attack = a.overHTTP2
				}
				fail := attack(t, path)
				await(t, &a.came, before+int64(hostile()))
				a.wantToken(t, "while they hang", 0, http2)
				if !own {
					a.wantToken(t, "while they hang", 1, http2)
				}
				fail()
				await(t, &a.answered, before+int64(hostile()))
				a.wantToken(t, "when they have failed", 0, http2)
				if !own {
					a.wantToken(t, "when they have failed", 1, http2)
					return
				}
				// A shopper may share the address of a client with many sessions. The
				// shopper may then have to wait before a second try, for a minute at a
				// time.
				again := a.shop(t, "when they have failed", 1, http2)
				if seconds, err := strconv.Atoi(again.header.Get("Retry-After")); again.status != 200 && (err != nil || seconds < 1 || seconds > 60) {
					t.Errorf("a second try is answered %d, Retry-After %d", again.status, seconds)
				}
			})
		}
	}
}

// overHTTP1 opens connections that each begin a completion. The returned function finishes
// them. A thousand are sockets, the others are in memory.
func (a *ambush) overHTTP1(t *testing.T, path func(i int) string) (fail func()) {
	conns := make([]net.Conn, hostile())
	var open sync.WaitGroup
	turns := make(chan int)
	for range 32 {
		open.Go(func() {
			for i := range turns {
				var c net.Conn
				if i < 1000 {
					var err error
					if c, err = new(net.Dialer).DialContext(t.Context(), "tcp", a.sockets.Addr().String()); err != nil {
						t.Error(err)
						continue
					}
				} else {
					client, server := net.Pipe()
					a.memory.conns <- server
					c = client
				}
				conns[i] = c
				if _, err := fmt.Fprintf(c, "POST %s/complete-action HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{", path(i)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for i := range hostile() {
		turns <- i
	}
	close(turns)
	open.Wait()
	var read sync.WaitGroup
	t.Cleanup(func() {
		for _, c := range conns {
			if c != nil {
				c.Close()
			}
		}
		read.Wait()
	})
	for _, c := range conns {
		if c != nil {
			read.Go(func() { _, _ = io.Copy(io.Discard, c) }) // until the server closes it
		}
	}
	return func() {
		for _, c := range conns {
			if c != nil {
				_, _ = io.WriteString(c, "}") // it fails if the server was quicker
			}
		}
	}
}

// overHTTP2 does the same with streams, as many per connection as a server allows.
func (a *ambush) overHTTP2(t *testing.T, path func(i int) string) (fail func()) {
	const streams = 250
	release := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	var transports []*http.Transport
	for i := range hostile() {
		if i%streams == 0 {
			transports = append(transports, streaming())
		}
		transport := transports[len(transports)-1]
		url := "http://" + a.sockets.Addr().String() + path(i) + "/complete-action"
		group.Go(func() {
			// A server closes a connection that says nothing for two seconds, which happens
			// on a busy machine. Its requests are then repeated on another connection, as
			// is one that does not come.
			for !a.hang(ctx, t, transport, url, strconv.Itoa(i), release) {
				select {
				case <-release:
					return
				case <-ctx.Done():
					return
				default:
				}
				if _, came := a.turns.Load(strconv.Itoa(i)); !came {
					transport = streaming()
					defer transport.CloseIdleConnections()
				}
			}
		})
	}
	t.Cleanup(func() {
		cancel()
		group.Wait()
		for _, transport := range transports {
			transport.CloseIdleConnections()
		}
	})
	return func() { close(release) }
}

// streaming returns a transport that opens one connection, for as many streams as a server allows.
func streaming() *http.Transport {
	transport := &http.Transport{
		Protocols: new(http.Protocols),
		HTTP2:     &http.HTTP2Config{StrictMaxConcurrentRequests: true},
	}
	transport.Protocols.SetUnencryptedHTTP2(true)
	return transport
}

// hang sends a request with half a body, and the other half on release. It returns whether
// the request was answered. One that has not come after 20 seconds is given up.
func (a *ambush) hang(ctx context.Context, t *testing.T, transport *http.Transport, url, turn string, release chan struct{}) bool {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer time.AfterFunc(20*time.Second, func() {
		if _, came := a.turns.Load(turn); !came {
			cancel()
		}
	}).Stop()
	req, err := http.NewRequestWithContext(ctx, "POST", url, &hangingBody{release: release})
	if err != nil {
		t.Error(err)
		return true
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set(turnHeader, turn)

	resp, err := transport.RoundTrip(req)
	if err != nil {
		return false
	}
	_, _ = io.Copy(io.Discard, resp.Body) // the server may close it
	resp.Body.Close()
	return true
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
