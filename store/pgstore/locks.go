package pgstore

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/cardvault/cardvault/store"
)

// A locker names the advisory locks of a schema: by a hash, so that two things may
// share one, which costs no more than a wait. Whoever may connect to the database may take
// any advisory lock, so it hashes the seed of the schema too, which only the role of the
// vault can read. From one name no other one follows.
//
// All groups of all processes share the lock of all, or one has it to itself and needs
// no other. A group has to itself the ids of the rows that it changes, the births where
// it has found nothing, and what it has asked. It shares the ids of the rows that it only
// reads and of the parents of those that it writes, and the births, lists, hashes and due
// times that its writes touch: with other writers, that is, but not with those who ask
// for them. Who asks for children has the id of the parent to itself, who scans a kind all
// its births, and who asks whether there is anything the lock of all. Who asks for a hash
// or a list also shares all of the kind, which a large group has to itself in place of
// each that it touches.
type locker uuid.UUID

// A server has room for some ten thousand locks, as it is installed, for all groups
// together.
const (
	groupLocks = 1024 // of a group of several calls
	mostLocks  = 4096 // of one call: one with more has its turn alone
	births     = 16   // of a kind
)

func (l locker) of(what byte, kind store.Kind, b []byte) int64 {
	text := make([]byte, 0, len(l)+2+store.MaxLookup)
	sum := sha256.Sum256(append(append(append(text, l[:]...), what, byte(kind)), b...))
	return int64(binary.BigEndian.Uint64(sum[:]))
}

func (l locker) all() int64                   { return l.of('a', 0, nil) }
func (l locker) channel() string              { return fmt.Sprintf("cardvault %x", uint64(l.of('n', 0, nil))) }
func (l locker) large() int64                 { return l.of('g', 0, nil) }
func (l locker) id(id uuid.UUID) int64        { return l.of('r', 0, id[:]) }
func (l locker) birth(k key) int64            { return l.of('b', k.kind, []byte{k.id[15] % births}) }
func (l locker) hash(h hashKey) int64         { return l.of('h', h.kind, []byte(h.hash)) }
func (l locker) hashes(kind store.Kind) int64 { return l.of('k', kind, nil) }
func (l locker) due(kind store.Kind) int64    { return l.of('d', kind, nil) }
func (l locker) lists(kind store.Kind) int64  { return l.of('s', kind, nil) }
func (l locker) list(k listKey) int64 {
	if k.child {
		return l.of('c', k.kind, k.scope[:])
	}
	return l.of('l', k.kind, k.scope[:])
}

// crowded reports whether the group has about as many locks as it may.
func (g *group) crowded() bool {
	return len(g.calls) > 0 && len(g.relied)+len(g.hashes)+len(g.lists)+len(g.parents)+len(g.asked) >= groupLocks*3/4
}

// locks returns the locks of a group, and which of them it has to itself.
func (g *group) locks() (keys []int64, exclusive []bool) {
	if g.exclusive {
		return nil, nil // it has all
	}
	l := g.s.locks
	locks := map[int64]bool{l.all(): false}
	lock := func(key int64, exclusive bool) { locks[key] = locks[key] || exclusive }
	for k := range g.relied {
		before := g.known[k]
		after, written := g.overlay[k]
		switch {
		case before != nil:
			lock(l.id(k.id), written)
		case written && after != nil:
			lock(l.birth(k), false) // that nobody else gives birth to it, the primary key sees to
		default:
			lock(l.birth(k), true)
		}
	}
	for id := range g.parents {
		lock(l.id(id), false)
	}
	for kind := range g.dues {
		lock(l.due(kind), false)
	}
	for _, q := range g.asked {
		switch {
		case q.lookup != nil:
			lock(l.hash(*q.lookup), true)
			lock(l.hashes(q.lookup.kind), false)
		case q.list != nil:
			lock(l.list(*q.list), true)
			lock(l.lists(q.list.kind), false)
		case q.parent != uuid.Nil:
			lock(l.id(q.parent), true)
		case q.scan != 0: // what it has found is among what was read
			for i := range byte(births) {
				lock(l.birth(key{q.scan, uuid.UUID{15: i}}), true)
			}
		case q.empty:
			return []int64{l.all()}, []bool{true}
		default:
			lock(l.due(q.due), true)
		}
	}
	large := len(locks)+len(g.hashes)+len(g.lists) > groupLocks
	if large {
		lock(l.large(), true)
	}
	for h := range g.hashes {
		if large {
			lock(l.hashes(h.kind), true)
		} else {
			lock(l.hash(h), false)
		}
	}
	for k := range g.lists {
		if large {
			lock(l.lists(k.kind), true)
		} else {
			lock(l.list(k), false)
		}
	}
	if len(locks) > mostLocks {
		locks = map[int64]bool{l.all(): true}
	}
	return sorted(locks)
}

// sorted returns locks in the order in which everybody takes them.
func sorted(locks map[int64]bool) (keys []int64, exclusive []bool) {
	keys = slices.Sorted(maps.Keys(locks))
	for _, k := range keys {
		exclusive = append(exclusive, locks[k])
	}
	return keys, exclusive
}

// blame logs which sessions hold locks that a group has waited for in vain. That is at
// most eight, and no more often than each blamePause.
func (s *Store) blame(g *group) {
	if time.Since(s.blamed) < blamePause {
		return
	}
	s.blamed = time.Now()
	keys, _ := g.locks()
	if g.exclusive {
		keys = []int64{s.locks.all()}
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second) // writes wait for it
	defer cancel()
	conn, err := s.acquire(ctx)
	if err != nil {
		return
	}
	var pid pgtype.Int4 // null: of a prepared transaction
	var role pgtype.Text
	rows, _ := conn.Query(ctx, s.sql.holders, keys, s.opts.schema()) // rows have the error
	_, err = pgx.ForEachRow(rows, []any{&pid, &role}, func() error {
		s.log.Warn("writes wait for a lock that a session holds", "pid", pid.Int32, "role", role.String)
		return nil
	})
	if err != nil {
		discard(conn)
		return
	}
	conn.Release()
}

const blamePause = 10 * time.Second

// Writes are what a group changes, as parameters of apply.
type writes struct {
	any   bool
	gone  []key
	rows  []*row // those that take the place of another first
	off   []lookup
	on    []lookup
	lists []listKey
	least []uuid.UUID // of the entries of a list
	entry []entry
	place map[listKey]int32

	changed int
	args    []any
}

type lookup struct {
	hashKey
	id uuid.UUID
}

// An entry is a record that has come into a list, or left it.
type entry struct {
	list  int32 // from 1
	id    uuid.UUID
	class uint8
	n     int32
}

// writes returns the difference between what is stored and the overlay.
func (g *group) writes() *writes {
	w := &writes{place: map[listKey]int32{}}
	var fresh []*row
	for _, k := range slices.SortedFunc(maps.Keys(g.overlay), compareKeys) {
		before, after := g.known[k], g.overlay[k]
		if before == after {
			continue
		}
		w.any = true
		switch {
		case after == nil:
			w.gone = append(w.gone, k)
		case before == nil:
			fresh = append(fresh, after)
		default:
			w.rows = append(w.rows, after)
		}
		w.setLookups(before, after)
		w.setLists(before, after)
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
		if except != nil {
			for _, hash := range except.hashes() {
				seen[string(hash)] = true
			}
		}
		for _, hash := range of.hashes() {
			if !seen[string(hash)] {
				seen[string(hash)] = true
				*to = append(*to, lookup{hashKey{of.kind, string(hash)}, of.id})
			}
		}
	}
	collect(before, after, &w.off)
	collect(after, before, &w.on)
}

func (w *writes) setLists(before, after *row) {
	if before != nil && after != nil && before.class == after.class && before.list() == after.list() {
		return
	}
	for _, r := range []*row{before, after} {
		if r == nil || r.class == 0 {
			continue
		}
		list := r.list()
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

func compareKeys(a, b key) int {
	return cmp.Or(cmp.Compare(a.kind, b.kind), slices.Compare(a.id[:], b.id[:]))
}

// encode makes the parameters of apply, but for the first three. The rows get stamp.
func (w *writes) encode(g *group, writer uuid.UUID, turn, stamp int64) {
	n := len(g.relied)
	readKinds, readIDs, readStamps := make([]int16, 0, n), make([]pgtype.UUID, 0, n), make([]pgtype.Int8, 0, n)
	for k := range g.relied {
		s := pgtype.Int8{}
		if r := g.known[k]; r != nil {
			s = pgtype.Int8{Int64: r.stamp, Valid: true}
		} else if g.overlay[k] != nil {
			continue // that there was none, the primary key sees to
		}
		readKinds, readIDs = append(readKinds, int16(k.kind)), append(readIDs, pgUUID(k.id))
		readStamps = append(readStamps, s)
	}
	goneKinds, goneIDs := columnsOf(w.gone)
	n = len(w.rows)
	kinds, classes, children := make([]int16, n), make([]int16, n), make([]bool, n)
	ids, accounts, scopes := make([]pgtype.UUID, n), make([]pgtype.UUID, n), make([]pgtype.UUID, n)
	dues, versions := make([]pgtype.Timestamptz, n), make([]int64, n)
	lookups, shown, secret := make([][]byte, n), make([][]byte, n), make([][]byte, n)
	for i, r := range w.rows {
		list := r.list()
		r.stamp = stamp
		kinds[i], ids[i], accounts[i], scopes[i], children[i] = int16(r.kind), pgUUID(r.id), pgUUID(r.account), pgUUID(list.scope), list.child
		classes[i], dues[i], versions[i] = int16(r.class), r.due, int64(r.version)
		lookups[i], shown[i], secret[i] = r.lookup, r.shown, r.secret
	}
	w.args = []any{readKinds, readIDs, readStamps}
	if w.any {
		w.args = append(w.args, pgUUID(writer), turn, stamp)
	} else {
		w.args = append(w.args, pgtype.UUID{}, pgtype.Int8{}, pgtype.Int8{})
	}
	w.args = append(w.args, goneKinds, goneIDs, kinds, ids, accounts, scopes, children, classes, dues, versions, lookups, shown, secret, int32(w.changed))
	for _, l := range [][]lookup{w.off, w.on} {
		var k []int16
		var h [][]byte
		var i []pgtype.UUID
		for _, l := range l {
			k, h, i = append(k, int16(l.kind)), append(h, []byte(l.hash)), append(i, pgUUID(l.id))
		}
		w.args = append(w.args, k, h, i)
	}
	n = len(w.lists)
	kinds, children, scopes, ids = make([]int16, n), make([]bool, n), make([]pgtype.UUID, n), make([]pgtype.UUID, n)
	for i, l := range w.lists {
		kinds[i], children[i], scopes[i], ids[i] = int16(l.kind), l.child, pgUUID(l.scope), pgUUID(w.least[i])
	}
	w.args = append(w.args, kinds, children, scopes, ids)
	n = len(w.entry)
	places, entries, of, by := make([]int32, n), make([]pgtype.UUID, n), make([]int16, n), make([]int32, n)
	for i, e := range w.entry {
		places[i], entries[i], of[i], by[i] = e.list, pgUUID(e.id), int16(e.class), e.n
	}
	w.args = append(w.args, places, entries, of, by)
}

// judge is the verdict on a failure to make the writes.
func (w *writes) judge(err error) verdict {
	if w.any {
		return judge(err)
	}
	return verdictOfRead(err)
}
