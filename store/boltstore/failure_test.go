package boltstore

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cardvault/cardvault/internal/bubble"
	"github.com/google/uuid"

	"github.com/cardvault/cardvault/store"
)

func putOne(r *store.Record) func(store.Tx) error {
	return func(tx store.Tx) error { tx.Put(r); return nil }
}

func numbered(n int) *store.Record {
	return &store.Record{
		Kind: 1, ID: number(n), Class: 1, Version: 1, Due: time.UnixMicro(int64(n)).UTC(),
		Lookup: [][]byte{{byte(n)}}, Shown: bytes.Repeat([]byte{byte(n)}, 200),
	}
}

func has(t testing.TB, s *Store, n int) bool {
	t.Helper()
	err := s.View(context.Background(), func(tx store.ReadTx) error {
		_, err := tx.Get(1, number(n))
		return err
	})
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		t.Fatal(err)
	}
	return err == nil
}

// together runs functions in one group, in their order, and returns their errors.
func together(t testing.TB, s *Store, fns ...func(store.Tx) error) []error {
	t.Helper()
	entered, leave := make(chan struct{}), make(chan struct{})
	var once sync.Once
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := s.Update(context.Background(), func(store.Tx) error {
			once.Do(func() { close(entered); <-leave })
			return nil
		}); err != nil {
			t.Error(err)
		}
	})
	<-entered
	errs := make([]error, len(fns))
	for i, fn := range fns {
		wg.Go(func() { errs[i] = s.Update(context.Background(), fn) })
		for s.queue.Len() <= i {
			runtime.Gosched()
		}
	}
	close(leave)
	wg.Wait()
	return errs
}

// TestGroup proves that a function sees the writes of earlier functions of its group, in
// rows and in lists. A refused function leaves no trace.
func TestGroup(t *testing.T) {
	s := openSmall(t, small)
	count := func(want int64) func(store.Tx) error {
		return func(tx store.Tx) error {
			l, err := tx.List(&store.Query{Kind: 1, Count: true})
			if err == nil && l.Total != want {
				err = fmt.Errorf("total is %d, want %d", l.Total, want)
			}
			return err
		}
	}
	fns := []func(store.Tx) error{count(0)}
	for n := range 20 {
		fns = append(fns, putOne(numbered(n)), count(int64(n+1)))
	}
	conflict := len(fns)
	fns = append(fns, func(tx store.Tx) error {
		tx.Delete(1, number(7))
		tx.Put(numbered(30))
		tx.Put(numbered(3))
		return nil
	}, count(20))
	for i, err := range together(t, s, fns...) {
		if i == conflict && !errors.Is(err, store.ErrConflict) || i != conflict && err != nil {
			t.Errorf("function %d: %v", i, err)
		}
	}
	if !has(t, s, 7) || has(t, s, 30) {
		t.Error("a refused function has left a trace")
	}
}

// TestGroupBounds: functions that wait together share transactions of bounded size and
// duration.
func TestGroupBounds(t *testing.T) {
	for name, test := range map[string]struct {
		calls, puts int
		takes       time.Duration
		want        int // transactions
	}{
		"writes":   {calls: 8, puts: groupOps / 2, want: 4},
		"duration": {calls: 8, puts: 1, takes: groupTime * 2 / 3, want: 4},
		"neither":  {calls: 8, puts: 1, want: 1},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				s := openSmall(t, small)
				var fns []func(store.Tx) error
				for call := range test.calls {
					fns = append(fns, func(tx store.Tx) error {
						time.Sleep(test.takes)
						for i := range test.puts {
							tx.Put(&store.Record{Kind: 1, ID: number(call*test.puts + i), Version: 1})
						}
						return nil
					})
				}
				first := s.h.lastID()
				for i, err := range together(t, s, fns...) {
					if err != nil {
						t.Errorf("function %d: %v", i, err)
					}
				}
				if n := s.h.lastID() - first; n != test.want {
					t.Errorf("%d transactions, want %d", n, test.want)
				}
			})
		})
	}
}

// TestFull fills a file up to its bound. A write without room is refused and is known not
// to be written. Others in its group are not disturbed, and reads and deletions continue.
// The records are smaller than a page, since bbolt places runs of pages at random.
func TestFull(t *testing.T) {
	c := small
	c.maxSize = 1 << 20
	s := openSmall(t, c)
	n, err := 0, error(nil)
	for ; err == nil; n++ {
		r := numbered(n)
		r.Secret = make([]byte, 1000)
		err = s.Update(context.Background(), putOne(r))
	}
	if !errors.Is(err, store.ErrFull) || errors.Is(err, store.ErrOutcomeUnknown) || has(t, s, n-1) {
		t.Fatalf("write %d: %v", n, err)
	}
	open := s.h
	large := numbered(n)
	large.Secret = make([]byte, 60_000)
	if err := s.Scrub(t.Context()); err != nil || open.evened == 0 {
		t.Errorf("Scrub of a full file: %v", err)
	}
	if err := s.Update(t.Context(), putOne(large)); !errors.Is(err, store.ErrFull) || open.evened != 0 {
		t.Errorf("Update = %v, and the next scrub would take both heads for even", err)
	}
	errs := together(t, s, putOne(large), func(tx store.Tx) error { tx.Delete(1, number(0)); return nil })
	if !errors.Is(errs[0], store.ErrFull) || errs[1] != nil {
		t.Fatal(errs)
	}
	refused := s.Update(context.Background(), func(tx store.Tx) error {
		tx.Put(large)
		tx.Put(numbered(1)) // is there
		return nil
	})
	if !errors.Is(refused, store.ErrConflict) {
		t.Errorf("a refused Update on a full disk: %v", refused)
	}
	for i := range n {
		if has(t, s, i) != (i > 0 && i < n-1) {
			t.Errorf("record %d: %v", i, has(t, s, i))
		}
		if err := s.Update(context.Background(), func(tx store.Tx) error { tx.Delete(1, number(i)); return nil }); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Update(context.Background(), putOne(large)); err != nil {
		t.Errorf("after deletions: %v", err)
	}
	if s.h != open {
		t.Error("the file was closed for lack of room")
	}
}

// TestCommitFails takes the file from under bbolt. The callers of the group get
// ErrOutcomeUnknown. The store opens the file again, and returns ErrUnavailable while it
// cannot.
func TestCommitFails(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := openSmall(t, small)
		if err := s.Update(t.Context(), putOne(numbered(1))); err != nil {
			t.Fatal(err)
		}
		fail := func(n int) {
			if err := s.h.file.Close(); err != nil {
				t.Fatal(err)
			}
			err := s.Update(t.Context(), putOne(numbered(n)))
			if !errors.Is(err, store.ErrOutcomeUnknown) || errors.Is(err, store.ErrFull) {
				t.Fatalf("Update: %v", err)
			}
		}
		fail(2)
		if !has(t, s, 1) {
			t.Error("record 1 is lost")
		}
		if err := s.Update(t.Context(), putOne(numbered(3))); err != nil {
			t.Errorf("after a failure: %v", err)
		}

		if err := os.Rename(s.path, s.path+"x"); err != nil {
			t.Fatal(err)
		}
		fail(4)
		err := s.View(t.Context(), func(store.ReadTx) error { return nil })
		if !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("View without the file: %v", err)
		}
		if err := os.Rename(s.path+"x", s.path); err != nil {
			t.Fatal(err)
		}
		if err := s.Update(t.Context(), putOne(numbered(5))); !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("Update before the next attempt to open the file: %v", err)
		}
		time.Sleep(reopenPause)
		if err := s.Update(t.Context(), putOne(numbered(5))); err != nil {
			t.Errorf("Update: %v", err)
		}
		if !has(t, s, 1) || !has(t, s, 3) || !has(t, s, 5) {
			t.Error("a record is lost")
		}
	})
}

// TestSettle proves that after a failed commit nothing is served until the meta pages are
// written and synced again, unchanged.
func TestSettle(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var syncs []time.Time // the time of the last write, at each sync
		var failure error
		c := small
		c.sync = func(f *os.File) error {
			info, err := f.Stat()
			if err != nil {
				return err
			}
			syncs = append(syncs, info.ModTime())
			return errors.Join(failure, f.Sync())
		}
		s := openSmall(t, c)
		if err := s.Update(t.Context(), putOne(numbered(1))); err != nil {
			t.Fatal(err)
		}
		old := time.Unix(1, 0)
		if err := os.Chtimes(s.path, old, old); err != nil {
			t.Fatal(err)
		}
		before, err := os.ReadFile(s.path)
		if err != nil {
			t.Fatal(err)
		}
		failure = errors.New("the disk is gone")
		if err := s.h.file.Close(); err != nil {
			t.Fatal(err)
		}
		if err := s.Update(t.Context(), putOne(numbered(2))); !errors.Is(err, store.ErrOutcomeUnknown) {
			t.Fatalf("Update: %v", err)
		}
		if len(syncs) != 1 || syncs[0].Equal(old) {
			t.Errorf("syncs of a file written to at %v", syncs)
		}
		if after, err := os.ReadFile(s.path); err != nil || !bytes.Equal(after, before) {
			t.Errorf("the file has changed, %v", err)
		}
		err = s.View(t.Context(), func(store.ReadTx) error { return nil })
		if !errors.Is(err, store.ErrUnavailable) || !errors.Is(err, failure) {
			t.Errorf("View: %v", err)
		}
		time.Sleep(reopenPause)
		if err := s.Update(t.Context(), putOne(numbered(3))); !errors.Is(err, store.ErrUnavailable) || len(syncs) != 2 {
			t.Errorf("Update while the disk is gone: %v, %d syncs", err, len(syncs))
		}
		failure = nil
		time.Sleep(reopenPause)
		for n := 3; n < 5; n++ {
			if err := s.Update(t.Context(), putOne(numbered(n))); err != nil {
				t.Error(err)
			}
		}
		if len(syncs) != 3 || !has(t, s, 1) || has(t, s, 2) || !has(t, s, 4) {
			t.Errorf("%d syncs", len(syncs))
		}
	})
}

// TestDamage opens and uses a file after every kind of damage. Nothing may panic, hang or
// end the process, and each error must be one of package store.
func TestDamage(t *testing.T) {
	s := openSmall(t, small)
	if err := s.Update(t.Context(), func(tx store.Tx) error {
		for n := range 200 {
			tx.Put(numbered(n))
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(s.path)
	if err != nil {
		t.Fatal(err)
	}
	const page = 4096
	random := rand.New(rand.NewPCG(1, 2))
	dir := t.TempDir()
	found := 0
	try := func(name string, writes bool, damage func(b []byte) []byte) {
		path := filepath.Join(dir, "vault.db")
		if err := os.WriteFile(path, damage(bytes.Clone(whole)), 0o600); err != nil {
			t.Fatal(err)
		}
		errs := use(path, writes)
		for _, err := range errs {
			if !errors.Is(err, store.ErrDamaged) && !errors.Is(err, store.ErrFormat) && !errors.Is(err, store.ErrNotFound) &&
				!errors.Is(err, store.ErrOutcomeUnknown) && !errors.Is(err, store.ErrUnavailable) {
				t.Errorf("%s: %v", name, err)
			}
		}
		found += min(1, len(errs))
	}
	for i := range len(whole) / page {
		at := i * page
		try(fmt.Sprintf("page %d zeroed", i), true, func(b []byte) []byte { clear(b[at : at+page]); return b })
		try(fmt.Sprintf("page %d torn", i), true, func(b []byte) []byte { copy(b[at+512:at+page], b[random.IntN(len(b)-page):]); return b })
		try(fmt.Sprintf("page %d moved", i), true, func(b []byte) []byte { copy(b[at:at+page], b[random.IntN(len(b)/page)*page:]); return b })
		try(fmt.Sprintf("page %d full of ones", i), true, func(b []byte) []byte {
			for j := range page {
				b[at+j] = 0xff
			}
			return b
		})
		try(fmt.Sprintf("cut at page %d", i), true, func(b []byte) []byte { return b[:at] })
		try(fmt.Sprintf("cut in page %d", i), true, func(b []byte) []byte { return b[:at+random.IntN(page)] })
		// A flipped bit in a header or element misleads bbolt. It believes the sizes in a
		// leaf that it rewrites and would allocate gigabytes: no writes here.
		for range 40 {
			bit := at*8 + random.IntN(8*256)
			try(fmt.Sprintf("bit %d", bit), false, func(b []byte) []byte { b[bit/8] ^= 1 << (bit % 8); return b })
		}
	}
	t.Logf("%d damaged files were noticed", found)
	if found < 100 {
		t.Errorf("only %d damaged files were noticed", found)
	}
	garbage := bytes.Repeat([]byte("garbage"), 10_000)
	if err := os.WriteFile(filepath.Join(dir, "garbage"), garbage, 0o600); err != nil {
		t.Fatal(err)
	}
	if errs := use(filepath.Join(dir, "garbage"), true); len(errs) != 1 || !errors.Is(errs[0], store.ErrDamaged) {
		t.Error(errs)
	}
	if after, err := os.ReadFile(filepath.Join(dir, "garbage")); err != nil || !bytes.Equal(after, garbage) {
		t.Error("a file that is not a store was written to")
	}
}

// use does a little of everything and returns the errors.
func use(path string, writes bool) (errs []error) {
	ctx := context.Background()
	note := func(err error) {
		if err != nil {
			errs = append(errs, err)
		}
	}
	c := small
	c.noSync = true
	s, err := openWith(ctx, path, nil, c)
	if err != nil {
		return []error{err}
	}
	note(s.View(ctx, func(tx store.ReadTx) error {
		for n := range 200 {
			if _, err := tx.Get(1, number(n)); !errors.Is(err, store.ErrNotFound) {
				note(err)
			}
			if n%20 == 0 {
				_, err := tx.List(&store.Query{Kind: 1, Offset: int64(n), Limit: 20, Count: true, Live: time.UnixMicro(50)})
				note(err)
			}
		}
		_, err := tx.Lookup(1, []byte{3}, 10)
		note(err)
		_, err = tx.Due(1, store.AllShards, time.UnixMicro(100), 100)
		note(err)
		_, err = tx.Next(1, store.AllShards)
		return err
	}))
	note(s.Check(ctx))
	if writes {
		note(s.Update(ctx, putOne(numbered(1000))))
		for n := range 4 {
			note(s.Update(ctx, func(tx store.Tx) error { tx.Delete(1, number(50*n)); return nil }))
		}
		note(s.Check(ctx))
	}
	note(s.Close())
	return errs
}

// TestTruncated cuts the file while it is open: reads report damage and the process
// survives.
func TestTruncated(t *testing.T) {
	for _, keep := range []int64{0, 4096, 2 * 4096} {
		s, err := openWith(t.Context(), filepath.Join(t.TempDir(), "vault.db"), nil, small)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Update(t.Context(), putOne(numbered(1))); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(s.path, keep); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			err = s.View(t.Context(), func(tx store.ReadTx) error { _, err := tx.Get(1, number(1)); return err })
			if !errors.Is(err, store.ErrDamaged) {
				t.Errorf("View of a file cut to %d: %v", keep, err)
			}
		}
		if err := s.Update(t.Context(), putOne(numbered(2))); err == nil {
			t.Errorf("Update of a file cut to %d succeeded", keep)
		}
		if err := s.Close(); err != nil {
			t.Log(err)
		}
	}
}

var update = flag.Bool("update", false, "write the golden file of the present format")

// TestFormat reads a file written by the first version of this format.
func TestFormat(t *testing.T) {
	golden := filepath.Join("testdata", "format1.db")
	records := []*store.Record{
		{Kind: 1, ID: number(1), Account: uuid.UUID{1}, Class: 3, Version: 1, Shown: []byte("shown"), Secret: []byte("secret")},
		{Kind: 1, ID: number(2), Account: uuid.UUID{1}, Class: 4, Version: 1, Due: time.UnixMicro(1_700_000_000_000_001).UTC()},
		{Kind: 2, ID: number(3), Account: uuid.UUID{1}, Parent: number(1), Class: 255, Version: 1, Lookup: [][]byte{[]byte("hash"), {}}},
		{Kind: 255, ID: number(4), Version: 1, Due: time.UnixMicro(-1).UTC(), Shown: []byte("no class")},
	}
	for n := range 60 {
		records = append(records, &store.Record{Kind: 3, ID: number(n + 10), Class: uint8(n%3 + 1), Version: 1})
	}
	path := filepath.Join(t.TempDir(), "vault.db")
	if *update {
		s, err := openWith(t.Context(), path, nil, small)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Update(t.Context(), func(tx store.Tx) error {
			for _, r := range records {
				tx.Put(r)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(golden, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	b, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := openWith(t.Context(), path, nil, small)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Check(t.Context()); err != nil {
		t.Error(err)
	}
	err = s.View(t.Context(), func(tx store.ReadTx) error {
		for _, r := range records {
			got, err := tx.Get(r.Kind, r.ID)
			if err != nil {
				return err
			}
			if fmt.Sprint(*got) != fmt.Sprint(*r) {
				t.Errorf("%v, want %v", got, r)
			}
		}
		l, err := tx.List(&store.Query{Kind: 3, Offset: 29, Limit: 1, Count: true, Desc: true})
		if err == nil && (l.Total != 60 || l.Records[0].ID != number(40)) {
			t.Errorf("list: %d, %v", l.Total, l.Records)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}

	// A newer format is refused, and the file is left as it is.
	newer := bytes.ReplaceAll(b, []byte("format\x01"), []byte("format\x03"))
	if bytes.Equal(newer, b) {
		t.Fatal("the format version is not at its place")
	}
	if err := os.WriteFile(path, newer, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := openWith(t.Context(), path, nil, small); !errors.Is(err, store.ErrFormat) || !strings.Contains(err.Error(), "newer program") {
		t.Errorf("newer format: %v", err)
	}
}
