// Package boltstore keeps the records of a vault in one bbolt file: the default
// backend, for one process at a time.
//
// All writes pass one goroutine, which commits together whatever is waiting, and what
// goroutines add that can run: a lone caller pays for one commit, a hundred callers share
// one. A commit is two syncs of the file. Lists keep counts beside their
// entries, so a total or a far page costs what a near page costs.
//
// When a commit fails, the file is closed and reopened before anything else happens,
// because only then is its content known. A full disk fails writes that need room, usually
// before anything that matters is written, and then the file stays open. Reads continue,
// and so do deletions as long as the file has free pages.
//
// A damaged file is reported with store.ErrDamaged and does not end the process, as far as
// bbolt exposes the damage. Open checks how pages point to each other, Check everything.
// The vault itself notices whether a sealed column was altered. A record that was lost from
// the file does not keep others from being found. Lookup returns store.ErrDamaged beside the
// others, lists keep its place, and Due, Next and Children pass over it. That is logged, and the
// entries that name the record stay until Repair: without them nothing shows that it was lost.
//
// When a quarter of the file is unused, the Store copies its records into a second file in the
// same folder, between commits, and renames that. The folder must be writable and have room
// for both and 64 MiB more. The second file has the owner, the group and the mode of the
// first. The file must not be a mount point, and a hard link keeps the old file. Where a
// compaction fails, the file stays as long as it is, and a warning is logged.
//
// The file must be on a local file system. Do not copy it while it is open, and
// never truncate it.
package boltstore

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/internal/queue"
	"github.com/cardvault/cardvault/store/internal/sums"
	"github.com/cardvault/cardvault/store/internal/watch"
)

// Options are the optional parts of [Open].
type Options struct {
	// LockTimeout limits how long Open waits while another process has the file open. Zero:
	// 1 second. Negative: not at all.
	LockTimeout time.Duration

	// Logger receives what an operator should see: unsafe file permissions, indexes that
	// name lost records, failed commits, whether the file could be reopened after one, and
	// compactions. If nil, nothing is logged.
	Logger *slog.Logger

	// AcceptUndone opens a file with a damaged head, one of two, and mends it. If that was the head
	// of the last transaction, this one is undone, whatever it was: a deletion, or a revocation.
	// Without it such a file is store.ErrDamaged, since nothing in it shows the loss. So is a copy
	// that bbolt's own WriteTo has made, half of the time: its heads are in each other's place.
	AcceptUndone bool
}

// Bounds of a transaction. The last call of a group may exceed them by the writes of its
// function, which its caller bounds.
const (
	groupBytes = 4 << 20               // of rows put
	groupOps   = 1024                  // rows put and deleted: each may change several pages anywhere in the file
	groupTime  = 10 * time.Millisecond // of functions, before the commit
)

const reopenPause = time.Second // between attempts to open the file again

// config holds the values that tests change.
type config struct {
	fanout   fanout
	mmapSize int // first mapping of the file; more is mapped as it grows
	maxSize  int // of the file in bytes; 0: no limit
	noSync   bool
	undone   bool                 // a damaged head is mended
	sync     func(*os.File) error // of the meta pages that settle writes

	wasteful func(p *sample, pages int, best float64) bool // nil: the file is not compacted
	part     int                                           // bytes that a part of a compaction copies at most
	rename   func(from, to string) error
	remove   func(path string) error
	syncDir  func(dir string) error
	room     func(dir string) (bytes int64, known bool)

	scrubPause time.Duration // from a commit until free pages are filled with zeros; 0: they are not without Scrub
}

var defaults = config{
	fanout:   fanout{block: 52, node: 32},
	mmapSize: initialMmapSize,
	sync:     (*os.File).Sync,
	wasteful: (*sample).wasteful,
	part:     1 << 20,
	rename:   os.Rename,
	remove:   os.Remove,
	syncDir:  syncDir,
	room:     roomIn,

	scrubPause: 30 * time.Second,
}

// A Store is a [store.Store] in one file. Get one from [Open].
type Store struct {
	path   string
	config config
	log    *slog.Logger

	queue  *queue.Queue[*call]
	closed sync.Once

	reported [256]atomic.Int64 // by kind, when a stray was: nanoseconds since 1970
	mending  atomic.Bool       // a call that mends strays is under way
	mendAt   atomic.Int64      // when the next such call may come, after a failed one

	// changes counts the commits that write records of a kind, once when they begin and once
	// when they have ended: odd while one is under way, and after Close.
	changes [256]atomic.Uint64

	watchers watch.List
	summed   sums.List

	mu     sync.RWMutex
	h      *handle // nil while the file is not open
	failed error   // why h is nil

	closing sync.WaitGroup // goroutines that make, close and remove other files than h

	// The rest belongs to the writing goroutine.
	group   group
	retryAt time.Time
	fullAt  int64 // size of the file when a commit found no room

	sample    sample      // of the file
	best      float64     // share that was used after the last compaction
	wasteful  bool        // compact it
	compactAt time.Time   // not before
	copying   *compaction // under way
	unnamed   bool        // the name of the file is not known to be durable

	scrub scrub
}

var (
	_ store.Store    = (*Store)(nil)
	_ store.Counter  = (*Store)(nil)
	_ store.Watcher  = (*Store)(nil)
	_ store.Summer   = (*Store)(nil)
	_ store.Scrubber = (*Store)(nil)
	_ store.Repairer = (*Store)(nil)
)

// View implements [store.Store]. It returns store.ErrUnavailable after a failure
// until an Update has opened the file again. A ReadTx used after fn has returned panics.
func (s *Store) View(ctx context.Context, fn func(store.ReadTx) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	h, reading, err := s.use()
	if err != nil {
		return err
	}
	defer h.done(reading)

	snap, err := h.snapshot()
	if err != nil {
		return err
	}
	r := &reader{tx: snap.tx, snapshot: snap, ctx: ctx, fanout: s.config.fanout}
	returned := false
	defer func() {
		r.end()
		if returned {
			h.rest(snap)
		} else {
			h.rollback(snap.tx)
		}
		s.passed(r.strays)
	}()
	err = fn(r)
	returned = true
	return err
}

// use returns the open file for a call that must say when it is done, by done.
func (s *Store) use() (h *handle, reading *atomic.Int64, err error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.h == nil {
		return nil, nil, s.failed
	}
	s.h.users.Add(1)
	s.h.reading.Add(1)
	return s.h, s.h.reading, nil
}

func (h *handle) done(reading *atomic.Int64) {
	reading.Add(-1)
	h.users.Done()
}

// Update implements [store.Store]. It runs fn in another goroutine than the
// caller's. A Tx used after fn has returned panics.
func (s *Store) Update(ctx context.Context, fn func(store.Tx) error) error {
	return s.queue.Do(ctx, &call{fn: fn})
}

// Watch implements [store.Watcher].
func (s *Store) Watch(changing func([]store.Key) (changed func())) (stop func()) {
	return s.watchers.Watch(changing)
}

// Sum implements [store.Summer].
func (s *Store) Sum(by store.Sums) (stop func()) { return s.summed.Add(by) }

// Changes implements [store.Counter].
func (s *Store) Changes(kind store.Kind) uint64 {
	n := s.changes[kind].Load()
	if n%2 == 1 {
		return 0
	}
	return n + 2
}

// Close implements [store.Store]. Queued calls return store.ErrClosed.
func (s *Store) Close() (err error) {
	s.closed.Do(func() {
		s.queue.Close()
		if s.scrub.timer != nil {
			s.scrub.timer.Stop()
		}
		s.dropCopy()
		s.closing.Wait()
		s.mu.Lock()
		defer s.mu.Unlock()
		for kind := range s.changes {
			s.changes[kind].Or(1) // others may write to the file soon
		}
		if s.h != nil {
			s.h.users.Wait()
			err = s.h.close()
		}
		s.h, s.failed = nil, store.ErrClosed
	})
	return err
}

// guarded calls f, which touches the mapped file and no code of a caller.
func guarded(f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer guard(&err)
	return f()
}

// unavailable is the error of calls while the file is not open.
func unavailable(cause error) error {
	return fmt.Errorf("%w: the file was closed after a failure and cannot be opened again yet: %w",
		store.ErrUnavailable, cause)
}
