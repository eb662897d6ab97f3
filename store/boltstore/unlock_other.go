//go:build !unix || aix || solaris

package boltstore

import "os"

// unlock does nothing: closing the file gives back bbolt's lock.
func unlock(*os.File) error { return nil }
