package boltstore_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/boltstore"
)

func TestCreate(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "vault")
	path := filepath.Join(dir, "vault.db")
	leftover := filepath.Join(dir, ".vault.db.new-1")

	// Concurrent calls of Open make one file.
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			s, err := boltstore.Open(t.Context(), path, &boltstore.Options{LockTimeout: time.Minute})
			if err != nil {
				t.Error(err)
				return
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if err := os.WriteFile(leftover, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := boltstore.Open(t.Context(), path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for name, mode := range map[string]fs.FileMode{dir: 0o700 | fs.ModeDir, path: 0o600} {
		if info, err := os.Stat(name); err != nil || info.Mode() != mode {
			t.Errorf("%s: %v, %v; want %v", filepath.Base(name), info.Mode(), err, mode)
		}
	}
	if names, err := os.ReadDir(dir); err != nil || len(names) != 1 {
		t.Errorf("the directory has %v, %v; want one file", names, err)
	}
}

func TestOpenRefuses(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, test := range []struct {
		name, path string
		want       error
	}{
		{"empty file", write("empty", ""), store.ErrDamaged},
		{"short file", write("short", "short"), store.ErrDamaged},
		{"no directory", filepath.Join(dir, "a", "b", "vault.db"), fs.ErrNotExist},
		{"file as directory", filepath.Join(dir, "short", "vault.db"), syscall.ENOTDIR},
		{"directory", dir, nil},
	} {
		before, _ := os.ReadFile(test.path)
		_, err := boltstore.Open(t.Context(), test.path, nil)
		if err == nil || test.want != nil && !errors.Is(err, test.want) {
			t.Errorf("%s: %v, want %v", test.name, err, test.want)
		}
		if after, _ := os.ReadFile(test.path); string(before) != string(after) {
			t.Errorf("%s was written to", test.name)
		}
	}
}
