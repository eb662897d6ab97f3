package auditlog

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/cardvault/cardvault/audit"
	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

const (
	maxNotes   = 16384       // that wait for the next batch, an account's at most half
	noteBatch  = 128         // of a transaction
	windowTime = time.Minute // in which calls that were refused alike are counted

	singly         = 10   // refused calls that are alike and have a record each, in a window
	singlyAccount  = 1000 // of an account
	singlyStranger = 100  // of all callers without an account

	maxWindows = 4096 // sorts of refused calls that are counted apart
)

// notes are the records of calls that write nothing, until the next batch.
type notes struct {
	mu      sync.Mutex
	waiting []*audit.Record
	held    map[uuid.UUID]int // places of an account: of records that wait, or are being written and may come back
	taken   int               // places of all accounts
	windows map[window]*counted
	ends    time.Time // of the windows
}

// A window names refused calls that are alike. In a flood the key or the address is left out.
type window struct {
	account   uuid.UUID
	operation string
	error     string
	key       uuid.UUID
	address   string
}

type counted struct {
	calls uint64
	more  uint64        // without a record yet
	last  *audit.Record // of these
}

// Note records a call without a write: a refused or failed call, the use of a card, or a read.
// It is written within a second, refused calls in a flood as a number once a minute. The error
// is ErrFull if it cannot be recorded.
func (l *Log) Note(ctx context.Context, rows ledger.Account, op ledger.Operation, object uuid.UUID, err error) error {
	if err == nil && op.IsRead() && !l.Reads {
		return nil
	}
	r := l.recordOf(ctx, rows, op, object)
	r.At = ledger.Now() // its row is made later
	if err != nil {
		r.Outcome, r.Error = l.Classify(err)
	}
	full := !l.notes.add(&r)
	l.mu.Lock()
	l.arm()
	l.mu.Unlock()

	if full {
		return l.without(ErrFull)
	}
	return nil
}

// NoteFirst records a call that is about to begin. The record is stored when NoteFirst returns
// nil, unless it is lost and calls go on without one. An error refuses the call.
func (l *Log) NoteFirst(ctx context.Context, rows ledger.Account, op ledger.Operation, object uuid.UUID) (lost bool, err error) {
	err = l.keeps()
	if err == nil {
		_, err = ledger.Retry(ctx, func() (struct{}, error) {
			r := l.recordOf(ctx, rows, op, object)
			return struct{}{}, l.writePart(ctx, []*audit.Record{&r})
		})
	}
	if err == nil || errors.Is(err, ledger.ErrClosed) || ctx.Err() != nil {
		return false, err
	}
	return true, l.without(err)
}

// recordOf returns the record of a call that has succeeded, without a place and a time.
func (l *Log) recordOf(ctx context.Context, rows ledger.Account, op ledger.Operation, object uuid.UUID) audit.Record {
	return audit.Record{AccountID: rows.ID, Actor: l.Actor(ctx), Operation: op.Name,
		ObjectID: object, Purpose: op.Purpose, Detail: op.Detail, Outcome: audit.Success, Calls: 1}
}

// add reports whether there was room.
func (n *notes) add(r *audit.Record) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	lent := r.Purpose != "" && r.Outcome != audit.Refused // a failed use of a card: each is named
	if r.Outcome != audit.Success && !lent && n.crowded(r) {
		return true
	}
	return n.wait(r)
}

// wait adds a record, if its account has room. The caller holds n.mu.
func (n *notes) wait(r *audit.Record) bool {
	if !roomFor(n.held[r.AccountID], n.taken, maxNotes) {
		return false
	}
	n.waiting = append(n.waiting, r)
	n.held[r.AccountID]++
	n.taken++
	return true
}

// leave gives the places of records back. The caller holds n.mu.
func (n *notes) leave(batch []*audit.Record) {
	for _, r := range batch {
		n.taken--
		if n.held[r.AccountID]--; n.held[r.AccountID] == 0 {
			delete(n.held, r.AccountID)
		}
	}
}

// crowded reports whether a refused call is only counted.
func (n *notes) crowded(r *audit.Record) bool {
	if n.ends.IsZero() {
		n.ends = time.Now().Add(windowTime)
	}
	most := uint64(singlyAccount)
	if r.AccountID == uuid.Nil {
		most = singlyStranger
	}
	of := n.window(window{account: r.AccountID})
	of.calls++

	alike := window{r.AccountID, r.Operation, r.Error, r.Actor.KeyID, r.Actor.Address}
	if of.calls > most || len(n.windows) >= maxWindows {
		alike.key, alike.address = uuid.Nil, ""
	}
	c := n.window(alike)
	c.calls++
	if c.calls <= singly && of.calls <= most {
		return false
	}
	c.more++
	c.last = r
	return true
}

func (n *notes) window(w window) *counted {
	if len(n.windows) >= 2*maxWindows {
		w = window{operation: "flood"}
	}
	c := n.windows[w]
	if c == nil {
		c = new(counted)
		n.windows[w] = c
	}
	return c
}

func (n *notes) any() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.waiting) > 0 || len(n.windows) > 0
}

// calls returns the number of calls whose records wait.
func (n *notes) calls() (total uint64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, r := range n.waiting {
		total += r.Calls
	}
	for _, c := range n.windows {
		total += c.more
	}
	return total
}

// take returns the records for a batch, which keep their places.
func (n *notes) take() []*audit.Record {
	n.mu.Lock()
	defer n.mu.Unlock()
	batch := n.waiting
	n.waiting = nil
	return batch
}

// takeOf returns the records of an account for a batch. Its counted calls wait for their window.
func (n *notes) takeOf(account uuid.UUID) (batch []*audit.Record) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.waiting = slices.DeleteFunc(n.waiting, func(r *audit.Record) bool {
		if r.AccountID != account {
			return false
		}
		batch = append(batch, r)
		return true
	})
	return batch
}

// takeCounted returns the records that stand for many calls, when their window has ended. They
// have places until they are written, also if no room is left.
func (n *notes) takeCounted(last bool) (batch []*audit.Record) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.windows) == 0 || !last && time.Now().Before(n.ends) {
		return nil
	}

	for w, c := range n.windows {
		if c.more == 0 {
			continue
		}
		r := *c.last
		r.Calls = c.more
		r.ObjectID, r.Actor.RequestID = uuid.Nil, ""
		if w.key == uuid.Nil && w.address == "" {
			r.Actor = audit.Actor{}
		}
		batch = append(batch, &r)
		n.held[r.AccountID]++
		n.taken++
	}
	clear(n.windows)
	n.ends = time.Time{}
	return batch
}

// back takes records that could not be written. Records of single calls keep the places that they
// have; those that stand for many need room like a new one. It returns the number of calls without
// room for their records.
func (n *notes) back(batch []*audit.Record, countedCalls bool) (lost uint64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !countedCalls {
		n.waiting = append(batch, n.waiting...)
		return 0
	}
	n.leave(batch)
	for _, r := range batch {
		if !n.wait(r) {
			lost += r.Calls
		}
	}
	return lost
}

// full reports whether an account has no room for another record.
func (n *notes) full(account uuid.UUID) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return !roomFor(n.held[account], n.taken, maxNotes)
}

// written notes that records were written, or may have been.
func (n *notes) written(batch []*audit.Record) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.leave(batch)
}

var opNotes = ledger.Ends("audit.notes")

// OpLost is the operation of records that say how many could not be written.
const OpLost = "audit.lost"

// writeNotes writes records that were taken, grouped by account.
func (l *Log) writeNotes(ctx context.Context, taken []*audit.Record, countedCalls bool) error {
	byAccount := map[uuid.UUID][]*audit.Record{}
	for _, r := range taken {
		byAccount[r.AccountID] = append(byAccount[r.AccountID], r)
	}
	var parts [][]*audit.Record
	for _, of := range byAccount {
		for ; len(of) > noteBatch; of = of[noteBatch:] {
			parts = append(parts, of[:noteBatch:noteBatch])
		}
		parts = append(parts, of)
	}

	return each(parts, func(part []*audit.Record) error {
		err := l.writePart(ctx, part)
		if err == nil || errors.Is(err, ledger.ErrOutcomeUnknown) {
			l.notes.written(part)
		} else {
			l.lost.Add(int64(l.notes.back(part, countedCalls)))
		}
		return err
	})
}

// writeLost writes the number of lost records, into the log of the whole vault.
func (l *Log) writeLost(ctx context.Context) error {
	n := l.lost.Swap(0)
	if n == 0 {
		return nil
	}
	err := l.writePart(ctx, []*audit.Record{{At: ledger.Now(), Operation: OpLost, Outcome: audit.Failed, Error: "unavailable", Calls: uint64(n)}})
	if err != nil && !errors.Is(err, ledger.ErrOutcomeUnknown) {
		l.lost.Add(n)
	}
	return err
}

func (l *Log) writePart(ctx context.Context, part []*audit.Record) (err error) {
	rows := l.Ledger.In(part[0].AccountID)
	var entries []*entry
	defer func() {
		for _, e := range entries {
			e.End(err)
		}
	}()
	for _, r := range part {
		e, err := l.entry(rows, r)
		if err != nil {
			return err
		}
		entries = append(entries, e)
	}
	return rows.Update(ctx, opNotes, func(tx store.Tx) error { return put(tx, entries...) })
}
