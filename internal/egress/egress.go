// Package egress checks the addresses that a vault connects to, and gives the reason for a
// missing connection or answer in words that quote nothing.
package egress

import (
	"errors"
	"net/netip"
	"syscall"

	"code.dny.dev/ssrf"
)

// ErrAddress is the error of [Control] for an address that is not public. It does not name
// the address, which the caller that chose the host must not learn.
var ErrAddress = errors.New("egress: host is not at a public address")

// guardian refuses the ranges that IANA lists as special, and IPv6 outside 2000::/3. The
// extra denied address is public, and leads to the host of a virtual machine at Azure.
var guardian = ssrf.New(ssrf.WithDeniedV4Prefixes(netip.MustParsePrefix("168.63.129.16/32")))

// Public reports whether an address belongs to the public internet.
func Public(a netip.Addr) bool { return guardian.SafeAddr(a.Unmap()) == nil }

// Control is for [net.Dialer]: it refuses an address that is not public, after the name was
// looked up and before the connection is made.
func Control(_, address string, _ syscall.RawConn) error {
	to, err := netip.ParseAddrPort(address)
	if err != nil || !Public(to.Addr()) {
		return ErrAddress
	}
	return nil
}

// ControlLoopback is Control that also lets connections to this machine pass.
func ControlLoopback(network, address string, c syscall.RawConn) error {
	if to, err := netip.ParseAddrPort(address); err == nil && to.Addr().Unmap().IsLoopback() {
		return nil
	}
	return Control(network, address, c)
}
