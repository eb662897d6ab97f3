//go:build !linux

package boltstore

// roomIn returns how many bytes can still be written below a folder.
func roomIn(string) (bytes int64, known bool) { return 0, false }
