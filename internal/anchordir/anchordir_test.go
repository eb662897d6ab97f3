package anchordir_test

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/cardvault/cardvault/internal/anchordir"
)

func load(t *testing.T, d *anchordir.Dir) string {
	t.Helper()
	text, err := d.Load(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func advance(t *testing.T, d *anchordir.Dir, number uint64, text string) {
	t.Helper()
	if err := d.Advance(t.Context(), number, []byte(text)); err != nil {
		t.Error(err)
	}
}

// TestHighest: the highest number counts, whatever the order.
func TestHighest(t *testing.T) {
	dir := t.TempDir()
	d := anchordir.New(dir)
	if text := load(t, d); text != "" {
		t.Errorf("an empty folder has %q", text)
	}
	for _, n := range []uint64{7, 3, 7, 10, 9, 1<<64 - 1} {
		advance(t, d, n, fmt.Sprint("text ", n))
	}
	if text := load(t, anchordir.New(dir)); text != "text 18446744073709551615" {
		t.Errorf("text %q", text)
	}
	if files, err := os.ReadDir(dir); len(files) != 1 || err != nil {
		t.Errorf("files %v, %v", files, err)
	}
}

// TestTogether: processes that write at the same time leave the highest text, and a reader sees no
// lower one than before.
func TestTogether(t *testing.T) {
	dir := t.TempDir()
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			d := anchordir.New(dir)
			for n := range 20 {
				advance(t, d, uint64(100+8*n+i), fmt.Sprintf("text %03d", 8*n+i))
			}
		})
	}
	all.Go(func() {
		last, d := "", anchordir.New(dir)
		for range 100 {
			text := load(t, d)
			if text < last {
				t.Errorf("text %q after %q", text, last)
			}
			last = text
		}
	})
	all.Wait()
	if text := load(t, anchordir.New(dir)); text != "text 159" {
		t.Errorf("text %q", text)
	}
}

// TestStrays: what a killed process or another program leaves does not count, and an empty or long
// file is not the same as none.
func TestStrays(t *testing.T) {
	dir := t.TempDir()
	d := anchordir.New(dir)
	put := func(name string, size int) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), make([]byte, size), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put(".new-123", 3)
	put("notes", 3)
	put("5.anchor", 3)
	put("0000000000000000000x.anchor", 3)
	if text := load(t, d); text != "" {
		t.Errorf("text %q", text)
	}
	for _, n := range []uint64{12, 5} { // as two processes leave them
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%020d.anchor", n)), fmt.Append(nil, n), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if text := load(t, d); text != "12" {
		t.Errorf("text %q", text)
	}
	put("00000000000000000012.anchor", 0)
	if text := load(t, d); text == "" {
		t.Error("an empty file counts as none")
	}
	put("00000000000000000012.anchor", 1<<20)
	if text := load(t, d); len(text) > 1<<12 {
		t.Errorf("%d bytes were read", len(text))
	}
}

// TestMissing: a folder that is not there is an error, and is not made.
func TestMissing(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "anchor")
	d := anchordir.New(dir)
	if _, err := d.Load(t.Context()); err == nil {
		t.Error("it was read")
	}
	if err := d.Advance(t.Context(), 1, []byte("text")); err == nil {
		t.Error("it was written")
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("it was made")
	}
}
