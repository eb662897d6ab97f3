package boltstore

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/cardvault/cardvault/store"
)

// A row is the value of a record, read where it lies:
//
//	rowFormat, class, flags, [account], [parent], [due], version,
//	lookups as (length, bytes), length of shown, shown, secret
//
// Version and the length of shown are uvarints. The flags say which of the
// optional columns are there and, from the fourth bit on, how many lookups.
type row struct {
	raw             []byte // nil: there is no such record
	class           uint8
	account, parent uuid.UUID
	hasDue          bool
	due             int64 // microseconds since 1970
	version         uint64
	lookups         []byte
	lookupCount     int
	shown, secret   []byte
}

const (
	rowFormat = 1

	rowAccount = 1 << 0
	rowParent  = 1 << 1
	rowDue     = 1 << 2
	rowLookups = 3 // shift

	maxRow = store.MaxRecord + 128 // bytes of the largest row
)

var errRow = fmt.Errorf("%w: a row is not in the format of rows", store.ErrDamaged)

// A slab holds the rows that are put in a transaction. The writing goroutine uses it again once
// that is committed: then the rows are in the file, and nothing refers to the slab.
type slab []byte

const slabSize = 64 << 10

// room returns an empty slice for a row of at most size bytes.
func (s *slab) room(size int) []byte {
	if cap(*s)-len(*s) < size {
		*s = make(slab, 0, max(slabSize, size))
	}
	from := len(*s)
	*s = (*s)[:from+size]
	return (*s)[from:from:len(*s)]
}

// encodeRow returns the row of r in s, or nil if r breaks a rule of [store.Record].
func encodeRow(r *store.Record, s *slab) []byte {
	size := len(r.Shown) + len(r.Secret)
	for _, hash := range r.Lookup {
		if len(hash) > store.MaxLookup {
			return nil
		}
		size += len(hash)
	}

	if r.Kind == 0 || r.ID == uuid.Nil || len(r.Lookup) > store.MaxLookups || size > store.MaxRecord {
		return nil
	}
	b := s.room(size + 64 + len(r.Lookup))
	b = append(b, rowFormat, r.Class, byte(len(r.Lookup))<<rowLookups)
	if r.Account != uuid.Nil {
		b[2] |= rowAccount
		b = append(b, r.Account[:]...)
	}
	if r.Parent != uuid.Nil {
		b[2] |= rowParent
		b = append(b, r.Parent[:]...)
	}
	if !r.Due.IsZero() {
		b[2] |= rowDue
		b = binary.BigEndian.AppendUint64(b, uint64(r.Due.UnixMicro()))
	}

	b = binary.AppendUvarint(b, r.Version)
	for _, hash := range r.Lookup {
		b = append(b, byte(len(hash)))
		b = append(b, hash...)
	}
	b = binary.AppendUvarint(b, uint64(len(r.Shown)))
	b = append(b, r.Shown...)
	return append(b, r.Secret...)
}

// decodeRow reads a row, which stays in raw.
func decodeRow(raw []byte) (r row, err error) {
	if len(raw) < 3 || len(raw) > maxRow || raw[0] != rowFormat {
		return row{}, errRow
	}
	r.raw, r.class = raw, raw[1]
	flags, rest := raw[2], raw[3:]
	take := func(n int) []byte {
		if n > len(rest) {
			err, n = errRow, 0
		}
		b := rest[:n]
		rest = rest[n:]
		return b
	}

	number := func() uint64 {
		v, n := binary.Uvarint(rest)
		if n <= 0 {
			err, n = errRow, 0
		}
		rest = rest[n:]
		return v
	}

	if flags&rowAccount != 0 {
		copy(r.account[:], take(16))
	}
	if flags&rowParent != 0 {
		copy(r.parent[:], take(16))
	}
	if flags&rowDue != 0 {
		if b := take(8); err == nil {
			r.hasDue, r.due = true, int64(binary.BigEndian.Uint64(b))
		}
	}

	r.version = number()
	r.lookups, r.lookupCount = rest, int(flags>>rowLookups)
	for range r.lookupCount {
		if n := take(1); err == nil {
			take(int(n[0]))
		}
	}

	r.lookups = r.lookups[:len(r.lookups)-len(rest)]
	r.shown = take(int(min(number(), maxRow)))
	r.secret = rest
	if err != nil {
		return row{}, err
	}
	return r, nil
}

// eachLookup calls f with every lookup hash.
func (r *row) eachLookup(f func(hash []byte)) {
	for rest := r.lookups; len(rest) > 0; rest = rest[1+rest[0]:] {
		f(rest[1 : 1+rest[0]])
	}
}

// record returns a copy of the row that holds no reference to it.
func (r *row) record(kind store.Kind, id uuid.UUID, secret bool) *store.Record {
	rec := new(store.Record)
	r.copyTo(rec, make([]byte, 0, r.copied(secret)), kind, id, secret)
	return rec
}

// copied returns how many bytes a copy has beside its record.
func (r *row) copied(secret bool) int {
	size := len(r.lookups) + len(r.shown)
	if secret {
		size += len(r.secret)
	}
	return size
}

// copyTo makes rec a copy of the row: the bytes in one piece appended to b, cut so that
// appending to one column cannot reach the next.
func (r *row) copyTo(rec *store.Record, b []byte, kind store.Kind, id uuid.UUID, secret bool) {
	*rec = store.Record{
		Kind: kind, ID: id, Account: r.account, Parent: r.parent, Class: r.class, Version: r.version,
	}
	if r.hasDue {
		rec.Due = time.UnixMicro(r.due).UTC()
	}

	add := func(column []byte) []byte {
		if len(column) == 0 {
			return nil
		}
		b = append(b, column...)
		return b[len(b)-len(column) : len(b) : len(b)]
	}

	if r.lookupCount > 0 {
		rec.Lookup = make([][]byte, 0, r.lookupCount)
		r.eachLookup(func(hash []byte) { rec.Lookup = append(rec.Lookup, add(hash)) })
	}
	rec.Shown = add(r.shown)
	if secret {
		rec.Secret = add(r.secret)
	}
}

// copies are the records of a list, made in a few pieces: most have the same size.
type copies struct {
	records []store.Record
	bytes   []byte
}

// newCopies returns room for a piece of a list of n records.
func newCopies(n int) *copies { return &copies{records: make([]store.Record, 0, min(n, 64))} }

// next returns the next record.
func (c *copies) next() *store.Record {
	n := len(c.records)
	if n == cap(c.records) {
		c.records, n = make([]store.Record, 0, n), 0
	}
	c.records = c.records[:n+1]
	return &c.records[n]
}

// room returns an empty slice for the bytes of the next record.
func (c *copies) room(size int) []byte {
	if len(c.bytes) < size {
		c.bytes = make([]byte, size*(cap(c.records)-len(c.records)+1))
	}
	b := c.bytes[:0:size]
	c.bytes = c.bytes[size:]
	return b
}

// hasLookup reports whether hash is one of the row's lookups.
func (r *row) hasLookup(hash []byte) (found bool) {
	r.eachLookup(func(h []byte) { found = found || bytes.Equal(h, hash) })
	return found
}

// lapsed reports whether q.Live leaves the row out.
func (r *row) lapsed(q *store.Query) bool {
	return !q.Live.IsZero() && r.hasDue && r.due <= q.Live.UnixMicro()
}

// A listKey names a list: a tag that separates parents from accounts, their id, and a kind.
// It is the prefix of the keys of its nodes.
type listKey [18]byte

const (
	ofParent  = 1
	ofAccount = 2
)

func keyOfList(kind store.Kind, account, parent uuid.UUID) (k listKey) {
	k[0] = ofAccount
	copy(k[1:], account[:])
	if parent != uuid.Nil {
		k[0] = ofParent
		copy(k[1:], parent[:])
	}
	k[17] = byte(kind)
	return k
}

// A dueKey is kind, due in an order-preserving form, and id. Its value is the
// list without its kind, and the class.
type dueKey [1 + 8 + 16]byte

func keyOfDue(kind store.Kind, due int64, id uuid.UUID) (k dueKey) {
	k[0] = byte(kind)
	binary.BigEndian.PutUint64(k[1:], uint64(due)^1<<63)
	copy(k[9:], id[:])
	return k
}

// listOfDue returns the list that the value of a dueKey names.
func listOfDue(kind store.Kind, v []byte) listKey {
	list := listKey(v)
	list[17] = byte(kind)
	return list
}

func dueOfKey(k []byte) int64 { return int64(binary.BigEndian.Uint64(k[1:]) ^ 1<<63) }

// appendLookupKey appends kind, length of hash and hash; the key goes on with
// the id.
func appendLookupKey(b []byte, kind store.Kind, hash []byte) []byte {
	b = append(b, byte(kind), byte(len(hash)))
	return append(b, hash...)
}
