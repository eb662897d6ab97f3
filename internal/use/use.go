// Package use lends stored cards to functions. A card is wiped when the function has
// returned or panicked, and each use is reported with its purpose and outcome. A [Call] is a
// use that reaches another system once at most.
package use

import (
	"context"
	"errors"
	"slices"

	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/internal/rule"
	"github.com/google/uuid"
)

// Outcomes of uses as they are reported, in place of an error or panic of the function: these
// may hold the card.
var (
	errFailed   = errors.New("cardvault: function returned an error")
	errPanicked = errors.New("cardvault: function panicked")
)

// A returned error comes from a function that had a card.
type returned struct{ cause error }

func (e *returned) Error() string { return e.cause.Error() }
func (e *returned) Unwrap() error { return e.cause }

// mark returns the error of a function that had a card as a returned one.
func mark(err error) error {
	if err == nil {
		return nil
	}
	return &returned{err}
}

// given is the card or credential that a function has.
type given[T any] interface {
	*T
	Wipe()
}

// takeBack wipes a card or credential, which is zero from then on.
func takeBack[T any, P given[T]](p P) {
	p.Wipe()
	*p = *new(T)
}

// With calls f with the card or credential that get returns, and wipes it when f has returned
// or panicked. It reports the use and its outcome.
func With[T any, P given[T]](ctx context.Context, rows ledger.Account, op ledger.Operation, token uuid.UUID, get func() (P, error), f func(context.Context, P) error) error {
	return report(ctx, rows, &op, token, func() error {
		p, err := get()
		if err != nil {
			return err
		}
		defer takeBack(p)
		return mark(f(ctx, p))
	})
}

// report calls do, which is the use of the card of a token, and reports its outcome. do may
// add a detail to the operation.
func report(ctx context.Context, rows ledger.Account, op *ledger.Operation, token uuid.UUID, do func() error) (err error) {
	outcome := errPanicked
	defer func() { rows.Wrote(ctx, *op, token, outcome) }()

	if err = rows.Admit(); err == nil { // a card is not used while its use cannot be recorded
		err = do()
	}
	outcome = err
	if _, of := errors.AsType[*returned](err); of {
		outcome = errFailed
	}
	return err
}

// Purposes returns a copy of names, which can all be purposes, or an error.
func Purposes(names []string) ([]string, error) {
	for _, name := range names {
		if name == "" || name[0] < 'a' || rule.Slug(name) != nil {
			return nil, errors.New("cardvault: Options.Purposes must hold names of 1 to 40 of a-z, 0-9, _ and -, beginning with a letter")
		}
	}
	return slices.Clone(names), nil
}
