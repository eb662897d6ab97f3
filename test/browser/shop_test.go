package browser_test

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/httpapi"
	"github.com/cardvault/cardvault/simnet"
	"github.com/cardvault/cardvault/store/memstore"
	"github.com/cardvault/cardvault/vaulttest"
	"github.com/google/uuid"
)

// A rig is a vault with the REST API, and shops around it.
type rig struct {
	t     testing.TB
	vault *cardvault.Vault
	wire  *wire
	base  string // of the REST API

	handler http.Handler // the REST API

	home     *shop // on the vault's own origin
	other    *shop // another origin on the vault's site: the frame is in the page's process
	abroad   *shop // another site: the frame is in a process of its own
	stranger *shop // on the vault's site, and not allowed

	origins []string // the account's own origins; both if nil
}

// shared is the vault of most tests, each with an account of its own: making a key for
// sessions takes as long as a test. The vault ends with the process.
var shared = sync.OnceValues(func() (*cardvault.Vault, error) {
	secret := make([]byte, cardvault.KeySize)
	rand.Read(secret)
	keys, err := cardvault.KeyBytes(secret)
	if err != nil {
		return nil, err
	}
	sim, err := simnet.New(context.Background(), memstore.New(), nil)
	if err != nil {
		return nil, err
	}
	return cardvault.New(context.Background(), memstore.New(), keys, &cardvault.Options{Mode: cardvault.Sandbox, Network: sim})
})

// newRig returns a rig. If options are not nil, its vault is a sandbox of its own.
func newRig(t testing.TB, opts *cardvault.Options) *rig {
	t.Helper()
	r := &rig{t: t, wire: &wire{arrived: make(chan struct{})}}
	if opts != nil {
		opts.Mode = cardvault.Sandbox
		r.vault = vaulttest.NewWith(t, opts)
	} else {
		v, err := shared()
		if err != nil {
			t.Fatal(err)
		}
		account, err := v.CreateAccount(t.Context(), t.Name(), nil)
		if err != nil {
			t.Fatal(err)
		}
		r.vault = v.In(account.ID)
	}
	r.home, r.other, r.abroad, r.stranger = r.newShop("127.0.0.1"), r.newShop("127.0.0.1"), r.newShop("localhost"), r.newShop("127.0.0.1")
	r.base = r.home.origin + "/vault"
	var err error
	all := []string{r.other.origin, r.abroad.origin}
	r.handler, err = httpapi.NewHandler(r.vault, &httpapi.Options{AllowedOrigins: all, AccountOrigins: func(uuid.UUID) []string {
		if r.origins != nil {
			return r.origins
		}
		return all
	}})
	if err != nil {
		t.Fatal(err)
	}
	r.home.mux.Handle("/vault/", http.StripPrefix("/vault", r.wire.to(r.handler)))
	return r
}

// newSession makes a session in which a card becomes a token.
func (r *rig) newSession() string {
	r.t.Helper()
	id, err := r.vault.CreateSession(r.t.Context(), nil)
	if err != nil {
		r.t.Fatal(err)
	}
	return id.ID.UUID().String()
}

// token returns a token whose id the browser received.
func (r *rig) token(id string) *cardvault.Token {
	r.t.Helper()
	token, err := r.vault.Get(r.t.Context(), uuid.MustParse(id))
	if err != nil {
		r.t.Fatal(err)
	}
	return token
}

// tokens returns the number of tokens.
func (r *rig) tokens() int64 {
	r.t.Helper()
	p, err := r.vault.List(r.t.Context(), nil)
	if err != nil {
		r.t.Fatal(err)
	}
	return p.TotalItems
}

// hasCode reports whether the vault has the security code of a token.
func (r *rig) hasCode(id string) bool {
	r.t.Helper()
	status, err := r.vault.SecurityCodeStatus(r.t.Context(), uuid.MustParse(id))
	if err != nil {
		r.t.Fatal(err)
	}
	return status.Available
}

// A shop serves pages with the component.
type shop struct {
	rig    *rig
	origin string
	mux    *http.ServeMux

	mu    sync.Mutex
	pages []visit
}

//go:embed testdata/shop.html
var shopPage string

//go:embed testdata/shop.js
var shopScript string

//go:embed testdata/shop.css
var shopStyle string

//go:embed testdata/neighbour.js
var neighbourScript string

//go:embed testdata/thief.js
var thiefScript string

// The page of the strictest possible shop: its policy names everything that the component
// needs.
var (
	shopTemplate = template.Must(template.New("shop").Parse(shopPage))
	shopPolicy   = "default-src 'none'; script-src 'self' %[1]s; frame-src 'self' %[2]s; style-src 'self'; img-src data:; " +
		"base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)

func (r *rig) newShop(host string) *shop {
	r.t.Helper()
	mux := http.NewServeMux()
	server := httptest.NewServer(r.wire.record(mux))
	r.t.Cleanup(server.Close)
	_, port, err := net.SplitHostPort(server.Listener.Addr().String())
	if err != nil {
		r.t.Fatal(err)
	}
	s := &shop{rig: r, origin: "http://" + net.JoinHostPort(host, port), mux: mux}
	mux.HandleFunc("GET /{page}", s.servePage)
	for path, file := range map[string]string{
		"/shop.js": shopScript, "/shop.css": shopStyle, "/neighbour.js": neighbourScript, "/thief.js": thiefScript,
		"/neighbour": `<!doctype html><html lang="en"><title>Neighbour</title><script src="/neighbour.js"></script>`,
		"/thief":     `<!doctype html><html lang="en"><title>Thief</title><script src="/thief.js"></script>`,
		"/bank":      `<!doctype html><html lang="en"><title>Bank</title><p>Is it you?`,
	} {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, req *http.Request) {
			if !strings.Contains(path, ".") {
				w.Header().Set("Content-Type", "text/html; charset=utf-8")
			}
			http.ServeContent(w, req, path, time.Time{}, strings.NewReader(file))
		})
	}
	// A copy of the script, which must be given the vault's address.
	mux.HandleFunc("GET /card-entry.js", func(w http.ResponseWriter, req *http.Request) {
		req.URL.Path = "/sdk/v1/card-entry.js"
		r.handler.ServeHTTP(w, req)
	})
	return s
}

// page returns the URL of a new page. The URL does not contain the session.
func (s *shop) page(v visit) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pages = append(s.pages, v)
	return fmt.Sprintf("%s/page%d", s.origin, len(s.pages))
}

func (s *shop) servePage(w http.ResponseWriter, req *http.Request) {
	var n int
	_, err := fmt.Sscanf(req.PathValue("page"), "page%d", &n)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil || n < 1 || n > len(s.pages) {
		http.NotFound(w, req)
		return
	}
	v := s.pages[n-1]
	if v.html == "" {
		v.html = `lang="en"`
	}
	script := s.rig.base + "/sdk/v1/card-entry.js"
	if v.copied {
		script = "/card-entry.js"
		v.attributes += fmt.Sprintf(` base-url=%q`, cmp.Or(v.base, s.rig.base))
	}
	var b bytes.Buffer
	err = shopTemplate.Execute(&b, map[string]any{
		"HTML": template.HTMLAttr(v.html), "Script": script, "Neighbour": v.neighbour, "Session": v.session, "Attributes": template.HTMLAttr(v.attributes),
	})
	if err != nil {
		panic(err)
	}
	w.Header().Set("Content-Security-Policy", fmt.Sprintf(shopPolicy, s.rig.home.origin, s.rig.home.origin+" "+s.rig.abroad.origin))
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	if v.isolated {
		w.Header().Set("Cross-Origin-Opener-Policy", "same-origin")
		w.Header().Set("Cross-Origin-Embedder-Policy", "require-corp")
	}
	_, _ = w.Write(b.Bytes()) // the browser has gone away
}

// A wire records a browser's requests to the servers of a rig, and can be tampered with.
type wire struct {
	mu       sync.Mutex
	requests []request
	arrived  chan struct{} // closed by the next request
	tamper   tamper
}

type request struct {
	method, url string
	header      http.Header
	body        string
}

// A tamper answers instead of the vault, which it may call.
type tamper func(w http.ResponseWriter, r *http.Request, vault http.Handler)

// record records the requests to a server.
func (w *wire) record(h http.Handler) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(rw, r.Body, 1<<20))
		if err != nil {
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		w.mu.Lock()
		w.requests = append(w.requests, request{r.Method, "http://" + r.Host + r.RequestURI, r.Header.Clone(), string(body)})
		close(w.arrived)
		w.arrived = make(chan struct{})
		w.mu.Unlock()
		h.ServeHTTP(rw, r)
	})
}

// to uses tamper, if set, to answer.
func (w *wire) to(vault http.Handler) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		w.mu.Lock()
		tamper := w.tamper
		w.mu.Unlock()
		if tamper == nil {
			vault.ServeHTTP(rw, r)
			return
		}
		tamper(rw, r, vault)
	})
}

// set sets the tamper for the vault's calls from now on. nil ends tampering.
func (w *wire) set(t tamper) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.tamper = t
}

// only tampers with one method of the sessions: GET reads, POST completes.
func only(method string, t tamper) tamper {
	return func(w http.ResponseWriter, r *http.Request, vault http.Handler) {
		if r.Method == method && strings.HasPrefix(r.URL.Path, "/sessions/") {
			t(w, r, vault)
			return
		}
		vault.ServeHTTP(w, r)
	}
}

// cut ends the connection without an answer.
func cut(http.ResponseWriter, *http.Request, http.Handler) { panic(http.ErrAbortHandler) }

// hold calls the vault on release, unless the browser gives up before.
func hold(release <-chan struct{}) tamper {
	return func(w http.ResponseWriter, r *http.Request, vault http.Handler) {
		select {
		case <-release:
			vault.ServeHTTP(w, r)
		case <-r.Context().Done():
		}
	}
}

// say answers in JSON. header may hold pairs of names and values.
func say(status int, body string, header ...string) tamper {
	return func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "no-store")
		for pair := range slices.Chunk(header, 2) {
			w.Header().Set(pair[0], pair[1])
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body) // the browser has gone away
	}
}

// seen returns the requests of a method, "" for any, whose URLs contain a text.
func (w *wire) seen(method, text string) (found []request) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range w.requests {
		if (method == "" || r.method == method) && strings.Contains(r.url, text) {
			found = append(found, r)
		}
	}
	return found
}

// await waits until n requests of a method have been made whose URLs contain a text.
func (w *wire) await(t testing.TB, n int, method, text string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		w.mu.Lock()
		arrived := w.arrived
		w.mu.Unlock()
		if len(w.seen(method, text)) >= n {
			return
		}
		select {
		case <-arrived:
		case <-ctx.Done():
			t.Fatalf("%d requests %s …%s…, not %d", len(w.seen(method, text)), method, text, n)
		}
	}
}
