package realtest

import (
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
	"testing"
)

// Address returns an address of 127.0.0.1 with no listener until the test, or a process
// that it starts, listens there. It stays reserved until the test ends, even while a server
// there restarts.
func Address(t testing.TB) string {
	t.Helper()
	address, release, err := Reserve()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(release)
	return address
}

// Reserve returns an address as [Address] does. It stays reserved until release is called.
func Reserve() (address string, release func(), err error) {
	p, err := reserve()
	if err != nil {
		return "", nil, err
	}
	return p.addr(), p.release, nil
}

// A place is a reserved port.
//
// A port of the system's choice is free for a moment only: once it is closed it may be
// given to any other socket, even as the near end of a connection.
type place struct {
	port int
	mark net.PacketConn
}

// Systems choose ports above these: Linux from 32768 on, others from 49152 on.
const firstPort, lastPort = 10_000, 32_767

// reserve finds a free port and marks it for other tests, of other processes too, by
// the UDP port of the same number.
func reserve() (*place, error) {
	err := errors.New("no port")
	for range 1000 {
		p := &place{port: firstPort + rand.IntN(lastPort-firstPort+1)}
		if p.mark, err = net.ListenPacket("udp", p.addr()); err != nil {
			continue
		}

		var l net.Listener
		if l, err = net.Listen("tcp", p.addr()); err == nil {
			return p, l.Close()
		}
		p.release()
	}
	return nil, err
}

func (p *place) addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(p.port)) }

func (p *place) release() { p.mark.Close() }
