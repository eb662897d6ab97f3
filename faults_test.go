package cardvault_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/google/uuid"
)

var visa = cardvault.Card{
	PAN:    card.NewPAN([]byte("4242424242424242")),
	Expiry: card.Expiry{Month: 12, Year: 2030},
	Name:   card.NewName([]byte("A Customer")),
}

func newKey(t *testing.T) *cardvault.Keyring {
	t.Helper()
	key := make([]byte, cardvault.KeySize)
	for i := range key {
		key[i] = byte(rand.Uint32())
	}
	keys, err := cardvault.KeyBytes(key)
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

// filled makes a vault with n tokens in a new folder and closes it.
func filled(t *testing.T, n int) (dir string, keys *cardvault.Keyring, ids []uuid.UUID) {
	t.Helper()
	dir, keys = filepath.Join(t.TempDir(), "vault"), newKey(t)
	v, err := cardvault.Open(t.Context(), dir, keys, nil)
	if err != nil {
		t.Fatal(err)
	}
	for range n {
		token, err := v.Import(t.Context(), visa, nil)
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, token.ID)
	}
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	return dir, keys, ids
}

// contents returns every file below dir.
func contents(t *testing.T, dir string) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		files[path], err = os.ReadFile(path)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func TestOpenRefuses(t *testing.T) {
	dir, keys, _ := filled(t, 3)
	tests := []struct {
		name string
		keys *cardvault.Keyring
		opts *cardvault.Options
		want error
	}{
		{"another key", newKey(t), nil, cardvault.ErrWrongKey},
		{"another mode", keys, &cardvault.Options{Mode: cardvault.Sandbox}, cardvault.ErrWrongMode},
		{"a key provider that is down", cardvault.WrappedBy(downKMS{keyID(t, dir)}), nil, cardvault.ErrUnavailable},
	}
	before := contents(t, dir)
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			v, err := cardvault.Open(t.Context(), dir, test.keys, test.opts)
			if !errors.Is(err, test.want) {
				t.Fatalf("got %v, want %v", err, test.want)
			}
			if v != nil {
				t.Error("a vault is returned together with the error")
			}
			after := contents(t, dir)
			if len(after) != len(before) {
				t.Errorf("%d files, were %d", len(after), len(before))
			}
			for path, data := range before {
				if !bytes.Equal(after[path], data) {
					t.Errorf("%s was written", filepath.Base(path))
				}
			}
		})
	}
	v, err := cardvault.Open(t.Context(), dir, keys, nil)
	if err != nil {
		t.Fatalf("after all of that: %v", err)
	}
	defer v.Close()
	if _, err := cardvault.Open(t.Context(), dir, keys, nil); !errors.Is(err, cardvault.ErrLocked) {
		t.Errorf("opening twice: %v", err)
	}
}

// A downKMS has the id of a key, and cannot be reached.
type downKMS struct{ id string }

func (k downKMS) KeyID() string { return k.id }
func (k downKMS) Wrap(context.Context, []byte, []byte) ([]byte, error) {
	return nil, errors.New("connection refused")
}
func (k downKMS) Unwrap(context.Context, []byte, []byte) ([]byte, error) {
	return nil, errors.New("connection refused")
}

// keyID extracts the id of a vault's key from the error that names it.
func keyID(t *testing.T, dir string) string {
	t.Helper()
	_, err := cardvault.Open(t.Context(), dir, newKey(t), nil)
	var id string
	if _, scanErr := fmt.Sscanf(err.Error(), "cardvault: wrong key: the vault needs key %q", &id); scanErr != nil {
		t.Fatalf("the error does not name the key that is needed: %v", err)
	}
	return id
}

func TestOpenWhereNothingCanBe(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{
		file,                                     // not a folder
		filepath.Join(file, "vault"),             // below a file
		filepath.Join(t.TempDir(), "no", "such"), // Open makes only the last element
	} {
		v, err := cardvault.Open(t.Context(), dir, newKey(t), nil)
		var pathErr *fs.PathError
		if v != nil || !errors.As(err, &pathErr) {
			t.Errorf("got %v, want an error of the file system", err)
		}
	}
	if os.Getuid() == 0 {
		return // root can write everywhere
	}
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o500); err != nil {
		t.Fatal(err)
	}
	if _, err := cardvault.Open(t.Context(), filepath.Join(dir, "vault"), newKey(t), nil); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("in a read-only folder: %v", err)
	}
}

// TestDamagedFile flips bits and cuts pieces of the file of a vault. Whatever is damaged, a
// call gives the right answer or an error. It never panics, and never returns another
// token's data.
func TestDamagedFile(t *testing.T) {
	dir, keys, ids := filled(t, 200)
	good, err := os.ReadFile(filepath.Join(dir, "cardvault.db"))
	if err != nil {
		t.Fatal(err)
	}
	used := len(bytes.TrimRight(good, "\x00")) // the file has room to grow
	random := rand.New(rand.NewPCG(1, 2))
	refused, failed, unaffected := 0, 0, 0
	for round := range 150 {
		data, size := bytes.Clone(good[:used]), len(good)
		switch at := random.IntN(used); round % 3 {
		case 0:
			data[at] ^= 1 << random.IntN(8)
		case 1:
			clear(data[at&^4095:][:min(4096, used-at&^4095)])
		case 2:
			data, size = data[:at], at
		}
		dir := filepath.Join(t.TempDir(), "vault")
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, "cardvault.db")
		if err := errors.Join(os.WriteFile(path, data, 0o600), os.Truncate(path, int64(size))); err != nil {
			t.Fatal(err)
		}
		v, err := cardvault.Open(t.Context(), dir, keys, nil)
		if err != nil {
			if !errors.Is(err, cardvault.ErrDamaged) && !errors.Is(err, cardvault.ErrFormat) {
				t.Fatalf("round %d: not opened: %v", round, err)
			}
			refused++
			continue
		}
		bad := false
		for _, id := range ids {
			token, err := v.Get(t.Context(), id)
			switch {
			case err != nil:
				bad = true
			case token.ID != id || token.MaskedAccountNumber != "424242******4242":
				t.Fatalf("round %d: a wrong token", round)
			}
		}
		for token, err := range v.All(t.Context(), nil) {
			if err != nil {
				bad = true
			} else if token.MaskedAccountNumber != "424242******4242" {
				t.Fatalf("round %d: a wrong token in the list", round)
			}
		}
		if _, err := v.Import(t.Context(), visa, nil); err != nil {
			bad = true
		}
		if err := v.Close(); err != nil {
			bad = true
		}
		if bad {
			failed++
		} else {
			unaffected++
		}
	}
	t.Logf("150 damaged files: %d not opened, %d gave errors, %d unaffected", refused, failed, unaffected)
	if refused == 0 || failed == 0 {
		t.Error("there was too little damage to prove anything")
	}
}
