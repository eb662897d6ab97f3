package replay

import (
	"context"
	"fmt"

	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// Once makes a call with first, and repeats it while other calls conflict with it. If the
// call was made before under its key, Once calls again with the stored answer. Without a
// key first receives a nil Call. A call that was refused is refused as Config.Refused says.
func Once[T any](ctx context.Context, c *Calls, rows ledger.Account, r Request, again func(answer []byte) (T, error), first func(*Call) (T, error)) (T, error) {
	r = r.At(ctx)
	return ledger.Retry(ctx, func() (T, error) {
		var none T
		call, answer, err := c.BeginKeyed(ctx, rows, r)
		switch {
		case err != nil:
			return none, err
		case answer != nil:
			return again(answer)
		}

		made, err := first(call)
		if err != nil {
			return none, err
		}
		return made, nil
	})
}

// BeginKeyed is Begin for a call that may have no key, and whose Request may have a Border. It
// returns nil without a key, and the error of a refusal that was kept.
func (c *Calls) BeginKeyed(ctx context.Context, rows ledger.Account, r Request) (*Call, []byte, error) {
	if r.Key == "" {
		return nil, nil, nil
	}
	if err := c.config.Check(r.Key); err != nil {
		return nil, nil, err
	}

	border := r.border
	body := []byte(nil)
	if border == nil && r.Body != nil {
		body = r.Body()
		defer clear(body)
	}
	r.Body = func() []byte { return body }
	if border != nil {
		r.Body = border.Request
	}
	r.Root = c.config.Root(ctx)

	call, answer, err := c.Begin(ctx, rows, r)
	if answer == nil {
		return call, nil, err
	}
	if border != nil {
		border.Replayed = true
	}
	if answer.Refused {
		return nil, nil, c.config.Refused
	}
	return nil, answer.Result(), nil
}

// AnsweredID returns the id with which an answer begins.
func AnsweredID(answer []byte) (uuid.UUID, error) {
	id, err := uuid.FromBytes(answer[:min(len(uuid.UUID{}), len(answer))])
	if err != nil {
		return uuid.Nil, fmt.Errorf("%w: answer cannot be read", ledger.ErrDamaged)
	}
	return id, nil
}

// Reopen returns a function that opens the record whose row key is an answer, in its
// current state, and marks the result as replayed.
func Reopen[T any](ctx context.Context, rows ledger.Account, kind store.Kind, open func(context.Context, *store.Record) (T, error), mark func(T)) func(answer []byte) (T, error) {
	return func(answer []byte) (T, error) {
		var none T
		row, err := AnsweredID(answer)
		if err != nil {
			return none, err
		}
		r, err := rows.GetRow(ctx, kind, row)
		if err != nil {
			return none, err
		}
		made, err := open(ctx, r)
		if err != nil {
			return none, err
		}
		mark(made)
		return made, nil
	}
}
