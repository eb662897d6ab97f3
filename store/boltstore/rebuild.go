package boltstore

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"fmt"

	"github.com/google/uuid"
	bolt "go.etcd.io/bbolt"

	"github.com/cardvault/cardvault/store"
)

// A rebuild makes all indexes anew, beside those that are read, and then puts them in their
// place. Each transaction adds the entries of a few rows. From then on a write of such a row
// changes both sets of indexes, so at the end the new ones agree with all rows.
//
// A damaged page of the former indexes is never written or freed: bbolt would trust it. They are
// moved to a bucket that nothing reads, and that a compaction leaves out of its copy.

var (
	rebuildBucket = []byte("rebuild") // the new indexes, under the names of the present ones
	rebuildKey    = []byte("rebuild") // in the bucket meta → phase, kind, last key; absent: no rebuild is under way
	spentBucket   = []byte("spent")   // number → bucket with former indexes
)

var indexNames = [][]byte{listsBucket, dueBucket, lookupBucket}

// The phases of a rebuild. In those of the former indexes, entries of rows that cannot be read
// are copied: such a row does not say where it is listed.
const (
	rebuildRows byte = iota
	rebuildLists
	rebuildDue
	rebuildLookups
	rebuildEnd
)

const rebuildLimit = 256 // rows of a transaction, or entries that it looks at

// A rebuild belongs to the writing goroutine, and is read from the file in each transaction.
type rebuild struct {
	indexes
	under bool // way
	spent bool // there are former indexes

	phase byte
	kind  store.Kind // of the rows
	last  []byte     // key up to which all are done in the phase
}

func (b *rebuild) begin(tx *bolt.Tx, f fanout) {
	b.spent = tx.Bucket(spentBucket) != nil
	place := bucket(tx, metaBucket).Get(rebuildKey)
	b.under = place != nil
	if !b.under {
		return
	}
	if len(place) < 2 {
		panic(failed{errBuckets})
	}
	b.indexes.begin(bucket(tx, rebuildBucket).Bucket, f, nil)
	b.phase, b.kind, b.last = place[0], store.Kind(place[1]), nil
	if len(place) > 2 {
		b.last = bytes.Clone(place[2:])
	}
}

// flush writes the nodes of lists that have changed.
func (w *writer) flush() {
	w.lister.flush()
	if w.rebuild.under {
		w.rebuild.lister.flush()
	}
}

// set is called when a row is replaced.
func (b *rebuild) set(kind store.Kind, id uuid.UUID, old, new *row) {
	if !b.under || b.phase == rebuildRows && (kind > b.kind || kind == b.kind && bytes.Compare(id[:], b.last) > 0) {
		return // the row is not in the new indexes yet
	}
	b.replace(kind, id, old, new)
}

func (b *rebuild) replace(kind store.Kind, id uuid.UUID, old, new *row) {
	if !old.listed() || !new.listed() || old.class != new.class {
		if old.listed() {
			list := keyOfList(kind, old.account, old.parent)
			if class, found := b.lister.classOf(list, id); found {
				b.lister.remove(list, id, class)
			}
		}
		if new.listed() {
			b.insert(keyOfList(kind, new.account, new.parent), id, new.class)
		}
	}
	b.setDue(kind, id, old, new)
	b.setLookups(kind, id, old, new)
}

// insert adds an entry to a list, unless one of the id is there.
func (b *rebuild) insert(list listKey, id uuid.UUID, class uint8) {
	if _, found := b.lister.classOf(list, id); !found {
		b.lister.insert(list, id, class)
	}
}

// A place of Repair is a stage, and the kind and id of a row in the first.
const (
	repairLooks byte = iota // whether all rows can be known
	repairWrites
)

// Repair implements [store.Repairer]. While it is under way, the file cannot be opened by programs
// of before it. Former indexes stay in the file until it is compacted, which a Repair has done
// as soon as the folder has room.
func (s *Store) Repair(ctx context.Context, place []byte, limit int) (next []byte, err error) {
	limit = max(1, min(limit, rebuildLimit))
	switch {
	case place == nil:
		return s.lookAtRows(ctx, 0, nil, limit)
	case len(place) == 1 && place[0] == repairWrites:
	case (len(place) == 2 || len(place) == 18) && place[0] == repairLooks:
		return s.lookAtRows(ctx, store.Kind(place[1]), place[2:], limit)
	default:
		return nil, store.ErrInvalid
	}

	done := false
	var unknown error
	err = s.queue.Do(store.Patient(ctx), &call{part: func() error {
		done, unknown = s.rebuildPart(limit)
		return nil
	}})
	if err = cmp.Or(err, unknown); err != nil || done {
		return nil, err
	}
	return place, nil
}

// lookAtRows looks whether bbolt can reach all rows, from one on: an index without the others
// would hide these. It returns the next place.
func (s *Store) lookAtRows(ctx context.Context, kind store.Kind, last []byte, limit int) (next []byte, err error) {
	err = s.View(ctx, func(tx store.ReadTx) error {
		return guarded(func() error {
			next = []byte{repairWrites}
			r := tx.(*reader)
			if bucket(r.tx, metaBucket).Get(rebuildKey) != nil {
				return nil // it goes on
			}
			walked, err := eachRow(r.tx, kind, last, limit, func(store.Kind, uuid.UUID, []byte) {})
			if walked != nil {
				next = append([]byte{repairLooks}, walked...)
			}
			return err
		})
	})
	return next, err
}

// eachRow calls f with at most limit rows after one, and returns the kind and id of the last, nil
// if there are no more. It returns an error where rows may be passed over.
func eachRow(tx *bolt.Tx, kind store.Kind, last []byte, limit int, f func(store.Kind, uuid.UUID, []byte)) (walked []byte, err error) {
	unknown := func(cause error) error {
		return fmt.Errorf("%w: not all rows of kind %d can be found: restore a backup", cause, kind)
	}
	for ; ; kind, last = kind+1, nil {
		name := rowsBucket(kind)
		if rows := tx.Bucket(name[:]); rows != nil {
			err := guarded(func() error {
				return eachAfter(rows, last, func(k, v []byte) (more bool) {
					if len(k) != len(uuid.UUID{}) {
						panic(failed{errRow})
					}
					last = bytes.Clone(k)
					f(kind, uuid.UUID(k), v)
					limit--
					return limit > 0
				})
			})

			switch {
			case err != nil:
				return nil, unknown(err)
			case limit <= 0:
				return append([]byte{byte(kind)}, last...), nil
			}
		}

		if kind == 255 {
			return nil, nil
		}
	}
}

// eachAfter calls f with the entries of a bucket after a key, until it returns false. It returns
// an error for a key that is out of order: no search finds that, or those beside it.
func eachAfter(b *bolt.Bucket, last []byte, f func(k, v []byte) (more bool)) error {
	cur := b.Cursor()
	k, v := cur.Seek(last)
	if bytes.Equal(k, last) {
		k, v = cur.Next()
	}

	for more := true; k != nil && more; k, v = cur.Next() {
		if bytes.Compare(k, last) <= 0 {
			return errIndex
		}
		last = bytes.Clone(k)
		more = f(k, v)
	}
	return nil
}

// runPart runs a part of a rebuild, which has a group of its own.
func (s *Store) runPart(c *call) {
	g := &s.group
	if len(g.calls) > 1 {
		g.calls = g.calls[:len(g.calls)-1]
		s.again([]*call{c})
		return
	}
	c.Alone = true // no other call comes into the group
	if err := guarded(c.part); err != nil {
		s.drop(c, err)
		return
	}
	c.wrote, g.w.wrote = true, true
}

// rebuildPart does the next part of a rebuild in the transaction of the group, or begins one. If not
// all rows can be known, it gives the rebuild up, and returns an error.
func (s *Store) rebuildPart(limit int) (done bool, err error) {
	w := &s.group.w
	b := &w.rebuild
	if !b.under {
		s.dropCopy() // the new file would not have the new indexes
		s.sample, s.wasteful = sample{}, false
		w.beginRebuild()
		return false, nil
	}

	switch b.phase {
	case rebuildRows:
		var walked []byte
		var read []func()
		walked, err = eachRow(w.tx, b.kind, b.last, limit, func(kind store.Kind, id uuid.UUID, raw []byte) {
			if r, err := decodeRow(raw); err == nil {
				read = append(read, func() { b.replace(kind, id, &row{}, &r) })
			}
		})
		if err != nil {
			w.giveUpRebuild()
			return false, err
		}
		for _, replace := range read {
			replace()
		}
		if walked == nil {
			walked = []byte{0}
			b.phase++
		}
		b.kind, b.last = store.Kind(walked[0]), walked[1:]
	case rebuildEnd:
		w.endRebuild()
		return true, nil
	default:
		w.keepUnreadable(limit)
	}
	check(bucket(w.tx, metaBucket).Put(rebuildKey, append([]byte{b.phase, byte(b.kind)}, b.last...)))
	return false, nil
}

func (w *writer) beginRebuild() {
	fresh, err := w.tx.CreateBucket(rebuildBucket)
	check(err)
	for _, name := range indexNames {
		_, err := fresh.CreateBucket(name)
		check(err)
	}
	meta := bucket(w.tx, metaBucket)
	check(meta.Put(rebuildKey, []byte{rebuildRows, 0}))
	check(meta.Put(formatKey, []byte{rebuildFormat}))
}

// endRebuild puts the new indexes in the place of the former ones. All of these have been written
// by transactions of before: bbolt moves what the file has.
func (w *writer) endRebuild() {
	former, fresh := w.setAside(), bucket(w.tx, rebuildBucket)
	for _, name := range indexNames {
		check(w.tx.MoveBucket(name, nil, former))
		check(w.tx.MoveBucket(name, fresh, nil))
	}
	w.forgetRebuild()

	w.kinds = w.kinds[:0]
	for kind := range 256 { // an index may lead to other records now
		w.kinds = append(w.kinds, store.Kind(kind))
	}
}

// giveUpRebuild leaves the former indexes in their place. To free the new ones here would take as
// long as they are large. They have not been written in this transaction: see endRebuild.
func (w *writer) giveUpRebuild() {
	unfinished, fresh := w.setAside(), bucket(w.tx, rebuildBucket)
	for _, name := range indexNames {
		check(w.tx.MoveBucket(name, fresh, unfinished))
	}
	w.forgetRebuild()
	w.rebuild.under = false
}

// setAside returns a new bucket for indexes that nothing reads.
func (w *writer) setAside() *bolt.Bucket {
	spent, err := w.tx.CreateBucketIfNotExists(spentBucket)
	check(err)
	number, err := spent.NextSequence()
	check(err)
	b, err := spent.CreateBucket(binary.BigEndian.AppendUint64(nil, number))
	check(err)
	return b
}

// forgetRebuild ends a rebuild whose indexes were moved elsewhere.
func (w *writer) forgetRebuild() {
	check(w.tx.DeleteBucket(rebuildBucket))
	meta := bucket(w.tx, metaBucket)
	check(meta.Delete(rebuildKey))
	check(meta.Put(formatKey, []byte{fileFormat}))
}

// An entry of an index leads to a row that cannot be read.
type unreadableEntry struct {
	list       listKey // of a list
	id         uuid.UUID
	class      uint8
	key, value []byte // of another index
}

// keepUnreadable copies entries of a former index that lead to rows that cannot be read, from
// about limit entries. What cannot be read itself is passed over.
func (w *writer) keepUnreadable(limit int) {
	b := &w.rebuild
	var kept []unreadableEntry
	ended := true
	// Former indexes are only read here: where one is damaged, nothing else has been done.
	_ = guarded(func() error {
		return eachAfter(bucket(w.tx, indexNames[b.phase-rebuildLists]), b.last, func(k, v []byte) (more bool) {
			_ = guarded(func() error { kept = w.unreadable(kept, k, v); return nil })
			b.last = bytes.Clone(k)
			limit -= 1 + len(v)/entrySize
			ended = limit > 0
			return ended
		})
	})

	for _, e := range kept {
		switch b.phase {
		case rebuildLists:
			b.insert(e.list, e.id, e.class)
		case rebuildDue:
			b.due.put(e.key, e.value)
		default:
			b.lookup.put(e.key, nil)
		}
	}
	if ended {
		b.phase, b.last = b.phase+1, nil
	}
}

// unreadable adds the entries of a key that lead to rows that cannot be read.
func (w *writer) unreadable(kept []unreadableEntry, k, v []byte) []unreadableEntry {
	exists := func(kind store.Kind, id uuid.UUID) bool {
		_, legible := w.legible(kind, id)
		return !legible
	}

	switch {
	case w.rebuild.phase == rebuildLists:
		if len(k) != len(nodeKey{}) || k[18] != ^byte(1) {
			return kept
		}

		list := listKey(k[:18])
		_, entries := decodeNode(1, v, func(uint8, int64) {})
		for i := range entries.len() {
			if id := entries.id(i); exists(store.Kind(list[17]), id) {
				kept = append(kept, unreadableEntry{list: list, id: id, class: entries.class(i)})
			}
		}

	case w.rebuild.phase == rebuildDue && len(k) == len(dueKey{}) && len(v) == 18,
		w.rebuild.phase == rebuildLookups && len(k) >= 2 && len(k) == 2+int(k[1])+16:
		if exists(store.Kind(k[0]), uuid.UUID(k[len(k)-16:])) {
			kept = append(kept, unreadableEntry{key: bytes.Clone(k), value: bytes.Clone(v)})
		}
	}
	return kept
}
