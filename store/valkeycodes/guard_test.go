package valkeycodes_test

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cardvault/cardvault/internal/realtest"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/valkeycodes"
)

// TestAnswers: after any answer the process lives, the call fails, and the next connection
// works.
func TestAnswers(t *testing.T) {
	s := realtest.Redis(t, nil)
	const get, set = "$3\r\nabc\r\n", "+OK\r\n"
	for _, test := range []struct{ what, right, wrong string }{
		{"a length below -1", get, "$-5\r\n"},
		{"a length for which there is no room", get, "$9000000000000000000\r\n"},
		{"an invalid length", get, "$x\r\n"},
		{"an array of less than none", get, "*-7\r\n"},
		{"a large array", get, "*900000000000000000\r\n"},
		{"arrays in arrays", get, strings.Repeat("*1\r\n", 1<<20)},
		{"a line without an end", get, "+" + strings.Repeat("x", 4<<20)},
		{"a line that ends otherwise", get, "$33\nabc\r\n"},
		{"a message of another version", get, ">2\r\n+subscribe\r\n$1\r\na\r\n"},
		{"a number", get, ":1\r\n"},
		{"an array", get, "*1\r\n$3\r\nabc\r\n"},
		{"nothing for a value that is put", set, "$-1\r\n"},
		{"a value for a value that is put", set, get},
		{"an error for a value", get, "-ERR no\r\n"},
		{"a second answer", get, "-ERR shutting down\r\n" + get},
	} {
		var done atomic.Bool
		wrongly := func(client net.Conn, b []byte) {
			if string(b) == test.right && done.CompareAndSwap(false, true) {
				b = []byte(test.wrong)
			}
			write(client, b)
		}
		c := open(t, relay(t, nil, s.Addr(), wrongly), hasty)
		put := func() error { return c.Put(t.Context(), id(1), []byte("abc"), time.Hour) }
		var err error
		if test.right == get {
			eventually(t, test.what, put)
			_, err = c.Get(t.Context(), id(1))
		} else {
			err = put()
		}
		if err == nil || errors.Is(err, store.ErrNotFound) {
			t.Errorf("%s: %v", test.what, err)
		}
		eventually(t, test.what, put)
		holds(t, c, 1, "abc")
	}
}

// TestUnasked: an unsolicited answer, as from a proxy that shuts down, ends the connection
// and not the process.
func TestUnasked(t *testing.T) {
	s := realtest.Redis(t, nil)
	var left atomic.Int32
	left.Store(3)
	c := open(t, relay(t, nil, s.Addr(), func(client net.Conn, b []byte) {
		write(client, b)
		if string(b) == text("1") && left.Add(-1) >= 0 {
			write(client, []byte("-ERR shutting down\r\n"))
		}
	}), nil)
	put(t, c, 1)
	for left.Load() > 0 {
		_, _ = c.Get(t.Context(), id(1)) // which may fail: the connection ends
	}
	recovers(t, c)
	holds(t, c, 1, "1")
}

// TestReset: an abandoned connection is reset, so that its unsent data is never sent.
func TestReset(t *testing.T) {
	s := realtest.Redis(t, nil)
	config, roots := certificate(t)
	for what, config := range map[string]*tls.Config{"TCP": nil, "TLS": config} {
		arrived, closed, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
		addr := serve(t, config, func(client net.Conn) {
			server, err := net.Dial("tcp", s.Addr())
			if err != nil {
				return
			}
			defer server.Close()
			b := make([]byte, 32<<10)
			for {
				n, err := client.Read(b)
				if strings.Contains(string(b[:n]), id(1).String()) {
					close(arrived)
					<-closed
					_, err := io.Copy(io.Discard, client)
					ended <- err
					return
				}
				if err != nil {
					return
				}
				if _, err := server.Write(b[:n]); err != nil {
					return
				}
				if n, err = server.Read(b); err != nil {
					return
				}
				write(client, b[:n])
			}
		})
		o := at(addr)
		if config != nil {
			o.TLSConfig = &tls.Config{RootCAs: roots}
		}
		c, err := valkeycodes.Open(t.Context(), o, patient(nil))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			<-arrived
			cancel()
		}()
		if err := c.Put(ctx, id(1), nil, time.Hour); err == nil {
			t.Error("Put succeeds without an answer")
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		close(closed)
		if err := <-ended; !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("%s: the connection ends with %v, want a reset", what, err)
		}
	}
}
