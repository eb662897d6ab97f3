//go:build unix

package keyfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// checkOwners returns an error if an open key file, or the folder that it lies in, has
// another owner, or if the file has another name.
func checkOwners(path string, f *os.File) error {
	if err := checkFolder(filepath.Dir(path)); err != nil {
		return err
	}
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if err := checkOwner("", info); err != nil {
		return err
	}
	if links(info) > 1 {
		if err := dropNewName(path, info); err != nil {
			return err
		}
		if info, err = f.Stat(); err != nil {
			return err
		}
	}
	if links(info) > 1 {
		return errors.New("has another name (a hard link), where other users may find it: copy it and remove both")
	}
	return nil
}

// checkFolder returns an error for a folder in which another user can replace a key file.
func checkFolder(dir string) error {
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	if perm := info.Mode().Perm(); perm&0o022 != 0 {
		return fmt.Errorf("is in a folder that other users may write to (mode %#o): make it 0700", perm)
	}
	return checkOwner("is in a folder that ", info)
}

func checkOwner(what string, info fs.FileInfo) error {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || stat.Uid != 0 && int(stat.Uid) != os.Geteuid() {
		return errors.New(what + "belongs to another user: give it to this user, or to root")
	}
	return nil
}

// checkMine returns an error for a file of another user, root included.
func checkMine(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if stat, ok := info.Sys().(*syscall.Stat_t); !ok || int(stat.Uid) != os.Geteuid() {
		return errors.New("belongs to another user, who could not read the new file: do this as that user")
	}
	return nil
}

func links(info fs.FileInfo) uint64 {
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		return uint64(stat.Nlink)
	}
	return 0
}

// dropNewName removes the temporary name of a key file, which a crash has left, or which
// its writer is about to remove. Only the vault's user can have made it: the folder is
// ours.
func dropNewName(path string, info fs.FileInfo) error {
	dir := filepath.Dir(path)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		name := filepath.Join(dir, e.Name())
		if !strings.HasPrefix(e.Name(), newName) || name == path {
			continue
		}
		other, err := e.Info()
		if err == nil && os.SameFile(info, other) {
			err = os.Remove(name)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return syncDir(dir)
}
