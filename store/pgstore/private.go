package pgstore

import (
	"crypto/tls"
	"errors"
	"net"
	"net/netip"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// ErrPlaintext is returned for a connection that leaves the host, unless it is TLS with a
// certificate that is verified. See Options.AllowPlaintext.
var ErrPlaintext = errors.New("pgstore: a connection that leaves the host needs TLS, with a certificate that is verified")

// checkPrivate refuses settings by which a connection may be made that needs TLS and has
// none: each host of them counts. It makes no connection.
func (o *Options) checkPrivate(c *pgx.ConnConfig) error {
	if o != nil && o.AllowPlaintext {
		return nil
	}
	for _, way := range ways(c) {
		if !verified(way.TLSConfig) && !local(way) {
			return ErrPlaintext
		}
	}
	return nil
}

// ways returns all ways to connect, of which the first that works is taken: with
// sslmode=prefer one with TLS and one without.
func ways(c *pgx.ConnConfig) []*pgconn.FallbackConfig {
	return append([]*pgconn.FallbackConfig{{Host: c.Host, Port: c.Port, TLSConfig: c.TLSConfig}}, c.Fallbacks...)
}

// verified reports whether TLS proves with whom: with sslmode=require it does not, unless
// there is an sslrootcert.
func verified(c *tls.Config) bool {
	return c != nil && (!c.InsecureSkipVerify || c.VerifyConnection != nil || c.VerifyPeerCertificate != nil)
}

// local reports whether a connection stays on this host. That localhost does, is seen
// again when it is made.
func local(way *pgconn.FallbackConfig) bool {
	if network, _ := pgconn.NetworkAddress(way.Host, way.Port); network == "unix" || strings.EqualFold(way.Host, "localhost") {
		return true
	}
	ip, err := netip.ParseAddr(way.Host)
	return err == nil && ip.Unmap().IsLoopback()
}

// private reports whether nobody else can listen to a connection that was made: whatever
// its settings say, functions of the pool may have led elsewhere.
func (o *Options) private(c *pgx.Conn) bool {
	if o != nil && o.AllowPlaintext {
		return true
	}
	conn := c.PgConn().Conn()
	if conn, ok := conn.(*tls.Conn); ok {
		if len(conn.ConnectionState().VerifiedChains) > 0 {
			return true
		}
		all := true // which of them it is, is not known
		for _, way := range ways(c.Config()) {
			all = all && (way.TLSConfig == nil || verified(way.TLSConfig))
		}
		if all {
			return true
		}
	}
	switch addr := conn.RemoteAddr().(type) {
	case *net.TCPAddr:
		return addr.IP.IsLoopback()
	case *net.UnixAddr:
		return true
	}
	return false
}
