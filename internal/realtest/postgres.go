//go:build unix

package realtest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"
)

// PostgreSQLOptions may be nil.
type PostgreSQLOptions struct {
	// Settings are as in postgresql.conf. By default a server is as it is installed,
	// durable, with room for 100 connections.
	Settings map[string]string
}

// A Postgres is a PostgreSQL server.
type Postgres struct {
	Server
	bin      string
	settings map[string]string
	Link     *Proxy // through which it follows, or has followed, its primary; nil: none
}

// PostgreSQL starts a server with a database named postgres, which ends with the
// test. That takes a second or two: see [SharedPostgreSQL].
func PostgreSQL(t testing.TB, o *PostgreSQLOptions) *Postgres {
	t.Helper()
	p, err := newPostgres(o)
	need(t, err)
	closes(t, p.close)
	return p
}

// StartPostgreSQL starts a server for a program that is not a test. Close stops it.
//
// Errors: one for which [Missing] is true if PostgreSQL is not installed.
func StartPostgreSQL(o *PostgreSQLOptions) (*Postgres, error) { return newPostgres(o) }

func newPostgres(o *PostgreSQLOptions) (*Postgres, error) {
	// Newest first: of two folders version 9.6 would be before 15.
	folders, err := filepath.Glob("/usr/lib/postgresql/[1-9][0-9]/bin")
	if err != nil {
		return nil, err
	}

	slices.Sort(folders)
	slices.Reverse(folders)
	bin, err := folder(folders, "postgres", "initdb", "pg_basebackup", "psql")
	if err != nil {
		return nil, err
	}

	var settings map[string]string
	if o != nil {
		settings = o.Settings
	}

	p := &Postgres{bin: bin, settings: settings}
	return p, p.open(func() error {
		_, err := run(p.guard, p.dir, filepath.Join(bin, "initdb"), "--pgdata", p.data(), "--username", "cardvault",
			"--auth", "trust", "--encoding", "UTF8", "--no-locale", "--no-sync")
		return err
	})
}

func (p *Postgres) data() string { return filepath.Join(p.dir, "data") }

func (p *Postgres) open(prepare func() error) error {
	p.path = filepath.Join(p.bin, "postgres")
	p.url = "postgres://cardvault@%s/%s?sslmode=disable"
	p.serves = servesPostgres
	p.quits = syscall.SIGQUIT

	p.args = func(port int) ([]string, error) {
		settings := map[string]string{
			"listen_addresses":        "127.0.0.1",
			"port":                    strconv.Itoa(port),
			"unix_socket_directories": p.dir,
			// A killed server leaves nothing in /dev/shm.
			"dynamic_shared_memory_type": "mmap",
		}
		maps.Copy(settings, p.settings)
		args := []string{"-D", p.data()}
		for _, name := range slices.Sorted(maps.Keys(settings)) {
			args = append(args, "-c", name+"="+settings[name])
		}
		return args, nil
	}

	return p.Server.open(prepare)
}

// SQL runs statements in a database and returns their rows, separated by newlines, with
// columns separated by a bar.
func (p *Postgres) SQL(t testing.TB, database, statements string) string {
	t.Helper()
	out, err := p.sql(database, statements)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func (p *Postgres) sql(database, statements string) (string, error) {
	return run(nil, p.dir, filepath.Join(p.bin, "psql"), "--no-psqlrc", "--quiet", "--no-align", "--tuples-only",
		"--set", "ON_ERROR_STOP=1", "--dbname", p.URL(database), "--command", statements)
}

// Standby starts a standby of the server, which ends with the test, and returns when
// a commit waits for it: from then on a server that has lost its standbys does not
// commit. Once promoted it waits for none.
func (p *Postgres) Standby(t testing.TB) *Postgres {
	t.Helper()
	standby := &Postgres{bin: p.bin, settings: p.settings}
	if err := standby.open(func() error { return standby.copyOf(t, p) }); err != nil {
		t.Fatal(err)
	}
	closes(t, standby.close)
	p.awaitStandby(t)
	return standby
}

// Follow replaces a server with a standby of primary at the same address: for example the
// old primary, which was killed when its standby was promoted. It returns when a commit of
// the new primary waits for it.
func (p *Postgres) Follow(t testing.TB, primary *Postgres) {
	t.Helper()
	p.Kill()
	err := os.RemoveAll(p.data())
	if err == nil {
		err = p.copyOf(t, primary)
	}
	if err == nil {
		err = p.start()
	}
	if err != nil {
		t.Fatal(err)
	}
	primary.awaitStandby(t)
}

// copyOf fills the data of a standby of a server.
func (p *Postgres) copyOf(t testing.TB, primary *Postgres) error {
	if p.Link != nil {
		p.Link.close()
	}
	p.Link = NewProxy(t, primary.Addr())
	_, err := run(p.guard, p.dir, filepath.Join(p.bin, "pg_basebackup"), "--dbname", fmt.Sprintf(primary.url, p.Link.Addr(), "postgres"),
		"--pgdata", p.data(), "--write-recovery-conf", "--wal-method", "stream", "--checkpoint", "fast", "--no-sync")
	return err
}

// awaitStandby makes commits wait for a standby, and returns when one has come.
func (p *Postgres) awaitStandby(t testing.TB) {
	t.Helper()
	// ALTER SYSTEM does not run within a transaction, nor beside another statement.
	p.SQL(t, "postgres", "ALTER SYSTEM SET synchronous_standby_names = '*'")
	p.SQL(t, "postgres", "SELECT pg_reload_conf()")
	deadline := time.Now().Add(patience)
	for p.SQL(t, "postgres", "SELECT count(*) > 0 FROM pg_stat_replication WHERE sync_state = 'sync' AND state = 'streaming'") != "t" {
		if time.Now().After(deadline) {
			t.Fatal("the standby is not synchronous")
		}
		<-time.After(pause)
	}
}

// Promote makes a primary of a standby, and returns when it takes writes.
func (p *Postgres) Promote(t testing.TB) {
	t.Helper()
	if p.SQL(t, "postgres", fmt.Sprintf("SELECT pg_promote(true, %d)", int(patience.Seconds()))) != "t" {
		t.Fatal("the standby is not promoted")
	}
}

// servesPostgres asks for a session of the user cardvault in the database postgres,
// in version 3 of the protocol.
func servesPostgres(conn net.Conn) error {
	ask := []byte("length\x00\x03\x00\x00user\x00cardvault\x00database\x00postgres\x00\x00")[2:]
	binary.BigEndian.PutUint32(ask, uint32(len(ask)))
	if _, err := conn.Write(ask); err != nil {
		return err
	}
	answer := make([]byte, 1)
	if _, err := io.ReadFull(conn, answer); err != nil {
		return err
	}
	if answer[0] != 'R' { // but an error, such as that it is starting up
		return errors.New("it accepts no connections")
	}
	return nil
}

// A Shared server is one for all tests of a package.
type Shared struct {
	options *PostgreSQLOptions

	mu     sync.Mutex
	server *Postgres
	err    error
}

// SharedPostgreSQL returns a server that the first call of Get starts. TestMain stops
// it:
//
//	var postgres = realtest.SharedPostgreSQL(nil)
//
//	func TestMain(m *testing.M) { goleak.VerifyTestMain(postgres.Main(m)) }
func SharedPostgreSQL(o *PostgreSQLOptions) *Shared { return &Shared{options: o} }

// Get returns the server that all tests share: a test that needs to kill one starts
// another. It may be called concurrently.
func (s *Shared) Get(t testing.TB) *Postgres {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.server == nil && s.err == nil {
		s.server, s.err = newPostgres(s.options)
	}
	need(t, s.err)
	return s.server
}

// A Main is a [testing.M].
type Main interface{ Run() int }

// Main returns a Main that runs m and then stops the server.
func (s *Shared) Main(m Main) Main { return sharedMain{s, m} }

type sharedMain struct {
	shared *Shared
	m      Main
}

func (s sharedMain) Run() int {
	code := s.m.Run()
	s.shared.mu.Lock()
	defer s.shared.mu.Unlock()
	if s.shared.server == nil || s.shared.err != nil {
		return code
	}
	if err := s.shared.server.close(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return max(code, 1)
	}
	return code
}
