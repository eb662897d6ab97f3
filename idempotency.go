package cardvault

import (
	"context"

	"github.com/cardvault/cardvault/internal/replay"
	"github.com/cardvault/cardvault/internal/rule"
	"github.com/cardvault/cardvault/invalid"
)

// CallOptions are the options of a call that has no others.
type CallOptions struct {
	IdempotencyKey string // see the package comment; "" for none
}

// key returns the idempotency key of options, which may be nil.
func (o *CallOptions) key() string {
	if o == nil {
		return ""
	}
	return o.IdempotencyKey
}

// An Outcome is the result of a call that returns nothing else.
type Outcome struct {
	Replayed bool // the call was made before under its idempotency key, and did nothing now
}

// once makes a call: see replay.Once.
func once[T any](ctx context.Context, v *Vault, r replay.Request, again func(answer []byte) (T, error), first func(*replay.Call) (T, error)) (T, error) {
	return replay.Once(ctx, v.calls, v.rows, r, again, first)
}

// replayed is the answer of a call that has nothing else to answer.
func replayed([]byte) (*Outcome, error) { return &Outcome{Replayed: true}, nil }

func checkIdempotencyKey(key string) error {
	return broken("IdempotencyKey", rule.Key(key))
}

// noIdempotencyKey refuses the key of a call that is repeated without one.
func noIdempotencyKey(key string) error {
	if key != "" {
		return &FieldError{"IdempotencyKey", invalid.Format, "must not be set: the call is safe to repeat without one"}
	}
	return nil
}
