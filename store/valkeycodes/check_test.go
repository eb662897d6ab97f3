package valkeycodes_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/valkey-io/valkey-go"

	"github.com/cardvault/cardvault/internal/realtest"
	"github.com/cardvault/cardvault/store/valkeycodes"
)

// opens checks that Open succeeds, or fails with want in its error.
func opens(t *testing.T, what string, client valkey.ClientOption, o *valkeycodes.Options, want string) {
	t.Helper()
	c, err := valkeycodes.Open(t.Context(), client, patient(o))
	switch {
	case want == "" && err != nil:
		t.Errorf("%s: Open = %v", what, err)
	case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
		t.Errorf("%s: Open = %v, want something about %q", what, err, want)
	}
	if c == nil {
		return
	}
	if err := errors.Join(c.Ping(t.Context()), c.Put(t.Context(), id(1), nil, time.Minute), c.Close()); err != nil {
		t.Errorf("%s: %v", what, err)
	}
}

// TestPersistence: a server that persists, or hides whether it does, is refused unless the
// options allow it.
func TestPersistence(t *testing.T) {
	persistence, unchecked := &valkeycodes.Options{AllowPersistence: true}, &valkeycodes.Options{AllowUnchecked: true}
	for _, test := range []struct {
		setting, value       string
		refused, ifUnchecked string // why
	}{
		{"save", "3600 1 300 100", "save is set", "save is set"},
		{"appendonly", "yes", "appendonly is set", "appendonly is set"},
		{"rename-command", `CONFIG ""`, "does not report", ""},
		{"maxmemory", "100mb", "", ""},
	} {
		addr := realtest.Redis(t, &realtest.RedisOptions{Settings: map[string]string{test.setting: test.value}}).Addr()
		what := test.setting + " " + test.value
		opens(t, what, at(addr), nil, test.refused)
		opens(t, what+", AllowUnchecked", at(addr), unchecked, test.ifUnchecked)
		opens(t, what+", AllowPersistence", at(addr), persistence, "")
	}
}

// TestPersistsLater: every new connection checks that the server does not persist.
func TestPersistsLater(t *testing.T) {
	s := realtest.Redis(t, nil)
	p := realtest.NewProxy(t, s.Addr())
	c := open(t, p.Addr(), nil)
	put(t, c, 1)
	a := administer(t, s)
	a.run("CONFIG", "SET", "save", "3600 1")
	p.Cut()
	p.Resume()
	eventually(t, "the server is still taken", func() error {
		if err := c.Put(t.Context(), id(2), nil, time.Minute); err == nil || !strings.Contains(err.Error(), "save is set") {
			return fmt.Errorf("Put = %v", err)
		}
		return nil
	})
	if keys := a.keys(); len(keys) != 1 {
		t.Errorf("a server that persists was given %d values, want those from before", len(keys))
	}
	a.run("CONFIG", "SET", "save", "")
	recovers(t, c)
}

// TestLogins: the commands listed by the package suffice, and a user that lacks one of them
// is refused.
func TestLogins(t *testing.T) {
	commands := []string{"get", "set", "del", "scan", "ping", "config|get"}
	const keys = " on >secret ~cardvault:code:* +auth +"
	settings := map[string]string{
		"requirepass": "master",
		"user vault":  keys + strings.Join(commands, " +"),
		"user other":  "on >secret ~other:* +auth +" + strings.Join(commands, " +"),
	}
	for n, command := range commands {
		rest := slices.Delete(slices.Clone(commands), n, n+1)
		settings["user no-"+command] = keys + strings.Join(rest, " +")
	}
	addr := realtest.Redis(t, &realtest.RedisOptions{Settings: settings}).Addr()
	login := func(name, password string) valkey.ClientOption {
		o := at(addr)
		o.Username, o.Password = name, password
		return o
	}
	opens(t, "no password", at(addr), nil, "NOAUTH")
	opens(t, "no password", at(addr), &valkeycodes.Options{AllowUnchecked: true}, "NOAUTH")
	opens(t, "no password", at(addr), &valkeycodes.Options{AllowPersistence: true}, "NOAUTH")
	opens(t, "another password", login("", "wrong"), nil, "WRONGPASS")
	opens(t, "another password of a user", login("vault", "wrong"), nil, "WRONGPASS")
	opens(t, "the password", login("", "master"), nil, "")
	opens(t, "a user", login("vault", "secret"), nil, "")
	opens(t, "a user of other keys", login("other", "secret"), nil, "refuses SET: NOPERM")
	opens(t, "a user of other keys, with their prefix", login("other", "secret"), &valkeycodes.Options{Prefix: "other:"}, "")
	for _, command := range commands {
		want := "refuses " + strings.ToUpper(command) + ": NOPERM"
		if command == "config|get" {
			want = "does not report"
		}
		opens(t, "a user without "+command, login("no-"+command, "secret"), nil, want)
	}
	o := at(addr)
	o.AuthCredentialsFn = func(valkey.AuthCredentialsContext) (valkey.AuthCredentials, error) {
		return valkey.AuthCredentials{Username: "vault", Password: "secret"}, nil
	}
	opens(t, "credentials of a function", o, nil, "")
}

// TestTooOld: a server that does not know HELLO is refused.
func TestTooOld(t *testing.T) {
	s := realtest.Redis(t, &realtest.RedisOptions{Settings: map[string]string{"rename-command": `HELLO ""`}})
	opens(t, "no HELLO", at(s.Addr()), nil, "refuses HELLO: unknown command")
}

// TestProtected: a server in protected mode is refused.
func TestProtected(t *testing.T) {
	addr := serve(t, nil, func(conn net.Conn) {
		if _, err := conn.Read(make([]byte, 4<<10)); err == nil {
			write(conn, []byte("-DENIED Redis is running in protected mode\r\n"))
		}
	})
	opens(t, "protected mode", at(addr), nil, "DENIED")
}

// TestSelect: a database other than the first is used if it exists.
func TestSelect(t *testing.T) {
	o := at(realtest.Redis(t, nil).Addr())
	o.SelectDB = 1
	opens(t, "a database", o, nil, "")
	o.SelectDB = 99
	opens(t, "a database that is not there", o, nil, "refuses SELECT: ERR")
}

// TestUnchecked: a server may refuse CONFIG GET in its own words.
func TestUnchecked(t *testing.T) {
	s := realtest.Redis(t, nil)
	for _, refusal := range []string{
		"-ERR Command is not available: 'CONFIG'. See https://docs.example",
		"-ERR command config not support for normal user",
		"-ERR Unsupported CONFIG parameter: save",
	} {
		addr := relay(t, nil, s.Addr(), func(client net.Conn, b []byte) {
			for name, value := range map[string]string{
				"save": "", "appendonly": "no", "slowlog-log-slower-than": "10000", "slowlog-max-len": "128",
			} {
				b = bytes.ReplaceAll(b, []byte("*2\r\n"+text(name)+text(value)), []byte(refusal+"\r\n"))
			}
			write(client, b)
		})
		opens(t, refusal, at(addr), nil, "does not report")
		opens(t, refusal+", AllowUnchecked", at(addr), &valkeycodes.Options{AllowUnchecked: true}, "")
	}
}

// TestSlowlog: a server with a slow log is accepted, with one warning.
func TestSlowlog(t *testing.T) {
	for _, test := range []struct {
		slower, length string
		warnings       int
	}{{"10000", "128", 1}, {"0", "128", 1}, {"-1", "128", 0}, {"0", "0", 0}} {
		s := realtest.Redis(t, &realtest.RedisOptions{Settings: map[string]string{
			"slowlog-log-slower-than": test.slower, "slowlog-max-len": test.length,
		}})
		var log logged
		c := open(t, s.Addr(), &valkeycodes.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		s.Restart(t)
		recovers(t, c)
		if got := log.count("level=WARN", "SLOWLOG"); got != test.warnings {
			t.Errorf("slower than %s, length %s: %d warnings, want %d", test.slower, test.length, got, test.warnings)
		}
	}
}

// A logged collects the log of a cache.
type logged struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logged) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

// count returns the number of lines that contain all words.
func (l *logged) count(words ...string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.text.String()) {
		if !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(line, w) }) {
			n++
		}
	}
	return n
}

// TestReplica: a read-only server is refused. A server that becomes read-only is given up,
// since its name may lead to another by then.
func TestReplica(t *testing.T) {
	old, next := realtest.Redis(t, nil), realtest.Redis(t, nil)
	var name atomic.Value
	name.Store(old.Addr())
	o := at("the name of both")
	o.DialCtxFn = func(ctx context.Context, _ string, dialer *net.Dialer, _ *tls.Config) (net.Conn, error) {
		return dialer.DialContext(ctx, "tcp", name.Load().(string))
	}
	c, err := valkeycodes.Open(t.Context(), o, patient(nil))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}()
	put(t, c, 1)
	begin := time.Now()
	administer(t, old).run("REPLICAOF", "127.0.0.1", "1")
	early, err := valkeycodes.Open(t.Context(), at(old.Addr()), patient(nil))
	if err != nil {
		t.Fatal(err) // not refused by Open: the name may lead to another server soon
	}
	if err := errors.Join(early.Ping(t.Context()), early.Close()); err == nil || !strings.Contains(err.Error(), "READONLY") {
		t.Errorf("Ping of a replica = %v", err)
	}
	if err := c.Put(t.Context(), id(2), nil, time.Hour); err == nil {
		t.Error("Put on a replica succeeds")
	}
	eventually(t, "Ping does not report it", func() error {
		if err := c.Ping(t.Context()); err == nil || !strings.Contains(err.Error(), "READONLY") {
			return fmt.Errorf("Ping = %v", err)
		}
		return nil
	})
	name.Store(next.Addr())
	eventually(t, "Put at the next server", func() error { return c.Put(t.Context(), id(1), []byte("1"), time.Hour) })
	holds(t, c, 1, "1")
	if took := time.Since(begin); took > 30*time.Second {
		t.Errorf("the next server is found after %v, no sooner than the connection ends anyway", took)
	}
}

func TestAddresses(t *testing.T) {
	for what, o := range map[string]valkey.ClientOption{
		"no server":   {},
		"two servers": {InitAddress: []string{"127.0.0.1:1", "127.0.0.1:2"}},
		"Sentinel":    {InitAddress: []string{"127.0.0.1:1"}, Sentinel: valkey.SentinelOption{MasterSet: "codes"}},
	} {
		opens(t, what, o, nil, "exactly one server address")
	}
}

// TestCluster: a server of a cluster has only part of the keys, and is refused.
func TestCluster(t *testing.T) {
	_, bus, err := net.SplitHostPort(realtest.Address(t))
	if err != nil {
		t.Fatal(err)
	}
	s := realtest.Redis(t, &realtest.RedisOptions{Settings: map[string]string{"cluster-enabled": "yes", "cluster-port": bus}})
	opens(t, "a cluster", at(s.Addr()), nil, "cluster")
}

// TestCrowded: a server without a free connection is unavailable for now.
func TestCrowded(t *testing.T) {
	s := realtest.Redis(t, &realtest.RedisOptions{Settings: map[string]string{"maxclients": "1"}})
	other, err := net.Dial("tcp", s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if _, err := io.WriteString(other, "PING\r\n"); err != nil {
		t.Fatal(err)
	}
	if _, err := other.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	c := open(t, s.Addr(), nil)
	if err := c.Ping(t.Context()); err == nil {
		t.Error("Ping of a server that is full succeeds")
	}
	_ = other.Close()
	recovers(t, c)
}

// TestBusy: a busy server's error is not a refusal of CONFIG GET: the check is repeated.
func TestBusy(t *testing.T) {
	s := realtest.Redis(t, &realtest.RedisOptions{Settings: map[string]string{"lua-time-limit": "1", "save": "3600 1"}})
	a := administer(t, s)
	script, err := net.Dial("tcp", s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer script.Close()
	if _, err := io.WriteString(script, "EVAL \"while true do end\" 0\r\n"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the server is not busy", func() error {
		if err := a.Do(t.Context(), a.B().Ping().Build()).Error(); err == nil || !strings.Contains(err.Error(), "BUSY") {
			return fmt.Errorf("PING = %v", err)
		}
		return nil
	})
	c := open(t, s.Addr(), nil)
	unchecked := open(t, s.Addr(), &valkeycodes.Options{AllowUnchecked: true})
	if err := unchecked.Put(t.Context(), id(1), nil, time.Minute); err == nil {
		t.Error("Put on a server that is busy succeeds")
	}
	a.run("SCRIPT", "KILL")
	for _, c := range []*valkeycodes.Cache{c, unchecked} {
		eventually(t, "the server is taken", func() error {
			if err := c.Put(t.Context(), id(1), nil, time.Minute); err == nil || !strings.Contains(err.Error(), "save is set") {
				return fmt.Errorf("Put = %v", err)
			}
			return nil
		})
	}
	if keys := a.keys(); len(keys) > 0 {
		t.Errorf("a server that persists was given %d values", len(keys))
	}
}

// TestOpenEnds: Open ends with its context, even if the server hangs.
func TestOpenEnds(t *testing.T) {
	s := realtest.Redis(t, nil)
	s.Stop()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if c, err := valkeycodes.Open(ctx, at(s.Addr()), nil); !errors.Is(err, context.DeadlineExceeded) || c != nil {
		t.Errorf("Open = %v, %v", c, err)
	}
}

// TestNotARedis: a server with other answers is refused, without waiting.
func TestNotARedis(t *testing.T) {
	for _, answer := range []string{"HTTP/1.1 400 Bad Request\r\n\r\n", "*2\r\n$4\r\nsave\r\n$9\r\nno\r\n", "*-1\r\n", strings.Repeat("x", 1<<20)} {
		addr := serve(t, nil, func(conn net.Conn) { _, _ = io.WriteString(conn, answer) })
		c := open(t, addr, hasty)
		if err := c.Put(t.Context(), id(1), nil, time.Minute); err == nil {
			t.Errorf("Put succeeds at a server that answers %.20q", answer)
		}
	}
}

// away is a connection to another host.
type away struct{ net.Conn }

func (away) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 6379} }

// dialAway is a DialCtxFn that connects to another host.
func dialAway(ctx context.Context, addr string, dialer *net.Dialer, config *tls.Config) (net.Conn, error) {
	conn, err := dialer.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	if config != nil {
		return tls.Client(away{conn}, config), nil
	}
	return away{conn}, nil
}

func TestPlaintext(t *testing.T) {
	o := at(realtest.Redis(t, nil).Addr())
	o.DialCtxFn = dialAway
	opens(t, "without TLS", o, nil, "needs TLS")
	opens(t, "without TLS, AllowPlaintext", o, &valkeycodes.Options{AllowPlaintext: true}, "")
}

func TestTLS(t *testing.T) {
	s := realtest.Redis(t, nil)
	config, roots := certificate(t)
	addr := relay(t, config, s.Addr(), write)
	o := at(addr)
	o.TLSConfig = &tls.Config{RootCAs: roots, ServerName: "127.0.0.1"}
	opens(t, "TLS", o, nil, "")
	o.DialCtxFn = dialAway
	opens(t, "TLS to another host", o, nil, "")
	o.DialCtxFn = nil
	o.TLSConfig = &tls.Config{RootCAs: x509.NewCertPool()}
	opens(t, "TLS of an unknown authority", o, nil, "certificate")
	o.TLSConfig = &tls.Config{InsecureSkipVerify: true}
	opens(t, "TLS of anybody on this host", o, nil, "")
	o.DialCtxFn = dialAway
	opens(t, "TLS of anybody", o, nil, "verified")
	opens(t, "TLS of anybody, AllowPlaintext", o, &valkeycodes.Options{AllowPlaintext: true}, "")
	o.TLSConfig.VerifyConnection = func(tls.ConnectionState) error { return nil }
	opens(t, "TLS that is verified by a function", o, nil, "")
}

// relay starts a server that passes everything on to another server. Its answers go through
// answer.
func relay(t *testing.T, config *tls.Config, to string, answer func(client net.Conn, b []byte)) (addr string) {
	t.Helper()
	return serve(t, config, func(client net.Conn) {
		server, err := net.Dial("tcp", to)
		if err != nil {
			return
		}
		defer server.Close()
		go func() {
			_, _ = io.Copy(server, client)
			_ = server.Close()
		}()
		b := make([]byte, 32<<10)
		for {
			n, err := server.Read(b)
			if err != nil {
				return
			}
			answer(client, b[:n])
		}
	})
}

// write passes an answer on.
func write(client net.Conn, b []byte) { _, _ = client.Write(b) }

// serve starts a server that calls handle for each connection. The test's end closes all of
// them.
func serve(t *testing.T, config *tls.Config, handle func(net.Conn)) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr = l.Addr().String()
	if config != nil {
		l = tls.NewListener(l, config)
	}
	var handlers sync.WaitGroup
	handlers.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			handlers.Go(func() {
				defer conn.Close()
				handle(conn)
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		handlers.Wait()
	})
	return addr
}

// certificate returns a server's configuration for 127.0.0.1, and the pool that trusts it.
func certificate(t *testing.T) (*tls.Config, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		NotAfter:     time.Now().Add(time.Hour),
		IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(leaf)
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}, roots
}
