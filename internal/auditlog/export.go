package auditlog

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/cardvault/cardvault/audit"
	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/internal/rowkey"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// A Query selects records of an account.
type Query struct {
	From, To  time.Time // of writing, both inclusive; zero: no bound
	Operation string    // "": all
	ObjectID  uuid.UUID // zero: all
	Ascending bool
	After     uuid.UUID // row key of the last record before; zero: begin
	Limit     int
}

// MaxScan is the largest number of records that are read for one page.
const MaxScan = 5000

// Last returns the last checkpoint of an account, or nil.
func (l *Log) Last(ctx context.Context, rows ledger.Account) (*audit.Checkpoint, error) {
	c, err := l.chainAsItIs(ctx, rows)
	if err != nil || c.number == 0 {
		return nil, err
	}
	k, err := l.readCheckpoint(ctx, rows, c.number)
	if err != nil || k == nil {
		return nil, err
	}
	return &k.Checkpoint, nil
}

// Page returns records of an account, at most Limit, and the row key from which the next page
// goes on, zero after the last one. It reads at most MaxScan, so that a page may have fewer.
// The errors of damaged records come with the others.
func (l *Log) Page(ctx context.Context, rows ledger.Account, q *Query) (found []*audit.Record, next uuid.UUID, err error) {
	query := &store.Query{Kind: l.Kinds.Record, Account: rows.ID, Desc: !q.Ascending}
	query.Classes.Add(1)
	if !q.From.IsZero() {
		query.Min = rowkey.First(q.From.Add(time.Microsecond - 1))
	}
	if !q.To.IsZero() {
		query.Max = rowkey.Last(q.To)
	}
	query.Limit = min(q.Limit+1, walkBatch)
	if q.Operation != "" || q.ObjectID != uuid.Nil {
		query.Limit = walkBatch
	}

	var damaged []error
	after := q.After
	for scanned := 0; scanned < MaxScan; {
		switch {
		case after == uuid.Nil:
		case q.Ascending:
			query.Min = rowkey.Above(after)
		default:
			query.Max = rowkey.Below(after)
		}
		list, err := l.list(ctx, rows, query)
		if err != nil {
			return nil, uuid.Nil, err
		}
		for _, rec := range list.Records {
			if len(found) == q.Limit {
				return found, after, ledger.JoinDamages(damaged...)
			}
			after = rec.ID
			if ledger.Foreign(rec) {
				damaged = append(damaged, l.Ledger.Named(&store.Record{Kind: l.Kinds.Record}, ledger.ErrDamaged))
				continue
			}
			o, err := l.open(ctx, rows, rec)
			switch {
			case err != nil && !ledger.Unreadable(err):
				return nil, uuid.Nil, err
			case err != nil:
				damaged = append(damaged, err)
			case q.Operation != "" && o.Operation != q.Operation, q.ObjectID != uuid.Nil && o.ObjectID != q.ObjectID:
			default:
				found = append(found, &o.Record)
			}
		}
		if len(list.Records) < query.Limit {
			return found, uuid.Nil, ledger.JoinDamages(damaged...)
		}
		scanned += len(list.Records)
	}
	return found, after, ledger.JoinDamages(damaged...)
}

// grace is the time by which a checkpoint may be later than its last record.
const grace = promise + time.Minute

// Export writes the log of an account: the checkpoints that have records between two times,
// and the records without a checkpoint if there is no end. See audit.Verify.
//
// Missing records are not an error here: they are missing in the export too, and Verify finds
// that.
func (l *Log) Export(ctx context.Context, rows ledger.Account, from, to time.Time, w io.Writer) error {
	if err := l.settleOf(ctx, rows); err != nil {
		return err
	}
	l.Ledger.Look(ctx)
	var promises []promiseOf
	c, err := ledger.Retry(ctx, func() (c *chain, err error) {
		c, promises, err = l.ends(ctx, rows)
		return c, err
	})
	if err != nil {
		return err
	}
	keys := rows.Box.Keys()
	if n := len(c.signers); n > 0 && c.signers[n-1].term > keys.Audits.Active().Number {
		return fmt.Errorf("%w: the audit key is rotated at this moment", ledger.ErrUnavailable)
	}
	first := c.erased + 1
	whole := from.IsZero()
	if !whole {
		if first, err = l.since(ctx, rows, first, c.number, from); err != nil {
			return err
		}
	}
	if first > c.number {
		first = 0
	}

	x := audit.NewWriter(w, keys.Vault, rows.ID, first, whole, c.keys(keys), keys.AuditSigner())
	for n := first; n > 0 && n <= c.number; n++ {
		k, err := l.readCheckpoint(ctx, rows, n)
		switch {
		case err != nil && !ledger.Unreadable(err):
			return err
		case err != nil || k == nil:
			l.Log.Error("checkpoint of the audit log is missing or damaged", "account", rows.ID, "number", n, "error", err)
			next, err := l.present(ctx, rows, n)
			if err != nil {
				return err
			}
			if n = c.number; next > 0 { // a break may be far ahead
				n = min(n, next-1)
			}
			continue
		}
		if !to.IsZero() && k.At.After(to.Add(grace)) {
			break
		}
		if err := l.exportOne(ctx, rows, k, x); err != nil {
			return err
		}
	}
	if to.IsZero() {
		if err := l.exportOpen(ctx, rows, promises, x); err != nil {
			return err
		}
	}
	return x.Close()
}

// since returns the number of the first checkpoint that was made at a time or later. Where
// clocks differ it may be one before.
func (l *Log) since(ctx context.Context, rows ledger.Account, low, high uint64, at time.Time) (uint64, error) {
	for low < high {
		middle := low + (high-low)/2
		k, err := l.readCheckpoint(ctx, rows, middle)
		if err != nil && !ledger.Unreadable(err) {
			return 0, err
		}
		if k != nil && k.At.Before(at) {
			low = middle + 1
		} else {
			high = middle
		}
	}
	return low, nil
}

// exportOne writes a checkpoint and its records, in the order of their numbers.
func (l *Log) exportOne(ctx context.Context, rows ledger.Account, k *kept, x *audit.Writer) error {
	if err := x.Checkpoint(&k.Checkpoint); err != nil || k.Lane == uuid.Nil {
		return err
	}
	var found []*opened
	err := l.walk(ctx, rows, k.low, k.high, func(rec *store.Record) error {
		o, err := l.open(ctx, rows, rec)
		switch {
		case err != nil && !ledger.Unreadable(err):
			return err
		case err != nil:
			l.Log.Error("record of the audit log is damaged", "account", rows.ID, "error", err)
		case rec.Class != classVacant && o.Lane == k.Lane && o.first == k.First:
			found = append(found, o)
		}
		return nil
	})
	if err != nil {
		return err
	}

	slices.SortFunc(found, func(a, b *opened) int { return cmp.Compare(a.Sequence, b.Sequence) })
	for _, o := range found {
		if err := x.Record(&o.Record); err != nil {
			return err
		}
	}
	return nil
}

// A promiseOf is a promise that was read.
type promiseOf struct {
	promised
	record *store.Record
	damage error // of a promise whose segment is not known
}

// ends returns the end of the chain of an account and the segments without a checkpoint, of one
// state of the store: each record of that state is before the one or in the others.
func (l *Log) ends(ctx context.Context, rows ledger.Account) (*chain, []promiseOf, error) {
	rec, lost, all, err := l.read(ctx, rows)
	if err == nil {
		err = l.lostChain(ctx, rows, nil, lost)
	}
	if err != nil {
		return nil, nil, err
	}
	c, err := l.whole(ctx, rows, rec)
	if err != nil {
		return nil, nil, err
	}

	late := false
	for _, p := range all {
		switch {
		case l.has(rows.ID, p.record.ID):
		case outlived(p.record.ID):
			if _, err := l.complete(ctx, rows, p.record); err != nil {
				return nil, nil, err
			}
			late = true
		case p.damage != nil:
			l.Log.Error("promise of the audit log is damaged, and its records are not in the export", "account", rows.ID, "error", p.damage)
		}
	}
	if late {
		return nil, nil, ledger.ErrAgain
	}
	return c, slices.DeleteFunc(all, func(p promiseOf) bool { return p.damage != nil }), nil
}

// read returns the record of a chain, nil if it is absent, and the promises of one state of the
// store. lost is the error of a chain that cannot be read.
func (l *Log) read(ctx context.Context, rows ledger.Account) (end *store.Record, lost error, all []promiseOf, err error) {
	var list *store.List
	err = rows.View(ctx, func(tx store.ReadTx) error {
		end, lost = nil, nil
		switch is, err := ledger.Seek(tx, l.Kinds.Chain, chainID(rows.ID)); {
		case err == nil:
			end = is
		case ledger.Unreadable(err):
			lost = err
		case !absent(err):
			return err
		}
		var err error
		list, err = tx.List(&store.Query{Kind: l.Kinds.Segment, Account: rows.ID, Limit: walkBatch})
		if list != nil && ledger.Unreadable(err) {
			err = nil
		}
		return err
	})
	if err != nil {
		return nil, nil, nil, err
	}

	for _, rec := range list.Records {
		p, err := new(promised), ledger.ErrDamaged
		if !ledger.Foreign(rec) {
			p, err = l.openPromise(ctx, rec)
		}
		if ledger.Unreadable(err) {
			p, err = l.promiseAgain(ctx, rows, rec.ID, err)
		}
		switch {
		case err == nil:
			all = append(all, promiseOf{*p, rec, nil})
		case ledger.Unreadable(err):
			all = append(all, promiseOf{record: rec, damage: err})
		default:
			return nil, nil, nil, err
		}
	}
	return end, lost, all, nil
}

// exportOpen writes the records of segments without a checkpoint. One that was written meanwhile
// has come too late for this export, and its records are open here.
func (l *Log) exportOpen(ctx context.Context, rows ledger.Account, promises []promiseOf, x *audit.Writer) error {
	for _, p := range promises {
		found, err := l.segmentOf(ctx, rows, p.record.ID, &p.promised)
		if err != nil {
			return err
		}
		for _, o := range found {
			if err := x.Open(&o.Record); err != nil {
				return err
			}
		}
	}
	return nil
}
