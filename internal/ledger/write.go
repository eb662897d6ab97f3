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
	reads   bool

	anchored bool // Write returns once the anchor has the change
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

// Reads returns the operation of a call that only reads.
func Reads(name string) Operation { return Operation{Name: name, reads: true} }

// IsRead reports whether the operation comes from Reads.
func (o Operation) IsRead() bool { return o.reads }

// Ends returns the operation of a write that ends a right.
func Ends(name string) Operation { return Operation{Name: name, urgency: ends, anchored: true} }

// Revokes returns the operation of a write that takes away, or may narrow, a right or a secret.
func Revokes(name string) Operation { return Operation{Name: name, urgency: takes, anchored: true} }

// For returns the operation as a use of a card for a purpose, which must not be secret.
func (o Operation) For(purpose string) Operation {
	o.Purpose = purpose
	return o
}

// Step is a part of a call or of background work: Wrote does not hear of it.
var Step = Adds("step")

// Update writes in one transaction, when it is the turn of the account at the gate. All
// writes go through here. fn may be called more than once, and must not seal or open. The
// records that it puts are sealed anew if their term was closed meanwhile: they must be the
// same each time, and no other call may have them.
func (a Account) Update(ctx context.Context, op Operation, fn func(store.Tx) error) error {
	g := a.guard()
	for range metaTries {
		err := a.update(ctx, op, g, fn)
		late, is := errors.AsType[*lateSeal](err)
		if !is {
			a.committed(op, err)
			return a.follow(ctx, a.outcome(err))
		}
		if err := a.sealAnew(ctx, late); err != nil {
			return err
		}
	}
	return errKeyGone
}

func (a Account) update(ctx context.Context, op Operation, g guard, fn func(store.Tx) error) error {
	if err := a.gate.enter(ctx, lane{a.ID, op.urgency}); err != nil {
		return err
	}
	defer a.gate.leave()
	return a.store.Update(ctx, a.ID, g, fn)
}

// Write is Update for a call of the vault's user, which Config.Wrote hears of. Its record in
// the audit log is written in the same transaction. The anchor has the end of a right before Write
// returns.
func (a Account) Write(ctx context.Context, op Operation, object uuid.UUID, fn func(store.Tx) error) error {
	err := a.write(ctx, op, object, fn)
	if err == nil && op.anchored {
		a.secure(ctx)
	}
	return err
}

func (a Account) write(ctx context.Context, op Operation, object uuid.UUID, fn func(store.Tx) error) error {
	if a.closed.Load() {
		return ErrClosed
	}
	err := a.audited(ctx, op, object, fn)
	if again(err) {
		return err // the caller looks again: not an outcome yet
	}
	a.config.Wrote(ctx, op, a.ID, object, err)
	return err
}

// An Auditor makes the records of an audit log.
type Auditor interface {
	// Begin returns the entry of a write, nil for a write without one. An error refuses it.
	Begin(ctx context.Context, a Account, op Operation, object uuid.UUID) (Entry, error)

	// Admit returns why calls of an account are refused at present, or nil.
	Admit(account uuid.UUID) error

	// Note records a call that has written nothing. An error refuses it.
	Note(ctx context.Context, a Account, op Operation, object uuid.UUID, err error) error

	// NoteFirst stores the record of a call that is about to begin, or says that it is lost and the
	// call goes on without. An error refuses it.
	NoteFirst(ctx context.Context, a Account, op Operation, object uuid.UUID) (lost bool, err error)
}

// An Entry is the record of a write on its way into the store.
type Entry interface {
	Put(store.Tx) error // writes the record
	Stale(error) bool   // reports whether a transaction failed because the entry is too old
	End(error)          // says how the transaction has ended
}

// audited is Update with a record in the audit log.
func (a Account) audited(ctx context.Context, op Operation, object uuid.UUID, fn func(store.Tx) error) error {
	if a.config.Audit == nil || ctx.Value(unauditedKey{}) != nil {
		return a.Update(ctx, op, fn)
	}
	for {
		entry, err := a.config.Audit.Begin(ctx, a.In(a.ID), op, object)
		if err != nil {
			return err
		}
		if entry == nil {
			return a.Update(ctx, op, fn)
		}
		if err := a.updateWith(ctx, op, entry, fn); !entry.Stale(err) || ctx.Err() != nil {
			return err
		}
	}
}

// errPanicked is the outcome of a transaction that panicked: nothing was written.
var errPanicked = errors.New("cardvault: write panicked")

func (a Account) updateWith(ctx context.Context, op Operation, entry Entry, fn func(store.Tx) error) (err error) {
	outcome := errPanicked
	defer func() { entry.End(outcome) }()
	outcome = a.Update(ctx, op, func(tx store.Tx) error {
		if err := fn(tx); err != nil {
			return err
		}
		return entry.Put(tx)
	})
	return outcome
}

type unauditedKey struct{}

// unaudited returns a context for a write that must not seal a record.
func unaudited(ctx context.Context) context.Context {
	return context.WithValue(ctx, unauditedKey{}, true)
}

// Admit returns why calls of the account are refused at present because of the audit log, or nil.
func (a Account) Admit() error {
	if a.config.Audit == nil {
		return nil
	}
	return a.config.Audit.Admit(a.ID)
}

// Put writes one record.
func (a Account) Put(ctx context.Context, op Operation, object uuid.UUID, r *store.Record) error {
	return a.Write(ctx, op, object, func(tx store.Tx) error {
		tx.Put(r)
		return nil
	})
}

// Note records a call in the audit log that has written nothing. The error refuses a call that
// has not been refused.
func (a Account) Note(ctx context.Context, op Operation, object uuid.UUID, err error) error {
	if a.config.Audit == nil {
		return nil
	}
	return a.config.Audit.Note(ctx, a.In(a.ID), op, object, err)
}

// NoteFirst records a call in the audit log before it begins, such as a backup.
// The record is durable when NoteFirst returns nil, unless calls go on without records.
func (a Account) NoteFirst(ctx context.Context, op Operation, object uuid.UUID) (lost bool, err error) {
	if a.config.Audit == nil {
		return false, nil
	}
	return a.config.Audit.NoteFirst(ctx, a.In(a.ID), op, object)
}

// Logged reports the outcome of background work to Config.Wrote.
func (a Account) Logged(ctx context.Context, op Operation, object uuid.UUID, err error) {
	a.config.Wrote(ctx, op, a.ID, object, err)
}

// Wrote reports a write that has no record in its transaction, or the use of a card, to
// Config.Wrote and to the audit log. Calls note there themselves why they have failed, unless
// they use a card.
func (a Account) Wrote(ctx context.Context, op Operation, object uuid.UUID, err error) {
	a.Logged(ctx, op, object, err)
	if a.config.Audit != nil && (err == nil || op.Purpose != "") {
		_ = a.config.Audit.Note(ctx, a.In(a.ID), op, object, err) // it has happened, and the log says that it is full
	}
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
		is, err := Seek(where(tx, r), r.Kind, r.ID)
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
