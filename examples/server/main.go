// Server is a complete sandbox vault on one machine: the REST surface on bbolt,
// with accounts, keys and secrets to try it. It is no way to hold real cards.
//
//	go run ./examples/server [-addr 127.0.0.1:8080] [-data ./cardvault-data]
//
// At every start it writes what a client needs to DATA/sandbox.json and prints
// curl lines that work. It stops on SIGINT and SIGTERM.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"html/template"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/httpapi"
)

type config struct {
	addr, data string
	sessionTTL time.Duration
	logLevel   slog.Level
}

func main() {
	var c config
	flag.StringVar(&c.addr, "addr", "127.0.0.1:8080", "`address` to listen on; port 0 takes a free one")
	flag.StringVar(&c.data, "data", "./cardvault-data", "`directory` of the vault, its key and sandbox.json")
	flag.Duration("security-code-ttl", 10*time.Minute, "how long a security code is kept; without effect, as this version keeps none")
	flag.DurationVar(&c.sessionTTL, "session-ttl", 15*time.Minute, "how long a session lives")
	flag.TextVar(&c.logLevel, "log-level", slog.LevelInfo, "debug, info, warn or error")
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintln(os.Stderr, "server: takes no arguments besides flags")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, c, os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "server:", err)
		os.Exit(1)
	}
}

// shutdownTimeout is how long running requests may take once the server stops.
const shutdownTimeout = 10 * time.Second

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
	v, err := cardvault.Open(ctx, filepath.Join(c.data, "vault"), keys, &cardvault.Options{
		Mode:       cardvault.Sandbox,
		SessionTTL: c.sessionTTL,
		Logger:     log,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, v.Close()) }()

	file := filepath.Join(c.data, "sandbox.json")
	box, err := openSandbox(ctx, v, file)
	if err != nil {
		return err
	}
	api, err := httpapi.NewHandler(v, &httpapi.Options{Logger: log})
	if err != nil {
		return err
	}
	box.BaseURL = "http://" + reachable(listener.Addr().(*net.TCPAddr))

	people := page(box)
	server := &http.Server{
		// No ServeMux: it would redirect paths that the REST surface answers.
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/" && (r.Method == http.MethodGet || r.Method == http.MethodHead) {
				people(w, r)
				return
			}
			api.ServeHTTP(w, r)
		}),
		ReadHeaderTimeout: 5 * time.Second,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()

	// Background work ends after the requests, before the vault is closed.
	working, stopWork := context.WithCancel(context.WithoutCancel(ctx))
	worked := make(chan error, 1)
	go func() { worked <- v.Run(working) }()
	defer func() {
		stopWork()
		err = errors.Join(err, <-worked)
	}()

	if err := box.write(file); err != nil {
		return errors.Join(err, server.Close())
	}
	announce(stdout, box, file)

	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	log.Info("stopping")
	deadline, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
	defer cancel()
	if err := server.Shutdown(deadline); err != nil {
		log.Warn("some requests were cut off", "error", err)
		return server.Close()
	}
	return nil
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
Credentials are in %[2]s. Try:

curl -s %[1]s/cde-import -H 'x-api-key: %[3]s' -H 'content-type: application/json' -d '{"account_number":"4242424242424242","expiry_month":12,"expiry_year":2030}'
curl -s '%[1]s/tokens?limit=5' -H 'x-api-key: %[3]s'
curl -s %[1]s/tokens/session -H 'x-api-key: %[3]s' -H 'content-type: application/json' -d '{"expiration_time":3600}'

`, box.BaseURL, file, key)
}

// page answers with a page for people. Keys and secrets are not on it.
func page(box *sandbox) http.HandlerFunc {
	t := template.Must(template.New("page").Parse(`<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Cardvault sandbox</title>
<style>
:root { color-scheme: light dark; font: 1rem/1.6 system-ui, sans-serif; }
body { max-width: 44rem; margin: 4rem auto; padding: 0 1.5rem; }
h1 { font-size: 1.6rem; letter-spacing: -.02em; }
code { font: .9em ui-monospace, monospace; }
td { padding: .2rem 1.5rem .2rem 0; vertical-align: top; }
</style>
<h1>Cardvault sandbox</h1>
<p>This is a sandbox: use test cards only. The REST surface is at <code>{{.BaseURL}}</code>;
API keys are in <code>sandbox.json</code> in the data directory of the server.</p>
<table>
<tr><td><code>POST /cde-import</code><td>a card number becomes a token
<tr><td><code>POST /tokens/session</code><td>a session for card entry
<tr><td><code>GET /tokens</code><td>the tokens of the account
<tr><td><code>GET, PATCH, DELETE /tokens/{id}</code><td>one token
<tr><td><code>GET, POST /api-keys</code><td>the keys of the account
<tr><td><code>DELETE /api-keys/{id}</code><td>revokes a key
</table>
</html>
`))
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		if err := t.Execute(w, box); err != nil {
			return // the client is gone
		}
	}
}
