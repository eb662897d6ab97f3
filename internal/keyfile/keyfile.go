// Package keyfile keeps a key-encryption key in a file that only its owner may use.
package keyfile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
)

// MinPassphrase is the least number of characters in the passphrase of a new file.
const MinPassphrase = 12

// Open returns the key in the file at path, an absolute path. If there is no such file it
// makes one with a random key, and the last element of its directory too. The file is sealed
// under passphrase, unless that is empty. made reports whether the file was missing.
//
// An error describes the fault of the file, without its path.
func Open(path string, passphrase []byte) (key *Key, made bool, err error) {
	text, err := read(path)
	if made = errors.Is(err, fs.ErrNotExist); made {
		if text, err = newText(passphrase); err == nil {
			text, err = write(path, text)
		}
	}
	if err != nil {
		return nil, made, err
	}

	secret, err := parse(text, passphrase)
	if err != nil {
		return nil, made, err
	}
	return NewKey(secret), made, nil
}

// Change seals the key in the file at path, an absolute path, under the passphrase next. former
// is its present passphrase, empty for a file in clear. The file is replaced whole or stays as
// it is. It must belong to this user, because the new one does.
//
// A copy of the former file still opens with the former passphrase.
func Change(path string, former, next []byte) error {
	if len(next) == 0 {
		return errors.New("the new passphrase is empty")
	}
	text, err := read(path)
	if err == nil {
		err = checkMine(path)
	}
	if err != nil {
		return err
	}

	secret, err := parse(text, former)
	if err != nil {
		return err
	}
	defer clear(secret)
	if text, err = textOf(secret, next); err != nil {
		return err
	}
	return put(path, text, os.Rename)
}

// read reads a regular file that only its owner may use.
func read(path string) ([]byte, error) {
	link, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	if !link.Mode().IsRegular() {
		return nil, errors.New("must be a regular file, not a symlink")
	}

	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()

	// The file that was opened must be the file that was checked.
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !os.SameFile(link, info) {
		return nil, errors.New("was replaced while it was opened")
	}

	if runtime.GOOS != "windows" && info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("is accessible to other users (mode %#o): make it 0600", info.Mode().Perm())
	}
	if err := checkOwners(path, f); err != nil {
		return nil, err
	}

	text, err := io.ReadAll(io.LimitReader(f, maxSize+1))
	if err == nil && len(text) > maxSize {
		err = errForm
	}
	return text, err
}

// newName begins the name of a key file that is being written.
const newName = ".key-"

// write puts a new key file in place whole and durable, or not at all.
// It returns the content of the file, which is another process's if that was faster.
func write(path string, text []byte) ([]byte, error) {
	dir := filepath.Dir(path)
	switch err := os.Mkdir(dir, 0o700); {
	case err == nil:
		if err := syncDir(filepath.Dir(dir)); err != nil {
			return nil, err
		}
	case !errors.Is(err, fs.ErrExist):
		return nil, err
	}
	if err := checkFolder(dir); err != nil {
		return nil, err
	}

	err := put(path, text, os.Link)
	if errors.Is(err, fs.ErrExist) {
		return read(path)
	}
	return text, err
}

// put writes a file under a new name, and durable, before place gives it its own.
func put(path string, text []byte, place func(from, to string) error) error {
	// A crash leaves this name beside the other, or alone, with an unused key.
	f, err := os.CreateTemp(filepath.Dir(path), newName+"*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	err = f.Chmod(0o600) // a umask may have taken the owner's bits too
	if err == nil {
		_, err = f.Write(text)
	}
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}

	if err := place(f.Name(), path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

// syncDir makes a new name in a directory durable.
func syncDir(dir string) error {
	if runtime.GOOS == "windows" {
		return nil // directories cannot be synced there
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// Apart returns an error if the file at path lies in dir or below it.
func Apart(path, dir string) error {
	if Below(filepath.Dir(path), dir) {
		return errors.New("must not be in the folder of the vault: a copy of that folder would include the key; move it elsewhere")
	}
	return nil
}

// Below reports whether a folder is dir or lies below it.
func Below(folder, dir string) bool {
	rel, err := filepath.Rel(resolved(dir), resolved(folder))
	return err == nil && (rel == "." || filepath.IsLocal(rel))
}

// resolved follows the symlinks of a path as far as it exists.
func resolved(path string) string {
	path, err := filepath.Abs(path)
	if err != nil {
		return path
	}
	if real, err := filepath.EvalSymlinks(path); err == nil {
		return real
	}
	if parent := filepath.Dir(path); parent != path {
		return filepath.Join(resolved(parent), filepath.Base(path))
	}
	return path
}
