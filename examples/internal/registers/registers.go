//go:build linux

// Package registers overwrites copies that no variable holds any more. Tests that search the
// memory of a process need it.
package registers

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
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
	for range 2 { // the second signal to a thread waits for the first
		ofWaiting()
	}
}

// ofThreads has each goroutine keep a thread to itself until all have one, threads at rest included,
// and interrupts it right after a copy.
func ofThreads() {
	var have, group sync.WaitGroup
	have.Add(threads)
	for range threads {
		group.Go(func() {
			time.Sleep(time.Millisecond) // so the thread that waits for the network runs it
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			have.Done()
			have.Wait()
			from, to := make([]byte, 512), make([]byte, 512)
			for range 100 {
				clearVectors(from, to)
				if err := interrupt(syscall.Gettid()); err != nil {
					panic(err)
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

// ofWaiting interrupts every thread: no goroutine can keep one that waits for the network or
// for a signal, or that the runtime has just put to rest. The present registers of a thread
// overwrite earlier ones, which a signal put on its stack.
func ofWaiting() {
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		panic(err)
	}
	for _, task := range tasks {
		id, err := strconv.Atoi(task.Name())
		if err == nil && interrupt(id) == nil { // otherwise it has ended
			for isPending(id) {
				time.Sleep(time.Millisecond)
			}
		}
	}
}

// isPending reports whether a thread has a signal before it: see proc_pid_status(5).
func isPending(thread int) bool {
	status, err := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/status", thread))
	if err != nil {
		return false // it has ended
	}
	_, mask, _ := strings.Cut(string(status), "SigPnd:\t")
	mask, _, _ = strings.Cut(mask, "\n")
	return strings.Trim(mask, "0") != ""
}

// interrupt sends a signal to a thread. SIGURG asks the runtime for nothing when it wants no
// preemption.
func interrupt(thread int) error {
	_, _, errno := syscall.RawSyscall(syscall.SYS_TGKILL, uintptr(os.Getpid()), uintptr(thread), uintptr(syscall.SIGURG))
	if errno != 0 {
		return errno
	}
	return nil
}

// clearVectors copies zeros: 256 bytes go through other registers than more do.
func clearVectors(from, to []byte) {
	copy(to[:256], from)
	copy(to, from)
}
