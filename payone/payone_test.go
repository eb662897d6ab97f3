package payone_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/payone"
	"github.com/cardvault/cardvault/payone/payonetest"
	"github.com/cardvault/cardvault/ppan"
	"github.com/cardvault/cardvault/simnet"
	"github.com/cardvault/cardvault/store/memstore"
	"github.com/cardvault/cardvault/vaulttest"
)

const (
	pan  = "4242424242424242"
	code = "7391"

	// openssl dgst -sha384 -hmac secretTestKey
	plainHash  = "72a4a5acd535aa5eb87bee93f288b8016fb44134767a36d323dafe2105f491bc555e47d7e2cdc1ee6f291f0999e30d68"
	travelHash = "cef6c7de0867328e46adc13da9435a9a37825b9822452fc745b745154a2129d775a820deffcaae022b7259f17aafd36e"
)

var secrets = []string{pan, code, plainHash, travelHash}

func request(hash string) *ppan.Request {
	return &ppan.Request{
		Account: ppan.Account{
			AID: "22222", MID: "11111", PortalID: "3333333", Hash: ppan.NewHash([]byte(hash)),
		},
		Sandbox:      true,
		PAN:          card.NewPAN([]byte(pan)),
		Expiry:       card.Expiry{Month: 2, Year: 2041},
		SecurityCode: card.NewSecurityCode([]byte(code)),
	}
}

func newSimulator(t testing.TB) *simnet.Network {
	t.Helper()
	n, err := simnet.New(t.Context(), memstore.New(), nil)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// A shop is a client with a provider of its own.
type shop struct {
	*payone.Client
	*payonetest.Faulty
	server      *httptest.Server
	connections atomic.Int64
}

func open(t testing.TB, secure bool, handler http.Handler, opts payone.Options) *shop {
	t.Helper()
	s := &shop{Faulty: payonetest.NewFaulty(handler)}
	s.server = httptest.NewUnstartedServer(s.Faulty)
	s.server.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			s.connections.Add(1)
		}
	}
	if secure {
		s.server.StartTLS()
		opts.TLS = s.server.Client().Transport.(*http.Transport).TLSClientConfig
	} else {
		s.server.Start()
	}
	t.Cleanup(s.server.Close)
	var err error
	if s.Client, err = payone.New(s.server.URL+"/client-api/", &opts); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Client.Close)
	return s
}

// bothWays runs f with a simulated provider, over TLS and without.
func bothWays(t *testing.T, f func(t *testing.T, s *shop)) {
	for _, secure := range []bool{false, true} {
		t.Run(fmt.Sprintf("secure %v", secure), func(t *testing.T) { f(t, simulated(t, secure)) })
	}
}

func simulated(t testing.TB, secure bool) *shop {
	t.Helper()
	return open(t, secure, payonetest.NewHandler(simnet.PortalKey, newSimulator(t).PPAN()), payone.Options{})
}

func (s *shop) ask(t testing.TB) (*ppan.Answer, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	return s.ObtainPPAN(ctx, request(plainHash))
}

// works checks that one request reaches the provider and is answered.
func (s *shop) works(t testing.TB) {
	t.Helper()
	before := s.Requests()
	if p, err := s.ask(t); err != nil || p.Status != ppan.Valid {
		t.Errorf("ObtainPPAN = %+v, %v", p, err)
	}
	if n := s.Requests() - before; n != 1 {
		t.Errorf("%d requests have arrived", n)
	}
}

func TestHash(t *testing.T) {
	p := payone.HashParameters{AID: "22222", MID: "11111", PortalID: "3333333", Sandbox: true}
	travel, live := p, p
	travel.TravelCard = true
	live.Sandbox = false
	for want, p := range map[string]payone.HashParameters{plainHash: p, travelHash: travel} {
		payone.Hash(simnet.PortalKey, p).Expose(func(got []byte) {
			if string(got) != want {
				t.Errorf("hash of %+v is %s", p, got)
			}
		})
		given := ppan.NewHash([]byte(want))
		if !payone.Verify(simnet.PortalKey, p, given) {
			t.Errorf("hash of %+v is wrong", p)
		}
		if payone.Verify("another key", p, given) || payone.Verify(simnet.PortalKey, live, given) ||
			payone.Verify(simnet.PortalKey, p, ppan.NewHash([]byte(want[:95]))) ||
			payone.Verify(simnet.PortalKey, p, ppan.Hash{}) {
			t.Errorf("a hash that is not of %+v is right", p)
		}
	}
}

// TestFIPS: portal keys are shorter than FIPS 140 allows.
func TestFIPS(t *testing.T) {
	cmd := exec.Command(os.Args[0], "-test.run=^TestHash$")
	cmd.Env = append(os.Environ(), "GODEBUG=fips140=only")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

// The bytes on the wire.
func TestWire(t *testing.T) {
	odd := request(plainHash)
	odd.Account.AID = " a&b=c+d%~"
	odd.Sandbox = false
	uncoded := request(plainHash)
	uncoded.SecurityCode = card.SecurityCode{}
	const fixed = "&request=creditcardcheck&responsetype=JSON&storecarddata=yes"
	for _, c := range []struct {
		name   string
		r      *ppan.Request
		travel bool
		want   string
	}{
		{"with a code", request(plainHash), false,
			"aid=22222&api_version=3.11&encoding=UTF-8&mid=11111&mode=test&portalid=3333333" + fixed + "&hash=" + plainHash +
				"&cardpan=4242424242424242&cardexpiredate=4102&cardcvc2=7391"},
		{"without a code", uncoded, false,
			"aid=22222&api_version=3.11&encoding=UTF-8&mid=11111&mode=test&portalid=3333333" + fixed + "&hash=" + plainHash +
				"&cardpan=4242424242424242&cardexpiredate=4102"},
		{"travel card", request(travelHash), true,
			"aid=22222&api_version=3.11&checktype=TC&encoding=UTF-8&mid=11111&mode=test&portalid=3333333" + fixed + "&hash=" + travelHash +
				"&cardpan=4242424242424242&cardexpiredate=4102&cardcvc2=7391"},
		{"live, with an odd value", odd, false,
			"aid=%20a%26b%3Dc%2Bd%25~&api_version=3.11&encoding=UTF-8&mid=11111&mode=live&portalid=3333333" + fixed + "&hash=" + plainHash +
				"&cardpan=4242424242424242&cardexpiredate=4102&cardcvc2=7391"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got string
			s := open(t, true, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				dump, err := httputil.DumpRequest(r, true)
				if err != nil {
					t.Error(err)
				}
				got = string(dump)
			}), payone.Options{TravelCard: c.travel})
			if _, err := s.ObtainPPAN(t.Context(), c.r); err == nil {
				t.Error("an empty answer is accepted")
			}
			want := "POST /client-api/ HTTP/1.1\r\nHost: " + s.server.Listener.Addr().String() + "\r\n" +
				"Accept: application/json\r\n" + fmt.Sprintf("Content-Length: %d\r\n", len(c.want)) +
				"Content-Type: application/x-www-form-urlencoded\r\nUser-Agent: Go-http-client/1.1\r\n\r\n" + c.want
			if got != want {
				t.Errorf("request is\n%s\nwant\n%s", got, want)
			}
		})
	}
}

func TestAnswers(t *testing.T) {
	long := strings.Repeat("ü", 255)
	for _, c := range []struct {
		name, body string
		travel     bool
		want       *ppan.Answer // nil: it cannot be used
	}{
		{name: "all", body: `{"status":"VALID","pseudocardpan":"9410010000038248746","truncatedcardpan":"424242XXXXXX4242","cardtype":"V","cardexpiredate":"4102","new":[{}]}`,
			want: &ppan.Answer{Status: ppan.Valid, PseudoPAN: ppan.NewPseudoPAN([]byte("9410010000038248746")), TruncatedPAN: "424242XXXXXX4242", CardType: "V", CardExpiry: "4102"}},
		{name: "numbers and null", body: ` {"status":"VALID","pseudocardpan":9410010000038248,"cardtype":null,"cardexpiredate":4102} `,
			want: &ppan.Answer{Status: ppan.Valid, PseudoPAN: ppan.NewPseudoPAN([]byte("9410010000038248")), CardExpiry: "4102"}},
		{name: "errors with VALID", body: `{"status":"VALID","pseudocardpan":"9410010000038248","errorcode":"1","errormessage":"a","customermessage":"b"}`,
			want: &ppan.Answer{Status: ppan.Valid, PseudoPAN: ppan.NewPseudoPAN([]byte("9410010000038248"))}},
		{name: "travel card not asked for", body: `{"status":"VALID","pseudocardpan":"9410010000038248","tcdata":"no","tcprovider":{},"tcinvoice":"b"}`,
			want: &ppan.Answer{Status: ppan.Valid, PseudoPAN: ppan.NewPseudoPAN([]byte("9410010000038248"))}},
		{name: "travel card", travel: true, body: `{"status":"VALID","pseudocardpan":"9410010000038248","tcdata":"yes","tcprovider":"a","tcinvoice":"b"}`,
			want: &ppan.Answer{Status: ppan.Valid, PseudoPAN: ppan.NewPseudoPAN([]byte("9410010000038248")), TravelCard: "yes", TravelCardProvider: "a", TravelCardInvoice: "b"}},
		{name: "travel card of another type", travel: true, body: `{"status":"VALID","pseudocardpan":"9410010000038248","tcprovider":{}}`},
		{name: "INVALID", body: `{"status":"INVALID","errorcode":33,"errormessage":"a","customermessage":"` + long + `"}`,
			want: &ppan.Answer{Status: ppan.Invalid, ErrorCode: "33", ErrorMessage: "a", CustomerMessage: long}},
		{name: "ERROR alone", body: `{"status":"ERROR"}`, want: &ppan.Answer{Status: ppan.Error}},
		{name: "too long", body: `{"status":"ERROR","customermessage":"` + long + `x"}`},
		{name: "control character", body: `{"status":"ERROR","errormessage":"a\nb"}`},
		{name: "control character of Latin-1", body: `{"status":"ERROR","errormessage":"a\u0085b"}`},
		{name: "boolean", body: `{"status":"ERROR","errorcode":true}`},
		{name: "array", body: `{"status":"ERROR","errorcode":["1"]}`},
		{name: "no pseudo card number", body: `{"status":"VALID"}`},
		{name: "15 digits", body: `{"status":"VALID","pseudocardpan":"941001000003824"}`},
		{name: "20 digits", body: `{"status":"VALID","pseudocardpan":"94100100000382487461"}`},
		{name: "no digits", body: `{"status":"VALID","pseudocardpan":"9410010000038248x"}`},
		{name: "a bad one with INVALID", body: `{"status":"INVALID","pseudocardpan":"1"}`},
		{name: "another status", body: `{"status":"OK"}`},
		{name: "lower case", body: `{"status":"error"}`},
		{name: "another name", body: `{"Status":"ERROR"}`},
		{name: "no status", body: `{}`},
		{name: "the card number", body: `{"status":"VALID","pseudocardpan":"` + pan + `"}`},
		{name: "empty", body: ""},
		{name: "null", body: "null"},
		{name: "array", body: `[{"status":"ERROR"}]`},
		{name: "text", body: "status=ERROR"},
		{name: "truncated", body: `{"status":"ERROR"`},
		{name: "more behind", body: `{"status":"ERROR"}{}`},
		{name: "not UTF-8", body: "{\"status\":\"ERROR\",\"errormessage\":\"\xfc\"}"},
		{name: "64 KiB", body: `{"status":"ERROR"` + strings.Repeat(" ", 64<<10-18) + "}", want: &ppan.Answer{Status: ppan.Error}},
		{name: "one more", body: `{"status":"ERROR"` + strings.Repeat(" ", 64<<10-17) + "}"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := open(t, false, payonetest.NewHandler("", nil), payone.Options{TravelCard: c.travel})
			s.Next(payonetest.Answer(http.StatusOK, c.body))
			got, err := s.ask(t)
			switch {
			case c.want == nil && (err == nil || got != nil):
				t.Errorf("ObtainPPAN = %+v, %v", got, err)
			case c.want != nil && (err != nil || fmt.Sprint(*got, got.PseudoPAN.Text()) != fmt.Sprint(*c.want, c.want.PseudoPAN.Text())):
				t.Errorf("ObtainPPAN = %+v, %v", got, err)
			case err != nil:
				vaulttest.AssertNoLeak(t, secrets, err)
				if !strings.HasPrefix(err.Error(), "payone: answer cannot be used: ") {
					t.Error(err)
				}
			}
		})
	}
}

// Every fault of a provider is an error, in time, that says nothing of the request. Each
// request is sent once, on a new or a used connection, and the next call works.
func TestFaults(t *testing.T) {
	for name, c := range map[string]struct {
		fault payonetest.Fault
		want  string
		is    error
	}{
		"unanswered":            {payonetest.Raw(""), "payone: ", nil},
		"cut in the status":     {payonetest.Raw("HTTP/1.1 20"), "payone: read: ", nil},
		"cut in the headers":    {payonetest.Raw("HTTP/1.1 200 OK\r\nContent-Le"), "payone: read: ", nil},
		"cut in the body":       {payonetest.Raw("HTTP/1.1 200 OK\r\nContent-Length: 18\r\n\r\n" + `{"status`), "payone: read: ", io.ErrUnexpectedEOF},
		"cut in a chunk":        {payonetest.Raw("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n12\r\n" + `{"status`), "payone: read: ", io.ErrUnexpectedEOF},
		"bad chunks":            {payonetest.Raw("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n{}"), "payone: read: ", nil},
		"two lengths":           {payonetest.Raw("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}"), "payone: read: ", nil},
		"compressed":            {payonetest.Raw("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\n\x1f\x8b\x08\x00"), "cannot be used", nil},
		"not HTTP":              {payonetest.Raw("220 ready\r\n"), "payone: read: ", nil},
		"another protocol":      {payonetest.Raw("HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n"), "status 101", nil},
		"status 500":            {payonetest.Answer(500, `{"status":"ERROR"}`), "status 500", nil},
		"status 201":            {payonetest.Answer(201, `{"status":"ERROR"}`), "status 201", nil},
		"status 204":            {payonetest.Answer(204, ""), "status 204", nil},
		"status 301":            {payonetest.Redirect(301), "status 301", nil},
		"status 302":            {payonetest.Redirect(302), "status 302", nil},
		"status 307":            {payonetest.Redirect(307), "status 307", nil},
		"status 308":            {payonetest.Redirect(308), "status 308", nil},
		"status 401":            {payonetest.Answer(401, ""), "status 401", nil},
		"status 408":            {payonetest.Answer(408, ""), "status 408", nil},
		"status 421":            {payonetest.Answer(421, ""), "status 421", nil},
		"status 503":            {payonetest.Answer(503, ""), "status 503", nil},
		"garbage":               {payonetest.Answer(200, "<html>"), "cannot be used", nil},
		"10 MB":                 {payonetest.Huge, "cannot be used", nil},
		"1 MB of headers":       {payonetest.Headers, "payone: ", nil},
		"echo":                  {payonetest.Echo, "cannot be used", nil},
		"echo of the card":      {payonetest.EchoCard, "cannot be used", nil},
		"echo as text":          {payonetest.EchoText(200), "cannot be used", nil},
		"echo with another":     {payonetest.EchoText(400), "status 400", nil},
		"echo in place of HTTP": {payonetest.EchoRaw, "payone: read: ", nil},
		"echo as a header":      {payonetest.EchoHeader, "payone: read: ", nil},
	} {
		t.Run(name, func(t *testing.T) {
			bothWays(t, func(t *testing.T, s *shop) {
				for range 2 {
					before := s.Requests()
					s.Next(c.fault)
					p, err := s.ask(t)
					if err == nil || p != nil || !strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(), "payone: ") ||
						errors.Is(err, context.DeadlineExceeded) || c.is != nil && !errors.Is(err, c.is) {
						t.Errorf("ObtainPPAN = %v, %v", p, err)
					} else {
						vaulttest.AssertNoLeak(t, secrets, err)
					}
					if n := s.Requests() - before; n != 1 {
						t.Errorf("%d requests have arrived", n)
					}
					s.works(t)
				}
			})
		})
	}
}

// A deadline or a cancellation holds until the last byte of the answer.
func TestGivingUp(t *testing.T) {
	for name, fault := range map[string]payonetest.Fault{
		"hangs": payonetest.Hang(nil), "drips": payonetest.Drip,
		"stops": func(w http.ResponseWriter, r *http.Request) {
			payonetest.Answer(200, `{"status":`)(w, r)
			if err := http.NewResponseController(w).Flush(); err != nil {
				t.Error(err)
			}
			payonetest.Hang(nil)(w, r)
		},
	} {
		t.Run(name, func(t *testing.T) {
			bothWays(t, func(t *testing.T, s *shop) {
				limit := 300 * time.Millisecond
				for range 2 {
					// On a slow machine a deadline may pass before the request arrives. As it may
					// still arrive, the next one goes to another shop.
					for ; !s.givesUp(t, fault, limit); limit *= 2 {
						s = simulated(t, s.server.TLS != nil)
					}
					s.works(t)
				}
			})
		})
	}
}

// givesUp checks that a call ends with its deadline, and another one when it is cancelled,
// while a fault answers them. It reports false if no request has arrived within limit.
func (s *shop) givesUp(t testing.TB, fault payonetest.Fault, limit time.Duration) bool {
	t.Helper()
	before, arrived := s.Requests(), make(chan struct{}, 1)
	told := func(w http.ResponseWriter, r *http.Request) {
		arrived <- struct{}{}
		fault(w, r)
	}
	s.Next(told, told)
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	_, err := s.ObtainPPAN(ctx, request(plainHash))
	cancel()
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("ObtainPPAN = %v", err)
	}
	vaulttest.AssertNoLeak(t, secrets, err)
	if s.Requests() == before {
		return false
	}

	<-arrived
	ctx, cancel = context.WithCancel(t.Context())
	go func() {
		<-arrived
		cancel()
	}()
	if _, err := s.ObtainPPAN(ctx, request(plainHash)); !errors.Is(err, context.Canceled) {
		t.Errorf("ObtainPPAN = %v", err)
	}
	if n := s.Requests() - before; n != 2 {
		t.Errorf("%d requests have arrived", n)
	}
	return true
}

func TestConnectionIsReused(t *testing.T) {
	bothWays(t, func(t *testing.T, s *shop) {
		for range 50 {
			s.works(t)
		}
		// An idle connection ends after a while, which calls on a busy machine may take.
		if n := s.connections.Load(); n > 10 {
			t.Errorf("%d connections for 50 calls", n)
		}
	})
}

// If a provider silently closes a connection after its answer, the request is sent on
// another one. That happens at most once per call, however much the client has noticed.
func TestStaleConnection(t *testing.T) {
	bothWays(t, func(t *testing.T, s *shop) {
		const body = `{"status":"ERROR"}`
		const stale = "HTTP/1.1 200 OK\r\nContent-Length: 18\r\n\r\n" + body
		for range 50 {
			s.Next(payonetest.Raw(stale))
			before := s.Requests()
			_, err := s.ask(t)
			if n := s.Requests() - before; n > 1 || err == nil && n == 0 {
				t.Errorf("%v after %d requests", err, n)
			}
			if err != nil {
				vaulttest.AssertNoLeak(t, secrets, err)
			}
		}
	})
}

// Each of many concurrent calls receives its own answer, or its own cancellation.
func TestConcurrent(t *testing.T) {
	bothWays(t, func(t *testing.T, s *shop) {
		var wg sync.WaitGroup
		for i := range 100 {
			wg.Go(func() {
				r := request(plainHash)
				r.PAN = simnet.ScenarioPAN(card.VISA, 100+i)
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				if i%10 == 0 {
					cancel()
				}
				p, err := s.ObtainPPAN(ctx, r)
				if i%10 == 0 {
					if !errors.Is(err, context.Canceled) {
						t.Errorf("ObtainPPAN = %v", err)
					}
					return
				}
				if err != nil {
					t.Error(err)
					return
				}
				r.PAN.Expose(func(digits []byte) {
					if p.TruncatedPAN != string(digits[:6])+"XXXXXX"+string(digits[12:]) {
						t.Errorf("the answer for %s is %+v", digits, p)
					}
				})
			})
		}
		wg.Wait()
	})
}

// TestUnsolicited: net/http logs unsolicited text of a server, here the request. It uses
// the log of the process, so another process makes the call, and its log is checked.
func TestUnsolicited(t *testing.T) {
	const child = "PAYONE_TEST_CHILD"
	if os.Getenv(child) == "" {
		cmd := exec.Command(os.Args[0], "-test.v", "-test.run=^TestUnsolicited$")
		cmd.Env = append(os.Environ(), child+"=1")
		out, err := cmd.CombinedOutput()
		if err != nil || !bytes.Contains(out, []byte("secure_true")) {
			t.Errorf("%v: %s", err, out)
		}
		vaulttest.AssertNoLeak(t, secrets, out)
		return
	}
	bothWays(t, func(t *testing.T, s *shop) {
		gone := make(chan struct{})
		s.Next(func(w http.ResponseWriter, r *http.Request) {
			defer close(gone)
			form, err := io.ReadAll(r.Body)
			if err != nil {
				t.Error(err)
			}
			conn, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			const answer = "HTTP/1.1 200 OK\r\nContent-Length: 18\r\n\r\n" + `{"status":"ERROR"}`
			if _, err := io.WriteString(conn, answer+string(form)); err != nil {
				t.Error(err)
			}
			_, _ = io.Copy(io.Discard, conn) // until the client closes it, after logging
		})
		if _, err := s.ask(t); err != nil {
			t.Error(err)
		}
		<-gone
		s.works(t)
	})
}

func TestUnreachable(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	defer server.Close()
	plain := httptest.NewServer(http.NotFoundHandler())
	defer plain.Close()
	_, port, err := net.SplitHostPort(plain.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ name, url, want string }{
		{"no server", "http://" + listener.Addr().String(), "payone: dial: "},
		{"no server, TLS", "https://" + listener.Addr().String(), "payone: dial: "},
		{"no such host", "https://cardvault.invalid", "payone: dial: "},
		{"unknown CA", server.URL, "payone: TLS: "},
		{"no TLS", "https://127.0.0.1:" + port, "payone: TLS: "},
	} {
		t.Run(c.name, func(t *testing.T) {
			client, err := payone.New(c.url, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			_, err = client.ObtainPPAN(t.Context(), request(plainHash))
			if err == nil || !strings.HasPrefix(err.Error(), c.want) {
				t.Errorf("ObtainPPAN = %v", err)
			}
			vaulttest.AssertNoLeak(t, secrets, err)
		})
	}
}

func TestNew(t *testing.T) {
	for _, ok := range []string{
		"https://provider.example", "https://provider.example:8443/client-api/", "https://[2001:db8::1]/",
		"http://127.0.0.1:1/client-api/", "http://127.9.9.9", "http://[::1]:1", "http://localhost:1",
	} {
		c, err := payone.New(ok, nil)
		if err != nil {
			t.Errorf("%s: %v", ok, err)
			continue
		}
		c.Close()
	}
	for _, bad := range []string{
		"", "provider.example", "https://", "https:provider.example", "https:///path", "https://:443", "ftp://127.0.0.1",
		"http://provider.example", "http://10.0.0.1", "http://localhost.example", "http://127.0.0.1.example", "http://[::]",
		"https://user@provider.example", "https://:s3cr3t@provider.example", "https://provider.example/?key=s3cr3t",
		"https://provider.example/?", "https://provider.example/#s3cr3t", "https://s3cr3t.example:port", "https://%s3cr3t",
		" https://provider.example", "https://provider.example/\x00",
	} {
		_, err := payone.New(bad, nil)
		if err == nil {
			t.Errorf("%q is accepted", bad)
			continue
		}
		vaulttest.AssertNoLeak(t, []string{"s3cr3t"}, err)
	}
}

// Requests that cannot be sent are refused.
func TestRefused(t *testing.T) {
	s := open(t, false, payonetest.NewHandler(simnet.PortalKey, newSimulator(t).PPAN()), payone.Options{})
	live, empty, noAccount := request(plainHash), request(plainHash), request(plainHash)
	live.Sandbox = false
	empty.PAN = card.PAN{}
	noAccount.Account = ppan.Account{AID: strings.Repeat("1", 256), Hash: ppan.NewHash([]byte("\n"))}
	for name, r := range map[string]*ppan.Request{"live without TLS": live, "no card": empty, "no account": noAccount} {
		_, err := s.ObtainPPAN(t.Context(), r)
		if err == nil || (strings.Count(err.Error(), "Account.") == 4) != (r == noAccount) {
			t.Errorf("%s: %v", name, err)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.ObtainPPAN(ended, request(plainHash)); !errors.Is(err, context.Canceled) {
		t.Errorf("ObtainPPAN = %v", err)
	}
	s.Client.Close()
	if _, err := s.ask(t); err == nil {
		t.Error("a closed client works")
	}
	if n := s.Requests(); n != 0 {
		t.Errorf("%d requests have arrived", n)
	}
}

// proxy is an http proxy that counts its tunnels.
func proxy(t *testing.T, tunnels *atomic.Int64) *httptest.Server {
	p := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, password, _ := basic(r.Header.Get("Proxy-Authorization")); r.Method != http.MethodConnect || user != "user" || password != "s3cr3t" {
			w.WriteHeader(http.StatusProxyAuthRequired)
			return
		}
		tunnels.Add(1)
		to, err := net.Dial("tcp", r.Host)
		if err != nil {
			t.Error(err)
			return
		}
		defer to.Close()
		from, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer from.Close()
		if _, err := io.WriteString(from, "HTTP/1.1 200 Connection established\r\n\r\n"); err != nil {
			t.Error(err)
		}
		var seen bytes.Buffer
		go func() {
			_, _ = io.Copy(from, to)
			_ = from.Close()
		}()
		_, _ = io.Copy(io.MultiWriter(to, &seen), from)
		vaulttest.AssertNoLeak(t, secrets, seen.Bytes())
	}))
	t.Cleanup(p.Close)
	return p
}

func basic(header string) (user, password string, ok bool) {
	return (&http.Request{Header: http.Header{"Authorization": {header}}}).BasicAuth()
}

func TestProxy(t *testing.T) {
	var tunnels atomic.Int64
	p := proxy(t, &tunnels)
	at := strings.Replace(p.URL, "http://", "http://user:s3cr3t@", 1)
	for _, c := range []struct {
		name, proxy, want string
		tunnels           int64
	}{
		{"one", at, "", 1},
		{"none", "", "", 0},
		{"refuses", p.URL, "payone: proxy: it answers with status 407", 0},
		{"another kind", "socks5://user:s3cr3t@127.0.0.1", "payone: proxy: must be http", 0},
		{"no proxy", "http://user:s3cr3t@127.0.0.1:1", "payone: dial: ", 0},
		{"fails", "fails", "payone: proxy: fails", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			tunnels.Store(0)
			s := open(t, true, payonetest.NewHandler(simnet.PortalKey, newSimulator(t).PPAN()), payone.Options{
				Proxy: func(r *http.Request) (*url.URL, error) {
					if r.URL.Path != "/client-api/" || r.Body != nil {
						t.Errorf("the proxy is asked for %v", r.URL)
					}
					switch c.proxy {
					case "":
						return nil, nil
					case "fails":
						return nil, errors.New("fails")
					}
					return url.Parse(c.proxy)
				},
			})
			if c.want == "" {
				s.works(t)
				s.works(t)
			} else if _, err := s.ask(t); err == nil || !strings.HasPrefix(err.Error(), c.want) {
				t.Errorf("ObtainPPAN = %v", err)
			} else {
				vaulttest.AssertNoLeak(t, append([]string{"s3cr3t"}, secrets...), err)
			}
			if n := tunnels.Load(); n != c.tunnels {
				t.Errorf("%d tunnels", n)
			}
		})
	}
}

// A TLS configuration belongs to the caller: it is copied, and HTTP/2 in it is ignored.
func TestTLSOption(t *testing.T) {
	s := open(t, true, payonetest.NewHandler(simnet.PortalKey, newSimulator(t).PPAN()), payone.Options{})
	config := s.server.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
	config.NextProtos = []string{"h2"}
	config.ServerName = "example.com" // the name in the certificate of httptest
	s.server.TLS.NextProtos = []string{"h2", "http/1.1"}
	client, err := payone.New(s.server.URL, &payone.Options{TLS: config})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	config.RootCAs, config.ServerName = nil, "elsewhere"
	if _, err := client.ObtainPPAN(t.Context(), request(plainHash)); err != nil {
		t.Error(err)
	}
	config = &tls.Config{RootCAs: s.server.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs, ServerName: "elsewhere"}
	wrong, err := payone.New(s.server.URL, &payone.Options{TLS: config})
	if err != nil {
		t.Fatal(err)
	}
	defer wrong.Close()
	if _, err := wrong.ObtainPPAN(t.Context(), request(plainHash)); err == nil || !strings.HasPrefix(err.Error(), "payone: TLS: ") {
		t.Errorf("ObtainPPAN = %v", err)
	}
}
