//go:build unix

package cardvault_test

import (
	"os/signal"
	"syscall"
	"testing"
)

// limitFileSize makes writes beyond a size fail in this process, and returns
// how to change the limit.
func limitFileSize(t *testing.T, size uint64) func(uint64) {
	signal.Ignore(syscall.SIGXFSZ)
	set := func(size uint64) {
		var l syscall.Rlimit
		err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &l)
		if err == nil {
			l.Cur = size
			err = syscall.Setrlimit(syscall.RLIMIT_FSIZE, &l)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	set(size)
	return set
}
