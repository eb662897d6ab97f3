package forward_test

import (
	"bytes"
	"compress/gzip"
	"crypto/x509"
	"errors"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/forward"
	"github.com/cardvault/cardvault/internal/goroutines"
	"github.com/cardvault/cardvault/invalid"
	"github.com/cardvault/cardvault/vaulttest"
	"github.com/google/uuid"
)

// A forwarder that heeded these would reach nothing at all.
func TestMain(m *testing.M) {
	for _, name := range []string{"HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY"} {
		if err := os.Setenv(name, "http://127.0.0.1:1"); err != nil {
			log.Fatal(err)
		}
	}
	if os.Getenv(childDir) != "" {
		os.Exit(child())
	}
	goroutines.Verify(m)
}

const (
	number = "4242424242424242"
	middle = "424242" + "424242" // a leak would have it
	code   = "739"
	holder = `Zoë "Z" <O'Neil> & %41 \u0041 &#65; {{ account_number }}`
)

// A lab is a vault with a card, and a provider over TLS that serve answers for.
type lab struct {
	*forward.Forwarder
	vault  *cardvault.Vault
	token  uuid.UUID
	server *httptest.Server
	log    *buffer

	requests    atomic.Int64
	connections atomic.Int64
}

// A buffer may be written to concurrently.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func testCard() cardvault.Card {
	return cardvault.Card{
		PAN:          card.NewPAN([]byte(number)),
		Expiry:       card.Expiry{Month: 4, Year: 2088},
		SecurityCode: card.NewSecurityCode([]byte(code)),
		Name:         card.NewName([]byte(holder)),
	}
}

// open returns a lab. change may be nil.
func open(t testing.TB, serve http.HandlerFunc, change func(*forward.Destination)) *lab {
	t.Helper()
	l := &lab{log: new(buffer)}
	l.vault = vaulttest.NewWith(t, &cardvault.Options{
		Mode:   cardvault.Sandbox,
		Logger: slog.New(slog.NewTextHandler(l.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
	l.token = l.add(t, l.vault)
	l.serve(t, serve)
	l.forwardTo(t, change)
	return l
}

func (l *lab) add(t testing.TB, v *cardvault.Vault) uuid.UUID {
	t.Helper()
	token, err := v.Import(t.Context(), testCard(), nil)
	if err != nil {
		t.Fatal(err)
	}
	return token.ID
}

func (l *lab) serve(t testing.TB, serve http.HandlerFunc) {
	t.Helper()
	l.server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		l.requests.Add(1)
		serve(w, r)
	}))
	l.server.Config.ErrorLog = log.New(io.Discard, "", 0)
	l.server.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			l.connections.Add(1)
		}
	}
	l.server.EnableHTTP2 = true
	l.server.StartTLS()
	t.Cleanup(l.server.Close)
}

func (l *lab) roots() *x509.CertPool {
	roots := x509.NewCertPool()
	roots.AddCert(l.server.Certificate())
	return roots
}

func (l *lab) forwardTo(t testing.TB, change func(*forward.Destination)) {
	t.Helper()
	d := forward.Destination{Name: "psp", URL: l.server.URL + "/v1/", Roots: l.roots()}
	if change != nil {
		change(&d)
	}
	var err error
	if l.Forwarder, err = forward.New(l.vault, []forward.Destination{d}, &forward.Options{AllowLoopback: true}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
}

const jsonType = "application/json"

// request returns a request with a body of a media type.
func (l *lab) request(contentType, body string) *forward.Request {
	return &forward.Request{
		Method: http.MethodPost,
		URL:    l.server.URL + "/v1/charges",
		Header: http.Header{"Content-Type": {contentType}},
		Body:   []byte(body),
	}
}

func (l *lab) do(t testing.TB, body string, opts *forward.CallOptions) (*forward.Answer, error) {
	t.Helper()
	return l.Do(t.Context(), l.token, l.request(jsonType, body), opts)
}

// charge is the body of a payment.
const charge = `{"number":"{{ account_number }}","month":"{{ expiry_month }}","year":"{{ expiry_year }}"}`

// echo answers with what it was sent.
func echo(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	w.Header().Set("Content-Type", r.Header.Get("Content-Type"))
	_, _ = w.Write(body)
}

// A capture keeps requests.
type capture struct {
	mu     sync.Mutex
	body   string
	header http.Header
	proto  string
	method string
	uri    string
	length int64
}

func (c *capture) serve(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.body, c.header, c.proto, c.method, c.uri, c.length = string(body), r.Header, r.Proto, r.Method, r.RequestURI, r.ContentLength
	w.Header().Set("Content-Type", jsonType)
	_, _ = io.WriteString(w, `{"ok":true}`)
}

func (c *capture) got() *capture {
	c.mu.Lock()
	defer c.mu.Unlock()
	return &capture{body: c.body, header: c.header, proto: c.proto, method: c.method, uri: c.uri, length: c.length}
}

// code of the only field error.
func codeOf(t testing.TB, err error, field string) invalid.Code {
	t.Helper()
	all := cardvault.FieldErrors(err)
	if len(all) != 1 || all[0].Field != field {
		t.Errorf("errors are %v, not one of %s", err, field)
		return ""
	}
	return all[0].Code
}

func compressed(text string) string {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, _ = io.WriteString(w, text)
	_ = w.Close()
	return b.String()
}

func is(err error, targets ...error) bool {
	for _, target := range targets {
		if !errors.Is(err, target) {
			return false
		}
	}
	return true
}
