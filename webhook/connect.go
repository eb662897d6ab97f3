package webhook

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
)

// A connectError gives the reason for a missing connection, in words of this package: the
// errors of net, crypto/tls and crypto/x509 quote addresses, resolvers and certificates.
type connectError string

func (e connectError) Error() string { return "webhook: " + string(e) }

// connect connects for http. After the attempt the transport keeps the connection for the
// next one.
func (s *Sender) connect(ctx context.Context, network, address string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	conn, err := s.dialer.DialContext(ctx, network, address)
	if err != nil {
		return nil, dialError(err)
	}
	return quiet{conn, bufio.NewReader(conn)}, nil
}

// connectTLS connects for https. TLS is made here because a quiet connection has to
// be above it.
func (s *Sender) connectTLS(ctx context.Context, network, address string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, connectError("host cannot be reached")
	}
	conn, err := s.dialer.DialContext(ctx, network, address)
	if err != nil {
		return nil, dialError(err)
	}
	config := s.tls.Clone()
	config.ServerName = host
	secure := tls.Client(conn, config)
	if err := secure.HandshakeContext(ctx); err != nil {
		_ = conn.Close() // nothing was sent that matters
		return nil, tlsError(err)
	}
	return quiet{secure, bufio.NewReader(secure)}, nil
}

// late reports whether a deadline has passed; the contexts of the attempt and of the
// connection have one each.
func late(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded)
}

func dialError(err error) error {
	if late(err) {
		return context.DeadlineExceeded
	}
	if errors.Is(err, errHost) {
		return connectError("host is not at a public address")
	}
	if e, ok := errors.AsType[*net.DNSError](err); ok {
		if e.IsNotFound {
			return connectError("host is unknown")
		}
		return connectError("host cannot be looked up")
	}
	if e, ok := errors.AsType[syscall.Errno](err); ok {
		return connectError("connect: " + e.Error())
	}
	return connectError("host cannot be reached")
}

func tlsError(err error) error {
	if late(err) {
		return context.DeadlineExceeded
	}
	if _, ok := errors.AsType[x509.HostnameError](err); ok {
		return connectError("TLS: certificate is not for the host")
	}
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		return connectError("TLS: certificate is of an unknown authority")
	}
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return connectError("TLS: certificate is not valid")
	}
	return connectError("TLS: handshake failed")
}

// failure returns an error without the words of net/http, which quotes malformed answers.
func failure(ctx context.Context, err error) error {
	cause := ctx.Err()
	if cause == nil && late(err) {
		cause = context.DeadlineExceeded
	}
	if cause != nil {
		return fmt.Errorf("webhook: no answer: %w", cause)
	}
	if e, ok := errors.AsType[connectError](err); ok {
		return e
	}
	if e, ok := errors.AsType[syscall.Errno](err); ok {
		return connectError("connection is lost: " + e.Error())
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return connectError("connection was closed without an answer")
	}
	return connectError("answer is not HTTP or too long, or the connection is lost")
}

// A quiet connection is read byte by byte: what http.Transport has read behind an
// answer, it writes into the log of the process.
type quiet struct {
	net.Conn
	in *bufio.Reader
}

// Read reads a byte.
func (c quiet) Read(p []byte) (int, error) { return c.in.Read(p[:min(len(p), 1)]) }
