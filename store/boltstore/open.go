package boltstore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/internal/queue"
)

var formatKey = []byte("format")

// The versions of the layout of the file. While the indexes are made anew, a file has a version
// of its own: a program that does not know that would not keep the new ones equal to the rows.
const (
	fileFormat    = 1
	rebuildFormat = 2
)

// initialMmapSize is address space, not memory: with it, growth of the file
// seldom has to wait for readers. On Windows it would be disk space.
var initialMmapSize = func() int {
	if runtime.GOOS == "linux" && strconv.IntSize == 64 {
		return 1 << 30
	}
	return 0
}()

const lockPoll = 20 * time.Millisecond

// Open opens the file at path, or makes it, with mode 0600. Its directory is
// made, with mode 0700, if only that is missing. ctx counts while Open waits
// for the file's lock. opts may be nil.
//
// path may be a symbolic link to a file; a file that is not a regular one is refused. A
// file that others may read or write is opened, and logged as a warning: its content is
// sealed, and a refusal would keep a vault shut.
//
// Errors: store.ErrLocked, store.ErrFormat, store.ErrDamaged, and wrapped errors of the
// operating system.
func Open(ctx context.Context, path string, opts *Options) (*Store, error) {
	return openWith(ctx, path, opts, defaults)
}

func openWith(ctx context.Context, path string, opts *Options, c config) (*Store, error) {
	if opts == nil {
		opts = new(Options)
	}
	s := &Store{
		config: c,
		best:   1,
		log:    opts.Logger,
		queue:  queue.New[*call](),
	}

	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	timeout := opts.LockTimeout
	if timeout == 0 {
		timeout = time.Second
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}

	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		if err := create(path); err != nil {
			return nil, fmt.Errorf("boltstore: create: %w", err)
		}
	} else if err != nil {
		return nil, fmt.Errorf("boltstore: open: %w", err)
	} else if runtime.GOOS != "windows" && info.Mode().Perm()&0o077 != 0 {
		s.log.Warn("the store's file is open to other users: set its mode to 0600", "path", path)
	}

	if s.path, err = filepath.EvalSymlinks(path); err == nil {
		s.path, err = filepath.Abs(s.path) // of the copies that a compaction makes
	}
	if err != nil {
		return nil, fmt.Errorf("boltstore: open: %w", err)
	}
	c.undone = opts.AcceptUndone
	if s.h, err = waitForHandle(ctx, s.path, c, timeout); err != nil {
		return nil, err
	}
	if s.h.mended {
		s.log.Error("a head of the file was damaged: what its last transaction changed may be undone", "path", path)
	}
	if err := keepName(s.path, c); err != nil {
		return nil, errors.Join(fmt.Errorf("boltstore: open: %w", err), s.h.close())
	}
	left := leftovers(s.path)
	s.closing.Go(func() { // the system frees a large file slowly
		for _, path := range left {
			_ = c.remove(path)
		}
	})
	s.freed() // by a process of before
	s.queue.Start(s.step)
	return s, nil
}

// waitForHandle opens the file once no other process has it open.
func waitForHandle(ctx context.Context, path string, c config, timeout time.Duration) (*handle, error) {
	deadline := time.Now().Add(timeout)
	for {
		h, err := openHandle(path, c)
		if !errors.Is(err, store.ErrLocked) || !time.Now().Before(deadline) {
			return h, err
		}
		timer := time.NewTimer(lockPoll)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, ctx.Err()
		}
	}
}

// keepName makes the name of a file durable: a process that has compacted it may have been
// killed before. Where the system cannot do that, no file is compacted.
func keepName(path string, c config) error {
	err := c.syncDir(filepath.Dir(path))
	if errors.Is(err, errors.ErrUnsupported) || errors.Is(err, syscall.EINVAL) || errors.Is(err, fs.ErrPermission) {
		return nil
	}
	return err
}

// A handle is an open bbolt file.
type handle struct {
	db   *bolt.DB
	file *os.File

	mended  bool           // a damaged head was replaced
	pavedTo int64          // where pave has ended; owned by the writing goroutine
	users   sync.WaitGroup // calls that use the file

	reading *atomic.Int64   // calls that began since the last part of a scrub; guarded by Store.mu
	earlier []*atomic.Int64 // calls that began before; owned by the writing goroutine

	// meta is a mapping of the two meta pages, which each transaction reads while bbolt holds its
	// locks. They are kept in memory, so that no read of them fails there. Nil: it is unknown.
	meta []byte

	last   atomic.Int64 // the last transaction that was committed
	evened int64        // the last one that changed nothing; owned by the writing goroutine

	beginning sync.Mutex
	resting   resting

	// stuck is set when a panic has left bbolt with locks held: then not even
	// closing it would return, so the handle is only given up.
	stuck atomic.Bool
}

// openHandle opens an existing file without waiting for its lock.
func openHandle(path string, c config) (*handle, error) {
	h := &handle{reading: new(atomic.Int64)}
	opened := func(path string, flag int, mode os.FileMode) (*os.File, error) {
		// bbolt would make a file that is not there and fill an empty one.
		f, err := os.OpenFile(path, flag&^os.O_CREATE, mode)
		if err != nil {
			return nil, err
		}
		h.file = f
		switch info, err := f.Stat(); {
		case err != nil:
			return nil, errors.Join(err, f.Close())
		case !info.Mode().IsRegular():
			return nil, errors.Join(errors.New("not a regular file"), f.Close())
		case info.Size() == 0:
			return nil, errors.Join(fmt.Errorf("%w: the file is empty", store.ErrDamaged), f.Close())
		}
		return f, nil
	}

	err := guarded(func() (err error) {
		h.db, err = bolt.Open(path, 0o600, &bolt.Options{
			Timeout:         time.Nanosecond, // one attempt
			FreelistType:    bolt.FreelistMapType,
			InitialMmapSize: c.mmapSize,
			MaxSize:         c.maxSize,
			NoSync:          c.noSync,
			NoStatistics:    true,
			OpenFile:        opened,
		})
		return err
	})

	if err == nil {
		if err = h.named(path); err != nil { // a process that compacts it has held the lock
			err = fmt.Errorf("%w: %w", store.ErrLocked, err)
		} else if err = h.whole(c.undone); err == nil {
			err = guarded(func() (err error) {
				h.meta, err = pin(h.file, 2*h.db.Info().PageSize)
				return err
			})
		}
		if err == nil {
			return h, nil
		}
		return nil, errors.Join(err, h.close())
	}

	switch {
	case errors.Is(err, bolterrors.ErrTimeout):
		err = fmt.Errorf("%w: close the other process, or give this one a file of its own", store.ErrLocked)
	case errors.Is(err, bolterrors.ErrInvalid), errors.Is(err, bolterrors.ErrVersionMismatch),
		errors.Is(err, bolterrors.ErrChecksum), strings.HasPrefix(err.Error(), "file size too small"):
		err = fmt.Errorf("%w: %w", store.ErrDamaged, err)
	}

	if errors.Is(err, store.ErrDamaged) {
		err = fmt.Errorf("%w: restore the file from a backup", err)
		if h.file != nil {
			_ = h.giveUp() // bbolt has closed it unless it panicked: then it holds the lock
		}
	}
	return nil, fmt.Errorf("boltstore: open: %w", err)
}

// whole returns an error unless the file is a complete boltstore. It may have mended a head.
func (h *handle) whole(mends bool) error {
	if err := h.verify(); err != nil {
		return err
	}
	err := checkHeads(h)
	if mends && errors.Is(err, errHead) {
		err, h.mended = acceptHeads(h), true
	}
	return err
}

// verify returns an error unless its pages and format are as they should be.
func (h *handle) verify() error {
	tx, err := h.begin(false)
	if err != nil {
		return err
	}
	defer h.rollback(tx)
	return guarded(func() error {
		info, err := h.file.Stat()
		if err != nil {
			return fmt.Errorf("boltstore: open: %w", err)
		}
		if info.Size() < tx.Size() {
			return fmt.Errorf("%w: the file has lost its end: restore it from a backup", store.ErrDamaged)
		}

		if err := checkPages(h.file, tx, false); err != nil {
			return err
		}
		meta := tx.Bucket(metaBucket)
		if meta == nil {
			return fmt.Errorf("%w: a bbolt file that is not a store of this package", store.ErrFormat)
		}

		switch v := meta.Get(formatKey); {
		case len(v) != 1 || v[0] == 0:
			return fmt.Errorf("%w: no format version: restore the file from a backup", store.ErrDamaged)
		case v[0] > rebuildFormat:
			return fmt.Errorf("%w: the file has version %d, this program knows %d: use a newer program",
				store.ErrFormat, v[0], rebuildFormat)
		}

		for _, name := range [][]byte{listsBucket, dueBucket, lookupBucket} {
			bucket(tx, name)
		}
		return nil
	})
}

// begin starts a transaction.
func (h *handle) begin(writable bool) (tx *bolt.Tx, err error) {
	if !writable {
		// A call that begins while another panics inside bbolt would wait for a lock that
		// is never released.
		h.beginning.Lock()
		defer h.beginning.Unlock()
	}

	if writable {
		h.wake()
		defer func() { h.writes(tx) }()
	}
	if h.stuck.Load() {
		return nil, fmt.Errorf("%w: the file was changed or lost while it was open", store.ErrDamaged)
	}
	begun := true
	defer func() {
		if !begun {
			h.stuck.Store(true)
		}
	}()

	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer guard(&err)
	h.touch() // a read that fails here leaves no lock held: the next call may succeed
	last := h.last.Load()
	begun = false
	tx, err = h.db.Begin(writable)
	begun = true
	if err != nil {
		return tx, err
	}
	of := int64(tx.ID()) // the last transaction in the file
	if writable {
		of--
	}
	if of < last {
		return nil, errors.Join(fmt.Errorf("%w: the head of the last transaction, while the file was open", store.ErrDamaged), tx.Rollback())
	}
	return tx, nil
}

// touch reads both meta pages, and panics if they cannot be read. Inlined it would read nothing.
//
//go:noinline
func (h *handle) touch() (bits byte) {
	if n := len(h.meta); n > 0 {
		bits = h.meta[0] | h.meta[n/2]
	}
	return bits
}

// rollback ends a transaction. It may have ended before.
func (h *handle) rollback(tx *bolt.Tx) {
	ended := false
	defer func() {
		if !ended {
			h.stuck.Store(true)
		}
	}()
	var err error // of a panic, which stuck reports
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer guard(&err)
	_ = tx.Rollback() // fails only if tx has ended
	h.ended(tx)
	ended = true
}

// lastID returns the id of the last transaction in the file.
func (h *handle) lastID() int {
	tx, err := h.begin(false)
	if err != nil {
		return int(^uint(0) >> 1)
	}
	defer h.rollback(tx)
	return tx.ID()
}

// close closes the file. All transactions must have ended.
func (h *handle) close() error {
	if h.stuck.Load() {
		return h.giveUp()
	}
	h.wake()
	return errors.Join(guarded(h.db.Close), h.unpin())
}

// giveUp closes the file and leaves it mapped.
func (h *handle) giveUp() error { return errors.Join(unlock(h.file), h.file.Close(), h.unpin()) }

func (h *handle) unpin() error {
	meta := h.meta
	h.meta = nil
	return unpin(meta)
}

// create makes an empty store and puts it in place whole, so that a crash
// leaves either a good file or none. If another process does the same, one of
// the two files stays.
func create(path string) (err error) {
	dir := filepath.Dir(path)
	switch err := os.Mkdir(dir, 0o700); {
	case err == nil:
		// The name of a new directory is durable when its parent is.
		if err := syncDir(filepath.Dir(dir)); err != nil {
			return errors.Join(err, os.Remove(dir)) // so that the next attempt comes here too
		}
	case !errors.Is(err, fs.ErrExist):
		return err
	}

	temporary, err := buildEmpty(path, func(f *os.File) error { return f.Chmod(0o600) })
	if err != nil {
		return err
	}
	defer func() {
		if e := os.Remove(temporary); e != nil && !errors.Is(e, fs.ErrNotExist) {
			err = errors.Join(err, e)
		}
		err = errors.Join(err, syncDir(dir))
	}()

	err = os.Link(temporary, path)
	if _, e := os.Lstat(path); e == nil {
		return nil // made here, or by a faster process
	}

	return err
}

// buildEmpty makes an empty store beside path, under a name that leftovers knows. prepare sets
// who may use its file.
func buildEmpty(path string, prepare func(*os.File) error) (temporary string, err error) {
	f, err := os.CreateTemp(filepath.Dir(path), leftoverPrefix(path)+"*")
	if err != nil {
		return "", err
	}
	temporary = f.Name()
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(temporary))
		}
	}()

	if err := errors.Join(prepare(f), f.Close()); err != nil {
		return "", err
	}
	db, err := bolt.Open(temporary, 0o600, &bolt.Options{FreelistType: bolt.FreelistMapType})
	if err != nil {
		return "", err
	}
	err = db.Update(func(tx *bolt.Tx) error {
		for _, name := range [][]byte{listsBucket, dueBucket, lookupBucket} {
			if _, err := tx.CreateBucket(name); err != nil {
				return err
			}
		}
		meta, err := tx.CreateBucket(metaBucket)
		if err != nil {
			return err
		}
		return meta.Put(formatKey, []byte{fileFormat})
	})
	return temporary, errors.Join(err, db.Sync(), db.Close())
}

func leftoverPrefix(path string) string { return "." + filepath.Base(path) + ".new-" }

// leftovers returns the files that a crash has left, in create or amid a compaction. It is
// called when path exists, so any process still in create no longer needs its file. Each is
// removed whole: one of create may have the name of the store too.
func leftovers(path string) (paths []string) {
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		return nil // they do no harm
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), leftoverPrefix(path)) {
			paths = append(paths, filepath.Join(filepath.Dir(path), e.Name()))
		}
	}
	return paths
}

func syncDir(dir string) error {
	if runtime.GOOS == "windows" {
		return nil // directories cannot be synced
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
