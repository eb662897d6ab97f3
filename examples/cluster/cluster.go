package main

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/examples/internal/sandbox"
	"github.com/cardvault/cardvault/httpapi"
	"github.com/cardvault/cardvault/simnet"
)

// A cluster is some replicas in this process, with their proxy unless the one replica
// has a listener of its own.
type cluster struct {
	config  *config
	log     *slog.Logger
	front   net.Listener // of the proxy, or of the one replica until it has it
	keys    *cardvault.Keyring
	backend *backend
	network *simnet.Network
	around  *sandbox.Sandbox

	file        string // of the credentials
	credentials *sandbox.Credentials
	pageKey     string

	proxy    *proxy // nil if the one replica has front
	server   *http.Server
	replicas []*replica // nil where one could not be started
	at       []string   // their addresses
	ended    chan error // of the proxy or a replica that stops by itself
}

// open opens what replicas share.
func open(ctx context.Context, c *config, log *slog.Logger) (*cluster, error) {
	cl := &cluster{config: c, log: log, file: filepath.Join(c.data, "sandbox.json"), ended: make(chan error, 1)}
	if err := cl.open(ctx); err != nil {
		return nil, errors.Join(err, cl.close())
	}
	return cl, nil
}

func (cl *cluster) open(ctx context.Context) (err error) {
	c, baseURL := cl.config, strings.TrimSuffix(cl.config.baseURL, "/")
	if !c.setup {
		if cl.front, err = net.Listen("tcp", cmp.Or(c.listen, c.addr)); err != nil {
			return err
		}
		if baseURL == "" {
			if baseURL, err = sandbox.URL(cl.front); err != nil {
				return err
			}
		}
	}

	cl.credentials = &sandbox.Credentials{BaseURL: baseURL}
	if err := os.MkdirAll(c.data, 0o700); err != nil {
		return err
	}
	if cl.keys, err = cardvault.KeyFile(filepath.Join(c.data, "keys", "vault.key"), nil); err != nil {
		return err
	}
	if cl.backend, err = openBackend(ctx, c, cl.log); err != nil {
		return err
	}

	if cl.network, err = simnet.New(ctx, cl.backend.simulator, &simnet.Options{ChallengeURL: sandbox.Challenges(baseURL)}); err != nil {
		return err
	}

	cl.around, err = sandbox.New(sandbox.Options{
		Network:         cl.network,
		BaseURL:         baseURL,
		File:            cl.file,
		Origins:         c.origins,
		Forward:         sandbox.Providers,
		SecurityCodeTTL: c.securityCodeTTL,
		SessionTTL:      c.sessionTTL,
		UpdaterPeriod:   time.Hour,
		Replicas:        c.replicas,
		ClientAddr:      client,
		Log:             cl.log,
	})
	return err
}

// setUp makes the vault and its accounts, unless they are there, and writes the
// credentials. A replica of others only looks: they would each make their own.
func (cl *cluster) setUp(ctx context.Context) (err error) {
	if cl.config.store == "memory" { // their vault no longer exists
		if err := os.Remove(cl.file); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}

	o, err := cl.backend.open(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.close()) }()

	v, err := vaultOn(ctx, o, cl.keys, cl.around)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, v.Close()) }()

	if cl.config.listen != "" {
		made, err := sandbox.Read(ctx, v, cl.file)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, cardvault.ErrUnauthenticated) {
			err = fmt.Errorf("%w: run -setup first", err)
		}
		if err != nil {
			return err
		}
		cl.credentials.Accounts = made.Accounts
		return nil
	}

	made, err := sandbox.Open(ctx, v, cl.file, cl.log)
	if err != nil {
		return err
	}

	cl.credentials.Accounts = made.Accounts
	return errors.Join(cl.around.KeepPublicKeys(v), cl.credentials.Write(cl.file))
}

// start starts the replicas, and the proxy.
func (cl *cluster) start(ctx context.Context) error {
	if err := cl.setUp(ctx); err != nil {
		return err
	}
	if cl.config.listen != "" {
		// The other replicas have the same: it is for holders of the API key.
		mac := hmac.New(sha256.New, []byte(cl.credentials.Accounts[0].APIKey))
		mac.Write([]byte("cookies of the page"))
		cl.pageKey = hex.EncodeToString(mac.Sum(nil))
		cl.at = []string{cl.front.Addr().String()}
		cl.replicas = []*replica{nil}
		go cl.pollSimulator(ctx)
		l := cl.front
		cl.front = nil
		return cl.startReplica(ctx, 0, l)
	}

	cl.pageKey = rand.Text()
	var urls []*url.URL
	for i := range cl.config.replicas {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		cl.at = append(cl.at, l.Addr().String())
		cl.replicas = append(cl.replicas, nil)
		if err := cl.startReplica(ctx, i, l); err != nil {
			return err
		}
		urls = append(urls, &url.URL{Scheme: "http", Host: cl.at[i]})
	}

	cl.proxy = newProxy(urls, nil, cl.log)
	for _, u := range cl.proxy.replicas {
		u.setReady(true)
	}

	cl.server = sandbox.Server(cl.proxy, cl.log)
	go func() { cl.end(cl.server.Serve(httpapi.Erasing(cl.front))) }()
	return nil
}

// pollSimulator has the simulator look for notices that other processes have caused.
func (cl *cluster) pollSimulator(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for ctx.Err() == nil {
		cl.network.Advance(0)
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

func (cl *cluster) startReplica(ctx context.Context, i int, l net.Listener) error {
	log := cl.log.With("replica", i+1)
	o, err := cl.backend.open(ctx)
	if err != nil {
		return errors.Join(err, l.Close())
	}
	r, err := start(ctx, l, o, cl.keys, cl.around, cl.credentials.Accounts, cl.pageKey, log)
	if err != nil {
		return err
	}
	cl.replicas[i] = r
	log.Info("a replica accepts requests", "at", cl.at[i])
	go func() { cl.end(<-r.served) }()
	return nil
}

// end ends the cluster with the error of a part that has stopped by itself.
func (cl *cluster) end(err error) {
	if errors.Is(err, http.ErrServerClosed) {
		return
	}
	select {
	case cl.ended <- err:
	default:
	}
}

// restart starts the replicas anew, one after the other. Without a request on its way
// to it none is lost. If one cannot be started the remaining ones go on as they are.
func (cl *cluster) restart(ctx context.Context) error {
	for i, r := range cl.replicas {
		if r != nil {
			cl.leave(ctx, i)
			cl.replicas[i] = nil
			if err := r.stop(ctx); err != nil {
				cl.log.Error("stopping a replica", "replica", i+1, "error", err)
			}
		}
		l, err := listenAgain(ctx, cl.at[i])
		if err != nil {
			return err
		}
		if err := cl.startReplica(ctx, i, l); err != nil {
			return err
		}
		if cl.proxy != nil {
			cl.proxy.replicas[i].setReady(true)
		}
	}

	return nil
}

// listenAgain listens at an address that a replica has left. A connection to somewhere else
// may have got the port meanwhile: then it waits, half a minute at most.
func listenAgain(ctx context.Context, addr string) (l net.Listener, err error) {
	for range 600 {
		l, err = net.Listen("tcp", addr)
		if !errors.Is(err, syscall.EADDRINUSE) {
			return l, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(50 * time.Millisecond):
		}
	}
	return nil, err
}

// leave returns when a replica receives no more requests, and its requests from the proxy
// of this process are answered.
func (cl *cluster) leave(ctx context.Context, i int) {
	cl.replicas[i].ready.Store(false)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cl.config.leaving+shutdownTimeout)
	defer cancel()
	if cl.proxy != nil {
		cl.proxy.replicas[i].drain(ctx)
		// For five seconds the server waits for an unused connection.
		cl.proxy.replicas[i].closeIdle()
		return
	}
	select {
	case <-time.After(cl.config.leaving):
	case <-ctx.Done():
	}
}

// close finishes running requests and closes all resources.
func (cl *cluster) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), cl.config.leaving+shutdownTimeout)
	defer cancel()
	var errs []error
	if cl.server != nil {
		if err := cl.server.Shutdown(ctx); err != nil {
			cl.log.Warn("some requests were cut off", "error", err)
			errs = append(errs, cl.server.Close())
		}
		cl.proxy.closeIdle()
	} else if cl.front != nil {
		errs = append(errs, cl.front.Close())
	}

	stopped := make(chan error)
	for i, r := range cl.replicas {
		go func() {
			if r == nil {
				stopped <- nil
				return
			}
			cl.leave(ctx, i)
			stopped <- r.stop(ctx)
		}()
	}

	for range cl.replicas {
		errs = append(errs, <-stopped)
	}
	if cl.around != nil {
		errs = append(errs, cl.around.Close())
	}
	if cl.network != nil {
		errs = append(errs, cl.network.Close())
	}

	if cl.backend != nil {
		errs = append(errs, cl.backend.close())
	}
	return errors.Join(errs...)
}

// runProxy is a process that is only a proxy.
func runProxy(ctx context.Context, c *config, log *slog.Logger) error {
	var urls []*url.URL
	for r := range strings.SplitSeq(c.proxy, ",") {
		u, err := url.Parse(r)
		if err != nil || u.Scheme != "http" || u.Host == "" {
			return errors.New("-proxy takes http URLs")
		}
		urls = append(urls, u)
	}

	l, err := net.Listen("tcp", c.addr)
	if err != nil {
		return err
	}

	p := newProxy(urls, nil, log)
	p.probeWithin = c.probeWithin
	server := sandbox.Server(p, log)
	log.Info("the proxy accepts requests", "at", l.Addr())
	served := make(chan error, 1)
	go func() { served <- server.Serve(httpapi.Erasing(l)) }()
	watching, stop := context.WithCancel(context.Background())
	defer stop()

	watched := make(chan struct{})
	go func() { p.watch(watching); close(watched) }()
	select {
	case err = <-served:
	case <-ctx.Done():
	}

	deadline, cancel := context.WithTimeout(context.Background(), shutdownTimeout)
	defer cancel()
	if late := server.Shutdown(deadline); late != nil {
		err = errors.Join(err, server.Close())
	}

	stop()
	<-watched
	return err
}
