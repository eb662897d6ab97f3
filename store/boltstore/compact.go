package boltstore

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/cardvault/cardvault/store"
	bolt "go.etcd.io/bbolt"
)

// A file of bbolt never becomes shorter, and deletions leave pages that are hardly filled.
// When more than a quarter of the file is unused, the writing goroutine copies the entries into a second
// file, a part at a time between transactions, and renames that to the name of the first.
//
// An entry that is written after it was copied is noted, and copied again. The files are the
// same when all is copied and no note is left. Only then is the second renamed, in the same
// step of the goroutine, and the next commit waits until the name is durable. So after a crash
// at any time the file with that name has every acknowledged write and no other.

// Bounds of a compaction.
const (
	compactFrom = 1 << 10  // pages: a shorter file is not compacted
	fullness    = .75      // of the pages: with less in them the file is compacted
	freePages   = 64 << 10 // so is one with more free pages, whose numbers each commit writes
	sampleLooks = 256      // pages that are looked at before the file is judged
	commitLooks = 4        // that a commit looks at: each may have to come from the disk
	partLooks   = 8        // that a part looks at in the copy
	roomLeft    = 64 << 20 // bytes of the disk that are left for others

	partTime  = 2 * time.Millisecond // of copying, before a part is committed
	partLeast = 8                    // the least part is so many times smaller than the largest
	partRest  = 4                    // nothing is copied for so many times as long as a part took

	partNotes     = 1 << 10 // noted entries that a part copies, or a quarter of them; it does not wait if there are more
	partNotesMost = 1 << 12 // it copies no more, and no more than groupBytes
	notesMost     = 1 << 16 // more end the compaction

	compactPause = time.Hour      // after a compaction that has failed
	renamePause  = 24 * time.Hour // after a copy that could not take the name: most likely no other can
)

// A compaction is a copy of the file that is being made. Its methods for a nil compaction
// do nothing.
type compaction struct {
	ready  chan time.Time // closed when the copy is there, with nothing in it; nothing is ever sent
	copy   *handle        // of ready; nil if it could not be made
	path   string
	failed error

	sample    sample // of the copy
	name, key []byte // bucket and key of the entry up to which all are copied
	notes     map[noted]struct{}
	resume    time.Time   // when the next part may be copied
	timer     *time.Timer // fires then
}

// A noted entry was written after it was copied.
type noted struct{ bucket, key string }

// note notes that an entry is written.
func (c *compaction) note(name, key []byte) {
	if c == nil || cmp.Or(bytes.Compare(name, c.name), bytes.Compare(key, c.key)) > 0 {
		return
	}
	c.notes[noted{string(name), string(key)}] = struct{}{}
}

// A table is a bucket whose writes are noted.
type table struct {
	*bolt.Bucket
	name    []byte
	copying *compaction // nil if no compaction is under way
}

func tableOf(named func([]byte) *bolt.Bucket, name []byte, c *compaction) table {
	b := named(name)
	if b == nil {
		panic(failed{errBuckets})
	}
	return table{b, name, c}
}

func (t table) put(key, value []byte) {
	t.copying.note(t.name, key)
	check(t.Put(key, value))
}

func (t table) remove(key []byte) {
	t.copying.note(t.name, key)
	check(t.Delete(key))
}

// A sample estimates how much of a file's pages is used, from pages that are chosen by chance.
type sample struct {
	looks float64
	free  float64 // of these pages
	used  float64 // sum of the used shares of the others
	page  []byte
}

// look looks at a page. tx must be writable, and not have written pages.
func (p *sample) look(tx *bolt.Tx, file *os.File) error {
	size := tx.DB().Info().PageSize
	id := 2 + rand.IntN(int(tx.Size())/size-2) // after the meta pages
	if p.looks >= 2*sampleLooks {
		p.looks, p.free, p.used = p.looks/2, p.free/2, p.used/2
	}

	info, err := tx.Page(id)
	if err != nil || info == nil {
		return err
	}
	p.looks++
	if info.Type == "free" {
		p.free++
		return nil
	}

	if len(p.page) != size {
		p.page = make([]byte, size)
	}
	if _, err := file.ReadAt(p.page, int64(id)*int64(size)); err != nil {
		return err
	}
	p.used += usedShare(p.page, uint64(id))
	return nil
}

// usedShare returns the share of a page that has something in it. Pages that extend over
// others, which have no header, count as full.
func usedShare(page []byte, id uint64) float64 {
	kind, n := pageType(page), int(binary.NativeEndian.Uint16(page[10:]))
	last := pageHeader + (n-1)*pageElement
	if binary.NativeEndian.Uint64(page) != id || n == 0 || last+pageElement > len(page) {
		return 1
	}
	word := func(n int) int { return int(binary.NativeEndian.Uint32(page[last+4*n:])) }
	switch kind {
	case branchPage:
		return min(1, float64(last+word(0)+word(1))/float64(len(page)))
	case leafPage:
		return min(1, float64(last+word(1)+word(2)+word(3))/float64(len(page)))
	}
	return 1
}

// full returns the share of the file that is used.
func (p *sample) full() float64 { return p.used / p.looks }

// wasteful reports whether a file of so many pages is worth a compaction. best is the share
// that was used after the last one.
func (p *sample) wasteful(pages int, best float64) bool {
	if p.looks < sampleLooks || pages < compactFrom || runtime.GOOS == "windows" { // which does not rename an open file
		return false
	}
	return p.full() < min(fullness, best*.8) || p.free/p.looks*float64(pages) > float64(max(freePages, pages/8))
}

// tend copies the next part of a compaction, or begins one if the file needs it. It returns
// when the time of the next part has come, if one is under way. No group may be open.
func (s *Store) tend() (wake <-chan time.Time) {
	c := s.copying
	switch {
	case s.h == nil:
		return nil
	case c == nil && !s.wasteful:
		return nil
	case c == nil:
		if err := s.beginCompaction(); err != nil {
			s.abandon(err, compactPause)
			return nil
		}
		return s.copying.ready
	case len(c.notes) > notesMost:
		s.abandon(errors.New("too much is written meanwhile"), compactPause)
		return nil
	}
	select {
	case <-c.ready:
	default:
		return c.ready
	}

	begun := time.Now()
	if begun.Before(c.resume) && len(c.notes) <= partNotes {
		c.timer.Reset(c.resume.Sub(begun))
		return c.timer.C
	}
	same, err := s.copyPart()
	if err == nil && same {
		err = s.replace()
	}
	if err != nil {
		s.abandon(err, compactPause)
	}
	if s.copying == nil {
		return nil
	}

	now := time.Now()
	rest := max(time.Millisecond, partRest*now.Sub(begun))
	c.resume = now.Add(rest)
	c.timer.Reset(rest)
	return c.timer.C
}

// sampled looks at pages of the file before a commit, the more the more was written, and
// decides whether to compact it.
func (s *Store) sampled(tx *bolt.Tx) {
	if s.copying != nil || s.config.wasteful == nil || time.Now().Before(s.compactAt) || s.group.w.rebuild.under {
		return
	}
	pages := 0
	err := guarded(func() error {
		pages = int(tx.Size()) / tx.DB().Info().PageSize // which reads the mapped file
		for range min(commitLooks, 2+s.group.ops/8) {
			if err := s.sample.look(tx, s.h.file); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return // the commit meets the same, or another look does
	}
	s.wasteful = s.config.wasteful(&s.sample, pages, s.best) || s.group.w.rebuild.spent && runtime.GOOS != "windows"
}

// beginCompaction has the second file made.
func (s *Store) beginCompaction() error {
	if err := s.h.named(s.path); err != nil {
		return err
	}
	info, err := s.h.file.Stat()
	if err != nil {
		return err
	}
	if err := s.checkRoom(int64(s.sample.full() * float64(info.Size()) * 5 / 4)); err != nil {
		return err
	}

	timer := time.NewTimer(0)
	timer.Stop()
	c := &compaction{ready: make(chan time.Time), notes: map[noted]struct{}{}, timer: timer}
	s.copying = c
	path, with := s.path, s.config
	s.closing.Go(func() {
		defer close(c.ready)
		c.failed = c.make(path, with, info)
	})
	return nil
}

// make makes the copy of a file, with nothing in it. It waits for the disk several times.
func (c *compaction) make(path string, with config, info fs.FileInfo) error {
	if err := with.syncDir(filepath.Dir(path)); err != nil {
		return err // then no name is durable
	}
	copied, err := buildEmpty(path, func(f *os.File) error { return resemble(f, info) })
	if err != nil {
		return err
	}
	h, err := openHandle(copied, with)
	if err != nil {
		return errors.Join(err, os.Remove(copied))
	}
	c.copy, c.path = h, copied
	return nil
}

// resemble gives a file owner, group and mode of another: who could read or back up that
// one can do so with its copy.
func resemble(f *os.File, info fs.FileInfo) error {
	if err := own(f, info); err != nil {
		return fmt.Errorf("owner and group of a copy: %w", err)
	}
	return f.Chmod(info.Mode().Perm())
}

// checkRoom returns an error unless the disk has room for so many bytes and roomLeft.
func (s *Store) checkRoom(needed int64) error {
	needed += roomLeft
	if room, known := s.config.room(filepath.Dir(s.path)); known && room < needed {
		return fmt.Errorf("the disk has room for %d bytes, %d are needed", room, needed)
	}
	return nil
}

// copyPart copies what was noted, and a part of the entries. It reports whether the copy is
// the same as the file.
func (s *Store) copyPart() (same bool, err error) {
	c := s.copying
	if c.copy == nil {
		return false, c.failed
	}
	if err := s.checkRoom(int64(s.config.part)); err != nil {
		return false, err
	}
	from, err := s.h.begin(false)
	if err != nil {
		return false, err
	}
	defer s.h.rollback(from)
	to, err := c.copy.begin(true)
	if err != nil {
		return false, err
	}
	defer c.copy.rollback(to)
	c.copy.allot(to.Size())

	err = guarded(func() error {
		if err := c.look(to, partLooks); err != nil {
			return err
		}
		p := part{from: from, to: to, fill: s.fillOf, most: s.config.part, end: time.Now().Add(partTime)}
		p.again(c)
		ended := p.on(c)
		same = ended && len(c.notes) == 0
		id := to.ID()
		if err := to.Commit(); err != nil {
			return err
		}
		c.copy.last.Store(int64(id))
		return nil
	})
	return same && err == nil, err
}

// fillOf returns how full the pages of a bucket are made. Keys between others need room.
func (s *Store) fillOf(name []byte) float64 {
	w := &s.group.w
	kind := name[len(name)-1]
	rows := rowsBucket(store.Kind(kind))
	percent := 1.0
	switch {
	case bytes.Equal(name, lookupBucket):
		percent = bolt.DefaultFillPercent
	case bytes.Equal(name, listsBucket):
		percent = w.lister.fill.percent()
	case bytes.Equal(name, rows[:]) && w.tails[kind] != nil:
		percent = w.tails[kind].fill.percent()
	}
	return max(percent, 0.85)
}

// A part of a compaction is copied in one transaction.
type part struct {
	from, to *bolt.Tx
	fill     func(name []byte) float64
	most     int // bytes that are copied
	end      time.Time
	size     int // bytes that were copied
}

// over reports whether the part is large enough.
func (p *part) over() bool {
	return p.size >= p.most || p.size >= p.most/partLeast && !time.Now().Before(p.end)
}

// target returns a bucket of the copy.
func (p *part) target(name []byte) *bolt.Bucket {
	b, err := p.to.CreateBucketIfNotExists(name)
	check(err)
	b.FillPercent = p.fill(name)
	return b
}

// again copies noted entries, in their order since neighbours are on one page. It copies no
// more than a group writes, or else the longest wait of a group would be this.
func (p *part) again(c *compaction) {
	var all []noted
	for n := range c.notes {
		if all = append(all, n); len(all) == min(max(partNotes, len(c.notes)/4), partNotesMost) {
			break
		}
	}
	slices.SortFunc(all, func(a, b noted) int {
		return cmp.Or(strings.Compare(a.bucket, b.bucket), strings.Compare(a.key, b.key))
	})

	for size := 0; len(all) > 0 && size < groupBytes; all = all[1:] {
		n := all[0]
		name, key := []byte(n.bucket), []byte(n.key)
		to := p.target(name)
		if value := bucket(p.from, name).Get(key); value != nil {
			check(to.Put(key, value))
			size += len(key) + len(value)
		} else {
			check(to.Delete(key))
		}
		delete(c.notes, n)
	}
}

// on copies entries that were not copied yet, and reports whether there are no others.
func (p *part) on(c *compaction) bool {
	buckets := p.from.Cursor()
	for name, _ := buckets.Seek(c.name); name != nil; name, _ = buckets.Next() {
		if bytes.Equal(name, spentBucket) {
			continue
		}
		if !bytes.Equal(name, c.name) {
			c.name, c.key = bytes.Clone(name), nil
		}
		to := p.target(name)
		cur := bucket(p.from, name).Cursor()
		k, v := cur.Seek(c.key)
		if c.key != nil && bytes.Equal(k, c.key) {
			k, v = cur.Next()
		}

		for ; k != nil; k, v = cur.Next() {
			if p.over() {
				return false
			}
			if v == nil {
				panic(failed{errBuckets}) // a bucket among entries
			}
			check(to.Put(k, v))
			p.size += len(k) + len(v)
			c.key = append(c.key[:0], k...)
		}
	}
	return true
}

// replace puts the copy in the place of the file.
func (s *Store) replace() error {
	c, old := s.copying, s.h
	best, err := c.full()
	if err != nil {
		return err
	}
	before, err := old.file.Stat()
	if err != nil {
		return err
	}
	after, err := c.copy.file.Stat()
	if err != nil {
		return err
	}
	if err := errors.Join(old.named(s.path), c.copy.file.Sync()); err != nil {
		return err
	}

	err = s.config.rename(c.path, s.path)
	if err != nil && old.named(s.path) == nil { // such as of a mount point
		s.abandon(err, renamePause)
		return nil
	}
	if err == nil {
		err = s.config.syncDir(filepath.Dir(s.path))
	}
	if err != nil {
		// Whichever file has the name now: they are the same.
		s.unnamed = true
		<-s.abandon(err, renamePause) // its lock is given back
		s.reopen()
		return nil
	}

	s.mu.Lock()
	s.h = c.copy
	s.mu.Unlock()
	s.copying, s.best, s.sample, s.wasteful, s.group.w.full = nil, best, sample{}, false, false
	s.scrub.restart()
	s.log.Info("the file was compacted", "before", before.Size(), "after", after.Size())
	// Readers may still use the file, and the system frees a large one slowly.
	s.closing.Go(func() {
		old.users.Wait()
		if err := old.close(); err != nil {
			s.log.Warn("closing the file that was compacted", "error", err)
		}
	})
	return nil
}

// look looks at pages of the copy, unless it is empty still.
func (c *compaction) look(tx *bolt.Tx, looks int) error {
	if c.name == nil {
		return nil
	}
	for range looks {
		if err := c.sample.look(tx, c.copy.file); err != nil {
			return err
		}
	}
	return nil
}

// full returns the share of the copy that is used, going by what the parts have seen of it.
// A copy of few parts was hardly looked at.
func (c *compaction) full() (share float64, err error) {
	tx, err := c.copy.begin(true)
	if err != nil {
		return 0, err
	}
	defer c.copy.rollback(tx)
	err = guarded(func() error { return c.look(tx, 2*partLooks) })
	return c.sample.full(), err
}

// named returns an error unless the file has this name.
func (h *handle) named(path string) error {
	mine, err := h.file.Stat()
	if err != nil {
		return err
	}
	there, err := os.Stat(path)
	if err == nil && !os.SameFile(mine, there) {
		err = errors.New("another file has taken its name")
	}
	return err
}

// abandon ends a compaction, or what should become one, and leaves the file as it is. For
// gone see dropCopy.
func (s *Store) abandon(cause error, pause time.Duration) (gone <-chan struct{}) {
	s.log.Warn("the file was not compacted", "error", cause)
	s.sample, s.wasteful = sample{}, false
	s.compactAt = time.Now().Add(pause)
	return s.dropCopy()
}

// dropCopy removes the copy that a compaction is making, in a goroutine: the system frees a
// large file slowly. gone is closed when that is done.
func (s *Store) dropCopy() (gone <-chan struct{}) {
	c, done := s.copying, make(chan struct{})
	if c == nil {
		close(done)
		return done
	}
	s.copying = nil
	c.timer.Stop()
	s.closing.Go(func() {
		defer close(done)
		if err := c.drop(s.config.remove); err != nil {
			s.log.Warn("removing a copy of the file", "error", err)
		}
	})
	return done
}

// drop closes and removes the copy, which may have another name by now.
func (c *compaction) drop(remove func(path string) error) error {
	<-c.ready
	if c.copy == nil {
		return nil
	}
	err := c.copy.close()
	if e := remove(c.path); !errors.Is(e, fs.ErrNotExist) {
		err = errors.Join(err, e)
	}
	return err
}
