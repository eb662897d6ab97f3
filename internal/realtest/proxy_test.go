//go:build unix

package realtest_test

import (
	"bufio"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/cardvault/cardvault/internal/realtest"
)

// echo starts a server that answers every line with itself.
func echo(t *testing.T) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(conn, conn)
				_ = conn.Close()
			}()
		}
	}()
	t.Cleanup(func() { _ = l.Close(); <-ended })
	return l.Addr().String()
}

const soon = 50 * time.Millisecond

func works(t *testing.T, what string, conn net.Conn) {
	t.Helper()
	if got, err := line(t, conn, "hello\n", time.Minute); got != "hello\n" {
		t.Errorf("%s: %q, %v", what, got, err)
	}
}

// broken checks that a connection has ended, and not by a deadline.
func broken(t *testing.T, what string, conn net.Conn) {
	t.Helper()
	if got, err := line(t, conn, "hello\n", time.Minute); err == nil || os.IsTimeout(err) {
		t.Errorf("%s: %q, %v", what, got, err)
	}
}

// refused checks that a connection is reset, at once or soon.
func refused(t *testing.T, what string, p *realtest.Proxy) {
	t.Helper()
	conn, err := net.Dial("tcp", p.Addr())
	if err != nil {
		return
	}
	defer conn.Close()
	broken(t, what, conn)
}

func TestCut(t *testing.T) {
	p := realtest.NewProxy(t, echo(t))
	before := dial(t, p.Addr())
	works(t, "at first", before)
	p.Cut()
	broken(t, "connected before the cut", before)
	refused(t, "connected after the cut", p)
	p.Resume()
	works(t, "resumed", dial(t, p.Addr()))
}

func TestHang(t *testing.T) {
	p := realtest.NewProxy(t, echo(t))
	before := dial(t, p.Addr())
	works(t, "at first", before)
	p.Hang()
	after := dial(t, p.Addr())
	for what, conn := range map[string]net.Conn{"connected before": before, "connected after": after} {
		if got, err := line(t, conn, "lost\n", soon); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s it hangs: %q, %v", what, got, err)
		}
	}
	p.Resume()
	for what, conn := range map[string]net.Conn{"connected before": before, "connected after": after} {
		if got, err := line(t, conn, "", time.Minute); got != "lost\n" {
			t.Errorf("%s, resumed: %q, %v", what, got, err)
		}
	}
	p.Hang()
	if got, err := line(t, before, "lost\n", soon); !os.IsTimeout(err) {
		t.Errorf("it hangs again: %q, %v", got, err)
	}
	p.Cut()
	broken(t, "cut while it hangs", before)
}

func TestCutAfter(t *testing.T) {
	p := realtest.NewProxy(t, echo(t))
	for _, n := range []int{0, 3, 6, 9} {
		conn := dial(t, p.Addr())
		works(t, "before", conn)
		reached := p.CutAfter(n)
		if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		read := bufio.NewReader(conn)
		var got []byte
		for range 2 {
			if _, err := io.WriteString(conn, "hello\n"); err != nil {
				break
			}
			part, err := read.ReadBytes('\n')
			got = append(got, part...)
			if err != nil {
				break
			}
		}
		if want := "hello\nhello\n"[:n]; string(got) != want {
			t.Errorf("cut after %d bytes: %q arrives, want %q", n, got, want)
		}
		<-reached
		refused(t, "afterwards", p)
		p.Resume()
	}
}
