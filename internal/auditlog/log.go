// Package auditlog writes the audit log of a vault, whose format and proofs package audit has.
//
// Each account has a log of its own, so that an account's export says nothing of others. In a
// process, an account has a lane, which numbers its records. The records of about a second
// are a segment:
//
//	Begin → a record with number and MAC, sealed before the transaction
//	Put   → written in the transaction of the change; the first one of a segment writes a
//	        promise beside it, which is due after two minutes
//	End   → stored, void, or unsure until the store was asked
//	tick  → all of a segment have ended: a checkpoint takes the place of the promise
//
// By the promise, the sweep of another process finds the records of a process that has died. It
// writes their checkpoint and declares the other numbers void. Checkpoints are one chain for
// each account, continued by compare-and-swap, so that a removed lane is a gap in it.
package auditlog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cardvault/cardvault/audit"
	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/internal/rowkey"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// Kinds of records of the log.
type Kinds struct {
	Record     store.Kind
	Checkpoint store.Kind
	Chain      store.Kind // the end of the chain of an account
	Segment    store.Kind // the promise of a checkpoint
}

// A Config says what a Log works with.
type Config struct {
	Ledger *ledger.Ledger
	Log    *slog.Logger
	Kinds  Kinds

	Reads     bool          // calls that only read are recorded
	Continue  bool          // calls go on without a record that cannot be written
	Retention time.Duration // of records; 0: for ever
	Sink      audit.Sink    // nil: none
	Export    audit.Ledger  // keeps the whole log; nil: none

	// Actor returns on whose behalf a call is made.
	Actor func(context.Context) audit.Actor

	// Classify returns how a call with an error has ended.
	Classify func(error) (audit.Outcome, string)
}

// Times and sizes of a Log.
const (
	interval    = time.Second      // between checkpoints
	youth       = 10 * time.Second // how long a segment takes records, at most
	validity    = time.Minute      // how long after its begin a record of a segment may be written
	promise     = 2 * time.Minute  // after the begin of a segment, another process may complete it
	maxUnproved = 1 << 19          // records without a checkpoint in memory, an account's at most half
	patience    = 10 * time.Second // of a tick for the store
	chainBatch  = 8                // checkpoints of a transaction
	maxLanes    = 4096             // of accounts at rest
)

// ErrFull is returned for a call that is refused because its record could not be written.
var ErrFull = fmt.Errorf("%w: audit log cannot be written", ledger.ErrUnavailable)

// A Log is the audit log of a vault in one process. All methods may be called concurrently.
type Log struct {
	Config
	notes    notes
	sink     *sink     // nil: none
	exporter *exporter // nil: none

	ticking chan struct{} // holds a token while tick runs

	mu       sync.Mutex
	lanes    map[uuid.UUID]*lane // by account
	unproved int                 // records of segments
	timer    *time.Timer         // nil: nothing to do
	proofs   chan struct{}       // is closed when segments have checkpoints; nil: no call waits for that
	closed   bool

	failing ledger.Seldom // of failures that are logged
	lost    atomic.Int64  // records that were not written, since the last report of them
}

// New returns a Log, which starts nothing until there are records.
func New(c Config) *Log {
	l := &Log{Config: c, ticking: make(chan struct{}, 1), lanes: map[uuid.UUID]*lane{}}
	l.notes.windows, l.notes.held = map[window]*counted{}, map[uuid.UUID]int{}
	if c.Sink != nil {
		l.sink = newSink(c.Sink, c.Log)
	}
	if c.Export != nil {
		l.exporter = newExporter(l, c.Export)
	}
	return l
}

// A lane numbers the records of an account.
type lane struct {
	rows ledger.Account
	id   uuid.UUID
	next uint64

	unproved int // records of its segments
	former   int // records of the last closed segment: the next one may become as long

	open    *segment   // takes records; nil: none does
	waiting []*segment // take no more, oldest first
}

// A segment is a run of records of a lane that will have one checkpoint. Log.mu guards all
// fields that change.
type segment struct {
	rows  ledger.Account
	lane  uuid.UUID
	first uint64
	row   uuid.UUID // row key of its first record, and of its promise
	began time.Time

	pending int // entries that have not ended
	unsure  int
	entries []state

	promise  atomic.Pointer[store.Record] // sealed by the first record
	promised atomic.Bool                  // and stored

	// unpromised is set when its promise is not there, and guarded by Log.ticking: it has a
	// checkpoint that this process does not know, or a writer of rows has removed the promise.
	unpromised bool
}

// A state is the progress of a record.
type state struct {
	row    uuid.UUID
	digest [audit.DigestSize]byte
	is     standing
}

type standing uint8

const (
	pending standing = iota
	void
	stored
	unsure // the store did not say
)

// An entry is the record of one call on its way into the store.
type entry struct {
	log    *Log
	of     *segment
	slot   int
	record store.Record
	digest [audit.DigestSize]byte

	promised *store.Record // this entry's copy of the promise: a closed term has it sealed anew
}

// take gives a record its place. The row keys of a segment rise with the numbers, and lie
// within youth, whatever the clock does: where they would not, another segment begins.
func (l *Log) take(rows ledger.Account) (*entry, uuid.UUID, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.lanes[rows.ID]
	if n == nil {
		n = &lane{rows: rows, id: uuid.New(), next: 1}
	}
	if !roomFor(n.unproved, l.unproved, maxUnproved) {
		return nil, uuid.Nil, ErrFull
	}
	row, err := rows.NewRow()
	if err != nil {
		return nil, uuid.Nil, err
	}

	l.lanes[rows.ID] = n
	if s := n.open; s != nil && (len(s.entries) == audit.MaxRecords || !s.takes(row)) {
		n.close()
	}
	if n.open == nil {
		n.open = &segment{rows: rows, lane: n.id, first: n.next, row: row, began: time.Now(), entries: make([]state, 0, n.former)}
		l.arm()
	}

	s := n.open
	e := &entry{log: l, of: s, slot: len(s.entries)}
	s.entries = append(s.entries, state{row: row})
	s.pending++
	n.next++
	n.unproved++
	l.unproved++
	return e, row, nil
}

// roomFor reports whether an account with own places of all that are taken may take one more. It
// may have as many as are left over. So one account has at most half of them, and accounts that
// flood together leave as many as each of them has.
func roomFor(own, taken, most int) bool { return own < most-taken }

// close ends the open segment.
func (n *lane) close() {
	if n.open != nil {
		n.waiting = append(n.waiting, n.open)
		n.former = len(n.open.entries)
		n.open = nil
	}
}

func (s *segment) takes(row uuid.UUID) bool {
	last := s.entries[len(s.entries)-1].row
	return rowkey.Sequence(row) > rowkey.Sequence(last) && rowkey.Time(row).Sub(rowkey.Time(s.row)) < youth
}

// Begin returns the entry of a write, made and sealed before its transaction. It is nil if
// the write goes on without one.
func (l *Log) Begin(ctx context.Context, rows ledger.Account, op ledger.Operation, object uuid.UUID) (ledger.Entry, error) {
	err := l.keeps()
	if err == nil {
		r := l.recordOf(ctx, rows, op, object)
		var e *entry
		if e, err = l.entry(rows, &r); err == nil {
			return e, nil
		}
	}
	return nil, l.without(err)
}

// Admit returns ErrFull if calls of an account are refused at present that would be noted
// afterwards.
func (l *Log) Admit(account uuid.UUID) error {
	if !l.Continue && l.notes.full(account) {
		return ErrFull
	}
	return l.keeps()
}

// keeps returns ErrFull if calls are refused at present because of the sink.
func (l *Log) keeps() error {
	if l.sink != nil && !l.Continue {
		return l.sink.behind()
	}
	return nil
}

// without returns what a call returns whose record cannot be written.
func (l *Log) without(err error) error {
	l.lost.Add(1)
	l.fail("record of the audit log could not be written", err)
	switch {
	case l.Continue:
		return nil
	case errors.Is(err, ledger.ErrUnavailable):
		return err
	}
	return fmt.Errorf("%w: %w", ErrFull, err)
}

// fail logs a failure, once a minute.
func (l *Log) fail(what string, err error) {
	if l.failing.Now() {
		l.Log.Error(what, "error", err)
	}
}

// contents are buffers for the content of a record.
var contents = sync.Pool{New: func() any {
	b := make([]byte, 0, 512)
	return &b
}}

// entry makes the record r of an account: its place, MAC and sealed form.
func (l *Log) entry(rows ledger.Account, r *audit.Record) (*entry, error) {
	e, row, err := l.take(rows)
	if err != nil {
		return nil, err
	}
	r.Lane, r.Sequence, r.AccountID = e.of.lane, e.of.first+uint64(e.slot), rows.ID
	if r.At.IsZero() {
		r.At = rowkey.Time(row)
	}

	buf := contents.Get().(*[]byte)
	defer contents.Put(buf)
	content := r.AppendContent((*buf)[:0])
	r.MAC = rows.Box.AuditMAC(rows.ID, content)
	content = append(content, r.MAC[:]...)
	e.digest = audit.DigestOf(content)
	*buf = appendRecord(content[:0], r, e.of.first, row)

	e.record = *rows.NewRecord(l.Kinds.Record, row)
	err = cmp.Or(l.promise(e.of), rows.SealShown(&e.record, *buf))
	if err != nil {
		l.settle(e, void)
		return nil, err
	}
	return e, nil
}

// promise seals the promise of a segment, unless that is done. Nothing waits for another record to
// do so: its seal may wait for the store, for longer than a caller wants to.
func (l *Log) promise(s *segment) error {
	if s.promise.Load() != nil {
		return nil
	}
	r := s.rows.NewRecord(l.Kinds.Segment, s.row)
	r.Due = ledger.Now().Add(promise)
	if err := s.rows.SealShown(r, (&promised{s.lane, s.first}).encode()); err != nil {
		return err
	}
	s.promise.CompareAndSwap(nil, r)
	return nil
}

// errStale is returned by Put for a record whose segment may have been completed.
var errStale = fmt.Errorf("%w: record of the audit log is too old", ledger.ErrAgain)

// Put writes the record, in the transaction of its change.
func (e *entry) Put(tx store.Tx) error { return put(tx, e) }

// put writes records, and the promises that their segments need.
func put(tx store.Tx, entries ...*entry) error {
	var former *segment
	for _, e := range entries {
		if e.of != former {
			if err := e.promise(tx); err != nil {
				return err
			}
		}
		former = e.of
		tx.Put(&e.record)
	}
	return nil
}

func (e *entry) promise(tx store.Tx) error {
	if time.Since(e.of.began) > validity {
		return errStale
	}
	if !e.of.promised.Load() {
		switch _, err := ledger.Seek(tx, e.log.Kinds.Segment, e.of.row); {
		case absent(err):
			if e.promised == nil {
				e.promised = e.of.promise.Load().Clone()
			}
			tx.Put(e.promised)
		case err != nil && !ledger.Unreadable(err):
			return err
		}
	}
	return nil
}

// Stale reports whether the transaction failed because of the entry alone.
func (e *entry) Stale(err error) bool { return errors.Is(err, errStale) }

// End says how the transaction has ended.
func (e *entry) End(err error) {
	switch {
	case err == nil:
		e.of.promised.Store(true)
		e.log.settle(e, stored)
	case errors.Is(err, ledger.ErrOutcomeUnknown), errors.Is(err, store.ErrOutcomeUnknown):
		e.log.settle(e, unsure)
	default:
		e.log.settle(e, void)
	}
}

func (l *Log) settle(e *entry, is standing) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := &e.of.entries[e.slot]
	s.is = is
	if is != void {
		s.digest = e.digest
	}
	if is == unsure {
		e.of.unsure++
	}
	e.of.pending--
}

// arm has tick called after the interval. The caller holds l.mu.
func (l *Log) arm() {
	if l.timer == nil && !l.closed {
		l.timer = time.AfterFunc(interval, l.fire)
	}
}

func (l *Log) fire() {
	ctx, cancel := context.WithTimeout(store.Patient(context.Background()), patience)
	defer cancel()
	l.mu.Lock()
	l.timer = nil
	closed := l.closed
	l.mu.Unlock()
	if closed {
		return
	}
	if err := l.tick(ctx, false); err != nil && !errors.Is(err, ledger.ErrMoved) {
		l.fail("checkpoint of the audit log could not be written", err)
	}
}

// tick writes the notes, and the checkpoints of segments that have ended. It is called again
// while any remain.
func (l *Log) tick(ctx context.Context, last bool) error {
	select {
	case l.ticking <- struct{}{}:
		defer func() { <-l.ticking }()
	case <-ctx.Done():
		return ctx.Err()
	}
	errs := []error{l.writeNotes(ctx, l.notes.take(), false), l.writeNotes(ctx, l.notes.takeCounted(last), true), l.writeLost(ctx)}

	var ready []*lane
	l.mu.Lock()
	for account, n := range l.lanes {
		n.close()
		switch {
		case len(n.waiting) > 0:
			ready = append(ready, n)
		case len(l.lanes) > maxLanes:
			delete(l.lanes, account)
		}
	}
	l.mu.Unlock()

	errs = append(errs, each(ready, func(n *lane) error { return l.prove(ctx, n) }))
	l.mu.Lock()
	defer l.mu.Unlock()
	err := errors.Join(errs...)
	if (l.unproved > 0 || l.notes.any()) && !errors.Is(err, ledger.ErrMoved) { // otherwise the new place writes them
		l.arm()
	}
	return err
}

// Close writes pending records and checkpoints. Later calls are recorded without a
// checkpoint: the next process that works on the vault writes it.
func (l *Log) Close() {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	l.disarm()
	switch err := l.tick(ctx, true); {
	case errors.Is(err, ledger.ErrMoved):
		if calls := l.notes.calls() + uint64(l.lost.Load()); calls > 0 {
			l.Log.Error("the vault has moved, and calls of its last second here that wrote nothing have no record in the audit log", "calls", calls)
		}
	case err != nil:
		l.Log.Error("end of the audit log could not be written", "error", err)
	}
	l.closeKept(ctx)
}

// Abandon ends the log as a kill does, of a vault that does not open: the next process that works on
// the vault completes it. It waits for a write that is under way.
func (l *Log) Abandon() {
	l.disarm()
	l.ticking <- struct{}{} // and no tick begins
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	l.closeKept(ended)
}

// disarm has tick called no more.
func (l *Log) disarm() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	if l.timer != nil {
		l.timer.Stop()
		l.timer = nil
	}
}

// closeKept waits for sink and ledger, until ctx ends.
func (l *Log) closeKept(ctx context.Context) {
	if l.sink != nil {
		l.sink.close(ctx)
	}
	if l.exporter != nil {
		l.exporter.close(ctx)
	}
}

// settleOf writes pending records and checkpoints of an account now. A fault of another account
// does not concern it.
func (l *Log) settleOf(ctx context.Context, rows ledger.Account) error {
	ctx, cancel := context.WithTimeout(ctx, patience) // the other accounts wait for it
	defer cancel()
	select {
	case l.ticking <- struct{}{}:
		defer func() { <-l.ticking }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := l.writeNotes(ctx, l.notes.takeOf(rows.ID), false); err != nil {
		return err
	}

	l.mu.Lock()
	n := l.lanes[rows.ID]
	if n != nil {
		n.close()
	}
	l.mu.Unlock()
	if n != nil {
		if err := l.prove(ctx, n); err != nil {
			return err
		}
	}
	if rows.ID == uuid.Nil {
		return l.writeLost(ctx)
	}
	return nil
}
