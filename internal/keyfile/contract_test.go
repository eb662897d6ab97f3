package keyfile_test

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/internal/keyfile"
	"github.com/cardvault/cardvault/keytest"
)

// TestChange: the passphrase of a file changes, and its key does not.
func TestChange(t *testing.T) {
	first, second := []byte("correct horse battery staple"), []byte("battery staple correct horse")
	dir := filepath.Join(t.TempDir(), "keys")
	path := filepath.Join(dir, "vault.key")
	key, _, err := keyfile.Open(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := keyfile.Change(path, nil, first); err != nil {
		t.Fatal(err)
	}
	if _, _, err := keyfile.Open(path, nil); !errors.Is(err, keyfile.ErrSealed) {
		t.Errorf("without a passphrase: %v", err)
	}
	if err := keyfile.Change(path, first, second); err != nil {
		t.Fatal(err)
	}
	for what, passphrases := range map[string][2][]byte{
		"former passphrase": {first, first}, "short passphrase": {second, []byte("short")}, "no passphrase": {second, nil},
	} {
		if err := keyfile.Change(path, passphrases[0], passphrases[1]); err == nil {
			t.Errorf("%s was taken", what)
		}
	}

	again, made, err := keyfile.Open(path, second)
	if err != nil || made || again.KeyID() != key.KeyID() {
		t.Errorf("%v, made %t, or another key", err, made)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("%d files in the folder, %v", len(entries), err)
	}
	if err := keyfile.Change(filepath.Join(dir, "missing.key"), nil, first); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing file: %v", err)
	}
}

// TestContract: a key satisfies the contract of a wrapper, in memory and in a file.
func TestContract(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys", "vault.key")
	other := func(testing.TB) cardvault.KeyWrapper { return keyfile.NewKey(bytes.Repeat([]byte{2}, keyfile.Size)) }
	for name, open := range map[string]func(testing.TB) cardvault.KeyWrapper{
		"memory": func(testing.TB) cardvault.KeyWrapper { return keyfile.NewKey(bytes.Repeat([]byte{1}, keyfile.Size)) },
		"file": func(t testing.TB) cardvault.KeyWrapper {
			key, _, err := keyfile.Open(path, nil)
			if err != nil {
				t.Fatal(err)
			}
			return key
		},
	} {
		t.Run(name, func(t *testing.T) { keytest.Run(t, keytest.Harness{Open: open, Other: other}) })
	}
}
