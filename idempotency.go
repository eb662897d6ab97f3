package cardvault

import (
	"context"

	"github.com/cardvault/cardvault/internal/hiding"
	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/internal/replay"
	"github.com/cardvault/cardvault/invalid"
	"github.com/google/uuid"
)

// Idempotency makes one call repeatable: repeating it with the same key has
// the effect and the result of the first call, whatever happened in between.
// It is honoured by Import, CreateSession, Provision, RequestPaymentData, RefreshSession,
// Consume and Redeliver.
//
// Its record is written in the transaction of the effect. It holds a keyed
// hash of the request, never the request, and the result, sealed. When the
// token of a result is deleted the result goes with it: a repetition is
// ErrNotFound then and creates nothing. So is that of CreateSession and
// RefreshSession once the session has lapsed: its id is a credential. A result is what
// it was, whatever the
// token has become since, until [Options.IdempotencyTTL] is over; of payment
// data it is the record as it is now. An error is no result, but for the
// ErrNetworkTokenState of Provision.
//
// A security code is no part of a request: whether one was right cannot be found out by
// repeating the call with another. Another request under the key is
// ErrIdempotencyKeyReused, and is counted for the [Actor.RootKeyID] of the call, or its
// [Actor.Name], or for all calls without either. After five of them every call for that root is
// ErrIdempotencyKeyReused as long as the key is kept, also the right one, so that nothing
// else of a request can be tried out either. Others in the account who know key and
// request get the result as before.
//
// RequestPaymentData waits for the network, Consume for the cache of security
// codes. A repetition meanwhile is ErrIdempotencyInProgress, for a minute at most
// after a crash.
type Idempotency struct {
	// Key is chosen by the caller: 1 to 255 printable ASCII characters, unique
	// within the account, the operation and the object that it concerns.
	Key string

	// Request is what must be the same in a repetition. It must not hold a security
	// code. If zero, that is the arguments of the call without the code.
	Request IdempotentRequest

	replayed bool
}

// An IdempotentRequest is a request as it came, which may hold a card. However it is
// printed, logged or encoded, nothing of it shows. The zero value is none.
type IdempotentRequest struct{ hidden }

// NewIdempotentRequest returns an IdempotentRequest of a copy of body: wipe it after
// the call.
func NewIdempotentRequest(body []byte) IdempotentRequest { return IdempotentRequest{hiding.New(body)} }

// Replayed reports whether the call had been made before and its result was
// replayed. It is valid once the call has returned.
func (i *Idempotency) Replayed() bool { return i.replayed }

type idempotencyKey struct{}

// WithIdempotency returns a context that makes a call repeatable, one of those that
// [Idempotency] names. Other calls ignore it.
func WithIdempotency(ctx context.Context, i *Idempotency) context.Context {
	return context.WithValue(ctx, idempotencyKey{}, i)
}

// WithIdempotencyKey is WithIdempotency for a key alone.
func WithIdempotencyKey(ctx context.Context, key string) context.Context {
	return WithIdempotency(ctx, &Idempotency{Key: key})
}

// once returns how to make the call repeatable, or the answer of the call that this one
// repeats. It is nil without an Idempotency. A refusal that was kept is returned as its
// error.
func (v *Vault) once(ctx context.Context, op ledger.Operation, object uuid.UUID, request func() []byte) (*replay.Call, []byte, error) {
	i, _ := ctx.Value(idempotencyKey{}).(*Idempotency)
	if i == nil {
		return nil, nil, nil
	}

	i.replayed = false
	if err := checkIdempotencyKey(i.Key); err != nil {
		return nil, nil, err
	}

	body := hiding.Of(i.Request)
	if body == nil {
		body = request()
		defer clear(body)
	}
	actor, _ := ctx.Value(actorKey{}).(Actor)
	call, answer, err := v.calls.Begin(ctx, v.rows, replay.Request{Operation: op, Object: object, Key: i.Key, Body: func() []byte { return body }, Root: actor.root()})
	if answer == nil {
		return call, nil, err
	}

	i.replayed = true
	if answer.Refused {
		return nil, nil, ErrNetworkTokenState
	}
	return nil, answer.Result(), nil
}

func checkIdempotencyKey(key string) error {
	ok := len(key) >= 1 && len(key) <= maxText
	for _, c := range []byte(key) {
		ok = ok && c >= ' ' && c <= '~'
	}
	if !ok {
		return &FieldError{"IdempotencyKey", invalid.Format, "must be 1 to 255 printable ASCII characters"}
	}
	return nil
}
