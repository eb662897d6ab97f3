//go:build !goexperiment.runtimesecret

package erase

// Do calls f.
func Do(f func()) { f() }
