package boltstore

import "syscall"

// roomIn returns how many bytes can still be written below a folder.
func roomIn(dir string) (bytes int64, known bool) {
	var s syscall.Statfs_t
	if err := syscall.Statfs(dir, &s); err != nil {
		return 0, false
	}
	return int64(s.Bavail) * int64(s.Bsize), true
}
