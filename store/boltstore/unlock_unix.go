//go:build unix && !aix && !solaris

package boltstore

import (
	"os"
	"syscall"
)

// unlock gives back bbolt's lock of a file that is only given up: it would
// last as long as the file is mapped, whether it is closed or not.
func unlock(f *os.File) error { return syscall.Flock(int(f.Fd()), syscall.LOCK_UN) }
