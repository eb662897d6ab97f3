package ledger

import (
	"context"
	"errors"

	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// An Operation names a write, and says behind which others it does not wait: see lane.
type Operation struct {
	Name    string
	Purpose string // of the use of a card; "" for all other operations
	Detail  string // of that, such as the status of an answer; "" for none
	urgency urgency
}

type urgency uint8

const (
	adds  urgency = iota
	takes         // away stored data or a secret: most API keys may do that
	ends          // a right; an account has no more of them to end than its quota of API keys
)

// Adds returns the operation of a write that adds or changes.
func Adds(name string) Operation { return Operation{Name: name, urgency: adds} }

// Takes returns the operation of a write that takes something away.
func Takes(name string) Operation { return Operation{Name: name, urgency: takes} }

// Ends returns the operation of a write that ends a right.
func Ends(name string) Operation { return Operation{Name: name, urgency: ends} }

// For returns the operation as a use of a card for a purpose, which must not be secret.
func (o Operation) For(purpose string) Operation {
	o.Purpose = purpose
	return o
}

// Step is a part of a call or of background work: Wrote does not hear of it.
var Step = Adds("step")

// Update writes in one transaction, when it is the turn of the account at the gate. All
// writes go through here. fn may be called more than once, and must not seal or open.
func (a Account) Update(ctx context.Context, op Operation, fn func(store.Tx) error) error {
	if err := a.gate.enter(ctx, lane{a.ID, op.urgency}); err != nil {
		return err
	}
	defer a.gate.leave()
	return a.outcome(a.store.Update(ctx, a.ID, fn))
}

// Write is Update for a call of the vault's user, which Config.Wrote hears of.
func (a Account) Write(ctx context.Context, op Operation, object uuid.UUID, fn func(store.Tx) error) error {
	if a.closed.Load() {
		return ErrClosed
	}
	err := a.Update(ctx, op, fn)
	if again(err) {
		return err // the caller looks again: not an outcome yet
	}
	a.Wrote(ctx, op, object, err)
	return err
}

// Put writes one record.
func (a Account) Put(ctx context.Context, op Operation, object uuid.UUID, r *store.Record) error {
	return a.Write(ctx, op, object, func(tx store.Tx) error {
		tx.Put(r)
		return nil
	})
}

// Wrote reports the outcome of a write, or of the use of a card, to Config.Wrote.
func (a Account) Wrote(ctx context.Context, op Operation, object uuid.UUID, err error) {
	a.config.Wrote(ctx, op, a.ID, object, err)
}

// Retry calls fn until its error is neither store.ErrConflict nor ErrAgain, or ctx ends. fn
// reads records, changes and seals them, and writes them as the next versions. A conflict
// means that another call was faster, so there is progress.
func Retry[T any](ctx context.Context, fn func() (T, error)) (T, error) {
	for {
		result, err := fn()
		if !again(err) {
			return result, err
		}
		if ctx.Err() != nil { // nothing was written
			return result, ctx.Err()
		}
	}
}

// again reports whether a caller looks again after an error.
func again(err error) bool {
	return errors.Is(err, store.ErrConflict) || errors.Is(err, ErrAgain)
}

// PutNext writes the next versions of records, or returns ErrAgain if one of them has changed
// since it was read.
func PutNext(tx store.Tx, records ...*store.Record) error {
	for _, r := range records {
		is, err := Again(tx, r)
		switch {
		case errors.Is(err, store.ErrNotFound):
			is = new(store.Record)
		case err != nil:
			return err
		}
		if is.Version+1 != r.Version {
			return ErrAgain
		}
		tx.Put(r)
	}
	return nil
}
