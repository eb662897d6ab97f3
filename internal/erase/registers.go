package erase

import "runtime"

// width is the size in bytes of the vector registers through which memory is copied,
// together. It is a variable so that the copy is not compiled into something narrower.
var width = 256

// Registers overwrites the vector registers through which this thread copies
// memory. They hold the last bytes that were copied, for as long as the thread has
// nothing else to copy, and a signal puts them on a stack.
//
//go:noinline
func Registers() {
	var from, to [256]byte
	copy(to[:width], from[:width])
	runtime.KeepAlive(&to)
}
