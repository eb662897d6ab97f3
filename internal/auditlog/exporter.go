package auditlog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/cardvault/cardvault/audit"
	"github.com/cardvault/cardvault/internal/leak"
	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

const (
	partBytes       = 1 << 20 // after which a part has no further checkpoint
	partCheckpoints = 64

	lookAgain  = 10 * time.Minute // for accounts that a process has left behind
	mostLooked = 4096             // accounts at a time
)

// An exporter passes the logs of accounts on to a ledger. What the ledger has, the ledger says, so
// nothing is lost with a process. Like a sink it has goroutines only while it is behind, at most
// mostKeeps, even if the ledger never returns.
type exporter struct {
	*Log
	to audit.Ledger

	mu      sync.Mutex
	behind  map[uuid.UUID]*behindOf // by account
	has     map[uuid.UUID]uint64    // the last checkpoint of an account that the ledger has
	workers int                     // at most mostKeeps
	resume  *time.Timer             // after a failure
	further chan struct{}           // is closed when the ledger has more
	failing ledger.Seldom
	looked  time.Time // at all accounts
	place   uuid.UUID // where look goes on
	ended   bool
}

// A behindOf is the rest of a log that the ledger lacks.
type behindOf struct {
	want  uint64 // the last checkpoint
	since time.Time
	after time.Time // for the next attempt, if the log itself could not be read
	busy  bool      // a worker is at it
}

func newExporter(l *Log, to audit.Ledger) *exporter {
	return &exporter{Log: l, to: to, behind: map[uuid.UUID]*behindOf{}, has: map[uuid.UUID]uint64{}, further: make(chan struct{})}
}

// offer says that the log of an account has a checkpoint.
func (x *exporter) offer(account uuid.UUID, number uint64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if has, known := x.has[account]; known && has >= number {
		return
	}
	b := x.behind[account]
	if b == nil {
		b = &behindOf{since: time.Now()}
		x.behind[account] = b
	}
	b.want = max(b.want, number)
	x.start()
}

// start begins a worker if there is something to do. The caller holds x.mu.
func (x *exporter) start() {
	if x.workers < mostKeeps && x.workers < len(x.behind) && x.resume == nil && !x.ended {
		x.workers++
		go x.work()
	}
}

func (x *exporter) work() {
	for account, ok := x.takeAccount(); ok; account, ok = x.takeAccount() {
		last, err := x.export(account)
		if errors.Is(err, errOfLog) {
			x.postpone(account, err)
		} else {
			x.exported(account, last, err)
		}
	}
}

// takeAccount returns an account whose log is behind. Without one the worker ends.
func (x *exporter) takeAccount() (uuid.UUID, bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.resume == nil && !x.ended {
		for account, b := range x.behind {
			if !b.busy && !time.Now().Before(b.after) {
				b.busy = true
				return account, true
			}
		}
	}
	x.workers--
	return uuid.Nil, false
}

// export passes on one part, and returns the number of the last checkpoint that the ledger has.
func (x *exporter) export(account uuid.UUID) (last uint64, err error) {
	ctx, cancel := context.WithTimeout(store.Patient(context.Background()), keepTime)
	defer cancel()
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("cardvault: ledger panicked: %T", r)
		}
	}()
	rows := x.Ledger.In(account)
	x.mu.Lock()
	last, known := x.has[account]
	x.mu.Unlock()
	if !known {
		if last, err = x.ask(ctx, rows); err != nil {
			return 0, err
		}
		// A program without Run, such as vaultctl, may be the first with a ledger: of accounts that it
		// does not touch, the ledger would have nothing.
		if last == 0 && account == uuid.Nil {
			if err := x.look(ctx); err != nil {
				return 0, fmt.Errorf("%w: %w", errOfLog, err)
			}
		}
	}

	p, err := x.part(ctx, rows, last)
	if err != nil {
		return last, fmt.Errorf("%w: %w", errOfLog, err)
	}
	if p == nil {
		return last, nil
	}
	if err = x.to.Append(ctx, p); err == nil {
		err = ctx.Err() // it may have accepted the part after the vault gave up
	}
	if err != nil {
		return last, err
	}
	return p.Last.Number, nil
}

// errOfLog is in errors that concern one account alone.
var errOfLog = errors.New("cardvault: the log of the account cannot be exported")

// errForked is returned for a ledger that has another log.
var errForked = errors.New("cardvault: the ledger has another log of the account, such as of the vault before it was restored: give this vault a ledger of its own")

// ask returns the last checkpoint that the ledger has, which must be of this log.
func (x *exporter) ask(ctx context.Context, rows ledger.Account) (uint64, error) {
	mark, err := x.to.Last(ctx, rows.Box.Keys().Vault, rows.ID)
	if err == nil {
		err = ctx.Err()
	}
	if err != nil || mark.Number == 0 {
		return 0, err
	}
	c, err := x.readChain(ctx, rows)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", errOfLog, err)
	}
	k, err := x.readCheckpoint(ctx, rows, mark.Number)
	switch {
	case err != nil && !ledger.Unreadable(err):
		return 0, fmt.Errorf("%w: %w", errOfLog, err)
	case mark.Number > c.number, err == nil && k != nil && k.Hash() != mark.Hash:
		return 0, fmt.Errorf("%w: %w", errOfLog, errForked)
	}
	return mark.Number, nil
}

// postpone lets an account wait whose log could not be read. The others go on.
func (x *exporter) postpone(account uuid.UUID, err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if errors.Is(err, ledger.ErrMoved) { // the new place exports it
		x.ended = true
		return
	}
	if x.failing.Now() {
		x.Log.Log.Error("log of an account could not be exported to the audit ledger", "account", account, "error", leak.Printable(err))
	}
	b := x.behind[account]
	b.busy, b.after = false, time.Now().Add(keepPause)
	time.AfterFunc(keepPause, x.wake)
}

func (x *exporter) wake() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.start()
}

// exported notes how far the ledger is.
func (x *exporter) exported(account uuid.UUID, last uint64, err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	b := x.behind[account]
	b.busy = false
	if err != nil {
		if x.failing.Now() {
			x.Log.Log.Error("audit ledger has not kept a part", "account", account, "error", leak.Printable(err))
		}
		if x.resume == nil && !x.ended {
			x.resume = time.AfterFunc(keepPause, x.again)
		}
		return
	}

	if len(x.has) >= maxBehind {
		clear(x.has) // the ledger is asked again
	}
	was, known := x.has[account]
	x.has[account] = last
	if last >= b.want || known && was == last { // there is no more
		delete(x.behind, account)
	} else {
		b.since = time.Now()
	}
	close(x.further)
	x.further = make(chan struct{})
}

func (x *exporter) again() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.resume = nil
	x.start()
}

// wait returns when the ledger has all of the log of an account that was offered before.
func (x *exporter) wait(ctx context.Context, account uuid.UUID) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	b := x.behind[account]
	if b == nil {
		return nil
	}
	for want := b.want; x.behind[account] != nil && x.has[account] < want; {
		further := x.further
		x.mu.Unlock()
		select {
		case <-further:
		case <-ctx.Done():
		}
		x.mu.Lock()
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return nil
}

// close waits until the ledger has everything, or ctx ends.
func (x *exporter) close(ctx context.Context) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.resume != nil && x.resume.Stop() {
		x.resume = nil
		x.start()
	}

	for len(x.behind) > 0 && ctx.Err() == nil {
		further := x.further
		x.mu.Unlock()
		select {
		case <-further:
		case <-ctx.Done():
		}
		x.mu.Lock()
	}
	if len(x.behind) > 0 {
		x.Log.Log.Error("audit ledger has not kept the last parts", "accounts", len(x.behind))
	}
	x.ended = true
	if x.resume != nil {
		x.resume.Stop()
	}
}

// Behind returns how many logs the ledger lacks the end of, and since when the longest. Without a
// ledger there are none.
func (l *Log) Behind() (accounts int, since time.Time) {
	x := l.exporter
	if x == nil {
		return 0, time.Time{}
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, b := range x.behind {
		if since.IsZero() || b.since.Before(since) {
			since = b.since
		}
	}
	return len(x.behind), since
}

// Exported returns when the ledger has all records of an account that were stored before.
func (l *Log) Exported(ctx context.Context, rows ledger.Account) error {
	if l.exporter == nil {
		return nil
	}
	settled := l.settleOf(ctx, rows) // what it leaves, the next tick does
	var mine []*segment
	l.mu.Lock()
	n := l.lanes[rows.ID]
	if n != nil {
		n.close()
		mine = slices.Clone(n.waiting)
	}
	l.mu.Unlock()
	for {
		l.mu.Lock()
		if l.proofs == nil {
			l.proofs = make(chan struct{})
		}
		proofs := l.proofs
		left := n != nil && slices.ContainsFunc(mine, func(s *segment) bool { return slices.Contains(n.waiting, s) })
		l.mu.Unlock()
		if !left {
			break
		}

		select {
		case <-proofs:
		case <-ctx.Done():
			return errors.Join(ctx.Err(), settled)
		}
	}
	return l.exporter.wait(ctx, rows.ID)
}

// part returns the next part of the log of an account behind a checkpoint, nil if there is none.
func (l *Log) part(ctx context.Context, rows ledger.Account, after uint64) (*audit.Part, error) {
	l.Ledger.Look(ctx)
	c, err := ledger.Retry(ctx, func() (*chain, error) { return l.readChain(ctx, rows) })
	if err != nil {
		return nil, err
	}
	keys := rows.Box.Keys()
	if n := len(c.signers); n > 0 && c.signers[n-1].term > keys.Audits.Active().Number {
		return nil, fmt.Errorf("%w: the audit key is rotated at this moment", ledger.ErrUnavailable)
	}
	first := max(after, c.erased) + 1
	if first > c.number {
		return nil, nil
	}

	p := &audit.Part{VaultID: keys.Vault, AccountID: rows.ID, First: first}
	var out bytes.Buffer
	x := audit.NewWriter(&out, keys.Vault, rows.ID, first, first == c.erased+1, c.keys(keys), keys.AuditSigner())
	for n := first; n <= c.number && n < first+partCheckpoints && out.Len() < partBytes; n++ {
		k, err := l.readCheckpoint(ctx, rows, n)
		if err == nil && k == nil {
			err = l.Ledger.Named(&store.Record{Kind: l.Kinds.Checkpoint, ID: checkpointID(rows.ID, n), Account: rows.ID}, ledger.ErrDamaged)
		}
		if err != nil && !ledger.Unreadable(err) {
			return nil, err
		}
		if err != nil { // Verify names its absence
			l.Log.Error("checkpoint of the audit log is missing or damaged", "account", rows.ID, "number", n, "error", err)
			p.Last.Number = n
			continue
		}
		if err := l.exportOne(ctx, rows, k, x); err != nil {
			return nil, err
		}
		p.Last = audit.Mark{Number: n, Hash: k.Hash()}
	}
	if err := x.Close(); err != nil {
		return nil, err
	}
	p.Export = out.Bytes()
	return p, nil
}

// look finds accounts whose end a process has left behind that died after their checkpoint.
func (l *Log) look(ctx context.Context) error {
	x := l.exporter
	if x == nil {
		return nil
	}
	x.mu.Lock()
	after := x.place
	late := x.looked.IsZero() || time.Since(x.looked) >= lookAgain
	late = late && len(x.behind) < mostLooked && !x.ended
	x.mu.Unlock()
	if !late {
		return nil
	}

	for offered := 0; offered < mostLooked; {
		var found []*store.Record
		err := l.Ledger.View(ctx, func(tx store.ReadTx) (err error) {
			found, err = tx.Scan(l.Kinds.Chain, after, walkBatch)
			if len(found) > 0 && ledger.Unreadable(err) {
				err = nil
			}
			return err
		})
		if err != nil {
			return err
		}
		for _, rec := range found {
			after = rec.ID
			if ledger.Foreign(rec) {
				continue
			}
			if c, err := l.openChain(ctx, l.Ledger.In(rec.Account), rec); err == nil && c.number > 0 { // a damaged one is begun anew by its next write
				x.offer(rec.Account, c.number)
				offered++
			}
		}
		if len(found) < walkBatch {
			x.lookedTo(uuid.Nil, time.Now())
			return nil
		}
	}
	x.lookedTo(after, time.Time{})
	return nil
}

// lookedTo notes where look has ended.
func (x *exporter) lookedTo(place uuid.UUID, all time.Time) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.place, x.looked = place, all
}
