//go:build unix && !aix && !solaris && !illumos

package boltstore

import (
	"os"
	"syscall"
)

// pin maps the first bytes of a file, and keeps them in memory if this process may.
func pin(f *os.File, size int) ([]byte, error) {
	mapped, err := syscall.Mmap(int(f.Fd()), 0, size, syscall.PROT_READ, syscall.MAP_SHARED)
	if err == nil {
		_ = syscall.Mlock(mapped) // without it they stay there as long as they are used
	}
	return mapped, err
}

func unpin(mapped []byte) error {
	if mapped == nil {
		return nil
	}
	return syscall.Munmap(mapped)
}
