package auditlog

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cardvault/cardvault/audit"
	"github.com/cardvault/cardvault/internal/jobs"
	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/internal/rowkey"
	"github.com/cardvault/cardvault/internal/seal"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// opCheckpoint passes the gate before the writes of an account that floods.
var opCheckpoint = ledger.Ends("audit.checkpoint")

func each[T any](items []T, fn func(T) error) error { return jobs.Each(items, fn) }

// absent reports whether a transaction did not find a record.
func absent(err error) bool {
	return errors.Is(err, store.ErrNotFound) || errors.Is(err, ledger.ErrNotFound)
}

// A run is the records of a segment for a checkpoint.
type run struct {
	of        *segment // of this process; nil: of another
	stored    bool     // it has a record, and so a promise
	lane      uuid.UUID
	first     uint64
	digests   [][audit.DigestSize]byte
	low, high uuid.UUID       // row keys of the first and the last record
	present   []uuid.UUID     // rows with an unknown outcome that were found in the store
	vacant    []*store.Record // for rows with an unknown outcome that were not found
	broken    *audit.Break    // of a checkpoint that begins a lost chain anew
	promises  []uuid.UUID     // others that the break is for
}

// prove writes the checkpoints of the segments of a lane that have ended.
func (l *Log) prove(ctx context.Context, n *lane) error {
	for {
		ready := l.ready(n)
		if len(ready) == 0 {
			return nil
		}

		_, err := ledger.Retry(ctx, func() (struct{}, error) {
			var runs []*run
			for _, s := range ready {
				r, err := l.runOf(ctx, s)
				if err != nil {
					return struct{}{}, err
				}
				if s.unpromised {
					switch is, err := l.isProved(ctx, n.rows, s.row, &promised{s.lane, s.first}); {
					case err != nil:
						return struct{}{}, err
					case is:
						continue
					}
					l.Log.Error("a promise of the audit log was removed, and its records have a checkpoint without it", "account", n.rows.ID)
				}
				runs = append(runs, r)
			}
			return struct{}{}, l.extend(ctx, n.rows, 0, runs...)
		})
		if err != nil {
			return err
		}
		l.proved(n, ready)
	}
}

// ready returns a few segments that have ended.
func (l *Log) ready(n *lane) (ready []*segment) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range n.waiting {
		if s.pending == 0 && len(ready) < chainBatch {
			ready = append(ready, s)
		}
	}
	return ready
}

// proved forgets segments that have a checkpoint.
func (l *Log) proved(n *lane, done []*segment) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range done {
		l.unproved -= len(s.entries)
		n.unproved -= len(s.entries)
	}
	n.waiting = slices.DeleteFunc(n.waiting, func(s *segment) bool { return slices.Contains(done, s) })
	if l.proofs != nil {
		close(l.proofs)
		l.proofs = nil
	}
}

// runOf returns the records of a segment that has ended. Nothing of it changes any more.
func (l *Log) runOf(ctx context.Context, s *segment) (*run, error) {
	r := &run{of: s, lane: s.lane, first: s.first, low: s.row, high: s.entries[len(s.entries)-1].row}
	for i := range s.entries {
		e := &s.entries[i]
		is := e.is
		if is == unsure {
			found, err := l.get(ctx, s.rows, l.Kinds.Record, e.row)
			switch {
			case ledger.Unreadable(err): // it was written, and the export shows its damage
				is = stored
			case err != nil:
				return nil, err
			case found == nil:
				is = void
				if err := l.vacate(s, e.row, r); err != nil {
					return nil, err
				}
			case found.Class == classVacant: // by a checkpoint with an unknown outcome
				is = void
			default:
				is = stored
				r.present = append(r.present, e.row)
			}
		}

		var digest [audit.DigestSize]byte
		if is == stored {
			digest = e.digest
			r.stored = true
		}
		r.digests = append(r.digests, digest)
	}
	return r, nil
}

// classVacant is the class of a record that fills the place of an unwritten record. A write with
// an unknown outcome that arrives late conflicts with it.
const classVacant = 2

func (l *Log) vacate(s *segment, row uuid.UUID, r *run) error {
	rec := s.rows.NewRecord(l.Kinds.Record, row)
	rec.Class = classVacant
	r.vacant = append(r.vacant, rec)
	return s.rows.SealShown(rec, appendRecord(make([]byte, 0, 192), &audit.Record{Lane: s.lane}, s.first, row))
}

// extend adds checkpoints to the chain of an account: one for each run, which takes the place
// of its promise, or a checkpoint without records that names the last erased checkpoint.
func (l *Log) extend(ctx context.Context, rows ledger.Account, erased uint64, runs ...*run) error {
	c, err := l.readChain(ctx, rows)
	if err != nil {
		return err
	}
	due := c.record.Due
	if due.IsZero() && l.Retention > 0 {
		due = ledger.Now().Add(l.Retention)
	}
	switch {
	case erased > c.erased:
		c.erased, due = erased, ledger.Now()
		runs = []*run{{}}
	case len(runs) == 0:
		return nil
	}

	keys := rows.Box.Keys()
	var written []*store.Record
	var last *kept
	for _, r := range runs {
		if r.broken != nil {
			r.broken.Last = c.number
		}
		last = statement(keys, rows.ID, c, r)
		rec, err := last.record(l, rows)
		if err != nil {
			return err
		}
		written = append(written, rec)
	}
	next, err := c.next(rows, due)
	if err != nil {
		return err
	}

	err = rows.Update(ctx, opCheckpoint, func(tx store.Tx) error {
		if err := ledger.Current(tx, keys); err != nil {
			return err
		}
		if err := ledger.PutNext(tx, next); ledger.Unreadable(err) {
			return fmt.Errorf("%w: %w", errLost, err)
		} else if err != nil {
			return err
		}
		for _, r := range written {
			// The record of the chain names the last checkpoint, unless an older one was put back, or
			// a writer of rows has put something behind it.
			if _, err := ledger.Seek(tx, r.Kind, r.ID); err == nil || ledger.Unreadable(err) {
				return errLost
			}
			tx.Put(r)
		}
		for _, r := range runs {
			if err := r.put(l, tx); err != nil {
				return err
			}
		}
		return nil
	})
	switch {
	case errors.Is(err, errLost):
		return l.lostChain(ctx, rows, c.record, err)
	case err == nil:
		l.offer(&last.Checkpoint)
	}
	return err
}

// offer passes a checkpoint on.
func (l *Log) offer(c *audit.Checkpoint) {
	if l.sink != nil {
		l.sink.offer(c)
	}
	if l.exporter != nil {
		l.exporter.offer(c.AccountID, c.Number)
	}
}

// statement returns the next checkpoint of a chain, signed.
func statement(keys *seal.Keys, account uuid.UUID, c *chain, r *run) *kept {
	k := &kept{low: r.low, high: r.high}
	k.VaultID, k.AccountID, k.At = keys.Vault, account, ledger.Now()
	k.Number, k.Previous, k.Erased = c.number+1, c.hash, c.erased
	k.Lane, k.First, k.Break = r.lane, r.first, r.broken
	k.SetDigests(r.digests)
	k.Sign(keys.AuditSigner())
	c.signedBy(keys.Audits.Active().Number)
	c.number, c.hash = k.Number, k.Hash()
	c.dated(k)
	return k
}

// put writes what goes with the checkpoint of a run.
func (r *run) put(l *Log, tx store.Tx) error {
	if r.low != uuid.Nil {
		needed := (r.stored || r.broken != nil) && !(r.of != nil && r.of.unpromised)
		_, err := ledger.Seek(tx, l.Kinds.Segment, r.low)
		switch {
		case absent(err) && needed:
			// Without its promise it has a checkpoint, of another process or one whose outcome was
			// unknown, unless a writer of rows has removed the promise.
			if r.of != nil {
				r.of.unpromised = true
			}
			return ledger.ErrAgain
		case err != nil && !absent(err) && !ledger.Unreadable(err): // a damaged promise is deleted like any other
			return err
		}
		ledger.Clear(tx, l.Kinds.Segment, r.low, err)
	}

	for _, row := range r.promises {
		_, err := ledger.Seek(tx, l.Kinds.Segment, row)
		switch {
		case absent(err): // a list that is damaged may have it
			continue
		case err != nil && !ledger.Unreadable(err):
			return err
		}
		ledger.Clear(tx, l.Kinds.Segment, row, err)
	}
	for _, row := range r.present {
		if _, err := ledger.Seek(tx, l.Kinds.Record, row); err != nil && !ledger.Unreadable(err) {
			return err
		}
	}
	for _, v := range r.vacant {
		switch _, err := ledger.Seek(tx, l.Kinds.Record, v.ID); {
		case err == nil, ledger.Unreadable(err):
			return ledger.ErrAgain
		case !absent(err):
			return err
		}
		tx.Put(v)
	}
	return nil
}

// Sweep returns the background work of the log: checkpoints for the records of processes that
// have died, and the erasure of old ones.
func (l *Log) Sweep() jobs.Sweep {
	return jobs.Sweep{Records: []store.Kind{l.Kinds.Segment, l.Kinds.Chain}, Step: l.sweep}
}

const (
	dueBatch = 32   // segments or chains of a step
	duePast  = 4096 // that a step passes over, at most, because they fail
)

func (l *Log) sweep(ctx context.Context) (int, error) {
	n, err := l.step(ctx, l.due(l.Kinds.Segment), l.complete)
	m, also := l.step(ctx, l.due(l.Kinds.Chain), l.erase)
	o, late := l.step(ctx, l.postponed, l.complete)
	return n + m + o, errors.Join(err, also, late, l.look(ctx))
}

// A find returns records to work on, at most a limit.
type find func(tx store.ReadTx, limit int) ([]*store.Record, error)

func (l *Log) due(kind store.Kind) find {
	return func(tx store.ReadTx, limit int) ([]*store.Record, error) {
		return tx.Due(kind, store.AllShards, ledger.Now(), limit)
	}
}

// postponed finds promises that should have been due long ago: a writer of rows has put them off,
// to have their records without a checkpoint.
func (l *Log) postponed(tx store.ReadTx, limit int) ([]*store.Record, error) {
	found, err := tx.Scan(l.Kinds.Segment, uuid.Nil, limit)
	if len(found) > 0 && ledger.Unreadable(err) {
		err = nil
	}
	return slices.DeleteFunc(found, func(r *store.Record) bool { return !outlived(r.ID) }), err
}

// outlived reports whether the process that made the promise of a row has written the checkpoint by
// now, or has died.
func outlived(row uuid.UUID) bool { return ledger.Now().Sub(rowkey.Time(row)) > promise }

// step works on due records. An error of one does not keep others from being worked on, also if
// it fills the batch with others like it.
func (l *Log) step(ctx context.Context, pick find, work func(context.Context, ledger.Account, *store.Record) (int, error)) (all int, err error) {
	var errs []error
	tried := map[uuid.UUID]bool{}
	for all == 0 && len(tried) < duePast && ctx.Err() == nil {
		var due []*store.Record
		limit := len(tried) + dueBatch
		err := l.Ledger.View(ctx, func(tx store.ReadTx) (err error) {
			due, err = pick(tx, limit)
			return err
		})
		errs = append(errs, err)

		for _, rec := range due {
			if tried[rec.ID] {
				continue
			}
			tried[rec.ID] = true
			n, err := work(ctx, l.Ledger.In(rec.Account), rec)
			if err != nil && !errors.Is(err, ledger.ErrAgain) && !errors.Is(err, store.ErrConflict) {
				errs = append(errs, err)
			}
			all += n
		}
		if len(due) < limit {
			break
		}
	}
	return all, errors.Join(errs...)
}

// complete writes the checkpoint of a segment whose process has died. The numbers above the
// last stored record are void, and so are those between without a record.
func (l *Log) complete(ctx context.Context, rows ledger.Account, rec *store.Record) (int, error) {
	if l.has(rows.ID, rec.ID) {
		return 0, nil
	}
	p, err := l.openPromise(ctx, rec)
	if ledger.Unreadable(err) {
		if p, err = l.promiseAgain(ctx, rows, rec.ID, err); ledger.Unreadable(err) {
			return l.breakOff(ctx, rows, rec)
		}
	}
	if err != nil {
		return 0, err
	}
	switch is, err := l.isProved(ctx, rows, rec.ID, p); {
	case err != nil:
		return 0, err
	case is:
		return l.forget(ctx, rows, rec, "its records have a checkpoint")
	}
	found, err := l.segmentOf(ctx, rows, rec.ID, p)
	if err != nil {
		return 0, err
	}

	r := &run{stored: true, lane: p.lane, first: p.first, low: rec.ID, high: rec.ID}
	for _, o := range found {
		for uint64(len(r.digests)) < o.Sequence-p.first {
			r.digests = append(r.digests, [audit.DigestSize]byte{})
		}
		r.digests = append(r.digests, o.Digest())
		r.high = o.row
	}
	if err := l.extend(ctx, rows, 0, r); err != nil {
		return 0, err
	}
	l.Log.Warn("checkpoint of the audit log was written for a process that has ended without it", "account", rows.ID, "lane", p.lane, "records", len(found))
	return 1, nil
}

// has reports whether this process has made the promise of a row, and will keep it.
func (l *Log) has(account, row uuid.UUID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.lanes[account]
	return n != nil && (n.open != nil && n.open.row == row ||
		slices.ContainsFunc(n.waiting, func(s *segment) bool { return s.row == row }))
}

// segmentOf returns the records of a segment, in their order.
func (l *Log) segmentOf(ctx context.Context, rows ledger.Account, low uuid.UUID, p *promised) (found []*opened, err error) {
	high := rowkey.Last(rowkey.Time(low).Add(youth))
	err = l.walk(ctx, rows, low, high, func(rec *store.Record) error {
		if rec.Class == classVacant {
			return nil
		}

		o, err := l.open(ctx, rows, rec)
		if err != nil {
			if !ledger.Unreadable(err) {
				return err
			}
			l.Log.Error("record of the audit log is damaged", "account", rows.ID, "error", err)
			return nil
		}
		if o.Lane == p.lane && o.first == p.first && o.Sequence >= p.first && o.Sequence-p.first < audit.MaxRecords {
			found = append(found, o)
		}
		return nil
	})
	slices.SortFunc(found, func(a, b *opened) int { return bytes.Compare(a.row[:], b.row[:]) })
	return found, err
}

const walkBatch = 500 // records of a read

// walk calls fn with the records of an account between two row keys, in their order.
func (l *Log) walk(ctx context.Context, rows ledger.Account, low, high uuid.UUID, fn func(*store.Record) error) error {
	for {
		list, err := l.list(ctx, rows, &store.Query{Kind: l.Kinds.Record, Account: rows.ID, Min: low, Max: high, Limit: walkBatch})
		if err != nil {
			return err
		}

		for _, rec := range list.Records {
			if ledger.Foreign(rec) {
				l.Log.Error("record of the audit log is damaged", "account", rows.ID)
				continue
			}
			if err := fn(rec); err != nil {
				return err
			}
		}
		n := len(list.Records)
		if n < walkBatch || list.Records[n-1].ID == high {
			return nil
		}
		low = rowkey.Above(list.Records[n-1].ID)
	}
}

// list answers a query. A damaged record shows when it is opened, or is Foreign.
func (l *Log) list(ctx context.Context, rows ledger.Account, q *store.Query) (list *store.List, err error) {
	err = rows.View(ctx, func(tx store.ReadTx) (err error) {
		list, err = tx.List(q)
		if list != nil && ledger.Unreadable(err) {
			err = nil
		}
		return err
	})
	return list, err
}

const (
	eraseBatch = 64  // checkpoints that one statement declares erased
	eraseRows  = 500 // records erased in one transaction
)

// erase declares old checkpoints erased, or erases a declared one with its records.
func (l *Log) erase(ctx context.Context, rows ledger.Account, _ *store.Record) (int, error) {
	c, err := l.readChain(ctx, rows)
	switch {
	case err != nil:
		return 0, err
	case c.swept < c.erased:
		return l.eraseOne(ctx, rows, c)
	case l.Retention == 0:
		return 1, l.later(ctx, rows, c, time.Time{})
	}

	old := c.erased
	again := ledger.Now().Add(l.Retention)
	for old < c.number && old < c.erased+eraseBatch {
		// A checkpoint that cannot be read is at most as old as a later one. Until that one is old,
		// the gap must not pass for erased.
		number, at, err := l.readable(ctx, rows, c, old+1)
		if err != nil {
			return 0, err
		}
		due := at.Add(l.Retention)
		late := due.After(ledger.Now())
		switch {
		case number > old+1 && late:
			l.Log.Error("checkpoint of the audit log is missing or damaged: export the log and verify it", "account", rows.ID, "number", old+1)
		case number > old+1:
			l.Log.Error("missing or damaged checkpoints of the audit log are erased because of their age", "account", rows.ID, "from", old+1, "to", number-1)
		}
		if late {
			again = due
			break
		}
		old = min(number, c.number)
	}
	if old == c.erased {
		return 1, l.later(ctx, rows, c, again)
	}
	return 1, l.extend(ctx, rows, old)
}

// readable returns number and time of the first readable checkpoint from a number on. Without any
// the number is above the last, and the time is the latest of the chain.
func (l *Log) readable(ctx context.Context, rows ledger.Account, c *chain, number uint64) (uint64, time.Time, error) {
	for limit, above := 1, number-1; above < c.number; limit = scanBatch {
		found, err := l.scan(ctx, rows, above, limit)
		if err != nil {
			return 0, time.Time{}, err
		}
		all, err := l.readableOf(ctx, rows, found)
		if err != nil {
			return 0, time.Time{}, err
		}
		if len(all) > 0 && all[0].Number <= c.number {
			return all[0].Number, all[0].At, nil
		}
		if len(found) < limit {
			break
		}
		above = numberOf(found[len(found)-1])
	}
	return c.number + 1, cmp.Or(c.latest, ledger.Now()), nil
}

const scanBatch = 64 // checkpoints of a read

// later writes when there is something to erase next.
func (l *Log) later(ctx context.Context, rows ledger.Account, c *chain, due time.Time) error {
	next, err := c.next(rows, due)
	if err != nil {
		return err
	}
	return rows.Update(ctx, opCheckpoint, func(tx store.Tx) error { return ledger.PutNext(tx, next) })
}

// eraseOne erases the oldest declared checkpoint, its records before it. With the last declared
// one it erases older records that no remaining checkpoint can have: records of a damaged
// checkpoint, and damaged records.
func (l *Log) eraseOne(ctx context.Context, rows ledger.Account, c *chain) (int, error) {
	k, err := l.readCheckpoint(ctx, rows, c.swept+1)
	switch {
	case ledger.Unreadable(err):
		k = nil
	case err != nil:
		return 0, err
	case k == nil: // numbers that a break has left out may be many
		next, err := l.present(ctx, rows, c.swept)
		if err != nil {
			return 0, err
		}
		gone := c.erased
		if next > 0 {
			gone = min(gone, next-1)
		}
		c.swept = max(c.swept, gone-1) // and one more below
	}
	var old []uuid.UUID
	if k != nil && k.Lane != uuid.Nil {
		err := l.walk(ctx, rows, k.low, k.high, func(rec *store.Record) error {
			o, err := l.open(ctx, rows, rec)
			switch {
			case err != nil && !ledger.Unreadable(err):
				return err
			case err == nil && o.Lane == k.Lane && o.first == k.First:
				old = append(old, rec.ID)
			}
			return nil
		})
		if err != nil {
			return 0, err
		}
	}
	own, more := len(old), false
	if k != nil && c.swept+1 == c.erased {
		left, full, err := l.leftBefore(ctx, rows, k.At.Add(-max(c.late, grace)))
		if err != nil {
			return 0, err
		}
		old, more = append(old, left...), full
	}

	if len(old) > eraseRows {
		old, more = old[:eraseRows], true
	}
	if !more {
		c.swept++
	}
	next, err := c.next(rows, ledger.Now())
	if err != nil {
		return 0, err
	}
	err = rows.Update(ctx, opCheckpoint, func(tx store.Tx) error {
		if err := ledger.PutNext(tx, next); err != nil {
			return err
		}
		for _, row := range old {
			tx.Delete(l.Kinds.Record, row)
		}
		if !more {
			at := checkpointID(rows.ID, c.swept)
			_, err := ledger.Seek(tx, l.Kinds.Checkpoint, at)
			if err != nil && !absent(err) && !ledger.Unreadable(err) {
				return err
			}
			ledger.Clear(tx, l.Kinds.Checkpoint, at, err)
		}
		return nil
	})
	if n := len(old) - own; n > 0 && err == nil {
		l.Log.Error("records of the audit log without a checkpoint are erased because of their age", "account", rows.ID, "records", n)
	}
	return len(old) + 1, err
}

// leftBefore returns row keys of records from before a time, and whether there may be more.
func (l *Log) leftBefore(ctx context.Context, rows ledger.Account, at time.Time) (left []uuid.UUID, more bool, err error) {
	list, err := l.list(ctx, rows, &store.Query{Kind: l.Kinds.Record, Account: rows.ID, Max: rowkey.Below(rowkey.First(at)), Limit: eraseRows})
	if err != nil {
		return nil, false, err
	}
	for _, rec := range list.Records {
		if !ledger.Foreign(rec) {
			left = append(left, rec.ID)
		}
	}
	return left, len(left) > 0 && len(list.Records) == eraseRows, nil
}
