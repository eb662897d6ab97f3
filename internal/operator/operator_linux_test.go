package operator_test

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"

	"github.com/cardvault/cardvault/internal/operator"
	"github.com/cardvault/cardvault/vaulttest"
)

// TestOtherUser: a process of another user is refused, even where modes let it in.
func TestOtherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can act as two users")
	}
	dir := folder(t)
	l, err := operator.Listen(dir)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "operator.sock")
	for name, mode := range map[string]os.FileMode{dir: 0o711, path: 0o666} {
		if err := os.Chmod(name, mode); err != nil {
			t.Fatal(err)
		}
	}

	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- operator.Serve(ctx, l, vaulttest.New(t), slog.New(slog.DiscardHandler)) }()
	defer func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()

	for _, uid := range []uintptr{0, 65534} {
		got := make(chan int)
		go func() {
			runtime.LockOSThread() // for good: the thread ends with the goroutine
			got <- askAs(uid, path)
		}()
		if n := <-got; n < 0 || (n > 0) != (uid == 0) {
			t.Errorf("user %d gets %d bytes", uid, n)
		}
	}
}

// askAs has the thread act as a user, make a request, and return the bytes of the answer, less than
// 0 if there was no connection.
func askAs(uid uintptr, path string) int {
	const same = ^uintptr(0)
	if _, _, errno := syscall.RawSyscall(syscall.SYS_SETRESUID, same, uid, same); errno != 0 {
		return -1
	}
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err != nil {
		return -2
	}
	defer syscall.Close(fd)
	if err := syscall.Connect(fd, &syscall.SockaddrUnix{Name: path}); err != nil {
		return -3
	}
	if _, err := syscall.Write(fd, []byte("GET / HTTP/1.0\r\n\r\n")); err != nil {
		return 0
	}
	n, err := syscall.Read(fd, make([]byte, 1024))
	if err != nil {
		return 0
	}
	return n
}
