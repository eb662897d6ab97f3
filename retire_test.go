package cardvault_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/internal/bubble"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/boltstore"
	"github.com/google/uuid"
)

// retire retires the first term of a vault, which has another one. It takes 25 hours.
func retire(t *testing.T, v *cardvault.Vault) {
	t.Helper()
	if err := v.RetireTerm(t.Context(), 1); !errors.Is(err, cardvault.ErrTermInUse) {
		t.Fatalf("closing a term: %v", err)
	}
	if err := v.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	time.Sleep(25 * time.Hour)
	if err := v.RetireTerm(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
}

func rotateOnce(t *testing.T, v *cardvault.Vault) {
	t.Helper()
	if _, err := v.RotateKeys(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
}

// A boltFile is the file of a vault.
type boltFile string

func newBoltFile(t *testing.T) boltFile { return boltFile(filepath.Join(t.TempDir(), "cardvault.db")) }

func (f boltFile) open(t *testing.T) *boltstore.Store {
	t.Helper()
	s, err := boltstore.Open(t.Context(), string(f), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// backup copies the file while nothing writes to it.
func (f boltFile) backup(t *testing.T) boltFile {
	t.Helper()
	data, err := os.ReadFile(string(f))
	to := newBoltFile(t)
	if err == nil {
		err = os.WriteFile(string(to), data, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	return to
}

// TestRetireBackup: a retired term lives on in a backup as long as the key-encryption key does
// that wrapped the keyring of the backup.
func TestRetireBackup(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		former, next := mustKeyBytes(t, bytes.Repeat([]byte{1}, cardvault.KeySize)), mustKeyBytes(t, bytes.Repeat([]byte{2}, cardvault.KeySize))
		file := newBoltFile(t)
		v := vaultWith(t, file.open(t), former)
		token := imported(t, v).ID
		rotateOnce(t, v)
		before := file.backup(t)
		retire(t, v)
		after := file.backup(t)
		if err := v.ChangeKeyring(t.Context(), next); err != nil {
			t.Fatal(err)
		}
		changed := file.backup(t)

		for name, c := range map[string]struct {
			file boltFile
			keys *cardvault.Keyring
			want error
			term cardvault.TermState
		}{
			"before, the former key":              {before, former, nil, cardvault.TermReadable},
			"before, the present key":             {before, next, cardvault.ErrWrongKey, ""},
			"after, the former key":               {after, former, nil, cardvault.TermDestroyed},
			"after the change, the former key":    {changed, former, cardvault.ErrWrongKey, ""},
			"after the change, the present key":   {changed, next, nil, cardvault.TermDestroyed},
			"the present store, the present key":  {file.backup(t), next, nil, cardvault.TermDestroyed},
			"the present store, both, former one": {file.backup(t), cardvault.JoinKeyrings(former, next), nil, cardvault.TermDestroyed},
		} {
			v, err := cardvault.New(t.Context(), c.file.backup(t).open(t), c.keys, nil)
			if !errors.Is(err, c.want) {
				t.Errorf("%s: opened with %v, want %v", name, err, c.want)
			}
			if err != nil {
				continue
			}
			if _, err := v.Get(t.Context(), token); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if r, err := v.KeyReport(t.Context()); err != nil || r.Terms[0].State != c.term {
				t.Errorf("%s: %+v, %v", name, r, err)
			}
			v.Close()
		}

		// The keyring row alone of before the closing.
		s := file.backup(t).open(t)
		row := *keyringOf(t, before.open(t))
		row.Version = keyringOf(t, s).Version + 1
		if err := s.Update(t.Context(), func(tx store.Tx) error { tx.Put(&row); return nil }); err != nil {
			t.Fatal(err)
		}
		if _, err := cardvault.New(t.Context(), s, cardvault.JoinKeyrings(next, former), nil); !errors.Is(err, cardvault.ErrDamaged) {
			t.Errorf("with the keyring of before: %v", err)
		}
		v.Close()
	})
}

// A replaceable store can be restored beneath a vault.
type replaceable struct {
	atomic.Pointer[boltstore.Store]
}

func (r *replaceable) View(ctx context.Context, fn func(store.ReadTx) error) error {
	return r.Load().View(ctx, fn)
}

func (r *replaceable) Update(ctx context.Context, fn func(store.Tx) error) error {
	return r.Load().Update(ctx, fn)
}

func (r *replaceable) Close() error { return nil }

// TestRetireRestored: a process that runs while its store is restored from before a term was
// retired notices it. A process that is started anew reads all of the store.
func TestRetireRestored(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		keys, file, log := newKey(t), newBoltFile(t), new(lockedBuffer)
		s := new(replaceable)
		s.Store(file.open(t))
		v, err := cardvault.New(t.Context(), s, keys, &cardvault.Options{Logger: slog.New(slog.NewTextHandler(log, nil))})
		if err != nil {
			t.Fatal(err)
		}
		defer v.Close()
		tokens := []uuid.UUID{imported(t, v).ID}
		first := file.backup(t)
		rotateOnce(t, v)
		tokens = append(tokens, imported(t, v).ID)
		rotated := file.backup(t)
		retire(t, v)
		reads := func(f boltFile, want ...uuid.UUID) {
			t.Helper()
			v := vaultWith(t, f.backup(t).open(t), keys)
			defer v.Close()
			for _, id := range want {
				if _, err := v.Get(t.Context(), id); err != nil {
					t.Error(err)
				}
			}
		}

		s.Store(rotated.open(t))
		if err := v.Drain(t.Context()); err != nil {
			t.Error(err)
		}
		if !strings.Contains(log.text(), "the keyring in the store cannot be loaded") {
			t.Error("a store of before the closing is not noticed")
		}
		if _, err := v.Get(t.Context(), tokens[0]); !errors.Is(err, cardvault.ErrDamaged) {
			t.Errorf("a token under the retired term: %v", err)
		}
		tokens = append(tokens, imported(t, v).ID)
		reads(rotated, tokens...)

		s.Store(first.open(t))
		if _, err := v.Import(t.Context(), visa, nil); !errors.Is(err, cardvault.ErrDamaged) {
			t.Errorf("an import into a store that lacks the term: %v", err)
		}
		reads(first, tokens[0])
	})
}
