package cardvault

import (
	"context"
	"errors"
	"runtime/debug"

	"github.com/cardvault/cardvault/internal/plausible"
	"github.com/cardvault/cardvault/network"
)

// What an adapter may not do: it must not pass for an answer.
var (
	errPanic   = errors.New("cardvault: adapter panicked")
	errGarbage = plausible.ErrGarbage
)

// ask calls the network with a deadline.
func (c *core) ask(ctx context.Context, f func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, c.opts.NetworkTimeout)
	defer cancel()
	return c.guard("network", func() error { return f(ctx) })
}

// guard calls the network or another adapter. A panic, or a nil refusal, is treated as a
// missing answer.
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
