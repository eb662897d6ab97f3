package exchange

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"math"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/cardvault/cardvault/internal/discreet"
	"github.com/cardvault/cardvault/internal/egress"
	"github.com/cardvault/cardvault/internal/erase"
)

const (
	writeBuffer = 16 << 10
	readBuffer  = 4 << 10
	maxInterim  = 8 // answers such as 100 Continue
)

// A connection carries one exchange at a time.
type connection struct {
	net.Conn // an erasing one
	in       *bufio.Reader
	source   *source
	written  bool      // some of the present request; for the sending goroutine until it has ended
	woken    chan bool // of an idle connection: whether it is as it was
}

// A source counts the bytes that a connection reads.
type source struct {
	net.Conn
	left   int    // bytes that may be read
	buffer []byte // of the bufio.Reader above
}

func (s *source) Read(p []byte) (int, error) {
	if s.left == 0 {
		return 0, errHeaderTooLong
	}
	if s.buffer == nil { // the head of an answer is read first, so it is the whole buffer
		s.buffer = p
	}
	// The goroutine may leave its thread here, which has copied the bytes read before.
	erase.Registers()
	n, err := s.Conn.Read(p[:min(len(p), s.left)])
	s.left -= n
	return n, err
}

// take returns an idle connection, or makes one.
func (c *Client) take(ctx context.Context) (*connection, error) {
	for {
		c.mu.Lock()
		last := len(c.idle) - 1
		if last < 0 {
			c.mu.Unlock()
			return c.connect(ctx)
		}
		conn := c.idle[last]
		c.idle = c.idle[:last]
		c.mu.Unlock()

		_ = conn.SetReadDeadline(time.Unix(1, 0)) // ends the read of park
		if <-conn.woken {
			return conn, nil
		}
		_ = conn.Close()
	}
}

// park keeps a connection for the next request. It is read from meanwhile: an idle
// connection has nothing to say, except that it ends.
func (c *Client) park(conn *connection) {
	conn.woken = make(chan bool, 1)
	// Before another call can take it: that ends the time by a deadline of its own.
	sound := conn.SetDeadline(time.Now().Add(idleTimeout)) == nil

	c.mu.Lock()
	keep := sound && !c.closed && len(c.idle) < maxIdle
	if keep {
		c.idle = append(c.idle, conn)
	}
	c.mu.Unlock()
	if !keep {
		_ = conn.Close()
		return
	}

	go func() {
		_, err := conn.in.Peek(1)
		if c.drop(conn) {
			_ = conn.Close()
		}
		conn.woken <- egress.Late(err)
	}()
}

// drop removes an idle connection, and returns false if it was taken before.
func (c *Client) drop(conn *connection) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, other := range c.idle {
		if other == conn {
			c.idle = append(c.idle[:i], c.idle[i+1:]...)
			return true
		}
	}
	return false
}

// connect makes a connection. Nothing is written to it above TLS.
func (c *Client) connect(ctx context.Context) (*connection, error) {
	plain, err := c.dial(ctx, "tcp", c.address)
	if err != nil {
		return nil, egress.DialError(err)
	}
	if c.tls == nil {
		return newConnection(plain), nil
	}
	secure := tls.Client(plain, c.tls)
	if err := secure.HandshakeContext(ctx); err != nil {
		_ = plain.Close()
		return nil, egress.TLSError(err)
	}
	return newConnection(secure), nil
}

func newConnection(conn net.Conn) *connection {
	s := &source{Conn: conn}
	return &connection{Conn: discreet.Erasing(conn), source: s, in: bufio.NewReaderSize(s, readBuffer)}
}

// send writes a request through a buffer that the connection erases.
func (c *connection) send(host string, r *Request) error {
	w := writer{connection: c, buffer: buffers.Get().(*[writeBuffer]byte)}
	defer buffers.Put(w.buffer) // erased by each flush

	put(&w, r.Method+" "+r.Target.RequestURI()+" HTTP/1.1\r\nHost: "+host+"\r\n")
	if r.Body != nil || r.Method == http.MethodPost || r.Method == http.MethodPut || r.Method == http.MethodPatch {
		put(&w, "Content-Length: "+strconv.FormatInt(r.Size, 10)+"\r\n")
	}
	for _, f := range r.Header {
		put(&w, f.Name)
		put(&w, ": ")
		put(&w, f.Value)
		put(&w, "\r\n")
	}
	put(&w, "\r\n")

	for r.Body != nil && w.err == nil {
		n, err := r.Body.Read(w.buffer[w.used:])
		w.used += n
		if err == io.EOF {
			break
		}
		if w.used == writeBuffer {
			w.flush()
		}
		if err != nil {
			w.err = err
		}
	}
	w.flush()
	return w.err
}

var buffers = sync.Pool{New: func() any { return new([writeBuffer]byte) }}

// A writer writes through a buffer until the first error.
type writer struct {
	*connection
	buffer *[writeBuffer]byte
	used   int
	err    error
}

func put[T string | []byte](w *writer, text T) {
	for len(text) > 0 && w.err == nil {
		n := copy(w.buffer[w.used:], text)
		w.used, text = w.used+n, text[n:]
		if w.used == writeBuffer {
			w.flush()
		}
	}
}

// flush empties the buffer, which the connection erases.
func (w *writer) flush() {
	switch {
	case w.used == 0:
		return
	case w.err == nil:
		w.written = true
		_, w.err = w.Write(w.buffer[:w.used])
	default:
		clear(w.buffer[:w.used])
	}
	w.used = 0
}

// receive reads the head of an answer.
func (c *connection) receive(method string) (*http.Response, error) {
	c.source.left = maxHeader
	defer func() { c.source.left = math.MaxInt }()
	for range maxInterim {
		resp, err := http.ReadResponse(c.in, &http.Request{Method: method})
		switch {
		case err != nil:
			return nil, err
		case resp.StatusCode == http.StatusSwitchingProtocols:
			return nil, errors.New("exchange: another protocol")
		case resp.StatusCode >= 200:
			return resp, nil
		}
	}
	return nil, errors.New("exchange: too many interim answers")
}
