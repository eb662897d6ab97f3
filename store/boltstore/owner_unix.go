//go:build unix

package boltstore

import (
	"io/fs"
	"os"
	"syscall"
)

// own gives a file the owner and the group of another. That takes no right if it has them.
func own(f *os.File, like fs.FileInfo) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	is, was := info.Sys().(*syscall.Stat_t), like.Sys().(*syscall.Stat_t)
	if is.Uid == was.Uid && is.Gid == was.Gid {
		return nil
	}
	return f.Chown(int(was.Uid), int(was.Gid))
}
