package cardvault

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime/debug"

	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/internal/hiding"
	"github.com/cardvault/cardvault/internal/leak"
	"github.com/cardvault/cardvault/network"
)

// What an adapter may not do: it must not pass for an answer.
var (
	errPanic   = errors.New("cardvault: adapter panicked")
	errGarbage = errors.New("cardvault: adapter gave an answer that cannot be right")
)

// ask calls the network with a deadline.
func (c *core) ask(ctx context.Context, f func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, c.opts.NetworkTimeout)
	defer cancel()
	return c.guard("network", func() error { return f(ctx) })
}

// guard calls the network or another adapter. A panic, and a refusal that is nil,
// are no answer.
func (c *core) guard(who string, f func() error) (err error) {
	defer func() {
		if recover() != nil { // the value may hold anything
			c.log.Error(who+" panicked", "stack", string(debug.Stack()))
			err = errPanic
		}
	}()
	err = f()
	var refusal *network.Error
	if errors.As(err, &refusal) && refusal == nil {
		return errGarbage
	}
	return err
}

// A withheld error is one whose text holds what was sent.
type withheld struct{ cause error }

func (e *withheld) Error() string { return fmt.Sprintf("%T, whose text holds what was sent", e.cause) }

func (e *withheld) Unwrap() error { return e.cause }

// withhold returns err without its text if that holds a card number or one of
// secrets. The code of a refusal is shown and stored: there a security code counts
// if it is a number by itself.
func withhold(err error, pan card.PAN, secrets ...[]byte) error {
	if e, ok := errors.AsType[*network.Error](err); ok && e != nil {
		for _, s := range secrets {
			if leak.HoldsRun(string(e.Code), s) || leak.HoldsRun(e.SchemeCode, s) {
				refusal := *e
				if refusal.SchemeCode = ""; leak.HoldsRun(string(e.Code), s) {
					refusal.Code = ""
				}
				return &refusal
			}
		}
		return err
	}

	if err == nil {
		return nil
	}

	bad := leak.Holds(err.Error(), hiding.Of(pan))
	for _, s := range secrets {
		bad = bad || len(s) > 0 && bytes.Contains([]byte(err.Error()), s)
	}

	if bad {
		return &withheld{err}
	}
	return err
}
