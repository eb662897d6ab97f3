package ledger

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cardvault/cardvault/internal/seal"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// A checkedStore is a store whose answers are compared with the questions. What a record
// says of itself is authenticated once it is opened, not where it was found: an index
// may have been edited. So a record that does not itself fulfil the question is never
// used, whatever led to it. Every read of a vault goes through here.
//
// A store can still hide a record, or give a former one: neither shows in an answer.
type checkedStore struct {
	store.Store
	mistrust  func(answer string) // called for an answer that cannot be right
	homes     map[store.Kind]Home
	keys      func() *seal.Keys // with which an Update begins
	moved     func() error
	hashes    map[store.Kind]Hashes
	followed  atomic.Pointer[time.Time] // when the keys were known to be those of the last step of a rotation, or later
	conflicts atomic.Int64              // in a row
}

const manyConflicts = 100

func (s *checkedStore) View(ctx context.Context, account uuid.UUID, fn func(store.ReadTx) error) error {
	c := checkedCalls.Get().(*checkedCall)
	c.tx.s, c.tx.account, c.reads = s, account, fn
	return c.end(s.Store.View(ctx, c.view))
}

// A checkedCall is one of View or Update. It is used again, as it would cost allocations
// that show beside the reading of a record.
type checkedCall struct {
	tx     checkedTx
	reads  func(store.ReadTx) error
	writes func(store.Tx) error

	// Of Update.
	guard   guard
	account *store.Record // as the guard has read it: for the first Get of it

	// See sealedInTime.
	keys    *seal.Keys
	puts    []*store.Record
	vouched uint32
	open    []uint32

	view   func(store.ReadTx) error // calls reads
	update func(store.Tx) error     // calls writes
}

var checkedCalls = sync.Pool{New: func() any {
	c := new(checkedCall)
	c.view = func(tx store.ReadTx) error {
		c.tx.begin(tx)
		return c.reads(&c.tx.checkedReadTx)
	}
	c.update = func(tx store.Tx) error {
		c.tx.begin(tx)
		c.tx.writes, c.tx.call, c.keys, c.puts, c.vouched = tx, c, c.tx.s.keys(), c.puts[:0], 0
		if err := c.tx.s.moved(); err != nil {
			return err
		}
		c.account = nil
		r, err := c.guard.admits(&c.tx)
		if err != nil {
			return err
		}
		c.account = r
		if err := c.writes(&c.tx); err != nil {
			return err
		}
		if err := c.sealedInTime(); err != nil {
			return err
		}
		return c.heard()
	}
	return c
}}

// end returns err. The call is used again only after nil: then the store has called it,
// and has no reason to do so once more.
func (c *checkedCall) end(err error) error {
	c.tx, c.reads, c.writes, c.guard, c.account, c.keys = checkedTx{}, nil, nil, guard{}, nil, nil
	clear(c.puts)
	if err == nil {
		checkedCalls.Put(c)
	}
	return err
}

// Update waits for a moment after a conflict when there have been many without a write.
// Each means that another process was faster, or that a store names wrong versions. So no
// caller spins, and a caller that retries does so until ctx has ended.
func (s *checkedStore) Update(ctx context.Context, account uuid.UUID, g guard, fn func(store.Tx) error) error {
	c := checkedCalls.Get().(*checkedCall)
	c.tx.s, c.tx.account, c.guard, c.writes = s, account, g, fn
	err := c.end(s.Store.Update(ctx, c.update))
	if !errors.Is(err, store.ErrConflict) {
		if s.conflicts.Load() > 0 {
			s.conflicts.Store(0)
		}
	} else if s.conflicts.Add(1) > manyConflicts {
		select {
		case <-ctx.Done():
			return ctx.Err() // nothing was written
		case <-time.After(rand.N(time.Millisecond)):
		}
	}
	return err
}

type checkedTx struct {
	checkedReadTx
	writes store.Tx
	call   *checkedCall
	within bool // from In
}

// Get reads the account of the call once: most calls look at it besides the guard. A record
// belongs to who has got it, so the next Get reads again.
func (tx checkedTx) Get(kind store.Kind, id uuid.UUID) (*store.Record, error) {
	if r := tx.call.account; r != nil && kind == KindAccount && r.ID == id && !tx.within {
		tx.call.account = nil
		return r, nil
	}
	return tx.checkedReadTx.Get(kind, id)
}

func (tx checkedTx) Put(r *store.Record) {
	if r.Kind != KindMeta {
		tx.call.puts = append(tx.call.puts, r)
	}
	if tx.divided != nil && tx.s.homes[r.Kind] != Anywhere {
		tx.divided.In(r.Account).(store.Tx).Put(r)
		return
	}
	tx.writes.Put(r)
}

func (tx checkedTx) Delete(kind store.Kind, id uuid.UUID) {
	if tx.divided != nil {
		tx.at(kind).(store.Tx).Delete(kind, id)
		return
	}
	tx.writes.Delete(kind, id)
}

// In returns the transaction for records of one account, whatever their kinds.
func (tx *checkedTx) In(account uuid.UUID) store.ReadTx {
	if tx.divided == nil {
		return tx
	}
	within, in := *tx, tx.divided.In(account)
	within.tx, within.writes, within.divided, within.within = in, in.(store.Tx), nil, true
	return &within
}

type checkedReadTx struct {
	tx      store.ReadTx
	s       *checkedStore
	account uuid.UUID     // of the call; zero: perhaps of any account
	divided store.Divided // tx if it is one, else nil
}

func (tx *checkedReadTx) begin(in store.ReadTx) {
	tx.tx = in
	tx.divided, _ = in.(store.Divided)
}

// In returns the transaction for records of one account, whatever their kinds.
func (tx *checkedReadTx) In(account uuid.UUID) store.ReadTx {
	if tx.divided == nil {
		return tx
	}
	within := *tx
	within.tx, within.divided = tx.divided.In(account), nil
	return &within
}

// at returns the transaction in which to look for a record of a kind. Only here does a
// store learn which account that is.
func (tx checkedReadTx) at(kind store.Kind) store.ReadTx {
	if tx.divided == nil {
		return tx.tx
	}
	switch home := tx.s.homes[kind]; {
	case home == Nowhere:
		return tx.divided.In(uuid.Nil)
	case home == Own && tx.account != uuid.Nil:
		return tx.divided.In(tx.account)
	}
	return tx.tx
}

var _ store.Divided = (*checkedReadTx)(nil)
var _ store.Divided = (*checkedTx)(nil)

// ErrOrder is in the error of a scan whose ids do not rise, beside ErrDamaged.
var ErrOrder = errors.New("ids out of order")

// lie returns the error of an answer that cannot be right.
func (tx checkedReadTx) lie(what string) error {
	tx.s.mistrust(what)
	return fmt.Errorf("%w: the store returned %s", ErrDamaged, what)
}

func (tx checkedReadTx) Get(kind store.Kind, id uuid.UUID) (*store.Record, error) {
	r, err := tx.at(kind).Get(kind, id)
	if err == nil && (r == nil || r.Kind != kind || r.ID != id) {
		return nil, tx.lie("another record than requested")
	}
	return r, err
}

// List fails for a page with anything wrong in it, because a page is shown as a whole. Two
// sorts of records are exceptions, because any writer of a row can produce them. The list
// then comes with ErrDamaged beside it. A record that names another account or parent is
// Foreign there, and a record that cannot be read shows nothing.
func (tx checkedReadTx) List(q *store.Query) (*store.List, error) {
	if q.Lookup != nil {
		if err := tx.searched(q.Kind, q.Lookup); err != nil {
			return nil, err
		}
	}
	list, err := tx.tx.List(q)
	if err != nil {
		return nil, err
	}

	n := int64(len(list.Records))
	wrong := n > int64(max(0, q.Limit)) || list.Total < 0 || !q.Count && list.Total != 0
	if q.Count && q.Limit > 0 { // a page that is not full is the last one
		end := max(0, q.Offset) + n
		wrong = wrong || n > 0 && (list.Total < end || n < int64(q.Limit) && list.Total != end) || n == 0 && list.Total > end
	}

	damaged := false
	for i, r := range list.Records {
		wrong = wrong || r == nil || r.Kind != q.Kind ||
			bytes.Compare(r.ID[:], q.Min[:]) < 0 || q.Max != uuid.Nil && bytes.Compare(r.ID[:], q.Max[:]) > 0
		if wrong {
			break
		}

		switch {
		case r.Account != q.Account || r.Parent != q.Parent:
			damaged = true
			list.Records[i] = &store.Record{ID: r.ID}
		case r.Version == 0:
			damaged = true
			r.Shown = nil
		default:
			wrong = r.Class == 0 || !q.Classes.Has(r.Class) || !q.Live.IsZero() && !Lives(r, q.Live) ||
				q.Lookup != nil && !Carries(r, q.Lookup)
		}

		if !wrong && i > 0 {
			order := bytes.Compare(list.Records[i-1].ID[:], r.ID[:])
			wrong = q.Desc && order <= 0 || !q.Desc && order >= 0
		}
	}
	if wrong {
		return nil, tx.lie("a list with records that do not belong there")
	}
	if damaged {
		return list, tx.lie("unreadable records, or records that name another account or parent than their list")
	}
	return list, nil
}

// Foreign reports whether a record of a list does not say that it belongs there. Nothing is
// known of it except where the list goes on.
func Foreign(r *store.Record) bool { return r.Kind == 0 }

// Lookup returns the records that have the hash, and ErrDamaged beside them if there were
// others: a damaged record does not keep others from being found.
func (tx checkedReadTx) Lookup(kind store.Kind, hash []byte, limit int) ([]*store.Record, error) {
	if err := tx.searched(kind, hash); err != nil {
		return nil, err
	}
	found, err := tx.tx.Lookup(kind, hash, limit)
	return tx.sift(found, err, "records for a hash that they do not have", limit,
		func(r *store.Record) bool { return r.Kind == kind && Carries(r, hash) },
		func(a, b *store.Record) bool { return bytes.Compare(a.ID[:], b.ID[:]) <= 0 })
}

// Due returns the records that are due, and ErrDamaged beside them as Lookup does.
func (tx checkedReadTx) Due(kind store.Kind, shards store.Shards, until time.Time, limit int) ([]*store.Record, error) {
	due, err := tx.tx.Due(kind, shards, until, limit)
	return tx.sift(due, err, "records that are not due", limit,
		func(r *store.Record) bool {
			return r.Kind == kind && shards.Has(store.ShardOf(r.ID)) && !r.Due.IsZero() && !r.Due.After(until)
		},
		func(a, b *store.Record) bool { return !b.Due.Before(a.Due) })
}

func (tx checkedReadTx) Next(kind store.Kind, shards store.Shards) (time.Time, error) {
	return tx.tx.Next(kind, shards)
}

func (tx checkedReadTx) Scan(kind store.Kind, after uuid.UUID, limit int) ([]*store.Record, error) {
	found, err := tx.tx.Scan(kind, after, limit)
	if err != nil {
		return nil, err
	}
	wrong := len(found) > max(0, limit)
	for _, r := range found {
		wrong = wrong || r == nil || r.Kind != kind || bytes.Compare(r.ID[:], after[:]) <= 0
		if !wrong {
			after = r.ID
		}
	}
	if wrong {
		return nil, fmt.Errorf("%w: %w", tx.lie("records of a kind out of order"), ErrOrder)
	}
	return found, nil
}

func (tx checkedReadTx) Children(parent uuid.UUID, limit int) ([]store.Key, error) {
	keys, err := tx.tx.Children(parent, limit)
	if err != nil {
		return nil, err
	}
	wrong := len(keys) > max(0, limit)
	for i := 1; i < len(keys); i++ {
		wrong = wrong || cmp.Or(cmp.Compare(keys[i-1].Kind, keys[i].Kind), bytes.Compare(keys[i-1].ID[:], keys[i].ID[:])) >= 0
	}
	if wrong {
		return nil, tx.lie("children out of order")
	}
	return keys, nil
}

func (tx checkedReadTx) Empty() (bool, error) { return tx.tx.Empty() }

// sift returns the records of an answer that match the question, each once. The error is
// ErrDamaged if some do not, or if they are too many or out of order.
func (tx checkedReadTx) sift(found []*store.Record, err error, what string, limit int, is func(*store.Record) bool, ordered func(a, b *store.Record) bool) ([]*store.Record, error) {
	if err != nil && !errors.Is(err, store.ErrDamaged) {
		return nil, err
	}

	wrong := len(found) > max(0, limit)
	right := found[:0]
	var seen map[uuid.UUID]bool
	if len(found) > 1 {
		seen = make(map[uuid.UUID]bool, len(found))
	}
	for _, r := range found {
		if r == nil || !is(r) || seen[r.ID] || len(right) == limit {
			wrong = true
			continue
		}
		wrong = wrong || len(right) > 0 && !ordered(right[len(right)-1], r)
		if seen != nil {
			seen[r.ID] = true
		}
		right = append(right, r)
	}

	if err != nil {
		return right, Translate(err)
	}
	if wrong {
		return right, tx.lie(what)
	}
	return right, nil
}

// Carries reports whether a record has a hash.
func Carries(r *store.Record, hash []byte) bool {
	return slices.ContainsFunc(r.Lookup, func(h []byte) bool { return bytes.Equal(h, hash) })
}
