// Shop is a shop with a vault inside, as one process: orders in a SQL database, cards in the
// vault, and the REST API of the vault for browsers below /vault/.
//
//	go run -C examples/shop . [-addr 127.0.0.1:8443] [-data ./shop-data] [-cert cert.pem -key key.pem]
//
// POST /orders/{id} takes an order under a random UUID of the client, and returns a session, in
// which <card-entry> of the vault takes the card. POST /orders/{id}/pay pays. Both can be
// repeated. GET /health is 204 while vault and database answer.
//
// Order and card share no transaction. The order comes first. Its id is the business key of the
// card, by which the event of the new token finds it. The payment has the idempotency key of the
// order. So a process that dies between two steps leaves nothing that the next call does not
// finish. With SHOP_API_KEY, the text of a key, a back office reads tokens over REST.
package main

import (
	"context"
	"crypto/tls"
	"database/sql"
	"errors"
	"flag"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/httpapi"
	"github.com/cardvault/cardvault/simnet"
	_ "modernc.org/sqlite"
)

type config struct{ addr, data, cert, key string }

func main() {
	var c config
	flag.StringVar(&c.addr, "addr", "127.0.0.1:8443", "`address` to listen on")
	flag.StringVar(&c.data, "data", "./shop-data", "`directory` of vault, key and orders")
	flag.StringVar(&c.cert, "cert", "", "`file` with the TLS certificate; without one, listen on a loopback address only")
	flag.StringVar(&c.key, "key", "", "`file` with the key of the certificate")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, c, slog.Default()); err != nil {
		slog.Error("shop ended", "error", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, c config, log *slog.Logger) error {
	return with(ctx, c.data, log, func(s *shop) error {
		l, err := listen(c)
		if err != nil {
			return err
		}
		h, err := s.handler()
		if err != nil {
			return errors.Join(err, l.Close())
		}
		return s.serve(ctx, l, h)
	})
}

// with opens a shop in a directory, and closes it when do has returned: the vault first,
// since it works with the others.
func with(ctx context.Context, dir string, log *slog.Logger, do func(*shop) error) (err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	keys, err := cardvault.KeyFile(filepath.Join(dir, "keys", "vault.key"), nil)
	if err != nil {
		return err
	}
	network, err := simnet.Open(ctx, filepath.Join(dir, "simulator"), nil) // or the adapter of a token service
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, network.Close()) }()
	db, err := sql.Open("sqlite", "file:"+(&url.URL{Path: filepath.Join(dir, "shop.db")}).EscapedPath()+"?_txlock=immediate&_pragma=busy_timeout(10000)&_pragma=synchronous(FULL)")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()

	s := &shop{db: db, log: log, acquire: acquire}
	s.vault, err = cardvault.Open(ctx, filepath.Join(dir, "vault"), keys, &cardvault.Options{
		Mode: cardvault.Sandbox, Network: network, Events: s, Logger: log,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.vault.Close()) }()
	if err := s.bootstrap(ctx); err != nil {
		return err
	}
	return do(s)
}

func listen(c config) (net.Listener, error) {
	l, err := net.Listen("tcp", c.addr)
	if err != nil {
		return nil, err
	}
	if c.cert != "" {
		pair, err := tls.LoadX509KeyPair(c.cert, c.key)
		if err != nil {
			return nil, errors.Join(err, l.Close())
		}
		l = tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{pair}})
	} else if a, ok := l.Addr().(*net.TCPAddr); !ok || !a.IP.IsLoopback() {
		return nil, errors.Join(errors.New("-cert is required"), l.Close())
	}
	return httpapi.Erasing(l), nil // around TLS: it erases cards from the buffers of idle connections
}

// serve serves until ctx ends. Requests under way are answered before the work in the background
// ends, since they may wait for it.
func (s *shop) serve(ctx context.Context, l net.Listener, h http.Handler) error {
	server := &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: time.Minute, IdleTimeout: time.Minute}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	working, stopWork := context.WithCancel(context.WithoutCancel(ctx))
	defer stopWork()
	worked := make(chan error, 1)
	go func() { worked <- s.vault.Run(working) }()

	var err error
	select {
	case err = <-served:
	case <-ctx.Done():
	}
	deadline, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	if late := server.Shutdown(deadline); late != nil {
		err = errors.Join(err, late, server.Close())
	}
	stopWork()
	return errors.Join(err, <-worked)
}
