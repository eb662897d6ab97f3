package httpapi

import (
	"errors"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// maxProxies bounds the trusted proxies through which a request may have come.
const maxProxies = 16

// completeClientAddr sets ClientAddr, or returns what is wrong with the options about it.
func (o *Options) completeClientAddr() error {
	o.TrustedProxies = slices.Clone(o.TrustedProxies)
	for i, p := range o.TrustedProxies {
		if !p.IsValid() || p.Bits() == 0 || p.Addr().Is4In6() {
			return errors.New("httpapi: Options.TrustedProxies must hold ranges of IPv4 or IPv6 addresses, not of all")
		}
		o.TrustedProxies[i] = p.Masked()
	}
	switch {
	case o.ClientAddr == nil:
		o.ClientAddr = o.client
	case len(o.TrustedProxies) > 0:
		return errors.New("httpapi: Options.ClientAddr and TrustedProxies must not both be set")
	}
	return nil
}

// client returns the address of the client: the peer of the connection, or the address from
// which trusted proxies have passed a request on. It is the zero Addr if it is not known.
func (o *Options) client(r *http.Request) netip.Addr {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return netip.Addr{}
	}
	at, _ := netip.ParseAddr(host)
	at = at.Unmap()
	if !o.trusts(at) {
		return at
	}

	// From the end: all before the address of a client may be the client's own words.
	chain := strings.Join(r.Header["X-Forwarded-For"], ",")
	for range maxProxies {
		if chain == "" {
			return at // a proxy's own request
		}
		i := strings.LastIndexByte(chain, ',')
		if at = forwardedAddr(chain[i+1:]); !o.trusts(at) {
			return at
		}
		chain = chain[:max(i, 0)]
	}
	return netip.Addr{}
}

func (o *Options) trusts(a netip.Addr) bool {
	return slices.ContainsFunc(o.TrustedProxies, func(p netip.Prefix) bool { return p.Contains(a) })
}

// forwardedAddr reads an address of X-Forwarded-For: some proxies add its port.
func forwardedAddr(text string) netip.Addr {
	text = strings.TrimSpace(text)
	if a, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(text, "["), "]")); err == nil {
		return a.Unmap()
	}
	a, _ := netip.ParseAddrPort(text)
	return a.Addr().Unmap()
}
