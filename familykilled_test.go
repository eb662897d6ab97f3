//go:build unix

package cardvault_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/boltstore"
	"github.com/google/uuid"
)

// A fatal store kills the process at one of the transactions that erase API keys, before its commit
// or after.
type fatal struct {
	store.Store
	left atomic.Int64
}

func (s *fatal) Update(ctx context.Context, fn func(store.Tx) error) error {
	last := false
	err := s.Store.Update(ctx, func(tx store.Tx) error {
		e := &erasing{Tx: tx}
		err := fn(e)
		if e.keys > 0 && s.left.Add(-1) == 0 {
			last = true
			if rand.IntN(2) == 0 {
				kill()
			}
		}
		return err
	})
	if last {
		kill()
	}
	return err
}

func kill() { _ = syscall.Kill(os.Getpid(), syscall.SIGKILL) }

type erasing struct {
	store.Tx
	keys int
}

func (tx *erasing) Delete(kind store.Kind, id uuid.UUID) {
	if kind == kindAPIKey {
		tx.keys++
	}
	tx.Tx.Delete(kind, id)
}

// TestFamilyKilled: a process is killed while it erases the keys below a revoked one. No key of it opens
// anything from the revocation on. FAULTS is the number of kills. That the next process goes on, once
// the lease of the killed one has ended, is what familytest shows.
func TestFamilyKilled(t *testing.T) {
	const child = "CARDVAULT_TEST_FAMILY"
	open := func(path string, last int) (*cardvault.Vault, store.Store) {
		s, err := boltstore.Open(t.Context(), path, nil)
		noErr(t, err)
		f := &fatal{Store: s}
		f.left.Store(int64(last))
		v, err := cardvault.New(t.Context(), f, mustKeyBytes(t, goldenKey()), &cardvault.Options{Mode: cardvault.Sandbox})
		noErr(t, err)
		return v, s
	}
	if path := os.Getenv(child); path != "" {
		last, err := strconv.Atoi(os.Getenv(child + "_LAST"))
		noErr(t, err)
		v, _ := open(path, last)
		noErr(t, v.Run(t.Context()))
		return
	}

	for range kills(3) {
		path := filepath.Join(t.TempDir(), "vault.db")
		v, s := open(path, 0)
		root, texts := keyWithBelow(t, v, 1400)
		noErr(t, v.DeleteAPIKey(t.Context(), root.ID))
		before := stored(t, s, kindAPIKey)
		noErr(t, errors.Join(v.Close(), s.Close()))

		process := exec.Command(os.Args[0], "-test.run=^TestFamilyKilled$", "-test.timeout=10m") // it writes some 30 times
		process.Env = append(os.Environ(), child+"="+path, child+"_LAST="+strconv.Itoa(2+rand.IntN(20)))
		out, err := process.CombinedOutput()
		if status, ok := errors.AsType[*exec.ExitError](err); !ok || status.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
			t.Fatalf("the process was not killed: %v\n%s", err, out)
		}

		v, s = open(path, 0)
		for _, text := range append(texts, root.Text.Text()) {
			if _, err := v.Authenticate(t.Context(), text); !errors.Is(err, cardvault.ErrUnauthenticated) {
				t.Fatalf("a revoked key: %v", err)
			}
		}
		if after := stored(t, s, kindAPIKey); after == 0 || after >= before {
			t.Errorf("%d of %d keys are left after a kill amid their erasing", after, before)
		}
		noErr(t, errors.Join(v.Close(), s.Close(), os.Remove(path)))
	}
}

// stored returns the number of records of a kind.
func stored(t *testing.T, s store.Store, kind store.Kind) (n int) {
	t.Helper()
	noErr(t, s.View(t.Context(), func(tx store.ReadTx) error {
		all, err := tx.Scan(kind, uuid.Nil, 1<<20)
		n = len(all)
		return err
	}))
	return n
}
