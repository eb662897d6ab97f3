package operator_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/internal/operator"
	"github.com/cardvault/cardvault/vaulttest"
	"github.com/google/uuid"
)

// folder returns the folder of a vault, with a path that is short enough for a socket.
func folder(t *testing.T) string {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("no server offers a socket here")
	}
	dir, err := os.MkdirTemp("", "v") // with mode 0700
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func TestFolder(t *testing.T) {
	for name, spoil := range map[string]func(dir string) error{
		"others may enter":        func(dir string) error { return os.Chmod(dir, 0o711) },
		"the group may read":      func(dir string) error { return os.Chmod(dir, 0o750) },
		"a file has its name":     func(dir string) error { return os.WriteFile(filepath.Join(dir, "operator.sock"), nil, 0o600) },
		"a link has its name":     func(dir string) error { return os.Symlink("elsewhere", filepath.Join(dir, "operator.sock")) },
		"the folder is not there": func(dir string) error { return os.Remove(dir) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := folder(t)
			if err := spoil(dir); err != nil {
				t.Fatal(err)
			}
			if l, err := operator.Listen(dir); err == nil {
				t.Error("a socket was made", l.Close())
			}
		})
	}
}

// served offers a vault in a folder, and returns a client of it.
func served(t *testing.T, v *cardvault.Vault) *operator.Client {
	t.Helper()
	dir := folder(t)
	if _, err := operator.Dial(t.Context(), dir); !errors.Is(err, operator.ErrNoServer) {
		t.Errorf("without a server: %v", err)
	}
	l, err := operator.Listen(dir)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- operator.Serve(ctx, l, v, slog.New(slog.DiscardHandler)) }()

	c, err := operator.Dial(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stop()
		if err := errors.Join(<-ended, c.Close()); err != nil {
			t.Error(err)
		}
		if _, err := operator.Dial(context.Background(), dir); !errors.Is(err, operator.ErrNoServer) {
			t.Errorf("after the server: %v", err)
		}
	})
	return c
}

func TestCalls(t *testing.T) {
	v := vaulttest.New(t)
	c := served(t, v)
	for n := range 2 {
		r, err := c.KeyReport(t.Context())
		if err != nil || len(r.Terms) != n+1 || r.Terms[n].State != cardvault.TermActive || len(r.Terms[n].Records)+n == 0 || len(r.Wrappings) != 1 || r.Wrappings[0].Since.IsZero() {
			t.Fatalf("%+v, %v", r, err)
		}
		if _, err := c.RotateKeys(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
	}

	if err := errors.Join(c.Reseal(t.Context()), c.DeleteAPIKey(t.Context(), uuid.Nil, uuid.New())); !errors.Is(err, cardvault.ErrNotFound) {
		t.Errorf("an unknown API key: %v", err)
	}
	if all, err := c.Accounts(t.Context()); err != nil || len(all) != 1 || all[0].State != cardvault.AccountOpen {
		t.Errorf("accounts %+v, %v", all, err)
	}
	if err := c.RetireTerm(t.Context(), 1); !errors.Is(err, cardvault.ErrTermInUse) {
		t.Errorf("a term in use: %v", err)
	}
	if _, err := c.RotateSeries(t.Context(), "nothing", nil); len(cardvault.FieldErrors(err)) != 1 {
		t.Errorf("a series that is not there: %v", err)
	}
	if _, err := c.FreezeAccount(t.Context(), uuid.New()); !errors.Is(err, cardvault.ErrNotFound) {
		t.Errorf("an unknown account: %v", err)
	}
	if _, err := c.Verify(t.Context(), &cardvault.VerifyOptions{Position: "nowhere"}); len(cardvault.FieldErrors(err)) != 1 {
		t.Errorf("an unknown position: %v", err)
	}
}

func TestBackup(t *testing.T) {
	v := vaulttest.New(t)
	c := served(t, v)
	var out bytes.Buffer
	told := 0
	r, err := c.Backup(t.Context(), &out, &cardvault.BackupOptions{Progress: func(cardvault.BackupProgress) { told++ }})
	if err != nil || r.Bytes != int64(out.Len()) || told == 0 {
		t.Fatalf("%+v with %d bytes, %d times of progress, %v", r, out.Len(), told, err)
	}

	full := errors.New("full")
	if _, err := c.Backup(t.Context(), failing{full}, new(cardvault.BackupOptions)); !errors.Is(err, full) {
		t.Errorf("a writer that fails: %v", err)
	}
}

type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }

// TestCutOff: an answer that ends early is an error, whatever came before.
func TestCutOff(t *testing.T) {
	for _, answer := range []string{"", "r\x00\x00", "d\x00\x00\x00\x01x", "p\xff\xff\xff\xff"} {
		dir := folder(t)
		l, err := operator.Listen(dir)
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				answers(conn, answer)
			}
		}()
		c, err := operator.Dial(t.Context(), dir)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Scrub(t.Context()); err == nil {
			t.Errorf("%q is taken for an answer", answer)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
}

func answers(conn net.Conn, answer string) {
	defer conn.Close()
	if n, _ := conn.Read(make([]byte, 4096)); n > 0 {
		_, _ = conn.Write([]byte("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + answer))
	}
}
