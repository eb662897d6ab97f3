package payone

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/ppan"
)

// The documented vector has no api_version, and lacks the other fields that could differ.
func TestHashVector(t *testing.T) {
	list := HashParameters{AID: "10002", MID: "10001", PortalID: "2000002"}.list()
	list = append(list[:1], list[2:]...)
	const want = "1cf456bf692453613ebb992a3fb859cc347ddc7e94e2ca764efbe8b0089de6964ab1266df0831e59de89dc5291070fe7"
	if got := digest("123456", list); string(got) != want {
		t.Errorf("hash is %s", got)
	}
}

const longValue = 255 // the longest allowed fields

// request returns a request with the longest possible form, or a short one.
func request(long bool) *ppan.Request {
	value := "22222"
	if long {
		value = strings.Repeat("%", longValue)
	}
	return &ppan.Request{
		Account: ppan.Account{
			AID: value, MID: value, PortalID: value, Hash: ppan.NewHash([]byte(value)),
		},
		Sandbox:      true,
		PAN:          card.NewPAN([]byte("4111141011111111116")),
		Expiry:       card.Expiry{Month: 2, Year: 2031},
		SecurityCode: card.NewSecurityCode([]byte("7391")),
	}
}

// witness is a body that keeps the buffers it was read into, which belong to the transport.
type witness struct {
	io.ReadCloser
	seen [][]byte
}

func (w *witness) Read(p []byte) (int, error) {
	n, err := w.ReadCloser.Read(p)
	w.seen = append(w.seen, p[:n])
	return n, err
}

// The transport's copies of a form are erased when the answer arrives. The server has
// received the whole form.
func TestErased(t *testing.T) {
	for _, c := range []struct {
		name   string
		secure bool
		long   bool
		buffer int // the transport's
	}{
		{"plain", false, false, writeBuffer},
		{"TLS", true, false, writeBuffer},
		{"long form", true, true, writeBuffer},
		{"several writes", false, true, 512},
		{"several writes, TLS", true, true, 512},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got atomic.Pointer[[]byte]
			server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				form, err := io.ReadAll(r.Body)
				if err != nil {
					t.Error(err)
				}
				got.Store(&form)
				_, _ = io.WriteString(w, `{}`)
			}))
			opts := &Options{TLS: &tls.Config{InsecureSkipVerify: true}}
			if c.secure {
				server.StartTLS()
			} else {
				server.Start()
			}
			defer server.Close()
			client, err := New(server.URL, opts)
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			client.transport.WriteBufferSize = c.buffer
			f := newForm(request(c.long), true)
			want := bytes.Clone(f.text)
			if len(want) > writeBuffer-1024 {
				t.Fatalf("form has %d bytes", len(want))
			}
			b, err := f.body()
			if err != nil {
				t.Fatal(err)
			}
			w := &witness{ReadCloser: b}
			r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL, w)
			if err != nil {
				t.Fatal(err)
			}
			r.ContentLength = int64(len(want))
			resp, err := client.transport.RoundTrip(r)
			if err != nil {
				t.Fatal(err)
			}
			// Having read to the end, the transport has seen its writes finish.
			if _, err := io.Copy(io.Discard, resp.Body); err != nil {
				t.Fatal(err)
			}
			if err := resp.Body.Close(); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(*got.Load(), want) {
				t.Error("the server has not got the form")
			}
			total := 0
			for _, p := range w.seen {
				total += len(p)
				if len(bytes.Trim(p, "\x00")) > 0 {
					t.Error("the transport still has some of the form")
				}
			}
			if total != len(want) {
				t.Errorf("%d of %d bytes were seen", total, len(want))
			}
			f.wipe()
			if len(bytes.Trim(f.text, "\x00")) > 0 {
				t.Error("the form is not erased")
			}
		})
	}
}

type failing struct{ net.Conn }

func (failing) Write(p []byte) (int, error) { return len(p) / 2, io.ErrClosedPipe }

func TestErasedOnFailure(t *testing.T) {
	p := []byte("4111111111111111")
	n, err := guarded(failing{}).Write(p)
	if n != 8 || !errors.Is(err, io.ErrClosedPipe) || len(bytes.Trim(p, "\x00")) > 0 {
		t.Errorf("Write = %d, %v; left %q", n, err, p)
	}
}

// A form does not grow its buffer, and cannot be read after it is wiped.
func TestForm(t *testing.T) {
	for _, long := range []bool{false, true} {
		r := request(long)
		list := HashParameters{AID: r.Account.AID, MID: r.Account.MID}.list()
		if n := testing.AllocsPerRun(10, func() { encode(list) }); n != 1 {
			t.Errorf("encoding allocates %v times", n)
		}
		f := newForm(r, false)
		part, err := f.body()
		if err != nil {
			t.Fatal(err)
		}
		whole, err := f.body()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := part.Read(make([]byte, 10)); err != nil {
			t.Fatal(err)
		}
		if b, err := io.ReadAll(whole); err != nil || len(b) != len(f.text) {
			t.Fatalf("reading gives %d bytes, %v", len(b), err)
		}
		f.wipe()
		if n, err := part.Read(make([]byte, 10)); n != 0 || !errors.Is(err, errWiped) {
			t.Errorf("Read = %d, %v", n, err)
		}
		if n, err := whole.Read(make([]byte, 10)); n != 0 || err != io.EOF {
			t.Errorf("Read at the end = %d, %v", n, err)
		}
	}
}

// Reads of a form during its wipe return an unchanged beginning of the form.
func TestFormWhileWiped(t *testing.T) {
	want := newForm(request(false), false).text
	for range 100 {
		f := newForm(request(false), false)
		b, err := f.body()
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		wg.Go(f.wipe)
		got, err := io.ReadAll(iotest.OneByteReader(b))
		wg.Wait()
		if !bytes.HasPrefix(want, got) || (err == nil) != (len(got) == len(want)) {
			t.Fatalf("read %q, %v", got, err)
		}
	}
}

// bubbled returns a client whose connections are served by serve, in a bubble.
func bubbled(t *testing.T, address string, serve func(net.Conn)) *Client {
	c, err := New(address, nil)
	if err != nil {
		t.Fatal(err)
	}
	c.dial = func(context.Context, string, string) (net.Conn, error) {
		client, server := net.Pipe()
		go func() {
			serve(server)
			_ = server.Close()
		}()
		return client, nil
	}
	return c
}

// silent reads until the connection ends.
func silent(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) }

func TestDeadline(t *testing.T) {
	for _, c := range []struct {
		name, address string
		limit, want   time.Duration
	}{
		{"default", "http://127.0.0.1", 0, timeout},
		{"own", "http://127.0.0.1", 3 * time.Second, 3 * time.Second},
		{"longer", "http://127.0.0.1", time.Minute, time.Minute},
		{"TLS", "https://127.0.0.1", 0, timeout},
		{"TLS, longer", "https://127.0.0.1", time.Minute, timeout}, // the handshake has no time left
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := bubbled(t, c.address, silent)
				ctx := t.Context()
				if c.limit > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, c.limit)
					defer cancel()
				}
				start := time.Now()
				_, err := client.ObtainPPAN(ctx, request(false))
				if !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != c.want {
					t.Errorf("%v after %v, want %v", err, time.Since(start), c.want)
				}
				client.Close()
			})
		})
	}
}

// Close ends connection attempts that no call waits for.
func TestCloseWhileConnecting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := false
		client := bubbled(t, "https://127.0.0.1", func(conn net.Conn) {
			silent(conn)
			ended = true
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := client.ObtainPPAN(ctx, request(false)); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		synctest.Wait()
		if ended {
			t.Error("the connection ends with the call") // it need not, and then this test proves nothing
		}
		client.Close()
		synctest.Wait()
		if !ended {
			t.Error("Close leaves a connection behind")
		}
		if _, err := client.ObtainPPAN(t.Context(), request(false)); err == nil || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v after Close", err)
		}
	})
}

type counting struct {
	net.Conn
	read *atomic.Int64
}

func (c counting) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.read.Add(int64(n))
	return n, err
}

// An endless answer is read only up to the limit.
func TestBounds(t *testing.T) {
	for _, c := range []struct {
		name, head, rest string
		most             int64
	}{
		{"headers", "HTTP/1.1 200 OK\r\n", "X-Fault: 1\r\n", maxHeader},
		{"one header", "HTTP/1.1 200 OK\r\nX-Fault: ", "xxxxxxxx", maxHeader},
		{"status line", "HTTP/1.1 200 ", "OK OK OK", maxHeader},
		{"1xx", "", "HTTP/1.1 102 Processing\r\n\r\n", maxHeader},
		{"body", "HTTP/1.1 200 OK\r\n\r\n", "        ", maxAnswer},
		{"body with a length", "HTTP/1.1 200 OK\r\nContent-Length: 10000000000\r\n\r\n", "        ", maxAnswer},
		{"chunks", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "1\r\n \r\n", 7 * maxAnswer},
		{"status 500", "HTTP/1.1 500 No\r\n\r\n", "        ", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := bubbled(t, "http://127.0.0.1", func(conn net.Conn) {
					request, err := http.ReadRequest(bufio.NewReader(conn))
					if err != nil {
						t.Error(err)
						return
					}
					if _, err := io.Copy(io.Discard, request.Body); err != nil {
						t.Error(err)
					}
					text := c.head + strings.Repeat(c.rest, 1024/len(c.rest))
					for {
						if _, err := io.WriteString(conn, text); err != nil {
							return
						}
						text = strings.Repeat(c.rest, 1024/len(c.rest))
					}
				})
				var read atomic.Int64
				dial := client.dial
				client.dial = func(ctx context.Context, network, address string) (net.Conn, error) {
					conn, err := dial(ctx, network, address)
					return counting{conn, &read}, err
				}
				_, err := client.ObtainPPAN(t.Context(), request(false))
				if err == nil || errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("ObtainPPAN = %v", err)
				}
				const buffers = 16 << 10
				if n := read.Load(); n > c.most+buffers {
					t.Errorf("%d bytes are read, want at most %d and buffers", n, c.most)
				}
				client.Close()
			})
		})
	}
}
