// Package nametest answers look-ups of host names in tests.
package nametest

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"sync"
)

// A Zone is a name server with the same addresses for every name. A new one has none.
type Zone struct {
	mu        sync.Mutex
	addresses []netip.Addr // none: no such name
}

// Set replaces the addresses. Without any, no name is known.
func (z *Zone) Set(addresses ...string) {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.addresses = nil
	for _, a := range addresses {
		z.addresses = append(z.addresses, netip.MustParseAddr(a))
	}
}

// Resolver returns a resolver that asks the zone.
func (z *Zone) Resolver() *net.Resolver {
	return &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
		client, server := net.Pipe()
		go z.serve(server)
		return client, nil
	}}
}

// serve answers queries framed as over TCP: RFC 1035, section 4.2.2.
func (z *Zone) serve(conn net.Conn) {
	defer conn.Close()
	for {
		var size [2]byte
		if _, err := io.ReadFull(conn, size[:]); err != nil {
			return
		}
		query := make([]byte, binary.BigEndian.Uint16(size[:]))
		if _, err := io.ReadFull(conn, query); err != nil {
			return
		}
		answer := z.answer(query)
		if _, err := conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(answer))), answer...)); err != nil {
			return
		}
	}
}

func (z *Zone) answer(query []byte) []byte {
	z.mu.Lock()
	defer z.mu.Unlock()
	end := 12 // of the question
	for query[end] != 0 {
		end += 1 + int(query[end])
	}
	end += 5

	kind := binary.BigEndian.Uint16(query[end-4:])
	a := append([]byte{query[0], query[1], 0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0}, query[12:end]...)
	if len(z.addresses) == 0 {
		a[3] |= 3
	}
	for _, address := range z.addresses {
		if (kind == 1) != address.Is4() || kind != 1 && kind != 28 {
			continue
		}
		a[7]++
		b := address.AsSlice()
		a = append(a, 0xc0, 12, 0, byte(kind), 0, 1, 0, 0, 0, 0, 0, byte(len(b)))
		a = append(a, b...)
	}
	return a
}
