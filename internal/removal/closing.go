package removal

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/cardvault/cardvault/internal/jobs"
	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/internal/tlv"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

const (
	scanRows     = 1000             // records that a closing looks at in one transaction
	closingPause = time.Minute      // between two looks at awaited work; longer each time
	closingLong  = 15 * time.Minute // at most
)

// Closing says how the records of an account that is closed are erased. All fields are needed.
type Closing struct {
	Eraser  *Eraser
	Records store.Kind // of the jobs that do it; their id is the account's

	// Awaited are kinds of work that ends by itself, besides the remains of families: their
	// records are waited for, and not erased.
	Awaited []store.Kind

	// Kinds are all kinds of records that an account may have and does not keep.
	Kinds []store.Kind

	// Erase erases a record that needs more than its deletion. It returns false for others.
	Erase func(context.Context, *store.Record) (bool, error)

	// End makes the account closed, in one transaction with also.
	End func(ctx context.Context, account uuid.UUID, also func(store.Tx) error) error
}

// A Closer erases the records of accounts that are closed. It goes through all records of the
// store again and again, until it has found none of the account: so nothing depends on an
// index, and calls that were under way leave nothing.
type Closer struct{ Closing }

// NewCloser returns a Closer.
func NewCloser(c Closing) *Closer {
	c.Awaited = append([]store.Kind{c.Eraser.config.Remains}, c.Awaited...)
	c.Kinds = slices.DeleteFunc(c.Kinds, func(k store.Kind) bool { return k == c.Records || slices.Contains(c.Awaited, k) })
	return &Closer{c}
}

// Erases reports whether an account that is closed has no record of a kind.
func (c *Closer) Erases(kind store.Kind) bool {
	return slices.Contains(c.Kinds, kind) || slices.Contains(c.Awaited, kind)
}

// A passage goes through all records once. The awaited kinds come first.
type passage struct {
	number uint64
	kind   uint64    // index
	after  uuid.UUID // the last record that was looked at
	found  bool      // a record of the account
	waits  uint64    // that this passage has begun with
}

func (p *passage) fields(f *tlv.Fields) {
	tlv.Uint(f, 1, &p.number)
	tlv.Uint(f, 2, &p.kind)
	f.Array(3, p.after[:])
	f.Bool(4, &p.found)
	tlv.Uint(f, 5, &p.waits)
}

// Begin returns the job that erases the records of an account.
func (c *Closer) Begin(rows ledger.Account) (*store.Record, error) {
	r := &store.Record{Kind: c.Records, ID: rows.ID, Account: rows.ID, Version: 1, Due: ledger.Now()}
	return r, rows.SealShown(r, tlv.Encode(new(passage).fields))
}

// Kind returns the background work of closing accounts.
func (c *Closer) Kind() jobs.Kind {
	return jobs.Kind{Records: c.Records, Workers: 2, Longest: c.Eraser.config.Longest, Do: c.do}
}

// do is the job, in transactions of at most batchRows records. It can be interrupted at any
// point, and goes on from where it was stored last.
func (c *Closer) do(ctx context.Context, j *jobs.Job) error {
	p := new(passage)
	if err := ledger.Decode(j.Plain, p.fields); err != nil {
		return err
	}

	kinds := slices.Concat(c.Awaited, c.Kinds)
	for p.kind < uint64(len(kinds)) {
		if time.Until(j.Record.Due) < batchSpare || isClosed(j.Ending) {
			return c.again(ctx, j, p, 0)
		}
		if err := c.step(ctx, j, kinds[p.kind], p); err != nil {
			return err // it is tried again after the lease
		}
		if p.number > 0 && p.found && p.kind == uint64(len(c.Awaited)) && p.after == uuid.Nil {
			// Perhaps the awaited work alone is left: other records are not looked through for it.
			pause := min(closingPause<<min(p.waits, 10), closingLong)
			return c.again(ctx, j, &passage{number: p.number, waits: p.waits + 1}, pause)
		}
	}
	if p.found {
		return c.again(ctx, j, &passage{number: p.number + 1}, 0)
	}

	account := j.Record.Account
	err := c.End(ctx, account, func(tx store.Tx) error {
		same, err := ledger.Same(tx, j.Record)
		if err == nil && !same {
			return jobs.ErrLeft // another process goes on with it
		}
		ledger.Delete(tx, j.Record)
		return err
	})
	if err == nil {
		c.Eraser.config.Log.Info("an account is closed: nothing of it is left", "account", account)
	}
	return err
}

// again stores how far the passage has come.
func (c *Closer) again(ctx context.Context, j *jobs.Job, p *passage, pause time.Duration) error {
	j.Record.Due = ledger.Now().Add(pause)
	return c.Eraser.jobs.Again(ctx, j.Record, tlv.Encode(p.fields))
}

// step looks at the next records of a kind, and erases the account's.
func (c *Closer) step(ctx context.Context, j *jobs.Job, kind store.Kind, p *passage) error {
	began := time.Now()
	var all []*store.Record
	err := c.Eraser.whole().View(ctx, func(tx store.ReadTx) (err error) {
		all, err = tx.Scan(kind, p.after, scanRows)
		return err
	})
	if err != nil {
		return err
	}

	if len(all) == scanRows {
		p.after = all[scanRows-1].ID
	} else {
		p.kind, p.after = p.kind+1, uuid.Nil
	}
	all = slices.DeleteFunc(all, func(r *store.Record) bool { return r.Account != j.Record.Account })
	if len(all) == 0 {
		return nil
	}
	p.found = true
	if slices.Contains(c.Awaited, kind) {
		return nil
	}
	err = c.erase(ctx, all)
	c.Eraser.jobs.Rest(time.Since(began), j.Ending)
	return err
}

// erase erases records of the account.
func (c *Closer) erase(ctx context.Context, all []*store.Record) error {
	var mu sync.Mutex // guards plain
	var plain []*store.Record
	err := jobs.Each(all, func(r *store.Record) error {
		erased, err := c.Erase(ctx, r)
		if err == nil && !erased {
			mu.Lock()
			defer mu.Unlock()
			plain = append(plain, r)
		}
		return err
	})

	for some := range slices.Chunk(plain, batchRows) {
		err = errors.Join(err, c.Eraser.whole().Update(ctx, opErase, func(tx store.Tx) error {
			for _, r := range some {
				c.Eraser.ledger.DeleteRead(tx, r)
			}
			return nil
		}))
	}
	return err
}
