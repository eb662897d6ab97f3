//go:build unix

package realtest_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cardvault/cardvault/internal/realtest"
)

var postgres = realtest.SharedPostgreSQL(nil)

func TestMain(m *testing.M) { goleak.VerifyTestMain(postgres.Main(m)) }

func TestShared(t *testing.T) {
	one := postgres.Get(t)
	if got := one.SQL(t, "postgres", "SELECT current_user, 1; SHOW fsync"); got != "cardvault|1\non" {
		t.Errorf("SQL = %q", got)
	}
	if postgres.Get(t) != one {
		t.Error("Get starts another server")
	}
}

// TestFailOver: what was committed is there after the primary was killed.
func TestFailOver(t *testing.T) {
	primary := realtest.PostgreSQL(t, nil)
	standby := primary.Standby(t)
	primary.SQL(t, "postgres", "CREATE TABLE t AS SELECT 1 AS n")
	if got := standby.SQL(t, "postgres", "SELECT pg_is_in_recovery()"); got != "t" {
		t.Errorf("the standby is in recovery: %s", got)
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
		t.Error("the killed primary listens", conn.Close())
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

// TestPgBouncer tells the modes apart by what they are known for: a session that inherits
// the settings of another, and no transactions of several statements.
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
	if err := conn.SetDeadline(time.Now().Add(wait)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, send); err != nil {
		return "", err
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
				defer func() { _ = recover() }() // where a test would end
				realtest.Redis(tb, nil)
			}()
			if tb.ended != want || tb.why != "redis-server is not installed" {
				t.Errorf("without the program: %s %q, want %s", tb.ended, tb.why, want)
			}
		})
	}
}

// fakeTB is a test that notes how it ends.
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

// guardEnv makes the test binary start a server and wait to be killed.
const guardEnv = "REALTEST_TEST_GUARD"

// TestGuard: a server and its folder end with a test that is killed.
func TestGuard(t *testing.T) {
	if os.Getenv(guardEnv) != "" {
		s := realtest.Redis(t, nil)
		fmt.Println(s.Addr(), s.Dir())
		_, _ = io.Copy(io.Discard, os.Stdin)
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestGuard$")
	cmd.Env = append(os.Environ(), guardEnv+"=1")
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
	var addr, dir string
	if _, err := fmt.Fscanln(out, &addr, &dir); err != nil {
		t.Fatal(err)
	}
	conn := dial(t, addr)
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("the test ends by itself")
	}
	if got, err := line(t, conn, "", time.Minute); err == nil || os.IsTimeout(err) {
		t.Errorf("the server of a killed test: %q, %v", got, err)
	}
	deadline := time.Now().Add(time.Minute)
	for {
		if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("the folder of the server stays")
		}
		<-time.After(time.Millisecond)
	}
}
