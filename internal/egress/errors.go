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

// An Error gives the reason for a missing connection, in words of this package: the
// errors of net, crypto/tls and crypto/x509 quote addresses, resolvers and certificates.
type Error string

func (e Error) Error() string { return string(e) }

// Late reports whether a deadline has passed; the contexts of the attempt and of the
// connection have one each.
func Late(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded)
}

// DialError returns the Error of a connection that was not made, or
// context.DeadlineExceeded.
func DialError(err error) error {
	if Late(err) {
		return context.DeadlineExceeded
	}
	if errors.Is(err, ErrAddress) {
		return Error("host is not at a public address")
	}
	if e, ok := errors.AsType[*net.DNSError](err); ok {
		if e.IsNotFound {
			return Error("host is unknown")
		}
		return Error("host cannot be looked up")
	}
	if e, ok := errors.AsType[syscall.Errno](err); ok {
		return Error("connect: " + e.Error())
	}
	return Error("host cannot be reached")
}

// TLSError returns the Error of a handshake that failed, or context.DeadlineExceeded.
func TLSError(err error) error {
	if Late(err) {
		return context.DeadlineExceeded
	}
	if _, ok := errors.AsType[x509.HostnameError](err); ok {
		return Error("TLS: certificate is not for the host")
	}
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		return Error("TLS: certificate is of an unknown authority")
	}
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return Error("TLS: certificate is not valid")
	}
	return Error("TLS: handshake failed")
}

// AnswerError returns the Error of a request without an answer: that of the connection if
// none was made. The errors of net/http quote malformed answers.
func AnswerError(err error) error {
	if e, ok := errors.AsType[Error](err); ok {
		return e
	}
	if e, ok := errors.AsType[syscall.Errno](err); ok {
		return Error("connection is lost: " + e.Error())
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return Error("connection was closed without an answer")
	}
	return Error("answer is not HTTP or too long, or the connection is lost")
}
