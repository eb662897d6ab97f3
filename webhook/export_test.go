package webhook

import (
	"errors"
	"net"
	"syscall"
)

// Resolve makes s look up hosts with r.
func Resolve(s *Sender, r *net.Resolver) { s.dialer.Resolver = r }

// Watch makes s call passed with each address that its rules let it connect to. It connects
// only if passed returns true.
func Watch(s *Sender, passed func(address string) bool) {
	rules := s.dialer.Control
	s.dialer.Control = func(network, address string, c syscall.RawConn) error {
		if rules != nil {
			if err := rules(network, address, c); err != nil {
				return err
			}
		}
		if !passed(address) {
			return errors.New("not in this test")
		}
		return nil
	}
}
