package boltstore_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/boltstore"
	"github.com/google/uuid"
)

// TestHeads: each bit of a head that is flipped, heads that are swapped, and a head of long before are
// damage, since the last transaction may be undone. It is, at most, for who accepts that.
func TestHeads(t *testing.T) {
	page, used := os.Getpagesize(), 80
	path := filepath.Join(t.TempDir(), "s.db")
	open := func(opts *boltstore.Options) (*boltstore.Store, error) {
		return boltstore.Open(t.Context(), path, opts)
	}
	put := func(s *boltstore.Store) {
		t.Helper()
		err := s.Update(t.Context(), func(tx store.Tx) error {
			tx.Put(&store.Record{Kind: 3, ID: uuid.New(), Version: 1})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	count := func(s *boltstore.Store) (n int) {
		t.Helper()
		err := s.View(t.Context(), func(tx store.ReadTx) error {
			all, err := tx.Scan(3, uuid.Nil, 100)
			n = len(all)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	closed := func(s *boltstore.Store) {
		t.Helper()
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}

	s, err := open(nil)
	if err != nil {
		t.Fatal(err)
	}
	var before []byte
	for i := range 9 {
		put(s)
		if i == 3 {
			before, err = os.ReadFile(path)
		}
	}
	closed(s)
	whole, e := os.ReadFile(path)
	if err = errors.Join(err, e); err != nil {
		t.Fatal(err)
	}

	checked := 0
	check := func(what string, damaged []byte) {
		t.Helper()
		checked++
		if err := os.WriteFile(path, damaged, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := open(nil); !errors.Is(err, store.ErrDamaged) || !strings.Contains(err.Error(), "AcceptUndone") {
			t.Errorf("%s: Open = %v", what, err)
			return
		}
		for range 2 { // it is mended
			s, err := open(&boltstore.Options{AcceptUndone: true})
			if err != nil {
				t.Errorf("%s, accepted: Open = %v", what, err)
				return
			}
			if n := count(s); n != 9 && n != 8 {
				t.Errorf("%s: %d records of 9 are left", what, n)
			}
			closed(s)
		}
		s, err := open(nil)
		if err != nil {
			t.Errorf("%s, mended: Open = %v", what, err)
			return
		}
		put(s)
		closed(s)
	}
	for head := range 2 {
		for bit := 16 * 8; bit < used*8; bit += 7 {
			damaged := bytes.Clone(whole)
			damaged[head*page+bit/8] ^= 1 << (bit % 8)
			check("a bit", damaged)
		}
		check("zeros", bytes.Join([][]byte{whole[:head*page], make([]byte, page), whole[(head+1)*page:]}, nil))
		check("a head of long before", bytes.Join([][]byte{whole[:head*page], before[head*page : (head+1)*page], whole[(head+1)*page:]}, nil))
	}
	check("swapped", bytes.Join([][]byte{whole[page : 2*page], whole[:page], whole[2*page:]}, nil))
	t.Logf("%d damaged heads: each is noticed, and mended on demand", checked)
}

// TestHeadWhileOpen: a file whose last head is damaged while it is open does not go on from the
// transaction before.
func TestHeadWhileOpen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.db")
	s, err := boltstore.Open(t.Context(), path, nil)
	if err != nil {
		t.Fatal(err)
	}
	id := uuid.New()
	put := func() error {
		return s.Update(t.Context(), func(tx store.Tx) error {
			tx.Put(&store.Record{Kind: 3, ID: id, Version: 1})
			return nil
		})
	}
	if err := put(); err != nil {
		t.Fatal(err)
	}
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	heads := make([]byte, 2*os.Getpagesize())
	if _, err := file.ReadAt(heads, 0); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil { // it is damaged before the first commit
		t.Fatal(err)
	}
	if s, err = boltstore.Open(t.Context(), path, nil); err != nil {
		t.Fatal(err)
	}
	last := 0
	if at := func(head int) uint64 { return binary.NativeEndian.Uint64(heads[head*len(heads)/2+64:]) }; at(1) > at(0) {
		last = len(heads) / 2
	}
	if _, err := file.WriteAt(make([]byte, 80), int64(last)); err != nil {
		t.Fatal(err)
	}
	err = s.View(t.Context(), func(tx store.ReadTx) error { _, err := tx.Get(3, id); return err })
	if !errors.Is(err, store.ErrDamaged) {
		t.Errorf("View = %v", err)
	}
	if err := put(); !errors.Is(err, store.ErrDamaged) {
		t.Errorf("Update = %v", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if _, err := boltstore.Open(t.Context(), path, nil); !errors.Is(err, store.ErrDamaged) {
		t.Errorf("Open = %v", err)
	}
}
