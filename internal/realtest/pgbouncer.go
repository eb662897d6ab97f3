//go:build unix

package realtest

import (
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
)

// PgBouncer starts PgBouncer before a server, in a pool mode: session, transaction or
// statement. It ends with the test.
func PgBouncer(t testing.TB, p *Postgres, mode string) *Server {
	t.Helper()
	bin, err := folder([]string{"/usr/sbin"}, "pgbouncer")
	need(t, err)
	s := &Server{path: filepath.Join(bin, "pgbouncer"), url: p.url, serves: servesPostgres, quits: syscall.SIGQUIT}
	s.args = func(port int) ([]string, error) {
		config := filepath.Join(s.dir, "pgbouncer.ini")
		head := "[databases]\n* = host=127.0.0.1 user=cardvault port=" + strconv.Itoa(p.place.port) + "\n[pgbouncer]\n"
		return []string{config}, writeSettings(config, map[string]string{
			"listen_addr": "127.0.0.1", "listen_port": strconv.Itoa(port), "unix_socket_dir": "",
			"auth_type": "any", "pool_mode": mode,
		}, head, "%s = %s\n")
	}
	need(t, s.open(func() error { return nil }))
	closes(t, s.close)
	return s
}
