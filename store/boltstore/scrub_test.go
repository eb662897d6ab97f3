package boltstore

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/storetest"
)

// marked returns a record with a column and a hash that no other has.
func marked(n int) *store.Record {
	r := numbered(n)
	mark, hash := sha256.Sum256(fmt.Append(nil, "record ", n)), sha256.Sum256(fmt.Append(nil, "lookup ", n))
	r.Secret = append(append([]byte(marker), mark[:]...), bytes.Repeat([]byte{0xab}, n%700)...)
	r.Lookup = [][]byte{append([]byte(marker), hash[:]...)}
	return r
}

const marker = "MARKED" // what the file is searched for

// left returns how many of the records up to n have left something in a file.
func left(t testing.TB, path string, n int) int {
	t.Helper()
	file, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	of := make(map[string]int, 2*n)
	for n := range n {
		r := marked(n)
		of[string(r.Secret[:len(marker)+8])], of[string(r.Lookup[0][:len(marker)+8])] = n, n
	}
	left := map[int]bool{}
	for at := 0; ; at++ {
		next := bytes.Index(file[at:], []byte(marker))
		if next < 0 {
			return len(left)
		}
		at += next
		if n, ok := of[string(file[at:min(len(file), at+len(marker)+8)])]; ok {
			left[n] = true
		}
	}
}

func putMarked(t testing.TB, s *Store, from, to int) {
	t.Helper()
	for ; from < to; from += 500 {
		err := s.Update(t.Context(), func(tx store.Tx) error {
			for n := from; n < min(to, from+500); n++ {
				tx.Put(marked(n))
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

func deleteMarked(t testing.TB, s *Store, from, to int) {
	t.Helper()
	for n := from; n < to; n += 100 {
		err := s.Update(t.Context(), func(tx store.Tx) error {
			for n := range 100 {
				tx.Delete(1, number(from+n))
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		from += 100
	}
}

// scrubs is a store that scrubs on request alone, and is never compacted.
func scrubs(t testing.TB, change ...func(*config)) *Store {
	t.Helper()
	c := defaults
	c.scrubPause, c.wasteful = 0, nil
	for _, f := range change {
		f(&c)
	}
	s, err := openWith(t.Context(), filepath.Join(t.TempDir(), "vault.db"), nil, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// TestScrub deletes 10,000 records among others and searches the file for them.
func TestScrub(t *testing.T) {
	s := scrubs(t)
	putMarked(t, s, 0, 12_000)
	deleteMarked(t, s, 0, 10_000)
	if left(t, s.path, 10_000) == 0 {
		t.Fatal("nothing of the records is left without a scrub, so this test shows nothing")
	}
	if err := s.Scrub(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := left(t, s.path, 10_000); n > 0 {
		t.Errorf("%d of 10000 deleted records have left something", n)
	}
	t.Log("searched for 10000 deleted records")
	if n := left(t, s.path, 12_000); n != 2000 {
		t.Errorf("%d records are there, want 2000", n)
	}
	if err := s.Check(t.Context()); err != nil {
		t.Error(err)
	}

	// Another version of a record leaves nothing of the one before.
	r := marked(11_000)
	before := r.Secret
	r.Version, r.Secret = 2, []byte("anew")
	if err := s.Update(t.Context(), putOne(r)); err != nil {
		t.Fatal(err)
	}
	if err := s.Scrub(t.Context()); err != nil {
		t.Fatal(err)
	}
	if file, err := os.ReadFile(s.path); err != nil || bytes.Contains(file, before[:40]) {
		t.Errorf("the former version is in the file, %v", err)
	}
}

// TestScrubHeads: damage to either head after a scrub costs no record that was there before it.
func TestScrubHeads(t *testing.T) {
	for head := range int64(2) {
		s := scrubs(t)
		putMarked(t, s, 0, 3000)
		deleteMarked(t, s, 0, 1000)
		if err := s.Update(t.Context(), func(tx store.Tx) error { tx.Delete(1, number(1000)); return nil }); err != nil {
			t.Fatal(err)
		}
		if err := s.Scrub(t.Context()); err != nil {
			t.Fatal(err)
		}
		whole, err := os.ReadFile(s.path)
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(t.TempDir(), "damaged.db")
		whole[head*int64(os.Getpagesize())+headTx] ^= 1
		if err := os.WriteFile(path, whole, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(t.Context(), path, nil); !errors.Is(err, store.ErrDamaged) {
			t.Errorf("head %d: Open = %v", head, err)
		}
		accepted, err := Open(t.Context(), path, &Options{AcceptUndone: true})
		if err != nil {
			t.Errorf("head %d, accepted: Open = %v", head, err)
			continue
		}
		if err := accepted.Check(t.Context()); err != nil {
			t.Errorf("head %d: Check = %v", head, err)
		}
		if err := accepted.Scrub(t.Context()); err != nil {
			t.Errorf("head %d: Scrub = %v", head, err)
		}
		if err := accepted.Close(); err != nil {
			t.Error(err)
		}
		if was, is := left(t, path, 1001), left(t, path, 3000); was != 0 || is != 1999 {
			t.Errorf("head %d: %d deleted records have left something, and %d are there, want 1999", head, was, is)
		}
	}
}

// TestScrubHoldsNothingUp: whatever the size of the file, a commit of a scrub does not wait for a View
// that is open.
func TestScrubHoldsNothingUp(t *testing.T) {
	s := scrubs(t, func(c *config) { c.mmapSize = 0 })
	var evened, left int
	for n := range 400 {
		putMarked(t, s, n, n+1)
		if n%3 == 0 {
			s.h.evened = 0 // as if nothing was evened before
		}
		seen, end, ended := make(chan bool), make(chan bool), make(chan error, 1)
		go func() {
			ended <- s.View(t.Context(), func(store.ReadTx) error { close(seen); <-end; return nil })
		}()
		<-seen
		done := make(chan bool, 1)
		go func() {
			even, err := s.even()
			if err != nil {
				t.Error(err)
			}
			done <- even
		}()
		select {
		case even := <-done:
			if even {
				evened++
			} else {
				left++
			}
		case <-time.After(time.Minute):
			close(end)
			t.Fatalf("with %d records a commit waits for a View", n+1)
		}
		close(end)
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
		if even, err := s.even(); !even || err != nil {
			t.Fatalf("with %d records, without a View: %t, %v", n+1, even, err)
		}
	}
	if evened == 0 || left == 0 || left > 100 {
		t.Errorf("beside a View %d commits were made and %d put off", evened, left)
	}
	t.Logf("%d sizes of a file: beside a View %d commits were made and %d put off, and none waited", evened+left, evened, left)
}

// TestScrubBesideView holds Views open: each sees its records until it ends, and Scrub waits.
func TestScrubBesideView(t *testing.T) {
	s := scrubs(t)
	putMarked(t, s, 0, 1000)
	open, read, done := make(chan bool), make(chan bool), make(chan error)
	view := func(from int) {
		done <- s.View(t.Context(), func(tx store.ReadTx) error {
			open <- true
			<-read
			for n := from; n < 1000; n++ {
				r, err := tx.Get(1, number(n))
				if err != nil || !bytes.Equal(r.Secret, marked(n).Secret) {
					return fmt.Errorf("record %d: %w", n, errors.Join(err, errors.New("is another")))
				}
			}
			return nil
		})
	}
	go view(0)
	<-open
	deleteMarked(t, s, 0, 500)
	go view(500)
	<-open
	deleteMarked(t, s, 500, 1000)

	for range 3 {
		ctx, cancel := context.WithTimeout(t.Context(), 3*viewPause)
		if err := s.Scrub(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Scrub beside a View: %v", err)
		}
		cancel()
	}
	putMarked(t, s, 2000, 2010) // others write meanwhile
	read <- true
	read <- true
	for range 2 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if err := s.Scrub(t.Context()); err != nil {
		t.Error(err)
	}
	if n := left(t, s.path, 1000); n > 0 {
		t.Errorf("%d of 1000 deleted records have left something", n)
	}
}

// TestScrubByItself: what is deleted goes without a call, also what a process of before left.
func TestScrubByItself(t *testing.T) {
	s := scrubs(t)
	putMarked(t, s, 0, 1000)
	deleteMarked(t, s, 0, 500)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	c := defaults
	c.scrubPause = time.Millisecond
	again, err := openWith(t.Context(), s.path, nil, c)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	for left(t, s.path, 500) > 0 {
		time.Sleep(time.Millisecond)
	}
	deleteMarked(t, again, 500, 1000)
	for left(t, s.path, 1000) > 0 {
		time.Sleep(time.Millisecond)
	}
}

// TestScrubCrash takes what a crash would leave amid scrubs, and a loss of power after them.
func TestScrubCrash(t *testing.T) {
	dir := t.TempDir()
	s, err := openWith(t.Context(), filepath.Join(dir, "vault.db"), nil, small)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var there versions
	r := rand.New(rand.NewPCG(3, 4))
	for range 40 {
		for range 10 {
			fn, next := there.change(r)
			if err := s.Update(t.Context(), fn); err != nil {
				t.Fatal(err)
			}
			there = next
		}
		scrubbed := make(chan error)
		go func() { scrubbed <- s.Scrub(t.Context()) }()
		amid, after := t.TempDir(), ""
		if err := os.CopyFS(amid, os.DirFS(dir)); err != nil {
			t.Fatal(err)
		}
		if err := <-scrubbed; err != nil {
			t.Fatal(err)
		}
		after = storetest.AfterPowerCut(t, dir)
		for _, dir := range []string{amid, after} {
			crashed, err := openWith(t.Context(), filepath.Join(dir, "vault.db"), nil, small)
			if err != nil {
				t.Fatal(err)
			}
			there.compare(t, crashed, "after a crash")
			if err := crashed.Close(); err != nil {
				t.Error(err)
			}
		}
	}
	there.compare(t, s, "in the end")
	t.Log("copied amid 40 scrubs, and after as many")
}

// TestScrubFails: a file that cannot be written is reported, and the store goes on.
func TestScrubFails(t *testing.T) {
	s := scrubs(t)
	putMarked(t, s, 0, 500)
	deleteMarked(t, s, 0, 500)
	if err := s.Update(t.Context(), func(store.Tx) error {
		read, err := os.Open(s.path)
		s.h.file = read // which is not bbolt's own
		t.Cleanup(func() { _ = read.Close() })
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if err := s.Scrub(t.Context()); err == nil || errors.Is(err, store.ErrClosed) {
		t.Errorf("Scrub of a file that cannot be written: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := s.Scrub(t.Context()); !errors.Is(err, store.ErrClosed) {
		t.Errorf("Scrub after Close: %v", err)
	}
}

// TestScrubReopens: a scrub that cannot sync or commit opens the file again, and the next one works.
func TestScrubReopens(t *testing.T) {
	s := scrubs(t)
	putMarked(t, s, 0, 500)
	for _, evened := range []bool{false, true} {
		deleteMarked(t, s, 0, 100)
		putMarked(t, s, 0, 100)
		var before *handle
		if err := s.Update(t.Context(), func(store.Tx) error {
			before = s.h
			if !evened {
				before.evened = 0
			}
			return before.file.Close()
		}); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		if err := s.Scrub(ctx); err == nil || errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("Scrub of a file that is closed: %v", err)
		}
		if err := s.Scrub(ctx); err != nil {
			t.Fatal(err)
		}
		cancel()
		if s.h == before {
			t.Error("the file was not opened again")
		}
		if n := left(t, s.path, 500); n != 500 {
			t.Errorf("%d records are there, want 500", n)
		}
	}
}
