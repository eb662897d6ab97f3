// Package removal deletes records in bounded transactions: a record with its family, the
// remains of a large family, and lapsed records.
//
// A record is deleted at once, however many records belong to it, and these are dead from
// then on: see ledger.Family. The part that exceeds one transaction is left to a job, which
// is sealed before the record is deleted and written with its deletion.
package removal

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/cardvault/cardvault/internal/jobs"
	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// A Config says what an Eraser works with. All fields are needed.
type Config struct {
	Ledger *ledger.Ledger
	Log    *slog.Logger

	Remains store.Kind    // of the jobs that erase the remains of families
	Longest time.Duration // how long such a job takes at most

	Lapsing []Lapsing
}

// Lapsing is a kind whose records are erased when they are due.
type Lapsing struct {
	Kind  store.Kind
	Named bool // the log may name its records: their ids are not credentials

	// Endings returns the writes that go with the end of records. It is for records that
	// have children. If nil, nothing is written with their end, and none of them has
	// children.
	Endings func(ctx context.Context, due []*store.Record) (Endings, error)
}

// Endings are the writes that go with the end of some records, in one transaction.
type Endings interface {
	Begin() // the transaction begins, perhaps again

	// Put writes the ending of the i-th record. It returns false if that has to be made
	// again: the record stays until then.
	Put(tx store.Tx, i int) (bool, error)

	Rows() int // that Put has written
	Written()  // the transaction was stored
}

// An Eraser takes away the records of one vault. All methods may be called concurrently once
// Attach has returned.
type Eraser struct {
	config Config
	ledger *ledger.Ledger
	jobs   *jobs.Engine // set by Attach
}

// New returns an Eraser. Call Attach before anything else except Kind and Sweep.
func New(c Config) *Eraser { return &Eraser{config: c, ledger: c.Ledger} }

// Attach sets the engine that does the work of Kind and Sweep.
func (e *Eraser) Attach(engine *jobs.Engine) { e.jobs = engine }

// opErase takes away without an operation of the vault's user.
var opErase = ledger.Takes("erase")

// Delete deletes the record of an id and its family, in one transaction with also, which is
// given the row key and may be nil.
func (e *Eraser) Delete(ctx context.Context, rows ledger.Account, op ledger.Operation, kind store.Kind, id uuid.UUID, also func(store.Tx, uuid.UUID) error) error {
	if e.ledger.Closed() {
		return ledger.ErrClosed
	}
	row := rows.Unmask(kind, id)
	if row == uuid.Nil {
		rows.Wrote(ctx, op, id, ledger.ErrNotFound)
		return ledger.ErrNotFound
	}
	left, err := e.Remains(rows, kind, row)
	if err != nil {
		return err
	}

	for {
		below, err := rows.Made(ctx, kind, ledger.FamilyMade+1, row)
		if err != nil {
			return err
		}

		large := false
		err = rows.Write(ctx, op, id, func(tx store.Tx) (err error) {
			if _, err := rows.Find(tx, kind, row); err != nil {
				return err
			}
			if large, err = e.ledger.DeleteFamily(tx, kind, row, left, below); err != nil || also == nil {
				return err
			}
			return also(tx, row)
		})
		switch {
		case err == nil && large:
			e.jobs.Due(left)
			return nil
		case !large || !errors.Is(err, store.ErrFull):
			return err
		}

		// There is room only for erasing, not for the job: the family is erased first,
		// until it is small.
		full, erased := err, 0
		err = rows.Update(ctx, opErase, func(tx store.Tx) (err error) {
			_, erased, err = e.ledger.DeleteSome(tx, kind, row, ledger.FamilyRows, below)
			return err
		})
		if err != nil {
			return err
		}
		if erased == 0 { // what is left cannot be read
			return full
		}
	}
}
