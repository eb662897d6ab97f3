package forward_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/forward"
	"github.com/cardvault/cardvault/internal/nametest"
	"github.com/cardvault/cardvault/vaulttest"
	"github.com/google/uuid"
)

// listen counts the connections to a port on all local addresses.
func listen(t testing.TB) (port string, count func() int64) {
	t.Helper()
	listener, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	var n atomic.Int64
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			n.Add(1)
			_ = conn.Close()
		}
	})
	t.Cleanup(func() {
		if err := listener.Close(); err != nil {
			t.Error(err)
		}
		wg.Wait()
	})
	_, port, err = net.SplitHostPort(listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port, n.Load
}

// TestInsideAddresses: the name of a destination that leads inside when the connection is
// made is not connected to, whatever it was at an earlier look-up.
func TestInsideAddresses(t *testing.T) {
	port, count := listen(t)
	v := vaulttest.New(t)
	token, err := v.Import(t.Context(), testCard(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, loopback := range []bool{false, true} {
		f, err := forward.New(v, []forward.Destination{{Name: "psp", URL: "https://psp.example:" + port}}, &forward.Options{AllowLoopback: loopback})
		if err != nil {
			t.Fatal(err)
		}
		names := new(nametest.Zone)
		forward.Resolve(f, names.Resolver())
		for _, address := range []string{
			"127.0.0.1", "::1", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "::", "fd00::1",
			"fe80::1", "::ffff:10.0.0.1", "64:ff9b::a00:1", "2002:a00:1::", "168.63.129.16", "224.0.0.1", "255.255.255.255",
		} {
			names.Set(address)
			_, err := f.Do(t.Context(), token.ID, &forward.Request{Method: "POST", URL: "https://psp.example:" + port + "/x"}, nil)
			inside := strings.Contains(fmt.Sprint(err), "host is not at a public address")
			if here := loopback && (address == "127.0.0.1" || address == "::1"); inside == here || !is(err, cardvault.ErrProviderUnavailable) || is(err, forward.ErrOutcomeUnknown) {
				t.Errorf("%s, loopback allowed: %v: %v", address, loopback, err)
			}
			if strings.Contains(fmt.Sprint(err), address) {
				t.Errorf("error names the address %s", address)
			}
		}
		f.Close()
	}
	if n := count(); n != 2 {
		t.Errorf("%d connections", n)
	}
}

// cut serves TCP instead of HTTP.
func cut(t testing.TB, l *lab, serve func(c net.Conn, in *bufio.Reader)) *atomic.Int64 {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var requests atomic.Int64
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer conn.Close()
				in := bufio.NewReader(conn)
				if _, err := in.Peek(1); err == nil {
					requests.Add(1)
				}
				serve(conn, in)
			})
		}
	})
	l.forwardTo(t, func(d *forward.Destination) { d.URL = "http://" + listener.Addr().String() + "/v1" })
	l.server.URL = "http://" + listener.Addr().String()
	t.Cleanup(func() {
		l.Close()
		_ = listener.Close()
		wg.Wait()
	})
	return &requests
}

// TestCut: whenever the connection ends, the request is sent once at most, and the error says
// whether it was. A repetition under the idempotency key sends nothing and says the same.
func TestCut(t *testing.T) {
	for name, serve := range map[string]func(c net.Conn, in *bufio.Reader){
		"before the body": func(net.Conn, *bufio.Reader) {},
		"in the body":     func(_ net.Conn, in *bufio.Reader) { _, _ = in.Discard(170) },
		"after the body":  func(_ net.Conn, in *bufio.Reader) { r, _ := http.ReadRequest(in); _, _ = io.Copy(io.Discard, r.Body) },
		"in the answer": func(c net.Conn, in *bufio.Reader) {
			r, _ := http.ReadRequest(in)
			_, _ = io.Copy(io.Discard, r.Body)
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n"+number)
		},
		"an answer that is not HTTP": func(c net.Conn, in *bufio.Reader) {
			r, _ := http.ReadRequest(in)
			_, _ = io.Copy(io.Discard, r.Body)
			_, _ = io.WriteString(c, number+"\r\n\r\n")
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := open(t, echo, nil)
			requests := cut(t, l, serve)
			opts := &forward.CallOptions{IdempotencyKey: "payment-1"}
			for range 2 {
				_, err := l.do(t, charge, opts)
				if !is(err, cardvault.ErrProviderUnavailable, forward.ErrOutcomeUnknown) || !strings.Contains(fmt.Sprint(err), "outcome unknown") {
					t.Errorf("error is %v", err)
				}
				vaulttest.AssertNoLeak(t, []string{number}, err)
			}
			if n := requests.Load(); n != 1 {
				t.Errorf("%d requests", n)
			}
		})
	}

	t.Run("no connection", func(t *testing.T) {
		l := open(t, echo, nil)
		opts := &forward.CallOptions{IdempotencyKey: "payment-1"}
		l.server.Close()
		if _, err := l.do(t, charge, opts); !is(err, cardvault.ErrProviderUnavailable) || is(err, forward.ErrOutcomeUnknown) {
			t.Errorf("error is %v", err)
		}
		there := open(t, echo, nil) // the key is free: nothing was sent
		l.Forwarder.Close()
		l.server = there.server
		l.forwardTo(t, nil)
		if _, err := l.do(t, charge, opts); errors.Is(err, cardvault.ErrIdempotencyInProgress) {
			t.Errorf("the key is taken: %v", err)
		}
	})
}

// TestCallerLeaves: without a key a forward ends with its caller. Under a key it goes on, and
// the repetition has its answer.
func TestCallerLeaves(t *testing.T) {
	arrived, release := make(chan bool, 2), make(chan bool)
	l := open(t, func(w http.ResponseWriter, r *http.Request) {
		arrived <- true
		select {
		case <-release:
		case <-r.Context().Done():
		}
		echo(w, r)
	}, nil)
	for _, key := range []string{"", "k"} {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		opts := &forward.CallOptions{IdempotencyKey: key}
		go func() {
			_, err := l.Do(ctx, l.token, l.request(jsonType, charge), opts)
			done <- err
		}()
		<-arrived
		cancel()
		if key != "" {
			if _, err := l.do(t, charge, opts); !errors.Is(err, cardvault.ErrIdempotencyInProgress) {
				t.Errorf("while it is sent: %v", err)
			}
			close(release)
		}
		if err := <-done; key == "" && !is(err, context.Canceled, forward.ErrOutcomeUnknown) {
			t.Errorf("error is %v", err)
		}
	}
	a, err := l.do(t, charge, &forward.CallOptions{IdempotencyKey: "k"})
	if err != nil || !a.Replayed || string(a.Body) != `{"number":"424242******4242","month":"04","year":"2088"}` || l.requests.Load() != 2 {
		t.Errorf("repetition is %+v, %v, after %d requests", a, err, l.requests.Load())
	}
}

// TestIdempotency: a key is for one request, whatever random texts a library adds to it.
func TestIdempotency(t *testing.T) {
	l := open(t, echo, nil)
	opts := &forward.CallOptions{IdempotencyKey: "k"}
	for i := range 3 {
		ctx, p := l.With(t.Context(), l.token, opts)
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, l.server.URL+"/v1/x", strings.NewReader(`{"n":"`+p.AccountNumber+`"}`))
		if err != nil {
			t.Fatal(err)
		}
		r.Header = http.Header{"Content-Type": {jsonType}, "Idempotency-Key": {fmt.Sprint(i)}}
		resp, err := l.Client(uuid.Nil, nil).Do(r)
		if err != nil {
			t.Fatal(err)
		}
		if body, _ := io.ReadAll(resp.Body); string(body) != `{"n":"424242******4242"}` {
			t.Errorf("answer is %s", body)
		}
	}
	if n := l.requests.Load(); n != 1 {
		t.Errorf("%d requests", n)
	}
	if _, err := l.do(t, charge, opts); !errors.Is(err, cardvault.ErrIdempotencyKeyReused) {
		t.Errorf("another request: %v", err)
	}

	// Without a library the headers count: they can name another account of the provider.
	r, direct := l.request(jsonType, charge), &forward.CallOptions{IdempotencyKey: "direct"}
	for account, want := range []error{nil, cardvault.ErrIdempotencyKeyReused} {
		r.Header.Set("X-Account", fmt.Sprint(account))
		if _, err := l.Do(t.Context(), l.token, r, direct); !errors.Is(err, want) {
			t.Errorf("account %d: %v", account, err)
		}
	}
}

// TestRaces: forwards beside Delete and Consume have the whole card, or an error.
func TestRaces(t *testing.T) {
	l := open(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if string(body) != `{"n":"`+number+`","c":"`+code+`"}` {
			http.Error(w, "not the card", 500)
		}
	}, nil)
	for i := range 20 {
		token := l.add(t, l.vault)
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				a, err := l.Do(t.Context(), token, l.request(jsonType, `{"n":"{{ account_number }}","c":"{{ security_code }}"}`), nil)
				if err == nil && a.StatusCode != 200 {
					t.Errorf("%d: %+v", i, a)
				}
				if err != nil && !errors.Is(err, cardvault.ErrNotFound) && !errors.Is(err, forward.ErrNoSecurityCode) {
					t.Error(err)
				}
			})
		}
		wg.Go(func() {
			if i%2 == 0 {
				if err := l.vault.Delete(t.Context(), token); err != nil {
					t.Error(err)
				}
			} else if _, err := l.vault.Consume(t.Context(), token, nil); err != nil {
				t.Error(err)
			}
		})
		wg.Wait()
	}
}

// TestLeak: neither log, errors, events nor answers have the card.
func TestLeak(t *testing.T) {
	l := open(t, echo, nil)
	body := `{"n":"{{ account_number }}","c":"{{ security_code }}","h":"{{ cardholder_name }}"}`
	a, err := l.do(t, body, nil)
	if err != nil {
		t.Fatal(err)
	}
	l.server.Close()
	_, failed := l.do(t, body, nil)
	vaulttest.AssertNoLeak(t, []string{number}, l.log.String(), fmt.Sprintf("%+v", a), string(a.Body), failed)
	// As a word, since three digits also turn up inside the log's times and random ids.
	if shown := regexp.MustCompile(`\b` + code + `\b`); shown.MatchString(l.log.String()) || shown.Match(a.Body) {
		t.Error("the code shows")
	}
	if !strings.Contains(l.log.String(), "forward:psp") || !strings.Contains(l.log.String(), "POST 200") {
		t.Errorf("the log does not name the use:\n%s", l.log.String())
	}
}

// TestRemains: the buffers that an answer with the card was read into are erased, and the
// connection, which keeps a part of it, is closed.
func TestRemains(t *testing.T) {
	for _, c := range []struct {
		serve       http.HandlerFunc
		connections int64
	}{{echo, 3}, {new(capture).serve, 1}} {
		l := open(t, c.serve, nil)
		for range 3 {
			if _, err := l.do(t, charge, nil); err != nil {
				t.Fatal(err)
			}
		}
		if n := l.connections.Load(); n != c.connections {
			t.Errorf("%d connections, not %d", n, c.connections)
		}
	}

	w := &witness{from: strings.NewReader(strings.Repeat(number, 1000))}
	got, err := forward.ReadAll(w, 16, 1<<20)
	if err != nil || string(got) != strings.Repeat(number, 1000) {
		t.Fatalf("%d bytes, %v", len(got), err)
	}
	clear(got)
	for _, p := range w.seen {
		if bytes.IndexByte(p, '4') >= 0 {
			t.Fatalf("a buffer of %d bytes has the card", len(p))
		}
	}
}

// A witness keeps the buffers that it was read into.
type witness struct {
	from io.Reader
	seen [][]byte
}

func (w *witness) Read(p []byte) (int, error) {
	w.seen = append(w.seen, p)
	return w.from.Read(p)
}

// TestKilled: a forward whose process was killed in the middle is never made again: its
// repetition says that the outcome is unknown.
func TestKilled(t *testing.T) {
	dir := t.TempDir()
	arrived, release := make(chan bool, 10), make(chan bool)
	var requests atomic.Int64
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		requests.Add(1)
		arrived <- true
		<-release
	})}
	var wg sync.WaitGroup
	wg.Go(func() { _ = server.Serve(listener) })
	defer func() {
		close(release)
		_ = server.Close()
		wg.Wait()
	}()

	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	child := exec.Command(self)
	child.Env = append(os.Environ(), childDir+"="+dir, childURL+"=http://"+listener.Addr().String())
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	<-arrived
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = child.Wait()

	v, f, token, err := openAt(t.Context(), dir, "http://"+listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	defer f.Close()
	for range 2 {
		_, err = f.Do(t.Context(), token, killedRequest(listener.Addr().String()), &forward.CallOptions{IdempotencyKey: "k"})
		if !errors.Is(err, cardvault.ErrIdempotencyInProgress) && !is(err, cardvault.ErrProviderUnavailable, forward.ErrOutcomeUnknown) {
			t.Errorf("repetition: %v", err)
		}
	}
	if n := requests.Load(); n != 1 {
		t.Errorf("%d requests", n)
	}
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		if data, err := os.ReadFile(name); err == nil && strings.Contains(string(data), number) {
			t.Errorf("%s has the number", name)
		}
	}
}

const (
	childDir = "CARDVAULT_FORWARD_CHILD"
	childURL = "CARDVAULT_FORWARD_URL"
)

func killedRequest(host string) *forward.Request {
	return &forward.Request{Method: "POST", URL: "http://" + host + "/v1/charges", Header: http.Header{"Content-Type": {jsonType}}, Body: []byte(charge)}
}

// openAt opens a vault with a token and a forwarder.
func openAt(ctx context.Context, dir, url string) (*cardvault.Vault, *forward.Forwarder, uuid.UUID, error) {
	keys, err := cardvault.KeyBytes(make([]byte, cardvault.KeySize))
	if err != nil {
		return nil, nil, uuid.Nil, err
	}
	v, err := cardvault.Open(ctx, filepath.Join(dir, "vault"), keys, &cardvault.Options{Mode: cardvault.Sandbox})
	if err != nil {
		return nil, nil, uuid.Nil, err
	}
	token, err := v.Import(ctx, testCard(), &cardvault.ImportOptions{IdempotencyKey: "import"})
	if err != nil {
		return nil, nil, uuid.Nil, err
	}
	f, err := forward.New(v, []forward.Destination{{Name: "psp", URL: url, Timeout: time.Minute}}, &forward.Options{AllowLoopback: true})
	return v, f, token.ID, err
}

// child forwards until it is killed.
func child() int {
	url := os.Getenv(childURL)
	_, f, token, err := openAt(context.Background(), os.Getenv(childDir), url)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	_, err = f.Do(context.Background(), token, killedRequest(strings.TrimPrefix(url, "http://")), &forward.CallOptions{IdempotencyKey: "k"})
	fmt.Fprintln(os.Stderr, err)
	return 1
}
