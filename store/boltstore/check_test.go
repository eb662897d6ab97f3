package boltstore

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	bolt "go.etcd.io/bbolt"

	"github.com/cardvault/cardvault/store"
)

// checked returns what the pieces of a check find, each of at most limit steps.
func checked(t testing.TB, s *Store, limit int) (all []store.Disagreement) {
	t.Helper()
	var place []byte
	for range 100_000 {
		err := s.View(context.Background(), func(tx store.ReadTx) error {
			found, next, err := tx.(store.Checker).Check(place, limit)
			all, place = append(all, found...), next
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		if place == nil {
			return all
		}
	}
	t.Fatal("a check does not end")
	return nil
}

// Each fault of an index is found, and named with its record, however small the pieces are.
func TestCheckPieces(t *testing.T) {
	const n = 60
	account, parent := uuid.UUID{7}, number(99)
	at := func(i int) time.Time { return time.UnixMicro(1e15 + int64(i)).UTC() }
	hash := func(i int) []byte { return []byte{'h', byte(i)} }
	list := keyOfList(1, account, uuid.Nil)
	id := number(5)
	first := func(b *bolt.Bucket, prefix []byte, level byte) (k, v []byte) {
		cur := b.Cursor()
		for k, v = cur.Seek(prefix); k != nil && k[18] != ^level; k, v = cur.Next() {
		}
		return slices.Clone(k), slices.Clone(v)
	}

	for name, plant := range map[string]struct {
		do    func(rows, lists, due, lookup *bolt.Bucket) error
		index store.Index
		fault store.Fault
		none  bool // no record is named
	}{
		"no entry of due": {func(_, _, due, _ *bolt.Bucket) error {
			k := keyOfDue(1, at(5).UnixMicro(), id)
			return due.Delete(k[:])
		}, store.IndexDue, store.FaultMissing, false},
		"another class in due": {func(_, _, due, _ *bolt.Bucket) error {
			k := keyOfDue(1, at(5).UnixMicro(), id)
			v := slices.Clone(due.Get(k[:]))
			v[17]++
			return due.Put(k[:], v)
		}, store.IndexDue, store.FaultMissing, false},
		"a second entry of due": {func(_, _, due, _ *bolt.Bucket) error {
			k, was := keyOfDue(1, at(500).UnixMicro(), id), keyOfDue(1, at(5).UnixMicro(), id)
			return due.Put(k[:], slices.Clone(due.Get(was[:])))
		}, store.IndexDue, store.FaultStray, false},
		"no entry of a hash": {func(_, _, _, lookup *bolt.Bucket) error {
			return lookup.Delete(append(appendLookupKey(nil, 1, hash(5)), id[:]...))
		}, store.IndexLookup, store.FaultMissing, false},
		"a second hash": {func(_, _, _, lookup *bolt.Bucket) error {
			return lookup.Put(append(appendLookupKey(nil, 1, hash(200)), id[:]...), nil)
		}, store.IndexLookup, store.FaultStray, false},
		"a bit of a hash": {func(_, _, _, lookup *bolt.Bucket) error {
			k := append(appendLookupKey(nil, 1, hash(5)), id[:]...)
			err := lookup.Delete(k)
			k[2] ^= 1
			return errors.Join(err, lookup.Put(k, nil))
		}, store.IndexLookup, store.FaultMissing, false},
		"a key of a hash cut short": {func(_, _, _, lookup *bolt.Bucket) error {
			return lookup.Put([]byte{1, 2, 3}, nil)
		}, store.IndexLookup, store.FaultUnreadable, true},
		"a lost row": {func(rows, _, _, _ *bolt.Bucket) error { return rows.Delete(id[:]) }, store.IndexList, store.FaultStray, false},
		"no entry in a list": {func(_, lists, _, _ *bolt.Bucket) error {
			k, v := first(lists, list[:], 1)
			return lists.Put(k, v[:len(v)-entrySize])
		}, store.IndexList, store.FaultMissing, false},
		"a wrong count": {func(_, lists, _, _ *bolt.Bucket) error {
			k, v := first(lists, list[:], 2)
			v[len(v)-1]++
			return lists.Put(k, v)
		}, store.IndexList, store.FaultOrder, true},
		"no block": {func(_, lists, _, _ *bolt.Bucket) error {
			k, _ := first(lists, list[:], 1)
			return lists.Delete(k)
		}, store.IndexList, store.FaultMissing, false},
		"no root": {func(_, lists, _, _ *bolt.Bucket) error {
			k, _ := lists.Cursor().Seek(list[:])
			return lists.Delete(slices.Clone(k))
		}, store.IndexList, store.FaultOrder, true},
		"a node that is none": {func(_, lists, _, _ *bolt.Bucket) error {
			k, _ := first(lists, list[:], 1)
			return lists.Put(k, []byte{255})
		}, store.IndexList, store.FaultUnreadable, true},
		"no bucket": {func(_, _, due, _ *bolt.Bucket) error { return due.Tx().DeleteBucket(dueBucket) }, store.IndexDue, store.FaultUnreadable, true},
	} {
		t.Run(name, func(t *testing.T) {
			s, _ := openLogged(t)
			if err := s.Update(t.Context(), func(tx store.Tx) error {
				for i := 1; i <= n; i++ {
					r := &store.Record{Kind: 1, ID: number(i), Account: account, Class: uint8(1 + i%3), Version: 1, Due: at(i), Lookup: [][]byte{hash(i), hash(i)}}
					if i > 40 {
						r.Parent, r.Class = parent, uint8(i%2)
					}
					tx.Put(r)
				}
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			if found := checked(t, s, 3); len(found) > 0 {
				t.Fatalf("a file that is whole has %v", found)
			}

			rows := rowsBucket(1)
			if err := alter(s, func(tx *bolt.Tx) error {
				return plant.do(tx.Bucket(rows[:]), tx.Bucket(listsBucket), tx.Bucket(dueBucket), tx.Bucket(lookupBucket))
			}); err != nil {
				t.Fatal(err)
			}
			whole := checked(t, s, 1<<20)
			for _, limit := range []int{1, 2, 7} {
				if found := checked(t, s, limit); !slices.Equal(found, whole) {
					t.Errorf("in pieces of %d: %v, at once: %v", limit, found, whole)
				}
			}
			if !slices.ContainsFunc(whole, func(d store.Disagreement) bool {
				return d.Index == plant.index && d.Fault == plant.fault && (plant.none || d.Key.ID != uuid.Nil)
			}) {
				t.Errorf("found %v, want fault %d of %s", whole, plant.fault, plant.index)
			}
			if err := s.Check(t.Context()); !errors.Is(err, store.ErrDamaged) {
				t.Errorf("Check: %v", err)
			}
			if name == "no bucket" { // no Update begins then
				return
			}
			repaired(t, s, nil, 7)
			if found := checked(t, s, 100); len(found) > 0 {
				t.Errorf("after Repair: %v", found)
			}
		})
	}
}

// A key of an index that is out of order, or too long for a place, makes no loop and hides no
// other, however small the pieces are.
func TestCheckOrder(t *testing.T) {
	const n = 60
	hash := func(i int) []byte { return []byte{'h', byte(i), 0} }
	for _, at := range []int{1, 2, 3, 20, 30, 59, 60} {
		for _, to := range []byte{0, 10, 45, 255} {
			s, _ := openLogged(t)
			if err := s.Update(t.Context(), func(tx store.Tx) error {
				for i := 1; i <= n; i++ {
					tx.Put(&store.Record{Kind: 1, ID: number(i), Class: 1, Version: 1, Lookup: [][]byte{hash(i)}})
				}
				return nil
			}); err != nil {
				t.Fatal(err)
			}

			key := append(appendLookupKey(nil, 1, hash(at)), id16(at)...)
			moved := append(appendLookupKey(nil, 1, []byte{'h', to, 1}), id16(at)...)
			raw, err := os.ReadFile(s.path)
			if err != nil || !bytes.Contains(raw, key) {
				t.Fatal("the key is not in the file", err)
			}
			if err := os.WriteFile(s.path, bytes.ReplaceAll(raw, key, moved), 0o600); err != nil {
				t.Fatal(err)
			}
			for _, limit := range []int{1, 2, 7, 1 << 20} {
				found := checked(t, s, limit)
				named := func(f store.Fault) bool {
					return slices.ContainsFunc(found, func(d store.Disagreement) bool {
						return d.Index == store.IndexLookup && d.Fault == f && d.Key.ID == number(at)
					})
				}
				if !named(store.FaultStray) && !named(store.FaultMissing) {
					t.Errorf("entry %d is at %d, in pieces of %d: %v", at, to, limit, found)
				}
			}
		}
	}

	s, _ := openLogged(t)
	if err := alter(s, func(tx *bolt.Tx) error {
		return tx.Bucket(lookupBucket).Put(bytes.Repeat([]byte{1}, 200), nil)
	}); err != nil {
		t.Fatal(err)
	}
	if found := checked(t, s, 1); len(found) != 1 {
		t.Errorf("a long key: %v", found)
	}
}

func id16(i int) []byte { id := number(i); return id[:] }

// A place that Check did not return, and a file with any byte changed, make no panic and no
// loop.
func TestCheckAnything(t *testing.T) {
	random := rand.New(rand.NewPCG(25, 3))
	s, _ := openLogged(t)
	if err := s.Update(t.Context(), func(tx store.Tx) error {
		for i := 1; i <= 200; i++ {
			tx.Put(&store.Record{Kind: store.Kind(1 + i%3), ID: number(i), Account: uuid.UUID{byte(i % 5)}, Class: uint8(i % 4), Version: 1, Due: time.UnixMicro(int64(i)), Lookup: [][]byte{{byte(i)}}, Shown: make([]byte, i)})
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	for range 2000 {
		place := make([]byte, random.IntN(40))
		for i := range place {
			place[i] = byte(random.IntN(6))
		}
		if err := s.View(t.Context(), func(tx store.ReadTx) error {
			_, _, err := tx.(store.Checker).Check(place, 10)
			return err
		}); err != nil && !errors.Is(err, store.ErrInvalid) {
			t.Errorf("place %v: %v", place, err)
		}
	}

	found := 0
	for range 300 {
		name := [][]byte{listsBucket, dueBucket, lookupBucket, {'r', 'o', 'w', 's', 1}}[random.IntN(4)]
		var k, was []byte
		if err := alter(s, func(tx *bolt.Tx) error {
			b := tx.Bucket(name)
			at := random.IntN(max(1, b.Inspect().KeyN))
			cur := b.Cursor()
			ck, cv := cur.First()
			for range at {
				if nk, nv := cur.Next(); nk != nil {
					ck, cv = nk, nv
				}
			}
			k, was = slices.Clone(ck), slices.Clone(cv)
			v := slices.Clone(cv)
			if len(v) == 0 {
				v = []byte{1}
			} else {
				v[random.IntN(len(v))] = byte(random.Uint32())
			}
			return b.Put(k, v)
		}); err != nil {
			t.Fatal(err)
		}
		if len(checked(t, s, 64)) > 0 {
			found++
		}
		if err := alter(s, func(tx *bolt.Tx) error { return tx.Bucket(name).Put(k, was) }); err != nil {
			t.Fatal(err)
		}
	}
	if found == 0 {
		t.Error("nothing was found")
	}
	if all := checked(t, s, 64); len(all) > 0 {
		t.Errorf("in the end: %v", all)
	}
}
