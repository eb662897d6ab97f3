package boltstore

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"runtime/debug"
	"slices"
	"time"

	"github.com/google/uuid"
	bolt "go.etcd.io/bbolt"

	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/internal/sums"
)

// The buckets. Rows have one for each kind.
var (
	metaBucket   = []byte("meta")   // formatKey → format
	listsBucket  = []byte("lists")  // nodeKey → node, for every record with a class or parent
	dueBucket    = []byte("due")    // dueKey → list without its kind, class
	lookupBucket = []byte("lookup") // kind, length, hash, id → nothing
)

func rowsBucket(kind store.Kind) *[5]byte { return &rowsBuckets[kind] }

// rowsBuckets has the names, as a name that is made for a call would cost an allocation.
var rowsBuckets = func() (all [256][5]byte) {
	for kind := range all {
		all[kind] = [5]byte{'r', 'o', 'w', 's', byte(kind)}
	}
	return all
}()

var (
	errLists   = fmt.Errorf("%w: a list is not in order", store.ErrDamaged)
	errIndex   = fmt.Errorf("%w: an index does not agree with the rows", store.ErrDamaged)
	errBuckets = fmt.Errorf("%w: a part of the file is missing", store.ErrDamaged)
)

// failed is the panic value by which the inner functions of this package end
// an operation on damaged data, as bbolt itself panics there; [guard] turns
// both into an error.
type failed struct{ err error }

func check(err error) {
	if err != nil {
		panic(failed{err})
	}
}

// guard is deferred around everything that touches the mapped file, never
// around code of a caller. Together with debug.SetPanicOnFault it keeps a
// damaged or truncated file from ending the process.
func guard(err *error) {
	p := recover()
	if p == nil {
		return
	}
	var f failed
	switch p := p.(type) {
	case failed:
		f = p
	default:
		f.err = fmt.Errorf("%w: %v", store.ErrDamaged, p)
	}
	*err = f.err
}

func bucket(tx *bolt.Tx, name []byte) *bolt.Bucket {
	b := tx.Bucket(name)
	if b == nil {
		panic(failed{errBuckets})
	}
	return b
}

// A reader is a store.ReadTx on a bolt transaction.
type reader struct {
	tx *bolt.Tx

	snapshot *snapshot       // of a View
	ctx      context.Context // of a View: ends long walks

	recall *recall // of an Update
	lister *lister // of an Update: flushed before a list is read
	strays []stray
	fanout fanout
}

var (
	_ store.ReadTx  = (*reader)(nil)
	_ store.Checker = (*reader)(nil)
)

// end makes later use panic.
func (r *reader) end() { r.tx, r.snapshot = nil, nil }

func (r *reader) mustLive() {
	if r.tx == nil {
		panic("boltstore: transaction used after its function has returned")
	}
}

func (r *reader) Get(kind store.Kind, id uuid.UUID) (rec *store.Record, err error) {
	r.mustLive()
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer guard(&err)
	raw := r.raw(kind, id[:])
	if raw == nil {
		return nil, store.ErrNotFound
	}
	found, err := decodeRow(raw)
	if err != nil {
		return nil, err
	}

	return found.record(kind, id, true), nil
}

// raw returns a record as it is in the file, nil if it is not there.
func (r *reader) raw(kind store.Kind, id []byte) []byte {
	if r.snapshot != nil {
		return r.snapshot.row(kind, id)
	}
	if r.recall != nil {
		if raw := r.recall.find(kind, uuid.UUID(id)); raw != nil {
			return raw
		}
	}
	name := rowsBucket(kind)
	rows := r.tx.Bucket(name[:])
	if rows == nil {
		return nil
	}
	raw := rows.Get(id)
	if raw != nil && r.recall != nil {
		r.recall.keep(kind, uuid.UUID(id), raw)
	}
	return raw
}

// patient is called in each step of a walk that may be long, and ends it when ctx has ended.
func (r *reader) patient(step int) {
	if step%256 == 0 && r.ctx != nil {
		check(r.ctx.Err())
	}
}

// A finder finds rows of a kind. Neighbours in an index are often neighbours among the rows.
type finder struct {
	cur    *bolt.Cursor // nil: there are no rows
	desc   bool         // the rows are looked for in descending order
	k, raw []byte       // where it is
}

func (r *reader) rowsOf(kind store.Kind, desc bool) finder {
	f := finder{desc: desc}
	name := rowsBucket(kind)
	if b := r.tx.Bucket(name[:]); b != nil {
		f.cur = b.Cursor()
	}
	return f
}

// read returns a row, one without raw for an id that has none, or the error of a row that is not in
// the format of rows.
func (f *finder) read(id []byte) (row, error) {
	if f.cur == nil {
		return row{}, nil
	}
	switch {
	case f.k == nil:
	case f.desc:
		f.k, f.raw = f.cur.Prev()
	default:
		f.k, f.raw = f.cur.Next()
	}
	if !bytes.Equal(f.k, id) {
		if f.k, f.raw = f.cur.Seek(id); !bytes.Equal(f.k, id) {
			return row{}, nil
		}
	}
	return decodeRow(f.raw)
}

func (r *reader) List(q *store.Query) (list *store.List, err error) {
	r.mustLive()
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer guard(&err)
	if q.Lookup != nil {
		return r.listLookup(q), nil
	}
	if r.lister != nil {
		r.lister.flush()
	}

	s := scan{list: keyOfList(q.Kind, q.Account, q.Parent), classes: q.Classes}
	s.lapsed = r.lapsed(q, s.list)
	s.init(bucket(r.tx, listsBucket))
	if s.level == 0 {
		r.mustLackList(s.list)
	}

	begin, end := int64(0), s.total()
	if q.Min != uuid.Nil {
		begin = s.rank(q.Min, false)
	}
	if q.Max != uuid.Nil {
		end = max(begin, s.rank(q.Max, true))
	}
	list = new(store.List)
	if q.Count {
		list.Total = end - begin
	}

	offset := max(0, q.Offset)
	limit := int(min(int64(q.Limit), end-begin-offset))
	if limit <= 0 {
		return list, nil
	}
	skip := begin + offset
	if q.Desc {
		skip = s.total() - end + offset
	}

	rows, made := r.rowsOf(q.Kind, q.Desc), newCopies(limit)
	list.Records = make([]*store.Record, 0, min(limit, 1024))
	s.walk(skip, q.Desc, func(id uuid.UUID, class uint8) bool {
		found, err := rows.read(id[:])
		rec := made.next()
		switch {
		case err != nil || found.raw == nil:
			*rec = store.Record{Kind: q.Kind, ID: id, Account: q.Account, Parent: q.Parent}
		case found.class == class && keyOfList(q.Kind, found.account, found.parent) == s.list && !found.lapsed(q):
			found.copyTo(rec, made.room(found.copied(false)), q.Kind, id, false)
		default:
			*rec = store.Record{Kind: q.Kind, ID: id, Account: found.account, Parent: found.parent}
		}
		list.Records = append(list.Records, rec)
		return len(list.Records) < limit
	})

	if len(list.Records) < limit {
		return nil, errLists
	}
	return list, nil
}

// A flipped bit in the key of an entry leaves it in its place on the page, where the search for the
// right key ends. So a search that finds nothing looks at the entries on both sides. Either panics
// with a failed if they are out of order, or if the row says that it should have been found.

// besides returns the entries on both sides of a key that is not there.
func besides(b *bolt.Bucket, key []byte) (keys, values [2][]byte) {
	c := b.Cursor()
	if keys[1], values[1] = c.Seek(key); keys[1] == nil {
		keys[0], values[0] = c.Last()
	} else {
		keys[0], values[0] = c.Prev()
	}
	if keys[0] != nil && bytes.Compare(keys[0], key) >= 0 || keys[1] != nil && bytes.Compare(keys[1], key) <= 0 {
		panic(failed{errIndex})
	}
	return keys, values
}

// mustLackList is called for a list that is not there.
func (r *reader) mustLackList(list listKey) {
	kind := store.Kind(list[17])
	rows := r.rowsOf(kind, false)
	keys, values := besides(bucket(r.tx, listsBucket), list[:])
	for i, k := range keys {
		switch {
		case k == nil:
			continue
		case len(k) != len(nodeKey{}), k[0] != ofParent && k[0] != ofAccount:
			panic(failed{errLists})
		case k[18] != ^byte(1):
			continue
		}

		_, entries := decodeNode(1, values[i], func(uint8, int64) {})
		if entries.len() == 0 {
			continue
		}
		id := entries.id(0)
		if found, err := rows.read(id[:]); err == nil && found.listed() && keyOfList(kind, found.account, found.parent) == list {
			panic(failed{errLists})
		}
	}
}

// mustLackHash is called for a hash by which nothing is found.
func (r *reader) mustLackHash(kind store.Kind, hash []byte) {
	if len(hash) > store.MaxLookup {
		return
	}
	rows := r.rowsOf(kind, false)
	keys, _ := besides(bucket(r.tx, lookupBucket), appendLookupKey(make([]byte, 0, 2+store.MaxLookup), kind, hash))
	for _, k := range keys {
		switch {
		case k == nil:
			continue
		case len(k) < 2+16 || len(k) != 2+int(k[1])+16:
			panic(failed{errIndex})
		}
		if found, err := rows.read(k[len(k)-16:]); err == nil && found.hasLookup(hash) {
			panic(failed{errIndex})
		}
	}
}

// lapsed returns, in order, the ids of a list that q.Live leaves out.
func (r *reader) lapsed(q *store.Query, list listKey) (ids []uuid.UUID) {
	if q.Live.IsZero() {
		return nil
	}
	r.eachDue(q.Kind, q.Live, func(k, v []byte) bool {
		if bytes.Equal(v[:17], list[:17]) && wanted(&q.Classes, v[17]) {
			ids = append(ids, uuid.UUID(k[9:]))
		}
		return true
	})
	slices.SortFunc(ids, compareIDs)
	return ids
}

// eachDue calls f with the entries that are due at or before until, in order, until it
// returns false.
func (r *reader) eachDue(kind store.Kind, until time.Time, f func(k, v []byte) bool) {
	limit := until.UnixMicro()
	c := bucket(r.tx, dueBucket).Cursor()
	step := 0
	for k, v := c.Seek([]byte{byte(kind)}); len(k) > 0 && k[0] == byte(kind); k, v = c.Next() {
		if len(k) != len(dueKey{}) || len(v) != 18 {
			panic(failed{errIndex})
		}
		if dueOfKey(k) > limit || !f(k, v) {
			return
		}
		step++
		r.patient(step)
	}
}

// eachLookup calls f with the ids of the records that have a hash, in order,
// until it returns false.
func (r *reader) eachLookup(kind store.Kind, hash []byte, f func(id []byte) bool) {
	if len(hash) > store.MaxLookup {
		return
	}

	prefix := appendLookupKey(make([]byte, 0, 2+store.MaxLookup), kind, hash)
	c := bucket(r.tx, lookupBucket).Cursor()
	step := 0
	for k, _ := c.Seek(prefix); bytes.HasPrefix(k, prefix); k, _ = c.Next() {
		if len(k) != len(prefix)+16 {
			panic(failed{errIndex})
		}
		if !f(k[len(prefix):]) {
			return
		}
		step++
		r.patient(step)
	}
}

// listLookup answers a query for one hash by looking at all that have it.
func (r *reader) listLookup(q *store.Query) *store.List {
	shared := 0
	r.eachLookup(q.Kind, q.Lookup, func([]byte) bool {
		shared++
		return shared <= store.MaxShared
	})
	switch {
	case shared > store.MaxShared:
		panic(failed{store.ErrTooMany})
	case shared == 0:
		r.mustLackHash(q.Kind, q.Lookup)
	}

	var ids []uuid.UUID
	rows := r.rowsOf(q.Kind, false)
	hides := r.hiding(q)
	r.eachLookup(q.Kind, q.Lookup, func(key []byte) bool {
		id := uuid.UUID(key)
		if compareIDs(id, q.Min) < 0 || q.Max != uuid.Nil && compareIDs(id, q.Max) > 0 {
			return true
		}
		found, err := rows.read(key)
		if err != nil {
			ids = append(ids, id) // of the hash, and so perhaps of the list: this holds for a lost row, too
			return true
		}
		if found.raw == nil || !found.hasLookup(q.Lookup) {
			r.pass(lostRow{q.Kind, store.IndexLookup})
			ids = append(ids, id)
			return true
		}
		if found.selected(q) {
			ids = append(ids, id)
		} else if hides(id, &found) {
			r.pass(lostRow{q.Kind, store.IndexLookup})
			ids = append(ids, id)
		}
		return true
	})

	list := new(store.List)
	if q.Count {
		list.Total = int64(len(ids))
	}
	if q.Desc {
		slices.Reverse(ids)
	}

	ids = ids[min(max(0, q.Offset), int64(len(ids))):]
	for _, id := range ids[:max(0, min(q.Limit, len(ids)))] {
		found, err := rows.read(id[:])
		rec := &store.Record{Kind: q.Kind, ID: id, Account: q.Account, Parent: q.Parent}
		switch {
		case err != nil || !found.hasLookup(q.Lookup):
		case found.selected(q):
			rec = found.record(q.Kind, id, false)
		default:
			rec.Account, rec.Parent = found.account, found.parent
		}
		list.Records = append(list.Records, rec)
	}
	return list
}

// selected reports whether a row that has the hash of a query says that the query selects it.
func (r *row) selected(q *store.Query) bool {
	return keyOfList(q.Kind, r.account, r.parent) == keyOfList(q.Kind, q.Account, q.Parent) && wanted(&q.Classes, r.class) && !r.lapsed(q)
}

// hiding returns a function that reports whether a row is damaged which a query by hash does not
// select: a list has it as one to select, or it says that it has lapsed and no entry says so.
func (r *reader) hiding(q *store.Query) func(id uuid.UUID, found *row) bool {
	var lists lister
	list := keyOfList(q.Kind, q.Account, q.Parent)
	return func(id uuid.UUID, found *row) (hidden bool) {
		if lists.nodes == nil {
			if r.lister != nil {
				r.lister.flush()
			}
			lists.begin(r.tx.Bucket, r.fanout, nil)
		}

		err := guarded(func() error {
			class, listed := lists.classOf(list, id)
			hidden = listed && wanted(&q.Classes, class)
			if hidden && found.lapsed(q) {
				key, value := keyOfDue(q.Kind, found.due, id), list
				value[17] = class
				hidden = !bytes.Equal(bucket(r.tx, dueBucket).Get(key[:]), value[:])
			}
			return nil
		})
		return hidden || err != nil
	}
}

func (r *reader) Lookup(kind store.Kind, hash []byte, limit int) (recs []*store.Record, err error) {
	r.mustLive()
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer guard(&err)
	if limit <= 0 {
		return nil, nil
	}
	rows := r.rowsOf(kind, false)
	r.eachLookup(kind, hash, func(key []byte) bool {
		found, unread := rows.read(key)
		if unread != nil || found.raw == nil || !found.hasLookup(hash) {
			r.pass(lostRow{kind, store.IndexLookup})
			err = errIndex
			return true
		}
		recs = append(recs, found.record(kind, uuid.UUID(key), true))
		return len(recs) < limit
	})
	if recs == nil && err == nil {
		r.mustLackHash(kind, hash)
	}

	return recs, err
}

func (r *reader) Due(kind store.Kind, shards store.Shards, until time.Time, limit int) (recs []*store.Record, err error) {
	r.mustLive()
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer guard(&err)
	if limit <= 0 {
		return nil, nil
	}
	r.eachDueRow(kind, shards, until, func(id uuid.UUID, found *row) bool {
		recs = append(recs, found.record(kind, id, true))
		return len(recs) < limit
	})
	return recs, nil
}

// eachDueRow calls f with the rows of some shards that are due at or before until, in
// order, until it returns false. It passes over rows that are absent, cannot be read or are
// not due then. One process has the file, and with it all shards, so they need no index.
func (r *reader) eachDueRow(kind store.Kind, shards store.Shards, until time.Time, f func(uuid.UUID, *row) bool) {
	name := rowsBucket(kind)
	rows := r.tx.Bucket(name[:])
	r.eachDue(kind, until, func(k, v []byte) bool {
		id := uuid.UUID(k[9:])
		if !shards.Has(store.ShardOf(id)) {
			return true
		}

		var raw []byte
		if rows != nil {
			raw = rows.Get(id[:])
		}
		found, err := decodeRow(raw) // an absent one is not in the format either
		if err != nil {
			r.pass(lostRow{kind, store.IndexDue})
			return true
		}
		agrees := found.hasDue && found.due == dueOfKey(k)
		if !agrees || found.class != v[17] || keyOfList(kind, found.account, found.parent) != listOfDue(kind, v) {
			r.pass(strayDue(k))
		}
		return !agrees || f(id, &found)
	})
}

func (r *reader) Next(kind store.Kind, shards store.Shards) (due time.Time, err error) {
	r.mustLive()
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer guard(&err)
	r.eachDueRow(kind, shards, latest, func(_ uuid.UUID, found *row) bool {
		due = time.UnixMicro(found.due).UTC()
		return false
	})
	return due, nil
}

// latest is the last time that an index can have.
var latest = time.UnixMicro(math.MaxInt64)

func (r *reader) Scan(kind store.Kind, after uuid.UUID, limit int) (recs []*store.Record, err error) {
	r.mustLive()
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer guard(&err)
	name := rowsBucket(kind)
	rows := r.tx.Bucket(name[:])
	if rows == nil {
		return nil, nil
	}

	cur := rows.Cursor()
	k, raw := cur.Seek(after[:])
	if bytes.Equal(k, after[:]) {
		k, raw = cur.Next()
	}

	for ; k != nil && len(recs) < limit; k, raw = cur.Next() {
		if len(k) != len(after) {
			return nil, errRow
		}
		found, err := decodeRow(raw)
		if err != nil {
			recs = append(recs, &store.Record{Kind: kind, ID: uuid.UUID(k)})
			continue
		}
		recs = append(recs, found.record(kind, uuid.UUID(k), true))
	}

	return recs, nil
}

func (r *reader) Children(parent uuid.UUID, limit int) (keys []store.Key, err error) {
	r.mustLive()
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer guard(&err)
	if limit <= 0 || parent == uuid.Nil {
		return nil, nil
	}
	if r.lister != nil {
		r.lister.flush()
	}

	of := keyOfList(0, uuid.Nil, parent)
	cur := bucket(r.tx, listsBucket).Cursor()

	// One list for each kind of children. Its blocks come after its other nodes.
	for k, _ := cur.Seek(of[:17]); bytes.HasPrefix(k, of[:17]); {
		if len(k) != len(nodeKey{}) || k[18] == ^byte(0) {
			return nil, errLists
		}
		list := listKey(k[:18])
		kind := store.Kind(list[17])
		name := rowsBucket(kind)
		rows := r.tx.Bucket(name[:])
		block := keyOfNode(list, 1, uuid.Nil)
		var v []byte

		for k, v = cur.Seek(block[:]); block.sameLevel(k); k, v = cur.Next() {
			_, entries := decodeNode(1, v, func(uint8, int64) {})
			for i := range entries.len() {
				id := entries.id(i)
				var raw []byte
				if rows != nil {
					raw = rows.Get(id[:])
				}
				// A row that cannot be read exists, and can be deleted.
				if found, err := decodeRow(raw); raw == nil || err == nil && found.parent != parent {
					r.pass(lostRow{kind, store.IndexList})
					continue
				}
				if keys = append(keys, store.Key{Kind: kind, ID: id}); len(keys) == limit {
					return keys, nil
				}
			}
		}
	}

	return keys, nil
}

func (r *reader) Empty() (empty bool, err error) {
	r.mustLive()
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer guard(&err)
	for kind := range 256 {
		name := rowsBucket(store.Kind(kind))
		if rows := r.tx.Bucket(name[:]); rows != nil {
			if k, _ := rows.Cursor().First(); k != nil {
				return false, nil
			}
		}
	}
	return true, nil
}

// An op is one write of a function: a row to put, or none to delete.
type op struct {
	kind    store.Kind
	id      uuid.UUID
	row     []byte
	deletes bool
	loads   bool // whatever its version
}

// An updater is a store.Tx: a reader that collects writes.
type updater struct {
	reader
	ops   []op
	rows  *slab // has the rows of ops
	bytes int   // of the rows of ops
	few   [2]op // most have no more
}

var (
	_ store.Tx     = (*updater)(nil)
	_ store.Loader = (*updater)(nil)
)

func (u *updater) Put(r *store.Record) { u.put(r, false) }

// Load implements [store.Loader].
func (u *updater) Load(r *store.Record) { u.put(r, true) }

func (u *updater) put(r *store.Record, loads bool) {
	u.mustLive()
	o := op{kind: r.Kind, id: r.ID, row: encodeRow(r, u.rows), loads: loads}
	u.add(o)
	u.bytes += len(o.row)
}

func (u *updater) Delete(kind store.Kind, id uuid.UUID) {
	u.mustLive()
	u.add(op{kind: kind, id: id, deletes: true})
}

func (u *updater) add(o op) {
	if u.ops == nil {
		u.ops = u.few[:0]
	}
	u.ops = append(u.ops, o)
}

// A writer makes the writes of one bolt transaction, keeping the indexes equal
// to the rows. Its methods panic on damage, with a failed; the transaction
// must be dropped then.
type writer struct {
	indexes
	tx      *bolt.Tx
	copying *compaction // under way
	undo    []undo
	wrote   bool
	recall  recall
	kinds   []store.Kind // of the rows that were set
	full    bool         // there was no room for a commit; kept until the file grows
	rebuild rebuild      // of the indexes

	tails [256]*tail // by kind; kept from one transaction to the next

	sums  *sums.List
	shown [2]store.Record // to sums
	added []store.Key     // of the records that sums have added
}

// Indexes are all entries that lead to rows.
type indexes struct {
	due, lookup table
	lister      lister
	key         []byte // scratch
}

// An undo restores the previous value of a key.
type undo struct {
	kind store.Kind
	id   uuid.UUID
	old  row
}

func (w *writer) begin(tx *bolt.Tx, f fanout, copying *compaction) {
	w.tx, w.copying, w.wrote, w.kinds, w.recall, w.added = tx, copying, false, w.kinds[:0], recall{}, w.added[:0]
	w.sums.Begin()
	w.indexes.begin(tx.Bucket, f, copying)
	w.rebuild.begin(tx, f)
	w.lister.apart = w.rebuild.under
	for _, t := range w.tails {
		if t != nil {
			t.before = append(t.before[:0], t.bound...)
		}
	}
}

// begin starts a transaction.
func (x *indexes) begin(named func([]byte) *bolt.Bucket, f fanout, copying *compaction) {
	x.due, x.lookup = tableOf(named, dueBucket, copying), tableOf(named, lookupBucket, copying)
	x.lister.begin(named, f, copying)
}

// apply makes the writes of one function, all or none: what breaks a rule is
// refused and leaves the transaction as it was. After err it must be dropped.
func (w *writer) apply(ops []op) (refused, err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer guard(&err)
	w.undo = w.undo[:0]
	for _, o := range ops {
		if refused = w.applyOne(o); refused != nil {
			for _, u := range slices.Backward(slices.Clone(w.undo)) {
				w.set(u.kind, u.id, w.get(u.kind, u.id), u.old)
			}
			break
		}
	}
	return refused, nil
}

func (w *writer) applyOne(o op) error {
	if o.deletes {
		if old := w.doomed(o.kind, o.id); old.raw != nil {
			w.set(o.kind, o.id, old, row{})
		}
		return nil
	}

	if o.row == nil {
		return store.ErrInvalid
	}
	r, err := decodeRow(o.row)
	if err != nil {
		return err
	}

	old := w.get(o.kind, o.id)
	switch {
	case o.loads && (old.raw != nil || r.version == 0):
		return store.ErrConflict
	case !o.loads && r.version != old.version+1:
		return store.ErrConflict
	case old.raw != nil && (r.account != old.account || r.parent != old.parent):
		return store.ErrInvalid
	}

	w.set(o.kind, o.id, old, r)
	return nil
}

func (w *writer) rows(kind store.Kind) *bolt.Bucket {
	name := rowsBucket(kind)
	return w.tx.Bucket(name[:])
}

// get returns a row; an absent one has no raw and version 0.
func (w *writer) get(kind store.Kind, id uuid.UUID) row {
	raw := w.raw(kind, id)
	if raw == nil {
		return row{}
	}
	r, err := decodeRow(raw)
	check(err)
	return r
}

// doomed returns a row for deletion, as get does. A row that cannot be read has only raw:
// its index entries stay until they are passed over and mended.
func (w *writer) doomed(kind store.Kind, id uuid.UUID) row {
	raw := w.raw(kind, id)
	r, err := decodeRow(raw)
	if err != nil {
		r = row{raw: raw}
	}
	return r
}

func (w *writer) raw(kind store.Kind, id uuid.UUID) []byte {
	rows := w.rows(kind)
	if rows == nil || bytes.Compare(id[:], w.tail(kind, rows).bound) > 0 {
		return nil
	}
	return rows.Get(id[:])
}

// set replaces a row, and what the indexes say of it. Either may be absent.
func (w *writer) set(kind store.Kind, id uuid.UUID, old, new row) {
	w.undo = append(w.undo, undo{kind, id, old})
	if (old.raw != nil || new.raw != nil) && w.sums.Wants() {
		w.sums.Change(w.show(0, kind, id, &old), w.show(1, kind, id, &new))
	}
	w.replace(kind, id, old, new)
}

// replace is set for a row that is no change to sums.
func (w *writer) replace(kind store.Kind, id uuid.UUID, old, new row) {
	w.wrote = true
	if !slices.Contains(w.kinds, kind) {
		w.kinds = append(w.kinds, kind)
	}
	w.setRow(kind, id, new)
	w.setList(kind, id, &old, &new)
	w.setDue(kind, id, &old, &new)
	w.setLookups(kind, id, &old, &new)
	w.rebuild.set(kind, id, &old, &new)
}

// show returns a row as a record for sums, in one of two places, which the row backs.
func (w *writer) show(place int, kind store.Kind, id uuid.UUID, r *row) *store.Record {
	if r.raw == nil {
		return nil
	}
	rec := &w.shown[place]
	*rec = store.Record{
		Kind: kind, ID: id, Account: r.account, Parent: r.parent, Class: r.class, Version: r.version,
		Shown: r.shown, Secret: r.secret,
	}
	if r.hasDue {
		rec.Due = time.UnixMicro(r.due)
	}
	return rec
}

// sum puts the records that sums add to the transaction.
func (w *writer) sum(rows *slab) {
	added := w.sums.Records(false)
	for _, r := range added {
		if w.doomed(r.Kind, r.ID).version+1 != r.Version {
			added = w.sums.Records(true)
			break
		}
	}
	for _, r := range added {
		new, err := decodeRow(encodeRow(r, rows))
		check(err)
		w.replace(r.Kind, r.ID, w.doomed(r.Kind, r.ID), new)
		w.added = append(w.added, store.Key{Kind: r.Kind, ID: r.ID})
	}
}

// tail returns the tail of a bucket of rows.
func (w *writer) tail(kind store.Kind, rows *bolt.Bucket) *tail {
	t := w.tails[kind]
	if t == nil {
		last, _ := rows.Cursor().Last()
		t = &tail{bound: bytes.Clone(last), before: bytes.Clone(last)}
		w.tails[kind] = t
	}
	return t
}

func (w *writer) setRow(kind store.Kind, id uuid.UUID, new row) {
	w.recall.forget(kind, id)
	name := rowsBucket(kind)
	rows := table{w.rows(kind), name[:], w.copying}
	if rows.Bucket == nil {
		var err error
		rows.Bucket, err = w.tx.CreateBucket(name[:])
		check(err)
	}

	t := w.tail(kind, rows.Bucket)
	if new.version == 1 {
		// Within a transaction callers come as they like.
		t.fill.see(bytes.Compare(id[:], t.before) > 0)
	}
	rows.FillPercent = t.fill.percent() // bbolt merges a page after a deletion if it is less than half as full
	if new.raw == nil {
		if w.full { // a merge writes one more page
			rows.FillPercent = bolt.DefaultFillPercent
		}
		rows.remove(id[:])
		return
	}

	if bytes.Compare(id[:], t.bound) > 0 {
		t.bound = append(t.bound[:0], id[:]...)
	}
	rows.put(id[:], new.raw)
}

func (x *indexes) setList(kind store.Kind, id uuid.UUID, old, new *row) {
	switch was, is := old.listed(), new.listed(); {
	case was && is && old.class != new.class:
		x.lister.change(keyOfList(kind, new.account, new.parent), id, old.class, new.class)
	case was && !is:
		x.lister.remove(keyOfList(kind, old.account, old.parent), id, old.class)
	case !was && is:
		x.lister.insert(keyOfList(kind, new.account, new.parent), id, new.class)
	}
}

func (x *indexes) setDue(kind store.Kind, id uuid.UUID, old, new *row) {
	if old.hasDue && new.hasDue && old.due == new.due && old.class == new.class {
		return
	}
	if old.hasDue {
		key := keyOfDue(kind, old.due, id)
		x.due.remove(key[:])
	}
	if new.hasDue {
		key := keyOfDue(kind, new.due, id)
		value := keyOfList(kind, new.account, new.parent)
		value[17] = new.class
		x.due.put(key[:], value[:])
	}
}

func (x *indexes) setLookups(kind store.Kind, id uuid.UUID, old, new *row) {
	if bytes.Equal(old.lookups, new.lookups) {
		return
	}
	key := func(hash []byte) []byte {
		x.key = append(appendLookupKey(x.key[:0], kind, hash), id[:]...)
		return x.key
	}
	old.eachLookup(func(hash []byte) {
		if !new.hasLookup(hash) {
			x.lookup.remove(key(hash))
		}
	})

	new.eachLookup(func(hash []byte) {
		if !old.hasLookup(hash) {
			x.lookup.put(key(hash), nil)
		}
	})
}

// A fill tracks whether the keys that are put into a bucket follow each other. If most do,
// its pages are filled; otherwise bbolt leaves each half empty for keys in between. The
// zero value expects them to.
type fill struct {
	stray float64 // moving average of the share of keys that do not follow
}

func (f *fill) see(follows bool) {
	share := 1.0
	if follows {
		share = 0
	}
	f.stray += (share - f.stray) / 64
}

func (f *fill) percent() float64 {
	if f.stray < 0.25 {
		return 1
	}
	return bolt.DefaultFillPercent
}

// A tail knows the end of a bucket of rows.
type tail struct {
	bound  []byte // no key is after it
	before []byte // the bound when the transaction began
	fill   fill
}
