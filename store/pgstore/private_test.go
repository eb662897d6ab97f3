//go:build unix

package pgstore_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cardvault/cardvault/store/pgstore"
)

// certificate returns a certificate for 127.0.0.1, and a file that contains it.
func certificate(t *testing.T) (tls.Certificate, string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "root.pem")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, file
}

// A connection that would leave the host without verified TLS is refused before it is made.
// The test tries each host and each way to write it in the URL.
func TestPlaintext(t *testing.T) {
	_, root := certificate(t)
	for url, refused := range map[string]bool{
		"postgres://u:p@db.example/v?sslmode=disable":                                                      true,
		"postgres://u:p@db.example/v?sslmode=allow":                                                        true,
		"postgres://u:p@db.example/v?sslmode=prefer":                                                       true,
		"postgres://u:p@db.example/v":                                                                      true,
		"postgres://u:p@db.example/v?sslmode=require":                                                      true,
		"postgres://u:p@db.example/v?sslmode=verify-ca":                                                    true,
		"postgres://u:p@db.example/v?sslmode=verify-full":                                                  false,
		"postgres://u:p@db.example/v?sslmode=require&sslrootcert=" + root:                                  false,
		"postgres://u:p@db.example/v?sslmode=verify-ca&sslrootcert=" + root:                                false,
		"postgres://u:p@192.0.2.1/v?sslmode=disable":                                                       true,
		"postgres://u:p@127.0.0.1/v?sslmode=disable":                                                       false,
		"postgres://u:p@127.1.2.3/v?sslmode=prefer":                                                        false,
		"postgres://u:p@[::1]/v?sslmode=disable":                                                           false,
		"postgres://u:p@[::ffff:127.0.0.1]/v?sslmode=disable":                                              false,
		"postgres://u:p@localhost/v?sslmode=disable":                                                       false,
		"postgres://u:p@localhost.example/v?sslmode=disable":                                               true,
		"postgres://u:p@0.0.0.0/v?sslmode=disable":                                                         true,
		"postgres:///v?host=/run/postgresql&sslmode=disable":                                               false,
		"postgres://u:p@127.0.0.1,db.example/v?sslmode=disable&target_session_attrs=read-write":            true,
		"postgres://u:p@127.0.0.1,127.0.0.2:6432/v?sslmode=disable":                                        false,
		"postgres://u:p@db1.example,db2.example/v?sslmode=verify-full&target_session_attrs=read-write":     false,
		"postgres://u:p@db1.example,192.0.2.1/v?sslmode=require&target_session_attrs=read-write":           true,
		"postgres:///v?host=/run/postgresql,db.example&sslmode=prefer&target_session_attrs=prefer-standby": true,
	} {
		config, err := pgxpool.ParseConfig(url)
		if err != nil {
			t.Fatal(err)
		}
		dialed := false
		config.ConnConfig.LookupFunc = func(context.Context, string) ([]string, error) { return []string{"192.0.2.1"}, nil }
		config.ConnConfig.DialFunc = func(context.Context, string, string) (net.Conn, error) {
			dialed = true
			return nil, errors.New("there is no network")
		}
		p, err := pgxpool.NewWithConfig(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		_, err = pgstore.New(t.Context(), p, nil)
		if errors.Is(err, pgstore.ErrPlaintext) != refused || dialed == refused {
			t.Errorf("%s: New = %v, dialed: %t; want it refused: %t", url, err, dialed, refused)
		}
		if err := pgstore.Migrate(t.Context(), p, nil); errors.Is(err, pgstore.ErrPlaintext) != refused {
			t.Errorf("%s: Migrate = %v, want it refused: %t", url, err, refused)
		}
		if _, err = pgstore.New(t.Context(), p, &pgstore.Options{AllowPlaintext: true}); err == nil || errors.Is(err, pgstore.ErrPlaintext) {
			t.Errorf("%s: New = %v with AllowPlaintext", url, err)
		}
		p.Close()

		local := pool(t, "postgres://u@127.0.0.1:1/v?sslmode=disable")
		if _, err = pgstore.New(t.Context(), local, &pgstore.Options{Listen: config.ConnConfig}); errors.Is(err, pgstore.ErrPlaintext) != refused {
			t.Errorf("%s to listen: New = %v, want it refused: %t", url, err, refused)
		}
	}
}

// far is a connection that seems to leave the host.
type far struct{ net.Conn }

func (far) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 5432} }

// serveTLS accepts connections that begin with TLS, in PostgreSQL's way, and passes them on
// to a server.
func serveTLS(t *testing.T, server string, certificate tls.Certificate) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan bool)
	go func() {
		defer close(ended)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				ask := make([]byte, 8)
				if _, err := io.ReadFull(conn, ask); err != nil {
					return
				}
				if _, err := conn.Write([]byte("S")); err != nil {
					return
				}
				to, err := net.Dial("tcp", server)
				if err != nil {
					return
				}
				defer to.Close()
				client := tls.Server(conn, &tls.Config{Certificates: []tls.Certificate{certificate}})
				go func() { _, _ = io.Copy(to, client); _ = to.Close() }()
				_, _ = io.Copy(client, to)
			}()
		}
	}()
	t.Cleanup(func() { _ = l.Close(); <-ended })
	return l.Addr().String()
}

// The check looks at the address that a connection has reached, not at the settings.
func TestPlaintextMade(t *testing.T) {
	server := postgres.Get(t)
	direct := pool(t, server.URL("postgres"))
	name := schema(t, direct)
	own, root := certificate(t)
	secure := serveTLS(t, server.Addr(), own)
	away := func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, addr)
		return far{conn}, err
	}
	for what, test := range map[string]struct {
		at, settings string
		dial         func(context.Context, string, string) (net.Conn, error)
		before       func(context.Context, *pgx.ConnConfig) error
		refused      bool
	}{
		"plain on this host":          {server.Addr(), "sslmode=disable", nil, nil, false},
		"plain, elsewhere":            {server.Addr(), "sslmode=disable", away, nil, true},
		"verified, elsewhere":         {secure, "sslmode=verify-full&sslrootcert=" + root, away, nil, false},
		"verified by its root":        {secure, "sslmode=verify-ca&sslrootcert=" + root, away, nil, false},
		"encrypted, elsewhere":        {secure, "sslmode=require", away, nil, true},
		"encrypted on this host":      {secure, "sslmode=require", nil, nil, false},
		"encrypted or not, elsewhere": {secure, "sslmode=prefer", away, nil, true},
		"verified until it is made not": {secure, "sslmode=verify-full&sslrootcert=" + root, away, func(_ context.Context, c *pgx.ConnConfig) error {
			c.TLSConfig = &tls.Config{InsecureSkipVerify: true}
			return nil
		}, true},
	} {
		config, err := pgxpool.ParseConfig("postgres://cardvault@" + test.at + "/postgres?" + test.settings)
		if err != nil {
			t.Fatal(err)
		}
		if test.dial != nil {
			config.ConnConfig.DialFunc = test.dial
		}
		config.BeforeConnect = test.before
		p, err := pgxpool.NewWithConfig(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		s, err := pgstore.New(t.Context(), p, &pgstore.Options{Schema: name})
		if errors.Is(err, pgstore.ErrPlaintext) != test.refused || !test.refused && err != nil {
			t.Errorf("%s: New = %v, want it refused: %t", what, err, test.refused)
		}
		if err == nil {
			if err := put(s, record(len(what))); err != nil {
				t.Errorf("%s: Update = %v", what, err)
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		}
		if s, err = pgstore.New(t.Context(), p, &pgstore.Options{Schema: name, AllowPlaintext: true}); err != nil {
			t.Errorf("%s: New = %v with AllowPlaintext", what, err)
		} else if err := s.Close(); err != nil {
			t.Error(err)
		}
		p.Close()
	}
}
