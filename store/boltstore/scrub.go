package boltstore

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync/atomic"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/cardvault/cardvault/store"
)

// A commit of bbolt writes changed pages to other places and frees the former ones, which keep
// their bytes until they are used again: also of records that were deleted. A scrub fills
// free pages with zeros. The writing goroutine does it in parts between its groups, so no page
// can become used or free meanwhile, and a part begins only when no View can see a page that is
// free by now. A crash at any time leaves pages that nothing refers to as they were, zero, or
// in part so.

// Bounds of a part of a scrub.
const (
	scrubTime  = 3 * time.Millisecond // of reading and writing, before the sync
	scrubPages = 256                  // that are written
	scrubWait  = 2 * time.Millisecond // for Views that began before the part
	scrubRest  = 4                    // nothing is scrubbed for so many times as long as a part took

	viewPause = 50 * time.Millisecond // before the next attempt when a View did not end
)

// A scrub belongs to the writing goroutine.
type scrub struct {
	next  uint64    // page from which the pass goes on; 0: none is under way
	freed bool      // pages were freed since the pass began
	at    time.Time // not before

	longest time.Duration // of the parts of the pass
	timer   *time.Timer   // wakes the goroutine then

	asked   []chan<- error // calls of Scrub that wait for the next pass
	waiting []chan<- error // calls that wait for the end of this one
}

// Scrub implements [store.Scrubber]. It waits for Views that began before. Without a call the
// same is done within a minute after a commit, or after a View that was open then.
func (s *Store) Scrub(ctx context.Context) error {
	done := make(chan error, 1)
	err := s.queue.Do(ctx, &call{fn: func(store.Tx) error {
		// This runs in the writing goroutine, again if the group of the call has failed.
		if !slices.Contains(s.scrub.asked, chan<- error(done)) {
			s.scrub.asked = append(s.scrub.asked, done)
		}
		s.scrub.at = time.Now()
		return nil
	}})
	if err != nil {
		return err
	}

	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-s.queue.Closing():
		return store.ErrClosed
	}
}

// freed notes that a commit has freed pages.
func (s *Store) freed() {
	s.scrub.freed = true
	if s.scrub.next == 0 && s.scrub.at.IsZero() && s.config.scrubPause > 0 {
		s.scrubAfter(s.config.scrubPause)
	}
}

// scrubAfter has the next part come after a pause. If there is nothing to do then, the goroutine
// is woken by a call that does nothing; a full queue wakes it anyway.
func (s *Store) scrubAfter(pause time.Duration) {
	c := &s.scrub
	c.at = time.Now().Add(pause)
	if c.timer != nil {
		c.timer.Reset(pause)
		return
	}
	c.timer = time.AfterFunc(pause, func() {
		s.queue.Offer(&call{fn: func(store.Tx) error { return nil }}, func(error) {})
	})
}

// scrubOn does the next part of a scrub, if its time has come. No group may be open.
func (s *Store) scrubOn() {
	c := &s.scrub
	begun := time.Now()
	if c.at.IsZero() || begun.Before(c.at) {
		return
	}
	if c.next == 0 {
		c.next, c.freed, c.longest = 1, false, 0
		c.asked, c.waiting = nil, c.asked
	}

	ended, err := false, s.failed
	if s.h != nil {
		if !s.h.alone(s, begun.Add(scrubWait)) {
			s.scrubAfter(viewPause)
			return
		}
		alone := time.Now()
		ended, err = s.scrubPart()
		c.longest = max(c.longest, time.Since(alone))
	}
	if !ended && err == nil {
		s.scrubAfter(max(time.Millisecond, scrubRest*time.Since(begun)))
		return
	}

	for _, done := range c.waiting {
		select {
		case done <- err:
		default: // its call was in two groups, since the first has failed
		}
	}
	if err != nil {
		s.log.Warn("free pages of the file keep deleted records", "error", err)
	} else {
		s.log.Debug("free pages of the file are overwritten", "longest", c.longest)
	}
	c.next, c.waiting, c.at = 0, nil, time.Time{}
	switch {
	case len(c.asked) > 0:
		s.scrubAfter(0)
	case err != nil || c.freed:
		s.freed()
	}
}

// restart has a pass begin anew, since its file is another one now.
func (c *scrub) restart() {
	if c.next > 0 {
		c.next = 1
	}
}

// scrubPart fills free pages with zeros, from the next page of the pass on, and reports whether
// there are no others. Its writes are durable.
func (s *Store) scrubPart() (ended bool, err error) {
	if even, err := s.even(); !even || err != nil {
		return false, err
	}
	s.scrub.next = max(s.scrub.next, 2)
	wrote, ended, err := s.erasePages()
	if wrote > 0 {
		err = errors.Join(err, s.scrubSync())
	}
	return ended && err == nil, err
}

// even commits a transaction that changes nothing, if the last one changed something. Then both heads
// have the same records, and what is free belongs to neither, whoever has freed it. If one is damaged
// later, the other one has all. It returns false if the commit would hold up all writes until a View ends.
func (s *Store) even() (bool, error) {
	h := s.h
	if last := h.last.Load(); last == h.evened {
		return true, nil
	}
	if h.evened == 0 { // the last commit may be one of a killed process, and not durable yet
		if err := s.scrubSync(); err != nil {
			return false, err
		}
	}

	tx, err := h.begin(true)
	if err != nil {
		return false, err
	}
	commit := tx.Commit
	if mayMap(tx, s.config.mmapSize) {
		commit = func() error { return s.unseen(tx.Commit) }
	}
	id := tx.ID()
	if err := guarded(commit); err != nil {
		h.rollback(tx)
		if errors.Is(err, errSeen) {
			return false, nil
		}
		full := isFull(err)
		if full {
			err = fmt.Errorf("%w: free some, or delete records: %w", store.ErrFull, err)
		}
		if !full || h.lastID() >= id {
			s.log.Error("commit failed; the file is closed and opened again", "error", err)
			s.reopen()
		}
		return false, fmt.Errorf("boltstore: scrub: %w", err)
	}
	h.last.Store(int64(id))
	h.evened = int64(id)
	h.ended(tx)
	return true, nil
}

var errSeen = errors.New("boltstore: a View is open")

// unseen calls a function while no View is open and none begins, or returns errSeen.
func (s *Store) unseen(fn func() error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.h.reading.Load() > 0 { // alone has seen the others end
		return errSeen
	}
	return fn()
}

// mayMap reports whether a commit that changes nothing may have bbolt map the file anew, which waits for
// all Views. It may if a list of as many free pages as there are pages, put behind them, does not end
// before the next power of two or whole GiB: so much is mapped, and at first 32 KiB or more.
func mayMap(tx *bolt.Tx, first int) bool {
	const least, whole = 32 << 10, 1 << 30
	size, page := tx.Size(), int64(tx.DB().Info().PageSize)
	list := (pageHeader+8*size/page)/page + 2
	mapped := int64(least)
	for mapped < max(size, int64(first)) {
		mapped += min(mapped, whole)
	}
	return size+(list+1)*page >= mapped
}

func (s *Store) erasePages() (wrote int, ended bool, err error) {
	tx, err := s.h.begin(true)
	if err != nil {
		return 0, false, err
	}
	defer s.h.rollback(tx)

	err = guarded(func() error {
		free, kept, err := freePagesOf(s.h.file, tx)
		if err != nil {
			return err
		}
		from, _ := slices.BinarySearch(free, s.scrub.next)
		size, end := tx.DB().Info().PageSize, time.Now().Add(scrubTime)
		page := make([]byte, size)
		for n, id := range free[from:] {
			if wrote == scrubPages || n%64 == 63 && time.Now().After(end) {
				s.scrub.next = id
				return nil
			}
			if id >= kept.from && id < kept.to {
				continue
			}
			// bbolt's own list is asked too: a mistake here would erase records.
			if info, err := tx.Page(int(id)); err != nil || info == nil || info.Type != "free" {
				return errors.Join(err, fmt.Errorf("%w: page %d is not free", store.ErrDamaged, id))
			}
			at := int64(id) * int64(size)
			if _, err := s.h.file.ReadAt(page, at); err != nil {
				return err
			}
			if isZero(page) {
				continue
			}
			if _, err := s.h.file.WriteAt(zeros[:size], at); err != nil {
				return err
			}
			wrote++
		}
		ended = true
		return nil
	})
	return wrote, ended, err
}

// scrubSync makes the file durable. bbolt's own file is synced, in the goroutine that commits:
// the system reports a failed write only once.
func (s *Store) scrubSync() error {
	if s.config.noSync {
		return nil
	}
	err := guarded(s.h.db.Sync)
	if err != nil {
		s.reopen() // as after a commit that could not be synced
	}
	return err
}

func isZero(page []byte) bool {
	for ; len(page) >= 8; page = page[8:] {
		if binary.NativeEndian.Uint64(page) != 0 {
			return false
		}
	}
	return true
}

// A pageRange is pages that follow each other.
type pageRange struct{ from, to uint64 }

// freePagesOf returns the numbers of the pages that were free after the last commit, in order,
// from the page on which that has written them. Those of the list of the commit before are among them.
// tx must be writable, and not have written.
func freePagesOf(file io.ReaderAt, tx *bolt.Tx) (free []uint64, before pageRange, err error) {
	size := int64(tx.DB().Info().PageSize)
	damaged := fmt.Errorf("%w: the list of free pages", store.ErrDamaged)
	var lists [2]uint64 // pages of the list of the last commit, and of the one before
	for n := range int64(2) {
		var head [headEnd]byte
		if _, err := file.ReadAt(head[:], n*size); err != nil {
			return nil, before, err
		}
		if age := uint64(tx.ID()-1) - binary.NativeEndian.Uint64(head[headTx:]); age < 2 {
			lists[age] = binary.NativeEndian.Uint64(head[headFree:])
		}
	}
	end := uint64(tx.Size() / size)
	if slices.Min(lists[:]) < 2 || slices.Max(lists[:]) >= end {
		return nil, before, damaged
	}

	// The page has, behind its header, the numbers (8 each). The header says how many (2), and
	// if that is its largest value, the first number does.
	const freelistPage, many = 0x10, 0xffff
	head := make([]byte, pageHeader+8)
	if _, err := file.ReadAt(head, int64(lists[1])*size); err != nil {
		return nil, before, err
	}
	if pageType(head) != freelistPage {
		return nil, before, damaged
	}
	before = pageRange{lists[1], lists[1] + uint64(binary.NativeEndian.Uint32(head[12:])) + 1}
	if _, err := file.ReadAt(head, int64(lists[0])*size); err != nil {
		return nil, before, err
	}
	count, at := uint64(binary.NativeEndian.Uint16(head[10:])), int64(pageHeader)
	if count == many {
		count, at = binary.NativeEndian.Uint64(head[pageHeader:]), at+8
	}
	room := int64(binary.NativeEndian.Uint32(head[12:])) + 1
	if pageType(head) != freelistPage || count > end || at+8*int64(count) > room*size {
		return nil, before, damaged
	}
	raw := make([]byte, 8*count)
	if _, err := file.ReadAt(raw, int64(lists[0])*size+at); err != nil {
		return nil, before, err
	}
	free = make([]uint64, count)
	for n := range free {
		free[n] = binary.NativeEndian.Uint64(raw[8*n:])
	}
	if !slices.IsSorted(free) {
		return nil, before, damaged
	}
	return free, before, nil
}

// alone waits for Views that began before it was called, until end, and reports whether all have
// ended. Later Views see the last commit, and no page that is free.
func (h *handle) alone(s *Store, end time.Time) bool {
	s.mu.Lock()
	h.earlier, h.reading = append(h.earlier, h.reading), new(atomic.Int64)
	s.mu.Unlock()
	for {
		h.earlier = slices.DeleteFunc(h.earlier, func(n *atomic.Int64) bool { return n.Load() == 0 })
		if len(h.earlier) == 0 {
			return true
		}
		if time.Now().After(end) {
			return false
		}
		time.Sleep(50 * time.Microsecond)
	}
}
