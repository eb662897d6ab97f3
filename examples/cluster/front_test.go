//go:build unix

package main

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"testing"

	"github.com/cardvault/cardvault/examples/internal/sandbox"
)

// front serves replicas behind a proxy, each on a server of its own.
func front(t testing.TB, replicas []http.Handler) http.Handler {
	var urls []*url.URL
	servers := map[string]*pipeListener{}
	for i, h := range replicas {
		host := "replica-" + strconv.Itoa(i+1) + ":80"
		urls = append(urls, &url.URL{Scheme: "http", Host: host})
		l := &pipeListener{conns: make(chan net.Conn), closed: make(chan struct{})}
		servers[host] = l
		server := sandbox.Server(h, quiet)
		served := make(chan error)
		go func() { served <- server.Serve(l) }()
		t.Cleanup(func() {
			if err := server.Close(); err != nil {
				t.Error(err)
			}
			if err := <-served; !errors.Is(err, http.ErrServerClosed) {
				t.Error(err)
			}
		})
	}
	p := newProxy(urls, func(ctx context.Context, _, addr string) (net.Conn, error) { return servers[addr].dial(ctx) }, quiet)
	for _, u := range p.replicas {
		u.setReady(true)
	}
	t.Cleanup(p.closeIdle)
	return p
}

// A pipeListener accepts connections in memory, so that a bubble can wait for it.
type pipeListener struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (l *pipeListener) dial(ctx context.Context) (net.Conn, error) {
	here, there := net.Pipe()
	select {
	case l.conns <- there:
		return here, nil
	case <-l.closed:
	case <-ctx.Done():
	}
	return nil, &net.OpError{Op: "dial", Err: errors.New("no listener")}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *pipeListener) Addr() net.Addr { return pipeAddr{} }

type pipeAddr struct{}

func (pipeAddr) Network() string { return "pipe" }
func (pipeAddr) String() string  { return "pipe" }
