//go:build unix

// Package realtest runs real servers for tests: PostgreSQL, Redis and PgBouncer on
// loopback, with throwaway data, and a proxy that can fail like a network.
//
// A server that is not installed skips the test; with CI=true it fails it. A server runs as
// an unprivileged user even when the test is root. It ends with the test, even if the test
// is killed: a guard for each server waits for the end of this process.
package realtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

const (
	patience = 2 * time.Minute      // for a server to start, or a program to end
	mercy    = 5 * time.Second      // for a server to stop
	pause    = 5 * time.Millisecond // between two looks
)

// A Server is a process that listens on 127.0.0.1. Its methods are for one goroutine
// at a time, except Addr, URL and Dir.
type Server struct {
	path   string
	args   func(port int) ([]string, error)
	url    string               // with verbs for the address and the name of a database
	serves func(net.Conn) error // whether a connection is answered
	quits  syscall.Signal       // by which it stops in haste

	dir   string
	guard *guard
	place *place
	proc  *os.Process
	ended chan struct{} // closed when proc has ended
}

// Addr returns the server's address, which stays the same over Restart.
func (s *Server) Addr() string { return s.place.addr() }

// URL returns the URL of a database of the server: a name, or a number for Redis.
// The user of PostgreSQL is cardvault, who may do anything and needs no password.
func (s *Server) URL(database string) string { return fmt.Sprintf(s.url, s.Addr(), database) }

// Dir returns the folder of all that the server writes: its data, and a file named
// log. The folder ends with the server.
func (s *Server) Dir() string { return s.dir }

// Kill kills the server and its children with SIGKILL and returns when they are gone.
func (s *Server) Kill() {
	family := s.signal(syscall.SIGSTOP) // so that there are no further children
	if family == nil {
		return
	}
	for _, pid := range family {
		_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
	}
	<-s.ended
	gone(family)
}

// Stop makes the server hang: connections stay open, more can be made, and nothing is
// answered until Continue.
func (s *Server) Stop() { s.signal(syscall.SIGSTOP) }

// Continue ends Stop.
func (s *Server) Continue() { s.signal(syscall.SIGCONT) }

// Restart starts the server again with its data on disk. A running server is killed first.
func (s *Server) Restart(t testing.TB) {
	t.Helper()
	s.Kill()
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
}

// Close stops a server that a program has started, and removes its data. Tests need not
// call it.
func (s *Server) Close() error { return s.close() }

// Missing reports whether a server was not started because it is not installed.
func Missing(err error) bool {
	_, ok := errors.AsType[missing](err)
	return ok
}

// open makes the folder of the server, lets prepare fill it, and starts the server on
// a free port. It closes the server if it fails.
func (s *Server) open(prepare func() error) (err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()

	if s.dir, err = os.MkdirTemp("", "realtest"); err != nil {
		return err
	}
	if s.guard, err = newGuard(s.dir); err != nil {
		return errors.Join(err, os.Remove(s.dir))
	}
	if err := own(s.dir); err != nil {
		return err
	}

	if err := prepare(); err != nil {
		return err
	}

	if s.place, err = reserve(); err != nil {
		return err
	}
	return s.start()
}

// close stops the server, if it runs, and lets the guard clean up.
func (s *Server) close() error {
	if s.proc != nil {
		family := s.signal(syscall.SIGCONT)
		_ = s.proc.Signal(s.quits) // it may have ended
		select {
		case <-s.ended:
			gone(family)
		case <-time.After(mercy):
			s.Kill()
		}
	}
	if s.place != nil {
		s.place.release()
	}
	if s.guard == nil {
		return nil
	}
	return s.guard.close()
}

func (s *Server) start() error {
	log, err := os.OpenFile(filepath.Join(s.dir, "log"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()

	args, err := s.args(s.place.port)
	if err != nil {
		return err
	}

	cmd := command(context.Background(), s.dir, s.path, args...) // a server ends by a signal
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return err
	}

	err = s.guard.watch(cmd.Process.Pid)
	ended := make(chan struct{})
	s.proc, s.ended = cmd.Process, ended
	go func() {
		_ = cmd.Wait() // it was killed
		s.guard.unwatch()
		close(ended)
	}()
	if err == nil {
		err = s.await()
	}
	if err != nil {
		return fmt.Errorf("%s does not start: %w\n%s", filepath.Base(s.path), err, s.tail())
	}

	return nil
}

// await waits until the server serves.
func (s *Server) await() error {
	deadline := time.Now().Add(patience)
	for {
		err := s.probe()
		if err == nil || time.Now().After(deadline) {
			return err
		}
		select {
		case <-s.ended:
			return errors.New("it has ended")
		case <-time.After(pause):
		}
	}
}

func (s *Server) probe() error {
	conn, err := net.DialTimeout("tcp", s.Addr(), time.Second)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return err
	}
	if err := s.serves(conn); err != nil {
		return err
	}
	if !listens(s.proc.Pid, s.place.port) {
		return errors.New("another process has its port")
	}
	return nil
}

// listens reports whether a process listens on a port; it is true on systems without /proc.
func listens(pid, port int) bool {
	table, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		return true
	}
	var sockets []string
	for line := range strings.Lines(string(table)) {
		// Its number, its addresses here and there, its state, and the inode as the tenth.
		f := strings.Fields(line)
		if len(f) > 9 && strings.HasSuffix(f[1], fmt.Sprintf(":%04X", port)) && f[3] == "0A" {
			sockets = append(sockets, "socket:["+f[9]+"]")
		}
	}
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	return slices.ContainsFunc(files, func(path string) bool {
		file, err := os.Readlink(path)
		return err == nil && slices.Contains(sockets, file)
	})
}

// tail returns the end of the log.
func (s *Server) tail() []byte {
	log, err := os.ReadFile(filepath.Join(s.dir, "log"))
	if err != nil {
		return []byte(err.Error())
	}
	return log[max(0, len(log)-2048):]
}

// signal sends a signal to the server, then to its children, and returns the process
// ids of all.
func (s *Server) signal(sig syscall.Signal) []int {
	if s.proc == nil || s.proc.Signal(sig) != nil {
		return nil
	}
	family := append(children(s.proc.Pid), s.proc.Pid)
	for _, pid := range family {
		_ = syscall.Kill(pid, sig) // a child may have ended
	}
	return family
}

// children returns the process ids of the children of a process, and none on systems
// without /proc. The children of PostgreSQL end by themselves without their parent.
func children(parent int) (pids []int) {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if _, of := status(pid); of == parent {
			pids = append(pids, pid)
		}
	}
	return pids
}

// status returns the state of a process, 0 if it does not exist, and its parent.
func status(pid int) (state byte, parent int) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, 0
	}
	// The name, in parentheses, may hold anything.
	if _, err := fmt.Sscanf(string(stat[bytes.LastIndexByte(stat, ')')+1:]), " %c %d", &state, &parent); err != nil {
		return 0, 0
	}
	return state, parent
}

// gone waits until processes that were killed are no more.
func gone(pids []int) {
	deadline := time.Now().Add(mercy)
	for _, pid := range pids {
		for time.Now().Before(deadline) {
			if state, _ := status(pid); state == 0 || state == 'Z' {
				break
			}
			<-time.After(pause)
		}
	}
}

// A guard is a process that removes a folder, and what uses it, when it is closed or this
// process ends.
type guard struct {
	cmd *exec.Cmd
	in  io.WriteCloser
}

// guardScript reads ids of processes until the end of its input, and kills the group of the
// last. PostgreSQL leaves shared memory when it is killed, and names it in the seventh line
// of a file; without ipcrm 56 bytes of it stay. Its children lead groups of their own. They
// end by themselves, a moment later, but children stopped by Stop have to be found by their
// working directory.
const guardScript = `
pid=
while read -r told; do pid=$told; done
if [ -n "$pid" ]; then
	kill -s KILL -- "-$pid"
	for child in $(find /proc/[0-9]*/cwd -lname "$0/*" 2>/dev/null); do
		child=${child#/proc/}
		kill -s KILL "${child%/cwd}"
	done
fi
set -- $(sed -n 7p "$0/data/postmaster.pid")
[ $# != 2 ] || ipcrm -m "$2"
for _ in 1 2 3 4 5 6 7 8 9; do
	rm -rf -- "$0" && exit
	sleep 1
done
exit 1`

func newGuard(dir string) (*guard, error) {
	cmd := exec.Command("sh", "-c", guardScript, dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // out of reach of an interrupt from the terminal
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	return &guard{cmd, in}, cmd.Start()
}

// watch makes a process, which leads a group, the one to kill. A nil guard has none.
func (g *guard) watch(pid int) error {
	if g == nil {
		return nil
	}
	_, err := fmt.Fprintln(g.in, pid)
	return err
}

// unwatch notes that the process has ended.
func (g *guard) unwatch() {
	if g != nil {
		_, _ = io.WriteString(g.in, "\n") // a guard that has gone does not kill
	}
}

func (g *guard) close() error { return errors.Join(g.in.Close(), g.cmd.Wait()) }

// missing is the error for a program that is not installed.
type missing string

func (m missing) Error() string { return string(m) + " is not installed" }

// need ends the test for an error, as skipped if a program is missing.
func need(t testing.TB, err error) {
	t.Helper()
	if Missing(err) && os.Getenv("CI") != "true" {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// closes shuts a server with the test.
func closes(t testing.TB, shut func() error) {
	t.Cleanup(func() {
		if err := shut(); err != nil {
			t.Error(err)
		}
	})
}

// folder returns the first folder that has all the programs, among the given folders and
// PATH.
func folder(folders []string, programs ...string) (string, error) {
	for _, dir := range slices.Concat(folders, filepath.SplitList(os.Getenv("PATH"))) {
		if !slices.ContainsFunc(programs, func(name string) bool {
			_, err := exec.LookPath(filepath.Join(dir, name))
			return err != nil
		}) {
			return dir, nil
		}
	}
	return "", missing(programs[0])
}

// command returns a command that runs in dir, with an environment of its own, and as
// an unprivileged user if this process is root.
func command(ctx context.Context, dir, path string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Dir = dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "LC_ALL=C", "PGCONNECT_TIMEOUT=60"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Credential: unprivileged()}
	return cmd
}

// run runs a command to its end, under a guard that may be nil, and returns its output.
func run(g *guard, dir, path string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := command(ctx, dir, path, args...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Start()
	if err == nil {
		err = errors.Join(g.watch(cmd.Process.Pid), cmd.Wait())
		g.unwatch()
	}
	if err != nil {
		return "", fmt.Errorf("%s: %w\n%s", filepath.Base(path), err, &out)
	}
	return strings.TrimSpace(out.String()), nil
}

// own gives a file to the user whom servers run as.
func own(path string) error {
	if c := unprivileged(); c != nil {
		return os.Chown(path, int(c.Uid), int(c.Gid))
	}
	return nil
}

// unprivileged returns whom servers run as: nil for the user of this process.
var unprivileged = sync.OnceValue(func() *syscall.Credential {
	if os.Getuid() != 0 {
		return nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, errUID := strconv.ParseUint(u.Uid, 10, 32)
		gid, errGID := strconv.ParseUint(u.Gid, 10, 32)
		if errUID == nil && errGID == nil {
			return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
		}
	}
	return nil // PostgreSQL and PgBouncer refuse, and say why
})
