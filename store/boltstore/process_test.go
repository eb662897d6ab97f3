package boltstore_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.uber.org/goleak"

	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/boltstore"
)

// childEnv makes the test binary act as another process on a store: what it is
// to do, and the path.
const childEnv = "BOLTSTORE_TEST_CHILD"

func TestMain(m *testing.M) {
	what, path, isChild := strings.Cut(os.Getenv(childEnv), " ")
	if !isChild {
		goleak.VerifyTestMain(m)
		return
	}
	if err := child(what, path); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func child(what, path string) error {
	s, err := boltstore.Open(context.Background(), path, nil)
	if err != nil {
		return err
	}
	if what == "hold" {
		fmt.Println("open")
		_, err := io.Copy(io.Discard, os.Stdin)
		return errors.Join(err, s.Close())
	}
	from, err := strconv.Atoi(what)
	if err != nil {
		return err
	}
	// Each line is written whole before the next step begins.
	say := func(format string, n int) { fmt.Fprintf(os.Stdout, format+"\n", n) }
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for n := from + i; ; n += 8 {
				r := &store.Record{
					Kind: 1, ID: numbered(n), Account: uuid.UUID{1}, Class: uint8(n%3 + 1), Version: 1,
					Due: time.UnixMicro(int64(n)), Lookup: [][]byte{{byte(n)}}, Shown: make([]byte, 300),
				}
				if err := s.Update(context.Background(), func(tx store.Tx) error { tx.Put(r); return nil }); err != nil {
					panic(err)
				}
				say("put %d", n)
				if n%3 > 0 {
					continue
				}
				say("deleting %d", n)
				if err := s.Update(context.Background(), func(tx store.Tx) error { tx.Delete(1, r.ID); return nil }); err != nil {
					panic(err)
				}
				say("deleted %d", n)
			}
		})
	}
	wg.Wait()
	return nil
}

func numbered(n int) (id uuid.UUID) {
	binary.BigEndian.PutUint64(id[:], uint64(n+1))
	return id
}

func start(t *testing.T, what, path string) (*exec.Cmd, *bufio.Scanner, io.Closer) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+what+" "+path)
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

// TestKill kills a writing process again and again: what it had acknowledged is
// there, what it had deleted is gone, and the file is whole.
func TestKill(t *testing.T) {
	kills := 20
	if testing.Short() {
		kills = 3
	}
	path := filepath.Join(t.TempDir(), "vault.db")
	states := make(map[int]string)
	from := 0
	for range kills {
		cmd, lines, _ := start(t, strconv.Itoa(from), path)
		stop := rand.IntN(400)
		for i := 0; lines.Scan(); i++ {
			state, number, _ := strings.Cut(lines.Text(), " ")
			n, err := strconv.Atoi(number)
			if err != nil {
				break // the last line may be cut
			}
			states[n] = state
			from = max(from, n+8)
			if i == stop {
				if err := cmd.Process.Kill(); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := cmd.Wait(); err == nil {
			t.Fatal("the process ended by itself")
		}
		from += 8 - from%8 + 64 // past what was not acknowledged

		s, err := boltstore.Open(t.Context(), path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Check(t.Context()); err != nil {
			t.Fatal(err)
		}
		err = s.View(t.Context(), func(tx store.ReadTx) error {
			for n, state := range states {
				_, err := tx.Get(1, numbered(n))
				switch {
				case state == "put" && err != nil:
					t.Errorf("acknowledged record %d: %v", n, err)
				case state == "deleted" && !errors.Is(err, store.ErrNotFound):
					t.Errorf("deleted record %d: %v", n, err)
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d kills, %d records", kills, len(states))
	if len(states) < kills {
		t.Errorf("only %d records were acknowledged", len(states))
	}
}

func TestLocked(t *testing.T) {
	path := filepath.Join(t.TempDir(), "vault.db")
	cmd, lines, in := start(t, "hold", path)
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
