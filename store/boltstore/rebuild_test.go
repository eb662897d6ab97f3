package boltstore

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/uuid"
	bolt "go.etcd.io/bbolt"

	"github.com/cardvault/cardvault/store"
)

// repaired repairs a store from a place on, by at most so many rows at a time.
func repaired(t testing.TB, s *Store, place []byte, limit int) {
	t.Helper()
	for range 100_000 {
		var err error
		if place, err = s.Repair(context.Background(), place, limit); err != nil {
			t.Fatal(err)
		}
		if place == nil {
			return
		}
	}
	t.Fatal("a repair does not end")
}

// TestRepairAnywhere: writes between any two steps of a repair, and an end of the process after
// any, leave a file that is whole, in which the repair goes on.
func TestRepairAnywhere(t *testing.T) {
	for seed := range uint64(2) {
		random := rand.New(rand.NewPCG(25, seed))
		path := filepath.Join(t.TempDir(), "vault.db")
		c := small
		c.noSync = true
		open := func() *Store {
			t.Helper()
			s, err := openWith(t.Context(), path, nil, c)
			if err != nil {
				t.Fatal(err)
			}
			return s
		}
		s := open()
		var want versions
		write := func() {
			t.Helper()
			fn, next := want.change(random)
			if err := s.Update(t.Context(), fn); err != nil {
				t.Fatal(err)
			}
			want = next
		}
		for range 150 {
			write()
		}

		var place []byte
		for step := 0; step == 0 || place != nil; step++ {
			var err error
			if place, err = s.Repair(t.Context(), place, 1+random.IntN(40)); err != nil {
				t.Fatal(err)
			}
			for range random.IntN(4) {
				write()
			}
			switch random.IntN(6) {
			case 0: // another process goes on, knowing the place
				err = s.Close()
				s = open()
			case 1: // or not
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
				s = open()
				if step > 200 {
					t.Fatal("it does not end")
				}
				place, err = s.Repair(t.Context(), nil, 40)
			}
			if err != nil {
				t.Fatal(err)
			}
			if found := checked(t, s, 1000); len(found) > 0 {
				t.Fatalf("after step %d: %v", step, found)
			}
		}
		want.compare(t, s, "in the end")
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = open()
		want.compare(t, s, "opened again")
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestRepairDamagedPages: a page of an index that bbolt cannot read is replaced. It is in the
// file, unread, until that is compacted.
func TestRepairDamagedPages(t *testing.T) {
	const n = 400
	for _, name := range indexNames {
		c := restless()
		c.wasteful = func(*sample, int, float64) bool { return false }
		c.noSync = true
		s, err := openWith(t.Context(), filepath.Join(t.TempDir(), "vault.db"), nil, c)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Update(t.Context(), func(tx store.Tx) error {
			for i := range n {
				tx.Put(numbered(i))
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		id := leafOf(t, s, name)
		f, err := os.OpenFile(s.path, os.O_RDWR, 0)
		if err == nil {
			_, err = f.WriteAt(bytes.Repeat([]byte{0xff}, 512), int64(id)*int64(os.Getpagesize())+pageHeader)
			err = errors.Join(err, f.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
		if found := checked(t, s, 100); len(found) == 0 {
			t.Fatalf("%s: nothing is found", name)
		}
		repaired(t, s, nil, 50)
		if found := checked(t, s, 100); len(found) > 0 {
			t.Errorf("%s: after Repair: %v", name, found)
		}
		if err := s.View(t.Context(), func(tx store.ReadTx) error {
			l, err := tx.List(&store.Query{Kind: 1, Count: true, Limit: n})
			due, failed := tx.Due(1, store.AllShards, time.UnixMicro(n), 2*n)
			hits, unread := tx.Lookup(1, []byte{7}, n)
			if err := errors.Join(err, failed, unread); err != nil {
				return err
			}
			if l.Total != n || len(l.Records) != n || len(due) != n || len(hits) != 2 {
				t.Errorf("%s: %d, %d listed, %d due, %d found", name, l.Total, len(l.Records), len(due), len(hits))
			}
			return nil
		}); err != nil {
			t.Error(err)
		}

		// The next commits have it compacted.
		for i := 0; s.Check(t.Context()) != nil; i++ {
			if i == 2000 {
				t.Fatalf("%s: the damaged page stays: %v", name, s.Check(t.Context()))
			}
			if err := s.Update(t.Context(), putOne(numbered(1000+i))); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Millisecond)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

// leafOf returns a leaf page of a bucket.
func leafOf(t *testing.T, s *Store, name []byte) (id uint64) {
	t.Helper()
	if err := s.h.db.View(func(tx *bolt.Tx) error {
		id = uint64(tx.Bucket(name).Root())
		p := &pageChecker{file: s.h.file, size: int64(os.Getpagesize()), end: 1 << 20}
		for {
			page, err := p.read(id)
			if err != nil || pageType(page) == leafPage {
				return err
			}
			id = uint64(page[pageHeader+8]) | uint64(page[pageHeader+9])<<8
		}
	}); err != nil {
		t.Fatal(err)
	}
	return id
}

// TestRepairWithoutRows: where a page of rows cannot be read, nothing is made anew.
func TestRepairWithoutRows(t *testing.T) {
	s, _ := openLogged(t)
	if err := s.Update(t.Context(), func(tx store.Tx) error {
		for i := range 200 {
			tx.Put(numbered(i))
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	name := rowsBucket(1)
	id := leafOf(t, s, name[:])
	raw, err := os.ReadFile(s.path)
	if err == nil {
		copy(raw[int(id)*os.Getpagesize()+pageHeader:], bytes.Repeat([]byte{0xff}, 64))
		err = os.WriteFile(s.path, raw, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	var place []byte
	for range 100 {
		if place, err = s.Repair(t.Context(), place, 20); err != nil {
			break
		}
	}
	if !errors.Is(err, store.ErrDamaged) {
		t.Errorf("Repair = %v", err)
	}
	if err := s.h.db.View(func(tx *bolt.Tx) error {
		if tx.Bucket(rebuildBucket) != nil || tx.Bucket(metaBucket).Get(formatKey)[0] != fileFormat {
			t.Error("a rebuild has begun")
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	for _, place := range [][]byte{{}, {2}, {0}, {1, 1}, {0, 1, 2}, bytes.Repeat([]byte{0}, 19)} {
		if _, err := s.Repair(t.Context(), place, 1); !errors.Is(err, store.ErrInvalid) {
			t.Errorf("from place %v: %v", place, err)
		}
	}
	if _, err := s.Repair(t.Context(), append([]byte{0, 255}, make([]byte, len(uuid.UUID{}))...), 1); err != nil {
		t.Error(err)
	}
}

// TestRepairGivenUp: rows that cannot be reached any more end a repair that is under way. The former
// indexes stay in use, and the file gets its format back.
func TestRepairGivenUp(t *testing.T) {
	s, _ := openLogged(t)
	if err := s.Update(t.Context(), func(tx store.Tx) error {
		for i := range 200 {
			tx.Put(numbered(i))
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	place := []byte{repairWrites} // of an earlier repair: this one begins without a look
	if next, err := s.Repair(t.Context(), place, 20); err != nil || !bytes.Equal(next, place) {
		t.Fatal(next, err)
	}

	name := rowsBucket(1)
	f, err := os.OpenFile(s.path, os.O_RDWR, 0)
	if err == nil {
		_, err = f.WriteAt(bytes.Repeat([]byte{0xff}, 64), int64(leafOf(t, s, name[:]))*int64(os.Getpagesize())+pageHeader)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	for range 100 {
		if place, err = s.Repair(t.Context(), place, 20); err != nil {
			break
		}
	}
	if !errors.Is(err, store.ErrDamaged) {
		t.Fatalf("Repair = %v", err)
	}
	if err := s.h.db.View(func(tx *bolt.Tx) error {
		meta := tx.Bucket(metaBucket)
		if tx.Bucket(rebuildBucket) != nil || meta.Get(formatKey)[0] != fileFormat || meta.Get(rebuildKey) != nil {
			t.Error("the repair is still under way")
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	if err := s.Update(t.Context(), putOne(numbered(1000))); err != nil {
		t.Error(err)
	}
}
