package boltstore

import (
	"errors"
	"path/filepath"
	"testing"

	"github.com/google/uuid"
	bolt "go.etcd.io/bbolt"

	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/storetest"
)

func TestStore(t *testing.T) { storetest.Run(t, harness) }

var harness = storetest.Harness{
	Open: func(t testing.TB) store.Store {
		s, err := Open(t.Context(), filepath.Join(t.TempDir(), "vault.db"), nil)
		if err != nil {
			t.Fatal(err)
		}
		return s
	},
	Reopen: func(t testing.TB, s store.Store) (store.Store, error) { return whole(t, s.(*Store).path) },
	Second: func(t testing.TB, s store.Store) (store.Store, error) { return whole(t, s.(*Store).path) },
	Crash: func(t testing.TB, s store.Store) (store.Store, error) {
		still(t, s.(*Store))
		dir, name := filepath.Split(s.(*Store).path)
		return whole(t, filepath.Join(storetest.AfterPowerCut(t, dir), name))
	},
	Place: func(s store.Store) string { return s.(*Store).path },
	Fault: func(t testing.TB, s store.Store, f storetest.Fault) (mend func()) { return fault(t, s.(*Store), f) },
}

// whole opens a file, and checks all of it.
func whole(t testing.TB, path string) (store.Store, error) {
	s, err := Open(t.Context(), path, &Options{LockTimeout: -1})
	if err != nil {
		return nil, err
	}
	if err := s.Check(t.Context()); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// still has a store write nothing but what it is told to, so that its file can be copied.
func still(t testing.TB, s *Store) {
	t.Helper()
	for busy := true; busy; {
		if err := s.Update(t.Context(), func(store.Tx) error {
			s.config.scrubPause, s.scrub = 0, scrub{timer: s.scrub.timer}
			s.config.wasteful, s.wasteful = nil, false
			busy = s.copying != nil
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
}

func fault(t testing.TB, s *Store, f storetest.Fault) (mend func()) {
	room := func(size int) {
		// Only the writing goroutine looks at these.
		if err := s.Update(t.Context(), func(store.Tx) error {
			s.h.db.MaxSize, s.config.maxSize = size, size
			if c := s.copying; c != nil {
				if <-c.ready; c.copy != nil {
					c.copy.db.MaxSize = size
				}
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}

	// A copy of the file would not have the fault.
	if err := s.Update(t.Context(), func(store.Tx) error {
		if f.Kind != storetest.NoRoom {
			s.config.wasteful, s.wasteful = nil, false
			<-s.dropCopy()
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}

	switch f.Kind {
	case storetest.NoRoom:
		room(1)
		return func() { room(0) }
	case storetest.LostAnswer:
		if err := s.h.file.Close(); err != nil {
			t.Fatal(err)
		}
		return func() {}
	case storetest.DamagedRecord:
		name := rowsBucket(f.Record.Kind)
		err := alter(s, func(tx *bolt.Tx) error { return tx.Bucket(name[:]).Put(f.Record.ID[:], []byte("damaged")) })
		if err != nil {
			t.Fatal(err)
		}
		return func() {}
	case storetest.LostRecord:
		name := rowsBucket(f.Record.Kind)
		if err := alter(s, func(tx *bolt.Tx) error { return tx.Bucket(name[:]).Delete(f.Record.ID[:]) }); err != nil {
			t.Fatal(err)
		}
		return func() {}
	case storetest.DamagedIndexes:
		if err := alter(s, func(tx *bolt.Tx) error { return unlead(tx, s.config, f.Record) }); err != nil {
			t.Fatal(err)
		}
		return func() {}
	}
	return nil
}

// unlead has the indexes of a file lead to another record, which is not there.
func unlead(tx *bolt.Tx, c config, k store.Key) error {
	name := rowsBucket(k.Kind)
	r, err := decodeRow(tx.Bucket(name[:]).Get(k.ID[:]))
	if err != nil {
		return err
	}
	var x indexes
	x.begin(tx.Bucket, c.fanout, nil)
	other := k.ID
	other[10] ^= 0xff
	for id, by := range map[uuid.UUID][2]row{k.ID: {r, {}}, other: {{}, r}} {
		x.setList(k.Kind, id, &by[0], &by[1])
		x.setDue(k.Kind, id, &by[0], &by[1])
		x.setLookups(k.Kind, id, &by[0], &by[1])
	}
	x.lister.flush()
	return nil
}

// A store that does not sync would be noticed.
func TestPowerCutTells(t *testing.T) {
	for range 5 { // the system may write to the disk by itself
		if losesUnsynced(t) {
			return
		}
	}
	t.Error("an unsynced record has survived each power loss")
}

// losesUnsynced reports whether a power loss takes a record from a store that does not
// sync.
func losesUnsynced(t *testing.T) bool {
	t.Helper()
	c := defaults
	c.noSync = true
	s := openSmall(t, c)
	if err := s.Update(t.Context(), putOne(numbered(1))); err != nil {
		t.Fatal(err)
	}

	left, err := whole(t, filepath.Join(storetest.AfterPowerCut(t, filepath.Dir(s.path)), "vault.db"))
	kept := err == nil && has(t, left.(*Store), 1)
	if err == nil {
		err = left.Close()
	}
	if err != nil && !errors.Is(err, store.ErrDamaged) {
		t.Error(err)
	}
	return !kept
}

// alter changes the file behind the store's back.
func alter(s *Store, fn func(*bolt.Tx) error) error {
	tx, err := s.h.begin(true)
	if err != nil {
		return err
	}
	defer s.h.rollback(tx)
	if err := fn(tx); err != nil {
		return err
	}
	return tx.Commit()
}
