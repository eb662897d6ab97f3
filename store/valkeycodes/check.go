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
	"sync"
	"time"

	"github.com/valkey-io/valkey-go"
)

// unfit describes why a server that answers cannot be used.
type unfit string

func (u unfit) Error() string { return string(u) }

// A checker connects to servers, and to none that is not fit for security codes. It
// tries each connection: a server that starts again may do so with other settings.
type checker struct {
	client valkey.ClientOption
	opts   Options
	lost   func() // is called when a connection that was returned is closed
	warned sync.Once
}

// dial is a [valkey.ClientOption.DialCtxFn].
func (c *checker) dial(ctx context.Context, addr string, dialer *net.Dialer, config *tls.Config) (net.Conn, error) {
	if ctx.Done() == nil {
		// valkey.NewClient does not let its caller give up.
		return nil, errors.New("connect with the first call")
	}
	conn, err := c.connect(ctx, addr, dialer, config)
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return nil, unfit("the server's certificate is not trusted")
	}
	if err != nil {
		return nil, err
	}

	// Closing a connection discards unsent commands: a SET would bring back a code that is
	// erased over the next connection.
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
		return unfit("a connection that leaves the host needs TLS, with a verified certificate")
	}
	ctx, cancel := context.WithTimeout(ctx, max(limit, c.opts.Patience))
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

// private reports whether no third party can listen.
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

// The settings that make a server write to disk, or remember commands.
var (
	persistence = []struct{ name, off string }{{"save", ""}, {"appendonly", "no"}}
	slowlog     = []string{"slowlog-log-slower-than", "slowlog-max-len"}
)

// ask asks the server for its role and settings, and tries each command that the cache
// needs. It uses version 2 of the protocol, in which every connection begins.
func (c *checker) ask(conn net.Conn) error {
	ask, err := c.login(conn)
	if err != nil {
		return err
	}
	auth := len(ask) > 0
	ask = appendCommand(ask, "HELLO")
	for _, setting := range persistence {
		ask = appendCommand(ask, "CONFIG", "GET", setting.name)
	}
	for _, name := range slowlog {
		ask = appendCommand(ask, "CONFIG", "GET", name)
	}
	trial := c.trial()
	for _, words := range trial {
		ask = appendCommand(ask, words...)
	}
	if _, err := conn.Write(ask); err != nil {
		return err
	}

	r := bufio.NewReaderSize(conn, 1<<10)
	if auth {
		if _, err := readAnswer(r); err != nil {
			return err
		}
	}

	hello, err := readAnswer(r)
	if no, ok := errors.AsType[refusal](err); ok && no.lasts() && no != "ERR" { // which is also that it is full
		return unfit("the server refuses HELLO: " + string(no))
	}
	if err != nil {
		return err
	}

	if mode := valueOf(hello, "mode"); mode != "" && mode != "standalone" {
		return unfit("the server is one of several: " + mode)
	}
	if err := c.persists(r); err != nil {
		return err
	}
	if err := c.remembers(r); err != nil {
		return err
	}

	for _, words := range trial {
		_, err := readAnswer(r)
		no, _ := errors.AsType[refusal](err)
		switch {
		case no == "OOM": // and keeps its values
		case no.lasts():
			return unfit("the server refuses " + words[0] + ": " + string(no))
		case err != nil:
			return err
		}
	}

	if r.Buffered() > 0 {
		return errProtocol
	}
	return nil
}

// login returns the command with which a connection begins, if it does.
func (c *checker) login(conn net.Conn) ([]byte, error) {
	user, password := c.client.Username, c.client.Password
	if c.client.AuthCredentialsFn != nil {
		creds, err := c.client.AuthCredentialsFn(valkey.AuthCredentialsContext{Address: conn.RemoteAddr()})
		if err != nil {
			return nil, err
		}
		user, password = creds.Username, creds.Password
	}
	switch {
	case user != "":
		return appendCommand(nil, "AUTH", user, password), nil
	case password != "":
		return appendCommand(nil, "AUTH", password), nil
	}
	return nil, nil
}

// trial returns the commands that a cache needs, on a key that belongs to no token.
func (c *checker) trial() [][]string {
	key := c.opts.Prefix + "check"
	trial := [][]string{
		{"PING"}, {"SET", key, "", "PX", "1000"}, {"GET", key}, {"DEL", key}, {"SCAN", "0", "MATCH", ""},
	}
	if c.client.SelectDB == 0 {
		return trial
	}
	return append([][]string{{"SELECT", strconv.Itoa(c.client.SelectDB)}}, trial...)
}

// persists reads whether the server does.
func (c *checker) persists(r *bufio.Reader) error {
	for _, setting := range persistence {
		value, known, err := configured(r)
		switch {
		case err != nil:
			return err
		case c.opts.AllowPersistence:
		case !known && !c.opts.AllowUnchecked:
			return unfit("the server does not report whether it writes to disk (CONFIG GET " + setting.name + ")")
		case known && value != setting.off:
			return unfit("the server writes to disk: " + setting.name + " is set")
		}
	}
	return nil
}

// remembers reads whether the server keeps commands that were slow.
func (c *checker) remembers(r *bufio.Reader) error {
	slower, known, err := configured(r)
	if err != nil {
		return err
	}
	length, _, err := configured(r)
	if err != nil {
		return err
	}
	if known && !strings.HasPrefix(slower, "-") && length != "0" {
		c.warned.Do(func() {
			c.opts.Logger.Warn("the server may keep sealed security codes in its SLOWLOG: set slowlog-log-slower-than to -1")
		})
	}
	return nil
}

// configured reads the answer to CONFIG GET of one setting, which the server may withhold.
func configured(r *bufio.Reader) (value string, known bool, err error) {
	words, err := readAnswer(r)
	if no, _ := errors.AsType[refusal](err); no.lasts() {
		return "", false, nil
	}
	if err != nil || len(words) != 2 {
		return "", false, err
	}
	return words[1], true, nil
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

// A refusal is the kind of error with which a server answers.
type refusal string

func (r refusal) Error() string { return "the server refuses: " + string(r) }

// lasts reports whether the server will refuse the next time, too. Other refusals pass: the
// server is busy, loading, or a replica that its name leads to for a while.
func (r refusal) lasts() bool {
	switch r {
	case "NOPERM", "ERR", unknown:
		return true
	}
	return false
}

const unknown refusal = "unknown command" // which is an ERR for certain

var errProtocol = errors.New("not the answer of a Valkey or Redis server")

const maxElements = 256 // of the answer to HELLO, which lists modules

// readAnswer reads the answer to a command: its strings, including those in nested arrays.
func readAnswer(r *bufio.Reader) (words []string, err error) {
	left := 1
	for n := 0; n < left; n++ {
		head, err := readLine(r)
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
			if head == "$-1" {
				words = append(words, "")
				continue
			}
			text, err := readLine(r)
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
	case kind == "NOAUTH", kind == "WRONGPASS", kind == "DENIED", strings.HasPrefix(head, "-ERR AUTH "): // no password is set
		return unfit("the server refuses the login: " + kind)
	case strings.HasPrefix(head, "-ERR unknown command"):
		return unknown
	default:
		return refusal(kind)
	}
}

// readLine reads a line, without its end.
func readLine(r *bufio.Reader) (string, error) {
	b, err := r.ReadSlice('\n')
	if err != nil {
		return "", err
	}
	return strings.TrimSuffix(string(b), "\r\n"), nil
}

// word returns the kind of error that a server answers with, such as NOPERM. The rest may
// repeat the command.
func word(reply string) string {
	kind, _, _ := strings.Cut(strings.TrimPrefix(reply, "-"), " ")
	if len(kind) > 16 || strings.Trim(kind, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") != "" {
		return "ERR" // which the client leaves out
	}
	return kind
}
