package boltstore

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cardvault/cardvault/internal/bubble"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/storetest"
	"github.com/google/uuid"
)

// restless is small, and compacts its file without end.
func restless() config {
	c := small
	c.part = 4 << 10
	c.wasteful = func(*sample, int, float64) bool { return true }
	return c
}

// TestRestless: a store that is always compacting, and scrubs its file all the time, keeps the
// contract.
func TestRestless(t *testing.T) {
	if testing.Short() {
		t.Skip("takes as long as TestStore")
	}
	h := harness
	open := func(t testing.TB, path string) (store.Store, error) {
		c := restless()
		c.scrubPause = time.Millisecond
		s, err := openWith(t.Context(), path, &Options{LockTimeout: -1}, c)
		if err != nil {
			return nil, err
		}
		return s, s.Check(t.Context())
	}
	h.Open = func(t testing.TB) store.Store {
		s, err := open(t, filepath.Join(t.TempDir(), "restless.db"))
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	h.Reopen = func(t testing.TB, s store.Store) (store.Store, error) { return open(t, s.(*Store).path) }
	h.Second = h.Reopen
	h.Crash = func(t testing.TB, s store.Store) (store.Store, error) {
		still(t, s.(*Store))
		dir, name := filepath.Split(s.(*Store).path)
		return open(t, filepath.Join(storetest.AfterPowerCut(t, dir), name))
	}
	h.Fault = func(t testing.TB, s store.Store, f storetest.Fault) (mend func()) {
		// A scrub would meet the fault first, and open the file again.
		rest := func(store.Tx) error { s.(*Store).scrub.at = time.Now().Add(time.Hour); return nil }
		if f.Kind == storetest.LostAnswer {
			if err := s.Update(t.Context(), rest); err != nil {
				t.Fatal(err)
			}
		}
		return harness.Fault(t, s, f)
	}
	storetest.Run(t, h)
}

// versions are the records that a store must have: by number, their versions.
type versions map[int]uint64

// change returns an Update that puts or deletes a record by chance, and what is there then.
func (v versions) change(r *rand.Rand) (fn func(store.Tx) error, next versions) {
	n := r.IntN(2000)
	next = maps.Clone(v)
	if next == nil {
		next = versions{}
	}
	if v[n] > 0 && r.IntN(2) == 0 {
		delete(next, n)
		return func(tx store.Tx) error { tx.Delete(1, number(n)); return nil }, next
	}

	next[n]++
	rec := numbered(n)
	rec.Version = next[n]
	rec.Class = uint8(1 + r.IntN(3))
	rec.Due = time.UnixMicro(int64(r.IntN(5000))).UTC()
	rec.Lookup = [][]byte{{byte(r.IntN(256))}}
	return putOne(rec), next
}

// found returns the versions that a store has.
func found(t testing.TB, s *Store) versions {
	t.Helper()
	v := versions{}
	err := s.View(t.Context(), func(tx store.ReadTx) error {
		all, err := tx.Scan(1, uuid.Nil, 1<<20)
		for _, r := range all {
			v[int(binary.BigEndian.Uint32(r.ID[4:]))] = r.Version
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	return v
}

// compare reports what a store has too much or too little.
func (v versions) compare(t testing.TB, s *Store, when string) {
	t.Helper()
	if err := s.Check(t.Context()); err != nil {
		t.Errorf("%s: %v", when, err)
	}
	if got := found(t, s); !maps.Equal(got, v) {
		t.Errorf("%s: %d records, want %d, or other versions", when, len(got), len(v))
	}
}

// TestCompactCrash takes what a crash, or a loss of power, would leave at any time of a
// compaction, with writes between its parts: before and after the copy has the name of the
// file, and in between.
func TestCompactCrash(t *testing.T) {
	each := 1 // of so many times is looked at
	if testing.Short() {
		each = 10
	}
	bubble.Test(t, func(t *testing.T) {
		type crash struct {
			when, dir string
			allowed   [2]versions
		}
		var mu sync.Mutex
		var crashes []crash
		var before, after versions // the change that is under way
		times, renamed := 0, 0
		dir := t.TempDir()
		take := func(when string) {
			mu.Lock()
			defer mu.Unlock()
			if times++; times%each == 0 {
				crashes = append(crashes, crash{when, storetest.AfterPowerCut(t, dir), [2]versions{before, after}})
			}
		}

		// The folder is synced before a compaction too, while the file may be written. What a
		// crash leaves at that time cannot be taken here, and is no other than without it.
		var replaced atomic.Bool
		c := restless()
		c.rename = func(from, to string) error {
			take("before a rename")
			defer take("after a rename")
			renamed++
			replaced.Store(true)
			return os.Rename(from, to)
		}
		c.syncDir = func(dir string) error {
			if replaced.Swap(false) {
				defer take("after the folder was synced")
			}
			return syncDir(dir)
		}
		s, err := openWith(t.Context(), filepath.Join(dir, "vault.db"), nil, c)
		if err != nil {
			t.Fatal(err)
		}

		r := rand.New(rand.NewPCG(1, 2))
		for i := range 400 {
			fn, next := after.change(r)
			mu.Lock()
			before, after = after, next
			mu.Unlock()
			if err := s.Update(t.Context(), fn); err != nil {
				t.Fatal(err)
			}
			if i%3 == 0 {
				time.Sleep(time.Millisecond) // for a part
				take(fmt.Sprintf("after change %d", i))
			}
		}
		after.compare(t, s, "in the end")
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if renamed < 5 {
			t.Errorf("the file was compacted %d times", renamed)
		}

		t.Logf("%d losses of power", len(crashes))
		for i, crash := range crashes {
			s, err := openWith(t.Context(), filepath.Join(crash.dir, "vault.db"), nil, small)
			if err != nil {
				t.Fatalf("%s: %v", crash.when, err)
			}
			want := crash.allowed[1]
			if !maps.Equal(want, found(t, s)) {
				want = crash.allowed[0]
			}
			want.compare(t, s, fmt.Sprintf("crash %d, %s", i, crash.when))
			s.closing.Wait()
			if left, err := filepath.Glob(filepath.Join(crash.dir, leftoverPrefix("vault.db")+"*")); err != nil || len(left) != 0 {
				t.Errorf("%s: %v, %v are left", crash.when, left, err)
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		}
	})
}

// TestCompactShrinks: a file is compacted when most of it is deleted, and not before.
func TestCompactShrinks(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		const n = 40_000
		c := defaults
		c.noSync = true
		s := openSmall(t, c)
		size := func() int64 {
			info, err := os.Stat(s.path)
			if err != nil {
				t.Fatal(err)
			}
			return info.Size()
		}
		each := func(group, step int, do func(tx store.Tx, n int)) {
			for from := 0; from < n; from += group * step {
				err := s.Update(t.Context(), func(tx store.Tx) error {
					for i := range group {
						do(tx, from+i*step)
					}
					return nil
				})
				if err != nil {
					t.Fatal(err)
				}
			}
		}

		record := func(n int, version uint64) *store.Record {
			return &store.Record{Kind: 1, ID: number(n), Class: 1, Version: version, Secret: make([]byte, 300)}
		}
		each(50, 1, func(tx store.Tx, n int) { tx.Put(record(n, 1)) })
		time.Sleep(time.Minute)
		full := size()
		if compacted(t, s) {
			t.Error("a full file was compacted")
		}
		each(10, 1, func(tx store.Tx, n int) {
			if n%10 != 0 {
				tx.Delete(1, number(n))
			}
		})
		each(10, 10, func(tx store.Tx, n int) {
			tx.Put(record(n, 2))
		})
		time.Sleep(time.Minute)
		if left := size(); left > (compactFrom+512)*4096 || left > full/2 {
			t.Errorf("%d bytes of %d are left, with a tenth of the records", left, full)
		}
		if got := found(t, s); len(got) != n/10 {
			t.Errorf("%d records", len(got))
		}
	})
}

// compacted reports whether a store has compacted its file.
func compacted(t testing.TB, s *Store) (yes bool) {
	t.Helper()
	// Only the writing goroutine looks at it.
	if err := s.Update(t.Context(), func(store.Tx) error { yes = s.best != 1; return nil }); err != nil {
		t.Error(err)
	}
	return yes
}

// TestCompactFails: whatever a compaction fails of, no record is lost, writes continue, and
// another is tried later.
func TestCompactFails(t *testing.T) {
	broken := errors.New("it is broken")
	for name, test := range map[string]struct {
		rename, syncs int                     // calls that fail, and are made after a rename
		pause         time.Duration           // before the next compaction, if it is not compactPause
		copying       func(s *Store, on bool) // called in the middle of a compaction, and after its end
		refused       error                   // of the Update in the middle
	}{
		"rename":         {rename: 1, pause: renamePause},
		"sync of folder": {syncs: 2, refused: store.ErrUnavailable, pause: renamePause},
		"the disk is nearly full": {copying: func(s *Store, on bool) {
			s.config.room = roomIn
			if on {
				s.config.room = func(string) (int64, bool) { return roomLeft, true }
			}
		}},
		"no room for the copy": {copying: func(s *Store, on bool) {
			if on {
				s.copying.copy.db.MaxSize = 1
			}
		}},
		"no room for the file": {refused: store.ErrFull, copying: func(s *Store, on bool) {
			s.h.db.MaxSize = 0
			if on {
				s.h.db.MaxSize = 1
			}
		}},
		"too many notes": {copying: func(s *Store, on bool) {
			for i := range notesMost + 1 {
				if on {
					s.copying.notes[noted{string(lookupBucket), fmt.Sprint("none", i)}] = struct{}{}
				}
			}
		}},
		"the file has lost its name": {copying: func(s *Store, on bool) {
			from, to := s.path, s.path+"-moved"
			if !on {
				from, to = to, from
			}
			if err := os.Rename(from, to); err != nil {
				panic(err)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				var renames, syncs int
				c := restless()
				c.rename = func(from, to string) error {
					if renames++; renames <= test.rename {
						return broken
					}
					return os.Rename(from, to)
				}
				c.syncDir = func(dir string) error {
					if renames > 0 {
						if syncs++; syncs <= test.syncs {
							return broken
						}
					}
					return syncDir(dir)
				}
				s := openSmall(t, c)
				update := func(fn func(store.Tx) error) error {
					err := s.Update(t.Context(), fn)
					time.Sleep(time.Second)
					return err
				}

				// The compaction that the first Update brings about copies a part in a millisecond.
				if err := s.Update(t.Context(), func(tx store.Tx) error {
					for n := range 100 {
						tx.Put(numbered(n))
					}
					return nil
				}); err != nil {
					t.Fatal(err)
				}
				synctest.Wait() // until the copy is there
				file := s.h
				middle := false
				err := update(func(tx store.Tx) error {
					if !middle && s.copying != nil && test.copying != nil {
						test.copying(s, true)
					}
					middle = middle || s.copying != nil
					r := numbered(100)
					r.Secret = make([]byte, 60_000)
					tx.Put(r)
					return nil
				})
				if !middle {
					t.Error("no compaction was under way")
				}
				if test.refused == nil && err != nil || !errors.Is(err, test.refused) && test.refused != store.ErrUnavailable {
					t.Errorf("Update in the middle: %v", err)
				}
				if left, err := filepath.Glob(filepath.Join(filepath.Dir(s.path), leftoverPrefix("vault.db")+"*")); err != nil || len(left) != 0 {
					t.Errorf("%v, %v are left", left, err)
				}
				if test.syncs > 0 {
					if err := s.Update(t.Context(), putOne(numbered(200))); !errors.Is(err, test.refused) {
						t.Errorf("Update while a crash could bring the old file back: %v", err)
					}
					time.Sleep(time.Second)
				}
				end := update(func(store.Tx) error {
					if test.copying != nil {
						test.copying(s, false)
					}
					return nil
				})
				if end != nil || compacted(t, s) {
					t.Errorf("Update after the end: %v; the file is compacted: %v", end, compacted(t, s))
				}
				if opened := s.h != file; opened != (test.syncs > 0) {
					t.Errorf("the file was opened again: %v", opened) // which waits for readers
				}

				pause := cmp.Or(test.pause, compactPause)
				time.Sleep(pause / 2)
				if err := update(putOne(numbered(299))); err != nil || compacted(t, s) {
					t.Errorf("Update in the pause: %v; the file is compacted: %v", err, compacted(t, s))
				}
				time.Sleep(pause)
				for n := range 3 {
					if err := update(putOne(numbered(300 + n))); err != nil {
						t.Error(err)
					}
				}
				if !compacted(t, s) {
					t.Error("no other compaction was tried")
				}
				if got := found(t, s); len(got) < 104 {
					t.Errorf("%d records", len(got))
				}
			})
		})
	}
}

// TestCompactBeside: no Update waits while a copy is made, or while one is removed that a
// compaction or a crash has left.
func TestCompactBeside(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		path := filepath.Join(dir, "vault.db")
		left := filepath.Join(dir, leftoverPrefix(path)+"1")
		if err := os.WriteFile(left, nil, 0o600); err != nil {
			t.Fatal(err)
		}

		hold := make(chan struct{})
		holding := false // in the goroutine that writes, and before that starts
		var held atomic.Int64
		wait := func() { held.Add(1); <-hold; held.Add(-1) }
		c := restless()
		c.remove = func(path string) error { wait(); return os.Remove(path) }
		c.syncDir = func(dir string) error {
			if holding {
				wait()
			}
			return syncDir(dir)
		}
		s, err := openWith(t.Context(), path, nil, c)
		if err != nil {
			t.Fatal(err)
		}
		update := func(what string, fn func(store.Tx) error) {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			if err := s.Update(ctx, fn); err != nil {
				t.Errorf("Update beside %s: %v", what, err)
			}
			synctest.Wait()
			if held.Load() == 0 {
				t.Errorf("nothing waits for %s: the test proves nothing", what)
			}
		}

		update("what a crash has left", func(tx store.Tx) error { holding = true; return putOne(numbered(1))(tx) })
		hold <- struct{}{}
		update("a copy that is made", func(tx store.Tx) error {
			holding = false
			s.abandon(errors.New("it is broken"), compactPause)
			return putOne(numbered(2))(tx)
		})
		hold <- struct{}{}
		update("a copy that is removed", putOne(numbered(3)))
		close(hold)
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if names, err := filepath.Glob(filepath.Join(dir, ".*")); err != nil || len(names) > 0 {
			t.Errorf("%v, %v are left", names, err)
		}
	})
}

// TestCompactParts: a part is copied in one transaction, and a group waits for it. However
// much is to be copied, or copied again, a part is bounded.
func TestCompactParts(t *testing.T) {
	bubble.Test(t, func(t *testing.T) { // in which no time passes
		c := small
		c.noSync, c.part = true, 1<<20
		s := openSmall(t, c)
		const rows, size = 3000, 10_000
		for from := 0; from < rows; from += 100 {
			if err := s.Update(t.Context(), func(tx store.Tx) error {
				for n := from; n < from+100; n++ {
					r := numbered(n)
					r.Secret = make([]byte, size)
					tx.Put(r)
				}
				return nil
			}); err != nil {
				t.Fatal(err)
			}
		}

		err := s.Update(t.Context(), func(store.Tx) error { // only the writing goroutine compacts
			s.sample.used, s.sample.looks = 1, 1
			if err := s.beginCompaction(); err != nil {
				return err
			}
			<-s.copying.ready
			parts := func(what string, most int, left func() int) {
				for same, n := false, 0; !same; n++ {
					before := left()
					var err error
					if same, err = s.copyPart(); err != nil || n > rows {
						t.Fatalf("part %d: %v", n, err)
					}
					if copied := before - left(); copied > most {
						t.Errorf("a part has copied %d rows %s, want at most %d", copied, what, most)
					}
				}
			}

			bucket := rowsBucket(1)
			parts("", c.part/size+1, func() int {
				switch in := bytes.Compare(s.copying.name, bucket[:]); {
				case in < 0:
					return rows
				case in > 0:
					return 0
				}
				return rows - 1 - int(binary.BigEndian.Uint32(s.copying.key[4:]))
			})
			for n := range rows {
				id := number(n)
				s.copying.notes[noted{string(bucket[:]), string(id[:])}] = struct{}{}
			}
			parts("again", groupBytes/size+1, func() int { return len(s.copying.notes) })
			for n := range 1 << 15 {
				s.copying.notes[noted{string(bucket[:]), fmt.Sprint("none", n)}] = struct{}{}
			}
			parts("that are gone", partNotesMost, func() int { return len(s.copying.notes) })
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	})
}

// TestCompactLikeness: the compacted file belongs to whom the file belonged, and may be used
// by the same.
func TestCompactLikeness(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("a file is not compacted there")
	}
	bubble.Test(t, func(t *testing.T) {
		s := openSmall(t, restless())
		if err := os.Chmod(s.path, 0o640); err != nil {
			t.Fatal(err)
		}
		uid, gid := os.Getuid(), os.Getgid()
		if uid == 0 {
			uid, gid = 4711, 4712
		} else if groups, err := os.Getgroups(); err == nil && len(groups) > 0 {
			gid = groups[len(groups)-1]
		}
		if err := os.Chown(s.path, uid, gid); err != nil {
			t.Fatal(err)
		}
		before, err := os.Stat(s.path)
		if err != nil {
			t.Fatal(err)
		}

		for n := range 3 {
			if err := s.Update(t.Context(), putOne(numbered(n))); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
		}
		after, err := os.Stat(s.path)
		if err != nil {
			t.Fatal(err)
		}
		if !compacted(t, s) || os.SameFile(before, after) {
			t.Error("the file was not compacted")
		}
		if after.Mode() != before.Mode() || ownerOf(after) != ownerOf(before) {
			t.Errorf("the file is %v of %s, was %v of %s", after.Mode(), ownerOf(after), before.Mode(), ownerOf(before))
		}
	})
}

// ownerOf returns owner and group as the system has them.
func ownerOf(info os.FileInfo) string {
	sys := reflect.Indirect(reflect.ValueOf(info.Sys()))
	return fmt.Sprint(sys.FieldByName("Uid"), ":", sys.FieldByName("Gid"))
}

// TestCompactLock: a process that has opened the file, and gets its lock once another process
// has replaced it, does not write to it.
func TestCompactLock(t *testing.T) {
	s := openSmall(t, small)
	old, err := os.ReadFile(s.path)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "vault.db")
	if err := errors.Join(os.Rename(s.path, name), os.Symlink(name, s.path)); err != nil {
		t.Fatal(err)
	}
	h, err := openHandle(s.path, small)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name+"2", old, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(h.named(s.path), os.Rename(name+"2", name)); err != nil {
		t.Fatal(err)
	}
	if err := h.named(s.path); err == nil {
		t.Error("a file without a name is taken for the one with it")
	}
	if err := h.close(); err != nil {
		t.Error(err)
	}
}
