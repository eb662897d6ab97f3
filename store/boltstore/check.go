package boltstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"

	"github.com/google/uuid"
	bolt "go.etcd.io/bbolt"

	"github.com/cardvault/cardvault/store"
)

// maxFindings bounds the report of one Check.
const maxFindings = 20

// checkSteps is how many rows and entries Check compares at a time.
const checkSteps = 1024

// Check reads the whole file and reports faults in the pages of bbolt, and indexes that do
// not agree with the rows. Its error wraps store.ErrDamaged for each of the first 20
// findings. Check cannot judge the content of a sealed column. Updates wait until it has
// returned.
func (s *Store) Check(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	h, reading, err := s.use()
	if err != nil {
		return err
	}
	defer h.done(reading)

	// bbolt's own check requires that there are no other writers.
	tx, err := h.begin(true)
	if err != nil {
		return err
	}
	defer h.rollback(tx)

	// bbolt's check runs in a goroutine that cannot be guarded: it comes last.
	err = guarded(func() error { return checkPages(h.file, tx, true) })
	if err != nil {
		return err
	}

	var findings []error
	report := func(text string, args ...any) {
		findings = append(findings, fmt.Errorf("%w: %s", store.ErrDamaged, fmt.Sprintf(text, args...)))
	}
	for at := firstPlace; at != nil && len(findings) < maxFindings; {
		if err := ctx.Err(); err != nil {
			return err
		}
		c := &checker{tx: tx, fanout: s.config.fanout, left: checkSteps, unreadable: true}
		at = c.from(at)
		for _, d := range c.found[:min(len(c.found), maxFindings-len(findings))] {
			report("kind %d, index %s: %s", d.Key.Kind, d.Index, faultTexts[d.Fault])
		}
	}
	if len(findings) == 0 {
		for err := range tx.Check(bolt.WithKVStringer(silent{})) {
			if len(findings) < maxFindings {
				report("%v", err)
			}
		}
	}
	return errors.Join(findings...)
}

var faultTexts = map[store.Fault]string{
	store.FaultMissing:    "a row is not in it",
	store.FaultStray:      "an entry has no row",
	store.FaultOrder:      "it is out of order or counts wrongly",
	store.FaultUnreadable: "a part is not in the expected format",
}

// silent keeps keys, which have hashes in them, out of errors.
type silent struct{}

func (silent) KeyToString([]byte) string   { return "…" }
func (silent) ValueToString([]byte) string { return "…" }

// A place is a phase, the kind of the rows in the first phase, and the last key that was
// looked at, if any.
const (
	phaseRows byte = iota
	phaseLists
	phaseDue
	phaseLookups
	phases
)

var firstPlace = []byte{phaseRows, 0}

// maxPlace bounds a place: the longest key is one of a lookup.
const maxPlace = 2 + 2 + store.MaxLookup + 16

// Check implements [store.Checker].
func (r *reader) Check(place []byte, limit int) (found []store.Disagreement, next []byte, err error) {
	r.mustLive()
	if place == nil {
		place = firstPlace
	}
	if len(place) < 2 || len(place) > maxPlace || place[0] >= phases {
		return nil, nil, store.ErrInvalid
	}
	if r.lister != nil {
		r.lister.flush()
	}
	c := &checker{tx: r.tx, fanout: r.fanout, left: max(1, limit)}
	next = c.from(place)
	return c.found, next, nil
}

// A checker compares rows with the entries that they require of each index, and entries with
// their rows. All of that is local to one row or node, so it can be done piece by piece, in
// one transaction each: counts of a node are compared with those of the nodes right below it.
type checker struct {
	tx         *bolt.Tx
	fanout     fanout
	left       int  // rows and entries to look at
	unreadable bool // report rows that cannot be read, too
	found      []store.Disagreement
	lists      lister
}

// from looks at some rows and entries from a place on, and returns the next place.
func (c *checker) from(place []byte) (next []byte) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	phase, kind, last := place[0], place[1], place[2:]
	for ; phase < phases; phase, kind, last = phase+1, 0, nil {
		for {
			if last = c.phase(phase, kind, last); last != nil {
				return append([]byte{phase, kind}, last...)
			}
			if phase != phaseRows || kind == 255 {
				break
			}
			kind++
		}
	}
	return nil
}

// phase looks at the keys of one bucket after the last one. It returns nil after the last of
// all, also if the rest of the bucket cannot be read.
func (c *checker) phase(phase, kind byte, last []byte) []byte {
	index := [phases]store.Index{store.IndexRows, store.IndexList, store.IndexDue, store.IndexLookup}[phase]
	err := guarded(func() (err error) {
		last, err = c.bucket(phase, store.Kind(kind), last)
		return err
	})
	if err != nil {
		c.report(index, store.FaultUnreadable, store.Kind(kind), uuid.Nil, uuid.Nil)
		return nil
	}
	return last
}

func (c *checker) bucket(phase byte, kind store.Kind, last []byte) ([]byte, error) {
	rows := rowsBucket(kind)
	name := [phases][]byte{rows[:], listsBucket, dueBucket, lookupBucket}[phase]
	b := c.tx.Bucket(name)
	switch {
	case b == nil && phase == phaseRows:
		return nil, nil
	case b == nil:
		return nil, errBuckets
	case c.left <= 0:
		return nonNil(last), nil
	}
	c.lists.begin(c.tx.Bucket, c.fanout, nil)
	look := [phases]func(store.Kind, []byte, []byte){c.row, c.node, c.due, c.lookup}[phase]
	index := [phases]store.Index{store.IndexRows, store.IndexList, store.IndexDue, store.IndexLookup}[phase]

	cur := b.Cursor()
	k, v := cur.Seek(last)
	if last != nil && bytes.Equal(k, last) {
		k, v = cur.Next()
	}
	before := last
	for ; k != nil; k, v = cur.Next() {
		// A key that is out of order is no place: from there, Seek would come back or go too far.
		rises := last == nil || bytes.Compare(last, k) < 0
		if c.left--; c.left < 0 && rises && len(last)+2 <= maxPlace && (before == nil || bytes.Compare(before, last) < 0) {
			return nonNil(last), nil
		}
		if !rises {
			c.report(index, store.FaultUnreadable, kind, uuid.Nil, uuid.Nil)
		}
		last = bytes.Clone(k)
		if err := guarded(func() error { look(kind, k, v); return nil }); err != nil {
			c.report(index, store.FaultUnreadable, kind, uuid.Nil, uuid.Nil)
		}
	}
	return nil, nil
}

// nonNil returns a key, empty but not nil for none: a place before the first key.
func nonNil(key []byte) []byte { return append([]byte{}, key...) }

func (c *checker) report(index store.Index, fault store.Fault, kind store.Kind, id, account uuid.UUID) {
	c.found = append(c.found, store.Disagreement{Index: index, Fault: fault, Key: store.Key{Kind: kind, ID: id}, Account: account})
}

// accountOf returns the account that a list is of, zero for the list of a parent.
func accountOf(list []byte) (account uuid.UUID) {
	if list[0] == ofAccount {
		account = uuid.UUID(list[1:17])
	}
	return account
}

// rowOf returns a row, an empty one if it is absent, and false if it cannot be read.
func (c *checker) rowOf(kind store.Kind, id uuid.UUID) (row, bool) {
	name := rowsBucket(kind)
	b := c.tx.Bucket(name[:])
	if b == nil {
		return row{}, true
	}
	raw := b.Get(id[:])
	if raw == nil {
		return row{}, true
	}
	r, err := decodeRow(raw)
	return r, err == nil && r.version > 0
}

func (r *row) listed() bool { return r.raw != nil && (r.class != 0 || r.parent != uuid.Nil) }

// row checks that the indexes have a row.
func (c *checker) row(kind store.Kind, k, v []byte) {
	r, err := decodeRow(v)
	if err != nil || len(k) != len(uuid.UUID{}) || r.version == 0 {
		if c.unreadable {
			c.report(store.IndexRows, store.FaultUnreadable, kind, uuid.Nil, uuid.Nil)
		}
		return
	}

	id, list := uuid.UUID(k), keyOfList(kind, r.account, r.parent)
	has := false // also if the list is damaged
	err = guarded(func() error { has = !r.listed() || c.lists.has(list, id, r.class); return nil })
	if err != nil || !has {
		c.report(store.IndexList, store.FaultMissing, kind, id, r.account)
	}
	if r.hasDue {
		key := keyOfDue(kind, r.due, id)
		list[17] = r.class
		if !bytes.Equal(bucket(c.tx, dueBucket).Get(key[:]), list[:]) {
			c.report(store.IndexDue, store.FaultMissing, kind, id, r.account)
		}
	}
	var seen [][]byte
	r.eachLookup(func(hash []byte) {
		if slices.ContainsFunc(seen, func(h []byte) bool { return bytes.Equal(h, hash) }) {
			return
		}
		seen = append(seen, hash)
		if bucket(c.tx, lookupBucket).Get(append(appendLookupKey(nil, kind, hash), id[:]...)) == nil {
			c.report(store.IndexLookup, store.FaultMissing, kind, id, r.account)
		}
	})
}

// due checks that an entry of a due record leads to it.
func (c *checker) due(_ store.Kind, k, v []byte) {
	if len(k) != len(dueKey{}) || len(v) != 18 {
		panic(failed{errIndex})
	}
	kind, id := store.Kind(k[0]), uuid.UUID(k[9:])
	r, legible := c.rowOf(kind, id)
	agrees := r.hasDue && r.due == dueOfKey(k) && r.class == v[17] && keyOfList(kind, r.account, r.parent) == listOfDue(kind, v)
	if legible && !agrees {
		c.report(store.IndexDue, store.FaultStray, kind, id, accountOf(v))
	}
}

// lookup checks that the entry of a hash leads to a row that has it.
func (c *checker) lookup(_ store.Kind, k, _ []byte) {
	if len(k) < 2 || len(k) != 2+int(k[1])+16 {
		panic(failed{errIndex})
	}
	kind, hash, id := store.Kind(k[0]), k[2:2+k[1]], uuid.UUID(k[2+k[1]:])
	if r, legible := c.rowOf(kind, id); legible && !r.hasLookup(hash) {
		c.report(store.IndexLookup, store.FaultStray, kind, id, r.account)
	}
}

// node checks a node of a list: its entries, its counts, the nodes right below it, and that it
// is below another if it is not the root.
func (c *checker) node(_ store.Kind, k, v []byte) {
	if len(k) != len(nodeKey{}) || k[18] == ^byte(0) {
		panic(failed{errLists})
	}
	key := nodeKey(k)
	list, level := key.list(), key.level()
	kind := store.Kind(list[17])
	var stored, counts [256]int64
	n, entries := decodeNode(level, v, func(class uint8, count int64) { stored[class] = count })

	cur := bucket(c.tx, listsBucket).Cursor()
	cur.Seek(key[:])
	end, _ := cur.Next() // where the next node of the level begins
	last := !key.sameLevel(end)
	begins := func(id []byte) bool { return last || bytes.Compare(id, end[19:]) < 0 }
	ok := true

	for i := range entries.len() {
		c.left--
		id, class := entries.id(i), entries.class(i)
		ok = ok && compareIDs(id, key.id()) >= 0 && begins(id[:]) && (i == 0 || compareIDs(entries.id(i-1), id) < 0)
		counts[class]++
		r, legible := c.rowOf(kind, id)
		if legible && (!r.listed() || r.class != class || keyOfList(kind, r.account, r.parent) != list) {
			c.report(store.IndexList, store.FaultStray, kind, id, accountOf(list[:]))
		}
	}

	open, limit := level == 1 && last, c.fanout.of(level)
	if open {
		limit, counts = c.fanout.open(), [256]int64{}
	}
	if level > 1 {
		ok = c.below(key, n, last, end, &counts) && ok
	}
	size := n + entries.len()
	if !ok || size > limit || size == 0 && !open || counts != stored || !c.above(cur, key, last, n) {
		c.report(store.IndexList, store.FaultOrder, kind, uuid.Nil, uuid.Nil)
	}
}

// below adds the counts of the n nodes right below one. It reports whether these are there, and
// are all up to where the next node of its level begins.
func (c *checker) below(key nodeKey, n int, last bool, end []byte, counts *[256]int64) bool {
	from := keyOfNode(key.list(), key.level()-1, key.id())
	cur := bucket(c.tx, listsBucket).Cursor()
	k, v := cur.Seek(from[:])
	for range n {
		if !from.sameLevel(k) || !last && bytes.Compare(k[19:], end[19:]) >= 0 {
			return false
		}
		decodeNode(from.level(), v, func(class uint8, count int64) { counts[class] += count })
		k, v = cur.Next()
	}
	return !from.sameLevel(k) || !last && bytes.Compare(k[19:], end[19:]) >= 0
}

// above reports whether a node is the root, alone on its level and not above a single node, or
// does not begin before the level above it.
func (c *checker) above(cur *bolt.Cursor, key nodeKey, last bool, n int) bool {
	list := key.list()
	root, _ := cur.Seek(list[:])
	if bytes.Equal(root, key[:]) {
		return last && n != 1
	}
	first := keyOfNode(list, key.level()+1, uuid.Nil)
	k, _ := cur.Seek(first[:])
	return first.sameLevel(k) && bytes.Compare(k[19:], key[19:]) <= 0
}
