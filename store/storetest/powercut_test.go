package storetest_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/cardvault/cardvault/store/storetest"
)

// What is synced is in the copy, and nothing else.
func TestAfterPowerCut(t *testing.T) {
	dir := t.TempDir()
	content := bytes.Repeat([]byte("content "), 4000)
	if err := os.Mkdir(filepath.Join(dir, "below"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, sync := range map[string]bool{"synced": true, "unsynced": false, "below/synced": true} {
		f, err := os.Create(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := f.Write(content); err != nil {
			t.Fatal(err)
		}
		if !sync {
			continue
		}
		if err := f.Sync(); err != nil {
			t.Fatal(err)
		}
	}

	left := storetest.AfterPowerCut(t, dir)
	for name, want := range map[string][]byte{
		"synced": content, "below/synced": content, "unsynced": make([]byte, len(content)),
	} {
		if got, err := os.ReadFile(filepath.Join(left, name)); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: %d bytes that are not as expected, %v", name, len(got), err)
		}
	}
}
