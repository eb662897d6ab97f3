package cardvault

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"time"

	"github.com/cardvault/cardvault/internal/tlv"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// Idempotency makes one call repeatable: repeating it with the same key has
// the effect and the result of the first call, whatever happened in between.
// It is honoured by Import and CreateSession.
//
// Its record is written in the transaction of the effect. It holds a keyed
// hash of the request, never the request, and the result, sealed. When the
// token of a result is deleted the result goes with it: a repetition is
// ErrNotFound then and creates nothing. A result is what it was, whatever the
// token has become since, until [Options.IdempotencyTTL] is over.
type Idempotency struct {
	// Key is chosen by the caller: 1 to 255 printable ASCII characters, unique
	// within the account, the operation and the object that it concerns.
	Key string

	// Request is what must be the same in a repetition. If nil, that is the
	// arguments of the call.
	Request []byte

	replayed bool
}

// Replayed reports whether the call had been made before and its result was
// replayed. It is valid once the call has returned.
func (i *Idempotency) Replayed() bool { return i.replayed }

type idempotencyKey struct{}

// WithIdempotency returns a context that makes one call of Import or
// CreateSession repeatable. Other calls ignore it.
func WithIdempotency(ctx context.Context, i *Idempotency) context.Context {
	return context.WithValue(ctx, idempotencyKey{}, i)
}

// WithIdempotencyKey is WithIdempotency for a key alone.
func WithIdempotencyKey(ctx context.Context, key string) context.Context {
	return WithIdempotency(ctx, &Idempotency{Key: key})
}

// errRepeated is returned in a transaction that finds the same call committed
// since it looked.
var errRepeated = errors.New("cardvault: call was repeated")

// A once is the idempotency of one call. A nil once has none.
//
// It is kept as two records: the key with the fingerprint of the request, and
// the answer, which belongs to what the call made and goes with it.
type once struct {
	key, result store.Record
	at          time.Time
}

// once returns how to make the call repeatable, or the answer of the call that
// this one repeats.
func (v *Vault) once(ctx context.Context, op operation, object uuid.UUID, request func() []byte) (*once, []byte, error) {
	i, _ := ctx.Value(idempotencyKey{}).(*Idempotency)
	if i == nil {
		return nil, nil, nil
	}
	i.replayed = false
	if err := checkIdempotencyKey(i.Key); err != nil {
		return nil, nil, err
	}
	req := i.Request
	if req == nil {
		req = request()
		defer clear(req)
	}
	o := &once{at: now()}
	name := v.box.Idempotency(v.account, []byte("key"), []byte(op), object[:], []byte(i.Key))
	fingerprint := v.box.Idempotency(v.account, []byte("request"), req)
	due := o.at.Add(v.opts.IdempotencyTTL)
	o.key = store.Record{Kind: kindIdempotency, ID: uuid.UUID(name[:16]), Account: v.account, Due: due, Version: 1}
	o.result = store.Record{Kind: kindAnswer, ID: o.key.ID, Account: v.account, Due: due, Version: 1}

	var key, result *store.Record
	err := v.view(ctx, func(tx store.ReadTx) (err error) {
		if key, err = o.find(tx); key == nil || err != nil {
			return err
		}
		result, err = tx.Get(kindAnswer, o.key.ID)
		if errors.Is(err, store.ErrNotFound) {
			err = nil
		}
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	if key == nil {
		err := v.box.SealShown(&o.key, tlv.Append(nil, 1, fingerprint))
		return o, nil, wrapped(err)
	}
	plain, err := v.openShown(ctx, key)
	if err != nil {
		return nil, nil, err
	}
	r := tlv.Read(plain)
	if !r.Next() {
		return nil, nil, fmt.Errorf("%w: idempotency record cannot be read", ErrDamaged)
	}
	if subtle.ConstantTimeCompare(r.Value, fingerprint) != 1 {
		return nil, nil, ErrIdempotencyKeyReused
	}
	if result == nil {
		return nil, nil, ErrNotFound
	}
	i.replayed = true
	answer, err := v.openShown(ctx, result)
	return nil, answer, err
}

// find returns the record of the key, or nil if there is none or it has lapsed.
func (o *once) find(tx store.ReadTx) (*store.Record, error) {
	r, err := tx.Get(kindIdempotency, o.key.ID)
	if errors.Is(err, store.ErrNotFound) || err == nil && !r.Due.After(o.at) {
		return nil, nil
	}
	return r, err
}

// seal keeps answer as the result of the call, which goes with the record
// whose id is parent.
func (o *once) seal(v *Vault, answer []byte, parent uuid.UUID) error {
	o.result.Parent = parent
	return wrapped(v.box.SealShown(&o.result, tlv.Pad(answer, 64, 0)))
}

// put writes the two records in the transaction of the effect. Lapsed ones
// under the same key make room.
func (o *once) put(tx store.Tx) error {
	if o == nil {
		return nil
	}
	switch r, err := o.find(tx); {
	case err != nil:
		return err
	case r != nil:
		return errRepeated
	}
	tx.Delete(kindIdempotency, o.key.ID)
	tx.Delete(kindAnswer, o.key.ID)
	tx.Put(&o.key)
	tx.Put(&o.result)
	return nil
}

func checkIdempotencyKey(key string) error {
	ok := len(key) >= 1 && len(key) <= maxText
	for _, c := range []byte(key) {
		ok = ok && c >= ' ' && c <= '~'
	}
	if !ok {
		return &FieldError{"header.idempotency-key", "invalid_format", "must be 1 to 255 printable ASCII characters"}
	}
	return nil
}
