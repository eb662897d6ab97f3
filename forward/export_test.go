package forward

import "net"

// Resolve has f look up hosts with r.
func Resolve(f *Forwarder, r *net.Resolver) {
	for _, d := range f.destinations {
		d.dialer.Resolver = r
	}
}

// ReadAll reads the body of an answer.
var ReadAll = readAll
