//go:build unix

package cardvault_test

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"testing"

	"github.com/cardvault/cardvault"
)

// TestFullDisk limits the size of files in a separate process.
func TestFullDisk(t *testing.T) {
	if os.Getenv("CARDVAULT_TEST_FULL_DISK") == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^TestFullDisk$", "-test.v")
		cmd.Env = append(os.Environ(), "CARDVAULT_TEST_FULL_DISK=1")
		out, err := cmd.CombinedOutput()
		if err != nil || !bytes.Contains(out, []byte("--- PASS")) {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	dir, keys, ids := filled(t, 10)
	limit := limitFileSize(t, 1<<20)
	v, err := cardvault.Open(t.Context(), dir, keys, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	for {
		token, err := v.Import(t.Context(), visa, nil)
		if errors.Is(err, cardvault.ErrStorageFull) {
			t.Log("imports end with:", err)
			break
		}
		if err != nil {
			t.Fatalf("after %d imports: %v", len(ids), err)
		}
		ids = append(ids, token.ID)
		if len(ids) > 20000 {
			t.Fatal("the disk does not fill up")
		}
	}
	for _, id := range ids {
		if _, err := v.Get(t.Context(), id); err != nil {
			t.Fatalf("reading on a full disk: %v", err)
		}
	}
	for _, id := range ids[:50] {
		if err := v.Delete(t.Context(), id); err != nil {
			t.Fatalf("deleting on a full disk: %v", err)
		}
	}
	limit(1 << 30)
	if _, err := v.Import(t.Context(), visa, nil); err != nil {
		t.Errorf("once there is room again: %v", err)
	}
}

// limitFileSize makes writes beyond a size fail in this process. It returns a function that
// changes the limit.
func limitFileSize(t *testing.T, size uint64) func(uint64) {
	signal.Ignore(syscall.SIGXFSZ)
	set := func(size uint64) {
		var l syscall.Rlimit
		err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &l)
		if err == nil {
			l.Cur = size
			err = syscall.Setrlimit(syscall.RLIMIT_FSIZE, &l)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	set(size)
	return set
}
