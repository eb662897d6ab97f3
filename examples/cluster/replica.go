package main

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/examples/internal/sandbox"
	"github.com/cardvault/cardvault/httpapi"
)

// shutdownTimeout limits running requests once a replica stops. It is longer than a
// request takes, a forward included.
const shutdownTimeout = 70 * time.Second

// A replica is a vault on the shared store, with a server of its own.
type replica struct {
	log    *slog.Logger
	opened *opened
	vault  *cardvault.Vault
	server *http.Server
	ready  atomic.Bool

	served, worked chan error
	stopWork       context.CancelFunc
}

// vaultOn returns a vault on the opened stores and caches.
func vaultOn(ctx context.Context, o *opened, keys *cardvault.Keyring, around *sandbox.Sandbox) (*cardvault.Vault, error) {
	options := around.Vault()
	options.Codes = o.codes
	return cardvault.New(ctx, o.store, keys, options)
}

// start starts a replica on a listener. The replica owns both, even if it fails.
func start(ctx context.Context, l net.Listener, o *opened, keys *cardvault.Keyring, around *sandbox.Sandbox, accounts []sandbox.Account, pageKey string, log *slog.Logger) (*replica, error) {
	v, err := vaultOn(ctx, o, keys, around)
	if err != nil {
		return nil, errors.Join(err, l.Close(), o.close())
	}

	handler, err := around.Handler(v, accounts, pageKey)
	if err != nil {
		return nil, errors.Join(err, l.Close(), v.Close(), o.close())
	}

	r := &replica{log: log, opened: o, vault: v, served: make(chan error, 1), worked: make(chan error, 1)}
	r.server = sandbox.Server(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if asksReady(q) {
			answerReady(w, r.ready.Load())
			return
		}
		handler.ServeHTTP(w, q)
	}), log)

	// Longer than the proxy keeps an unused connection: it may use it at any time.
	r.server.ReadHeaderTimeout = r.server.IdleTimeout

	working, stop := context.WithCancel(context.WithoutCancel(ctx))
	r.stopWork = stop
	go func() { r.worked <- v.Run(working) }()
	go func() { r.served <- r.server.Serve(httpapi.Erasing(l)) }()
	r.ready.Store(true)
	return r, nil
}

// stop finishes the requests that the replica has, then its background work. The
// caller has seen to it that no more requests come.
func (r *replica) stop(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
	defer cancel()
	var errs []error
	if err := r.server.Shutdown(ctx); err != nil {
		r.log.Warn("some requests were cut off", "error", err)
		errs = append(errs, r.server.Close())
	}
	r.stopWork()
	select {
	case err := <-r.worked:
		errs = append(errs, err)
	case <-ctx.Done():
		r.log.Warn("some background work was cut off: another replica repeats it")
	}
	return errors.Join(append(errs, r.vault.Close(), r.opened.close())...)
}
