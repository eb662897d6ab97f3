// Package anchordir keeps the text of an anchor in a folder, in one file that is named by the
// number of the text. A later text is another file, so processes that write at the same time need
// no lock, and the highest number counts whatever their order.
package anchordir

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
)

// A Dir is an anchor in a folder.
type Dir struct{ path string }

// New returns the anchor in a folder, which need not be there yet.
func New(path string) *Dir { return &Dir{path} }

// Path returns the folder.
func (d *Dir) Path() string { return d.path }

const (
	suffix  = ".anchor"
	digits  = 20      // of a number: all that a uint64 has
	newName = ".new-" // begins the name of a file that is being written
	longest = 1 << 12 // of a text
	looks   = 100     // at a folder whose files are replaced meanwhile
)

// Load returns the text with the highest number, or nil if the folder has none. A missing folder is
// an error: the volume that holds it may not be mounted.
func (d *Dir) Load(ctx context.Context) (text []byte, err error) {
	for range looks {
		name, _, err := d.highest()
		if err != nil || name == "" {
			return nil, err
		}
		if text, err = read(filepath.Join(d.path, name)); !errors.Is(err, fs.ErrNotExist) {
			return text, err
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
	return nil, fmt.Errorf("the files of %s change all the time", d.path)
}

func read(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, longest))
	if err == nil && len(text) == 0 { // which is not the same as no file
		text = []byte("?")
	}
	return text, err
}

// highest returns the name with the highest number, and the number; "" if there is none.
func (d *Dir) highest() (name string, number uint64, err error) {
	entries, err := os.ReadDir(d.path)
	if err != nil {
		return "", 0, err
	}
	for _, e := range entries {
		if n, ok := numberOf(e.Name()); ok && (name == "" || n > number) {
			name, number = e.Name(), n
		}
	}
	return name, number, nil
}

// numberOf returns the number in the name of a file.
func numberOf(name string) (number uint64, ok bool) {
	text, ok := strings.CutSuffix(name, suffix)
	if !ok || len(text) != digits {
		return 0, false
	}
	number, err := strconv.ParseUint(text, 10, 64)
	return number, err == nil
}

// Advance stores a text, unless the folder has one with the same or a higher number. The file is
// durable before it has its name, and the name is durable before Advance returns.
func (d *Dir) Advance(ctx context.Context, number uint64, text []byte) error {
	name, present, err := d.highest()
	switch {
	case err != nil:
		return err
	case name != "" && present >= number:
		return d.sync() // the process that has stored it may not have come so far
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}

	f, err := os.CreateTemp(d.path, newName+"*") // mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(text)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), filepath.Join(d.path, fmt.Sprintf("%0*d%s", digits, number, suffix))); err != nil {
		return err
	}
	if err := d.sync(); err != nil {
		return err
	}
	d.tidy(number)
	return nil
}

// sync makes the names in the folder durable.
func (d *Dir) sync() error {
	if runtime.GOOS == "windows" {
		return nil // directories cannot be synced there
	}
	f, err := os.Open(d.path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// tidy removes the texts below a number. What a crash leaves of them does no harm.
func (d *Dir) tidy(number uint64) {
	entries, _ := os.ReadDir(d.path)
	for _, e := range entries {
		if n, ok := numberOf(e.Name()); ok && n < number {
			_ = os.Remove(filepath.Join(d.path, e.Name()))
		}
	}
}
