package forward

import (
	"net"

	"github.com/google/uuid"
)

// Resolve has f look up hosts with r.
func Resolve(f *Forwarder, r *net.Resolver) {
	for _, d := range f.destinations {
		d.dialer.Resolver = r
	}
}

// ReadAll reads the body of an answer.
var ReadAll = readAll

// Allowance returns the take of an allowance.
func Allowance(daily int64) func(account uuid.UUID, n int) bool {
	return (&allowance{daily: daily}).take
}
