package ledger

import (
	"context"
	"errors"
	"fmt"

	"github.com/cardvault/cardvault/store"
)

// An outdated error is returned in a transaction of a process that works with a former
// keyring. The process follows, and the caller looks again.
type outdated struct{ generation uint32 }

func (o *outdated) Error() string { return "cardvault: the keyring has changed meanwhile" }
func (o *outdated) Unwrap() error { return store.ErrConflict }

// Current returns an error that is Outdated, and wraps store.ErrConflict, unless the stored
// keyring has a generation. A transaction of Update calls it that must not be written with
// former keys. Nothing is then, however long its process was stopped before the transaction.
func Current(tx store.ReadTx, generation uint32) error {
	_, err := tx.Get(KindMeta, markID(generation))
	if errors.Is(err, store.ErrNotFound) {
		err = &outdated{generation}
	}
	return err
}

// Outdated reports whether err says that a write was made with former keys. It has to be made
// anew; this process has the present ones.
func Outdated(err error) bool {
	_, is := errors.AsType[*outdated](err)
	return is
}

// follow loads the keyring after an error of Current, and returns the error.
func (l *Ledger) follow(ctx context.Context, err error) error {
	o, ok := errors.AsType[*outdated](err)
	if !ok || l.Box.Keys().Generation != o.generation {
		return err
	}
	if err := l.Reload(ctx); err != nil {
		return err
	}
	if l.Box.Keys().Generation == o.generation {
		return errUnmarked
	}
	return err
}

// errUnmarked is returned when the record is missing that is written with each keyring.
var errUnmarked = fmt.Errorf("%w: the mark of the keyring is missing: RotateKeys writes it again", ErrDamaged)
