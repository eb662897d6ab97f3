package httpapi_test

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/httpapi"
	"github.com/cardvault/cardvault/internal/goroutines"
	"github.com/cardvault/cardvault/internal/transcript"
	"github.com/cardvault/cardvault/network"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/memstore"
	"github.com/google/uuid"
)

func TestMain(m *testing.M) { goroutines.Verify(m) }

const (
	pan      = "4242424242424242"
	cardBody = `{"account_number":"` + pan + `","expiry_month":4,"expiry_year":2031}`
)

// A rig is a sandbox vault in memory with the REST API on it.
type rig struct {
	vault   *cardvault.Vault
	store   *faultyStore
	opts    cardvault.Options
	handler http.Handler
	log     *logBuffer

	key       string            // text of an API key of the default account, with every scope
	principal *cardvault.APIKey // that key
}

// newRig returns a rig. Both options may be nil; a missing Logger is the rig's.
func newRig(t testing.TB, opts *cardvault.Options, http *httpapi.Options) *rig {
	t.Helper()
	r := &rig{store: &faultyStore{Store: memstore.New()}, log: new(logBuffer)}
	if opts != nil {
		r.opts = *opts
	}
	r.opts.Mode = cardvault.Sandbox
	logger := slog.New(slog.NewTextHandler(r.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	if r.opts.Logger == nil {
		r.opts.Logger = logger
	}
	r.vault = r.open(t)
	r.principal, r.key = r.newKey(t, r.vault, 0, cardvault.AllScopes()...)
	o := httpapi.Options{}
	if http != nil {
		o = *http
	}
	if o.Logger == nil {
		o.Logger = logger
	}
	r.handler = newHandler(t, r.vault, &o)
	return r
}

// open opens one more vault on the rig's store.
func (r *rig) open(t testing.TB) *cardvault.Vault {
	t.Helper()
	return openVault(t, r.store, &r.opts)
}

func openVault(t testing.TB, s store.Store, opts *cardvault.Options) *cardvault.Vault {
	t.Helper()
	keys, err := cardvault.KeyBytes(bytes.Repeat([]byte{7}, cardvault.KeySize))
	if err != nil {
		t.Fatal(err)
	}
	v, err := cardvault.New(t.Context(), s, keys, opts)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func newHandler(t testing.TB, v *cardvault.Vault, opts *httpapi.Options) http.Handler {
	t.Helper()
	h, err := httpapi.NewHandler(v, opts)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// newKey makes an API key of v's account. A ttl of 0 means no expiry.
func (r *rig) newKey(t testing.TB, v *cardvault.Vault, ttl time.Duration, scopes ...cardvault.Scope) (*cardvault.APIKey, string) {
	t.Helper()
	k, err := v.CreateAPIKey(t.Context(), "test", scopes, &cardvault.APIKeyOptions{TTL: ttl})
	if err != nil {
		t.Fatal(err)
	}
	return k, k.Text.Text()
}

// A madeKey is an API key with its text.
type madeKey struct {
	*cardvault.APIKey
	text string
}

// newKeyBelow makes an API key of v's account with a creator.
func (r *rig) newKeyBelow(t testing.TB, v *cardvault.Vault, by uuid.UUID, scopes ...cardvault.Scope) madeKey {
	t.Helper()
	k, err := v.CreateAPIKey(t.Context(), "test", scopes, &cardvault.APIKeyOptions{Creator: by})
	if err != nil {
		t.Fatal(err)
	}
	return madeKey{k, k.Text.Text()}
}

// newAccount makes an account and returns the vault in it.
func (r *rig) newAccount(t testing.TB, opts *cardvault.AccountOptions) *cardvault.Vault {
	t.Helper()
	a, err := r.vault.CreateAccount(t.Context(), "", opts)
	if err != nil {
		t.Fatal(err)
	}
	return r.vault.In(a.ID)
}

// do sends a request with the rig's key to its handler. Headers are names and
// values in turn.
func (r *rig) do(t testing.TB, method, target, body string, headers ...string) *answer {
	t.Helper()
	return send(t, r.handler, method, target, body, append([]string{"X-Api-Key", r.key}, headers...)...)
}

// importCard imports a card through the handler and returns the token's id.
func (r *rig) importCard(t testing.TB) string {
	t.Helper()
	a := r.do(t, "POST", "/cde-import", cardBody)
	a.want(t, 200)
	return a.member(t, "id")
}

// send has h answer a request that was parsed from its wire form. A body has a Content-Type
// unless headers has one.
func send(t testing.TB, h http.Handler, method, target, body string, headers ...string) *answer {
	t.Helper()
	return sendContext(t, t.Context(), h, method, target, body, headers...)
}

func sendContext(t testing.TB, ctx context.Context, h http.Handler, method, target, body string, headers ...string) *answer {
	t.Helper()
	a := transcript.SendContext(t, ctx, h, method, target, body, headers...)
	return &answer{a.Status, a.Header, a.Body}
}

// An answer is a response of the handler.
type answer struct {
	status int
	header http.Header
	body   string
}

// want checks the status and, if given, the classifier.
func (a *answer) want(t testing.TB, status int, classifier ...string) {
	t.Helper()
	if a.status != status {
		t.Fatalf("status is %d, not %d: %s", a.status, status, a.body)
	}
	if len(classifier) > 0 && a.member(t, "classifier") != classifier[0] {
		t.Fatalf("classifier is not %s: %s", classifier[0], a.body)
	}
}

// member returns a string member of the body.
func (a *answer) member(t testing.TB, name string) string {
	t.Helper()
	s, ok := a.object(t)[name].(string)
	if !ok {
		t.Fatalf("%s is not a string in %s", name, a.body)
	}
	return s
}

func (a *answer) object(t testing.TB) map[string]any {
	t.Helper()
	var m map[string]any
	if err := json.Unmarshal([]byte(a.body), &m); err != nil {
		t.Fatalf("body %q: %v", a.body, err)
	}
	return m
}

// A faultyStore fails while an error is set.
type faultyStore struct {
	store.Store
	view, update atomic.Pointer[error]
	written      atomic.Bool // a failing Update writes all the same
}

func (s *faultyStore) View(ctx context.Context, fn func(store.ReadTx) error) error {
	if err := s.view.Load(); err != nil {
		return *err
	}
	return s.Store.View(ctx, fn)
}

func (s *faultyStore) Update(ctx context.Context, fn func(store.Tx) error) error {
	err := s.update.Load()
	if err == nil {
		return s.Store.Update(ctx, fn)
	}
	if s.written.Load() {
		if err := s.Store.Update(ctx, fn); err != nil {
			return err
		}
	}
	return *err
}

// A logBuffer is a log that may be read while it is written.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

// take returns the logged text and clears it.
func (l *logBuffer) take() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.b.Reset()
	return l.b.String()
}

// inBubble is [transcript.InBubble].
func inBubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	transcript.InBubble(t, f)
}

// checkCommon checks the headers that every answer has, and the headers of its body if it
// has one.
func checkCommon(t testing.TB, method string, a *answer) {
	t.Helper()
	transcript.CheckCommon(t, method, a.transcript())
}

// extraHeaders returns the headers beyond the common ones, sorted.
func extraHeaders(a *answer) []string { return transcript.ExtraHeaders(a.transcript()) }

func (a *answer) transcript() *transcript.Answer {
	return &transcript.Answer{Status: a.status, Header: a.header, Body: a.body}
}

// An authenticator is an httpapi.Authenticator that looks at the header x-api-key.
type authenticator func(ctx context.Context, key string) (*httpapi.Principal, error)

func (f authenticator) Authenticate(r *http.Request) (*httpapi.Principal, error) {
	keys := r.Header["X-Api-Key"]
	if len(keys) != 1 || keys[0] == "" {
		return nil, cardvault.ErrUnauthenticated
	}
	return f(r.Context(), keys[0])
}

// A binProvider is a network.BINProvider.
type binProvider func(context.Context, *network.BINRequest) (*network.BIN, error)

func (f binProvider) LookupBIN(ctx context.Context, r *network.BINRequest) (*network.BIN, error) {
	return f(ctx, r)
}

func pointer[T any](v T) *T { return &v }

func parseUUID(t testing.TB, s string) uuid.UUID {
	t.Helper()
	id, err := uuid.Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// total returns the number of tokens in the rig's account.
func (r *rig) total(t testing.TB) int64 {
	t.Helper()
	p, err := r.vault.List(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	return p.TotalItems
}
