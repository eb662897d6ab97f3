package transcript

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/forward"
	"github.com/cardvault/cardvault/httpapi"
	"github.com/cardvault/cardvault/ppan"
	"github.com/cardvault/cardvault/simnet"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/memstore"
	"github.com/google/uuid"
)

// A Setup is on what a transcript is played.
type Setup struct {
	// Stores has one store for each replica. All see the same records, and are empty.
	Stores []store.Store

	// Codes serves all replicas. A lone replica may have nil, for its own.
	Codes store.CodeCache

	// Front returns what takes requests for replicas of a handler. If nil, there is
	// one replica.
	Front func(t testing.TB, replicas []http.Handler) http.Handler

	// Rest, if not 0, is the pause of background work during a longer wait: constant
	// polling takes too long on a real server.
	Rest time.Duration

	// Sender delivers to webhooks. If nil, [Sender].
	Sender cardvault.Sender

	// ClientAddr goes to the replicas: see [httpapi.Options].
	ClientAddr func(*http.Request) netip.Addr

	// OmitAbsent goes to the replicas. Answers are expected without members that are null.
	OmitAbsent bool

	// IgnoreUnknown goes to the replicas. Every request receives an unknown parameter and,
	// if its body is an object, an unknown member. Requests that expect a refusal for one
	// are left out.
	IgnoreUnknown bool
}

const number = "4242424242424242"

// A world is what a transcript is played in.
type world struct {
	setup    *Setup
	log      *log
	opts     cardvault.Options
	vaults   []*cardvault.Vault
	handlers map[string]http.Handler // by the name in @on
	values   map[string]string       // of placeholders
	sim      *simnet.Network         // once there is a network
	running  []*running

	psp        *psp
	other      uuid.UUID // an account that may forward where {key} may not
	forwarders []*forward.Forwarder
}

func newWorld(t *testing.T, s *Setup, provider *psp) *world {
	w := &world{setup: s, log: new(log), psp: provider}
	w.opts = cardvault.Options{
		Mode:     cardvault.Sandbox,
		PPAN:     Provider{},
		Webhooks: Sender{},
		Codes:    s.Codes,
		Logger:   slog.New(slog.NewTextHandler(w.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}

	if s.Sender != nil {
		w.opts.Webhooks = s.Sender
	}
	w.vaults = w.open(t, s.Stores, &w.opts)
	v := w.vaults[0]
	all := cardvault.AllScopes()
	if _, err := v.UpdateAccount(t.Context(), cardvault.AccountUpdate{ProviderAccounts: []cardvault.ProviderAccount{
		{AID: PPANHeaders[1], MID: PPANHeaders[5], PortalID: PPANHeaders[7]},
		{AID: "1", MID: "~", PortalID: "x y"},
	}}); err != nil {
		t.Fatal(err)
	}

	principal, key := newKey(t, v, 0, all...)
	other, unapproved := newAccount(t, v, nil), newAccount(t, v, &cardvault.AccountOptions{ImportApproved: new(false), NetworkTokensActive: new(false)})
	text := func(v *cardvault.Vault, ttl time.Duration, scopes ...cardvault.Scope) string {
		_, text := newKey(t, v, ttl, scopes...)
		return text
	}

	revoked, revokedText := newKey(t, v, 0, all...)
	if err := v.DeleteAPIKey(t.Context(), revoked.ID); err != nil {
		t.Fatal(err)
	}

	w.values = map[string]string{
		"key":        key,
		"keyid":      principal.ID.String(),
		"other":      text(other, 0, all...),      // a key of another account
		"unapproved": text(unapproved, 0, all...), // an account that may not import
		"unscoped":   text(v, 0, cardvault.ScopeWebhooksRead),
		"forwarder":  text(newAccount(t, v, nil), 0, cardvault.ScopeForwardCreate),
		"lister":     text(v, 0, cardvault.ScopeAPIKeysRead),
		"maker":      text(v, 0, cardvault.ScopeAPIKeysWrite, cardvault.ScopeTokensRead),
		"revoked":    revokedText,
		"expired":    text(v, time.Second, all...),
		"malformed":  "vk_test_no",
		"unknown":    text(w.open(t, []store.Store{memstore.New()}, &cardvault.Options{Mode: cardvault.Sandbox})[0], 0, all...),
		"nobody":     uuid.NewString(),
	}

	foreign, err := other.Import(t.Context(), cardvault.Card{
		PAN:    card.NewPAN([]byte(number)),
		Expiry: card.Expiry{Month: 4, Year: 2031},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}

	w.values["foreign"] = foreign.ID.String() // a token of another account
	w.values["psp"], w.values["gone"], w.values["silent"], w.values["deaf"] = provider.URL, provider.gone, silent, deaf
	account, err := other.Account(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	w.other = account.ID
	w.values["merchant"] = primaryMerchant(t, v).ID.String()
	w.values["foreigner"] = primaryMerchant(t, other).ID.String() // a merchant of another account
	<-time.After(2 * time.Second)

	w.handlers = w.replicas(t)
	return w
}

// replicas returns handlers of all sorts, by the names that @on uses.
func (w *world) replicas(t *testing.T) map[string]http.Handler {
	disabled := w.opts
	disabled.PPAN, disabled.Webhooks, disabled.Audit = nil, nil, nil
	closed := w.open(t, w.setup.Stores, &w.opts)

	var failing []*failingStore
	var failingStores []store.Store
	for i, v := range closed {
		if err := v.Close(); err != nil {
			t.Fatal(err)
		}
		failing = append(failing, &failingStore{Store: w.setup.Stores[i]})
		failingStores = append(failingStores, failing[i])
	}

	failingVaults := w.open(t, failingStores, &w.opts)
	for _, s := range failing {
		s.fails.Store(true)
	}

	return map[string]http.Handler{
		"":         w.serve(t, w.vaults, httpapi.Options{}),
		"closed":   w.serve(t, closed, httpapi.Options{}),
		"disabled": w.serve(t, w.open(t, w.setup.Stores, &disabled), httpapi.Options{}), // it has no provider, no sender, no forwarder and no audit log
		"failing":  w.serve(t, failingVaults, httpapi.Options{}),                        // its store is unavailable
		"shop":     w.serve(t, w.vaults, httpapi.Options{AllowedOrigins: []string{"https://shop.example"}}),
		// {key} has just made its one request in ten seconds to each replica, and one DELETE
		// of an API key.
		"limited": w.serve(t, w.vaults, httpapi.Options{RateLimit: httpapi.RateLimit{PerSecond: 0.1}}),
	}
}

// open opens a vault on each store.
func (w *world) open(t *testing.T, stores []store.Store, opts *cardvault.Options) (vaults []*cardvault.Vault) {
	t.Helper()
	for _, s := range stores {
		keys, err := cardvault.KeyBytes(bytes.Repeat([]byte{7}, cardvault.KeySize))
		if err != nil {
			t.Fatal(err)
		}
		v, err := cardvault.New(t.Context(), s, keys, opts)
		if err != nil {
			t.Fatal(err)
		}
		vaults = append(vaults, v)
	}
	return vaults
}

// serve returns what serves vaults.
func (w *world) serve(t *testing.T, vaults []*cardvault.Vault, opts httpapi.Options) http.Handler {
	t.Helper()
	opts.Logger, opts.ClientAddr = w.opts.Logger, w.setup.ClientAddr
	opts.OmitAbsent, opts.IgnoreUnknown = w.setup.OmitAbsent, w.setup.IgnoreUnknown
	var replicas []http.Handler
	for _, v := range vaults {
		if v.PPANEnabled() {
			opts.Forward = w.psp.forwarder(t, v, w.other)
			w.forwarders = append(w.forwarders, opts.Forward)
		}
		h, err := httpapi.NewHandler(v, &opts)
		if err != nil {
			t.Fatal(err)
		}
		replicas = append(replicas, h)
	}
	if w.setup.Front == nil {
		return replicas[0]
	}
	return w.setup.Front(t, replicas)
}

// addAudit opens the vaults anew, with an audit log.
func (w *world) addAudit(t *testing.T) {
	w.opts.Audit = &cardvault.AuditOptions{}
	w.vaults = w.open(t, w.setup.Stores, &w.opts)
	w.handlers = w.replicas(t)
}

// addNetwork adds the handler "network": vaults on the same stores whose network
// and idv.Provider are the simulator, and which do their background work. If they update, it is
// their account updater too.
func (w *world) addNetwork(t *testing.T, update bool) {
	sim, err := simnet.New(t.Context(), memstore.New(), &simnet.Options{ChallengeURL: "https://issuer.example/"})
	if err != nil {
		t.Fatal(err)
	}

	w.sim = sim
	opts := w.opts
	opts.Network, opts.IDV, opts.BaseURL = sim, sim.IDV(), "https://vault.example"
	if update {
		opts.Updater, opts.UpdaterPeriod = sim.Updater(), time.Hour
	}
	vaults := w.open(t, w.setup.Stores, &opts)
	t.Cleanup(func() {
		if err := sim.Close(); err != nil {
			t.Error(err)
		}
	})

	w.run(t, vaults)
	w.handlers["network"] = w.serve(t, vaults, httpapi.Options{})
	v := vaults[0]
	second, err := v.CreateMerchant(t.Context(), "second", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := v.RotatePaymentSecret(t.Context(), primaryMerchant(t, v).ID, nil); err != nil {
		t.Fatal(err)
	}

	w.values["secretless"] = second.ID.String() // a merchant without a shared secret
	session, err := w.vaults[0].CreateSession(t.Context(), &cardvault.SessionOptions{TokenTTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}

	ephemeral, err := w.vaults[0].Tokenize(t.Context(), session.ID, cardvault.Card{
		PAN: card.NewPAN([]byte(number)), Expiry: card.Expiry{Month: 4, Year: 2031},
	})
	if err != nil {
		t.Fatal(err)
	}

	w.values["ephemeral"] = ephemeral.ID.String() // a token that lapses in an hour
}

// damage changes a bit of the token that was made last.
func (w *world) damage(t *testing.T) {
	const kindToken = 5 // of package cardvault
	err := w.setup.Stores[0].Update(t.Context(), func(tx store.Tx) error {
		tokens, err := tx.Scan(kindToken, uuid.Nil, 100)
		if err != nil || len(tokens) == 0 {
			return errors.Join(err, errors.New("there is no token to damage"))
		}
		last := tokens[len(tokens)-1]
		last.Version++
		last.Shown[len(last.Shown)-1] ^= 1
		tx.Put(last)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// A running vault does its background work.
type running struct {
	vault *cardvault.Vault
	stop  context.CancelFunc
	done  chan error
}

// run has vaults do their background work until the test ends.
func (w *world) run(t *testing.T, vaults []*cardvault.Vault) {
	for _, v := range vaults {
		r := &running{vault: v}
		r.start(t)
		w.running = append(w.running, r)
		t.Cleanup(func() { r.rest(t) })
	}
}

func (r *running) start(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	r.stop, r.done = stop, make(chan error)
	go func() { r.done <- r.vault.Run(ctx) }()
}

func (r *running) rest(t *testing.T) {
	r.stop()
	if err := <-r.done; err != nil {
		t.Error(err)
	}
}

// wait waits.
func (w *world) wait(t *testing.T, d time.Duration) {
	if w.setup.Rest == 0 || d <= w.setup.Rest {
		<-time.After(d)
		return
	}

	<-time.After(time.Minute) // earlier requests are done first
	for _, r := range w.running {
		r.rest(t)
	}

	for d -= time.Minute; d > 0; d -= w.setup.Rest {
		<-time.After(min(d, w.setup.Rest))
		for _, r := range w.running {
			if err := r.vault.Drain(t.Context()); err != nil {
				t.Error(err)
			}
		}
	}

	for _, r := range w.running {
		r.start(t)
	}
}

func newKey(t *testing.T, v *cardvault.Vault, ttl time.Duration, scopes ...cardvault.Scope) (*cardvault.APIKey, string) {
	t.Helper()
	k, err := v.CreateAPIKey(t.Context(), "test", scopes, &cardvault.APIKeyOptions{TTL: ttl})
	if err != nil {
		t.Fatal(err)
	}
	return k, k.Text.Text()
}

func newAccount(t *testing.T, v *cardvault.Vault, opts *cardvault.AccountOptions) *cardvault.Vault {
	t.Helper()
	a, err := v.CreateAccount(t.Context(), "", opts)
	if err != nil {
		t.Fatal(err)
	}
	return v.In(a.ID)
}

func primaryMerchant(t *testing.T, v *cardvault.Vault) *cardvault.Merchant {
	t.Helper()
	m, err := v.PrimaryMerchant(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// A failingStore cannot be read once it fails.
type failingStore struct {
	store.Store
	fails atomic.Bool
}

func (s *failingStore) View(ctx context.Context, fn func(store.ReadTx) error) error {
	if s.fails.Load() {
		return store.ErrUnavailable
	}
	return s.Store.View(ctx, fn)
}

// A log may be read while it is written.
type log struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// PPANHeaders are headers of a request for a pseudo card number.
var PPANHeaders = []string{
	"X-Provider-Aid", "10002", "X-Provider-Hash", "b1946ac92492d2347c6235b8d2611184e591fd08c7a1f58b",
	"X-Provider-Mid", "10001", "X-Provider-Portalid", "2000002",
}

// A Provider is a ppan.Provider that answers by the scenario in the last
// digits of the card: 081 INVALID, 082 ERROR, anything else VALID.
type Provider struct{}

// Info implements [ppan.Provider].
func (Provider) Info() ppan.Info { return ppan.Info{Name: "transcript"} }

// ObtainPPAN implements [ppan.Provider].
func (Provider) ObtainPPAN(_ context.Context, r *ppan.Request) (*ppan.Answer, error) {
	var pan string
	r.PAN.Expose(func(digits []byte) { pan = string(digits) })
	switch pan[len(pan)-4 : len(pan)-1] {
	case "081":
		return &ppan.Answer{Status: ppan.Invalid, ErrorCode: "14", ErrorMessage: "Invalid card", CustomerMessage: "Please check your card."}, nil
	case "082":
		return &ppan.Answer{Status: ppan.Error, ErrorCode: "2006", ErrorMessage: "Hash incorrect", CustomerMessage: "An error occurred."}, nil
	}
	return &ppan.Answer{
		Status: ppan.Valid, PseudoPAN: ppan.NewPseudoPAN([]byte("9410010000038248746")), CardType: "V",
		TruncatedPAN: pan[:6] + "XXXXXX" + pan[12:],
		CardExpiry:   fmt.Sprintf("%02d%02d", r.Expiry.Year%100, r.Expiry.Month),
	}, nil
}

// A Sender is a cardvault.Sender to receivers whose URL controls their answer: its path is
// the status, /none means no answer, and ?after=250ms delays it.
type Sender struct{}

// Check implements [cardvault.Sender].
func (Sender) Check(t *cardvault.Target) error {
	u, err := url.Parse(t.URL)
	if err != nil || u.Scheme != "https" || u.Host == "" {
		return errors.New("must be https")
	}
	if u.User != nil || u.Fragment != "" {
		return errors.New("must have neither user nor fragment")
	}
	return nil
}

// Send implements [cardvault.Sender].
func (Sender) Send(ctx context.Context, d *cardvault.Delivery) (*cardvault.SendResult, error) {
	u, err := url.Parse(d.URL)
	if err != nil {
		return nil, err
	}
	if after := u.Query().Get("after"); after != "" {
		pause, err := time.ParseDuration(after)
		if err != nil {
			return nil, err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}

	status, err := strconv.Atoi(strings.Trim(u.Path, "/"))
	if err != nil {
		return nil, errors.New("no answer")
	}
	return &cardvault.SendResult{StatusCode: status}, nil
}
