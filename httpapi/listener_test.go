package httpapi_test

import (
	"bytes"
	"net"
	"testing"

	"github.com/cardvault/cardvault/httpapi"
)

// TestErasing: the unread part of a connection's buffer is zero, also while the connection
// waits.
func TestErasing(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	client, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	conn, err := httpapi.Erasing(l).Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := client.Write([]byte("next")); err != nil {
		t.Fatal(err)
	}
	p := bytes.Repeat([]byte("4"), 4096)
	n, err := conn.Read(p)
	if err != nil || string(p[:n]) != "next" || !bytes.Equal(p[n:], make([]byte, len(p)-n)) {
		t.Errorf("read %d bytes, %v, and the buffer holds of the last request: %q", n, err, bytes.Trim(p[n:], "\x00"))
	}
	l.Close()
	if _, err := httpapi.Erasing(l).Accept(); err == nil {
		t.Error("a closed listener accepts a connection")
	}
}
