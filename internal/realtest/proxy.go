//go:build unix

package realtest

import (
	"io"
	"net"
	"sync"
	"testing"
)

// A Proxy passes on TCP connections, and fails on demand. Its methods may be called
// concurrently.
type Proxy struct {
	listener net.Listener
	to       string
	waits    sync.WaitGroup

	mu      sync.Mutex
	changed sync.Cond // that what follows has
	conns   map[net.Conn]bool
	hung    bool
	cut     bool
	left    int           // how many bytes of answers pass until a cut; -1: any number
	reached chan struct{} // closed by that cut
}

// NewProxy starts a proxy to an address, which ends with the test.
func NewProxy(t testing.TB, to string) *Proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{listener: l, to: to, conns: make(map[net.Conn]bool), left: -1}
	p.changed.L = &p.mu
	p.waits.Go(p.accept)
	t.Cleanup(p.close)
	return p
}

// Addr returns the address at which the proxy listens.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Cut resets all connections, and further ones as soon as they are made, until Resume.
func (p *Proxy) Cut() { p.set(func() { p.cut = true }) }

// Hang keeps connections open, takes further ones, and passes nothing on until Resume.
// What arrives meanwhile is not lost.
func (p *Proxy) Hang() { p.set(func() { p.hung = true }) }

// Resume ends Cut, Hang and CutAfter.
func (p *Proxy) Resume() { p.set(func() { p.cut, p.hung, p.left = false, false, -1 }) }

// CutAfter does the same as Cut once the server has answered n further bytes, over all
// connections; these n are passed on. Then it closes the channel.
func (p *Proxy) CutAfter(n int) <-chan struct{} {
	reached := make(chan struct{})
	p.set(func() { p.left, p.reached = n, reached })
	return reached
}

func (p *Proxy) close() {
	_ = p.listener.Close()
	p.Cut()
	p.waits.Wait()
}

// set changes the state. A cut resets the open connections.
func (p *Proxy) set(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
	p.changed.Broadcast()
	if p.cut {
		for conn := range p.conns {
			reset(conn)
		}
		clear(p.conns)
	}
}

func (p *Proxy) accept() {
	for {
		conn, err := p.listener.Accept()
		if err != nil {
			return // closed
		}
		p.waits.Go(func() { p.serve(conn) })
	}
}

// serve passes on the data of a connection until either side ends it.
func (p *Proxy) serve(client net.Conn) {
	if !p.admit(client) {
		return
	}
	defer p.drop(client)

	if !p.pass() {
		return
	}

	server, err := net.DialTimeout("tcp", p.to, patience)
	if err != nil || !p.admit(server) {
		return
	}

	p.waits.Go(func() {
		defer p.drop(client)
		read(server, func(b []byte) bool { return p.answer(client, b) })
	})
	defer p.drop(server)

	read(client, func(b []byte) bool {
		if !p.pass() {
			return false
		}
		_, err := server.Write(b)
		return err == nil
	})
}

// read reads until it cannot, or write returns false.
func read(from io.Reader, write func([]byte) bool) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 && !write(buf[:n]) || err != nil {
			return
		}
	}
}

// answer writes what the server has answered, up to a cut.
func (p *Proxy) answer(to io.Writer, b []byte) bool {
	if !p.pass() {
		return false
	}

	p.mu.Lock()
	last := false
	if p.left >= 0 {
		b = b[:min(len(b), p.left)]
		p.left -= len(b)
		last = p.left == 0
	}
	p.mu.Unlock()
	_, err := to.Write(b)
	if last {
		p.set(func() {
			if p.left == 0 { // unless another connection was as fast
				p.cut, p.left = true, -1
				close(p.reached)
			}
		})
	}
	return err == nil
}

// pass waits while the proxy hangs, and returns whether it may go on.
func (p *Proxy) pass() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.hung && !p.cut {
		p.changed.Wait()
	}
	return !p.cut
}

// admit registers a connection for the next cut, or resets it if the proxy is cut off.
func (p *Proxy) admit(conn net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cut {
		reset(conn)
		return false
	}
	p.conns[conn] = true
	return true
}

func (p *Proxy) drop(conn net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, conn)
	_ = conn.Close()
}

// reset ends a connection as if its host had gone away and come back.
func reset(conn net.Conn) {
	_ = conn.(*net.TCPConn).SetLinger(0)
	_ = conn.Close()
}
