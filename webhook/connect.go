package webhook

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"

	"github.com/cardvault/cardvault/internal/discreet"
	"github.com/cardvault/cardvault/internal/egress"
)

// connect connects for http. After the attempt the transport keeps the connection for the
// next one.
func (s *Sender) connect(ctx context.Context, network, address string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	conn, err := s.dialer.DialContext(ctx, network, address)
	if err != nil {
		return nil, egress.DialError(err)
	}
	return discreet.Quiet(conn), nil
}

// connectTLS connects for https. TLS is made here because a quiet connection has to
// be above it.
func (s *Sender) connectTLS(ctx context.Context, network, address string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, egress.DialError(err)
	}
	conn, err := s.dialer.DialContext(ctx, network, address)
	if err != nil {
		return nil, egress.DialError(err)
	}
	config := s.tls.Clone()
	config.ServerName = host
	secure := tls.Client(conn, config)
	if err := secure.HandshakeContext(ctx); err != nil {
		_ = conn.Close() // nothing was sent that matters
		return nil, egress.TLSError(err)
	}
	return discreet.Quiet(secure), nil
}

// failure returns an error without the words of net/http, which quotes malformed answers.
func failure(ctx context.Context, err error) error {
	cause := ctx.Err()
	if cause == nil && egress.Late(err) {
		cause = context.DeadlineExceeded
	}
	if cause != nil {
		return fmt.Errorf("webhook: no answer: %w", cause)
	}
	return errors.New("webhook: " + egress.AnswerError(err).Error())
}
