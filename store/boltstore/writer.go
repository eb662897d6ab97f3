package boltstore

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/internal/queue"
)

// A call is one Update, a mending of strays, or a part of a rebuild. It is owned by the writing
// goroutine.
type call struct {
	queue.Call
	fn     func(store.Tx) error
	strays []strayDue   // to mend, instead of fn
	part   func() error // of a rebuild, instead of fn
	wrote  bool         // has writes in the open transaction
	tx     updater
}

// A group is the calls that share one bolt transaction.
type group struct {
	tx    *bolt.Tx // nil between groups
	id    int      // of tx
	begun time.Time
	w     writer
	calls []*call // that were run and are not answered
	rows  slab
	bytes int
	ops   int

	yielded int // calls when other goroutines were let run; 0: they were not
	skip    int // groups to commit without that, since it brought no calls
}

// step runs one call, or commits the group if the queue is empty. It returns false when the
// store is closing and no group is open.
func (s *Store) step() bool {
	g := &s.group
	if g.tx != nil && (g.bytes >= groupBytes || g.ops >= groupOps || time.Since(g.begun) >= groupTime) {
		s.commit()
		return true
	}

	var wake <-chan time.Time
	if g.tx == nil {
		wake = s.tend()
		s.scrubOn()
	}
	c, ok := s.queue.Next(g.calls, wake)
	switch {
	case !ok && g.tx == nil:
		return !s.isClosing()
	case !ok && g.mayGrow():
		g.yielded = len(g.calls)
		runtime.Gosched()
		return true
	case !ok:
		s.commit()
		return true
	case g.tx == nil:
		if err := s.begin(); err != nil {
			c.Fail(err)
			return true
		}
	}

	g.calls = append(g.calls, c)
	s.runCall(c)
	return true
}

// mayGrow reports whether goroutines that can run are let run before the commit, once: they
// may have calls for the group, and take less than a commit of their own.
func (g *group) mayGrow() bool {
	return g.yielded == 0 && g.skip == 0 && len(g.calls) < queue.GroupCalls
}

// grown notes whether calls came when other goroutines were let run.
func (g *group) grown() {
	switch {
	case g.yielded > 0 && len(g.calls) == g.yielded:
		g.skip = 8
	case g.skip > 0:
		g.skip--
	}
	g.yielded = 0
}

// keys returns the keys of the records that the group writes.
func (g *group) keys() (keys []store.Key) {
	for _, c := range g.calls {
		for _, o := range c.tx.ops {
			keys = append(keys, store.Key{Kind: o.kind, ID: o.id})
		}
	}
	return append(keys, g.w.added...)
}

func (s *Store) isClosing() bool {
	select {
	case <-s.queue.Closing():
		return true
	default:
		return false
	}
}

// begin opens a transaction, and the file if a failure has closed it.
func (s *Store) begin() error {
	if s.h != nil && s.h.stuck.Load() {
		s.reopen()
	}
	if s.h == nil {
		if time.Now().Before(s.retryAt) {
			return s.failed
		}
		s.reopen()
		if s.h == nil {
			return s.failed
		}
	}

	tx, err := s.h.begin(true)
	if err != nil {
		return err
	}
	g := &s.group
	g.w.sums = &s.summed
	if err := guarded(func() error { g.w.begin(tx, s.config.fanout, s.copying); return nil }); err != nil {
		s.h.rollback(tx)
		return err
	}

	g.tx, g.id, g.begun, g.bytes, g.ops = tx, tx.ID(), time.Now(), 0, 0
	return nil
}

// runCall runs the function of the last call of the group and applies its writes.
func (s *Store) runCall(c *call) {
	g := &s.group
	if c.strays != nil {
		if err := g.w.mend(c.strays); err != nil {
			s.drop(c, err)
			return
		}
		c.wrote = true
		return
	}
	if c.part != nil {
		s.runPart(c)
		return
	}

	c.tx = updater{reader: reader{tx: g.tx, recall: &g.w.recall, lister: &g.w.lister, fanout: s.config.fanout}, rows: &g.rows}
	returned := c.Run(func() error {
		defer c.tx.end()
		return c.fn(&c.tx)
	})
	s.passed(c.tx.strays)
	if !returned || c.Err != nil || len(c.tx.ops) == 0 {
		return
	}

	refused, err := g.w.apply(c.tx.ops)
	if err != nil {
		s.drop(c, err)
		return
	}
	c.Err, c.wrote = refused, refused == nil
	g.bytes += c.tx.bytes
	g.ops += len(c.tx.ops)
}

// drop gives up the transaction because of a failure before its commit, so
// nothing was written. The call that met it, if one did, is answered; all others
// run again.
func (s *Store) drop(culprit *call, err error) {
	g := &s.group
	calls := g.calls
	g.calls = nil
	s.h.rollback(g.tx)
	g.tx = nil

	var innocent []*call
	for _, c := range calls {
		switch {
		case c == culprit:
			c.Fail(err)
		case !c.Returned():
			c.Answer()
		default:
			innocent = append(innocent, c)
		}
	}

	s.again(innocent)
}

// again has calls that wrote nothing run once more, each in a group of its own.
func (s *Store) again(calls []*call) {
	for _, c := range calls {
		c.Alone, c.wrote = true, false
	}
	s.queue.Again(calls...)
}

// commit makes the writes of the group durable and answers its calls.
func (s *Store) commit() {
	g := &s.group
	g.grown()
	if !g.w.wrote {
		s.h.rollback(g.tx)
	} else {
		err := guarded(func() error { g.w.sum(&g.rows); return nil })
		defer s.watchers.Changing(g.keys).End()
		s.changing()
		s.h.allot(g.tx.Size())
		s.h.pave(g.tx.Size())
		s.sampled(g.tx)
		if err == nil {
			err = guarded(func() error { g.w.flush(); return g.tx.Commit() })
		}
		if err != nil {
			s.commitFailed(err)
			return
		}
		s.h.last.Store(int64(g.id))
		s.summed.Committed()
		s.h.ended(g.tx)
		s.changing()
		s.freed()
		g.w.full = g.w.full && s.h.size() <= s.fullAt
		g.rows = g.rows[:0]
	}

	g.tx = nil
	for i, c := range g.calls {
		c.Answer()
		g.calls[i] = nil
	}
	g.calls = g.calls[:0]
}

// allot has a file of size bytes grow by an eighth at a time: every growth is synced.
func (h *handle) allot(size int64) {
	h.db.AllocSize = int(min(max(size/8, 1<<20), 16<<20))
}

// size returns the size of the file, 0 if the system does not tell it.
func (h *handle) size() int64 {
	info, err := h.file.Stat()
	if err != nil {
		return 0
	}
	return info.Size()
}

var zeros [1 << 20]byte // as many as pave writes at most

// pave writes zeros beyond end, where the last page ends that is in use: this commit and the
// next put pages there. A file system syncs a page in a hole more slowly, because it has to
// record where the page lies. The file becomes no longer, and the commit syncs the zeros.
func (h *handle) pave(end int64) {
	ahead := min(int64(len(zeros)), end/2)
	if h.pavedTo-end >= ahead/2 {
		return
	}
	info, err := h.file.Stat()
	if err != nil {
		return
	}
	from := max(h.pavedTo, end)
	to := min(end+ahead, info.Size())
	if to <= from {
		return
	}
	if _, err := h.file.WriteAt(zeros[:to-from], from); err != nil {
		to = math.MaxInt64 // the next commit meets the same
	}
	h.pavedTo = to
}

// changing counts one end of a commit for the kinds that the group has written.
func (s *Store) changing() {
	for _, kind := range s.group.w.kinds {
		s.changes[kind].Add(1)
	}
}

// commitFailed answers a group whose commit has failed. Only opening the file again
// shows whether it has the commit: bbolt makes a commit valid by writing one page at
// its end, and an error after that leaves open whether the page is on the disk.
//
// A full disk fails one commit after the other, and opening the file would shut
// out readers each time. So it stays open if bbolt has returned want of room and
// the page is not in the file: only free pages were written, and bbolt has taken
// them back.
func (s *Store) commitFailed(cause error) {
	g := &s.group
	tx, id, calls := g.tx, g.id, g.calls
	g.tx, g.calls = nil, nil
	s.h.rollback(tx) // after a panic; a commit that returned an error has ended tx

	full, damaged := isFull(cause), errors.Is(cause, store.ErrDamaged)
	compacting := s.copying != nil
	if full && !damaged && s.h.lastID() < id {
		s.log.Error("commit failed for lack of room", "error", cause)
		g.w.full, s.fullAt = true, s.h.size()
		s.h.evened = 0 // pages that only the former head needs may be written over
		if compacting {
			<-s.abandon(cause, compactPause) // it makes room
		}
	} else {
		s.log.Error("commit failed; the file is closed and opened again", "error", cause)
		s.reopen()
	}
	s.changing()

	unwritten := (full || damaged) && s.h != nil && s.h.lastID() < id
	err := fmt.Errorf("boltstore: commit: %w", cause)
	if full {
		err = fmt.Errorf("%w: free some, or delete records: %w", store.ErrFull, err)
	}
	if !unwritten {
		err = fmt.Errorf("%w: %w", store.ErrOutcomeUnknown, err)
	}

	var undone []*call
	for _, c := range calls {
		switch {
		case !c.Returned():
			c.Answer()
		case unwritten && full && compacting: // there may be room now
			undone = append(undone, c)
		case c.wrote && (len(calls) == 1 || !unwritten):
			c.Fail(err)
		case s.h == nil:
			c.Fail(s.failed)
		case len(calls) == 1:
			c.Answer() // refused: its writes were undone before the commit
		default:
			// Nothing of this call was written. Alone it may succeed: one
			// deletion finds room where a group of imports does not.
			undone = append(undone, c)
		}
	}

	s.again(undone)
}

// isFull reports whether an error of bbolt is for want of room. It flattens
// some errors of the system to their text.
func isFull(err error) bool {
	if errors.Is(err, bolterrors.ErrMaxSizeReached) {
		return true
	}
	for _, e := range []syscall.Errno{syscall.ENOSPC, syscall.EFBIG, syscall.EDQUOT} {
		if errors.Is(err, e) || strings.HasSuffix(err.Error(), e.Error()) {
			return true
		}
	}
	return false
}

// settle writes the two meta pages once more, with their own bytes, and syncs
// them. If the sync at the end of a commit fails, the system may hold the new page
// as clean while the disk has the old one. Another commit would write over pages
// that the old one still needs, and a power cut then leaves neither. It uses the
// file that holds the lock.
func (h *handle) settle(sync func(*os.File) error) error {
	var pages []byte
	err := guarded(func() error {
		pages = make([]byte, 2*h.db.Info().PageSize) // which reads the mapped file
		return nil
	})
	if err == nil {
		_, err = h.file.ReadAt(pages, 0)
	}
	if err == nil {
		_, err = h.file.WriteAt(pages, 0)
	}
	if err == nil {
		err = sync(h.file)
	}
	if err != nil {
		return fmt.Errorf("boltstore: write the meta pages again: %w", err)
	}
	return nil
}

// reopen closes the file if it is open and opens it again after a failure, such as a failed
// commit. On failure h is nil. It waits for readers.
func (s *Store) reopen() {
	if s.copying != nil {
		s.abandon(errors.New("the file has to be opened again"), compactPause)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.group.w.tails = [256]*tail{}
	for kind := range s.changes {
		s.changes[kind].Add(2) // it may be another file
	}
	if s.h != nil {
		s.h.users.Wait()
		if err := s.h.close(); err != nil {
			s.log.Warn("closing the file after a failure", "error", err)
		}
	}

	var h *handle
	var err error
	if s.unnamed {
		err = s.config.syncDir(filepath.Dir(s.path))
		s.unnamed = err != nil
	}
	if err == nil {
		h, err = openHandle(s.path, s.config)
	}
	if err == nil {
		// Pages that bbolt has read may have left the cache before they were settled: it
		// reads them again. A process that opens the file in between finds the state on
		// disk.
		if err = errors.Join(h.settle(s.config.sync), h.close()); err == nil {
			h, err = openHandle(s.path, s.config)
		}
	}

	if err != nil {
		s.h, s.failed, s.retryAt = nil, unavailable(err), time.Now().Add(reopenPause)
		s.log.Error("the file cannot be opened again", "error", err)
		return
	}

	s.h, s.failed = h, nil
	s.scrub.restart()
}
