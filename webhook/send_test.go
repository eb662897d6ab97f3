package webhook_test

import (
	"bytes"
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/internal/nametest"
	"github.com/cardvault/cardvault/internal/wire"
	"github.com/cardvault/cardvault/receive"
	"github.com/cardvault/cardvault/vaulttest"
	"github.com/cardvault/cardvault/webhook"
	"github.com/cardvault/cardvault/webhook/webhooktest"
	"github.com/google/uuid"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

// Text of an answer or a URL appears in no error and no log.
const canary = "6011000990139424"

var canaries = []string{canary}

func TestBody(t *testing.T) {
	in := open(t, false, webhook.Options{})
	full := delivery(in.url)
	const head = `{"id":"7d7f3a52-6f0e-4d0b-8a43-0d2f9ddc2b11","created_at":"2026-01-02T03:04:05.000006Z",`
	token := string(wire.Append(nil, full.Event.Token))
	for _, c := range []struct {
		name, want string
		change     func(d *cardvault.Delivery)
	}{
		{"updated", head + `"event_type":"token.updated","reason":"patched","sequence":1042,"token":` + token + `}`,
			func(*cardvault.Delivery) {}},
		{"created", head + `"event_type":"token.created","reason":"imported","sequence":9007199254740993,"token":` + token + `}`,
			func(d *cardvault.Delivery) {
				d.Event.Type, d.Event.Reason, d.Event.Sequence = receive.TokenCreated, receive.ReasonImported, 1<<53+1
			}},
		{"deleted", head + `"event_type":"token.deleted","reason":"expired","sequence":1042,"token":{"id":"1b2d3a52-6f0e-4d0b-8a43-0d2f9ddc2b11"}}`,
			func(d *cardvault.Delivery) {
				d.Event.Type, d.Event.Reason, d.Event.Token = receive.TokenDeleted, receive.ReasonExpired, nil
			}},
		{"test", head + `"event_type":"webhook.test","reason":null,"sequence":0,"token":null}`,
			func(d *cardvault.Delivery) { d.Event = nil }},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := delivery(in.url)
			c.change(d)
			got, err := in.Send(t.Context(), d)
			if err != nil || got.StatusCode != 204 || got.RetryAfter != 0 {
				t.Fatalf("Send = %+v, %v", got, err)
			}
			all := in.Deliveries()
			last := all[len(all)-1]
			if string(last.Body) != c.want {
				t.Errorf("body is %s\nwant     %s", last.Body, c.want)
			}
			e := last.Event
			if last.Err != nil || e.ID != d.ID || !e.CreatedAt.Equal(d.CreatedAt) {
				t.Fatalf("received %+v, %v", e, last.Err)
			}
			if d.Event == nil {
				if e.Type != receive.WebhookTest || e.Reason != "" || e.Sequence != 0 || e.TokenID != uuid.Nil || e.Token != nil {
					t.Errorf("received %+v", e)
				}
				return
			}
			if e.Type != d.Event.Type || e.Reason != d.Event.Reason || e.Sequence != d.Event.Sequence || e.TokenID != d.Event.TokenID {
				t.Errorf("received %+v", e)
			}
		})
	}
}

func TestRequest(t *testing.T) {
	bothWays(t, webhook.Options{}, func(t *testing.T, in *inbox) {
		for _, legacy := range []bool{false, true} {
			d := delivery(in.url + "/hook?x=1")
			d.Secrets = []receive.WebhookSecret{former, newest}
			d.Legacy = legacy
			var seen *http.Request
			in.Next(func(w http.ResponseWriter, r *http.Request) { seen = r })
			before := time.Now().Unix()
			if got, err := in.Send(t.Context(), d); err != nil || got.StatusCode != 200 {
				t.Fatalf("Send = %+v, %v", got, err)
			}
			if seen.Method != "POST" || seen.RequestURI != "/hook?x=1" || seen.ProtoMinor != 1 || seen.ProtoMajor != 1 {
				t.Errorf("%s %s %s", seen.Method, seen.RequestURI, seen.Proto)
			}
			all := in.Deliveries()
			last := all[len(all)-1]
			at, err := strconv.ParseInt(last.Header.Get("Webhook-Timestamp"), 10, 64)
			if err != nil || at < before || at > time.Now().Unix() {
				t.Errorf("timestamp is %d, %v", at, err)
			}
			// Computed by hand: a signature for each secret, and the legacy one with the
			// oldest secret.
			var signatures []string
			for _, s := range d.Secrets {
				s.Expose(func(text []byte) {
					key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(string(text), "whsec_"))
					if err != nil {
						t.Fatal(err)
					}
					mac := hmac.New(sha256.New, key)
					fmt.Fprintf(mac, "%s.%d.%s", d.ID, at, last.Body)
					signatures = append(signatures, "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)))
					library, err := standardwebhooks.NewWebhook(string(text))
					if err != nil {
						t.Fatal(err)
					}
					if err := library.Verify(last.Body, last.Header); err != nil {
						t.Error(err)
					}
				})
			}
			want := http.Header{
				"Accept-Encoding":   nil,
				"Content-Length":    {strconv.Itoa(len(last.Body))},
				"Content-Type":      {"application/json"},
				"User-Agent":        {"cardvault/1"},
				"Webhook-Id":        {d.ID.String()},
				"Webhook-Timestamp": {strconv.FormatInt(at, 10)},
				"Webhook-Signature": {strings.Join(signatures, " ")},
			}
			if legacy {
				former.Expose(func(text []byte) {
					mac := hmac.New(sha256.New, text)
					mac.Write(last.Body)
					want.Set("X-Hmac-Signature", hex.EncodeToString(mac.Sum(nil)))
				})
			}
			for name := range last.Header {
				if _, ok := want[name]; !ok {
					t.Errorf("header %s is sent", name)
				}
			}
			for name, values := range want {
				if got := last.Header[name]; strings.Join(got, "|") != strings.Join(values, "|") {
					t.Errorf("header %s is %q, not %q", name, got, values)
				}
			}
		}
	})
}

func text(s string) []receive.WebhookSecret {
	return []receive.WebhookSecret{receive.NewWebhookSecret([]byte(s))}
}

// A secret that is weak or unusable signs nothing.
func TestSecrets(t *testing.T) {
	in := open(t, false, webhook.Options{})
	good := bytes.Repeat([]byte{0xfb}, 32) // contains + and / in its base64
	encoded := base64.StdEncoding.EncodeToString(good)
	d := delivery(in.url)
	for name, secrets := range map[string][]receive.WebhookSecret{
		"none":          nil,
		"zero":          {{}},
		"empty":         text("whsec_"),
		"23 bytes":      {secret(7, 23)},
		"65 bytes":      {secret(7, 65)},
		"without whsec": text(encoded),
		"of another":    text("whpk_" + encoded),
		"URL alphabet":  text("whsec_" + base64.URLEncoding.EncodeToString(good)),
		"unpadded":      text("whsec_" + base64.RawStdEncoding.EncodeToString(good)),
		"bits left":     text("whsec_" + encoded[:42] + "9="),
		"line break":    text("whsec_" + encoded[:20] + "\n" + encoded[20:]),
		"line end":      text("whsec_" + encoded + "\r\n"),
		"one of two":    {newest, secret(7, 23)},
	} {
		d.Secrets, d.Legacy = secrets, true
		got, err := in.Send(t.Context(), d)
		if err == nil {
			t.Errorf("%s: Send = %+v", name, got)
			continue
		}
		vaulttest.AssertNoLeak(t, []string{encoded[:20]}, err)
		if _, err := receive.Verify(nil, nil, secrets...); !errors.Is(err, receive.ErrSecret) {
			t.Errorf("%s: Verify = %v", name, err)
		}
	}
	if n := len(in.Deliveries()); n != 0 {
		t.Errorf("%d deliveries", n)
	}
	for _, n := range []int{24, 64} {
		d.Secrets = []receive.WebhookSecret{secret(7, n)}
		if _, err := in.Send(t.Context(), d); err != nil {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
}

func TestStatus(t *testing.T) {
	bothWays(t, webhook.Options{}, func(t *testing.T, in *inbox) {
		begin := time.Now()
		for _, code := range []int{200, 201, 204, 299, 304, 400, 401, 404, 410, 429, 500, 503, 599} {
			in.Next(webhooktest.Status(code))
			if got, err := in.send(t); err != nil || got.StatusCode != code || got.RetryAfter != 0 {
				t.Errorf("%d: %+v, %v", code, got, err)
			}
		}
		// A connection that was idle for four seconds is given up.
		if n := in.connections.Load(); n != 1 && time.Since(begin) < 3*time.Second {
			t.Errorf("%d connections", n)
		}
	})
}

func TestRetryAfter(t *testing.T) {
	in := open(t, false, webhook.Options{})
	soon := func(d time.Duration) string { return time.Now().Add(d).UTC().Format(http.TimeFormat) }
	for _, c := range []struct {
		value    string
		min, max time.Duration
	}{
		{"", 0, 0},
		{"0", 0, 0},
		{"1", time.Second, time.Second},
		{"120", 2 * time.Minute, 2 * time.Minute},
		{"86400", 24 * time.Hour, 24 * time.Hour},
		{"86401", 24 * time.Hour, 24 * time.Hour},
		{"9223372036854775807", 24 * time.Hour, 24 * time.Hour},
		{"18446744073709551615", 24 * time.Hour, 24 * time.Hour},
		{strings.Repeat("9", 1000), 24 * time.Hour, 24 * time.Hour},
		{soon(time.Hour), 59 * time.Minute, time.Hour},
		{soon(-time.Hour), 0, 0},
		{soon(100 * time.Hour), 24 * time.Hour, 24 * time.Hour},
		{"Fri, 31 Dec 9999 23:59:59 GMT", 24 * time.Hour, 24 * time.Hour},
		{"-1", 0, 0},
		{"+1", 0, 0},
		{"1.5", 0, 0},
		{"1h", 0, 0},
		{"0x10", 0, 0},
		{"tomorrow", 0, 0},
	} {
		in.Next(webhooktest.RetryAfter(429, c.value))
		got, err := in.send(t)
		if err != nil || got.StatusCode != 429 || got.RetryAfter < c.min || got.RetryAfter > c.max {
			t.Errorf("%q: %+v, %v", c.value, got, err)
		}
	}
}

// The status of an answer decides at once, whatever its body does. The rest of the body is
// not waited for.
func TestBodies(t *testing.T) {
	bothWays(t, webhook.Options{Timeout: patience}, func(t *testing.T, in *inbox) {
		for _, c := range []struct {
			name   string
			answer webhooktest.Answer
			reused bool
		}{
			{"empty", webhooktest.Body(0), true},
			{"short", webhooktest.Body(100), true},
			{"64 KiB", webhooktest.Body(64<<10 - 1), true},
			{"more than that", webhooktest.Body(128 << 10), false},
			{"10 MB", webhooktest.Body(10e6), false},
			{"endless", webhooktest.Body(-1), false},
			{"is cut", webhooktest.Raw("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n" + canary), false},
			{"is garbage", webhooktest.Raw("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + canary), false},
			{"claims to be gzip", webhooktest.Raw("HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n" + canary), false},
			{"has endless trailers", webhooktest.Raw("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n" +
				strings.Repeat("X: y\r\n", 1<<18)), false},
		} {
			t.Run(c.name, func(t *testing.T) {
				in.works(t)
				in.Next(c.answer)
				connections, begin := in.connections.Load(), time.Now()
				got, err := in.send(t)
				took := time.Since(begin)
				if err != nil || got.StatusCode != 200 {
					t.Errorf("Send = %+v, %v", got, err)
				}
				if took > patience/2 {
					t.Errorf("took %v", took)
				}
				in.works(t)
				// A connection that was idle for four seconds is given up.
				reused := in.connections.Load() == connections
				if reused != c.reused && (reused || time.Since(begin) < 3*time.Second) {
					t.Errorf("the connection is reused: %v", reused)
				}
			})
		}
	})
}

// The timeout ends a body that drips. The status counts all the same.
func TestBodyDrips(t *testing.T) {
	for name, secure := range map[string]bool{"http": false, "https": true} {
		t.Run(name, func(t *testing.T) {
			// On a slow machine the time may pass before an answer begins.
			for timeout := time.Second; ; timeout *= 2 {
				in := open(t, secure, webhook.Options{Timeout: timeout})
				in.Next(webhooktest.Drip)
				begin := time.Now()
				got, err := in.send(t)
				took := time.Since(begin)
				next, nextErr := in.send(t)
				if errors.Is(cmp.Or(err, nextErr), context.DeadlineExceeded) && timeout < patience/2 {
					continue
				}

				if err != nil || got.StatusCode != 200 || took < timeout || took > timeout+patience/2 {
					t.Errorf("Send = %+v, %v after %v", got, err, took)
				}
				if nextErr != nil || next.StatusCode != 204 {
					t.Errorf("the next Send = %+v, %v", next, nextErr)
				}
				if n := in.connections.Load(); n != 2 {
					t.Errorf("%d connections, want another one for the next delivery", n)
				}
				return
			}
		})
	}
}

// A response that is not an answer is an error, in time, and the error contains nothing of
// it.
func TestNoAnswer(t *testing.T) {
	const ok = "HTTP/1.1 200 OK\r\n"
	line := strings.Repeat("x", 1<<10)
	bothWays(t, webhook.Options{Timeout: patience}, func(t *testing.T, in *inbox) {
		for _, c := range []struct {
			name   string
			answer webhooktest.Answer
		}{
			{"cut", webhooktest.Cut},
			{"nothing", webhooktest.Raw("")},
			{"garbage", webhooktest.Raw(canary + "\r\n\r\n")},
			{"binary garbage", webhooktest.Raw("\x00\xff" + canary)},
			{"another version", webhooktest.Raw("HTTP/x.y 200 " + canary + "\r\n\r\n")},
			{"no status", webhooktest.Raw("HTTP/1.1 " + canary + "\r\n\r\n")},
			{"a negative status", webhooktest.Raw("HTTP/1.1 -20 " + canary + "\r\n\r\n")},
			{"a broken header", webhooktest.Raw(ok + canary + "\r\n\r\n")},
			{"a bad length", webhooktest.Raw(ok + "Content-Length: " + canary + "x\r\n\r\n")},
			{"two lengths", webhooktest.Raw(ok + "Content-Length: 1\r\nContent-Length: " + canary + "\r\n\r\n")},
			{"a bad coding", webhooktest.Raw(ok + "Transfer-Encoding: " + canary + "\r\n\r\n")},
			{"half a header", webhooktest.Raw(ok + "X-Canary: " + canary)},
			{"a megabyte of headers", webhooktest.Raw(ok + strings.Repeat("X-"+canary+": "+line+"\r\n", 1<<10) + "\r\n")},
			{"a header of a megabyte", webhooktest.Raw(ok + "X: " + strings.Repeat(canary, 1<<16) + "\r\n\r\n")},
			{"a status line of a megabyte", webhooktest.Raw("HTTP/1.1 200 " + strings.Repeat(canary, 1<<16))},
			{"early hints without end", webhooktest.Raw(strings.Repeat("HTTP/1.1 103 "+canary+"\r\n\r\n", 1<<16))},
		} {
			t.Run(c.name, func(t *testing.T) {
				before := len(in.Deliveries())
				in.Next(c.answer)
				begin := time.Now()
				got, err := in.send(t)
				if err == nil || time.Since(begin) > patience/2 {
					t.Fatalf("Send = %+v, %v after %v", got, err, time.Since(begin))
				}
				if n := len(in.Deliveries()) - before; n != 1 {
					t.Errorf("%d attempts", n)
				}
				vaulttest.AssertNoLeak(t, canaries, err)
				if strings.Contains(err.Error(), "127.0.0.1") || strings.Contains(err.Error(), "/hook") {
					t.Errorf("the URL is in %v", err)
				}
				in.works(t)
			})
		}
	})
}

// After an answer of 101 the connection is dropped, without waiting for more.
func TestSwitchingProtocols(t *testing.T) {
	bothWays(t, webhook.Options{Timeout: patience}, func(t *testing.T, in *inbox) {
		gone := make(chan struct{})
		in.Next(func(w http.ResponseWriter, r *http.Request) {
			defer close(gone)
			conn, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
			_, _ = io.Copy(io.Discard, conn)
		})
		begin := time.Now()
		got, err := in.send(t)
		if err != nil || got.StatusCode != 101 || time.Since(begin) > patience/2 {
			t.Errorf("Send = %+v, %v after %v", got, err, time.Since(begin))
		}
		<-gone
	})
}

// Send returns at its timeout, and when its context is cancelled.
func TestGivingUp(t *testing.T) {
	headers := func(w http.ResponseWriter, r *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for text := "HTTP/1.1 200 OK\r\nX: "; ; text = "x" {
			if _, err := io.WriteString(conn, text); err != nil {
				return
			}
			<-tick.C
		}
	}
	for name, answer := range map[string]webhooktest.Answer{
		"hangs": webhooktest.Hang, "is late": webhooktest.Delay(time.Minute, webhooktest.Status(200)), "drips headers": headers,
	} {
		t.Run(name, func(t *testing.T) {
			bothWays(t, webhook.Options{Timeout: 200 * time.Millisecond}, func(t *testing.T, in *inbox) {
				in.Next(answer)
				begin := time.Now()
				got, err := in.send(t)
				if !errors.Is(err, context.DeadlineExceeded) || time.Since(begin) > patience/2 {
					t.Errorf("Send = %+v, %v after %v", got, err, time.Since(begin))
				}
				vaulttest.AssertNoLeak(t, canaries, err)
			})
			bothWays(t, webhook.Options{Timeout: patience}, func(t *testing.T, in *inbox) {
				in.Next(answer)
				ctx, cancel := context.WithCancel(t.Context())
				go func() {
					defer cancel()
					if _, err := in.Wait(ctx, 1); err != nil {
						t.Error(err)
					}
				}()
				begin := time.Now()
				got, err := in.Send(ctx, delivery(in.url))
				if !errors.Is(err, context.Canceled) || time.Since(begin) > patience/2 {
					t.Errorf("Send = %+v, %v after %v", got, err, time.Since(begin))
				}
				in.works(t)
			})
		})
	}
	t.Run("shakes no hands", shakesNoHands)
}

func shakesNoHands(t *testing.T) {
	listener, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	var conn net.Conn
	// On a slow machine the time may pass before there is a connection.
	for timeout := time.Second; conn == nil; timeout *= 2 {
		s := webhook.New(&webhook.Options{AllowPrivateTargets: true, Timeout: timeout})
		defer s.Close()
		if _, err := s.Send(t.Context(), delivery("https://"+listener.Addr().String())); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		if err := listener.SetDeadline(time.Now().Add(time.Second)); err != nil {
			t.Fatal(err)
		}
		if conn, err = listener.Accept(); err != nil && timeout > patience {
			t.Fatal(err)
		}
	}

	// The connection is not kept for a later attempt either.
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, conn); err != nil {
		t.Error(err)
	}
}

func TestConnections(t *testing.T) {
	bothWays(t, webhook.Options{}, func(t *testing.T, in *inbox) {
		begin := time.Now()
		for range 50 {
			in.works(t)
		}
		// A connection that was idle for four seconds is given up.
		if n := in.connections.Load(); n != 1 && time.Since(begin) < 3*time.Second {
			t.Errorf("%d connections for 50 deliveries", n)
		}
		release, entered := make(chan struct{}), make(chan struct{}, 40)
		in.Always(func(w http.ResponseWriter, r *http.Request) {
			entered <- struct{}{}
			<-release
		})
		var wg sync.WaitGroup
		for range 40 {
			wg.Go(func() {
				if got, err := in.send(t); err != nil || got.StatusCode != 200 {
					t.Errorf("Send = %+v, %v", got, err)
				}
			})
		}
		for n := range 40 { // webhooks of one host do not wait for each other
			select {
			case <-entered:
				continue
			case <-time.After(patience):
				t.Errorf("%d deliveries at a time to one host, want 40", n)
			}
			break
		}
		close(release)
		wg.Wait()
		if n := in.connections.Load(); n > 40 {
			t.Errorf("%d connections for 40 deliveries at a time", n)
		}
	})
}

// If a webhook silently closes a connection after its answer, the delivery is sent on
// another one. That happens at most once per attempt, however much the sender has noticed.
func TestStaleConnection(t *testing.T) {
	bothWays(t, webhook.Options{}, func(t *testing.T, in *inbox) {
		for range 50 {
			in.Next(webhooktest.Raw("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"))
			before := len(in.Deliveries())
			_, err := in.send(t)
			if n := len(in.Deliveries()) - before; n > 1 || err == nil && n == 0 {
				t.Errorf("%v after %d requests", err, n)
			}
		}
	})
}

// TestUnsolicited: net/http logs unsolicited text of a server. It uses the log of the
// process, so another process sends, and its log is checked.
func TestUnsolicited(t *testing.T) {
	const child = "WEBHOOK_TEST_CHILD"
	if os.Getenv(child) == "" {
		cmd := exec.Command(os.Args[0], "-test.v", "-test.run=^TestUnsolicited$")
		cmd.Env = append(os.Environ(), child+"=1")
		out, err := cmd.CombinedOutput()
		if err != nil || !bytes.Contains(out, []byte("TestUnsolicited/https")) {
			t.Errorf("%v: %s", err, out)
		}
		vaulttest.AssertNoLeak(t, canaries, out)
		return
	}
	bothWays(t, webhook.Options{}, func(t *testing.T, in *inbox) {
		gone := make(chan struct{})
		in.Next(func(w http.ResponseWriter, r *http.Request) {
			defer close(gone)
			conn, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			if _, err := io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"+canary); err != nil {
				t.Error(err)
			}
			_, _ = io.Copy(io.Discard, conn) // until the sender closes it, after logging
		})
		if got, err := in.send(t); err != nil || got.StatusCode != 200 {
			t.Errorf("Send = %+v, %v", got, err)
		}
		<-gone
		in.works(t)
	})
}

func TestUnreachable(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	unused := listener.Addr().String()
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	defer server.Close()
	_, port, err := net.SplitHostPort(server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	plain := httptest.NewServer(http.NotFoundHandler())
	defer plain.Close()
	trusting := server.Client().Transport.(*http.Transport).TLSClientConfig
	// The URL's host is verified, not the ServerName of the configuration.
	trusting.ServerName = "example.com"
	loopback, unknown := new(nametest.Zone), new(nametest.Zone)
	loopback.Set("127.0.0.1")
	for _, c := range []struct {
		name, url, want string
		tls             *tls.Config
		names           *nametest.Zone
	}{
		{"no server", "http://" + unused, "webhook: connect: connection refused", nil, unknown},
		{"no server, TLS", "https://" + unused, "webhook: connect: connection refused", nil, unknown},
		{"no such host", "https://" + canary + ".example", "webhook: host is unknown", nil, unknown},
		{"unknown authority", server.URL, "webhook: TLS: certificate is signed by an unknown authority", nil, unknown},
		{"another host", "https://" + canary + ".example:" + port, "webhook: TLS: certificate is not for the host", trusting, loopback},
		{"no TLS", "https://" + plain.Listener.Addr().String(), "webhook: TLS: handshake failed", nil, unknown},
		{"no HTTP", "http://" + server.Listener.Addr().String(), "", nil, unknown},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := webhook.New(&webhook.Options{AllowPrivateTargets: true, TLS: c.tls})
			defer s.Close()
			webhook.Resolve(s, c.names.Resolver())
			got, err := s.Send(t.Context(), delivery(c.url+"/?"+canary))
			if c.want == "" {
				if err != nil || got.StatusCode != 400 { // the answer of crypto/tls to plain HTTP
					t.Errorf("Send = %+v, %v", got, err)
				}
				return
			}
			if err == nil || err.Error() != c.want {
				t.Errorf("Send = %v", err)
			}
			vaulttest.AssertNoLeak(t, canaries, err)
		})
	}
}

func TestRefused(t *testing.T) {
	in := open(t, false, webhook.Options{})
	for _, url := range []string{"", "https://user:" + canary + "@127.0.0.1/", in.url + "/#" + canary, "https://shop.example/\x00" + canary} {
		_, err := in.Send(t.Context(), delivery(url))
		if err == nil || !strings.HasPrefix(err.Error(), "webhook: URL must ") {
			t.Errorf("%q: %v", url, err)
		}
		vaulttest.AssertNoLeak(t, canaries, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := in.Send(ctx, delivery(in.url)); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	in.works(t)
	in.Sender.Close()
	if _, err := in.send(t); err == nil {
		t.Error("a closed sender works")
	}
	if n := len(in.Deliveries()); n != 1 {
		t.Errorf("%d deliveries", n)
	}
}
