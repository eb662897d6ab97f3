// Package sandbox is the common part of the sandbox programs. It has a vault's simulated
// network and payment provider, and accounts to try it. Its REST API comes with a page
// for people, and with controls for schemes and shoppers. It is not made to hold real
// cards.
package sandbox

import (
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/forward"
	"github.com/cardvault/cardvault/httpapi"
	"github.com/cardvault/cardvault/simnet"
	"github.com/cardvault/cardvault/webhook"
)

// NetworkTimeout leaves time for the slowest scenario that succeeds, 2 s, and fails the
// slower ones soon.
const NetworkTimeout = 3 * time.Second

// Shops are the origins at which examples/checkout runs.
const Shops = "http://127.0.0.1:8090,http://localhost:8090"

// Providers are the URLs to which examples/checkout has cards forwarded.
const Providers = "http://127.0.0.1:8090/psp/,http://localhost:8090/psp/"

// Challenges returns where the shoppers of a sandbox confirm identifications:
// [simnet.Options].ChallengeURL.
func Challenges(baseURL string) string { return baseURL + "/simulator/identifications/" }

// Options of a sandbox.
type Options struct {
	Network *simnet.Network // the caller closes it after the sandbox
	BaseURL string          // where clients reach it
	File    string          // of the credentials, which the page names; the checkpoints of the audit log are beside it
	Origins string          // whose pages may enter cards, with commas between them
	Forward string          // URLs on this machine to which cards may be forwarded, likewise

	SecurityCodeTTL time.Duration // of the vault; 0: its default
	SessionTTL      time.Duration // of the vault; 0: its default
	UpdaterPeriod   time.Duration // of the vault; 0: it has no account updater
	Replicas        int           // of the vault on its store; 0: one

	// ClientAddr finds the client behind a proxy. If nil, it is who is connected.
	ClientAddr func(*http.Request) netip.Addr

	Log *slog.Logger
}

// A Sandbox surrounds a vault. Replicas of the vault share one.
type Sandbox struct {
	opts     Options
	provider *provider
	sender   *webhook.Sender
	recent   *events
	kept     Checkpoints

	mu       sync.Mutex
	forwards []*forward.Forwarder // of the handlers
}

// New starts a payment provider on a port of its own.
func New(o Options) (*Sandbox, error) {
	kept := Checkpoints(filepath.Join(auditOf(o.File), "checkpoints"))
	if err := os.MkdirAll(string(kept), 0o700); err != nil {
		return nil, err
	}
	p, err := startProvider(o.Network, o.Log)
	if err != nil {
		return nil, err
	}
	return &Sandbox{opts: o, provider: p, sender: webhook.New(&webhook.Options{AllowPrivateTargets: true}), recent: new(events), kept: kept}, nil
}

// Close ends running calls to the payment provider and to webhooks.
func (s *Sandbox) Close() error {
	s.sender.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.forwards {
		f.Close()
	}
	return s.provider.Close()
}

// Vault returns the options of a vault in the sandbox.
func (s *Sandbox) Vault() *cardvault.Options {
	opts := &cardvault.Options{
		Mode:            cardvault.Sandbox,
		Network:         s.opts.Network,
		NetworkTimeout:  NetworkTimeout,
		PPAN:            s.provider,
		IDV:             s.opts.Network.IDV(),
		UpdaterPeriod:   s.opts.UpdaterPeriod,
		BaseURL:         s.opts.BaseURL,
		SecurityCodeTTL: s.opts.SecurityCodeTTL,
		SessionTTL:      s.opts.SessionTTL,
		Replicas:        s.opts.Replicas,
		Events:          s.recent,
		Webhooks:        s.sender,
		Purposes:        []string{reportPurpose},
		Audit:           &cardvault.AuditOptions{Sink: s.kept},
		Logger:          s.opts.Log,
	}

	if s.opts.UpdaterPeriod != 0 {
		opts.Updater = s.opts.Network.Updater()
	}
	return opts
}

// Handler returns the REST API of v with all that the sandbox has beside it. The
// page is for the first of the accounts, and stands behind cookies that are made under a
// key, which cannot be guessed and which all replicas share.
func (s *Sandbox) Handler(v *cardvault.Vault, accounts []Account, key string) (http.Handler, error) {
	log, control := s.opts.Log, s.opts.Network.Control()
	forwarder, err := s.forwarder(v)
	if err != nil {
		return nil, err
	}

	api, err := httpapi.NewHandler(v, &httpapi.Options{
		AllowedOrigins: strings.FieldsFunc(s.opts.Origins, func(r rune) bool { return r == ',' }),
		ClientAddr:     s.opts.ClientAddr,
		Forward:        forwarder,
		Logger:         log,
	})
	if err != nil {
		return nil, err
	}

	people, err := newPage(v, &accounts[0], &s.opts, key, control, s.recent)
	if err != nil {
		return nil, err
	}

	scheme, shoppers := newSimulator(httpapi.APIKeys(v), v, control, log), newChallenges(s.opts.Network, log)
	// No ServeMux: it would redirect paths that the REST API answers.
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case (r.URL.Path == "/" || r.URL.Path == referencePath) && (r.Method == http.MethodGet || r.Method == http.MethodHead),
			strings.HasPrefix(r.URL.Path, "/sandbox/"):
			people.ServeHTTP(w, r)
		case strings.HasPrefix(r.URL.Path, "/simulator/identifications/"):
			shoppers.ServeHTTP(w, r)
		case strings.HasPrefix(r.URL.Path, "/simulator/"):
			scheme.ServeHTTP(w, r)
		default:
			api.ServeHTTP(w, r)
		}
	}), nil
}

// forwarder returns a forwarder to the destinations of the sandbox.
func (s *Sandbox) forwarder(v *cardvault.Vault) (*forward.Forwarder, error) {
	var all []forward.Destination
	for i, url := range strings.FieldsFunc(s.opts.Forward, func(r rune) bool { return r == ',' }) {
		all = append(all, forward.Destination{Name: "psp" + strconv.Itoa(i+1), URL: url, Methods: []string{"POST", "GET"}})
	}
	f, err := forward.New(v, all, &forward.Options{AllowLoopback: true})
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forwards = append(s.forwards, f)
	return f, nil
}

// Server returns a server with limits for requests. Let it serve [httpapi.Erasing] of a
// listener.
func Server(h http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       time.Minute,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelWarn),

		DisableGeneralOptionsHandler: true, // the REST API answers OPTIONS *
	}
}

// URL returns where to reach a listener on this machine.
func URL(l net.Listener) (string, error) {
	a, ok := l.Addr().(*net.TCPAddr)
	switch {
	case !ok:
		return "", errors.New("sandbox: not a TCP listener")
	case a.IP.IsUnspecified():
		return "http://" + net.JoinHostPort("localhost", strconv.Itoa(a.Port)), nil
	}
	return "http://" + a.String(), nil
}
