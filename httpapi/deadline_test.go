package httpapi_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cardvault/cardvault/httpapi"
	"github.com/cardvault/cardvault/internal/bubble"
	"github.com/cardvault/cardvault/store"
)

// serve serves h until the test ends, without any timeout of the server's own. It returns a
// function that opens a connection.
func serve(t *testing.T, h http.Handler) (dial func() net.Conn) {
	l := bubble.Listen()
	s := &http.Server{Handler: h, Protocols: new(http.Protocols)}
	s.Protocols.SetHTTP1(true)
	s.Protocols.SetUnencryptedHTTP2(true)
	done := make(chan error)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if err := <-done; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
		time.Sleep(time.Second) // net/http lingers on connections that it closes
	})
	return func() net.Conn {
		client, err := l.Dial(t.Context(), "", "")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { client.Close() })
		return client
	}
}

// over returns a client of one connection that dial opens.
func over(t *testing.T, dial func() net.Conn, http2 bool) *http.Transport {
	transport := &http.Transport{
		DialContext:     func(context.Context, string, string) (net.Conn, error) { return dial(), nil },
		MaxConnsPerHost: 1,
		Protocols:       new(http.Protocols),
	}
	transport.Protocols.SetHTTP1(!http2)
	transport.Protocols.SetUnencryptedHTTP2(http2)
	t.Cleanup(transport.CloseIdleConnections)
	return transport
}

// write sends text in the background, since the other side may have stopped reading.
func write(t *testing.T, c net.Conn, text string) {
	go func() {
		// An error is fine: some tests have the server close the connection.
		_, _ = io.WriteString(c, text)
	}()
}

// readAnswer reads an answer and returns its status and whether the server keeps the
// connection open.
func readAnswer(t *testing.T, r *bufio.Reader, method string) (status int, keeps bool) {
	t.Helper()
	resp, err := http.ReadResponse(r, &http.Request{Method: method})
	if err != nil {
		t.Fatalf("no answer: %v", err)
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, !resp.Close
}

// A client that sends less than it announced is answered in time and loses its connection.
// The server has no timeouts of its own.
func TestSlowBody(t *testing.T) {
	const post = "POST /cde-import HTTP/1.1\r\nHost: x\r\n"
	for _, test := range []struct {
		name, request string
		status        int
		timeout       time.Duration
		after         time.Duration
	}{
		{"announced", post + "X-Api-Key: {key}\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{", 400, 0, 10 * time.Second},
		{"chunked", post + "X-Api-Key: {key}\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n", 400, 0, 10 * time.Second},
		{"no key", post + "Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{", 401, 0, 10 * time.Second},
		{"no path", "POST /nothing HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n", 404, 0, 10 * time.Second},
		{"no method", "PUT /tokens HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n", 405, 0, 10 * time.Second},
		{"wrong type", post + "X-Api-Key: {key}\r\nContent-Type: text/plain\r\nContent-Length: 100\r\n\r\n", 415, 0, 10 * time.Second},
		{"wrong type, chunked", post + "X-Api-Key: {key}\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n", 415, 0, 10 * time.Second},
		{"too large", post + "X-Api-Key: {key}\r\nContent-Type: application/json\r\nContent-Length: 70000\r\n\r\n{", 413, 0, 10 * time.Second},
		{"far too large", post + "X-Api-Key: {key}\r\nContent-Type: application/json\r\nContent-Length: 7000000\r\n\r\n{", 413, 0, 0},
		{"too large, chunked", post + "X-Api-Key: {key}\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n10001\r\n" + strings.Repeat(" ", 65537) + "\r\n", 413, 0, 10 * time.Second},
		{"session", "POST /sessions/x/complete-action HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{", 400, 0, 10 * time.Second},
		{"Options.Timeout", post + "X-Api-Key: {key}\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{", 400, 2 * time.Second, 2 * time.Second},
	} {
		t.Run(test.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				r := newRig(t, nil, &httpapi.Options{Timeout: test.timeout})
				c := serve(t, r.handler)()
				start := time.Now()
				write(t, c, strings.ReplaceAll(test.request, "{key}", r.key))
				in := bufio.NewReader(c)
				status, keeps := readAnswer(t, in, "POST")
				if took := time.Since(start); status != test.status || keeps || took != test.after {
					t.Errorf("status %d after %v, connection kept: %v; want %d after %v", status, took, keeps, test.status, test.after)
				}
				// net/http lingers for half a second.
				if _, err := in.ReadByte(); !errors.Is(err, io.EOF) || time.Since(start) > test.after+time.Second {
					t.Errorf("the connection ended with %v after %v", err, time.Since(start))
				}
			})
		})
	}
}

// A trickling body does not extend the deadline.
func TestTricklingBody(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := newRig(t, nil, nil)
		c := serve(t, r.handler)()
		start := time.Now()
		go func() {
			_, err := io.WriteString(c, "POST /cde-import HTTP/1.1\r\nHost: x\r\nX-Api-Key: "+r.key+
				"\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{")
			for err == nil {
				time.Sleep(time.Second)
				_, err = io.WriteString(c, " ")
			}
		}()
		status, _ := readAnswer(t, bufio.NewReader(c), "POST")
		if took := time.Since(start); status != 400 || took != 10*time.Second {
			t.Errorf("status %d after %v", status, took)
		}
		c.Close()
	})
}

// A client that does not read its answer cannot hold the server.
func TestSlowReader(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := newRig(t, nil, nil)
		returned := make(chan time.Time, 1)
		c := serve(t, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			r.handler.ServeHTTP(w, req)
			returned <- time.Now()
		}))()
		start := time.Now()
		write(t, c, "GET /tokens HTTP/1.1\r\nHost: x\r\nX-Api-Key: "+r.key+"\r\n\r\n")
		if took := (<-returned).Sub(start); took != 31*time.Second {
			t.Errorf("the server gave up after %v", took)
		}
	})
}

// The deadlines of a request do not affect later requests on the same connection.
func TestDeadlinesEnd(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := newRig(t, nil, nil)
		mux := http.NewServeMux()
		mux.Handle("/vault/", http.StripPrefix("/vault", r.handler))
		mux.HandleFunc("/slow", func(w http.ResponseWriter, req *http.Request) {
			if _, err := io.Copy(io.Discard, req.Body); err != nil {
				t.Errorf("the body of another handler: %v", err)
			}
			time.Sleep(time.Hour)
			if err := req.Context().Err(); err != nil {
				t.Errorf("the context of another handler: %v", err)
			}
			if _, err := io.WriteString(w, "ok"); err != nil {
				t.Error(err)
			}
		})
		c := serve(t, mux)()
		in := bufio.NewReader(c)
		for _, vault := range []struct {
			request string
			status  int
		}{
			{"POST /vault/cde-import HTTP/1.1\r\nHost: x\r\nX-Api-Key: " + r.key + "\r\nContent-Type: application/json\r\nContent-Length: " + strconv.Itoa(len(cardBody)) + "\r\n\r\n" + cardBody, 200},
			{"POST /vault/cde-import HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: " + strconv.Itoa(len(cardBody)) + "\r\n\r\n" + cardBody, 401},
			{"GET /vault/tokens HTTP/1.1\r\nHost: x\r\nX-Api-Key: " + r.key + "\r\n\r\n", 200},
		} {
			write(t, c, vault.request)
			if status, keeps := readAnswer(t, in, "POST"); status != vault.status || !keeps {
				t.Fatalf("status %d, connection kept: %v", status, keeps)
			}
			time.Sleep(time.Hour)
			go func() {
				for _, part := range []string{"POST /slow HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n", "a", "b"} {
					if _, err := io.WriteString(c, part); err != nil {
						t.Error(err)
					}
					time.Sleep(time.Hour)
				}
			}()
			if status, keeps := readAnswer(t, in, "POST"); status != 200 || !keeps {
				t.Fatalf("the next handler: status %d, connection kept: %v", status, keeps)
			}
		}
	})
}

// A stalling store waits before each Update.
type stallingStore struct {
	store.Store
	stall time.Duration
}

func (s *stallingStore) Update(ctx context.Context, fn func(store.Tx) error) error {
	if s.stall == 0 {
		return s.Store.Update(ctx, fn)
	}
	select {
	case <-time.After(s.stall):
		return s.Store.Update(ctx, fn)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// The time spent reading a body is not taken from the work, which is bounded too.
func TestTimeout(t *testing.T) {
	for _, test := range []struct {
		name                  string
		timeout, stall, after time.Duration
		status                int
	}{
		{"longer than a body may take", 0, 15 * time.Second, 15 * time.Second, 200},
		{"longer than the default", 0, time.Minute, 30 * time.Second, 503},
		{"longer than Options.Timeout", time.Second, time.Minute, time.Second, 503},
	} {
		t.Run(test.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				r := newRig(t, nil, nil)
				s := &stallingStore{Store: r.store}
				v := openVault(t, s, &r.opts)
				// The first write also grants seals, in an Update of its own.
				if _, err := v.CreateSession(t.Context(), nil); err != nil {
					t.Fatal(err)
				}
				s.stall = test.stall
				c := serve(t, newHandler(t, v, &httpapi.Options{Timeout: test.timeout}))()
				start := time.Now()
				write(t, c, "POST /tokens/session HTTP/1.1\r\nHost: x\r\nX-Api-Key: "+r.key+"\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}")
				status, keeps := readAnswer(t, bufio.NewReader(c), "POST")
				if took := time.Since(start); status != test.status || took != test.after || !keeps {
					t.Errorf("status %d after %v, connection kept: %v", status, took, keeps)
				}
			})
		})
	}
}

// A client that disconnects cancels its work.
func TestDisconnect(t *testing.T) {
	for name, request := range map[string]string{
		"GET":  "GET /tokens HTTP/1.1\r\nHost: x\r\nX-Api-Key: x\r\n\r\n",
		"POST": "POST /tokens/session HTTP/1.1\r\nHost: x\r\nX-Api-Key: x\r\nContent-Length: 0\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				asked, ended := make(chan struct{}), make(chan error, 1)
				r := newRig(t, nil, &httpapi.Options{Authenticator: authenticator(func(ctx context.Context, _ string) (*httpapi.Principal, error) {
					close(asked)
					<-ctx.Done()
					ended <- ctx.Err()
					return nil, ctx.Err()
				})})
				c := serve(t, r.handler)()
				start := time.Now()
				write(t, c, request)
				<-asked
				c.Close()
				if err := <-ended; !errors.Is(err, context.Canceled) || time.Since(start) != 0 {
					t.Errorf("%v after %v", err, time.Since(start))
				}
			})
		})
	}
}

// HTTP/2 streams have the same deadlines.
func TestSlowBodyHTTP2(t *testing.T) {
	for _, test := range []struct {
		name, path string
		status     int
		after      time.Duration
	}{
		{"read", "/cde-import", 400, 10 * time.Second},
		{"not read", "/nothing", 404, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				r := newRig(t, nil, nil)
				transport := over(t, serve(t, r.handler), true)
				body, feed := io.Pipe()
				go func() { _, _ = feed.Write([]byte("{")) }()
				req, err := http.NewRequestWithContext(t.Context(), "POST", "http://x"+test.path, body)
				if err != nil {
					t.Fatal(err)
				}
				req.Header.Set("X-Api-Key", r.key)
				req.Header.Set("Content-Type", "application/json")
				start := time.Now()
				resp, err := transport.RoundTrip(req)
				if err != nil {
					t.Fatal(err)
				}
				defer resp.Body.Close()
				if took := time.Since(start); resp.StatusCode != test.status || took != test.after || resp.ProtoMajor != 2 {
					t.Errorf("%s: status %d after %v", resp.Proto, resp.StatusCode, took)
				}
				feed.Close()
			})
		})
	}
}
