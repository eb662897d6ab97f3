package auditlog

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cardvault/cardvault/audit"
	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/internal/rowkey"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

const (
	mostNumber  = 1 << 40 // of a checkpoint that is looked for: more than a chain has in its life
	mostAhead   = 1 << 20 // numbers behind the last readable checkpoint that a damaged one may have
	lookBack    = 64      // damaged checkpoints, one by one, before it is given up
	mostProved  = 2048    // checkpoints whose records are not counted as unproved
	mostCounted = 20_000  // unproved records
	mostRead    = 100_000 // records, until no further period is counted
)

// errLost is in the error of a transaction that found the end of a chain damaged, or found a
// checkpoint behind it: then an earlier end was put back.
var errLost = fmt.Errorf("%w: end of the chain of the audit log", ledger.ErrDamaged)

// errTaken is returned where another record has the place of the next checkpoint. A writer of rows
// has put it there, so looking again does not help.
var errTaken = fmt.Errorf("%w: a record has the place of the next checkpoint of the audit log", ledger.ErrDamaged)

// lostChain begins a chain anew if err says that its record is damaged. rec is the record as it
// was read, nil if it was not. The error is ErrAgain then.
//
// Its account could write no checkpoint otherwise, and its records would never be erased. The
// checkpoint with the break is written even if no other is missing: who damaged the record of the
// chain may have removed the last checkpoints before.
func (l *Log) lostChain(ctx context.Context, rows ledger.Account, rec *store.Record, err error) error {
	if !ledger.Unreadable(err) {
		return err
	}
	c, found, err := l.remains(ctx, rows)
	if err != nil {
		return err
	}

	b := &audit.Break{Last: found}
	all := period{from: c.latest.Add(-grace), to: ledger.Now().Add(youth)}
	if b.Records, _, err = l.countUnproved(ctx, rows, found, c.erased, all); err != nil {
		return err
	}

	keys := rows.Box.Keys()
	k := statement(keys, rows.ID, c, &run{broken: b})
	written, err := k.record(l, rows)
	if err != nil {
		return err
	}
	_, err = l.readCheckpoint(ctx, rows, k.Number)
	planted := ledger.Unreadable(err) // too far behind the last one to be of this chain
	if err != nil && !planted {
		return err
	}
	own := rec != nil && rec.Account == rows.ID && rec.Parent == uuid.Nil && rec.Version < 1<<62
	if own { // a process that has read an earlier version must not take this one for it
		c.record.Version = rec.Version
	}
	next, err := c.next(rows, ledger.Now())
	if err != nil {
		return err
	}
	err = rows.Update(ctx, opCheckpoint, func(tx store.Tx) error {
		if err := ledger.Current(tx, keys); err != nil {
			return err
		}
		end, err := stillLost(tx, next, rec)
		if err != nil {
			return err
		}
		switch _, err := ledger.Seek(tx, written.Kind, written.ID); {
		case absent(err):
		case err != nil && !ledger.Unreadable(err):
			return err
		case !planted:
			return errTaken
		default:
			ledger.Clear(tx, written.Kind, written.ID, err)
		}
		if !own {
			ledger.Clear(tx, next.Kind, next.ID, end)
		}
		tx.Put(next)
		tx.Put(written)
		return nil
	})
	if err != nil {
		return err
	}

	l.Log.Error("the end of the chain of the audit log was damaged or missing, and the chain goes on with a break: export the log and verify it",
		"account", rows.ID, "checkpoint", k.Number, "last", b.Last, "unproved_records", b.Records)
	l.offer(&k.Checkpoint)
	return fmt.Errorf("%w: the chain of the audit log was begun anew", ledger.ErrAgain)
}

// stillLost returns ErrAgain unless the record of a chain is as it was when the chain was lost.
// end is the error of its Seek.
func stillLost(tx store.ReadTx, next, rec *store.Record) (end, err error) {
	is, end := ledger.Seek(tx, next.Kind, next.ID)
	switch {
	case end != nil && !absent(end) && !ledger.Unreadable(end):
		return nil, end
	case (end == nil) != (rec != nil), end == nil && is.Version != rec.Version:
		return nil, ledger.ErrAgain
	}
	return end, nil
}

// remains returns the chain of an account as its checkpoints show it, and the number of the last
// readable checkpoint. The chain ends with the last stored one, which may be damaged, unless that
// is so far behind that only a writer of rows can have put it there.
func (l *Log) remains(ctx context.Context, rows ledger.Account) (c *chain, found uint64, err error) {
	if c, err = l.openChain(ctx, rows, nil); err != nil {
		return nil, 0, err
	}
	k, err := l.lastReadable(ctx, rows)
	if err != nil {
		return nil, 0, err
	}
	first, err := l.present(ctx, rows, 0)
	if err != nil {
		return nil, 0, err
	}

	var from uint64
	switch {
	case k != nil:
		found, from = k.Number, k.Number
		c.hash, c.erased, c.latest = k.Hash(), k.Erased, k.At
	case first > 0 && first < mostNumber/2:
		from = first - 1
	}
	c.number, err = halve(from, from+mostAhead, func(n uint64) (bool, error) {
		above, err := l.present(ctx, rows, n)
		return above == 0 || above > from+mostAhead, err
	})
	if err != nil {
		return nil, 0, err
	}
	if c.swept = c.erased; first > 0 {
		c.swept = min(c.erased, first-1)
	}
	if c.late, err = l.lateness(ctx, rows, c.latest); err != nil {
		return nil, 0, err
	}
	c.signers, err = l.signersOf(ctx, rows, c)
	return c, found, err
}

// lastReadable returns the last checkpoint of an account that can be read, or nil. It is found by
// halves. Where many are damaged in between, these mislead, so what follows is read on.
func (l *Log) lastReadable(ctx context.Context, rows ledger.Account) (k *kept, err error) {
	above := uint64(0)
	for batches := 0; batches < mostAhead/walkBatch; batches++ {
		found, err := l.scan(ctx, rows, above, walkBatch)
		if err != nil {
			return nil, err
		}
		all, err := l.readableOf(ctx, rows, found)
		if err != nil {
			return nil, err
		}

		if len(all) > 0 {
			k = all[len(all)-1]
			above, err = halve(k.Number, mostNumber, func(n uint64) (bool, error) {
				found, err := l.scan(ctx, rows, n, lookBack)
				if err != nil {
					return false, err
				}
				all, err := l.readableOf(ctx, rows, found)
				if len(all) > 0 && all[len(all)-1].Number > k.Number {
					k = all[len(all)-1]
				}
				return len(all) == 0, err
			})
			if err != nil {
				return nil, err
			}
			continue
		}
		if len(found) < walkBatch {
			break
		}
		above = numberOf(found[len(found)-1])
	}
	return k, nil
}

// halve returns the lowest number from low on for which is reports true, and high if
// no lower one does.
func halve(low, high uint64, is func(uint64) (bool, error)) (uint64, error) {
	for low < high {
		middle := low + (high-low)/2
		switch found, err := is(middle); {
		case err != nil:
			return 0, err
		case found:
			high = middle
		default:
			low = middle + 1
		}
	}
	return low, nil
}

// lateness returns by how much checkpoints up to a time can be later than their records: as much as
// that is later than the oldest record of all.
func (l *Log) lateness(ctx context.Context, rows ledger.Account, at time.Time) (time.Duration, error) {
	list, err := l.list(ctx, rows, &store.Query{Kind: l.Kinds.Record, Account: rows.ID, Limit: 1})
	if err != nil || len(list.Records) == 0 {
		return 0, err
	}
	if at.IsZero() {
		at = ledger.Now()
	}
	return max(0, at.Sub(rowkey.Time(list.Records[0].ID))), nil
}

// signersOf returns which key has signed the checkpoints of a chain, by halves for each key.
func (l *Log) signersOf(ctx context.Context, rows ledger.Account, c *chain) (all []signer, err error) {
	keys := rows.Box.Keys()
	public := keys.AuditPublic()
	first := c.swept + 1
	for i := range public {
		from := first
		if i > 0 {
			from, err = halve(first, c.number+1, func(n uint64) (bool, error) {
				by, err := l.signerOf(ctx, rows, n, c.number, public)
				return by >= i, err
			})
			if err != nil {
				return nil, err
			}
		}

		for len(all) > 0 && all[len(all)-1].first >= from { // it has signed nothing that is left
			all = all[:len(all)-1]
		}
		if from <= c.number {
			all = append(all, signer{keys.Audits[i].Number, from})
		}
	}
	return all, nil
}

// signerOf returns the index of the key that has signed the first readable checkpoint from a
// number on. It is the last index if no checkpoint nearby can be read.
func (l *Log) signerOf(ctx context.Context, rows ledger.Account, number, last uint64, public []ed25519.PublicKey) (int, error) {
	for n := number; n <= min(last, number+lookBack); n++ {
		k, err := l.readCheckpoint(ctx, rows, n)
		if err != nil && !ledger.Unreadable(err) {
			return 0, err
		}
		for i, key := range public {
			if err == nil && k != nil && k.SignedBy(key) {
				return i, nil
			}
		}
	}
	return len(public) - 1, nil
}

// chainAsItIs returns the chain of an account and changes nothing: where it is lost, the last
// checkpoint that can be read is its end.
func (l *Log) chainAsItIs(ctx context.Context, rows ledger.Account) (*chain, error) {
	rec, err := l.get(ctx, rows, l.Kinds.Chain, chainID(rows.ID))
	if err == nil && rec != nil {
		var c *chain
		if c, err = l.openChain(ctx, rows, rec); err == nil {
			return c, nil
		}
	}
	if err != nil && !ledger.Unreadable(err) {
		return nil, err
	}
	c, found, err := l.remains(ctx, rows)
	if err == nil {
		c.number = found
	}
	return c, err
}

// promiseAgain returns a damaged promise as the first record of its segment shows it. Without that
// record, damage comes back: nothing says then which numbers the segment has.
func (l *Log) promiseAgain(ctx context.Context, rows ledger.Account, row uuid.UUID, damage error) (*promised, error) {
	rec, err := l.get(ctx, rows, l.Kinds.Record, row)
	switch {
	case ledger.Unreadable(err) || err == nil && (rec == nil || rec.Account != rows.ID || rec.Class == classVacant):
		return nil, damage
	case err != nil:
		return nil, err
	}
	o, err := l.open(ctx, rows, rec)
	switch {
	case ledger.Unreadable(err), err == nil && o.Sequence != o.first:
		return nil, damage
	case err != nil:
		return nil, err
	}
	l.Log.Error("promise of the audit log is damaged, and made again from the first record of its segment", "account", rows.ID, "error", damage)
	return &promised{o.Lane, o.first}, nil
}

// isProved reports whether a checkpoint has the segment of a promise. Then a writer of rows has
// put the promise back.
func (l *Log) isProved(ctx context.Context, rows ledger.Account, row uuid.UUID, p *promised) (bool, error) {
	c, err := l.readChain(ctx, rows)
	if err != nil {
		return false, err
	}
	n, err := l.since(ctx, rows, c.erased+1, c.number, rowkey.Time(row))
	if err != nil {
		return false, err
	}

	above := max(n, 2) - 2 // where clocks differ it may be one before
	for read := 0; read < mostProved && above < c.number; read += scanBatch {
		found, err := l.scan(ctx, rows, above, scanBatch)
		if err != nil {
			return false, err
		}
		all, err := l.readableOf(ctx, rows, found)
		if err != nil {
			return false, err
		}
		if slices.ContainsFunc(all, func(k *kept) bool { return k.Lane == p.lane && k.First == p.first }) {
			return true, nil
		}
		if len(found) < scanBatch {
			break
		}
		above = numberOf(found[len(found)-1])
	}
	return false, nil
}

// forget removes a promise that only a writer of rows can have put there.
func (l *Log) forget(ctx context.Context, rows ledger.Account, rec *store.Record, why string) (int, error) {
	err := rows.Update(ctx, opCheckpoint, func(tx store.Tx) error {
		tx.Delete(rec.Kind, rec.ID)
		return nil
	})
	if err != nil {
		return 0, err
	}
	l.Log.Error("a promise of the audit log was removed: "+why, "account", rows.ID)
	return 1, nil
}

// breakOff writes a checkpoint with a break in the place of a damaged promise, and of all others of
// the account that cannot be kept either: a thousand damaged promises make a few breaks, since each
// has to be looked into.
func (l *Log) breakOff(ctx context.Context, rows ledger.Account, rec *store.Record) (int, error) {
	switch err := rows.Exists(ctx); {
	case errors.Is(err, ledger.ErrNotFound):
		return l.forget(ctx, rows, rec, "it cannot be read, and its account does not exist")
	case err != nil && !ledger.Unreadable(err):
		return 0, err
	}

	c, err := l.readChain(ctx, rows)
	if err != nil {
		return 0, err
	}
	lows, err := l.damagedPromises(ctx, rows, rec.ID)
	if err != nil || len(lows) == 0 {
		return 0, err
	}
	b := new(audit.Break)
	periods := periodsOf(lows)
	n := 0
	if b.Records, n, err = l.countUnproved(ctx, rows, c.number, c.erased, periods...); err != nil {
		return 0, err
	}
	lows = lows[:periods[n-1].promises] // the others are for another break

	first := lows[0]
	if err := l.extend(ctx, rows, 0, &run{low: first, high: first, broken: b, promises: lows[1:]}); err != nil {
		return 0, err
	}
	l.Log.Error("promises of the audit log were damaged, and the chain goes on with a break: export the log and verify it",
		"account", rows.ID, "promises", len(lows), "since", rowkey.Time(first), "unproved_records", b.Records)
	return len(lows), nil
}

// damagedPromises returns the row keys of the promises of an account that cannot be kept, at most a
// few hundred, in their order: one that was found before, and others that are due. It returns none
// if that one is not there any more.
func (l *Log) damagedPromises(ctx context.Context, rows ledger.Account, row uuid.UUID) ([]uuid.UUID, error) {
	switch is, err := l.get(ctx, rows, l.Kinds.Segment, row); {
	case err != nil && !ledger.Unreadable(err):
		return nil, err
	case err == nil && is == nil:
		return nil, nil
	}
	_, _, promises, err := l.read(ctx, rows)
	if err != nil {
		return nil, err
	}

	all := []uuid.UUID{row}
	for _, p := range promises {
		if id := p.record.ID; p.damage != nil && id != row && outlived(id) && !l.has(rows.ID, id) {
			all = append(all, id)
		}
	}
	slices.SortFunc(all, func(a, b uuid.UUID) int { return bytes.Compare(a[:], b[:]) })
	return all, nil
}

// A segmentID names a segment.
type segmentID struct {
	lane  uuid.UUID
	first uint64
}

// A period is a time in which segments of damaged promises may have records.
type period struct {
	from, to time.Time
	promises int // up to this one and those before it
}

// periodsOf returns the periods of promises, whose row keys are in order. They do not overlap, so
// that no record counts twice.
func periodsOf(lows []uuid.UUID) (all []period) {
	for i, low := range lows {
		began := rowkey.Time(low)
		n := len(all)
		if n == 0 || began.After(all[n-1].to) {
			all, n = append(all, period{from: began}), n+1
		}
		all[n-1].to, all[n-1].promises = began.Add(youth), i+1
	}
	return all
}

// countUnproved counts the records of some periods that no readable checkpoint up to a number has
// and no promise is for. Records that cannot be read are among them. It passes over later periods
// once it has read many records, and returns how many it has counted.
func (l *Log) countUnproved(ctx context.Context, rows ledger.Account, number, erased uint64, periods ...period) (total uint64, done int, err error) {
	proved := map[segmentID]bool{}
	for n, read := number, 0; n > erased && read < mostProved; n, read = n-1, read+1 {
		k, err := l.readCheckpoint(ctx, rows, n)
		switch {
		case err != nil && !ledger.Unreadable(err):
			return 0, 0, err
		case err != nil || k == nil:
			continue
		}
		proved[segmentID{k.Lane, k.First}] = k.Lane != uuid.Nil
		if k.Break != nil { // many numbers before it may have no checkpoint
			n = min(n, k.Break.Last+1)
		}
		if k.At.Before(periods[0].from.Add(-grace)) {
			break
		}
	}

	counts, read, seen := map[segmentID]uint64{}, 0, 0
	for ; done < len(periods) && read < mostRead && seen < mostCounted; done++ {
		p := periods[done]
		err := l.walk(ctx, rows, rowkey.First(p.from), rowkey.Last(p.to), func(rec *store.Record) error {
			read++
			of, err := l.segmentIDOf(ctx, rows, rec)
			if err != nil {
				return err
			}
			// The class of a record that cannot be read is what a writer of rows has made it.
			if rec.Class == classVacant && of != (segmentID{}) || proved[of] {
				return nil
			}
			counts[of]++
			if seen++; seen == mostCounted {
				return errEnough
			}
			return nil
		})
		if err != nil && !errors.Is(err, errEnough) {
			return 0, 0, err
		}
	}

	_, _, promises, err := l.read(ctx, rows)
	for _, p := range promises {
		if p.damage == nil {
			delete(counts, segmentID{p.lane, p.first})
		}
	}
	for _, n := range counts {
		total += n
	}
	return total, done, err
}

var errEnough = errors.New("auditlog: counted enough")

// segmentIDOf returns the segment of a record, zero if the record cannot be read.
func (l *Log) segmentIDOf(ctx context.Context, rows ledger.Account, rec *store.Record) (segmentID, error) {
	o, err := l.open(ctx, rows, rec)
	switch {
	case ledger.Unreadable(err):
		return segmentID{}, nil
	case err != nil:
		return segmentID{}, err
	}
	return segmentID{o.Lane, o.first}, nil
}
