package storetest_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/cardvault/cardvault/store/storetest"
)

// The copy contains the synced data and nothing else.
func TestAfterPowerCut(t *testing.T) {
	content := bytes.Repeat([]byte("content "), 4000)
	for range 5 { // the system may write to the disk by itself
		left := afterPowerCut(t, content)
		for _, name := range []string{"synced", "below/synced"} {
			if got, err := os.ReadFile(filepath.Join(left, name)); err != nil || !bytes.Equal(got, content) {
				t.Fatalf("%s: %d bytes that are not as expected, %v", name, len(got), err)
			}
		}
		names, err := os.ReadDir(left)
		if err != nil || len(names) != 3 {
			t.Fatalf("%d names in the copy, %v, want 3", len(names), err)
		}

		got, err := os.ReadFile(filepath.Join(left, "unsynced"))
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Equal(got, make([]byte, len(content))) {
			return
		}
	}
	t.Error("an unsynced file has survived each power loss")
}

// afterPowerCut writes content to files, syncs all except "unsynced", and cuts the power.
func afterPowerCut(t *testing.T, content []byte) string {
	t.Helper()
	dir := t.TempDir()
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
	if names, err := os.ReadDir(dir); err != nil || len(names) != 3 {
		t.Errorf("%d names where the power was cut, %v, want 3", len(names), err)
	}
	return left
}
