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
	lost   func() // is called when a connection that was returned is closed
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
	// Whoever closes a connection takes back what has not been sent: a SET would bring
	// back a code that is erased over the next connection.
	if tcp, ok := inner(conn).(interface{ SetLinger(int) error }); ok {
		err = tcp.SetLinger(0)
	}
	if err == nil {
		err = c.fits(ctx, conn)
	}
	if err != nil {
		_ = inner(conn).Close()
		return nil, err
	}
	return guard(conn, c.lost), nil
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
	if !c.opts.AllowPlaintext && !c.private(conn) {
		return unfit("a connection that leaves the host needs TLS, with a certificate that is verified")
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
func (c *checker) private(conn net.Conn) bool {
	config := c.client.TLSConfig
	verified := config == nil || !config.InsecureSkipVerify || config.VerifyConnection != nil || config.VerifyPeerCertificate != nil
	if _, ok := conn.(*tls.Conn); ok && verified {
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

// ask asks the server what it is and whether it persists, in version 2 of its protocol: in
// which every connection begins.
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
	ask = appendCommand(ask, "HELLO")
	ask = appendCommand(ask, "CONFIG", "GET", "save")
	ask = appendCommand(ask, "CONFIG", "GET", "appendonly")
	if _, err := conn.Write(ask); err != nil {
		return err
	}
	r := bufio.NewReaderSize(conn, 1<<10)
	if auth {
		if _, err := answer(r); err != nil {
			return err
		}
	}
	hello, err := answer(r)
	if err != nil {
		return err
	}
	if mode := valueOf(hello, "mode"); mode != "" && mode != "standalone" {
		return unfit("the server is one of several: " + mode)
	}
	for _, setting := range []struct{ name, off string }{{"save", ""}, {"appendonly", "no"}} {
		words, err := answer(r)
		_, refused := errors.AsType[refusal](err)
		told := len(words) == 2
		switch {
		case err != nil && !refused:
			return err
		case c.opts.AllowPersistence:
		case !told && !c.opts.AllowUnchecked:
			return unfit("the server does not tell whether it writes to disk (CONFIG GET " + setting.name + ")")
		case told && words[1] != setting.off:
			return unfit("the server writes to disk: " + setting.name + " is set")
		}
	}
	if r.Buffered() > 0 {
		return errProtocol
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

// valueOf returns what follows a name, "" if it is not there.
func valueOf(words []string, name string) string {
	for i := 1; i < len(words); i++ {
		if words[i-1] == name {
			return words[i]
		}
	}
	return ""
}

// A refusal is the answer of a server that does not know a command, or keeps it from
// this user, and will do so the next time. Other errors pass: that it is full, or busy.
type refusal string

func (r refusal) Error() string { return "the server refuses: " + string(r) }

var errProtocol = errors.New("not the answer of a Valkey or Redis server")

const maxElements = 256 // of the answer to HELLO, which lists modules

// answer reads the answer to a command: its strings, also those of arrays within it.
func answer(r *bufio.Reader) (words []string, err error) {
	left := 1
	for n := 0; n < left; n++ {
		head, err := line(r)
		switch {
		case err != nil:
			return nil, err
		case head == "":
			return nil, errProtocol
		}
		switch head[0] {
		case '-':
			return nil, failure(head)
		case '+', ':':
			words = append(words, head[1:])
		case '$':
			text, err := line(r)
			if err != nil {
				return nil, err
			}
			if head[1:] != strconv.Itoa(len(text)) {
				return nil, errProtocol
			}
			words = append(words, text)
		case '*':
			more, err := strconv.Atoi(head[1:])
			if left += more; err != nil || more < 0 || more > maxElements || left > maxElements {
				return nil, errProtocol
			}
		default:
			return nil, errProtocol
		}
	}
	return words, nil
}

// failure returns the error that an answer is.
func failure(head string) error {
	switch kind := word(head); {
	case kind == "NOAUTH", kind == "WRONGPASS", strings.HasPrefix(head, "-ERR AUTH "): // no password is set
		return unfit("the server does not let in: " + kind)
	case kind == "NOPERM", strings.HasPrefix(head, "-ERR unknown command"):
		return refusal(kind)
	default:
		return errors.New("the server refuses for now: " + kind)
	}
}

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
