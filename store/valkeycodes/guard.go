package valkeycodes

import (
	"bytes"
	"crypto/tls"
	"errors"
	"math"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
)

// maxAnswer bounds an answer in bytes; each element of an array is charged elementSize.
const (
	maxAnswer   = 1 << 20
	elementSize = 64
)

// A guarded connection keeps answers from valkey-go that would end the process: it panics
// over an unsolicited answer and over a length below zero, and allocates any announced
// length. An answer like that ends the connection. Unsolicited answers come from a proxy
// that shuts down. An answer that the server is a replica ends the connection too: its name
// may lead to another server by now.
type guarded struct {
	net.Conn
	owed    atomic.Int64 // answers
	out, in messages
	closed  func() // is called when it is closed
}

func guard(conn net.Conn, closed func()) *guarded {
	return &guarded{Conn: conn, out: messages{limit: math.MaxInt}, in: messages{limit: maxAnswer}, closed: sync.OnceFunc(closed)}
}

func (g *guarded) Write(b []byte) (int, error) {
	// The client has each command in its queue before it is written.
	if _, err := g.out.pass(b, func() bool { g.owed.Add(1); return true }); err != nil {
		return 0, err
	}
	return g.Conn.Write(b)
}

func (g *guarded) Read(b []byte) (int, error) {
	n, err := g.Conn.Read(b)
	good, bad := g.in.pass(b[:n], func() bool { return g.owed.Add(-1) >= 0 })
	if bad != nil {
		return good, bad
	}
	if g.in.demoted {
		return n, errDemoted
	}
	return n, err
}

// Close does not say goodbye: see inner.
func (g *guarded) Close() error {
	defer g.closed()
	return inner(g.Conn).Close()
}

// inner returns the connection under TLS, which does not wait for the server to read that
// it is closed.
func inner(conn net.Conn) net.Conn {
	if t, ok := conn.(*tls.Conn); ok {
		return t.NetConn()
	}
	return conn
}

var errDemoted = errors.New("the server has become a replica")

// messages parses one direction of a connection, in version 2 of the protocol: simple
// strings, errors, integers, strings and arrays.
type messages struct {
	limit int // of one, in bytes

	room int    // of limit, for the message that has begun
	left int    // elements of it that have not ended with their line
	body int    // bytes of a string that follow
	line []byte // as far as it has come
	err  error

	demoted bool // READONLY was among them
}

// pass follows the stream through b, and calls begin for each message. It returns how
// much of b is good: all, unless there is an error.
func (m *messages) pass(b []byte, begin func() bool) (n int, err error) {
	for n < len(b) && m.err == nil {
		if skip := min(m.body, len(b)-n); skip > 0 {
			m.body -= skip
			n += skip
			continue
		}

		if m.left == 0 {
			if !begin() {
				m.err = errProtocol
				break
			}
			m.room, m.left = m.limit, 1
		}

		part := b[n:]
		end := bytes.IndexByte(part, '\n') + 1
		if end > 0 {
			part = part[:end]
		}
		m.line = append(m.line, part...)
		m.room -= len(part)
		if m.room < 0 || end > 0 && !m.element() {
			m.err = errProtocol
			break
		}

		n += len(part)
	}

	return n, m.err
}

// element ends a line, and returns whether it is one of the protocol.
func (m *messages) element() bool {
	line, ok := bytes.CutSuffix(m.line, []byte("\r\n"))
	m.line = m.line[:0]
	m.left--
	if !ok || len(line) == 0 {
		return false
	}

	switch line[0] {
	case '-':
		m.demoted = m.demoted || bytes.HasPrefix(line, []byte("-READONLY "))
		return true
	case '+', ':':
		return true
	case '$', '*':
	default:
		return false
	}

	n, err := strconv.Atoi(string(line[1:]))
	switch {
	case err != nil || n < -1 || n > m.room:
		return false
	case n < 0: // a null answer
	case line[0] == '$':
		m.body = n + len("\r\n")
		m.room -= n
	default:
		m.left += n
		m.room -= n * elementSize
	}

	return m.room >= 0
}
