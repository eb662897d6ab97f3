//go:build linux

// Package registers overwrites copies that no variable holds any more. Tests that search the
// memory of a process need it.
package registers

import (
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
)

// threads are more than a process of the tests has at once.
const threads = 32

// Overwrite overwrites the vector registers of every thread, through which memory was copied, and
// the stacks on which signals put them. It does the same to the memory in which the runtime keeps the
// registers of a goroutine that it has interrupted. It waits for these, since a time would be too short
// on a busy machine. With GODEBUG=asyncpreemptoff=1 it never ends.
func Overwrite() {
	ofThreads()
	for range 2 { // a processor may come late, and interrupt nothing the first time
		ofInterrupted()
	}
}

// ofThreads has each goroutine keep a thread to itself until all have one, threads at rest included,
// and interrupts it right after a copy.
func ofThreads() {
	var have, group sync.WaitGroup
	have.Add(threads)
	for range threads {
		group.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			have.Done()
			have.Wait()
			from, to := make([]byte, 512), make([]byte, 512)
			for range 100 {
				clearVectors(from, to)
				// SIGURG asks the runtime for nothing when it wants no preemption.
				if _, _, errno := syscall.RawSyscall(syscall.SYS_TGKILL, uintptr(os.Getpid()), uintptr(syscall.Gettid()), uintptr(syscall.SIGURG)); errno != 0 {
					panic(errno)
				}
			}
		})
	}
	group.Wait()
}

// ofInterrupted has as many goroutines interrupted at once as may ever have been. None ends before
// the last has begun, and a loop without a call gives up its processor to a signal alone. The
// runtime keeps the registers of each until it goes on, in memory that it uses for no other purpose.
func ofInterrupted() {
	most := int64(threads + 4*runtime.GOMAXPROCS(0))
	var begun atomic.Int64
	var group sync.WaitGroup
	for range most {
		group.Go(func() {
			from, to := make([]byte, 512), make([]byte, 512)
			clearVectors(from, to)
			begun.Add(1)
			for begun.Load() < most {
			}
		})
	}
	group.Wait()
}

// clearVectors copies zeros: 256 bytes go through other registers than more do.
func clearVectors(from, to []byte) {
	copy(to[:256], from)
	copy(to, from)
}
