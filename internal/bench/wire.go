package main

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"time"
)

// The generator of load over HTTP writes requests and reads answers on connections of its
// own: the client of net/http takes more of the two processors than the server under test.

// A caller makes the requests that are measured. Each goroutine has a connection, which is
// kept alive.
type caller struct {
	address     string
	header, key string             // of authentication; none if key is ""
	conns       [connections]*conn // made when a goroutine first calls
}

// connections is the largest number of goroutines.
const connections = 256

// Bounds of the time of a request, and of the bytes that one read adds to a body.
const (
	patience = time.Minute
	largest  = 8 << 20
)

// A conn is one connection, for one goroutine.
type conn struct {
	net.Conn
	in      *bufio.Reader
	request []byte
	body    []byte
}

// client serves h on loopback and returns a caller of it. stop ends both.
func client(h http.Handler, key string) (c *caller, stop func(), err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, err
	}
	s := &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second}
	go s.Serve(l)
	c = &caller{address: l.Addr().String(), header: "X-Api-Key", key: key}
	return c, func() { c.close(); s.Close() }, nil
}

func (c *caller) close() {
	for i, open := range c.conns {
		if open != nil {
			open.Close()
			c.conns[i] = nil
		}
	}
}

// do makes a request on the connection of the i-th goroutine, and returns the body of the
// answer, which is valid until the next. A status other than 2xx is an error.
func (c *caller) do(i int, method, path string, body []byte) (answer []byte, err error) {
	if c.conns[i] == nil {
		d := net.Dialer{Timeout: patience}
		tcp, err := d.Dial("tcp", c.address)
		if err != nil {
			return nil, err
		}
		c.conns[i] = &conn{Conn: tcp, in: bufio.NewReaderSize(tcp, 16<<10)}
	}

	status, answer, err := c.conns[i].exchange(c, method, path, body)
	if err != nil {
		c.conns[i].Close()
		c.conns[i] = nil
		return nil, err
	}
	if status/100 != 2 {
		return nil, fmt.Errorf("%s is answered with %d: %.200s", method, status, answer)
	}
	return answer, nil
}

// exchange writes a request and reads its answer.
func (c *conn) exchange(to *caller, method, path string, body []byte) (status int, answer []byte, err error) {
	r := append(c.request[:0], method...)
	r = append(append(r, ' '), path...)
	r = append(append(r, " HTTP/1.1\r\nHost: "...), to.address...)
	if to.key != "" {
		r = append(append(append(r, "\r\n"...), to.header...), ": "...)
		r = append(r, to.key...)
	}
	if body != nil {
		r = append(r, "\r\nContent-Type: application/json\r\nContent-Length: "...)
		r = strconv.AppendInt(r, int64(len(body)), 10)
	}
	c.request = append(append(r, "\r\n\r\n"...), body...)

	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return 0, nil, err
	}
	if _, err := c.Write(c.request); err != nil {
		return 0, nil, err
	}
	return c.answer()
}

var (
	lengthHeader  = []byte("Content-Length")
	chunkedHeader = []byte("Transfer-Encoding")

	errAnswer = errors.New("the answer is not HTTP/1.1")
)

// answer reads an answer of net/http: with a length, in chunks, or without a body.
func (c *conn) answer() (status int, body []byte, err error) {
	line, err := c.line()
	if err != nil {
		return 0, nil, err
	}
	_, rest, ok := bytes.Cut(line, []byte("HTTP/1.1 "))
	if !ok || len(rest) < 3 {
		return 0, nil, errAnswer
	}
	if status, err = strconv.Atoi(string(rest[:3])); err != nil {
		return 0, nil, errAnswer
	}

	length, chunked := 0, false
	for {
		line, err := c.line()
		if err != nil {
			return 0, nil, err
		}
		if len(line) == 0 {
			break
		}
		name, value, _ := bytes.Cut(line, []byte(":"))
		switch {
		case bytes.EqualFold(name, lengthHeader):
			length, err = strconv.Atoi(string(bytes.TrimSpace(value)))
			if err != nil || length < 0 {
				return 0, nil, errAnswer
			}
		case bytes.EqualFold(name, chunkedHeader):
			chunked = true
		}
	}

	c.body = c.body[:0]
	if chunked {
		err = c.chunks()
	} else {
		err = c.take(length)
	}
	return status, c.body, err
}

// take adds n bytes to the body.
func (c *conn) take(n int) error {
	if n > largest {
		return errAnswer
	}
	at := len(c.body)
	c.body = slices.Grow(c.body, n)[:at+n]
	_, err := io.ReadFull(c.in, c.body[at:])
	return err
}

// line returns a line without its end.
func (c *conn) line() ([]byte, error) {
	line, err := c.in.ReadSlice('\n')
	if err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(line[:len(line)-1], []byte("\r")), nil
}

// chunks reads a body in chunks, without a trailer.
func (c *conn) chunks() error {
	for {
		line, err := c.line()
		if err != nil {
			return err
		}
		n, err := strconv.ParseUint(string(line), 16, 31)
		if err != nil {
			return errAnswer
		}
		if err := c.take(int(n)); err != nil {
			return err
		}
		if line, err := c.line(); err != nil || len(line) > 0 {
			return cmp.Or(err, errAnswer)
		}
		if n == 0 {
			return nil
		}
	}
}
