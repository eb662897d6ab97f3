//go:build linux && (amd64 || arm64)

package storetest

import (
	"fmt"
	"os"
	"syscall"
	"unsafe"
)

// unsynced reports whether a part of a file was written and is not on the disk: what
// cachestat(2) calls dirty or under writeback.
func unsynced(f *os.File, from, length int64) (bool, error) {
	const cachestat = 451
	part := struct{ from, length uint64 }{uint64(from), uint64(length)}
	var counts struct{ cached, dirty, writeback, evicted, recentlyEvicted uint64 }

	_, _, errno := syscall.Syscall6(cachestat, f.Fd(), uintptr(unsafe.Pointer(&part)), uintptr(unsafe.Pointer(&counts)), 0, 0, 0)
	if errno != 0 {
		return false, fmt.Errorf("cachestat: %w", errno)
	}
	return counts.dirty+counts.writeback > 0, nil
}
