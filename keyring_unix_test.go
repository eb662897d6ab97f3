//go:build unix

package cardvault_test

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"github.com/cardvault/cardvault"
)

// TestKeyFileOfOthers: a file that another user could have written, or could replace, is
// refused.
func TestKeyFileOfOthers(t *testing.T) {
	chown := func(path string, uid int) error {
		if os.Geteuid() != 0 {
			t.Skip("needs root")
		}
		return os.Chown(path, uid, -1)
	}
	for name, test := range map[string]struct {
		spoil   func(dir, path string) error
		refused bool
	}{
		"unchanged":                     {func(_, _ string) error { return nil }, false},
		"readable folder":               {func(dir, _ string) error { return os.Chmod(dir, 0o755) }, false},
		"group-writable folder":         {func(dir, _ string) error { return os.Chmod(dir, 0o770) }, true},
		"world-writable folder":         {func(dir, _ string) error { return os.Chmod(dir, 0o707) }, true},
		"world-writable folder, sticky": {func(dir, _ string) error { return os.Chmod(dir, 0o777|os.ModeSticky) }, true},
		"another user's file":           {func(_, path string) error { return chown(path, 1000) }, true},
		"another user's folder":         {func(dir, _ string) error { return chown(dir, 1000) }, true},
		"root's file":                   {func(_, path string) error { return chown(path, 0) }, false},
		"another link in the folder":    {func(dir, path string) error { return os.Link(path, filepath.Join(dir, "copy")) }, true},
		"another link elsewhere":        {func(dir, path string) error { return os.Link(path, dir+".copy") }, true},
		"a file like a new key":         {func(dir, path string) error { return os.WriteFile(filepath.Join(dir, ".key-1"), []byte("x"), 0o600) }, false},
		"a link left by a crash":        {func(dir, path string) error { return os.Link(path, filepath.Join(dir, ".key-1")) }, false},
		"both links": {func(dir, path string) error {
			return errors.Join(os.Link(path, filepath.Join(dir, ".key-1")), os.Link(path, filepath.Join(dir, "copy")))
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "keys")
			path := filepath.Join(dir, "vault.key")
			made := mustKeyFile(t, path, "")
			if err := test.spoil(dir, path); err != nil {
				t.Fatal(err)
			}
			if test.refused {
				refusesKeyFile(t, path, "")
				return
			}
			if !sameKey(t, made, mustKeyFile(t, path, "")) {
				t.Error("another key")
			}
			if info, err := os.Stat(path); err != nil || info.Sys().(*syscall.Stat_t).Nlink != 1 {
				t.Errorf("the file has other names: %v", err)
			}
		})
	}
}

// TestKeyFileIsMadeAmongOthers: no key file is made in a folder where other users could
// replace it.
func TestKeyFileIsMadeAmongOthers(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	refusesKeyFile(t, filepath.Join(dir, "vault.key"), "")
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		t.Errorf("%d files are left, %v", len(entries), err)
	}
}

// TestKeyFileCrashOfMany: a crash left two names for a key file. Any number of concurrent
// readers get its key.
func TestKeyFileCrashOfMany(t *testing.T) {
	for range 50 {
		path := filepath.Join(t.TempDir(), "vault.key")
		made := mustKeyFile(t, path, "")
		if err := os.Link(path, filepath.Join(filepath.Dir(path), ".key-1")); err != nil {
			t.Fatal(err)
		}
		var group sync.WaitGroup
		for range 8 {
			group.Go(func() {
				if keys, err := cardvault.KeyFile(path, nil); err != nil {
					t.Error(err)
				} else if !sameKey(t, made, keys) {
					t.Error("another key")
				}
			})
		}
		group.Wait()
	}
}
