// Package memstore keeps the records of a vault in memory, for tests and demos.
//
// It follows the contract of package store to the letter, except that "durable" records end
// with the process. It starts no goroutine, so it works inside a bubble of
// testing/synctest. Totals and pages behind a large offset cost a walk over the list; Scan
// costs a walk over all records.
package memstore

import (
	"bytes"
	"cmp"
	"context"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/internal/sums"
	"github.com/cardvault/cardvault/store/internal/watch"
)

var (
	_ store.Store   = (*Store)(nil)
	_ store.Counter = (*Store)(nil)
	_ store.Watcher = (*Store)(nil)
	_ store.Summer  = (*Store)(nil)
	_ store.Loader  = (*tx)(nil)
)

// A Store is a [store.Store] in memory. Get one from [New].
type Store struct {
	turn chan struct{} // holds a value while an Update runs

	// Written with turn and mu held, so either is enough to read.
	mu    sync.RWMutex
	state *state // nil once closed

	// changes counts the Updates by the kinds that they wrote. It is raised with mu held, and
	// has its greatest value once closed.
	changes [256]atomic.Uint64

	watchers watch.List
	summed   sums.List
}

// New returns an empty store. It may be dropped without Close.
func New() *Store {
	return &Store{
		turn:  make(chan struct{}, 1),
		state: &state{rows: make(map[key]*store.Record), indexes: make(map[index][]entry)},
	}
}

// View implements [store.Store]. A ReadTx used after fn has returned panics.
func (s *Store) View(ctx context.Context, fn func(store.ReadTx) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.state == nil {
		return store.ErrClosed
	}
	t := &tx{state: s.state}
	defer t.end()
	return fn(t)
}

// Update implements [store.Store]. It runs fn once, in the caller's goroutine.
// A Tx used after fn has returned panics.
func (s *Store) Update(ctx context.Context, fn func(store.Tx) error) error {
	select {
	case s.turn <- struct{}{}:
	default: // a context may have to start a timer for Done
		select {
		case s.turn <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	defer func() { <-s.turn }()

	if err := ctx.Err(); err != nil {
		return err
	}
	if s.state == nil {
		return store.ErrClosed
	}
	t := &tx{state: s.state}
	defer t.end()
	if err := fn(t); err != nil {
		return err
	}

	if err := s.state.check(t.writes); err != nil {
		return err
	}
	t.sum(&s.summed)
	defer s.watchers.Changing(t.keys).End()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range t.writes {
		s.changes[w.key.kind].Add(1)
		s.state.set(w.key, w.record)
	}
	s.summed.Committed()
	return nil
}

// Sum implements [store.Summer].
func (s *Store) Sum(by store.Sums) (stop func()) { return s.summed.Add(by) }

// Watch implements [store.Watcher].
func (s *Store) Watch(changing func([]store.Key) (changed func())) (stop func()) {
	return s.watchers.Watch(changing)
}

// Changes implements [store.Counter].
func (s *Store) Changes(kind store.Kind) uint64 { return s.changes[kind].Load() + 1 }

// Close implements [store.Store]. The records are gone.
func (s *Store) Close() error {
	s.turn <- struct{}{}
	defer func() { <-s.turn }()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state = nil
	for kind := range s.changes {
		s.changes[kind].Store(math.MaxUint64)
	}
	return nil
}

type key struct {
	kind store.Kind
	id   uuid.UUID
}

func keyOf(r *store.Record) key { return key{r.Kind, r.ID} }

// A write puts a record; without a record it deletes the one at key.
type write struct {
	key    key
	record *store.Record
	loads  bool
}

// A state holds every record, and the sorted indexes by which they are found.
// Records in it are never changed, only replaced.
type state struct {
	rows    map[key]*store.Record
	indexes map[index][]entry
}

// An index is the name of one sorted slice of entries.
type index struct {
	of    byte
	kind  store.Kind
	scope uuid.UUID
	hash  string
}

// An entry stands for a record in an index of one kind, and sorts by due and id.
type entry struct {
	due int64 // microseconds; 0 in indexes that are not sorted by it
	key
	class uint8 // of the record
}

func (e entry) compare(f entry) int {
	return cmp.Or(cmp.Compare(e.due, f.due), bytes.Compare(e.id[:], f.id[:]))
}

func dueOf(kind store.Kind) index { return index{of: 'd', kind: kind} }

func childrenOf(id uuid.UUID, kind store.Kind) index { return index{of: 'c', kind: kind, scope: id} }

func hashOf(kind store.Kind, hash []byte) index {
	return index{of: 'h', kind: kind, hash: string(hash)}
}

func listOf(kind store.Kind, account, parent uuid.UUID) index {
	if parent != uuid.Nil {
		return index{of: 'p', kind: kind, scope: parent}
	}
	return index{of: 'a', kind: kind, scope: account}
}

// places calls f with every index that holds r and the entry in it.
func places(r *store.Record, f func(index, entry)) {
	e := entry{key: keyOf(r), class: r.Class}
	if r.Parent != uuid.Nil {
		f(childrenOf(r.Parent, r.Kind), e)
	}
	if r.Class != 0 {
		f(listOf(r.Kind, r.Account, r.Parent), e)
	}
	for _, hash := range r.Lookup {
		f(hashOf(r.Kind, hash), e)
	}
	if !r.Due.IsZero() {
		e.due = r.Due.UnixMicro()
		f(dueOf(r.Kind), e)
	}
}

// check returns an error unless all writes may be made, in their order.
func (s *state) check(writes []write) (err error) {
	s.each(writes, func(w write, old *store.Record) {
		if w.record != nil && err == nil {
			err = check(w, old)
		}
	})
	return err
}

// each calls f with the writes and the records in whose place they come, nil for an absent one.
func (s *state) each(writes []write, f func(w write, old *store.Record)) {
	made := map[key]*store.Record{}
	for _, w := range writes {
		old, ok := made[w.key]
		if !ok {
			old = s.rows[w.key]
		}
		f(w, old)
		made[w.key] = w.record
	}
}

// check returns an error unless a record may be written over old, which may be nil.
func check(w write, old *store.Record) error {
	r := w.record
	size := len(r.Shown) + len(r.Secret)
	for _, hash := range r.Lookup {
		if len(hash) > store.MaxLookup {
			return store.ErrInvalid
		}
		size += len(hash)
	}

	switch {
	case r.Kind == 0, r.ID == uuid.Nil, len(r.Lookup) > store.MaxLookups, size > store.MaxRecord:
		return store.ErrInvalid
	case w.loads && (old != nil || r.Version == 0):
		return store.ErrConflict
	case old == nil && r.Version != 1 && !w.loads, old != nil && r.Version != old.Version+1:
		return store.ErrConflict
	case old != nil && (r.Account != old.Account || r.Parent != old.Parent):
		return store.ErrInvalid
	}
	return nil
}

// set replaces the record at k with r, or removes it if r is nil.
func (s *state) set(k key, r *store.Record) {
	if old := s.rows[k]; old != nil {
		delete(s.rows, k)
		places(old, s.remove)
	}
	if r != nil {
		s.rows[k] = r
		places(r, s.insert)
	}
}

func (s *state) insert(x index, e entry) {
	entries := s.indexes[x]
	i, found := slices.BinarySearchFunc(entries, e, entry.compare)
	if !found {
		s.indexes[x] = slices.Insert(entries, i, e)
	}
}

func (s *state) remove(x index, e entry) {
	entries := s.indexes[x]
	i, found := slices.BinarySearchFunc(entries, e, entry.compare)
	switch {
	case found && len(entries) == 1:
		delete(s.indexes, x)
	case found:
		s.indexes[x] = slices.Delete(entries, i, i+1)
	}
}

// A tx reads a state and collects writes.
type tx struct {
	state  *state
	writes []write
}

func (t *tx) end() { t.state = nil }

func (t *tx) Get(kind store.Kind, id uuid.UUID) (*store.Record, error) {
	r := t.state.rows[key{kind, id}]
	if r == nil {
		return nil, store.ErrNotFound
	}
	return r.Clone(), nil
}

func (t *tx) List(q *store.Query) (*store.List, error) {
	if q.Lookup != nil && len(t.state.indexes[hashOf(q.Kind, q.Lookup)]) > store.MaxShared {
		return nil, store.ErrTooMany
	}

	entries := t.state.indexes[listOf(q.Kind, q.Account, q.Parent)]
	from, _ := slices.BinarySearchFunc(entries, q.Min, compareID)
	to := len(entries)
	if q.Max != uuid.Nil {
		i, found := slices.BinarySearchFunc(entries, q.Max, compareID)
		if found {
			i++
		}
		to = max(from, i)
	}
	entries = entries[from:to]

	var classes [256]bool
	for c := range classes {
		classes[c] = q.Classes.Has(uint8(c))
	}

	list, skipped := new(store.List), int64(0)
	for i := range entries {
		if !q.Count && len(list.Records) >= q.Limit {
			break
		}
		if q.Desc {
			i = len(entries) - 1 - i
		}
		if !classes[entries[i].class] {
			continue
		}

		r := t.state.rows[entries[i].key]
		if !selects(q, r) {
			continue
		}
		if q.Count {
			list.Total++
		}

		switch {
		case skipped < q.Offset:
			skipped++
		case len(list.Records) < q.Limit:
			shown := *r
			shown.Secret = nil
			list.Records = append(list.Records, shown.Clone())
		}
	}

	return list, nil
}

func compareID(e entry, id uuid.UUID) int { return bytes.Compare(e.id[:], id[:]) }

// selects reports whether a record of the list, range and classes of q is selected.
func selects(q *store.Query, r *store.Record) bool {
	return (q.Live.IsZero() || r.Due.IsZero() || r.Due.After(q.Live)) &&
		(q.Lookup == nil || slices.ContainsFunc(r.Lookup, func(h []byte) bool { return bytes.Equal(h, q.Lookup) }))
}

func (t *tx) Lookup(kind store.Kind, hash []byte, limit int) ([]*store.Record, error) {
	return t.first(hashOf(kind, hash), store.AllShards, math.MaxInt64, limit), nil
}

func (t *tx) Due(kind store.Kind, shards store.Shards, until time.Time, limit int) ([]*store.Record, error) {
	return t.first(dueOf(kind), shards, until.UnixMicro(), limit), nil
}

// first returns at most limit records of an index, of some shards, with a due up to until.
func (t *tx) first(x index, shards store.Shards, until int64, limit int) []*store.Record {
	var records []*store.Record
	for _, e := range t.state.indexes[x] {
		if e.due > until || len(records) >= limit {
			break
		}
		if shards.Has(store.ShardOf(e.id)) {
			records = append(records, t.state.rows[e.key].Clone())
		}
	}
	return records
}

func (t *tx) Next(kind store.Kind, shards store.Shards) (time.Time, error) {
	for _, e := range t.state.indexes[dueOf(kind)] {
		if shards.Has(store.ShardOf(e.id)) {
			return time.UnixMicro(e.due).UTC(), nil
		}
	}
	return time.Time{}, nil
}

func (t *tx) Scan(kind store.Kind, after uuid.UUID, limit int) ([]*store.Record, error) {
	var ids []uuid.UUID
	for k := range t.state.rows {
		if k.kind == kind && bytes.Compare(k.id[:], after[:]) > 0 {
			ids = append(ids, k.id)
		}
	}
	slices.SortFunc(ids, func(a, b uuid.UUID) int { return bytes.Compare(a[:], b[:]) })
	var records []*store.Record
	for _, id := range ids[:max(0, min(limit, len(ids)))] {
		records = append(records, t.state.rows[key{kind, id}].Clone())
	}
	return records, nil
}

func (t *tx) Children(parent uuid.UUID, limit int) ([]store.Key, error) {
	var keys []store.Key
	for kind := range 256 {
		entries := t.state.indexes[childrenOf(parent, store.Kind(kind))]
		for _, e := range entries[:max(0, min(limit-len(keys), len(entries)))] {
			keys = append(keys, store.Key{Kind: e.kind, ID: e.id})
		}
	}
	return keys, nil
}

func (t *tx) Empty() (bool, error) { return len(t.state.rows) == 0, nil }

func (t *tx) Put(r *store.Record) { t.put(r, false) }

// Load implements [store.Loader].
func (t *tx) Load(r *store.Record) { t.put(r, true) }

func (t *tx) put(r *store.Record, loads bool) {
	r = r.Clone()
	if !r.Due.IsZero() {
		r.Due = time.UnixMicro(r.Due.UnixMicro()).UTC()
	}
	t.writes = append(t.writes, write{keyOf(r), r, loads})
}

// keys returns the keys of the writes.
func (t *tx) keys() []store.Key {
	keys := make([]store.Key, len(t.writes))
	for i, w := range t.writes {
		keys[i] = store.Key{Kind: w.key.kind, ID: w.key.id}
	}
	return keys
}

// sum shows the writes to l, and adds the writes of what that returns.
func (t *tx) sum(l *sums.List) {
	l.Begin()
	t.state.each(t.writes, func(w write, old *store.Record) {
		if (old != nil || w.record != nil) && l.Wants() {
			l.Change(old, w.record)
		}
	})

	added := l.Records(false)
	follows := func(r *store.Record) bool {
		old := t.state.rows[keyOf(r)]
		return old == nil && r.Version == 1 || old != nil && r.Version == old.Version+1
	}
	for _, r := range added {
		if !follows(r) {
			added = l.Records(true)
			break
		}
	}
	for _, r := range added {
		t.put(r, false)
	}
}

func (t *tx) Delete(kind store.Kind, id uuid.UUID) {
	t.writes = append(t.writes, write{key: key{kind, id}})
}
