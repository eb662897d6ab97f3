package httpapi

import "net"

// Erasing returns a listener whose connections erase their read buffer before they wait for
// more data. net/http keeps the last request of an idle connection in that buffer, and a
// card in it. With Erasing the request is gone while the connection waits for the next one.
// A server that speaks TLS itself puts it around the TLS listener, and speaks HTTP/1.1
// then.
func Erasing(l net.Listener) net.Listener { return erasing{l} }

type erasing struct{ net.Listener }

func (l erasing) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return erasingConn{c}, nil
}

type erasingConn struct{ net.Conn }

// Read may use all of p, says io.Reader.
func (c erasingConn) Read(p []byte) (int, error) {
	clear(p)
	return c.Conn.Read(p)
}
