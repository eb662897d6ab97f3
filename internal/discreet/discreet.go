// Package discreet wraps connections so that http.Transport, or another buffer above them,
// leaks nothing of a request.
package discreet

import (
	"bufio"
	"net"

	"github.com/cardvault/cardvault/internal/erase"
)

// Quiet returns a connection that is read byte by byte. http.Transport would write any bytes
// that it has read after an answer to the log of the process.
func Quiet(c net.Conn) net.Conn { return quiet{c, bufio.NewReader(c)} }

type quiet struct {
	net.Conn
	in *bufio.Reader
}

// Read reads a byte.
func (c quiet) Read(p []byte) (int, error) { return c.in.Read(p[:min(len(p), 1)]) }

// Erasing returns a connection that erases everything that is written to it.
func Erasing(c net.Conn) net.Conn { return erasing{c} }

type erasing struct{ net.Conn }

// Write erases its input, which is more than [io.Writer] allows. The writer is a buffer,
// such as the bufio.Writer of http.Transport, that would otherwise keep the last request
// for as long as the connection is idle. It does not look again at bytes that it has
// flushed, and after an error it writes nothing more, so the rest of an incomplete
// write is erased too. Above TLS this is the plain text, which crypto/tls encrypts in place.
func (c erasing) Write(p []byte) (int, error) {
	erase.Registers() // p was copied, and the goroutine may leave its thread below
	defer func() {
		clear(p)
		erase.Registers()
	}()
	return c.Conn.Write(p)
}
