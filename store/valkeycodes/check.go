package valkeycodes

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/valkey-io/valkey-go"
)

// unfit says what is wrong with a server that answers.
type unfit string

func (u unfit) Error() string { return string(u) }

// A checker connects to servers, and to none that is not fit for security codes. It
// looks at each connection: a server that starts again may do so with other settings.
type checker struct {
	client valkey.ClientOption
	opts   Options
}

// dial is a [valkey.ClientOption.DialCtxFn].
func (c *checker) dial(ctx context.Context, addr string, dialer *net.Dialer, config *tls.Config) (net.Conn, error) {
	if ctx.Done() == nil {
		// valkey.NewClient does not let its caller give up.
		return nil, errors.New("connect with the first call")
	}
	conn, err := c.connect(ctx, addr, dialer, config)
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return nil, unfit("the server's certificate is not to be trusted")
	}
	if err != nil {
		return nil, err
	}
	if err := c.fits(ctx, conn); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return conn, nil
}

func (c *checker) connect(ctx context.Context, addr string, dialer *net.Dialer, config *tls.Config) (net.Conn, error) {
	switch {
	case c.client.DialCtxFn != nil:
		return c.client.DialCtxFn(ctx, addr, dialer, config)
	case config != nil:
		return (&tls.Dialer{NetDialer: dialer, Config: config}).DialContext(ctx, "tcp", addr)
	}
	return dialer.DialContext(ctx, "tcp", addr)
}

func (c *checker) fits(ctx context.Context, conn net.Conn) error {
	if !c.opts.AllowPlaintext && !private(conn) {
		return unfit("a connection that leaves the host needs TLS")
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now()) })
	defer stop()
	if err := c.ask(conn); err != nil {
		return err
	}
	if !stop() {
		return ctx.Err()
	}
	return nil
}

// private tells whether nobody else can listen.
func private(conn net.Conn) bool {
	if _, ok := conn.(*tls.Conn); ok {
		return true
	}
	switch addr := conn.RemoteAddr().(type) {
	case *net.TCPAddr:
		return addr.IP.IsLoopback()
	case *net.UnixAddr:
		return true
	}
	return false
}

// ask asks the server whether it persists, in version 2 of its protocol: in which
// every connection begins.
func (c *checker) ask(conn net.Conn) error {
	user, password := c.client.Username, c.client.Password
	if c.client.AuthCredentialsFn != nil {
		creds, err := c.client.AuthCredentialsFn(valkey.AuthCredentialsContext{Address: conn.RemoteAddr()})
		if err != nil {
			return err
		}
		user, password = creds.Username, creds.Password
	}
	var ask []byte
	switch {
	case user != "":
		ask = appendCommand(ask, "AUTH", user, password)
	case password != "":
		ask = appendCommand(ask, "AUTH", password)
	}
	auth := len(ask) > 0
	ask = appendCommand(ask, "CONFIG", "GET", "save")
	ask = appendCommand(ask, "CONFIG", "GET", "appendonly")
	if _, err := conn.Write(ask); err != nil {
		return err
	}
	r := bufio.NewReaderSize(conn, 1<<10) // has read nothing more when all is answered
	if auth {
		if answer, err := line(r); err != nil {
			return err
		} else if answer != "+OK" {
			return unfit("the server does not let in: " + word(answer))
		}
	}
	for _, setting := range []struct{ name, off string }{{"save", ""}, {"appendonly", "no"}} {
		value, told, err := readSetting(r)
		switch {
		case err != nil:
			return err
		case c.opts.AllowPersistence:
		case !told && !c.opts.AllowUnchecked:
			return unfit("the server does not tell whether it writes to disk (CONFIG GET " + setting.name + ")")
		case told && value != setting.off:
			return unfit("the server writes to disk: " + setting.name + " is set")
		}
	}
	return nil
}

func appendCommand(b []byte, words ...string) []byte {
	b = fmt.Appendf(b, "*%d\r\n", len(words))
	for _, w := range words {
		b = fmt.Appendf(b, "$%d\r\n%s\r\n", len(w), w)
	}
	return b
}

// readSetting reads an answer to CONFIG GET. A server may refuse, or not know the
// setting.
func readSetting(r *bufio.Reader) (value string, told bool, err error) {
	head, err := line(r)
	switch {
	case err != nil:
		return "", false, err
	case strings.HasPrefix(head, "-NOAUTH"):
		return "", false, unfit("the server does not let in: NOAUTH")
	case strings.HasPrefix(head, "-"), head == "*0":
		return "", false, nil
	case head != "*2":
		return "", false, errProtocol
	}
	for range 2 { // name and value
		size, err := line(r)
		if err != nil {
			return "", false, err
		}
		if value, err = line(r); err != nil {
			return "", false, err
		}
		if size != "$"+strconv.Itoa(len(value)) {
			return "", false, errProtocol
		}
	}
	return value, true, nil
}

var errProtocol = errors.New("not the answer of a Valkey or Redis server")

// line reads a line, without its end.
func line(r *bufio.Reader) (string, error) {
	b, err := r.ReadSlice('\n')
	if err != nil {
		return "", err
	}
	return strings.TrimSuffix(string(b), "\r\n"), nil
}

// word returns what kind of error a server answers with, such as NOPERM. The rest may
// repeat what was sent.
func word(reply string) string {
	kind, _, _ := strings.Cut(strings.TrimPrefix(reply, "-"), " ")
	if len(kind) > 16 || strings.Trim(kind, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") != "" {
		return "ERR" // which the client leaves out
	}
	return kind
}
