package boltstore

import (
	"bytes"
	"encoding/binary"
	"slices"
	"sort"

	"github.com/google/uuid"
	bolt "go.etcd.io/bbolt"

	"github.com/cardvault/cardvault/store"
)

// A list is a tree in the bucket lists. A block, a node of level 1, holds a run
// of entries: the ids and classes of records, by id. A node of a higher level
// counts the classes of a run of nodes one level below. The run of a node
// begins at the id in its key and ends where the next node of its level begins.
// One node, the root, stands for the whole list; a short list has only that.
//
// The last block is open: its entries are not counted anywhere. So an entry at the end of a
// list, where most are added, changes only one node until the block is full.
//
// Keys are nodeKey, ordered so that the root is the first key of a list and the open block
// the last. The value of a block is a summary and the entries, 17 bytes each. The value of
// another node is the number of nodes below it, as a uvarint, and a summary. A summary is
// the number of classes and, for each, the class and the number of its entries as a
// uvarint. The open block has an empty summary.

// A nodeKey is listKey, complement of the level, and first id.
type nodeKey [18 + 1 + 16]byte

func keyOfNode(list listKey, level uint8, id uuid.UUID) (k nodeKey) {
	copy(k[:], list[:])
	k[18] = ^level
	copy(k[19:], id[:])
	return k
}

func (k *nodeKey) list() listKey { return listKey(k[:18]) }
func (k *nodeKey) level() uint8  { return ^k[18] }
func (k *nodeKey) id() uuid.UUID { return uuid.UUID(k[19:]) }
func (k *nodeKey) sameLevel(other []byte) bool {
	return len(other) == len(k) && bytes.Equal(k[:19], other[:19])
}

// A fanout bounds the nodes of a list.
type fanout struct {
	block int // entries a block; the open one has up to a quarter more
	node  int // nodes a node of a higher level
}

func (f fanout) of(level uint8) int {
	if level == 1 {
		return f.block
	}
	return f.node
}

// open is the bound of the open block. When it is full, the last entries stay
// behind in a new one, since ids come almost in order.
func (f fanout) open() int { return f.block + max(1, f.block/4) }

// An entryList holds the ids of a block, each followed by the class.
type entryList []byte

const entrySize = 16 + 1

func (e entryList) len() int           { return len(e) / entrySize }
func (e entryList) id(i int) uuid.UUID { return uuid.UUID(e[i*entrySize:]) }
func (e entryList) class(i int) uint8  { return e[i*entrySize+16] }

// search returns where id is or belongs.
func (e entryList) search(id uuid.UUID) (i int, found bool) {
	n := e.len()
	if n > 0 && bytes.Compare(e[(n-1)*entrySize:n*entrySize-1], id[:]) < 0 {
		return n, false
	}
	i = sort.Search(n, func(i int) bool { return bytes.Compare(e[i*entrySize:i*entrySize+16], id[:]) >= 0 })
	return i, i < n && e.id(i) == id
}

type classCount struct {
	class uint8
	count int64
}

// A node is one node in decoded form.
type node struct {
	key     nodeKey
	n       int          // nodes directly below; not of a block
	entries entryList    // of a block
	owned   bool         // entries are not in the mapped file and may be changed
	open    bool         // the last block
	classes []classCount // by class, no count is 0; none of the open block
	dirty   bool         // differs from its stored form
}

// size returns the number of entries or nodes directly below.
func (n *node) size() int {
	if n.key.level() == 1 {
		return n.entries.len()
	}
	return n.n
}

func (n *node) add(class uint8, count int64) {
	i, found := slices.BinarySearchFunc(n.classes, class, func(c classCount, class uint8) int {
		return int(c.class) - int(class)
	})
	if !found {
		n.classes = slices.Insert(n.classes, i, classCount{class: class})
	}
	c := &n.classes[i]
	c.count += count
	if c.count < 0 {
		panic(failed{errLists})
	}
	if c.count == 0 {
		n.classes = slices.Delete(n.classes, i, i+1)
	}
}

func (n *node) addAll(classes []classCount) {
	for _, c := range classes {
		n.add(c.class, c.count)
	}
}

// own makes the entries changeable, with room for more of them.
func (n *node) own(more int) {
	if !n.owned {
		n.entries = append(make(entryList, 0, len(n.entries)+(more+8)*entrySize), n.entries...)
		n.owned = true
	}
	n.dirty = true
}

// recount sets classes from the entries.
func (n *node) recount() {
	n.classes = nil
	if n.open {
		return
	}
	for i := range n.entries.len() {
		n.add(n.entries.class(i), 1)
	}
}

// encode returns the stored form.
func (n *node) encode() []byte {
	b := make([]byte, 0, 8+4*len(n.classes)+len(n.entries))
	if n.key.level() > 1 {
		b = binary.AppendUvarint(b, uint64(n.n))
	}
	b = binary.AppendUvarint(b, uint64(len(n.classes)))
	for _, c := range n.classes {
		b = binary.AppendUvarint(append(b, c.class), uint64(c.count))
	}
	return append(b, n.entries...)
}

// decodeNode calls f with every class of a node's value and returns how many
// nodes are below, or the entries.
func decodeNode(level uint8, b []byte, f func(class uint8, count int64)) (below int, _ entryList) {
	number := func() uint64 {
		n, size := binary.Uvarint(b)
		if size <= 0 {
			panic(failed{errLists})
		}
		b = b[size:]
		return n
	}

	if level > 1 {
		if below = int(min(number(), 1<<20)); below == 0 || below == 1<<20 {
			panic(failed{errLists})
		}
	}

	for n := number(); n > 0; n-- {
		if len(b) == 0 {
			panic(failed{errLists})
		}
		class := b[0]
		b = b[1:]
		f(class, int64(number()))
	}

	if level == 1 && len(b)%entrySize != 0 || level > 1 && len(b) > 0 {
		panic(failed{errLists})
	}
	return below, b
}

// A lister keeps the lists during one transaction. It holds changed nodes in
// decoded form until flush; which nodes there are is always current in the
// bucket. Its methods panic on damage, with a failed.
type lister struct {
	lists  table
	fanout fanout
	nodes  map[nodeKey]*node

	paths map[listKey]trail // of lists that were changed: appending needs no search

	fill fill
	last listKey // of an insert

	apart bool // small nodes are not merged: a walk through the entries would miss what moved
}

// A trail is the nodes from the root to the block that covered the last id, and where
// that block ends, if it is not open.
type trail struct {
	nodes []*node
	end   uuid.UUID
}

// begin starts a transaction.
func (l *lister) begin(named func([]byte) *bolt.Bucket, f fanout, copying *compaction) {
	l.lists, l.fanout = tableOf(named, listsBucket, copying), f
	if l.nodes == nil {
		l.nodes, l.paths = make(map[nodeKey]*node), make(map[listKey]trail)
	}
	clear(l.nodes)
	clear(l.paths)
	l.lists.FillPercent = l.fill.percent()
}

// flush writes the nodes that have changed.
func (l *lister) flush() {
	for _, n := range l.nodes {
		if n.dirty {
			l.put(n)
		}
	}
}

// insert adds an entry, which must not be there.
func (l *lister) insert(list listKey, id uuid.UUID, class uint8) {
	path := l.find(list, id, true)
	if path == nil {
		root := &node{key: keyOfNode(list, 1, uuid.Nil), open: true}
		l.put(root)
		path = []*node{root}
	}

	block := path[len(path)-1]
	i, found := block.entries.search(id)
	if found {
		panic(failed{errLists})
	}
	block.own(1)
	entry := [entrySize]byte{16: class}
	copy(entry[:], id[:])
	block.entries = slices.Insert(block.entries, i*entrySize, entry[:]...)
	limit := l.fanout.open()
	if !block.open {
		l.count(path, class, 1)
		limit = l.fanout.block
	}
	if block.entries.len() > limit {
		l.split(path)
	}
}

// change gives an entry another class.
func (l *lister) change(list listKey, id uuid.UUID, from, to uint8) {
	path, i := l.mustFind(list, id, from)
	block := path[len(path)-1]
	block.own(0)
	block.entries[i*entrySize+16] = to
	if !block.open {
		l.count(path, from, -1)
		l.count(path, to, 1)
	}
}

// remove removes an entry.
func (l *lister) remove(list listKey, id uuid.UUID, class uint8) {
	path, i := l.mustFind(list, id, class)
	block := path[len(path)-1]
	block.own(0)
	block.entries = slices.Delete(block.entries, i*entrySize, (i+1)*entrySize)
	if !block.open {
		l.count(path, class, -1)
	}
	l.shrink(path)
}

// count adds to the count of a class in all of path.
func (l *lister) count(path []*node, class uint8, count int64) {
	for _, n := range path {
		n.add(class, count)
		n.dirty = true
	}
}

// mustFind returns the nodes that cover an entry, and where it is in its block.
func (l *lister) mustFind(list listKey, id uuid.UUID, class uint8) ([]*node, int) {
	if path := l.find(list, id, false); path != nil {
		block := path[len(path)-1]
		if i, found := block.entries.search(id); found && block.entries.class(i) == class {
			return path, i
		}
	}
	panic(failed{errLists})
}

// has reports whether an entry is there.
func (l *lister) has(list listKey, id uuid.UUID, class uint8) bool {
	is, found := l.classOf(list, id)
	return found && is == class
}

// classOf returns the class of an entry, and whether one of the id is there.
func (l *lister) classOf(list listKey, id uuid.UUID) (class uint8, found bool) {
	path := l.find(list, id, false)
	if path == nil {
		return 0, false
	}
	block := path[len(path)-1]
	i, found := block.entries.search(id)
	if !found {
		return 0, false
	}
	return block.entries.class(i), true
}

// find returns the nodes that cover id, from the root to a block, or nil if the list is
// empty. An id before every node belongs to the first. With insert set, that node is
// changed to begin earlier.
func (l *lister) find(list listKey, id uuid.UUID, insert bool) []*node {
	if insert {
		l.fill.see(list == l.last)
		l.last = list
	}

	if p, ok := l.paths[list]; ok {
		block := p.nodes[len(p.nodes)-1]
		if compareIDs(block.key.id(), id) <= 0 && (block.open || compareIDs(id, p.end) < 0) {
			return p.nodes
		}
	}

	cur := l.lists.Cursor()
	k, v := cur.Seek(list[:])
	if !bytes.HasPrefix(k, list[:]) {
		return nil
	}
	root := l.load(k, v)
	if insert && compareIDs(id, root.key.id()) < 0 {
		l.rename(root, uuid.Nil)
	}

	p := trail{append(make([]*node, 0, 5), root), uuid.Max}
	for level := root.key.level() - 1; level >= 1; level-- {
		parent := p.nodes[len(p.nodes)-1].key.id()
		at := keyOfNode(list, level, id)
		k, v = floor(cur, at[:])
		if !at.sameLevel(k) || bytes.Compare(k[19:], parent[:]) < 0 {
			at = keyOfNode(list, level, parent)
			if k, v = cur.Seek(at[:]); !at.sameLevel(k) {
				panic(failed{errLists})
			}
		}
		n := l.load(k, v)
		if insert && compareIDs(id, n.key.id()) < 0 {
			l.rename(n, parent)
		}
		p.nodes = append(p.nodes, n)
	}

	// A node may begin before the first below it does, once that was removed. So
	// the block ends where the next node begins, on whichever level that is first.
	for _, n := range p.nodes {
		cur.Seek(n.key[:])
		k, _ = cur.Next()
		n.open = n.key.level() == 1 && !n.key.sameLevel(k)
		if n.key.sameLevel(k) && bytes.Compare(k[19:], p.end[:]) < 0 {
			copy(p.end[:], k[19:])
		}
	}

	l.paths[list] = p
	return p.nodes
}

// split divides the block at the end of path, and its parents, while they are
// too large.
func (l *lister) split(path []*node) {
	delete(l.paths, path[0].key.list())
	for i := len(path) - 1; i >= 0; i-- {
		n := path[i]
		limit := l.fanout.of(n.key.level())
		keep := n.size() / 2
		switch {
		case n.open:
			keep = limit
		case n.size() <= limit:
			return
		case l.next(n) == nil: // more will come at the end than here
			keep = n.size() - max(1, limit/16)
		}

		right := &node{open: n.open}
		if n.key.level() == 1 {
			right.key = keyOfNode(n.key.list(), 1, n.entries.id(keep))
			right.entries = slices.Clone(n.entries[keep*entrySize:])
			right.owned = true
			n.entries = n.entries[:keep*entrySize]

			n.open = false
			n.recount()
			right.recount()
			if right.open {
				for _, c := range n.classes {
					l.count(path[:i], c.class, c.count)
				}
			}
		} else {
			right.n = n.n - keep
			n.n, n.classes = keep, nil
			l.below(n, keep+right.n, func(i int, child *node) {
				if i == keep {
					right.key = keyOfNode(n.key.list(), n.key.level(), child.key.id())
				}
				if i < keep {
					n.addAll(child.classes)
				} else {
					right.addAll(child.classes)
				}
			})
		}

		n.dirty = true
		l.put(right)
		if i > 0 {
			path[i-1].n++
			path[i-1].dirty = true
		} else {
			root := &node{key: keyOfNode(n.key.list(), n.key.level()+1, n.key.id()), n: 2}
			root.addAll(n.classes)
			root.addAll(right.classes)
			l.put(root)
		}
	}
}

// shrink removes the block at the end of path, and its parents, if they have become empty.
// It merges nodes that have become small with a neighbour that has room. The open block
// stays while there are others.
func (l *lister) shrink(path []*node) {
	for i := len(path) - 1; i > 0 && !path[i].open; i-- {
		n := path[i]
		limit := l.fanout.of(n.key.level())
		if n.size() == 0 {
			l.drop(n)
		} else if n.size()*8 >= limit || l.apart || !l.merge(path[i-1], n, limit*3/4) {
			break
		}
		path[i-1].n--
		path[i-1].dirty = true
	}

	root := path[0]
	for root.n == 1 { // its only child takes its place
		list := root.key.list()
		l.drop(root)
		k, v := l.lists.Cursor().Seek(list[:])
		if !bytes.HasPrefix(k, list[:]) {
			panic(failed{errLists})
		}
		root = l.load(k, v)
	}

	if root.size() == 0 {
		l.drop(root)
	}
}

// merge joins n with a neighbour below the same parent, if both together have
// at most limit entries or nodes below. Nothing is merged with the open block.
func (l *lister) merge(parent, n *node, limit int) bool {
	join := func(left, right *node) bool {
		if left.size()+right.size() > limit {
			return false
		}
		left.own(right.entries.len())
		left.entries = append(left.entries, right.entries...)
		left.n += right.n
		left.addAll(right.classes)
		l.drop(right)
		return true
	}

	left := l.previous(n)
	if left != nil && compareIDs(left.key.id(), parent.key.id()) >= 0 && join(left, n) {
		return true
	}
	right, after := l.next(n), l.next(parent)
	if right == nil || after != nil && compareIDs(right.key.id(), after.key.id()) >= 0 {
		return false
	}

	if right.key.level() == 1 && l.next(right) == nil {
		return false
	}
	return join(n, right)
}

// next and previous return the neighbour of n on its level, or nil.
func (l *lister) next(n *node) *node {
	cur := l.lists.Cursor()
	cur.Seek(n.key[:])
	if k, v := cur.Next(); n.key.sameLevel(k) {
		return l.load(k, v)
	}
	return nil
}

func (l *lister) previous(n *node) *node {
	cur := l.lists.Cursor()
	cur.Seek(n.key[:])
	if k, v := previous(cur); n.key.sameLevel(k) {
		return l.load(k, v)
	}
	return nil
}

// below calls f with the first count nodes directly below n.
func (l *lister) below(n *node, count int, f func(i int, child *node)) {
	from := keyOfNode(n.key.list(), n.key.level()-1, n.key.id())
	cur := l.lists.Cursor()
	k, v := cur.Seek(from[:])
	for i := range count {
		if !from.sameLevel(k) {
			panic(failed{errLists})
		}
		f(i, l.load(k, v))
		k, v = cur.Next()
	}
}

// load returns the node of a key and stored value.
func (l *lister) load(k, v []byte) *node {
	if len(k) != len(nodeKey{}) || k[18] == ^byte(0) {
		panic(failed{errLists})
	}
	key := nodeKey(k)
	n := l.nodes[key]
	if n == nil {
		n = &node{key: key}
		n.n, n.entries = decodeNode(key.level(), v, func(class uint8, count int64) {
			n.classes = append(n.classes, classCount{class, count})
		})
		l.nodes[key] = n
	}
	return n
}

// put stores a node. A new one is put at once, so that searches find it.
func (l *lister) put(n *node) {
	n.dirty = false
	l.nodes[n.key] = n
	l.lists.put(n.key[:], n.encode())
}

func (l *lister) drop(n *node) {
	delete(l.paths, n.key.list())
	delete(l.nodes, n.key)
	l.lists.remove(n.key[:])
}

// rename makes n begin at an earlier id.
func (l *lister) rename(n *node, id uuid.UUID) {
	l.drop(n)
	n.key = keyOfNode(n.key.list(), n.key.level(), id)
	l.put(n)
}

// floor moves the cursor to the last key that is not after at, which must exist.
func floor(cur *bolt.Cursor, at []byte) (k, v []byte) {
	k, v = cur.Seek(at)
	if k == nil {
		return cur.Last()
	}
	if bytes.Equal(k, at) {
		return k, v
	}
	return previous(cur)
}

// previous is Prev for a key that must exist. In a transaction that has deleted
// all keys of a page, Prev stops there; calling it again goes on.
func previous(cur *bolt.Cursor) (k, v []byte) {
	for range 1 << 20 {
		if k, v = cur.Prev(); k != nil {
			break
		}
	}
	return k, v
}

// An item is an entry or node directly below a node, as a query counts it.
type item struct {
	id    uuid.UUID // of an entry, or where a node begins
	value []byte    // of a node
	count int64     // entries whose class is wanted
	class uint8     // of an entry
	last  bool      // a node whose run ends with the list
}

// A scan answers questions about the entries of one list whose class is wanted
// and whose id is not among the lapsed. Positions count these from 0, in the
// order of ids. Its methods panic on damage, with a failed.
type scan struct {
	list      listKey
	classes   store.Classes
	lapsed    []uuid.UUID // in order, each in the list and of a wanted class
	lists     *bolt.Cursor
	level     uint8 // of root; 0: the list is empty
	root      item
	openCount int64    // wanted entries of the open block
	buf       [][]item // by level, for below
}

func (s *scan) init(lists *bolt.Bucket) {
	s.lists = lists.Cursor()
	k, v := s.lists.Seek(s.list[:])
	if !bytes.HasPrefix(k, s.list[:]) {
		return
	}
	if len(k) != len(nodeKey{}) || k[18] == ^byte(0) {
		panic(failed{errLists})
	}
	s.level = ^k[18]
	s.buf = make([][]item, s.level)
	s.root = s.item(s.level, k, v)
	s.root.last = true
	root := nodeKey(k)
	if k, _ = s.lists.Next(); root.sameLevel(k) {
		panic(failed{errLists})
	}

	if s.level > 1 {
		end := keyOfNode(s.list, 0, uuid.Nil) // after every level
		if k, v = floor(s.lists, end[:]); !bytes.HasPrefix(k, s.list[:]) || k[18] != ^byte(1) {
			panic(failed{errLists})
		}
	}

	_, open := decodeNode(1, v, func(uint8, int64) { panic(failed{errLists}) }) // it is not the last block
	for i := range open.len() {
		if wanted(&s.classes, open.class(i)) {
			s.openCount++
		}
	}

	s.root.count += s.openCount
}

func (s *scan) item(level uint8, k, v []byte) item {
	it := item{id: uuid.UUID(k[19:]), value: v}
	decodeNode(level, v, func(class uint8, count int64) {
		if wanted(&s.classes, class) {
			it.count += count
		}
	})
	return it
}

// below returns the items directly below a node of a level.
func (s *scan) below(level uint8, n item) []item {
	items := s.buf[level-1][:0]
	count, entries := decodeNode(level, n.value, func(uint8, int64) {})
	if grow := count + entries.len(); cap(items) < grow {
		items = make([]item, 0, grow)
	}

	for i := range entries.len() {
		it := item{id: entries.id(i), class: entries.class(i)}
		if wanted(&s.classes, it.class) {
			it.count = 1
		}
		items = append(items, it)
	}

	if level > 1 {
		from := keyOfNode(s.list, level-1, n.id)
		k, v := s.lists.Seek(from[:])
		for range count {
			if !from.sameLevel(k) {
				panic(failed{errLists})
			}
			items = append(items, s.item(level-1, k, v))
			k, v = s.lists.Next()
		}
		if n.last {
			last := &items[len(items)-1]
			last.last = true
			last.count += s.openCount
		}
	}

	s.buf[level-1] = items
	return items
}

// wanted reports whether a query for classes selects a class. Records without a class are
// in no list.
func wanted(classes *store.Classes, class uint8) bool { return class != 0 && classes.Has(class) }

func compareIDs(a, b uuid.UUID) int { return bytes.Compare(a[:], b[:]) }

// lapsedBefore returns how many of the lapsed are before id.
func (s *scan) lapsedBefore(id uuid.UUID) int64 {
	i, _ := slices.BinarySearchFunc(s.lapsed, id, compareIDs)
	return int64(i)
}

func (s *scan) total() int64 { return s.root.count - int64(len(s.lapsed)) }

// rank returns how many entries are before id, or at it if inclusive.
func (s *scan) rank(id uuid.UUID, inclusive bool) int64 {
	limit := 0
	lapsed := s.lapsedBefore(id)
	if inclusive {
		limit = 1
		if int(lapsed) < len(s.lapsed) && s.lapsed[lapsed] == id {
			lapsed++
		}
	}

	var rank int64
	n := s.root
	for level := s.level; level >= 1; level-- {
		before := 0
		items := s.below(level, n)
		for before < len(items) && compareIDs(items[before].id, id) < limit {
			rank += items[before].count
			before++
		}
		if level == 1 || before == 0 {
			break
		}
		// The last of these holds the place of id: its entries count one by one.
		n = items[before-1]
		rank -= n.count
	}

	return rank - lapsed
}

// walk calls f with the entries from a position on, upwards, or downwards and
// counted from the end if desc, until f returns false.
func (s *scan) walk(skip int64, desc bool, f func(id uuid.UUID, class uint8) bool) {
	if s.level > 0 {
		s.visit(s.level, s.root, int64(len(s.lapsed)), &skip, desc, f)
	}
}

// visit walks the items below a node. lapsed counts the lapsed entries before its end.
func (s *scan) visit(level uint8, n item, lapsed int64, skip *int64, desc bool, f func(uuid.UUID, uint8) bool) bool {
	items := s.below(level, n)
	for i := range items {
		if desc {
			i = len(items) - 1 - i
		}

		it, end := items[i], lapsed
		count := it.count
		if len(s.lapsed) > 0 && count > 0 {
			if i+1 < len(items) {
				end = s.lapsedBefore(items[i+1].id)
			}
			count -= end - s.lapsedBefore(it.id)
		}

		switch {
		case *skip >= count:
			*skip -= count
		case level == 1:
			if !f(it.id, it.class) {
				return false
			}
		case !s.visit(level-1, it, end, skip, desc, f):
			return false
		}
	}

	return true
}
