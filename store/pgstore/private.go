package pgstore

import (
	"crypto/tls"
	"net"
	"net/netip"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// allPrivate reports whether every possible connection of these settings has TLS or needs
// none: each host counts. It makes no connection.
func allPrivate(c *pgx.ConnConfig) bool {
	for _, way := range ways(c) {
		if !verified(way.TLSConfig) && !local(way) {
			return false
		}
	}
	return true
}

// ways returns all ways to connect; the first that works is used. With sslmode=prefer there
// is one with TLS and one without.
func ways(c *pgx.ConnConfig) []*pgconn.FallbackConfig {
	return append([]*pgconn.FallbackConfig{{Host: c.Host, Port: c.Port, TLSConfig: c.TLSConfig}}, c.Fallbacks...)
}

// verified reports whether TLS proves with whom. sslmode=require and verify-ca do not, unless
// there is an sslrootcert: verify-ca ignores the name, and the roots of the system sign for all.
func verified(c *tls.Config) bool {
	return c != nil && (!c.InsecureSkipVerify || c.VerifyConnection != nil || c.VerifyPeerCertificate != nil && c.RootCAs != nil)
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

// private reports whether no one else can listen to a connection that was made: whatever
// its settings say, functions of the pool may have led elsewhere.
func private(c *pgx.Conn) bool {
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
