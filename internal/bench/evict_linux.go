package main

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// evict drops a file from the page cache. Nothing may have it mapped.
func evict(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	// Only clean pages are dropped.
	return errors.Join(f.Sync(), unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED), f.Close())
}
