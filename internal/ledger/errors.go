package ledger

import (
	"context"
	"errors"
	"fmt"

	"github.com/cardvault/cardvault/internal/seal"
	"github.com/cardvault/cardvault/store"
)

// Errors of records, of the store and of the key provider. Package cardvault documents
// them: they are its own.
var (
	ErrNotFound       = errors.New("cardvault: not found")
	ErrClosed         = errors.New("cardvault: vault is closed")
	ErrUnavailable    = errors.New("cardvault: unavailable")
	ErrOutcomeUnknown = errors.New("cardvault: outcome of the write is unknown")
	ErrDamaged        = errors.New("cardvault: stored data is damaged")
	ErrStorageFull    = errors.New("cardvault: storage is full")
	ErrLocked         = errors.New("cardvault: vault is in use by another process")
	ErrFormat         = errors.New("cardvault: written by a later version")
	ErrWrongKey       = errors.New("cardvault: wrong key")
	ErrWrongMode      = errors.New("cardvault: wrong mode")
	ErrKeyExhausted   = errors.New("cardvault: key has sealed as much as it may")
)

// ErrAgain is wrapped by the error of a write after which its caller looks again. Such an
// error is not an outcome, and neither is store.ErrConflict.
var ErrAgain = errors.New("cardvault: the store has changed meanwhile")

// translations lists the errors of a store and of package seal with the error that a
// caller of the vault gets. The first match counts.
var translations = []struct{ from, to error }{
	{store.ErrNotFound, ErrNotFound},
	{store.ErrClosed, ErrClosed},
	{store.ErrFull, ErrStorageFull},
	{store.ErrOutcomeUnknown, ErrOutcomeUnknown},
	{store.ErrUnavailable, ErrUnavailable},
	{store.ErrDamaged, ErrDamaged},
	{store.ErrLocked, ErrLocked},
	{store.ErrFormat, ErrFormat},
	{seal.ErrIntegrity, ErrDamaged},
	{seal.ErrUnknownTerm, ErrDamaged},
	{seal.ErrExhausted, ErrKeyExhausted},
}

// Translate turns an error of the store or of package seal into one of the vault's. The
// cause stays in the text and in the tree. An error of the vault stays as it is.
func Translate(err error) error {
	if err == nil {
		return nil
	}
	for _, t := range translations {
		switch {
		case !errors.Is(err, t.from):
		case t.to == ErrNotFound, t.to == ErrClosed:
			return t.to
		case errors.Is(err, t.to):
			return err
		case t.from == store.ErrFull && errors.Is(err, store.ErrOutcomeUnknown):
			return fmt.Errorf("%w: %w: %w", ErrStorageFull, ErrOutcomeUnknown, err)
		default:
			return fmt.Errorf("%w: %w", t.to, err)
		}
	}
	return err
}

// unavailable marks an error of the key provider, unless it is final or the
// caller's own.
func unavailable(err error) error {
	if errors.Is(err, ErrWrongKey) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrUnavailable, err)
}
