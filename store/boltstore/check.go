package boltstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"
	bolt "go.etcd.io/bbolt"

	"github.com/cardvault/cardvault/store"
)

// maxFindings bounds the report of one Check.
const maxFindings = 20

// Check reads the whole file and reports faults in the pages of bbolt, and indexes that do
// not agree with the rows. Its error wraps store.ErrDamaged for each of the first 20
// findings. Check cannot judge the content of a sealed column. Updates wait until it has
// returned.
func (s *Store) Check(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	h, err := s.use()
	if err != nil {
		return err
	}
	defer h.users.Done()

	// bbolt's own check requires that there are no other writers.
	tx, err := h.begin(true)
	if err != nil {
		return err
	}
	defer h.rollback(tx)
	c := &checker{ctx: ctx, tx: tx, fanout: s.config.fanout}

	// bbolt's check runs in a goroutine that cannot be guarded: it comes last.
	err = guarded(func() error { return checkPages(h.file, tx, true) })
	if err != nil {
		return err
	}
	if err := guarded(c.check); err != nil {
		return err
	}

	if len(c.findings) == 0 {
		for err := range tx.Check(bolt.WithKVStringer(silent{})) {
			c.report("%v", err)
		}
	}
	return errors.Join(c.findings...)
}

// silent keeps keys, which have hashes in them, out of errors.
type silent struct{}

func (silent) KeyToString([]byte) string   { return "…" }
func (silent) ValueToString([]byte) string { return "…" }

// A checker counts the entries that the rows require of each index, and looks for each. An
// index with the same number of entries has no others.
type checker struct {
	ctx      context.Context
	tx       *bolt.Tx
	fanout   fanout
	findings []error

	listed, due, lookups int // that the rows ask for
	entries              int // in lists
}

func (c *checker) report(text string, args ...any) {
	if len(c.findings) < maxFindings {
		c.findings = append(c.findings, fmt.Errorf("%w: %s", store.ErrDamaged, fmt.Sprintf(text, args...)))
	}
}

func (c *checker) check() error {
	err := c.tx.ForEach(func(name []byte, b *bolt.Bucket) error {
		if len(name) != len("rows")+1 || !bytes.HasPrefix(name, []byte("rows")) {
			return nil
		}
		return c.rows(store.Kind(name[4]), b)
	})
	if err != nil {
		return err
	}

	if err := c.lists(); err != nil {
		return err
	}
	if c.entries != c.listed {
		c.report("lists have %d entries, rows require %d", c.entries, c.listed)
	}

	for _, index := range []struct {
		name []byte
		want int
	}{{dueBucket, c.due}, {lookupBucket, c.lookups}} {
		n := 0
		cur := bucket(c.tx, index.name).Cursor()
		for k, _ := cur.First(); k != nil; k, _ = cur.Next() {
			n++
		}
		if n != index.want {
			c.report("index %s has %d entries, rows require %d", index.name, n, index.want)
		}
	}

	return nil
}

// rows checks every row of a kind, and that the indexes have it.
func (c *checker) rows(kind store.Kind, rows *bolt.Bucket) error {
	due, lookup := bucket(c.tx, dueBucket), bucket(c.tx, lookupBucket)
	lists := lister{fanout: c.fanout}
	n := 0
	cur := rows.Cursor()

	for k, v := cur.First(); k != nil; k, v = cur.Next() {
		if n%1024 == 0 {
			if err := c.ctx.Err(); err != nil {
				return err
			}
			lists.begin(c.tx, c.fanout, nil) // discards what it has cached
		}

		n++
		r, err := decodeRow(v)
		if err != nil || len(k) != 16 || r.version == 0 {
			c.report("kind %d, row %d is not in the format of rows", kind, n)
			continue
		}

		id, list := uuid.UUID(k), keyOfList(kind, r.account, r.parent)
		if r.class != 0 || r.parent != uuid.Nil {
			c.listed++
			if path := lists.find(list, id, false); path == nil {
				c.report("kind %d, row %d is in no list", kind, n)
			} else if e := path[len(path)-1].entries; true {
				if i, found := e.search(id); !found || e.class(i) != r.class {
					c.report("kind %d, row %d is not in its list with its class", kind, n)
				}
			}
		}

		if r.hasDue {
			c.due++
			key := keyOfDue(kind, r.due, id)
			list[17] = r.class
			if !bytes.Equal(due.Get(key[:]), list[:]) {
				c.report("kind %d, row %d is not in the index of due records", kind, n)
			}
		}

		seen := make([][]byte, 0, r.lookupCount)
		r.eachLookup(func(hash []byte) {
			if slices.ContainsFunc(seen, func(h []byte) bool { return bytes.Equal(h, hash) }) {
				return
			}
			seen = append(seen, hash)
			c.lookups++
			if lookup.Get(append(appendLookupKey(nil, kind, hash), id[:]...)) == nil {
				c.report("kind %d, row %d is not found by a lookup", kind, n)
			}
		})
	}

	return nil
}

// lists checks that each list is a tree in order, and its counts.
func (c *checker) lists() error {
	keys, nodes := 0, 0
	lists := bucket(c.tx, listsBucket)
	cur := lists.Cursor()
	var last listKey

	for k, v := cur.First(); k != nil; k, v = cur.Next() {
		if keys++; keys%1024 == 0 && c.ctx.Err() != nil {
			return c.ctx.Err()
		}
		if len(k) != len(nodeKey{}) {
			panic(failed{errLists})
		}
		if listKey(k[:18]) != last { // the root of the next list
			last = listKey(k[:18])
			w := listWalk{checker: c, lists: lists}
			w.node(nodeKey(k), v, uuid.Nil, uuid.Nil)
			if w.nodes == 2 {
				c.report("the root of a list has one node below it")
			}
			nodes += w.nodes
		}
	}

	if keys != nodes {
		c.report("%d nodes of lists are below no root", keys-nodes)
	}
	return nil
}

// A listWalk goes over one list from its root.
type listWalk struct {
	*checker
	lists *bolt.Bucket
	nodes int
}

// node checks a node and its descendants, whose entries must be from begin to before end,
// if end is set. It returns the counts by class.
func (w *listWalk) node(key nodeKey, v []byte, begin, end uuid.UUID) (counts [256]int64) {
	w.nodes++
	var stored [256]int64
	level := key.level()
	n, entries := decodeNode(level, v, func(class uint8, count int64) { stored[class] = count })
	w.entries += entries.len()
	at := begin
	if compareIDs(key.id(), begin) < 0 {
		w.report("a node of level %d begins before the one above it", level)
	}

	for i := range entries.len() {
		id := entries.id(i)
		if i > 0 && compareIDs(id, at) <= 0 || compareIDs(id, key.id()) < 0 || end != uuid.Nil && compareIDs(id, end) >= 0 {
			w.report("entries of a list are out of order")
		}
		at = id
		counts[entries.class(i)]++
	}

	open := level == 1 && end == uuid.Nil
	limit := w.fanout.of(level)
	if open {
		limit = w.fanout.open()
		counts = [256]int64{}
	}
	if size := n + entries.len(); size > limit || size == 0 && !open {
		w.report("a node of level %d has %d below it", level, size)
	}

	if level > 1 {
		from := keyOfNode(key.list(), level-1, key.id())
		cur := w.lists.Cursor()
		k, v := cur.Seek(from[:])
		for i := range n {
			if !from.sameLevel(k) {
				panic(failed{errLists})
			}
			child, value := nodeKey(k), v
			childEnd := end
			if k, v = cur.Next(); i+1 < n && from.sameLevel(k) {
				childEnd = uuid.UUID(k[19:])
			}
			for class, count := range w.node(child, value, key.id(), childEnd) {
				counts[class] += count
			}
		}

		if from.sameLevel(k) && (end == uuid.Nil || bytes.Compare(k[19:], end[:]) < 0) {
			w.report("a node of level %d counts too few below it", level)
		}
	}

	if counts != stored {
		w.report("a node of level %d has wrong counts", level)
	}
	return counts
}
