package boltstore_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/cardvault/cardvault/internal/goroutines"

	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/boltstore"
	"github.com/cardvault/cardvault/store/storetest"
)

// childEnv is an environment variable. If it names a file, the test binary holds that file
// open, as another process.
const childEnv = "BOLTSTORE_TEST_CHILD"

func TestMain(m *testing.M) {
	storetest.Child(func(path string) (store.Store, error) {
		if filepath.Base(path) == "restless.db" {
			return boltstore.OpenRestless(context.Background(), path)
		}
		return boltstore.Open(context.Background(), path, nil)
	})
	path := os.Getenv(childEnv)
	if path == "" {
		goroutines.Verify(m)
		return
	}
	if err := hold(path); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func hold(path string) error {
	s, err := boltstore.Open(context.Background(), path, nil)
	if err != nil {
		return err
	}
	fmt.Println("open")
	_, err = io.Copy(io.Discard, os.Stdin)
	return errors.Join(err, s.Close())
}

func start(t *testing.T, path string) (*exec.Cmd, *bufio.Scanner, io.Closer) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+path)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd, bufio.NewScanner(out), in
}

func TestLocked(t *testing.T) {
	path := filepath.Join(t.TempDir(), "vault.db")
	cmd, lines, in := start(t, path)
	if !lines.Scan() {
		t.Fatal("the other process has not opened the file")
	}
	_, err := boltstore.Open(t.Context(), path, &boltstore.Options{LockTimeout: 50 * time.Millisecond})
	if !errors.Is(err, store.ErrLocked) {
		t.Errorf("file of another process: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = boltstore.Open(ctx, path, &boltstore.Options{LockTimeout: time.Hour})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("while waiting for another process: %v", err)
	}
	if err := in.Close(); err != nil {
		t.Fatal(err)
	}
	s, err := boltstore.Open(t.Context(), path, &boltstore.Options{LockTimeout: time.Minute})
	if err != nil {
		t.Fatalf("after the other process: %v", err)
	}
	if err := errors.Join(cmd.Wait(), s.Close()); err != nil {
		t.Error(err)
	}
}
