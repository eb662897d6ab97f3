package storetest

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// AfterPowerCut returns a copy of the files below dir as they would be on disk if the
// computer lost power now. Each page of a file that was written and not synced holds zeros
// in the copy, and so may neighbouring pages. A store that acknowledges before it syncs has
// therefore lost acknowledged records. It is for Harness.Crash of a store on files:
//
//	func(t testing.TB, s store.Store) (store.Store, error) {
//		dir := storetest.AfterPowerCut(t, filepath.Dir(s.(*mystore.Store).Path()))
//		return mystore.Open(filepath.Join(dir, "vault.db"))
//	}
//
// The files must not be written meanwhile. To find out whether the system reports synced
// pages, a file is made in dir and removed. Pages that the system has written to disk by
// itself are taken for synced, so a test that wants a loss tries more than once. Unsynced
// names of files are not noticed. AfterPowerCut needs Linux 6.5 or later on amd64 or
// arm64, and a file system on a disk: it skips the test elsewhere.
func AfterPowerCut(t testing.TB, dir string) string {
	t.Helper()
	if err := tells(dir); err != nil {
		t.Skipf("Synced data cannot be determined here: %v", err)
	}

	left := t.TempDir()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		to, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		to = filepath.Join(left, to)

		switch {
		case d.IsDir():
			return os.MkdirAll(to, 0o700)
		case d.Type().IsRegular():
			return copySynced(to, path)
		}
		return nil
	})
	if err != nil {
		t.Fatalf("copying the synced data: %v", err)
	}
	return left
}

// pageSize is the smallest page size of the systems that report synced pages.
const pageSize = 4096

// tells returns an error unless the system reports both that a file in dir is not synced,
// and that it is.
func tells(dir string) (err error) {
	f, err := os.CreateTemp(dir, "unsynced")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close(), os.Remove(f.Name())) }()

	// Writeback may come between.
	before, after := false, false
	for range 5 {
		if _, err := f.WriteAt(make([]byte, pageSize), 0); err != nil {
			return err
		}
		if before, err = unsynced(f, 0, pageSize); err != nil {
			return err
		}
		if err := f.Sync(); err != nil {
			return err
		}
		if after, err = unsynced(f, 0, pageSize); err != nil {
			return err
		}
		if before && !after {
			return nil
		}
	}
	return errors.New("the file system does not report it")
}

// copySynced copies only the synced part of a file.
func copySynced(to, from string) (err error) {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_EXCL, info.Mode().Perm())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()

	// Looking at all pages at once is quick, and mostly all are synced.
	if lost, err := unsynced(in, 0, info.Size()); err != nil {
		return err
	} else if !lost {
		_, err = io.Copy(out, in)
		return err
	}
	if err := out.Truncate(info.Size()); err != nil {
		return err
	}
	for at := int64(0); at < info.Size(); at += pageSize {
		lost, err := unsynced(in, at, pageSize)
		if err != nil {
			return err
		}
		if lost {
			continue
		}
		if _, err := io.Copy(io.NewOffsetWriter(out, at), io.NewSectionReader(in, at, pageSize)); err != nil {
			return err
		}
	}
	return nil
}
