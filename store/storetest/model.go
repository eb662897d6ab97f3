package storetest

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cardvault/cardvault/store"
)

var modelRules = []rule{{
	"Model",
	`After any writes, with thousands of records in one list, all kinds of answers equal those of a
model that simply walks through all records.`,
	modelled,
}}

type rowKey struct {
	kind store.Kind
	id   uuid.UUID
}

// A model is a store of the fewest lines.
type model map[rowKey]*store.Record

func (m model) put(r *store.Record) { m[rowKey{r.Kind, r.ID}] = r.Clone() }

// sorted returns the records that a condition selects.
func (m model) sorted(compare func(a, b *store.Record) int, selects func(*store.Record) bool) []*store.Record {
	var rs []*store.Record
	for _, r := range m {
		if selects(r) {
			rs = append(rs, r)
		}
	}
	slices.SortFunc(rs, compare)
	return rs
}

func byID(a, b *store.Record) int { return bytes.Compare(a.ID[:], b.ID[:]) }
func byKind(a, b *store.Record) int {
	return cmp.Or(cmp.Compare(a.Kind, b.Kind), byID(a, b))
}
func byDue(a, b *store.Record) int { return cmp.Or(a.Due.Compare(b.Due), byID(a, b)) }

func has(r *store.Record, hash []byte) bool {
	return slices.ContainsFunc(r.Lookup, func(h []byte) bool { return bytes.Equal(h, hash) })
}

// list returns all that q selects.
func (m model) list(q *store.Query) []*store.Record {
	rs := m.sorted(byID, func(r *store.Record) bool {
		return r.Kind == q.Kind && r.Parent == q.Parent && r.Account == q.Account &&
			r.Class != 0 && q.Classes.Has(r.Class) &&
			bytes.Compare(q.Min[:], r.ID[:]) <= 0 &&
			(q.Max == uuid.Nil || bytes.Compare(r.ID[:], q.Max[:]) <= 0) &&
			(q.Lookup == nil || has(r, q.Lookup)) &&
			(q.Live.IsZero() || r.Due.IsZero() || r.Due.After(q.Live))
	})
	if q.Desc {
		slices.Reverse(rs)
	}
	return rs
}

// A walk makes random writes and questions.
type walk struct {
	*rand.Rand
	known []rowKey // of every record ever put, to hit some of them again
}

func modelled(t testing.TB, s store.Store) {
	seed := rand.Uint64()
	if text := os.Getenv("STORETEST_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatal("STORETEST_SEED is not a number")
		}
	}

	t.Logf("STORETEST_SEED=%d", seed)
	w := &walk{Rand: rand.New(rand.NewPCG(seed, 0))}
	m := model{}
	for round := range 80 {
		after := maps.Clone(m)
		n := 1 + w.IntN(60)
		if round < 8 { // thousands first, then changes among them
			n = 1000
		}
		writes := w.writes(after, n)
		stale := round >= 8 && w.IntN(10) == 0
		if stale {
			writes = append(writes, func(tx store.Tx) { tx.Put(row(1<<30, version(7))) })
		}

		fn := func(tx store.Tx) error {
			for _, write := range writes {
				write(tx)
			}
			return nil
		}

		if stale {
			refused(t, s, store.ErrConflict, fn)
		} else {
			update(t, s, fn)
			m = after
		}

		view(t, s, func(tx store.ReadTx) error {
			for range 3 {
				if err := w.ask(tx, m); err != nil {
					t.Error(err)
				}
			}
			return nil
		})

		if t.Failed() {
			return
		}
	}
}

// writes applies n random writes to m and returns them.
func (w *walk) writes(m model, n int) []func(store.Tx) {
	var writes []func(store.Tx)
	for range n {
		if len(w.known) > 0 && w.IntN(8) == 0 {
			k := w.known[w.IntN(len(w.known))]
			delete(m, k)
			writes = append(writes, func(tx store.Tx) { tx.Delete(k.kind, k.id) })
			continue
		}
		r := w.record(m)
		w.known = append(w.known, rowKey{r.Kind, r.ID})
		m.put(r)
		writes = append(writes, func(tx store.Tx) { tx.Put(r) })
	}
	return writes
}

// record returns a new record, or the next version of one in m.
func (w *walk) record(m model) *store.Record {
	r := row(1 + w.IntN(1<<24))
	switch w.IntN(10) { // most are in one list, some are children of others
	case 0:
		r.Kind = kindB
	case 1:
		r.Account = bob
	case 2, 3:
		if len(w.known) > 0 {
			r.Parent = w.known[w.IntN(min(20, len(w.known)))].id
		}
	}

	if len(w.known) > 0 && w.IntN(3) == 0 {
		k := w.known[w.IntN(len(w.known))]
		r.Kind, r.ID = k.kind, k.id
	}
	if old := m[rowKey{r.Kind, r.ID}]; old != nil {
		r.Account, r.Parent, r.Version = old.Account, old.Parent, old.Version+1
	} else if r.Parent == r.ID {
		r.Parent = uuid.Nil
	}

	r.Class = []uint8{0, 1, 2, 64, 255}[w.IntN(5)]
	if w.IntN(2) == 0 {
		r.Due = w.time()
	}
	for range w.IntN(3) {
		r.Lookup = append(r.Lookup, w.hash())
	}
	r.Shown = fmt.Append(nil, w.Uint64())
	r.Secret = make([]byte, w.IntN(300))
	return r
}

func (w *walk) time() time.Time { return time.UnixMicro(w.Int64N(2001) - 1000) }
func (w *walk) hash() []byte    { return []byte{'h', byte(w.IntN(40))} }

// ask compares answers of the store to the model's.
func (w *walk) ask(tx store.ReadTx, m model) error {
	for _, ask := range []func(store.ReadTx, model) error{w.askList, w.askLookup, w.askDue, w.askScan, w.askRecord} {
		if err := ask(tx, m); err != nil {
			return err
		}
	}
	return nil
}

// askList compares List.
func (w *walk) askList(tx store.ReadTx, m model) error {
	q := w.query()
	want := m.list(q)
	if w.IntN(2) == 0 && len(want) > 0 {
		q.Offset = int64(w.IntN(len(want)))
	}
	l, err := tx.List(q)
	if err != nil {
		return fmt.Errorf("List: %w", err)
	}

	if l.Total != int64(len(want)) {
		return fmt.Errorf("List: Total = %d, want %d for %+v", l.Total, len(want), *q)
	}
	want = want[min(int(q.Offset), len(want)):]
	if err := alike(l.Records, want[:min(q.Limit, len(want))], true); err != nil {
		return fmt.Errorf("List: %w for %+v", err, *q)
	}
	return nil
}

// query returns a query for a list of the model.
func (w *walk) query() *store.Query {
	q := &store.Query{ // the longest list in about one case of twenty
		Kind: kindA, Account: alice, Count: true, Desc: w.IntN(2) == 0,
		Limit: w.IntN(50), Offset: int64(w.IntN(20)),
	}
	if w.IntN(5) == 0 {
		q.Account = bob
	}
	if w.IntN(3) == 0 && len(w.known) > 0 {
		q.Account = alice
		q.Parent = w.known[w.IntN(min(20, len(w.known)))].id
	}

	if w.IntN(3) == 0 {
		q.Classes = set(2, 255)
	}
	if w.IntN(3) == 0 {
		q.Live = w.time()
	}
	if w.IntN(3) == 0 {
		q.Min = idOf(w.IntN(1 << 24))
	}
	if w.IntN(3) == 0 {
		q.Max = idOf(w.IntN(1 << 24))
	}
	if w.IntN(4) == 0 {
		q.Lookup = w.hash()
	}
	return q
}

// askLookup compares Lookup.
func (w *walk) askLookup(tx store.ReadTx, m model) error {
	hash, limit := w.hash(), w.IntN(60)
	want := m.sorted(byID, func(r *store.Record) bool { return r.Kind == kindA && has(r, hash) })
	got, err := tx.Lookup(kindA, hash, limit)
	if err = cmp.Or(err, alike(got, want[:min(limit, len(want))], false)); err != nil {
		return fmt.Errorf("Lookup: %w", err)
	}
	return nil
}

// askDue compares Next and Due.
func (w *walk) askDue(tx store.ReadTx, m model) error {
	until := w.time()
	want := m.sorted(byDue, func(r *store.Record) bool { return r.Kind == kindA && !r.Due.IsZero() })
	shards := store.Shards(w.IntN(1 << store.ShardCount))
	want = slices.DeleteFunc(want, func(r *store.Record) bool { return !shards.Has(store.ShardOf(r.ID)) })
	earliest, err := tx.Next(kindA, shards)
	if err != nil {
		return fmt.Errorf("next: %w", err)
	}
	if len(want) == 0 && !earliest.IsZero() || len(want) > 0 && !earliest.Equal(want[0].Due) {
		return fmt.Errorf("next = %v, which is not the earliest", earliest)
	}

	want = slices.DeleteFunc(want, func(r *store.Record) bool { return r.Due.After(until) })
	got, err := tx.Due(kindA, shards, until, len(m)+1)
	if !slices.IsSortedFunc(got, func(a, b *store.Record) int { return a.Due.Compare(b.Due) }) {
		return errors.New("due: out of order")
	}
	slices.SortFunc(got, byDue) // records with the same Due may come in any order
	if err = cmp.Or(err, alike(got, want, false)); err != nil {
		return fmt.Errorf("due: %w", err)
	}
	return nil
}

// askScan compares Scan, Empty and Children.
func (w *walk) askScan(tx store.ReadTx, m model) error {
	after, limit := idOf(w.IntN(1<<24)), w.IntN(60)-1
	want := m.sorted(byID, func(r *store.Record) bool { return r.Kind == kindA && bytes.Compare(r.ID[:], after[:]) > 0 })
	got, err := tx.Scan(kindA, after, limit)
	if err = cmp.Or(err, alike(got, want[:max(0, min(limit, len(want)))], false)); err != nil {
		return fmt.Errorf("scan: %w", err)
	}
	none, err := tx.Empty()
	if err != nil || none != (len(m) == 0) {
		return fmt.Errorf("reading Empty = %v with %d records (%v)", none, len(m), err)
	}

	if len(w.known) == 0 {
		return nil
	}
	of := w.known[w.IntN(min(20, len(w.known)))].id
	want = m.sorted(byKind, func(r *store.Record) bool { return r.Parent == of })
	keys, err := tx.Children(of, limit)
	if err != nil || !slices.Equal(keys, keysOf(want[:max(0, min(limit, len(want)))])) {
		return fmt.Errorf("Children = %v, want %d of %v (%v)", keys, limit, keysOf(want), err)
	}
	return nil
}

// askRecord compares Get of a record that the model has or had.
func (w *walk) askRecord(tx store.ReadTx, m model) error {
	if len(w.known) == 0 {
		return nil
	}
	k := w.known[w.IntN(len(w.known))]
	r, err := tx.Get(k.kind, k.id)
	switch stored := m[k]; {
	case stored == nil && r != nil:
		return fmt.Errorf("Get = a record, want none (%v)", err)
	case stored != nil && err != nil:
		return fmt.Errorf("Get: %w", err)
	case stored != nil && differs(r, stored) != "":
		return fmt.Errorf("Get: other %s than was put", differs(r, stored))
	}
	return nil
}

// alike returns how got differs from want, if it does.
func alike(got, want []*store.Record, inList bool) error {
	if len(got) != len(want) {
		return fmt.Errorf("%d records, want %d", len(got), len(want))
	}
	for i, r := range want {
		if inList {
			r = r.Clone()
			r.Secret = nil
		}
		if field := differs(got[i], r); field != "" {
			return fmt.Errorf("record %d has another %s", i, field)
		}
	}
	return nil
}
