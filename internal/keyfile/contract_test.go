package keyfile_test

import (
	"bytes"
	"path/filepath"
	"testing"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/internal/keyfile"
	"github.com/cardvault/cardvault/keytest"
)

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
