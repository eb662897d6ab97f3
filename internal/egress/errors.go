package egress

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
)

// A reason gives the reason for a missing connection, in words of this package: the
// errors of net, crypto/tls and crypto/x509 quote addresses, resolvers and certificates.
type reason string

func (e reason) Error() string { return string(e) }

// Late reports whether a deadline has passed; the contexts of the attempt and of the
// connection have one each.
func Late(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded)
}

// DialError returns the reason for a connection that was not made, or
// context.DeadlineExceeded.
func DialError(err error) error {
	if Late(err) {
		return context.DeadlineExceeded
	}
	if errors.Is(err, ErrAddress) {
		return reason("host is not at a public address")
	}
	if e, ok := errors.AsType[*net.DNSError](err); ok {
		if e.IsNotFound {
			return reason("host is unknown")
		}
		return reason("host cannot be looked up")
	}
	if e, ok := errors.AsType[syscall.Errno](err); ok {
		return reason("connect: " + e.Error())
	}
	return reason("host cannot be reached")
}

// TLSError returns the reason for a handshake that failed, or context.DeadlineExceeded.
func TLSError(err error) error {
	if Late(err) {
		return context.DeadlineExceeded
	}
	if _, ok := errors.AsType[x509.HostnameError](err); ok {
		return reason("TLS: certificate is not for the host")
	}
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		return reason("TLS: certificate is signed by an unknown authority")
	}
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return reason("TLS: certificate is not valid")
	}
	return reason("TLS: handshake failed")
}

// AnswerError returns the reason for a request without an answer: the reason for a missing
// connection, if none was made. The errors of net/http quote malformed answers.
func AnswerError(err error) error {
	if e, ok := errors.AsType[reason](err); ok {
		return e
	}
	if e, ok := errors.AsType[syscall.Errno](err); ok {
		return reason("connection is lost: " + e.Error())
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return reason("connection was closed without an answer")
	}
	return reason("answer is not HTTP or too long, or the connection is lost")
}
