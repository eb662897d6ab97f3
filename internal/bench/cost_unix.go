//go:build unix

package main

import (
	"syscall"
	"time"
)

// processTime returns what this process has taken of the processor.
func processTime() time.Duration {
	var u syscall.Rusage
	must(syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
