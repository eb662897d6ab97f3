package pgstore

import (
	"maps"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"
)

// lockSet returns the locks of a group.
func (g *group) lockSet() lockSet {
	if g.mode == modeExclusive {
		return nil // it has all
	}

	locks := lockSet{g.locks.all(): false}
	for _, q := range g.asked {
		if q.empty {
			return lockSet{g.locks.all(): true}
		}
		g.lockQuestion(locks, q)
	}

	g.lockRows(locks)
	g.lockTouched(locks)
	if len(locks) > mostLocks {
		return lockSet{g.locks.all(): true}
	}
	return locks
}

// lockRows adds the locks of rows that were read or are written.
func (g *group) lockRows(locks lockSet) {
	for k := range g.relied {
		before := g.known[k]
		after, written := g.overlay[k]
		switch {
		case before != nil:
			locks.add(g.locks.id(k.id), written)
		case written && after != nil:
			locks.add(g.locks.birth(k), g.blind()) // the primary key excludes a second birth
		default:
			locks.add(g.locks.birth(k), true)
		}
	}

	for id := range g.parents {
		locks.add(g.locks.id(id), false)
	}
	for kind := range g.dues {
		locks.add(g.locks.due(kind), false)
	}
}

// lockQuestion adds the locks that keep the answer to a question as it is.
func (g *group) lockQuestion(locks lockSet, q *question) {
	switch {
	case q.lookup != nil:
		locks.add(g.locks.hash(*q.lookup), true)
		locks.add(g.locks.hashes(q.lookup.kind), false)
	case q.list != nil:
		locks.add(g.locks.list(*q.list), true)
		locks.add(g.locks.lists(q.list.kind), false)
	case q.parent != uuid.Nil:
		locks.add(g.locks.id(q.parent), true)
	case q.scan != 0: // the found rows are among the rows that were read
		for i := range byte(births) {
			locks.add(g.locks.birth(key{kind: q.scan, id: uuid.UUID{15: i}}), true)
		}
	default:
		locks.add(g.locks.due(q.due), true)
	}
}

// lockTouched adds the locks of hashes and lists that writes change. A large group locks
// their kinds instead, and only one such group works at a time.
func (g *group) lockTouched(locks lockSet) {
	large := len(locks)+len(g.hashes)+len(g.lists) > groupLocks
	if large {
		locks.add(g.locks.large(), true)
	}

	for h := range g.hashes {
		if large {
			locks.add(g.locks.hashes(h.kind), true)
		} else {
			locks.add(g.locks.hash(h), false)
		}
	}

	for k := range g.lists {
		if large {
			locks.add(g.locks.lists(k.kind), true)
		} else {
			locks.add(g.locks.list(k), false)
		}
	}
}

// Writes are the changes that a group makes to the database. They are owned by the
// writing goroutine.
type writes struct {
	any     bool
	gone    []*row
	rows    []*row // first the rows that replace another
	changed int    // how many rows are these
	off     []lookup
	on      []lookup
	lists   []listKey
	least   []uuid.UUID // of the entries of a list
	entry   []entry
	place   map[listKey]int32
}

type lookup struct {
	hashKey
	id, account uuid.UUID
}

// An entry is a record that has come into a list, or left it.
type entry struct {
	list  int32 // from 1
	id    uuid.UUID
	class uint8
	n     int32
}

// stored returns the row at a key before the group's writes, nil if there is none.
func (g *group) stored(k key) *row {
	r := g.known[k]
	if g.foreign(k, r) {
		return nil // it is at its own key too
	}
	return r
}

// writes returns the difference between the stored rows and the overlay.
func (g *group) writes() *writes {
	w := &writes{place: map[listKey]int32{}}
	var fresh []*row
	for _, k := range slices.SortedFunc(maps.Keys(g.overlay), compareKeys) {
		before, after := g.stored(k), g.overlay[k]
		if before == after {
			continue
		}

		w.any = true
		switch {
		case after == nil:
			w.gone = append(w.gone, before)
		case before == nil:
			fresh = append(fresh, after)
		case before.account != after.account: // deleted and put again: perhaps in another partition
			w.gone, fresh = append(w.gone, before), append(fresh, after)
		default:
			w.rows = append(w.rows, after)
		}

		w.setLookups(before, after)
		w.setLists(g, before, after)
	}

	w.changed = len(w.rows)
	w.rows = append(w.rows, fresh...)
	return w
}

func (w *writes) setLookups(before, after *row) {
	collect := func(of, except *row, to *[]lookup) {
		if of == nil {
			return
		}
		seen := map[string]bool{}
		if except != nil && except.account == of.account {
			for _, hash := range except.hashes() {
				seen[string(hash)] = true
			}
		}
		for _, hash := range of.hashes() {
			if !seen[string(hash)] {
				seen[string(hash)] = true
				*to = append(*to, lookup{hashKey{of.kind, string(hash)}, of.id, of.account})
			}
		}
	}

	if before != nil && before.damaged { // its hashes may not be those that lead to it
		collect(before, nil, &w.off)
		collect(after, before, &w.off)
		collect(after, nil, &w.on)
		return
	}
	collect(before, after, &w.off)
	collect(after, before, &w.on)
}

func (w *writes) setLists(g *group, before, after *row) {
	if before != nil && after != nil && before.class == after.class && g.list(before) == g.list(after) {
		return
	}
	for _, r := range []*row{before, after} {
		if r == nil || r.class == 0 {
			continue
		}

		list := g.list(r)
		i := w.place[list]
		if i == 0 {
			w.lists, w.least = append(w.lists, list), append(w.least, r.id)
			i = int32(len(w.lists))
			w.place[list] = i
		}

		if slices.Compare(r.id[:], w.least[i-1][:]) < 0 {
			w.least[i-1] = r.id
		}

		n := int32(1)
		if r == before {
			n = -1
		}
		w.entry = append(w.entry, entry{i, r.id, r.class, n})
	}
}

// judge returns the verdict on a failure to make the writes.
func (w *writes) judge(err error) verdict {
	if w.any {
		return judge(err)
	}
	return verdictOfRead(err)
}

// applyArgs returns the parameters of apply, except for the locks. Every row receives the
// stamp.
func (w *writes) applyArgs(g *group, of uuid.UUID, turn, stamp int64) *applyArgs {
	a := &applyArgs{changed: int32(w.changed)}
	if w.any {
		a.ofStore = pgUUID(of)
		a.ofTurn, a.newStamp = pgtype.Int8{Int64: turn, Valid: true}, pgtype.Int8{Int64: stamp, Valid: true}
	}
	a.setRead(g)
	for _, r := range w.gone {
		a.goneKind, a.goneID = append(a.goneKind, int16(r.kind)), append(a.goneID, pgUUID(r.id))
		a.goneAccount = append(a.goneAccount, pgUUID(r.account))
	}
	a.setNew(g, w.rows, stamp)
	a.offKind, a.offHash, a.offID, a.offAccount = lookupColumns(w.off)
	a.onKind, a.onHash, a.onID, a.onAccount = lookupColumns(w.on)
	a.setLists(w)
	return a
}

// setRead names the rows that the group has read, and their stamps.
func (a *applyArgs) setRead(g *group) {
	n := len(g.relied)
	a.readKind, a.readID, a.readStamp = make([]int16, 0, n), make([]pgtype.UUID, 0, n), make([]pgtype.Int8, 0, n)
	for k := range g.relied {
		stamp, account := pgtype.Int8{}, pgtype.UUID{Bytes: k.account, Valid: !g.wide}
		if r := g.known[k]; r != nil {
			stamp, account = pgtype.Int8{Int64: r.stamp, Valid: true}, pgUUID(r.account)
		} else if g.overlay[k] != nil && !g.blind() {
			continue // the primary key ensures that it is new
		}
		a.readKind, a.readID = append(a.readKind, int16(k.kind)), append(a.readID, pgUUID(k.id))
		a.readStamp, a.readAccount = append(a.readStamp, stamp), append(a.readAccount, account)
	}
}

// setNew sets the columns of rows, and the stamp in each.
func (a *applyArgs) setNew(g *group, rows []*row, stamp int64) {
	n := len(rows)
	a.newKind, a.newClass, a.newChild = make([]int16, n), make([]int16, n), make([]bool, n)
	a.newID, a.newAccount, a.newScope = make([]pgtype.UUID, n), make([]pgtype.UUID, n), make([]pgtype.UUID, n)
	a.newDue, a.newVersion = make([]pgtype.Timestamptz, n), make([]int64, n)
	a.newLookup, a.newShown, a.newSecret = make([][]byte, n), make([][]byte, n), make([][]byte, n)

	for i, r := range rows {
		list := g.list(r)
		r.stamp = stamp
		a.newKind[i], a.newID[i], a.newAccount[i] = int16(r.kind), pgUUID(r.id), pgUUID(r.account)
		a.newScope[i], a.newChild[i] = pgUUID(list.scope), list.child
		a.newClass[i], a.newDue[i], a.newVersion[i] = int16(r.class), r.due, int64(r.version)
		a.newLookup[i], a.newShown[i], a.newSecret[i] = r.lookup, r.shown, r.secret
	}
}

func lookupColumns(lookups []lookup) (kinds []int16, hashes [][]byte, ids, accounts []pgtype.UUID) {
	for _, l := range lookups {
		kinds, hashes, ids = append(kinds, int16(l.kind)), append(hashes, []byte(l.hash)), append(ids, pgUUID(l.id))
		accounts = append(accounts, pgUUID(l.account))
	}
	return kinds, hashes, ids, accounts
}

// setLists sets the columns of lists, and of the entries that change in them.
func (a *applyArgs) setLists(w *writes) {
	n := len(w.lists)
	a.listKind, a.listChild = make([]int16, n), make([]bool, n)
	a.listScope, a.listLeast, a.listPart = make([]pgtype.UUID, n), make([]pgtype.UUID, n), make([]int16, n)
	for i, l := range w.lists {
		a.listPart[i] = int16(l.part)
		a.listKind[i], a.listChild[i], a.listScope[i], a.listLeast[i] = int16(l.kind), l.child, pgUUID(l.scope), pgUUID(w.least[i])
	}

	n = len(w.entry)
	a.entryList, a.entryID = make([]int32, n), make([]pgtype.UUID, n)
	a.entryClass, a.entryN = make([]int16, n), make([]int32, n)
	for i, e := range w.entry {
		a.entryList[i], a.entryID[i], a.entryClass[i], a.entryN[i] = e.list, pgUUID(e.id), int16(e.class), e.n
	}
}

// addLocks bounds the locks that add can take.
const addLocks = 8

// addArgs returns the parameters of add, or nil for writes that only apply can make. Most
// groups of a process in which little goes on at once add one row and have read two: the
// account, and the count of seals. An array costs the server more than all values of that
// row, so they take two thirds of the time.
func (w *writes) addArgs(g *group, of uuid.UUID, turn, stamp int64, keys []int64, exclusive []bool) *addArgs {
	if len(w.rows) != 1 || w.changed+len(w.gone)+len(w.off) > 0 || len(keys) > addLocks || slices.Contains(exclusive, true) || g.blind() {
		return nil
	}

	var read []*row
	for k := range g.relied { // a row that is not there is the added one, or not all locks were shared
		if r := g.known[k]; r != nil {
			read = append(read, r)
		}
	}
	if len(read) > 2 {
		return nil
	}

	r := w.rows[0]
	r.stamp = stamp
	list := g.list(r)
	a := &addArgs{
		newPart: int16(list.part),
		keys:    keys, ofStore: pgUUID(of), ofTurn: turn, newStamp: stamp,
		newKind: int16(r.kind), newID: pgUUID(r.id), newAccount: pgUUID(r.account),
		newScope: pgUUID(list.scope), newChild: list.child, newClass: int16(r.class),
		newDue: r.due, newVersion: int64(r.version), newLookup: r.lookup, newShown: r.shown, newSecret: r.secret,
	}

	if len(read) > 0 {
		r := read[0]
		a.readKind, a.readID = pgtype.Int2{Int16: int16(r.kind), Valid: true}, pgUUID(r.id)
		a.readStamp, a.readAccount = pgtype.Int8{Int64: r.stamp, Valid: true}, pgUUID(r.account)
	}
	if len(read) > 1 {
		r := read[1]
		a.alsoKind, a.alsoID = pgtype.Int2{Int16: int16(r.kind), Valid: true}, pgUUID(r.id)
		a.alsoStamp, a.alsoAccount = pgtype.Int8{Int64: r.stamp, Valid: true}, pgUUID(r.account)
	}
	for _, l := range w.on {
		a.hashes = append(a.hashes, []byte(l.hash))
	}
	return a
}
