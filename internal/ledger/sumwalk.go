package ledger

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/cardvault/cardvault/internal/seal"
	"github.com/cardvault/cardvault/internal/sums"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// A position is a place among all records that are added up. Records of KindSum come last.
type position struct {
	order int
	id    uuid.UUID
}

const lastOrder = 256 // of KindSum

func positionOf(r *store.Record) position {
	if r.Kind == KindSum {
		return position{lastOrder, r.ID}
	}
	return position{int(r.Kind), r.ID}
}

func (p position) compare(q position) int {
	return cmp.Or(cmp.Compare(p.order, q.order), bytes.Compare(p.id[:], q.id[:]))
}

// A sumLog has the changes that this process makes while it compares sums. The comparison adds up
// records in many Views. A change behind its position has to be added to its sums, once a View
// sees the change: it does if it sees the record of KindSumChange of its transaction.
type sumLog struct {
	entries []sumEntry
	from    int // the first entry of the transaction under way
	over    bool
}

type sumEntry struct {
	at    position
	place sums.Place
	sum   sums.Sum

	// The record with which the change comes into the store.
	id      uuid.UUID
	version uint64
}

// mostEntries bounds what a log holds: about 30 MiB, or the changes of seconds.
const mostEntries = 1 << 18

// The methods of a log do nothing without one. The holder of the lock of summing calls them.

func (l *sumLog) begin() {
	if l != nil { // whether the changes of the last transaction count, the store decides
		l.from = len(l.entries)
	}
}

func (l *sumLog) add(at position, place sums.Place, sum sums.Sum) {
	switch {
	case l == nil:
	case len(l.entries) >= mostEntries:
		l.over = true
	default:
		l.entries = append(l.entries, sumEntry{at: at, place: place, sum: sum})
	}
}

// forget drops the changes of a transaction that sum up to none.
func (l *sumLog) forget() {
	if l != nil {
		l.entries = l.entries[:l.from]
	}
}

// end names the record of the transaction.
func (l *sumLog) end(id uuid.UUID, version uint64) {
	if l == nil {
		return
	}
	for i := range l.entries[l.from:] {
		e := &l.entries[l.from+i]
		e.id, e.version = id, version
	}
}

// has reports whether a record says of some changes that they are stored.
func (l *sumLog) has(id uuid.UUID) bool {
	return l != nil && slices.ContainsFunc(l.entries, func(e sumEntry) bool { return e.id == id })
}

// ErrSumsBusy is returned when sums could not be compared because other calls, or other processes,
// have written too much meanwhile.
var ErrSumsBusy = fmt.Errorf("%w: the records change too fast, or in another process, for their sums to be compared", ErrUnavailable)

// A Comparison says how records and sums differ.
type Comparison struct {
	// Surplus is what there is of records more than the sums say. Its counts may be negative.
	Surplus sums.Set

	// Unread are the records of sums that cannot be read. Sums that are in one of KindSumChange are
	// not known, so Surplus is not either.
	Unread []*store.Record

	unsummed map[uuid.UUID]bool // accounts whose sums are in one of Unread
	back     []*store.Record    // of KindSumChange, were folded and put back: they do not count
}

// SumsStand reports whether the vault has sums of all records.
func (l *Ledger) SumsStand() bool {
	_, able := l.summer()
	return able && l.Box.Keys().SumsStand()
}

// Known reports whether Surplus is known.
func (c *Comparison) Known() bool {
	return !slices.ContainsFunc(c.Unread, func(r *store.Record) bool { return r.Kind == KindSumChange })
}

// Doubtful reports whether the surplus of a place is only known with sums that cannot be read.
func (c *Comparison) Doubtful(at sums.Place) bool { return c.unsummed[at.Account] }

// sumPage is the number of records that are read in one transaction.
const sumPage = 512

// CompareSums compares all records with their sums, while the vault works. It calls rest, which
// may wait, between transactions, with the number of records that were read since the last call.
// From a store.Snapshotter it reads one snapshot. The error may be ErrSumsBusy.
func (l *Ledger) CompareSums(ctx context.Context, rest func(ctx context.Context, began time.Time, records int) error) (*Comparison, error) {
	s := &l.sums
	select {
	case s.walking <- struct{}{}:
		defer func() { <-s.walking }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}

	s.useKeys()
	w := &sumWalk{Comparison: Comparison{Surplus: sums.Set{}, unsummed: map[uuid.UUID]bool{}}, summing: s, rest: rest, at: position{order: int(KindMeta) + 1}}
	able, err := l.Snapshot(ctx, func(tx store.ReadTx) error {
		w.view = func(_ context.Context, fn func(store.ReadTx) error) error { return fn(tx) }
		return w.all(ctx)
	})
	if able {
		return &w.Comparison, err
	}

	s.mu.Lock()
	s.log = new(sumLog)
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.log = nil
	}()
	w.view, w.logged = l.View, true
	// The log may lack a part of the transaction that is under way. It has ended once another one has.
	if err := l.In(uuid.Nil).Update(ctx, opSums, func(store.Tx) error { return nil }); err != nil {
		return nil, err
	}
	return &w.Comparison, w.all(ctx)
}

// A sumWalk adds up all records.
type sumWalk struct {
	Comparison
	*summing
	rest   func(ctx context.Context, began time.Time, records int) error
	view   func(context.Context, func(store.ReadTx) error) error
	logged bool     // changes of this process go on, and are in the log
	at     position // the last record, or place, that was added

	foreign map[uuid.UUID]uint64 // records of other processes at the beginning, with their versions
	first   uint64               // how often sums were written at the beginning
	own     uint64               // of that, by this process
}

func (w *sumWalk) all(ctx context.Context) error {
	if w.logged {
		if err := w.begin(ctx); err != nil {
			return err
		}
	}
	for w.at.order < lastOrder {
		if err := w.page(ctx); err != nil {
			return err
		}
	}

	if !w.logged {
		return w.last(ctx)
	}
	// The sums are of one instant if nothing is folded from the first of them to the last. Calls may
	// wait for that, so it rests afterwards.
	if err := w.hold(ctx); err != nil {
		return err
	}
	began, rest, records := time.Now(), w.rest, 0
	w.rest = func(ctx context.Context, _ time.Time, n int) error { records += n; return ctx.Err() }
	err := func() error {
		defer w.release() // also in a panic of the store
		return w.last(ctx)
	}()
	if w.rest = rest; err != nil {
		return err
	}
	return w.pause(ctx, began, records)
}

// last compares with the sums.
func (w *sumWalk) last(ctx context.Context) error {
	for w.at.order == lastOrder {
		if err := w.sums(ctx); err != nil {
			return err
		}
	}
	return w.end(ctx)
}

// begin notes what only this process may change until the end.
func (w *sumWalk) begin(ctx context.Context) error {
	if err := w.hold(ctx); err != nil {
		return err
	}
	defer w.release()
	w.mu.Lock()
	w.own = w.altered
	w.mu.Unlock()
	return w.view(ctx, func(tx store.ReadTx) (err error) {
		if _, w.foreign, err = w.changesIn(tx); err != nil {
			return err
		}
		top, err := w.topIn(tx)
		w.first = top.count
		return err
	})
}

// hold keeps this process from folding.
func (s *summing) hold(ctx context.Context) error {
	select {
	case s.folding <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *summing) release() { <-s.folding }

// mostKinds is the number of kinds without records are looked at in one transaction.
const mostKinds = 16

// page adds the next records, and moves the position behind them.
func (w *sumWalk) page(ctx context.Context) error {
	began := time.Now()
	var rows []*store.Record
	next := w.at
	err := w.look(ctx, func(tx store.ReadTx) (err error) {
		next = w.at
		for range mostKinds {
			if rows, err = nil, nil; next.order != int(KindSum) && next.order != int(KindSumChange) {
				rows, err = tx.Scan(store.Kind(next.order), next.id, sumPage)
			}
			if len(rows) > 0 || err != nil {
				return err
			}
			if next = (position{order: next.order + 1}); next.order == lastOrder {
				return nil
			}
		}
		return nil
	})
	if err != nil {
		return err
	}

	for _, r := range rows {
		w.count(r)
		next.id = r.ID
	}
	w.at = next
	return w.pause(ctx, began, len(rows))
}

// look reads in one transaction, and then adds the changes that it has seen behind the position.
func (w *sumWalk) look(ctx context.Context, fn func(store.ReadTx) error) (err error) {
	var stored map[uuid.UUID]uint64
	err = w.view(ctx, func(tx store.ReadTx) (err error) {
		if stored, err = w.stored(tx); err != nil {
			return err
		}
		return fn(tx)
	})
	if err != nil || !w.logged {
		return err
	}
	return w.drain(stored)
}

// stored returns the versions of the records that the log names, in a transaction. What the
// transaction sees was in the log before it began.
func (w *sumWalk) stored(tx store.ReadTx) (map[uuid.UUID]uint64, error) {
	stored := map[uuid.UUID]uint64{}
	if !w.logged {
		return stored, nil
	}
	w.mu.Lock()
	for i := range w.log.entries {
		if id := w.log.entries[i].id; id != uuid.Nil {
			stored[id] = 0
		}
	}
	w.mu.Unlock()

	for id := range stored {
		r, err := getOr(tx, KindSumChange, id)
		if err != nil {
			return nil, err
		}
		if r != nil {
			stored[id] = r.Version
		}
	}
	return stored, nil
}

// drain adds the changes behind the position that are stored. Transactions come one after the other,
// so those before a stored one are decided: if a change of them is not stored, it never will be.
func (w *sumWalk) drain(stored map[uuid.UUID]uint64) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.log.over {
		return ErrSumsBusy
	}
	is := func(e *sumEntry) bool { return e.version != 0 && stored[e.id] >= e.version }

	decided := 0
	for i := range w.log.entries {
		if is(&w.log.entries[i]) {
			decided = i + 1
		}
	}
	for i := range w.log.entries[:decided] {
		if e := &w.log.entries[i]; is(e) && e.at.compare(w.at) <= 0 {
			w.Surplus.Add(e.place, e.sum)
		}
	}
	w.log.entries = slices.Delete(w.log.entries, 0, decided)
	w.log.from = max(0, w.log.from-decided)
	return nil
}

// count adds a record.
func (w *sumWalk) count(r *store.Record) {
	if at, is := placeOf(r); is {
		w.Surplus.Add(at, sums.Of(w.keys.Element(r)))
	}
}

func (w *sumWalk) pause(ctx context.Context, began time.Time, records int) error {
	if w.rest == nil {
		return ctx.Err()
	}
	return w.rest(ctx, began, records)
}

// sums subtracts the next records of KindSum, which are added up too.
func (w *sumWalk) sums(ctx context.Context) error {
	began := time.Now()
	var rows []*store.Record
	err := w.look(ctx, func(tx store.ReadTx) (err error) {
		rows, err = tx.Scan(KindSum, w.at.id, sumPage)
		return err
	})
	if err != nil {
		return err
	}

	for _, r := range rows {
		w.count(r)
		w.at.id = r.ID
		if is := w.openSum(r); is.unread {
			w.Unread = append(w.Unread, r)
			w.unsummed[is.account] = true
		} else {
			w.Surplus.Subtract(is.set)
		}
	}
	if len(rows) < sumPage {
		w.at = position{order: lastOrder + 1}
	}
	return w.pause(ctx, began, len(rows))
}

// topIn returns what the record of no account has, in a transaction.
func (w *sumWalk) topIn(tx store.ReadTx) (sumTop, error) {
	top, err := w.summing.top(tx)
	if top == nil {
		return sumTop{}, err
	}
	return top.sumTop, err
}

// mostChanges bounds the records of KindSumChange that are read in one transaction.
const mostChanges = 1 << 12

// changesIn returns the records of KindSumChange, and the versions of the records of other processes.
func (w *sumWalk) changesIn(tx store.ReadTx) (all []*store.Record, foreign map[uuid.UUID]uint64, err error) {
	if all, err = tx.Scan(KindSumChange, uuid.Nil, mostChanges+1); err != nil {
		return nil, nil, err
	}
	if len(all) > mostChanges {
		return nil, nil, ErrSumsBusy
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	foreign = map[uuid.UUID]uint64{}
	for _, r := range all {
		if own := w.left[r.ID] || w.present != nil && w.present.id == r.ID; !own {
			foreign[r.ID] = r.Version
		}
	}
	return all, foreign, nil
}

// end subtracts the changes that are not folded yet.
func (w *sumWalk) end(ctx context.Context) error {
	var all []*store.Record
	var foreign map[uuid.UUID]uint64
	var top sumTop
	err := w.look(ctx, func(tx store.ReadTx) (err error) {
		if all, foreign, err = w.changesIn(tx); err != nil {
			return err
		}
		top, err = w.topIn(tx)
		return err
	})
	if err != nil {
		return err
	}

	w.mu.Lock()
	alone := top.count-w.first == w.altered-w.own
	w.mu.Unlock()
	if w.logged && (!alone || !maps.Equal(foreign, w.foreign)) {
		return ErrSumsBusy
	}
	for _, r := range all {
		switch made, set, err := w.openChange(r); {
		case err != nil:
			w.Unread = append(w.Unread, r)
		case made.Before(top.least):
			w.back = append(w.back, r)
		default:
			w.Surplus.Subtract(set)
		}
	}
	return nil
}

// OpBeginSums is the operation of the writes that begin sums.
var OpBeginSums = Ends("vault.begin_sums")

// errBegunAgain is returned when another call has begun sums meanwhile.
var errBegunAgain = fmt.Errorf("%w: another call has begun sums meanwhile", ErrUnavailable)

// ErrNoSums is returned for a store that does not show its changes.
var ErrNoSums = errors.New("ledger: the store is not a store.Summer")

// BeginSums has all processes keep sums from now on, and adds the present records that they lack.
// If it ends early, the next call begins anew. rest is as for CompareSums.
func (l *Ledger) BeginSums(ctx context.Context, rest func(ctx context.Context, began time.Time, records int) error) error {
	if _, able := l.summer(); !able {
		return cmp.Or(l.View(ctx, func(store.ReadTx) error { return nil }), ErrNoSums)
	}
	if err := l.sumStep(ctx, func(k *seal.Keys) bool { return !k.Summed() }); err != nil {
		return err
	}
	l.sums.useKeys()
	mine := uuid.New()
	if err := l.addSums(ctx, &sumAlteration{next: mine}); err != nil {
		return err
	}
	if err := l.FoldSums(ctx); err != nil && !Unreadable(err) {
		return err
	}
	c, err := l.CompareSums(ctx, rest)
	if err != nil {
		return err
	}

	last := &sumAlteration{add: sums.Set{}, was: mine, next: mine, gone: c.back, anew: slices.Collect(maps.Keys(c.unsummed))}
	for _, r := range c.Unread {
		if r.Kind == KindSumChange {
			last.gone = append(last.gone, r)
		}
	}

	add := last.add
	for _, at := range c.Surplus.Places() {
		if add[at] = c.Surplus[at]; len(add) == mostPlaces {
			if err := l.addSums(ctx, &sumAlteration{add: add, was: mine, next: mine}); err != nil {
				return err
			}
			clear(add)
		}
	}
	if err := l.addSums(ctx, last); err != nil {
		return err
	}
	return l.sumStep(ctx, func(k *seal.Keys) bool { return k.Summed() && !k.SumsStand() })
}

// addSums is alterSums, until no other call is faster.
func (l *Ledger) addSums(ctx context.Context, a *sumAlteration) error {
	_, err := Retry(ctx, func() (struct{}, error) { return struct{}{}, l.alterSums(ctx, a) })
	return err
}

// sumStep takes the next step of sums, if it is time.
func (l *Ledger) sumStep(ctx context.Context, due func(*seal.Keys) bool) error {
	return l.alter(ctx, &alteration{
		op: OpBeginSums,
		next: func(k *seal.Keys, _ *meta) (*seal.Keys, error) {
			if !due(k) {
				return nil, nil
			}
			return k.NextSums(), nil
		},
		also: moveCounts,
	})
}
