// Server is a complete sandbox vault on one machine: the REST surface on bbolt
// with a simulated network and payment provider, and with accounts, keys and
// secrets to try them. It is no way to hold real cards.
//
//	go run ./examples/server [-addr 127.0.0.1:8080] [-data ./cardvault-data]
//		[-security-code-ttl 10m] [-session-ttl 15m] [-log-level info]
//		[-origins http://127.0.0.1:8090,http://localhost:8090]
//
// At every start it writes what a client needs to DATA/sandbox.json and prints
// curl lines that work. GET / is a page on which cards are entered and tokens
// tried. POST /simulator/tokens/{id}/{action} does to a stored card what its scheme
// would. It stops on SIGINT and SIGTERM.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/httpapi"
	"github.com/cardvault/cardvault/simnet"
	"github.com/cardvault/cardvault/webhook"
)

type config struct {
	addr, data      string
	origins         string
	securityCodeTTL time.Duration
	sessionTTL      time.Duration
	logLevel        slog.Level
}

func main() {
	var c config
	flag.StringVar(&c.addr, "addr", "127.0.0.1:8080", "`address` to listen on; port 0 takes a free one")
	flag.StringVar(&c.data, "data", "./cardvault-data", "`directory` of the vault, its key, the simulator and sandbox.json")
	flag.StringVar(&c.origins, "origins", shops, "comma-separated `origins` whose pages may enter cards")
	flag.DurationVar(&c.securityCodeTTL, "security-code-ttl", 10*time.Minute, "how long a security code is kept")
	flag.DurationVar(&c.sessionTTL, "session-ttl", 15*time.Minute, "how long a session lives")
	flag.TextVar(&c.logLevel, "log-level", slog.LevelInfo, "debug, info, warn or error")
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintln(os.Stderr, "server: takes no arguments besides flags")
		os.Exit(2)
	}
	if c.securityCodeTTL == 0 || c.sessionTTL == 0 { // which would be the defaults
		fmt.Fprintln(os.Stderr, "server: -security-code-ttl and -session-ttl must not be 0")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, c, os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "server:", err)
		os.Exit(1)
	}
}

const (
	// networkTimeout leaves time for the slowest scenario that succeeds, 2 s, and
	// shows soon what becomes of those that do not.
	networkTimeout = 3 * time.Second

	// shutdownTimeout is how long what is under way may take once the server stops.
	shutdownTimeout = 10 * time.Second
)

// shops are where examples/checkout runs.
const shops = "http://127.0.0.1:8090,http://localhost:8090"

func run(ctx context.Context, c config, stdout, stderr io.Writer) (err error) {
	log := slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: c.logLevel}))
	listener, err := net.Listen("tcp", c.addr)
	if err != nil {
		return err
	}
	defer listener.Close()
	if err := os.MkdirAll(c.data, 0o700); err != nil {
		return err
	}
	keys, err := cardvault.KeyFile(filepath.Join(c.data, "keys", "vault.key"), nil)
	if err != nil {
		return err
	}
	baseURL := "http://" + reachable(listener.Addr().(*net.TCPAddr))
	network, err := simnet.Open(ctx, filepath.Join(c.data, "simulator"), &simnet.Options{
		ChallengeURL: baseURL + "/simulator/identifications/",
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, network.Close()) }()
	provider, err := startProvider(network, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, provider.Close()) }()
	told := new(events)
	sender := webhook.New(&webhook.Options{AllowPrivateTargets: true})
	defer sender.Close()
	options := &cardvault.Options{
		Mode:            cardvault.Sandbox,
		Network:         network,
		NetworkTimeout:  networkTimeout,
		PPAN:            provider,
		IDV:             network,
		BaseURL:         baseURL,
		SecurityCodeTTL: c.securityCodeTTL,
		SessionTTL:      c.sessionTTL,
		Events:          told,
		Webhooks:        sender,
		Logger:          log,
	}
	if err := instrument(options); err != nil {
		return err
	}
	v, err := cardvault.Open(ctx, filepath.Join(c.data, "vault"), keys, options)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, v.Close()) }()

	file := filepath.Join(c.data, "sandbox.json")
	box, err := openSandbox(ctx, v, file)
	if err != nil {
		return err
	}
	api, err := httpapi.NewHandler(v, &httpapi.Options{
		AllowedOrigins: strings.FieldsFunc(c.origins, func(r rune) bool { return r == ',' }),
		Logger:         log,
	})
	if err != nil {
		return err
	}
	box.BaseURL = baseURL
	people, err := newPage(v, &box.Accounts[0], baseURL, network.Control(), told, log)
	if err != nil {
		return err
	}
	scheme, shoppers := newSimulator(v, v, network.Control(), log), newChallenges(network, log)
	server := &http.Server{
		// No ServeMux: it would redirect paths that the REST surface answers.
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch {
			case r.URL.Path == "/" && (r.Method == http.MethodGet || r.Method == http.MethodHead),
				strings.HasPrefix(r.URL.Path, "/sandbox/"):
				people.ServeHTTP(w, r)
			case strings.HasPrefix(r.URL.Path, "/simulator/identifications/"):
				shoppers.ServeHTTP(w, r)
			case strings.HasPrefix(r.URL.Path, "/simulator/"):
				scheme.ServeHTTP(w, r)
			default:
				api.ServeHTTP(w, r)
			}
		}),
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       time.Minute,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(httpapi.Erasing(listener)) }()

	working, stopWork := context.WithCancel(context.WithoutCancel(ctx))
	defer stopWork()
	worked := make(chan error, 1)
	go func() { worked <- v.Run(working) }()

	if err = box.write(file); err == nil {
		announce(stdout, box, file)
		select {
		case err = <-served:
		case <-ctx.Done():
		}
	}
	log.Info("stopping")
	stopWork()
	deadline, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
	defer cancel()
	if late := server.Shutdown(deadline); late != nil {
		log.Warn("some requests were cut off", "error", late)
		err = errors.Join(err, server.Close())
	}
	select {
	case failed := <-worked:
		err = errors.Join(err, failed)
	case <-deadline.Done():
		log.Warn("some background work was cut off: the next start repeats it")
	}
	return err
}

// reachable returns where to reach a listener on this machine.
func reachable(a *net.TCPAddr) string {
	if a.IP.IsUnspecified() {
		return net.JoinHostPort("localhost", strconv.Itoa(a.Port))
	}
	return a.String()
}

// announce prints how to use the sandbox.
func announce(w io.Writer, box *sandbox, file string) {
	key := box.Accounts[0].APIKey
	fmt.Fprintf(w, `Cardvault sandbox on %[1]s
Credentials are in %[2]s. Import a card, look at it, and get a payment cryptogram for the latest one:

curl -s %[1]s/cde-import -H 'x-api-key: %[3]s' -H 'content-type: application/json' -d '{"account_number":"4242424242424242","expiry_month":12,"expiry_year":2030}'
curl -s '%[1]s/tokens?limit=5' -H 'x-api-key: %[3]s'
curl -s %[1]s/tokens/$(sleep 1; curl -s '%[1]s/tokens?limit=1' -H 'x-api-key: %[3]s' | cut -d'"' -f6)/payment-data -H 'x-api-key: %[3]s' -H 'content-type: application/json' -d '{"amount":1999,"currency_code":"EUR","reference":"order 7"}'

`, box.BaseURL, file, key)
}
