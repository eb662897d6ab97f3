package exchange

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/cardvault/cardvault/internal/goroutines"
)

func TestMain(m *testing.M) { goroutines.Verify(m) }

// open returns a client of a server.
func open(t testing.TB, server *httptest.Server, http2 bool) *Client {
	t.Helper()
	u, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	c := New(Config{Origin: u, TLS: &tls.Config{InsecureSkipVerify: true}, Dial: new(net.Dialer).DialContext, HTTP2: http2})
	t.Cleanup(c.Close)
	return c
}

func request(body string) *Request {
	r := &Request{
		Method: http.MethodPost,
		Target: &url.URL{Path: "/v1/x", RawQuery: "a=b"},
		Header: []Field{{"Content-Type", []byte("text/plain")}, {"X-Key", []byte("secret-1")}},
	}
	if body != "" {
		r.Body, r.Size = strings.NewReader(body), int64(len(body))
	}
	return r
}

// send sends a request and returns the status and the body of the answer.
func send(t testing.TB, c *Client, r *Request) (int, string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	resp, err := c.Do(ctx, r)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(body), err
}

func echo(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	fmt.Fprintf(w, "%s %s %s %s %d %s %s", r.Method, r.RequestURI, r.Proto, r.Header.Get("X-Key"), r.ContentLength, r.Host, body)
}

// TestExchange: requests of any length arrive whole over one connection.
func TestExchange(t *testing.T) {
	for _, c := range []struct {
		name          string
		secure, http2 bool
		proto         string
	}{{"http", false, false, "HTTP/1.1"}, {"https", true, false, "HTTP/1.1"}, {"HTTP/2", true, true, "HTTP/2.0"}} {
		t.Run(c.name, func(t *testing.T) {
			var connections atomic.Int64
			server := httptest.NewUnstartedServer(http.HandlerFunc(echo))
			server.Config.ConnState = func(_ net.Conn, s http.ConnState) {
				if s == http.StateNew {
					connections.Add(1)
				}
			}
			if server.EnableHTTP2 = c.http2; c.secure {
				server.StartTLS()
			} else {
				server.Start()
			}
			defer server.Close()
			client := open(t, server, c.http2)
			host := strings.TrimPrefix(strings.TrimPrefix(server.URL, "https://"), "http://")
			for _, body := range []string{"", "x", strings.Repeat("0123456789abcdef", 64<<10)} {
				want := fmt.Sprintf("POST /v1/x?a=b %s secret-1 %d %s %s", c.proto, len(body), host, body)
				if status, got, err := send(t, client, request(body)); status != 200 || got != want || err != nil {
					t.Errorf("%d bytes: %d, %.80s, %v", len(body), status, got, err)
				}
			}
			if n := connections.Load(); n != 1 {
				t.Errorf("%d connections", n)
			}
		})
	}
}

// A peer serves one connection by hand.
func peer(t testing.TB, serve func(c net.Conn, in *bufio.Reader)) (*Client, *atomic.Int64) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var connections atomic.Int64
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			connections.Add(1)
			wg.Go(func() {
				defer conn.Close()
				serve(conn, bufio.NewReader(conn))
			})
		}
	})
	c := New(Config{Origin: &url.URL{Scheme: "http", Host: listener.Addr().String()}, Dial: new(net.Dialer).DialContext})
	t.Cleanup(func() {
		c.Close()
		if err := listener.Close(); err != nil {
			t.Error(err)
		}
		wg.Wait()
	})
	return c, &connections
}

// take reads a request from a connection.
func take(in *bufio.Reader) {
	r, err := http.ReadRequest(in)
	if err == nil {
		_, _ = io.Copy(io.Discard, r.Body)
	}
}

func reset(c net.Conn) {
	_ = c.(*net.TCPConn).SetLinger(0)
	_ = c.Close()
}

// TestCut: whatever the moment at which a connection ends, the request is sent once, and the
// failure says whether some of it was.
func TestCut(t *testing.T) {
	big := strings.Repeat("x", 8<<20)
	for _, c := range []struct {
		name  string
		body  string
		serve func(c net.Conn, in *bufio.Reader)
	}{
		{"at the first byte", "", func(c net.Conn, in *bufio.Reader) { _, _ = in.Peek(1); reset(c) }},
		{"in the request", big, func(c net.Conn, in *bufio.Reader) { _, _ = in.Discard(64 << 10); reset(c) }},
		{"after the request", "x", func(_ net.Conn, in *bufio.Reader) { take(in) }},
		{"in the head of the answer", "x", func(c net.Conn, in *bufio.Reader) { take(in); _, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nA:") }},
		{"what is not HTTP", "x", func(c net.Conn, in *bufio.Reader) { take(in); _, _ = io.WriteString(c, "4242424242424242\r\n\r\n") }},
		{"a head without end", "x", func(c net.Conn, in *bufio.Reader) {
			take(in)
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nA: "+strings.Repeat("4242424242424242", 1<<16))
		}},
		{"interim answers without end", "x", func(c net.Conn, in *bufio.Reader) {
			take(in)
			_, _ = io.WriteString(c, strings.Repeat("HTTP/1.1 103 Early Hints\r\n\r\n", 100))
		}},
		{"another protocol", "x", func(c net.Conn, in *bufio.Reader) {
			take(in)
			_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n")
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			client, connections := peer(t, c.serve)
			_, _, err := send(t, client, request(c.body))
			f, ok := errors.AsType[*Failure](err)
			if !ok || !f.Written || strings.Contains(f.Error(), "4242") {
				t.Errorf("error is %#v", err)
			}
			if n := connections.Load(); n != 1 {
				t.Errorf("%d connections", n)
			}
		})
	}

	t.Run("no connection", func(t *testing.T) {
		client := New(Config{Origin: &url.URL{Scheme: "http", Host: "127.0.0.1:1"}, Dial: new(net.Dialer).DialContext})
		_, _, err := send(t, client, request("x"))
		if f, ok := errors.AsType[*Failure](err); !ok || f.Written {
			t.Errorf("error is %#v", err)
		}
	})
	t.Run("no TLS", func(t *testing.T) {
		client, _ := peer(t, func(c net.Conn, in *bufio.Reader) { _, _ = io.WriteString(c, "HTTP/1.1 400 Bad\r\n\r\n") })
		u := &url.URL{Scheme: "https", Host: client.host}
		client = New(Config{Origin: u, TLS: &tls.Config{}, Dial: new(net.Dialer).DialContext})
		_, _, err := send(t, client, request("x"))
		if f, ok := errors.AsType[*Failure](err); !ok || f.Written {
			t.Errorf("error is %#v", err)
		}
	})
}

// TestAnswers: answers in pieces, before the request has ended, after 100 Continue.
func TestAnswers(t *testing.T) {
	big := strings.Repeat("x", 8<<20)
	for _, c := range []struct {
		name, body, answer string
		status             int
		want               string
	}{
		{"chunked", "x", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\nTrailer: x\r\n\r\n", 200, "abc"},
		{"100 Continue", "x", "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 201 Created\r\nContent-Length: 1\r\n\r\na", 201, "a"},
		{"until the end", "x", "HTTP/1.0 200 OK\r\n\r\nabc", 200, "abc"},
		{"204", "x", "HTTP/1.1 204 No Content\r\n\r\n", 204, ""},
		{"early", big, "HTTP/1.1 413 Too Large\r\nContent-Length: 1\r\n\r\na", 413, "a"},
	} {
		t.Run(c.name, func(t *testing.T) {
			client, _ := peer(t, func(conn net.Conn, in *bufio.Reader) {
				if c.body == big {
					_, _ = in.Discard(1 << 10)
				} else {
					take(in)
				}
				_, _ = io.WriteString(conn, c.answer)
				if c.body == big {
					_, _ = io.Copy(io.Discard, in) // until the client has its answer
				}
			})
			status, body, err := send(t, client, request(c.body))
			if status != c.status || body != c.want || err != nil {
				t.Errorf("answer is %d, %q, %v", status, body, err)
			}
		})
	}
}

// TestIdleConnections: one that has ended, or on which something came, is not used.
func TestIdleConnections(t *testing.T) {
	const answer = "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na"
	for _, after := range []string{"", "HTTP/1.1 408 Request Timeout\r\n\r\n"} {
		ended := make(chan bool, 1)
		client, connections := peer(t, func(conn net.Conn, in *bufio.Reader) {
			take(in)
			_, _ = io.WriteString(conn, answer)
			<-ended
			_, _ = io.WriteString(conn, after)
		})
		for i := range 2 {
			if status, _, err := send(t, client, request("x")); status != 200 || err != nil {
				t.Fatalf("request %d: %d, %v", i, status, err)
			}
			ended <- true
			for len(ended) > 0 || idle(client) > 0 { // until the end has arrived
				time.Sleep(time.Millisecond)
			}
		}
		if n := connections.Load(); n != 2 {
			t.Errorf("%d connections", n)
		}
	}
}

// TestEndedConnection: an idle connection that has ended and is not dropped yet is not used.
func TestEndedConnection(t *testing.T) {
	client, connections := peer(t, func(conn net.Conn, in *bufio.Reader) {
		take(in)
		_, _ = io.WriteString(conn, "HTTP/1.1 204 No Content\r\n\r\n")
	})
	near, far := net.Pipe()
	_ = far.Close()
	ended := newConnection(near)
	ended.woken = make(chan bool, 1)
	ended.woken <- false
	client.idle = []*connection{ended}
	if status, _, err := send(t, client, request("x")); status != 204 || err != nil || connections.Load() != 1 {
		t.Errorf("status is %d, %v, after %d connections", status, err, connections.Load())
	}
}

// A meddler calls a function before a deadline is set.
type meddler struct {
	net.Conn
	before func()
}

func (m *meddler) SetDeadline(at time.Time) error {
	m.before()
	return m.Conn.SetDeadline(at)
}

// TestTakenAtOnce: a request that comes while a connection is put aside does not wait for its
// idle time.
func TestTakenAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dials := 0
		client := New(Config{
			Origin: &url.URL{Scheme: "http", Host: "psp.example"},
			Dial:   func(context.Context, string, string) (net.Conn, error) { dials++; return nil, io.EOF },
		})
		near, far := net.Pipe()
		defer far.Close()
		start, taken := time.Now(), make(chan error, 1)
		conn := newConnection(&meddler{near, func() {
			go func() {
				_, err := client.take(t.Context())
				taken <- err
			}()
			synctest.Wait()
		}})
		conn.source.left = math.MaxInt

		client.park(conn)
		if err := <-taken; err == nil || dials != 1 || time.Since(start) != 0 {
			t.Errorf("a connection that was not yet idle was taken: %v, after %v", err, time.Since(start))
		}
		if got, err := client.take(t.Context()); got != conn || err != nil || time.Since(start) != 0 {
			t.Errorf("the idle connection was not taken: %v, after %v", err, time.Since(start))
		}
	})
}

func idle(c *Client) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.idle)
}

// TestDeadline: neither a silent peer nor one that drips holds a request longer.
func TestDeadline(t *testing.T) {
	for name, answer := range map[string]string{"silent": "", "drips": "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := New(Config{Origin: &url.URL{Scheme: "http", Host: "psp.example"}, Dial: new(net.Dialer).DialContext})
				near, far := net.Pipe()
				client.idle = []*connection{newConnection(near)}
				client.idle[0].woken = make(chan bool, 1)
				client.idle[0].woken <- true
				go func() {
					defer far.Close()
					take(bufio.NewReader(far))
					_, _ = io.WriteString(far, answer)
					for range 1000 {
						time.Sleep(time.Second)
						if _, err := io.WriteString(far, answer[:min(len(answer), 1)]); err != nil {
							return
						}
					}
				}()
				ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
				defer cancel()
				defer time.Sleep(2 * time.Second) // until the peer has noticed
				start := time.Now()
				resp, err := client.Do(ctx, request("x"))
				if err == nil {
					_, err = io.Copy(io.Discard, resp.Body)
					err = BodyError(ctx, err)
					_ = resp.Body.Close()
				}
				f, ok := errors.AsType[*Failure](err)
				if !ok || !f.Written || !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != 30*time.Second {
					t.Errorf("after %v: %#v", time.Since(start), err)
				}
			})
		})
	}
}

// A witness keeps the buffers that it was read into.
type witness struct {
	io.Reader
	seen [][]byte
}

func (w *witness) Read(p []byte) (int, error) {
	n, err := w.Reader.Read(p)
	w.seen = append(w.seen, p[:n])
	return n, err
}

// TestNoBody: a request that could have a body says that it has none. Some systems refuse it
// otherwise.
func TestNoBody(t *testing.T) {
	for _, method := range []string{"POST", "PUT", "PATCH", "GET", "DELETE"} {
		heads := make(chan string, 1)
		client, _ := peer(t, func(c net.Conn, in *bufio.Reader) {
			head := ""
			for !strings.HasSuffix(head, "\r\n\r\n") {
				line, err := in.ReadString('\n')
				if err != nil {
					return
				}
				head += line
			}
			heads <- head
			_, _ = io.WriteString(c, "HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
		})
		r := request("")
		r.Method, r.Body, r.Size = method, nil, 0
		if status, _, err := send(t, client, r); status != 204 || err != nil {
			t.Fatal(status, err)
		}
		if head := <-heads; strings.Contains(head, "\r\nContent-Length: 0\r\n") != strings.HasPrefix(method, "P") {
			t.Errorf("request is %q", head)
		}
	}
}

// TestErased: when the answer is there, nothing of the request is in a buffer for writing,
// and nothing of the answer in the one for reading.
func TestErased(t *testing.T) {
	for _, secure := range []bool{false, true} {
		server := httptest.NewUnstartedServer(http.HandlerFunc(echo))
		if secure {
			server.StartTLS()
		} else {
			server.Start()
		}
		defer server.Close()
		client := open(t, server, false)
		for _, size := range []int{16, 100_000} {
			r := request(strings.Repeat("4242424242424242", size/16))
			w := &witness{Reader: iotest.HalfReader(r.Body)}
			r.Body = w
			if status, _, err := send(t, client, r); status != 200 || err != nil {
				t.Fatal(status, err)
			}
			for _, p := range w.seen {
				if len(bytes.Trim(p, "\x00")) > 0 {
					t.Fatalf("%d bytes: the buffer still has %.40q", size, p)
				}
			}
			conn, err := client.take(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if b := conn.source.buffer; len(b) == 0 || len(bytes.Trim(b, "\x00")) > 0 {
				t.Errorf("the buffer for reading has %.40q", b)
			}
			_ = conn.Close()
		}
	}

	// An answer that is not read to its end, and whose reader has a buffer as large as the connection's.
	more := make(chan bool)
	client, _ := peer(t, func(c net.Conn, in *bufio.Reader) {
		take(in)
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 10000\r\n\r\n4242424242424242")
		<-more
		_, _ = io.WriteString(c, "4242424242424242")
		_, _ = in.ReadByte()
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	resp, err := client.Do(ctx, request("x"))
	if err != nil {
		t.Fatal(err)
	}
	conn := resp.Body.(*exchange).conn
	buffer := conn.source.buffer
	if !bytes.Contains(buffer, []byte("Content-Length: 10000")) {
		t.Fatalf("the buffer for reading has %.40q", buffer)
	}
	if _, err := io.ReadFull(resp.Body, make([]byte, 16)); err != nil {
		t.Fatal(err)
	}
	close(more)
	if _, err := io.ReadAtLeast(resp.Body, make([]byte, readBuffer), 16); err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if len(bytes.Trim(buffer, "\x00")) > 0 {
		t.Errorf("the buffer for reading has %.80q", bytes.Trim(buffer, "\x00"))
	}
}
