//go:build unix

package realtest_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cardvault/cardvault/internal/goroutines"

	"github.com/cardvault/cardvault/internal/realtest"
)

var postgres = realtest.SharedPostgreSQL(nil)

func TestMain(m *testing.M) { goroutines.Verify(postgres.Main(m)) }

func TestShared(t *testing.T) {
	one := postgres.Get(t)
	if got := one.SQL(t, "postgres", "SELECT current_user, 1; SHOW fsync"); got != "cardvault|1\non" {
		t.Errorf("SQL = %q", got)
	}
	if postgres.Get(t) != one {
		t.Error("Get starts another server")
	}
}

// TestFailOver: committed rows survive a kill of the primary.
func TestFailOver(t *testing.T) {
	primary := realtest.PostgreSQL(t, nil)
	standby := primary.Standby(t)
	primary.SQL(t, "postgres", "CREATE TABLE t AS SELECT 1 AS n")
	if got := standby.SQL(t, "postgres", "SELECT pg_is_in_recovery()"); got != "t" {
		t.Errorf("pg_is_in_recovery of the standby = %s", got)
	}
	start := time.Now()
	primary.Kill()
	standby.Promote(t)
	t.Logf("failed over in %v", time.Since(start))
	standby.SQL(t, "postgres", "INSERT INTO t VALUES (2)")
	if got := standby.SQL(t, "postgres", "SELECT n FROM t ORDER BY n"); got != "1\n2" {
		t.Errorf("the standby has %q", got)
	}
	if conn, err := net.Dial("tcp", primary.Addr()); err == nil {
		t.Error("the killed primary still listens", conn.Close())
	}
}

// TestAddress: an address is reserved until the end of the test, even while no server
// listens there.
func TestAddress(t *testing.T) {
	taken := map[string]bool{}
	for range 300 {
		a := realtest.Address(t)
		if taken[a] {
			t.Fatalf("%s is assigned twice", a)
		}
		taken[a] = true
	}
	for a := range taken {
		l, err := net.Listen("tcp", a)
		if err != nil {
			t.Fatal(err)
		}
		l.Close()
	}
}

func TestRestart(t *testing.T) {
	p := realtest.PostgreSQL(t, &realtest.PostgreSQLOptions{Settings: map[string]string{"fsync": "off", "max_connections": "17"}})
	addr := p.Addr()
	p.SQL(t, "postgres", "CREATE TABLE t AS SELECT 7 AS n")
	p.Kill()
	p.Restart(t) // after a kill
	p.Restart(t) // while it runs
	if got := p.SQL(t, "postgres", "SELECT n FROM t; SHOW fsync; SHOW max_connections"); got != "7\noff\n17" || p.Addr() != addr {
		t.Errorf("after the restart it has %q at %s", got, p.Addr())
	}
}

// TestPgBouncer distinguishes the modes by their known effects. A session inherits settings
// of another one, and statement mode refuses transactions of several statements.
func TestPgBouncer(t *testing.T) {
	p := postgres.Get(t)
	for mode, want := range map[string][2]string{"session": {"4MB", "1"}, "transaction": {"77kB", "1"}, "statement": {"77kB", ""}} {
		b := realtest.PgBouncer(t, p, mode)
		psql := func(statements ...string) string {
			args := []string{"-XqAt", "-v", "ON_ERROR_STOP=1", b.URL("postgres")}
			for _, s := range statements {
				args = append(args, "-c", s)
			}
			out, _ := exec.Command("psql", args...).Output() // "" if it fails
			return strings.TrimSpace(string(out))
		}
		psql("SET work_mem = '77kB'")
		if got := [2]string{psql("SHOW work_mem"), psql("BEGIN", "SELECT 1", "COMMIT")}; got != want {
			t.Errorf("%s: %q, want %q", mode, got, want)
		}
	}
}

// line sends a line to a server, or nothing, and returns the line that it answers.
func line(t *testing.T, conn net.Conn, send string, wait time.Duration) (string, error) {
	t.Helper()
	if _, err := io.WriteString(conn, send); err != nil {
		return "", err
	}
	if err := conn.SetReadDeadline(time.Now().Add(wait)); err != nil {
		t.Fatal(err)
	}
	return bufio.NewReader(conn).ReadString('\n')
}

func dial(t *testing.T, addr string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func TestRedis(t *testing.T) {
	s := realtest.Redis(t, nil)
	conn := dial(t, s.Addr())
	if got, err := line(t, conn, "SET a b\r\n", time.Minute); got != "+OK\r\n" {
		t.Errorf("SET = %q, %v", got, err)
	}
	s.Stop()
	if got, err := line(t, conn, "PING\r\n", 100*time.Millisecond); !os.IsTimeout(err) {
		t.Errorf("a hanging server: %q, %v", got, err)
	}
	if _, err := net.Dial("tcp", s.Addr()); err != nil {
		t.Errorf("a hanging server: %v", err)
	}
	s.Continue()
	if got, err := line(t, conn, "", time.Minute); got != "+PONG\r\n" {
		t.Errorf("after Continue: %q, %v", got, err)
	}
	s.Kill()
	if got, err := line(t, conn, "PING\r\n", time.Minute); err == nil {
		t.Errorf("a killed server: %q", got)
	}
	s.Restart(t)
	if got, err := line(t, dial(t, s.Addr()), "GET a\r\n", time.Minute); got != "$-1\r\n" {
		t.Errorf("GET after a restart = %q, %v", got, err)
	}
}

func TestMissing(t *testing.T) {
	for ci, want := range map[string]string{"true": "fatal", "": "skip"} {
		t.Run(want, func(t *testing.T) {
			t.Setenv("CI", ci)
			t.Setenv("PATH", t.TempDir())
			tb := &fakeTB{TB: t}
			func() {
				defer func() { _ = recover() }() // where a real test would stop
				realtest.Redis(tb, nil)
			}()
			if tb.ended != want || tb.why != "redis-server is not installed" {
				t.Errorf("without the program: %s %q, want %s", tb.ended, tb.why, want)
			}
		})
	}
}

// A fakeTB is a test that records how it ends.
type fakeTB struct {
	testing.TB
	ended, why string
}

func (f *fakeTB) end(how string, args []any) {
	f.ended, f.why = how, fmt.Sprint(args...)
	panic("ended")
}

func (f *fakeTB) Skip(args ...any)  { f.end("skip", args) }
func (f *fakeTB) Fatal(args ...any) { f.end("fatal", args) }

// TestForeign: Restart fails if another process holds the port of the server.
func TestForeign(t *testing.T) {
	s := realtest.Redis(t, nil)
	s.Kill()
	l, err := net.Listen("tcp", s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(conn, "+PONG\r\n")
			_, _ = io.Copy(io.Discard, conn)
			_ = conn.Close()
		}
	}()
	tb := &fakeTB{TB: t}
	func() {
		defer func() { _ = recover() }()
		s.Restart(tb)
	}()
	if tb.ended != "fatal" {
		t.Error("Restart succeeds on a port that another process holds")
	}
}

// guardEnv makes the test binary start a server and wait until it is killed.
const guardEnv = "REALTEST_TEST_GUARD"

// TestGuard: when a test is killed, its server stops and its folder is removed, whatever the
// test was doing.
func TestGuard(t *testing.T) {
	mode := os.Getenv(guardEnv)
	switch mode {
	case "":
		for _, mode := range []string{"redis", "killed", "postgres", "initdb", "stopped"} {
			t.Run(mode, func(t *testing.T) { testGuard(t, mode) })
		}
		return
	case "postgres", "initdb", "stopped":
		s := realtest.PostgreSQL(t, nil)
		if mode == "stopped" {
			s.Stop()
		}
	case "redis", "killed":
		s := realtest.Redis(t, nil)
		if mode == "killed" {
			s.Kill()
		}
	}
	fmt.Println("ready")
	_, _ = io.Copy(io.Discard, os.Stdin)
}

func testGuard(t *testing.T, mode string) {
	dir, err := os.MkdirTemp("", "guard")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil { // for servers that run as another user
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestGuard$")
	cmd.Env = append(os.Environ(), guardEnv+"="+mode, "TMPDIR="+dir)
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if mode == "initdb" {
		await(t, "initdb does not begin", func() bool { return len(glob(t, dir, "*", "data", "*")) > 0 })
	} else if _, err := fmt.Fscanln(out, new(string)); err != nil {
		t.Fatal(err)
	}
	var memory string // System V shared memory, as PostgreSQL notes it: key and id
	if mode == "postgres" || mode == "stopped" {
		lock, err := os.ReadFile(glob(t, dir, "*", "data", "postmaster.pid")[0])
		if err != nil {
			t.Fatal(err)
		}
		memory = strings.Join(strings.Fields(strings.Split(string(lock), "\n")[6]), " ")
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("the test ends by itself")
	}
	await(t, "the folder of the server stays", func() bool { return len(glob(t, dir, "*")) == 0 })
	await(t, "the server stays", func() bool {
		for _, path := range glob(t, "/proc", "[0-9]*") {
			line, _ := os.ReadFile(filepath.Join(path, "cmdline"))
			at, _ := os.Readlink(filepath.Join(path, "cwd")) // finds children too, which change their command line
			if bytes.Contains(line, []byte(dir)) || strings.HasPrefix(at, dir) {
				return false
			}
		}
		return true
	})
	if memory == "" {
		return
	}
	await(t, "shared memory stays", func() bool {
		table, _ := os.ReadFile("/proc/sysvipc/shm") // missing on some systems
		for line := range strings.Lines(string(table)) {
			if strings.HasPrefix(strings.Join(strings.Fields(line), " "), memory+" ") {
				return false
			}
		}
		return true
	})
}

func glob(t *testing.T, path ...string) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(path...))
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// await waits until a condition holds.
func await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for !holds() {
		if time.Now().After(deadline) {
			t.Fatal(what)
		}
		<-time.After(5 * time.Millisecond)
	}
}

// TestStart: a program that is not a test starts a server, which leaves nothing.
func TestStart(t *testing.T) {
	postgres.Get(t) // skips if it is not installed
	server, err := realtest.StartPostgreSQL(nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := server.SQL(t, "postgres", "SELECT 1"); got != "1" {
		t.Errorf("SQL = %q", got)
	}
	if err := server.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(server.Dir()); !os.IsNotExist(err) {
		t.Errorf("the data is left: %v", err)
	}
}
