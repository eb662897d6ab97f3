// Server is a complete sandbox vault on one machine: the REST API on bbolt with a
// simulated network and payment provider, and with accounts, keys and secrets to try them.
// It is not made to hold real cards.
//
//	go run ./examples/server [-addr 127.0.0.1:8080] [-data ./cardvault-data] [-ledger DATA/ledger]
//		[-security-code-ttl 10m] [-session-ttl 15m] [-updater-period 1h] [-log-level info]
//		[-origins http://127.0.0.1:8090,http://localhost:8090]
//		[-forward http://127.0.0.1:8090/psp/,http://localhost:8090/psp/]
//
// At every start it writes what a client needs to DATA/sandbox.json and prints
// lines for a shell that end with an open cryptogram. GET / is a page on which cards are
// entered and tokens tried, and GET /reference shows every call and tries it. POST
// /simulator/tokens/{id}/{action} does to a stored card what its scheme would. SIGINT and
// SIGTERM stop it; the second one at once.
//
// On Linux vaultctl can call the vault meanwhile, over a Unix socket in DATA/vault.
//
// The audit log is on. DATA/audit has the last checkpoint of each account, and the public keys
// that verify them. The ledger has the whole log, so that a restored backup repeats the deletions
// since: put it on another machine or volume.
package main

import (
	"context"
	"crypto/rand"
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
	"syscall"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/audit"
	"github.com/cardvault/cardvault/examples/internal/sandbox"
	"github.com/cardvault/cardvault/httpapi"
	"github.com/cardvault/cardvault/internal/operator"
	"github.com/cardvault/cardvault/simnet"
)

type config struct {
	addr, data      string
	ledger          string
	origins         string
	forward         string
	securityCodeTTL time.Duration
	sessionTTL      time.Duration
	updaterPeriod   time.Duration
	logLevel        slog.Level
}

func main() {
	var c config
	flag.StringVar(&c.addr, "addr", "127.0.0.1:8080", "`address` to listen on; port 0 picks a free one")
	flag.StringVar(&c.data, "data", "./cardvault-data", "`directory` of the vault, its key, the simulator and sandbox.json")
	flag.StringVar(&c.ledger, "ledger", "", "existing `directory` of the audit ledger (default: ledger in the one of -data, which is made)")
	flag.StringVar(&c.origins, "origins", sandbox.Shops, "comma-separated `origins` whose pages may enter cards")
	flag.StringVar(&c.forward, "forward", sandbox.Providers, "comma-separated `URLs` on this machine to which cards may be forwarded")
	flag.DurationVar(&c.securityCodeTTL, "security-code-ttl", 10*time.Minute, "how long a security code is kept")
	flag.DurationVar(&c.sessionTTL, "session-ttl", 15*time.Minute, "how long a session lives")
	flag.DurationVar(&c.updaterPeriod, "updater-period", time.Hour, "how often a card is submitted to the account updater, at least 1h; 0 for no account updater, and so no reports")
	flag.TextVar(&c.logLevel, "log-level", slog.LevelInfo, "debug, info, warn or error")
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintln(os.Stderr, "server: takes flags only, no arguments")
		os.Exit(2)
	}

	if c.securityCodeTTL == 0 || c.sessionTTL == 0 { // which would be the defaults
		fmt.Fprintln(os.Stderr, "server: -security-code-ttl and -session-ttl must not be 0")
		os.Exit(2)
	}

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	if err := run(ctx, c, os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "server:", err)
		os.Exit(1)
	}
}

// shutdownTimeout limits running requests once the server stops. It is longer in tests.
var shutdownTimeout = 10 * time.Second

func run(ctx context.Context, c config, stdout, stderr io.Writer) (err error) {
	log := slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: c.logLevel}))
	listener, err := listen(c.addr, log)
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

	baseURL, err := sandbox.URL(listener)
	if err != nil {
		return err
	}

	network, err := simnet.Open(ctx, filepath.Join(c.data, "simulator"), &simnet.Options{ChallengeURL: sandbox.Challenges(baseURL)})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, network.Close()) }()

	file := filepath.Join(c.data, "sandbox.json")
	around, err := sandbox.New(sandbox.Options{
		Network:         network,
		BaseURL:         baseURL,
		File:            file,
		Origins:         c.origins,
		Forward:         c.forward,
		SecurityCodeTTL: c.securityCodeTTL,
		SessionTTL:      c.sessionTTL,
		UpdaterPeriod:   c.updaterPeriod,
		Log:             log,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, around.Close()) }()

	options, err := vaultOptions(around, c)
	if err != nil {
		return err
	}

	v, err := cardvault.Open(ctx, filepath.Join(c.data, "vault"), keys, options)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, v.Close()) }()

	credentials, err := sandbox.Open(ctx, v, file, log)
	if err != nil {
		return err
	}
	credentials.BaseURL = baseURL
	handler, err := around.Handler(v, credentials.Accounts, rand.Text())
	if err != nil {
		return err
	}

	defer offer(ctx, filepath.Join(c.data, "vault"), v, log)()
	return serve(ctx, listener, sandbox.Server(handler, log), v, log, func() error {
		if err := errors.Join(around.KeepPublicKeys(v), credentials.Write(file)); err != nil {
			return err
		}
		credentials.Announce(stdout, file)
		return nil
	})
}

// vaultOptions returns the options of the vault.
func vaultOptions(around *sandbox.Sandbox, c config) (options *cardvault.Options, err error) {
	options = around.Vault()
	if options.Audit.Ledger, err = openLedger(c); err != nil {
		return nil, err
	}
	return options, instrument(options)
}

// openLedger returns the ledger of the audit log. A folder of its own that is missing is an error: its
// volume may not be mounted.
func openLedger(c config) (audit.Ledger, error) {
	if c.ledger == "" {
		c.ledger = filepath.Join(c.data, "ledger")
		if err := os.MkdirAll(c.ledger, 0o700); err != nil {
			return nil, err
		}
	}
	if _, err := os.Stat(c.ledger); err != nil {
		return nil, fmt.Errorf("-ledger: %w", err)
	}
	return audit.NewLedgerDir(c.ledger), nil
}

// offer lets vaultctl call the vault while the server works, and returns a function that ends that.
func offer(ctx context.Context, dir string, v *cardvault.Vault, log *slog.Logger) (end func()) {
	socket, err := operator.Listen(dir)
	if err != nil {
		log.Warn("vaultctl needs the server stopped", "error", err)
		return func() {}
	}

	ctx, stop := context.WithCancel(context.WithoutCancel(ctx)) // until the requests have ended
	served := make(chan error, 1)
	go func() { served <- operator.Serve(ctx, socket, v, log) }()
	return func() {
		stop()
		if err := <-served; err != nil {
			log.Warn("the operator's socket", "error", err)
		}
	}
}

// listen returns a listener, and warns of one that other machines can reach.
func listen(addr string, log *slog.Logger) (net.Listener, error) {
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("%w; -addr takes another address", err)
	}
	if a, ok := listener.Addr().(*net.TCPAddr); ok && !a.IP.IsLoopback() {
		log.Warn("any client that reaches this address can use the page and its API", "addr", a)
	}
	return listener, nil
}

// serve serves and has the vault work in the background until ctx ends. announce is
// called when both have begun.
func serve(ctx context.Context, listener net.Listener, server *http.Server, v *cardvault.Vault, log *slog.Logger, announce func() error) error {
	served := make(chan error, 1)
	go func() { served <- server.Serve(httpapi.Erasing(listener)) }()

	working, stopWork := context.WithCancel(context.WithoutCancel(ctx))
	defer stopWork()
	worked := make(chan error, 1)
	go func() { worked <- v.Run(working) }()

	err := announce()
	if err == nil {
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
