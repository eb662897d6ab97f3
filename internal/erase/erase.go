// Package erase clears up after cryptography. Built with
// GOEXPERIMENT=runtimesecret, registers, stack and heap that [Do] has used are
// erased; otherwise they are overwritten when the runtime uses them again.
package erase
