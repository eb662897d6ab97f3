// Cluster is the sandbox of examples/server on a store that several machines share:
// replicas of one vault behind a proxy that takes them in turn. It is not made to hold real
// cards.
//
//	go run -C examples/cluster . -store postgres://… -codes redis://…
//		[-replicas 3] [-addr 127.0.0.1:8080] [-data ./cardvault-cluster] [-migrate=false]
//		[-security-code-ttl 10m] [-session-ttl 15m] [-log-level info]
//		[-origins http://127.0.0.1:8090,http://localhost:8090]
//
// -store memory and -codes memory need no servers and keep nothing. DATA holds the key file
// that all replicas need, and sandbox.json, which is for their clients. Output and pages
// are the same as in examples/server. sandbox.json is replaced if its keys belong to
// another store.
//
// SIGINT and SIGTERM stop it; the second one at once. SIGHUP restarts the replicas, one
// after the other, while the others continue.
//
// # Processes
//
// Replicas may also be processes of their own, as in compose.yaml. They need the same
// DATA, which is made once:
//
//	cluster -store … -codes … -data … -base-url http://vault.example -setup
//	cluster -store … -codes … -data … -base-url http://vault.example -replicas 2 -listen :8081
//	cluster -proxy http://10.0.0.1:8081,http://10.0.0.2:8081 -addr :8080
//
// Any other proxy will do, if it asks GET /ready of a replica more often than once in -leaving,
// which is a second if not given. The answer is 204, or 503 for that long before the replica stops
// taking requests. And it must close an unused connection within a minute, before the replica does.
// A replica takes the last address of X-Forwarded-For for the client's: a proxy must append
// the address that it sees, and only the proxy may reach the replicas. The list of events
// on the page comes from the replica which happens to answer: each has only the events that
// it has passed on.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/cardvault/cardvault/examples/internal/sandbox"
)

type config struct {
	store, codes    string
	migrate, setup  bool
	replicas        int
	addr, listen    string
	proxy, baseURL  string
	data, origins   string
	securityCodeTTL time.Duration
	sessionTTL      time.Duration
	probeWithin     time.Duration // how long a replica may take to tell a proxy that it accepts requests
	leaving         time.Duration // how long a replica without a proxy of its own takes requests after it has stopped being ready
	logLevel        slog.Level
}

func main() {
	var c config
	flag.StringVar(&c.store, "store", "", "`URL` of the PostgreSQL database, not of a pooler, or memory")
	flag.StringVar(&c.codes, "codes", "", "`URL` of the Valkey or Redis for security codes, or memory")
	flag.BoolVar(&c.migrate, "migrate", true, "bring the schema of the store up to date first")
	flag.BoolVar(&c.setup, "setup", false, "create what replicas need in the store and the data directory, then exit")
	flag.IntVar(&c.replicas, "replicas", 3, "`number` of replicas, all in this process or, with -listen, one of them")
	flag.StringVar(&c.addr, "addr", "127.0.0.1:8080", "`address` of the proxy; port 0 picks a free one")
	flag.StringVar(&c.listen, "listen", "", "`address` of a single replica in this process, without a proxy")
	flag.StringVar(&c.proxy, "proxy", "", "comma-separated `URLs` of replicas, to run only their proxy")
	flag.StringVar(&c.baseURL, "base-url", "", "`URL` at which clients reach the proxy; by default that of -addr, or of -listen")

	flag.StringVar(&c.data, "data", "./cardvault-cluster", "`directory` of the key and sandbox.json")
	flag.StringVar(&c.origins, "origins", sandbox.Shops, "comma-separated `origins` whose pages may enter cards")
	flag.DurationVar(&c.securityCodeTTL, "security-code-ttl", 10*time.Minute, "how long a security code is kept")
	flag.DurationVar(&c.sessionTTL, "session-ttl", 15*time.Minute, "how long a session lives")
	flag.DurationVar(&c.probeWithin, "probe-within", time.Second, "how long a replica may take to tell -proxy that it accepts requests")
	flag.DurationVar(&c.leaving, "leaving", time.Second, "how long a replica that stops takes requests with -listen, so that its proxy notices")
	flag.TextVar(&c.logLevel, "log-level", slog.LevelInfo, "debug, info, warn or error")
	flag.Parse()
	if wrong := c.wrong(); wrong != "" {
		fmt.Fprintln(os.Stderr, "cluster:", wrong)
		os.Exit(2)
	}

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	restart := make(chan os.Signal, 1)
	signal.Notify(restart, syscall.SIGHUP)
	if err := run(ctx, c, restart, os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "cluster:", err)
		os.Exit(1)
	}
}

// wrong returns a complaint about the flags, or "".
func (c *config) wrong() string {
	switch {
	case flag.NArg() > 0:
		return "takes flags only, no arguments"
	case c.probeWithin <= 0:
		return "-probe-within must be positive"
	case c.proxy != "":
		return ""
	case c.store == "" || c.codes == "":
		return "-store and -codes are required"
	case c.replicas < 1 || c.replicas > 100:
		return "-replicas must be 1 to 100"
	case c.leaving < 0 || c.leaving > time.Minute:
		return "-leaving must be at most 1m"
	case (c.listen != "" || c.setup) && (c.store == "memory" || c.codes == "memory"):
		return "other processes cannot reach a store or cache in memory"
	case c.setup && (c.baseURL == "" || c.listen != ""):
		return "-setup requires -base-url and excludes -listen"
	case c.securityCodeTTL == 0 || c.sessionTTL == 0: // which would be the defaults
		return "-security-code-ttl and -session-ttl must not be 0"
	}

	return ""
}

func run(ctx context.Context, c config, restart <-chan os.Signal, stdout, stderr io.Writer) (err error) {
	log := slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: c.logLevel}))
	if c.proxy != "" {
		return runProxy(ctx, &c, log)
	}

	cl, err := open(ctx, &c, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cl.close()) }()

	if c.setup {
		return cl.setUp(ctx)
	}
	if err := cl.start(ctx); err != nil {
		return err
	}

	cl.credentials.Announce(stdout, cl.file)
	for {
		select {
		case <-restart:
			log.Info("restarting the replicas")
			if err := cl.restart(ctx); err != nil {
				log.Error("a replica could not be started: the others continue", "error", err)
				continue
			}
			log.Info("the replicas were restarted")
		case err := <-cl.ended:
			return err
		case <-ctx.Done():
			log.Info("stopping")
			return nil
		}
	}
}
