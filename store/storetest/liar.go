package storetest

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/cardvault/cardvault/store"
)

// A Lie is one way in which a [LyingStore] answers falsely. Where it can, the store answers
// with a genuine record that fits the question in every other respect.
type Lie int

const (
	// OtherID: Get returns the record of another id.
	OtherID Lie = iota + 1

	// OtherKind: Get, List, Lookup, Due, Scan return a record of another kind.
	OtherKind

	// OtherAccount: Get, List and Lookup return a record of another account.
	OtherAccount

	// OtherParent: List returns a record of another parent, or a record with a parent where
	// the query has none. Children returns the key of a record that is not a child.
	OtherParent

	// OtherClass: List returns a record whose class is not in the query.
	OtherClass

	// OtherHash: Lookup, and List with Query.Lookup, return a record that does not
	// have the hash.
	OtherHash

	// OutOfRange: List returns a record outside Min and Max, and Scan a record that does
	// not come after the id.
	OutOfRange

	// NotDue: Due returns a record that is due later, or never.
	NotDue

	// Lapsed: List with Query.Live returns a record that has lapsed.
	Lapsed

	// Dressed: Get, List, Lookup and Due return a record that does not fit, with its
	// columns changed so that it does. Its sealed parts are untouched.
	Dressed

	// Stale: Get, List, Lookup, Due and Scan return a record as it was before its last
	// write, or before it was deleted. It fitted the question then.
	Stale

	// Disorder: List, Lookup, Due, Scan and Children return the first two in the
	// wrong order.
	Disorder

	// Repeated: List, Lookup, Due, Scan and Children return the first twice.
	Repeated

	// TooMany: List, Lookup, Due, Scan and Children return one more than the limit.
	TooMany

	// WrongTotal: List returns a Total that is less than the records on the page.
	WrongTotal

	// NextEarlier and NextLater: Next returns a time an hour before and after the
	// earliest Due.
	NextEarlier
	NextLater

	lies // how many, and one
)

// Lies returns every Lie.
func Lies() []Lie {
	var all []Lie
	for lie := Lie(1); lie < lies; lie++ {
		all = append(all, lie)
	}
	return all
}

// A LyingStore is a store whose answers can be made false, for the tests of code that
// must not believe its store. Get one from [Liar]. Its writes are always honest.
type LyingStore struct {
	store.Store

	mu    sync.Mutex
	lie   Lie
	kinds []store.Kind
	told  int
	past  map[store.Key][]*store.Record // oldest first
}

// Liar returns a store that keeps its records in s and answers truly until Tell is
// called. It takes its false answers from the first thousand records of a kind, by
// s's own Scan. Closing it closes s.
func Liar(s store.Store) *LyingStore {
	return &LyingStore{Store: s, past: make(map[store.Key][]*store.Record)}
}

// Tell makes the answers to questions about kinds false from now on, or all answers if
// kinds is empty. Children is not asked about a kind and lies in either case. An answer
// that cannot be falsified stays true. Zero ends the lies.
func (l *LyingStore) Tell(lie Lie, kinds ...store.Kind) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lie, l.kinds, l.told = lie, kinds, 0
}

// Told returns how many answers have been false since Tell. A test that expects a lie to be
// noticed checks that Told is not zero.
func (l *LyingStore) Told() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.told
}

// View implements [store.Store].
func (l *LyingStore) View(ctx context.Context, fn func(store.ReadTx) error) error {
	return l.Store.View(ctx, func(tx store.ReadTx) error { return fn(lyingReads{tx, l}) })
}

// Update implements [store.Store].
func (l *LyingStore) Update(ctx context.Context, fn func(store.Tx) error) error {
	var replaced []*store.Record
	err := l.Store.Update(ctx, func(tx store.Tx) error {
		replaced = nil
		return fn(lyingTx{lyingReads{tx, l}, tx, &replaced})
	})
	if err == nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		for _, r := range replaced {
			k := store.Key{Kind: r.Kind, ID: r.ID}
			l.past[k] = append(l.past[k], r)
		}
	}
	return err
}

// lieAbout returns the lie for a question about a kind, or zero.
func (l *LyingStore) lieAbout(kind store.Kind) Lie {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.kinds) > 0 && kind != 0 && !slices.Contains(l.kinds, kind) {
		return 0
	}
	return l.lie
}

func (l *LyingStore) tell() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.told++
}

// stale returns earlier states of records of a kind, by id and the latest first.
func (l *LyingStore) stale(kind store.Kind) []*store.Record {
	l.mu.Lock()
	defer l.mu.Unlock()
	var past []*store.Record
	for k, rs := range l.past {
		if k.Kind == kind {
			past = append(past, rs...)
		}
	}
	slices.SortFunc(past, func(a, b *store.Record) int {
		return cmp.Or(byID(a, b), cmp.Compare(b.Version, a.Version))
	})
	return past
}

type lyingTx struct {
	lyingReads
	tx       store.Tx
	replaced *[]*store.Record
}

func (t lyingTx) remember(kind store.Kind, id uuid.UUID) {
	if old, err := t.tx.Get(kind, id); err == nil {
		*t.replaced = append(*t.replaced, old)
	}
}

func (t lyingTx) Put(r *store.Record) {
	t.remember(r.Kind, r.ID)
	t.tx.Put(r)
}

func (t lyingTx) Delete(kind store.Kind, id uuid.UUID) {
	t.remember(kind, id)
	t.tx.Delete(kind, id)
}

type lyingReads struct {
	store.ReadTx
	l *LyingStore
}

// A question is what a record must fit to be a true answer. The zero values of kind,
// id, account and until do not matter.
type question struct {
	kind    store.Kind
	id      uuid.UUID
	account uuid.UUID
	list    *store.Query
	hash    []byte
	until   time.Time
	after   uuid.UUID
	limit   int
	sort    func(a, b *store.Record) int
}

// wrong reports whether a record as an answer to q would be such a lie.
func (q *question) wrong(lie Lie, r *store.Record) bool {
	l := q.list
	if l == nil {
		l = &store.Query{Account: r.Account, Parent: r.Parent}
	}

	switch lie {
	case OtherID:
		return q.id != uuid.Nil && r.ID != q.id
	case OtherKind:
		return r.Kind != q.kind
	case OtherAccount:
		return r.Account != l.Account && l.Parent == uuid.Nil || q.account != uuid.Nil && r.Account != q.account
	case OtherParent:
		return r.Parent != l.Parent
	case OtherClass:
		return !l.Classes.Has(r.Class) || q.list != nil && r.Class == 0

	case OtherHash:
		return q.hash != nil && !has(r, q.hash)
	case OutOfRange:
		return bytes.Compare(r.ID[:], l.Min[:]) < 0 || l.Max != uuid.Nil && bytes.Compare(r.ID[:], l.Max[:]) > 0 ||
			bytes.Compare(r.ID[:], q.after[:]) <= 0
	case NotDue:
		return !q.until.IsZero() && (r.Due.IsZero() || r.Due.After(q.until))
	case Lapsed:
		return !l.Live.IsZero() && !r.Due.IsZero() && !r.Due.After(l.Live)
	}

	return false
}

// wrongIn returns in how many respects a record does not fit q.
func (q *question) wrongIn(r *store.Record) (n int) {
	for lie := OtherID; lie <= Lapsed; lie++ {
		if q.wrong(lie, r) {
			n++
		}
	}
	return n
}

// dressed returns r with the columns that q asks for.
func (q *question) dressed(r *store.Record) *store.Record {
	r = r.Clone()
	r.Kind = q.kind
	if q.id != uuid.Nil {
		r.ID = q.id
	}
	if q.account != uuid.Nil {
		r.Account = q.account
	}
	if q.hash != nil && !has(r, q.hash) {
		r.Lookup = append(r.Lookup[:min(len(r.Lookup), store.MaxLookups-1)], bytes.Clone(q.hash))
	}
	if q.wrong(NotDue, r) {
		r.Due = q.until
	}

	if l := q.list; l != nil {
		r.Parent = l.Parent
		if l.Parent == uuid.Nil {
			r.Account = l.Account
		}
		for c := 1; c < 256 && q.wrong(OtherClass, r); c++ {
			r.Class = uint8(c)
		}
		if q.wrong(Lapsed, r) {
			r.Due = time.Time{}
		}
	}

	return r
}

// known returns records to lie with: of the kind asked for, or of all others.
func (t lyingReads) known(q *question, lie Lie) []*store.Record {
	if lie == Stale {
		return t.l.stale(q.kind)
	}
	var all []*store.Record
	for k := 1; k < 256; k++ {
		if (store.Kind(k) == q.kind) != (lie == OtherKind) {
			rs, err := t.ReadTx.Scan(store.Kind(k), uuid.Nil, 1000)
			if err != nil {
				panic(err) // the store below is broken, and no answer says so
			}
			all = append(all, rs...)
		}
	}
	return all
}

// falsehood returns the record that is the least wrong lie about q, or nil. truth is
// the true answer.
func (t lyingReads) falsehood(q *question, lie Lie, truth []*store.Record) *store.Record {
	var best *store.Record
	least := 0
	for _, r := range t.known(q, lie) {
		isIt := func(o *store.Record) bool { return o.Kind == r.Kind && o.ID == r.ID }
		switch lie {
		case Dressed:
			if q.wrongIn(r) == 0 || slices.ContainsFunc(truth, isIt) {
				continue
			}
			if r = q.dressed(r); q.wrongIn(r) > 0 {
				continue
			}
		case Stale:
			if q.wrongIn(r) > 0 {
				continue
			}
		default:
			if !q.wrong(lie, r) {
				continue
			}
		}

		if n := q.wrongIn(r); best == nil || n < least {
			best, least = r, n
		}
	}

	return best
}

// answer returns a false answer to q, or truth if it cannot be falsified.
func (t lyingReads) answer(q *question, truth []*store.Record) []*store.Record {
	lie := t.l.lieAbout(q.kind)
	told, ok := disarranged(lie, truth, q.limit)
	if !ok && lie == TooMany && q.limit > 0 && len(truth) == q.limit {
		// One more that is true otherwise.
		for _, r := range t.known(q, lie) {
			if q.wrongIn(r) == 0 && !slices.ContainsFunc(truth, func(o *store.Record) bool { return o.ID == r.ID }) {
				told, ok = append(slices.Clone(truth), r), true
				slices.SortStableFunc(told, q.sort)
				break
			}
		}
	}

	if !ok && lie >= OtherID && lie <= Stale && q.limit > 0 {
		if r := t.falsehood(q, lie, truth); r != nil {
			told = slices.DeleteFunc(slices.Clone(truth), func(o *store.Record) bool { return o.Kind == r.Kind && o.ID == r.ID })
			told, ok = append(told[:min(len(told), q.limit-1)], r.Clone()), true
			slices.SortStableFunc(told, q.sort)
		}
	}

	if !ok {
		return truth
	}
	t.l.tell()
	return told
}

// disarranged returns an answer with a lie about its arrangement.
func disarranged[T any](lie Lie, truth []T, limit int) (told []T, ok bool) {
	switch {
	case lie == Disorder && len(truth) > 1:
		told = slices.Clone(truth)
		told[0], told[1] = told[1], told[0]
		return told, true
	case lie == Repeated && len(truth) > 0 && limit > 1:
		return append([]T{truth[0]}, truth[:min(len(truth), limit-1)]...), true
	}
	return nil, false
}

func (t lyingReads) Get(kind store.Kind, id uuid.UUID) (*store.Record, error) {
	r, err := t.ReadTx.Get(kind, id)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return nil, err
	}
	q := &question{kind: kind, id: id, limit: 1, sort: byID}
	var truth []*store.Record
	if err == nil {
		truth, q.account = []*store.Record{r}, r.Account
	}
	if told := t.answer(q, truth); len(told) > 0 {
		return told[0], nil
	}
	return nil, err
}

func (t lyingReads) List(query *store.Query) (*store.List, error) {
	l, err := t.ReadTx.List(query)
	if err != nil {
		return nil, err
	}
	q := &question{kind: query.Kind, list: query, hash: query.Lookup, limit: query.Limit, sort: byID}
	if query.Desc {
		q.sort = func(a, b *store.Record) int { return byID(b, a) }
	}

	told := &store.List{Total: l.Total}
	for _, r := range t.answer(q, l.Records) {
		public := *r
		public.Secret = nil
		told.Records = append(told.Records, &public)
	}

	if query.Count && len(l.Records) > 0 && t.l.lieAbout(query.Kind) == WrongTotal {
		told.Total = int64(len(l.Records)) - 1
		t.l.tell()
	}
	return told, nil
}

func (t lyingReads) Lookup(kind store.Kind, hash []byte, limit int) ([]*store.Record, error) {
	truth, err := t.ReadTx.Lookup(kind, hash, limit)
	if err != nil {
		return nil, err
	}
	q := &question{kind: kind, hash: hash, limit: limit, sort: byID}
	if len(truth) > 0 {
		q.account = truth[0].Account
	}
	return t.answer(q, truth), nil
}

func (t lyingReads) Due(kind store.Kind, shards store.Shards, until time.Time, limit int) ([]*store.Record, error) {
	truth, err := t.ReadTx.Due(kind, shards, until, limit)
	if err != nil {
		return nil, err
	}
	return t.answer(&question{kind: kind, until: until, limit: limit, sort: byDue}, truth), nil
}

func (t lyingReads) Next(kind store.Kind, shards store.Shards) (time.Time, error) {
	at, err := t.ReadTx.Next(kind, shards)
	if err != nil || at.IsZero() {
		return at, err
	}
	switch t.l.lieAbout(kind) {
	case NextEarlier:
		t.l.tell()
		return at.Add(-time.Hour), nil
	case NextLater:
		t.l.tell()
		return at.Add(time.Hour), nil
	}
	return at, nil
}

func (t lyingReads) Scan(kind store.Kind, after uuid.UUID, limit int) ([]*store.Record, error) {
	truth, err := t.ReadTx.Scan(kind, after, limit)
	if err != nil {
		return nil, err
	}
	return t.answer(&question{kind: kind, after: after, limit: limit, sort: byID}, truth), nil
}

func (t lyingReads) Children(parent uuid.UUID, limit int) ([]store.Key, error) {
	truth, err := t.ReadTx.Children(parent, limit)
	if err != nil || limit <= 0 {
		return truth, err
	}

	lie := t.l.lieAbout(0)
	told, ok := disarranged(lie, truth, limit)
	switch lie {
	case TooMany:
		more, err := t.ReadTx.Children(parent, limit+1)
		if err != nil {
			return nil, err
		}
		told, ok = more, len(more) > limit

	case OtherParent:
		for k := 1; k < 256 && !ok; k++ {
			rs, err := t.ReadTx.Scan(store.Kind(k), uuid.Nil, 1000)
			if err != nil {
				return nil, err
			}
			for _, r := range rs {
				if r.Parent != parent {
					told, ok = append(slices.Clone(truth[:min(len(truth), limit-1)]), store.Key{Kind: r.Kind, ID: r.ID}), true
					break
				}
			}
		}
	}

	if !ok {
		return truth, nil
	}
	t.l.tell()
	return told, nil
}
