package sandbox_test

import (
	"bytes"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/examples/internal/sandbox"
	"github.com/cardvault/cardvault/store/memstore"
)

// Credentials are kept as long as they work in the vault, and made anew for another vault.
func TestCredentials(t *testing.T) {
	file := filepath.Join(t.TempDir(), "sandbox.json")
	var log bytes.Buffer
	vault := func() *cardvault.Vault {
		keys, err := cardvault.KeyBytes(make([]byte, cardvault.KeySize))
		if err != nil {
			t.Fatal(err)
		}
		v, err := cardvault.New(t.Context(), memstore.New(), keys, &cardvault.Options{Mode: cardvault.Sandbox})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { v.Close() })
		return v
	}
	open := func(v *cardvault.Vault) *sandbox.Credentials {
		t.Helper()
		log.Reset()
		c, err := sandbox.Open(t.Context(), v, file, slog.New(slog.NewTextHandler(&log, nil)))
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Write(file); err != nil {
			t.Fatal(err)
		}
		read, err := sandbox.Read(t.Context(), v, file) // it tries the keys
		if err != nil || !reflect.DeepEqual(read, c) || len(c.Accounts) != 2 || c.Accounts[0].Name != "sandbox" {
			t.Fatalf("the file holds %d accounts of %d: %v", len(read.Accounts), len(c.Accounts), err)
		}
		return c
	}

	first, second := vault(), vault()
	if _, err := sandbox.Read(t.Context(), first, file); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a file: %v", err)
	}
	made := open(first)
	if _, err := first.In(made.Accounts[0].AccountID).FreezeAccount(t.Context()); err != nil {
		t.Fatal(err)
	}
	if kept := open(first); !reflect.DeepEqual(kept, made) || log.Len() > 0 {
		t.Errorf("the same vault has other credentials: %s", &log)
	}
	if _, err := sandbox.Read(t.Context(), second, file); !errors.Is(err, cardvault.ErrUnauthenticated) {
		t.Errorf("keys of another vault: %v", err)
	}
	open(second)
	if said := log.String(); strings.Count(said, "\n") != 1 || !strings.Contains(said, file) {
		t.Errorf("the log of the new credentials is %q", said)
	}
	if old, err := sandbox.Read(t.Context(), first, file+".old"); err != nil || !reflect.DeepEqual(old, made) {
		t.Errorf("the old credentials are lost: %v", err)
	}

	for _, text := range []string{"", "{}", `{"accounts":[]}`} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := sandbox.Read(t.Context(), second, file); err == nil || !strings.Contains(err.Error(), "remove it") {
			t.Errorf("%q: %v", text, err)
		}
	}
}
