package ledger

import (
	"context"
	"errors"
	"fmt"

	"github.com/cardvault/cardvault/internal/seal"
	"github.com/cardvault/cardvault/store"
)

// An outdated error is returned in a transaction of a process that works with a former
// keyring. The process follows, and the caller looks again.
type outdated struct {
	generation uint32
	search     bool // and by the count of seals, which may also be lost
}

func (o *outdated) Error() string { return "cardvault: the keyring has changed meanwhile" }
func (o *outdated) Unwrap() error { return ErrAgain }

// Current returns an error that wraps ErrAgain unless k are the keys of the stored keyring, in
// a transaction of Update that must not be written with former ones. Nothing of a former
// generation is written then, however long its process was stopped before the transaction.
func Current(tx store.ReadTx, k *seal.Keys) error {
	_, err := tx.Get(KindMeta, markID(k.Generation))
	if errors.Is(err, store.ErrNotFound) {
		err = &outdated{generation: k.Generation}
	}
	return err
}

// follow loads the keyring after an error of Current, or of a search, and returns the error.
func (l *Ledger) follow(ctx context.Context, err error) error {
	o, ok := errors.AsType[*outdated](err)
	if !ok || l.Box.Keys().Generation != o.generation {
		return err
	}
	if err := l.Reload(ctx); err != nil {
		return err
	}
	if l.Box.Keys().Generation == o.generation && !o.search {
		return errUnmarked
	}
	return err
}

// errUnmarked is returned when the record is missing that is written with each keyring.
var errUnmarked = fmt.Errorf("%w: the mark of the keyring is missing: RotateKeys writes it again", ErrDamaged)
