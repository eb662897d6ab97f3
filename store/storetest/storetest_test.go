package storetest_test

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cardvault/cardvault/internal/contract"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/memstore"
	"github.com/cardvault/cardvault/store/storetest"
)

var background = context.Background()

// A mutant is a store with a fault in one of its methods. A nil method is the store's own.
type mutant struct {
	store.Store
	view   func(ctx context.Context, fn func(store.ReadTx) error) error
	update func(ctx context.Context, fn func(store.Tx) error) error
	close  func() error
	reads
	put     func(tx store.Tx, r *store.Record)
	delete  func(tx store.Tx, kind store.Kind, id uuid.UUID)
	changes func(kind store.Kind) uint64
	in      func(tx store.Tx, account uuid.UUID) store.Tx // nil: accounts are not kept apart
	load    func(tx store.Tx, r *store.Record)
	watch   func(changing func([]store.Key) func()) (stop func())
	sum     func(store.Sums) store.Sums

	snapshot func(ctx context.Context, fn func(store.ReadTx) error) error
	check    checkFunc // nil: indexes are not checked
	repair   func(place []byte) (next []byte, err error)
}

// Repair does nothing: the indexes are those of the store.
func (m *mutant) Repair(_ context.Context, place []byte, limit int) (next []byte, err error) {
	if m.repair != nil {
		return m.repair(place)
	}
	if place != nil {
		return nil, store.ErrInvalid
	}
	return nil, nil
}

type checkFunc func(place []byte, limit int) ([]store.Disagreement, []byte, error)

type checkerTx struct {
	store.ReadTx
	check checkFunc
}

func (tx checkerTx) Check(place []byte, limit int) ([]store.Disagreement, []byte, error) {
	return tx.check(place, limit)
}

type reads struct {
	get    func(tx store.ReadTx, kind store.Kind, id uuid.UUID) (*store.Record, error)
	list   func(tx store.ReadTx, q *store.Query) (*store.List, error)
	lookup func(tx store.ReadTx, kind store.Kind, hash []byte, limit int) ([]*store.Record, error)
	due    func(tx store.ReadTx, kind store.Kind, shards store.Shards, until time.Time, limit int) ([]*store.Record, error)
	next   func(tx store.ReadTx, kind store.Kind, shards store.Shards) (time.Time, error)

	scan     func(tx store.ReadTx, kind store.Kind, after uuid.UUID, limit int) ([]*store.Record, error)
	children func(tx store.ReadTx, parent uuid.UUID, limit int) ([]store.Key, error)
	empty    func(tx store.ReadTx) (bool, error)
}

func (m *mutant) View(ctx context.Context, fn func(store.ReadTx) error) error {
	view := m.Store.View
	if m.view != nil {
		view = m.view
	}
	if m.in != nil {
		return m.Store.Update(ctx, func(tx store.Tx) error { return fn(dividedTx{tx, m.in}) })
	}
	return view(ctx, func(tx store.ReadTx) error {
		if m.check != nil {
			return fn(checkerTx{tx, m.check})
		}
		return fn(readTx{tx, &m.reads})
	})
}

func (m *mutant) Update(ctx context.Context, fn func(store.Tx) error) error {
	update := m.Store.Update
	if m.update != nil {
		update = m.update
	}
	if m.in != nil {
		return m.Store.Update(ctx, func(tx store.Tx) error { return fn(dividedTx{tx, m.in}) })
	}
	return update(ctx, func(tx store.Tx) error { return fn(mutantTx{readTx{tx, &m.reads}, tx, m}) })
}

func (m *mutant) Changes(kind store.Kind) uint64 {
	if m.changes != nil {
		return m.changes(kind)
	}
	return m.Store.(store.Counter).Changes(kind)
}

func (m *mutant) Watch(changing func([]store.Key) func()) (stop func()) {
	if m.watch != nil {
		return m.watch(changing)
	}
	return m.Store.(store.Watcher).Watch(changing)
}

func (m *mutant) Sum(s store.Sums) (stop func()) {
	if m.sum != nil {
		s = m.sum(s)
	}
	return m.Store.(store.Summer).Sum(s)
}

// Snapshot shows a copy of the store.
func (m *mutant) Snapshot(ctx context.Context, fn func(store.ReadTx) error) error {
	if m.snapshot != nil {
		return m.snapshot(ctx, fn)
	}
	var all []*store.Record
	err := m.View(ctx, func(tx store.ReadTx) error {
		for kind := range 255 {
			records, err := tx.Scan(store.Kind(kind+1), uuid.Nil, 1000)
			if err != nil {
				return err
			}
			all = append(all, records...)
		}
		return nil
	})
	if err != nil {
		return err
	}

	of := memstore.New()
	err = of.Update(ctx, func(tx store.Tx) error {
		for _, r := range all {
			tx.(store.Loader).Load(r)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return of.View(ctx, fn)
}

func (m *mutant) Close() error {
	if m.close != nil {
		return m.close()
	}
	return m.Store.Close()
}

type readTx struct {
	store.ReadTx
	*reads
}

func (t readTx) Get(kind store.Kind, id uuid.UUID) (*store.Record, error) {
	if t.get != nil {
		return t.get(t.ReadTx, kind, id)
	}
	return t.ReadTx.Get(kind, id)
}

func (t readTx) List(q *store.Query) (*store.List, error) {
	if t.list != nil {
		return t.list(t.ReadTx, q)
	}
	return t.ReadTx.List(q)
}

func (t readTx) Lookup(kind store.Kind, hash []byte, limit int) ([]*store.Record, error) {
	if t.lookup != nil {
		return t.lookup(t.ReadTx, kind, hash, limit)
	}
	return t.ReadTx.Lookup(kind, hash, limit)
}

func (t readTx) Due(kind store.Kind, shards store.Shards, until time.Time, limit int) ([]*store.Record, error) {
	if t.due != nil {
		return t.due(t.ReadTx, kind, shards, until, limit)
	}
	return t.ReadTx.Due(kind, shards, until, limit)
}

func (t readTx) Next(kind store.Kind, shards store.Shards) (time.Time, error) {
	if t.next != nil {
		return t.next(t.ReadTx, kind, shards)
	}
	return t.ReadTx.Next(kind, shards)
}

func (t readTx) Scan(kind store.Kind, after uuid.UUID, limit int) ([]*store.Record, error) {
	if t.scan != nil {
		return t.scan(t.ReadTx, kind, after, limit)
	}
	return t.ReadTx.Scan(kind, after, limit)
}

func (t readTx) Children(parent uuid.UUID, limit int) ([]store.Key, error) {
	if t.children != nil {
		return t.children(t.ReadTx, parent, limit)
	}
	return t.ReadTx.Children(parent, limit)
}

func (t readTx) Empty() (bool, error) {
	if t.empty != nil {
		return t.empty(t.ReadTx)
	}
	return t.ReadTx.Empty()
}

type mutantTx struct {
	readTx
	tx store.Tx
	m  *mutant
}

func (t mutantTx) Put(r *store.Record) {
	if t.m.put != nil {
		t.m.put(t.tx, r)
		return
	}
	t.tx.Put(r)
}

func (t mutantTx) Load(r *store.Record) {
	if t.m.load != nil {
		t.m.load(t.tx, r)
		return
	}
	t.tx.(store.Loader).Load(r)
}

func (t mutantTx) Delete(kind store.Kind, id uuid.UUID) {
	if t.m.delete != nil {
		t.m.delete(t.tx, kind, id)
		return
	}
	t.tx.Delete(kind, id)
}

type dividedTx struct {
	store.Tx
	in func(tx store.Tx, account uuid.UUID) store.Tx
}

func (t dividedTx) In(account uuid.UUID) store.ReadTx { return t.in(t.Tx, account) }

// An inTx is a transaction in an account.
type inTx struct {
	store.Tx
	get      func(kind store.Kind, id uuid.UUID) (*store.Record, error)
	lookup   func(kind store.Kind, hash []byte, limit int) ([]*store.Record, error)
	children func(parent uuid.UUID, limit int) ([]store.Key, error)
	put      func(r *store.Record)
	delete   func(kind store.Kind, id uuid.UUID)
}

func (t inTx) Get(kind store.Kind, id uuid.UUID) (*store.Record, error) { return t.get(kind, id) }
func (t inTx) Lookup(kind store.Kind, hash []byte, limit int) ([]*store.Record, error) {
	return t.lookup(kind, hash, limit)
}
func (t inTx) Children(parent uuid.UUID, limit int) ([]store.Key, error) {
	return t.children(parent, limit)
}
func (t inTx) Put(r *store.Record)                  { t.put(r) }
func (t inTx) Delete(kind store.Kind, id uuid.UUID) { t.delete(kind, id) }

// inAccounts keeps accounts apart with a fault: edit makes it from the whole transaction and
// the right one of an account.
func inAccounts(edit func(tx, in store.Tx) store.Tx) func(m *mutant) {
	return func(m *mutant) {
		m.Store = storetest.Apart(m.Store, func(*store.Record, uuid.UUID) {})
		m.in = func(tx store.Tx, account uuid.UUID) store.Tx {
			return edit(tx, tx.(store.Divided).In(account).(store.Tx))
		}
	}
}

// altered returns a put of records changed by edit.
func altered(edit func(tx store.Tx, r *store.Record)) func(store.Tx, *store.Record) {
	return func(tx store.Tx, r *store.Record) {
		c := *r
		edit(tx, &c)
		tx.Put(&c)
	}
}

// asking returns a list that answers a changed query.
func asking(edit func(q *store.Query)) func(store.ReadTx, *store.Query) (*store.List, error) {
	return func(tx store.ReadTx, q *store.Query) (*store.List, error) {
		c := *q
		edit(&c)
		return tx.List(&c)
	}
}

// A collector passes reads on, and collects writes.
type collector struct {
	store.ReadTx
	writes []func(store.Tx)
}

func (c *collector) Put(r *store.Record) {
	c.writes = append(c.writes, func(tx store.Tx) { tx.Put(r) })
}

func (c *collector) Delete(kind store.Kind, id uuid.UUID) {
	c.writes = append(c.writes, func(tx store.Tx) { tx.Delete(kind, id) })
}

// collect runs fn in a View and returns its writes.
func collect(s store.Store, ctx context.Context, fn func(store.Tx) error) ([]func(store.Tx), error) {
	var c *collector
	err := s.View(ctx, func(tx store.ReadTx) error {
		c = &collector{ReadTx: tx}
		return fn(c)
	})
	return c.writes, err
}

func replay(writes ...func(store.Tx)) func(store.Tx) error {
	return func(tx store.Tx) error {
		for _, write := range writes {
			write(tx)
		}
		return nil
	}
}

// mutants lists faults, each with a rule that must detect it.
var mutants = []struct {
	fault string
	rule  string
	seed  func(m *mutant)
}{
	{"conflicts are ignored", "Versions", func(m *mutant) {
		m.put = altered(func(tx store.Tx, r *store.Record) {
			r.Version = 1
			if old, err := tx.Get(r.Kind, r.ID); err == nil {
				r.Version = old.Version + 1
			}
		})
	}},
	{"conflicts are ignored", "CompareAndSwap", func(m *mutant) {
		m.put = altered(func(tx store.Tx, r *store.Record) {
			if old, err := tx.Get(r.Kind, r.ID); err == nil {
				r.Version = old.Version + 1
			}
		})
	}},
	{"the last byte of Shown is lost", "RoundTrip", func(m *mutant) {
		m.put = altered(func(_ store.Tx, r *store.Record) { r.Shown = r.Shown[:max(0, len(r.Shown)-1)] })
	}},
	{"absent records are nil without an error", "NotFound", func(m *mutant) {
		m.get = func(tx store.ReadTx, kind store.Kind, id uuid.UUID) (*store.Record, error) {
			r, _ := tx.Get(kind, id)
			return r, nil
		}
	}},
	{"writes are sorted: deletions last", "WritesInOrder", func(m *mutant) {
		m.update = func(ctx context.Context, fn func(store.Tx) error) error {
			return m.Store.Update(ctx, func(tx store.Tx) error {
				last := &deletionsLast{Tx: tx}
				if err := fn(last); err != nil {
					return err
				}
				return replay(last.deletions...)(tx)
			})
		}
	}},
	{"sizes are cut to the limit", "Invalid", func(m *mutant) {
		m.put = altered(func(_ store.Tx, r *store.Record) {
			r.Lookup = r.Lookup[:min(len(r.Lookup), store.MaxLookups)]
		})
	}},
	{"Account is kept from the first write", "Invalid", func(m *mutant) {
		m.put = altered(func(tx store.Tx, r *store.Record) {
			if old, err := tx.Get(r.Kind, r.ID); err == nil {
				r.Account = old.Account
			}
		})
	}},
	{"Load makes the first version", "Load", func(m *mutant) {
		m.load = func(tx store.Tx, r *store.Record) {
			altered(func(_ store.Tx, r *store.Record) { r.Version = 1 })(tx, r)
		}
	}},
	{"Load writes over a record", "Load", func(m *mutant) {
		m.load = func(tx store.Tx, r *store.Record) { tx.Delete(r.Kind, r.ID); tx.(store.Loader).Load(r) }
	}},
	{"deletions are not named", "Watch", func(m *mutant) {
		m.watch = func(changing func([]store.Key) func()) func() {
			return m.Store.(store.Watcher).Watch(func(keys []store.Key) func() {
				return changing(slices.DeleteFunc(keys, func(k store.Key) bool { return k.Kind == 2 }))
			})
		}
	}},
	{"changes are named once they are made", "Watch", func(m *mutant) {
		m.watch = func(changing func([]store.Key) func()) func() {
			return m.Store.(store.Watcher).Watch(func(keys []store.Key) func() { return func() { changing(keys)() } })
		}
	}},
	{"changes are settled before they are made", "Watch", func(m *mutant) {
		m.watch = func(changing func([]store.Key) func()) func() {
			return m.Store.(store.Watcher).Watch(func(keys []store.Key) func() { changing(keys)(); return func() {} })
		}
	}},
	{"changes are never settled", "Watch", func(m *mutant) {
		m.watch = func(changing func([]store.Key) func()) func() {
			return m.Store.(store.Watcher).Watch(func(keys []store.Key) func() { changing(keys); return func() {} })
		}
	}},
	{"stop does nothing", "Watch", func(m *mutant) {
		m.watch = func(changing func([]store.Key) func()) func() {
			m.Store.(store.Watcher).Watch(changing)
			return func() {}
		}
	}},
	{"deletions are not shown", "Sum", func(m *mutant) {
		m.sum = func(s store.Sums) store.Sums {
			return wrongSums{Sums: s, change: func(former, next *store.Record) {
				if next != nil {
					s.Change(former, next)
				}
			}}
		}
	}},
	{"a change has no former record", "Sum", func(m *mutant) {
		m.sum = func(s store.Sums) store.Sums {
			return wrongSums{Sums: s, change: func(_, next *store.Record) { s.Change(nil, next) }}
		}
	}},
	{"a change has no secret part", "Sum", func(m *mutant) {
		m.sum = func(s store.Sums) store.Sums {
			return wrongSums{Sums: s, change: func(former, next *store.Record) {
				if next != nil {
					next.Secret = nil
				}
				s.Change(former, next)
			}}
		}
	}},
	{"commits are not told", "Sum", func(m *mutant) {
		m.sum = func(s store.Sums) store.Sums { return wrongSums{Sums: s, uncommitted: true} }
	}},
	{"records of former versions are put", "Sum", func(m *mutant) {
		m.sum = func(s store.Sums) store.Sums {
			return wrongSums{Sums: s, records: func(bool) []*store.Record {
				all := s.Records(false)
				for _, r := range all {
					r.Version = 1
					r.ID[1]++
				}
				return all
			}}
		}
	}},
	{"what sums return is not put", "SumAtOnce", func(m *mutant) {
		m.sum = func(s store.Sums) store.Sums {
			var last []*store.Record
			return wrongSums{Sums: s, records: func(anew bool) []*store.Record {
				put := last
				last = s.Records(anew)
				return put
			}}
		}
	}},
	{"each read of a Snapshot has a state of its own", "KeptState", func(m *mutant) {
		m.snapshot = func(ctx context.Context, fn func(store.ReadTx) error) error {
			if err := ctx.Err(); err != nil {
				return err
			}
			return fn(eachRead{m.Store})
		}
	}},
	{"a Snapshot keeps others from writing", "KeptState", func(m *mutant) {
		m.snapshot = func(ctx context.Context, fn func(store.ReadTx) error) error {
			return m.Store.View(ctx, func(tx store.ReadTx) error {
				m.update = func(context.Context, func(store.Tx) error) error { return store.ErrUnavailable }
				return fn(tx)
			})
		}
	}},
	{"a false alarm", "Check", func(m *mutant) {
		m.check = func([]byte, int) ([]store.Disagreement, []byte, error) {
			return []store.Disagreement{{Index: store.IndexDue, Fault: store.FaultStray}}, nil, nil
		}
	}},
	{"a repair takes entries away", "Repair", func(m *mutant) {
		m.repair = func([]byte) ([]byte, error) {
			m.lookup = func(store.ReadTx, store.Kind, []byte, int) ([]*store.Record, error) { return nil, nil }
			return nil, nil
		}
	}},
	{"a repair does not end", "Repair", func(m *mutant) {
		m.repair = func([]byte) ([]byte, error) { return []byte{1}, nil }
	}},
	{"a repair begins anywhere", "Repair", func(m *mutant) {
		m.repair = func([]byte) ([]byte, error) { return nil, nil }
	}},
	{"a repair deletes a record", "Repair", func(m *mutant) {
		m.repair = func([]byte) ([]byte, error) {
			return nil, m.Store.Update(background, func(tx store.Tx) error { tx.Delete(1, uuid.UUID{3: 2, 6: 0x70, 8: 0x80, 15: 2}); return nil })
		}
	}},
	{"a check that does not go on", "Check", func(m *mutant) {
		m.check = func([]byte, int) ([]store.Disagreement, []byte, error) { return nil, []byte{1}, nil }
	}},
	{"children are deleted", "Delete", cascading(1)},
	{"grandchildren are deleted", "Delete", cascading(2)},
	{"children are taken out of their lists", "Delete", func(m *mutant) {
		var gone sync.Map
		m.delete = func(tx store.Tx, kind store.Kind, id uuid.UUID) { gone.Store(id, true); tx.Delete(kind, id) }
		m.list = func(tx store.ReadTx, q *store.Query) (*store.List, error) {
			if _, ok := gone.Load(q.Parent); ok {
				return &store.List{}, nil
			}
			return tx.List(q)
		}
	}},
	{"children are not due without their parent", "Delete", func(m *mutant) {
		m.due = func(tx store.ReadTx, kind store.Kind, shards store.Shards, until time.Time, limit int) ([]*store.Record, error) {
			rs, err := tx.Due(kind, shards, until, limit)
			return slices.DeleteFunc(rs, func(r *store.Record) bool {
				_, err := tx.Get(1, r.Parent)
				return r.Parent != uuid.Nil && err != nil
			}), err
		}
	}},
	{"children are not found without their parent", "Orphans", func(m *mutant) {
		m.lookup = func(tx store.ReadTx, kind store.Kind, hash []byte, limit int) ([]*store.Record, error) {
			rs, err := tx.Lookup(kind, hash, limit)
			return slices.DeleteFunc(rs, func(r *store.Record) bool {
				_, err := tx.Get(1, r.Parent)
				return r.Parent != uuid.Nil && err != nil
			}), err
		}
	}},
	{"a child needs its parent", "Orphans", func(m *mutant) {
		m.put = altered(func(tx store.Tx, r *store.Record) {
			if _, err := tx.Get(1, r.Parent); err != nil && r.Parent != uuid.Nil {
				r.Kind = 0 // invalid
			}
		})
	}},
	{"half of the writes are kept when one fails", "AllOrNone", oneByOne},
	{"half of the writes are visible", "Snapshot", oneByOne},
	{"a deletion takes the children put before it", "DeleteWithinUpdate", func(m *mutant) {
		m.update = func(ctx context.Context, fn func(store.Tx) error) error {
			return m.Store.Update(ctx, func(tx store.Tx) error { return fn(&cascadingPuts{Tx: tx}) })
		}
	}},
	{"records stay in the caller's hands", "PutKeepsNothing", func(m *mutant) {
		kept := make(map[uuid.UUID]*store.Record)
		m.put = func(tx store.Tx, r *store.Record) { kept[r.ID] = r; tx.Put(r) }
		m.get = func(_ store.ReadTx, _ store.Kind, id uuid.UUID) (*store.Record, error) { return kept[id], nil }
	}},
	{"the memory of an answer is reused", "ReadsAreCopies", func(m *mutant) {
		var mu sync.Mutex
		var handed []*store.Record
		m.get = func(tx store.ReadTx, kind store.Kind, id uuid.UUID) (*store.Record, error) {
			r, err := tx.Get(kind, id)
			if err == nil {
				mu.Lock()
				defer mu.Unlock()
				handed = append(handed, r)
			}
			return r, err
		}
		m.put = func(tx store.Tx, r *store.Record) {
			mu.Lock()
			defer mu.Unlock()
			for _, old := range handed {
				copy(old.Shown, r.Shown)
			}
			tx.Put(r)
		}
	}},
	{"children are also listed by account", "Listed", func(m *mutant) {
		m.put = altered(func(_ store.Tx, r *store.Record) { r.Parent = uuid.Nil })
	}},
	{"records without a class are listed", "Listed", func(m *mutant) {
		m.put = altered(func(_ store.Tx, r *store.Record) { r.Class = max(r.Class, 1) })
	}},
	{"the class of the first write counts", "ClassChange", func(m *mutant) {
		m.put = altered(func(tx store.Tx, r *store.Record) {
			if old, err := tx.Get(r.Kind, r.ID); err == nil {
				r.Class = old.Class
			}
		})
	}},
	{"classes above 63 are forgotten", "Classes", func(m *mutant) {
		m.list = asking(func(q *store.Query) { q.Classes[1], q.Classes[2], q.Classes[3] = 0, 0, 0 })
	}},
	{"Min is exclusive", "Range", func(m *mutant) {
		m.list = asking(func(q *store.Query) {
			if q.Min != uuid.Nil {
				q.Min[15]++
			}
		})
	}},
	{"Max is exclusive", "Range", func(m *mutant) {
		m.list = func(tx store.ReadTx, q *store.Query) (*store.List, error) {
			l, err := tx.List(q)
			l.Records = slices.DeleteFunc(l.Records, func(r *store.Record) bool { return r.ID == q.Max })
			return l, err
		}
	}},
	{"ids are compared as signed bytes", "Order", func(m *mutant) {
		m.list = sorting(func(a, b *store.Record) int { return int(int8(a.ID[0])) - int(int8(b.ID[0])) })
	}},
	{"Desc is ignored", "Order", func(m *mutant) {
		m.list = asking(func(q *store.Query) { q.Desc = false })
	}},
	{"pages overlap", "Pages", func(m *mutant) {
		m.list = asking(func(q *store.Query) { q.Offset = max(0, q.Offset-1) })
	}},
	{"totals count only the page", "Totals", func(m *mutant) {
		m.list = func(tx store.ReadTx, q *store.Query) (*store.List, error) {
			l, err := tx.List(q)
			if q.Count {
				l.Total = int64(len(l.Records))
			}
			return l, err
		}
	}},
	{"totals count expired records", "Live", func(m *mutant) {
		m.list = func(tx store.ReadTx, q *store.Query) (*store.List, error) {
			l, err := tx.List(q)
			if err != nil {
				return nil, err
			}
			dead := *q
			dead.Live = time.Time{}
			all, err := tx.List(&dead)
			l.Total = all.Total
			return l, err
		}
	}},
	{"records live to the end of their last microsecond", "Live", func(m *mutant) {
		m.list = asking(func(q *store.Query) {
			if !q.Live.IsZero() {
				q.Live = q.Live.Add(-time.Microsecond)
			}
		})
	}},
	{"lists carry Secret", "WithoutSecret", func(m *mutant) {
		m.list = func(tx store.ReadTx, q *store.Query) (*store.List, error) {
			l, err := tx.List(q)
			for i, r := range l.Records {
				l.Records[i], _ = tx.Get(r.Kind, r.ID)
			}
			return l, err
		}
	}},
	{"a hash cancels the other conditions", "ListByHash", func(m *mutant) {
		m.list = asking(func(q *store.Query) {
			if q.Lookup != nil {
				q.Classes, q.Min, q.Max = store.Classes{}, uuid.Nil, uuid.Nil
			}
		})
	}},
	{"the bound on records with a hash is one off", "Shared", func(m *mutant) {
		m.list = func(tx store.ReadTx, q *store.Query) (*store.List, error) {
			rs, err := tx.Lookup(q.Kind, q.Lookup, store.MaxShared)
			if err == nil && len(rs) == store.MaxShared {
				err = store.ErrTooMany
			}
			if err != nil {
				return nil, err
			}
			return tx.List(q)
		}
	}},
	{"only the records of a list share its hash", "Shared", func(m *mutant) {
		m.list = func(tx store.ReadTx, q *store.Query) (*store.List, error) {
			l, err := tx.List(q)
			if errors.Is(err, store.ErrTooMany) && q.Parent != uuid.Nil {
				return &store.List{}, nil
			}
			return l, err
		}
	}},
	{"a list without a total is unbounded", "Shared", func(m *mutant) {
		m.list = func(tx store.ReadTx, q *store.Query) (*store.List, error) {
			l, err := tx.List(q)
			if errors.Is(err, store.ErrTooMany) && !q.Count {
				return &store.List{}, nil
			}
			return l, err
		}
	}},
	{"a scan includes the id itself", "Scan", func(m *mutant) {
		m.scan = func(tx store.ReadTx, kind store.Kind, after uuid.UUID, limit int) ([]*store.Record, error) {
			rs, err := tx.Scan(kind, after, limit)
			if r, e := tx.Get(kind, after); e == nil && limit > 0 {
				rs = append([]*store.Record{r}, rs[:min(limit-1, len(rs))]...)
			}
			return rs, err
		}
	}},
	{"a scan needs a record with the id", "Scan", func(m *mutant) {
		m.scan = func(tx store.ReadTx, kind store.Kind, after uuid.UUID, limit int) ([]*store.Record, error) {
			if _, err := tx.Get(kind, after); err != nil && after != uuid.Nil {
				return nil, nil
			}
			return tx.Scan(kind, after, limit)
		}
	}},
	{"a scan returns listed records only", "Scan", scanning(func(r *store.Record) bool { return r.Class != 0 })},
	{"a scan leaves out children", "Scan", scanning(func(r *store.Record) bool { return r.Parent == uuid.Nil })},
	{"a scan omits Secret", "Scan", scanning(func(r *store.Record) bool { r.Secret = nil; return true })},
	{"a scan without a limit returns a page", "Scan", func(m *mutant) {
		m.scan = func(tx store.ReadTx, kind store.Kind, after uuid.UUID, limit int) ([]*store.Record, error) {
			if limit <= 0 {
				limit = 100
			}
			return tx.Scan(kind, after, limit)
		}
	}},
	{"a scan stops after a thousand records", "ScanPages", scanning(func(r *store.Record) bool { return r.ID[2] < 8 })},
	{"a scan mixes kinds", "ScanPages", func(m *mutant) {
		m.scan = func(tx store.ReadTx, kind store.Kind, after uuid.UUID, limit int) ([]*store.Record, error) {
			rs, err := tx.Scan(kind, after, limit)
			others, _ := tx.Scan(kind+1, after, limit)
			rs = append(rs, others...)
			slices.SortFunc(rs, func(a, b *store.Record) int { return strings.Compare(string(a.ID[:]), string(b.ID[:])) })
			return rs[:min(limit, len(rs))], err
		}
	}},
	{"children of one kind are found", "Children", family(func(k store.Key, _ *store.Record) bool { return k.Kind == 1 })},
	{"children in no list are not found", "Children", family(func(_ store.Key, r *store.Record) bool { return r.Class != 0 })},
	{"children of another account are not found", "Children", family(func(_ store.Key, r *store.Record) bool { return r.Account == uuid.UUID{0: 0xa1, 15: 1} })},
	{"children need a parent", "Children", func(m *mutant) {
		m.children = func(tx store.ReadTx, parent uuid.UUID, limit int) ([]store.Key, error) {
			for kind := range 256 {
				if _, err := tx.Get(store.Kind(kind), parent); err == nil {
					return tx.Children(parent, limit)
				}
			}
			return nil, nil
		}
	}},
	{"children are sorted by id", "Children", func(m *mutant) {
		m.children = func(tx store.ReadTx, parent uuid.UUID, limit int) ([]store.Key, error) {
			keys, err := tx.Children(parent, limit)
			slices.SortStableFunc(keys, func(a, b store.Key) int { return strings.Compare(string(a.ID[:]), string(b.ID[:])) })
			return keys, err
		}
	}},
	{"records without a parent are children of the zero id", "Children", func(m *mutant) {
		m.children = func(tx store.ReadTx, parent uuid.UUID, limit int) ([]store.Key, error) {
			if parent == uuid.Nil {
				return []store.Key{{Kind: 1}}, nil
			}
			return tx.Children(parent, limit)
		}
	}},
	{"Children ignores its limit", "Children", func(m *mutant) {
		m.children = func(tx store.ReadTx, parent uuid.UUID, limit int) ([]store.Key, error) {
			return tx.Children(parent, max(limit, 3))
		}
	}},
	{"a family has a maximum size", "ChildrenOfMany", func(m *mutant) {
		m.children = func(tx store.ReadTx, parent uuid.UUID, limit int) ([]store.Key, error) {
			keys, err := tx.Children(parent, limit)
			return slices.DeleteFunc(keys, func(k store.Key) bool { return k.ID[2] > 0x20 }), err
		}
	}},
	{"only listed records count", "Empty", func(m *mutant) {
		m.empty = func(tx store.ReadTx) (bool, error) {
			rs, err := tx.Scan(1, uuid.Nil, 1)
			return len(rs) == 0, err
		}
	}},
	{"a used store is never empty again", "Empty", func(m *mutant) {
		var used atomic.Bool
		m.put = func(tx store.Tx, r *store.Record) { used.Store(true); tx.Put(r) }
		m.empty = func(tx store.ReadTx) (bool, error) {
			none, err := tx.Empty()
			return none && !used.Load(), err
		}
	}},
	{"In finds records of all accounts", "Divided", inAccounts(func(tx, in store.Tx) store.Tx { return inTx{in, tx.Get, in.Lookup, in.Children, in.Put, in.Delete} })},
	{"In looks a hash up in all accounts", "Divided", inAccounts(func(tx, in store.Tx) store.Tx { return inTx{in, in.Get, tx.Lookup, in.Children, in.Put, in.Delete} })},
	{"In finds children of all accounts", "Divided", inAccounts(func(tx, in store.Tx) store.Tx { return inTx{in, in.Get, in.Lookup, tx.Children, in.Put, in.Delete} })},
	{"In puts records of all accounts", "Divided", inAccounts(func(tx, in store.Tx) store.Tx { return inTx{in, in.Get, in.Lookup, in.Children, tx.Put, in.Delete} })},
	{"In deletes records of all accounts", "Divided", inAccounts(func(tx, in store.Tx) store.Tx { return inTx{in, in.Get, in.Lookup, in.Children, in.Put, tx.Delete} })},
	{"own writes are visible to scans", "ScanSeesTheStateBefore", func(m *mutant) {
		m.update = func(ctx context.Context, fn func(store.Tx) error) error {
			return m.Store.Update(ctx, func(tx store.Tx) error { return fn(&ownWrites{Tx: tx}) })
		}
	}},
	{"two Updates read before either writes", "PhantomChild", snapshots},
	{"two Updates read before either writes", "ChildOrParent", snapshots},
	{"two Updates read before either writes", "FirstOne", snapshots},
	{"Lookup ignores its limit", "Lookup", func(m *mutant) {
		m.lookup = func(tx store.ReadTx, kind store.Kind, hash []byte, _ int) ([]*store.Record, error) {
			return tx.Lookup(kind, hash, 1000)
		}
	}},
	{"the hashes of the first write count", "LookupChange", func(m *mutant) {
		m.put = altered(func(tx store.Tx, r *store.Record) {
			if old, err := tx.Get(r.Kind, r.ID); err == nil {
				r.Lookup = old.Lookup
			}
		})
	}},
	{"a hash is cut at a zero byte", "LookupOfSimilar", func(m *mutant) {
		m.lookup = func(tx store.ReadTx, kind store.Kind, hash []byte, limit int) ([]*store.Record, error) {
			text, _, _ := strings.Cut(string(hash), "\x00")
			return tx.Lookup(kind, []byte(text), limit)
		}
	}},
	{"Due is exclusive", "Due", func(m *mutant) {
		m.due = func(tx store.ReadTx, kind store.Kind, shards store.Shards, until time.Time, limit int) ([]*store.Record, error) {
			return tx.Due(kind, shards, until.Add(-time.Microsecond), limit)
		}
	}},
	{"shards are ignored", "DueByShard", func(m *mutant) {
		m.due = func(tx store.ReadTx, kind store.Kind, _ store.Shards, until time.Time, limit int) ([]*store.Record, error) {
			return tx.Due(kind, store.AllShards, until, limit)
		}
	}},
	{"the limit includes records of other shards", "DueByShard", func(m *mutant) {
		m.due = func(tx store.ReadTx, kind store.Kind, shards store.Shards, until time.Time, limit int) ([]*store.Record, error) {
			rs, err := tx.Due(kind, store.AllShards, until, limit)
			return slices.DeleteFunc(rs, func(r *store.Record) bool { return !shards.Has(store.ShardOf(r.ID)) }), err
		}
	}},
	{"each shard has a limit of its own", "DueByShard", func(m *mutant) {
		m.due = func(tx store.ReadTx, kind store.Kind, shards store.Shards, until time.Time, limit int) (all []*store.Record, err error) {
			for shard := range uint8(store.ShardCount) {
				if !shards.Has(shard) {
					continue
				}
				rs, err := tx.Due(kind, 1<<shard, until, limit)
				if all = append(all, rs...); err != nil {
					return nil, err
				}
			}
			slices.SortFunc(all, func(a, b *store.Record) int { return a.Due.Compare(b.Due) })
			return all, nil
		}
	}},
	{"records are sorted by shard", "DueByShard", func(m *mutant) {
		m.due = func(tx store.ReadTx, kind store.Kind, shards store.Shards, until time.Time, limit int) (all []*store.Record, err error) {
			rs, err := tx.Due(kind, shards, until, limit)
			if shards != store.AllShards {
				slices.SortStableFunc(rs, func(a, b *store.Record) int { return int(store.ShardOf(a.ID)) - int(store.ShardOf(b.ID)) })
			}
			return rs, err
		}
	}},
	{"Next looks at all shards", "DueByShard", func(m *mutant) {
		m.next = func(tx store.ReadTx, kind store.Kind, _ store.Shards) (time.Time, error) {
			return tx.Next(kind, store.AllShards)
		}
	}},
	{"work put off is forgotten", "DueChange", func(m *mutant) {
		m.put = altered(func(_ store.Tx, r *store.Record) {
			if r.Version > 1 {
				r.Due = time.Time{}
			}
		})
	}},
	{"1970 is never", "DueEver", func(m *mutant) {
		m.put = altered(func(_ store.Tx, r *store.Record) {
			if r.Due.UnixMicro() == 0 {
				r.Due = time.Time{}
			}
		})
	}},
	{"times are rounded", "DueMicroseconds", func(m *mutant) {
		m.put = altered(func(_ store.Tx, r *store.Record) { r.Due = r.Due.Round(time.Microsecond) })
	}},
	{"totals are one off above a thousand", "Model", func(m *mutant) {
		m.list = func(tx store.ReadTx, q *store.Query) (*store.List, error) {
			l, err := tx.List(q)
			if l.Total > 1000 {
				l.Total--
			}
			return l, err
		}
	}},
	{"own writes are visible", "ReadsSeeTheStateBefore", func(m *mutant) {
		m.update = func(ctx context.Context, fn func(store.Tx) error) error {
			return m.Store.Update(ctx, func(tx store.Tx) error { return fn(&ownWrites{Tx: tx}) })
		}
	}},
	{"the error of fn is wrapped", "ErrorOfFn", func(m *mutant) {
		m.update = func(ctx context.Context, fn func(store.Tx) error) error {
			if err := m.Store.Update(ctx, fn); err != nil {
				return fmt.Errorf("update: %w", err)
			}
			return nil
		}
	}},
	{"writes are kept when fn fails", "ErrorOfFn", func(m *mutant) {
		m.update = func(ctx context.Context, fn func(store.Tx) error) error {
			var mine error
			return errors.Join(m.Store.Update(ctx, func(tx store.Tx) error { mine = fn(tx); return nil }), mine)
		}
	}},
	{"panics become errors", "PanicOfFn", func(m *mutant) {
		m.update = func(ctx context.Context, fn func(store.Tx) error) (err error) {
			defer func() {
				if value := recover(); value != nil {
					err = fmt.Errorf("panic: %v", value)
				}
			}()
			return m.Store.Update(ctx, fn)
		}
	}},
	{"an fn that never returned succeeds", "GoexitOfFn", func(m *mutant) {
		m.update = func(ctx context.Context, fn func(store.Tx) error) error {
			var err error
			done := make(chan struct{})
			go func() {
				defer close(done)
				err = m.Store.Update(ctx, fn)
			}()
			<-done
			return err
		}
	}},
	{"a failing fn fails its group", "FailingNeighbours", func(m *mutant) {
		var failed atomic.Bool
		m.update = func(ctx context.Context, fn func(store.Tx) error) error {
			if failed.Swap(false) {
				return store.ErrConflict
			}
			err := m.Store.Update(ctx, fn)
			failed.Store(err != nil && !errors.Is(err, store.ErrConflict))
			return err
		}
	}},
	{"Update returns before its writes are made", "VisibleAfterReturn", func(m *mutant) {
		var group sync.WaitGroup
		m.update = func(ctx context.Context, fn func(store.Tx) error) error {
			group.Go(func() { runtime.Gosched(); _ = m.Store.Update(ctx, fn) })
			return nil
		}
		m.close = func() error { group.Wait(); return m.Store.Close() }
	}},
	{"Changes stays as it is", "Changes", func(m *mutant) { m.changes = func(store.Kind) uint64 { return 1 } }},
	{"Changes rises only for the next caller", "Changes", func(m *mutant) {
		var last atomic.Uint64
		m.changes = func(kind store.Kind) uint64 {
			return last.Swap(m.Store.(store.Counter).Changes(kind))
		}
	}},
	{"two Updates read before either writes", "LostUpdate", snapshots},
	{"two Updates read before either writes", "WriteSkew", snapshots},
	{"two Updates read before either writes", "Phantom", snapshots},
	{"ctx is ignored", "CancelledBefore", func(m *mutant) {
		m.update = func(ctx context.Context, fn func(store.Tx) error) error {
			return m.Store.Update(context.WithoutCancel(ctx), fn)
		}
	}},
	{"an error of ctx hides a write", "CancelledInQueue", func(m *mutant) {
		m.update = func(ctx context.Context, fn func(store.Tx) error) error {
			done := make(chan error, 1)
			go func() { done <- m.Store.Update(context.WithoutCancel(ctx), fn) }()
			select {
			case err := <-done:
				return err
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}},
	{"the end of ctx hides the result of a started fn", "CancelledAfterStart", func(m *mutant) {
		m.update = func(ctx context.Context, fn func(store.Tx) error) error {
			return cmp.Or(m.Store.Update(ctx, fn), ctx.Err())
		}
	}},
	{"Changes goes on after Close", "Closed", func(m *mutant) {
		m.changes = func(kind store.Kind) uint64 { return max(1, m.Store.(store.Counter).Changes(kind)) }
	}},
	{"closing again fails", "Closed", func(m *mutant) {
		var closed atomic.Bool
		m.close = func() error {
			if closed.Swap(true) {
				return store.ErrClosed
			}
			return m.Store.Close()
		}
	}},
	{"Close does not wait", "CloseWaits", func(m *mutant) {
		m.close = func() error { go m.Store.Close(); return nil }
	}},
	{"a closed store is unavailable", "CloseAmidCalls", func(m *mutant) {
		m.view = func(ctx context.Context, fn func(store.ReadTx) error) error {
			err := m.Store.View(ctx, fn)
			if errors.Is(err, store.ErrClosed) {
				return store.ErrUnavailable
			}
			return err
		}
	}},
	{"deleting an absent record fails", "DeleteAbsent", func(m *mutant) {
		m.delete = func(tx store.Tx, kind store.Kind, id uuid.UUID) {
			if _, err := tx.Get(kind, id); err != nil {
				tx.Put(&store.Record{}) // invalid
			}
			tx.Delete(kind, id)
		}
	}},
	{"the id alone is the key", "DeleteOfSharedID", func(m *mutant) {
		m.delete = func(tx store.Tx, _ store.Kind, id uuid.UUID) {
			tx.Delete(1, id)
			tx.Delete(2, id)
		}
	}},
}

// cascading makes a deletion also delete a number of generations below the record.
func cascading(generations int) func(m *mutant) {
	return func(m *mutant) {
		m.delete = func(tx store.Tx, kind store.Kind, id uuid.UUID) {
			tx.Delete(kind, id)
			below := []store.Key{{Kind: kind, ID: id}}
			for range generations {
				var next []store.Key
				for _, k := range below {
					keys, err := tx.Children(k.ID, 1000)
					if err != nil {
						panic(err)
					}
					next = append(next, keys...)
				}
				below = next
			}
			for _, k := range below {
				tx.Delete(k.Kind, k.ID)
			}
		}
	}
}

// scanning makes scans omit the records that keep rejects.
func scanning(keep func(*store.Record) bool) func(m *mutant) {
	return func(m *mutant) {
		m.scan = func(tx store.ReadTx, kind store.Kind, after uuid.UUID, limit int) ([]*store.Record, error) {
			rs, err := tx.Scan(kind, after, limit)
			return slices.DeleteFunc(rs, func(r *store.Record) bool { return !keep(r) }), err
		}
	}
}

// family makes Children omit the children that keep rejects.
func family(keep func(store.Key, *store.Record) bool) func(m *mutant) {
	return func(m *mutant) {
		m.children = func(tx store.ReadTx, parent uuid.UUID, limit int) ([]store.Key, error) {
			keys, err := tx.Children(parent, limit)
			return slices.DeleteFunc(keys, func(k store.Key) bool {
				r, err := tx.Get(k.Kind, k.ID)
				return err == nil && !keep(k, r)
			}), err
		}
	}
}

// oneByOne runs every write in an Update of its own.
func oneByOne(m *mutant) {
	m.update = func(ctx context.Context, fn func(store.Tx) error) error {
		writes, err := collect(m.Store, ctx, fn)
		if err != nil {
			return err
		}
		for _, write := range writes {
			if err := m.Store.Update(ctx, replay(write)); err != nil {
				return err
			}
		}
		return nil
	}
}

// snapshots runs fn on a snapshot, and checks only versions when it writes.
func snapshots(m *mutant) {
	m.update = func(ctx context.Context, fn func(store.Tx) error) error {
		writes, err := collect(m.Store, ctx, fn)
		if err != nil {
			return err
		}
		return m.Store.Update(ctx, replay(writes...))
	}
}

// eachRead is a ReadTx without a state of its own.
type eachRead struct{ s store.Store }

func eachView[T any](e eachRead, read func(tx store.ReadTx) (T, error)) (value T, err error) {
	err = e.s.View(background, func(tx store.ReadTx) (err error) {
		value, err = read(tx)
		return err
	})
	return value, err
}

func (e eachRead) Get(kind store.Kind, id uuid.UUID) (*store.Record, error) {
	return eachView(e, func(tx store.ReadTx) (*store.Record, error) { return tx.Get(kind, id) })
}

func (e eachRead) List(q *store.Query) (*store.List, error) {
	return eachView(e, func(tx store.ReadTx) (*store.List, error) { return tx.List(q) })
}

func (e eachRead) Lookup(kind store.Kind, hash []byte, limit int) ([]*store.Record, error) {
	return eachView(e, func(tx store.ReadTx) ([]*store.Record, error) { return tx.Lookup(kind, hash, limit) })
}

func (e eachRead) Due(kind store.Kind, shards store.Shards, until time.Time, limit int) ([]*store.Record, error) {
	return eachView(e, func(tx store.ReadTx) ([]*store.Record, error) { return tx.Due(kind, shards, until, limit) })
}

func (e eachRead) Next(kind store.Kind, shards store.Shards) (time.Time, error) {
	return eachView(e, func(tx store.ReadTx) (time.Time, error) { return tx.Next(kind, shards) })
}

func (e eachRead) Scan(kind store.Kind, after uuid.UUID, limit int) ([]*store.Record, error) {
	return eachView(e, func(tx store.ReadTx) ([]*store.Record, error) { return tx.Scan(kind, after, limit) })
}

func (e eachRead) Children(parent uuid.UUID, limit int) ([]store.Key, error) {
	return eachView(e, func(tx store.ReadTx) ([]store.Key, error) { return tx.Children(parent, limit) })
}

func (e eachRead) Empty() (bool, error) {
	return eachView(e, func(tx store.ReadTx) (bool, error) { return tx.Empty() })
}

type deletionsLast struct {
	store.Tx
	deletions []func(store.Tx)
}

func (d *deletionsLast) Delete(kind store.Kind, id uuid.UUID) {
	d.deletions = append(d.deletions, func(tx store.Tx) { tx.Delete(kind, id) })
}

// cascadingPuts makes a deletion also drop the children put in the same Update.
type cascadingPuts struct {
	store.Tx
	puts []*store.Record
}

func (c *cascadingPuts) Put(r *store.Record) {
	c.puts = append(c.puts, r)
	c.Tx.Put(r)
}

func (c *cascadingPuts) Delete(kind store.Kind, id uuid.UUID) {
	c.Tx.Delete(kind, id)
	for _, r := range c.puts {
		if r.Parent == id {
			c.Tx.Delete(r.Kind, r.ID)
		}
	}
}

// ownWrites shows an Update's puts to its Get and Scan.
type ownWrites struct {
	store.Tx
	puts []*store.Record
}

func (o *ownWrites) Put(r *store.Record) {
	o.puts = append(o.puts, r)
	o.Tx.Put(r)
}

func (o *ownWrites) Scan(kind store.Kind, after uuid.UUID, limit int) ([]*store.Record, error) {
	rs, err := o.Tx.Scan(kind, after, limit)
	return append(rs, o.puts...), err
}

func (o *ownWrites) Get(kind store.Kind, id uuid.UUID) (*store.Record, error) {
	for _, r := range slices.Backward(o.puts) {
		if r.Kind == kind && r.ID == id {
			return r, nil
		}
	}
	return o.Tx.Get(kind, id)
}

// sorting returns a list that sorts each page by compare.
// A wrongSums is shown changes as a store with a fault shows them.
type wrongSums struct {
	store.Sums
	change      func(former, next *store.Record)
	records     func(anew bool) []*store.Record
	uncommitted bool
}

func (s wrongSums) Change(former, next *store.Record) {
	if s.change != nil {
		s.change(former, next)
		return
	}
	s.Sums.Change(former, next)
}

func (s wrongSums) Records(anew bool) []*store.Record {
	if s.records != nil {
		return s.records(anew)
	}
	return s.Sums.Records(anew)
}

func (s wrongSums) Committed() {
	if !s.uncommitted {
		s.Sums.Committed()
	}
}

func sorting(compare func(a, b *store.Record) int) func(store.ReadTx, *store.Query) (*store.List, error) {
	return func(tx store.ReadTx, q *store.Query) (*store.List, error) {
		l, err := tx.List(q)
		slices.SortStableFunc(l.Records, compare)
		return l, err
	}
}

// Every rule must detect its faults.
func TestRulesCanFail(t *testing.T) {
	noticed := contract.Faults(t, storetest.Names())
	for _, c := range mutants {
		noticed(c.rule, c.fault, func(t *testing.T) []string {
			m := &mutant{Store: memstore.New()}
			t.Cleanup(func() {
				if err := m.Close(); err != nil && !errors.Is(err, store.ErrClosed) {
					t.Error(err)
				}
			})
			c.seed(m)
			return contract.Record(t, func(t testing.TB) { storetest.Check(t, c.rule, m) })
		})
	}
}

// A mutant without a fault passes, so that a failure is due to the fault.
func TestRulesPassWithoutFault(t *testing.T) {
	storetest.Run(t, storetest.Harness{Open: func(testing.TB) store.Store { return &mutant{Store: memstore.New()} }})
	t.Run("Apart", func(t *testing.T) {
		storetest.Run(t, storetest.Harness{Open: func(testing.TB) store.Store {
			return storetest.Apart(memstore.New(), func(*store.Record, uuid.UUID) {})
		}})
	})
}

func putting(ids ...byte) func(store.Tx) error {
	return func(tx store.Tx) error {
		for _, n := range ids {
			tx.Put(&store.Record{Kind: 1, ID: uuid.UUID{n}, Version: 1})
		}
		return nil
	}
}

func TestTwice(t *testing.T) {
	inner := memstore.New()
	s := storetest.Twice(inner)
	calls := 0
	err := s.Update(background, func(tx store.Tx) error {
		calls++
		if _, err := tx.Get(1, uuid.UUID{1}); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("call %d sees writes of another: %v", calls, err)
		}
		return putting(1)(tx)
	})
	if err != nil || calls != 2 {
		t.Errorf("Update = %v after %d calls, want nil after 2", err, calls)
	}
	err = inner.View(background, func(tx store.ReadTx) error {
		_, err := tx.Get(1, uuid.UUID{1})
		return err
	})
	if err != nil {
		t.Errorf("Get = %v", err)
	}

	no := errors.New("no")
	calls = 0
	if err := s.Update(background, func(store.Tx) error { calls++; return no }); err != no || calls != 2 {
		t.Errorf("Update = %v after %d calls, want the error of fn after 2", err, calls)
	}
	ctx, cancel := context.WithCancel(background)
	if err := s.Update(ctx, func(tx store.Tx) error { cancel(); return putting(2)(tx) }); err != nil {
		t.Errorf("Update, cancelled after its start = %v", err)
	}
	if err := s.Update(ctx, putting(3)); !errors.Is(err, context.Canceled) {
		t.Errorf("Update, cancelled before = %v", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := s.Update(background, putting(4)); !errors.Is(err, store.ErrClosed) {
		t.Errorf("Update after Close = %v", err)
	}
}

func TestCanary(t *testing.T) {
	const pan, name = "4111111111111111", "Zoë Exämple"
	id := uuid.UUID{1}
	put := func(edit func(r *store.Record)) func(store.Tx) error {
		return func(tx store.Tx) error {
			r := &store.Record{Kind: 1, ID: id, Version: 1, Shown: []byte("sealed"), Secret: []byte("sealed too")}
			edit(r)
			tx.Put(r)
			return errors.New("dropped")
		}
	}
	secret := func(b string) func(store.Tx) error {
		return put(func(r *store.Record) { r.Secret = []byte("some" + b + "thing") })
	}
	reading := func(read func(tx store.ReadTx)) func(store.Tx) error {
		return func(tx store.Tx) error { read(tx); return put(func(*store.Record) {})(tx) }
	}
	nibbles := func(s string) string {
		b, err := hex.DecodeString(s)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	for _, c := range []struct {
		name string
		want int
		fn   func(store.Tx) error
	}{
		{"nothing", 0, put(func(*store.Record) {})},
		{"other digits", 0, secret("4111111111111112")},
		{"plain", 1, secret(pan)},
		{"Shown", 1, put(func(r *store.Record) { r.Shown = []byte(pan) })},
		{"Lookup", 1, put(func(r *store.Record) { r.Lookup = [][]byte{{1}, []byte(pan)} })},
		{"id", 1, put(func(r *store.Record) { r.ID = uuid.UUID([]byte(pan)) })},
		{"account", 1, put(func(r *store.Record) { r.Account = uuid.UUID([]byte(pan)) })},
		{"parent", 1, put(func(r *store.Record) { r.Parent = uuid.UUID([]byte(pan)) })},
		{"reversed", 1, secret(reverse(name))},
		{"name in capitals", 1, secret("ZOë EXäMPLE")},
		{"hexadecimal", 1, secret(hex.EncodeToString([]byte(name)))},
		{"hexadecimal in capitals", 1, secret(strings.ToUpper(hex.EncodeToString([]byte(name))))},
		{"base64", 1, secret(base64.StdEncoding.EncodeToString([]byte(pan)))},
		{"base64, one on", 1, secret(base64.StdEncoding.EncodeToString([]byte("{" + pan + "}")))},
		{"base64, two on", 1, secret(base64.URLEncoding.EncodeToString([]byte(`:"` + name + `"`)))},
		{"packed", 1, secret(nibbles(pan))},
		{"packed, half a byte on", 1, secret(nibbles("9" + pan + "9"))},
		{"query", 1, reading(func(tx store.ReadTx) { _, _ = tx.List(&store.Query{Lookup: []byte(name)}) })},
		{"hash", 1, reading(func(tx store.ReadTx) { _, _ = tx.Lookup(1, []byte(name), 1) })},
		{"get", 1, reading(func(tx store.ReadTx) { _, _ = tx.Get(1, uuid.UUID([]byte(pan))) })},
		{"delete", 1, func(tx store.Tx) error {
			tx.Delete(1, uuid.UUID([]byte(pan)))
			return put(func(*store.Record) {})(tx)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			failures := contract.Record(t, func(rec testing.TB) {
				s := storetest.Canary(rec, memstore.New(), []byte(pan), []byte(name))
				_ = s.Update(background, c.fn)
			})
			if len(failures) != c.want {
				t.Errorf("%d findings, want %d: %v", len(failures), c.want, failures)
			}
			for _, failure := range failures {
				if strings.Contains(failure, pan) || strings.Contains(failure, name) {
					t.Error("the message shows the value")
				}
			}
		})
	}
}

func reverse(s string) string {
	b := []byte(s)
	slices.Reverse(b)
	return string(b)
}

func TestCanaryNeedsSomethingToSee(t *testing.T) {
	failures := contract.Record(t, func(t testing.TB) { storetest.Canary(t, memstore.New(), []byte("123")) })
	if len(failures) != 1 {
		t.Errorf("a value that occurs by chance: %v, want a failure", failures)
	}
	var cleanup func()
	failures = contract.Record(t, func(t testing.TB) {
		storetest.Canary(&cleaner{t, &cleanup}, memstore.New(), []byte("1234"))
		cleanup()
	})
	if len(failures) != 1 {
		t.Errorf("a store that nothing was put in: %v, want a failure", failures)
	}
}

// A cleaner collects the functions passed to Cleanup.
type cleaner struct {
	testing.TB
	f *func()
}

func (c *cleaner) Cleanup(f func()) { *c.f = f }
