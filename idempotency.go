package cardvault

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/internal/tlv"
	"github.com/cardvault/cardvault/store"
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
// ErrIdempotencyKeyReused, and is counted for the [Actor.RootKeyID] of the call, or for
// all calls without one. After five of them every call for that root is
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
func NewIdempotentRequest(body []byte) IdempotentRequest { return IdempotentRequest{hide(body)} }

// String returns a text of fixed length.
func (r IdempotentRequest) String() string { return masked(len(r.get())) }

func (r IdempotentRequest) Format(s fmt.State, _ rune)   { fmt.Fprint(s, r.String()) }
func (r IdempotentRequest) LogValue() slog.Value         { return slog.StringValue(r.String()) }
func (r IdempotentRequest) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

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

// errRepeated is returned in a transaction that finds the same call made, or
// being made, since it looked.
var errRepeated = fmt.Errorf("%w: call was repeated", ledger.ErrAgain)

// A repeatable is the idempotency of one call. A nil repeatable has none.
//
// It is kept as two records: the key with the fingerprint of the request, and
// the answer, which belongs to what the call made and goes with it. A call that
// waits for somebody else stores the key before it does: see claim.
type repeatable struct {
	key, result store.Record
	mistakes    uuid.UUID // id of the record that counts those of the root
	fingerprint []byte
	at          time.Time
	lapsed      uint64    // version of a lapsed record under the key, that was opened; 0: there is none
	held        uint64    // version of the claim that this call has or takes over; 0: there is none
	row         uuid.UUID // row key of what the call makes, from that claim
}

const (
	onceFingerprint = iota + 1
	onceLease       // end of a claim; absent once there is an answer
	onceRow
	onceRefused
)

// claimLease is how long a claim keeps others out: longer than NetworkTimeout can be.
const claimLease = time.Minute

// maxMistakes is how many other requests the holders of one root API key may make under
// an idempotency key.
const maxMistakes = 5

// once returns how to make the call repeatable, or the answer of the call that
// this one repeats. A refusal that was sealed is returned as its error.
func (v *Vault) once(ctx context.Context, op ledger.Operation, object uuid.UUID, request func() []byte) (*repeatable, []byte, error) {
	i, _ := ctx.Value(idempotencyKey{}).(*Idempotency)
	if i == nil {
		return nil, nil, nil
	}

	i.replayed = false
	if err := checkIdempotencyKey(i.Key); err != nil {
		return nil, nil, err
	}

	req := i.Request.get()
	if req == nil {
		req = request()
		defer clear(req)
	}
	o := v.newRepeatable(ctx, op, object, i.Key, req)

	// One at a time, so that what is tried out side by side is counted as well.
	over := v.repeating.take(ctx, o.mistakes)
	if over == nil {
		return nil, nil, ctx.Err()
	}
	defer over()
	first, result, err := o.repeats(ctx, v)

	switch {
	case err != nil:
		return nil, nil, err
	case first == nil:
		return o, nil, nil
	case first.until.After(o.at):
		return nil, nil, ErrIdempotencyInProgress
	case !first.until.IsZero():
		o.held, o.row = first.version, first.row // whoever had it is gone
		return o, nil, nil
	case result == nil:
		return nil, nil, ErrNotFound
	}

	i.replayed = true
	answer, err := v.rows.OpenShown(ctx, result)
	if err == nil && first.refused {
		return nil, nil, ErrNetworkTokenState
	}
	return nil, answer, err
}

// newRepeatable returns what a call under an idempotency key writes.
func (v *Vault) newRepeatable(ctx context.Context, op ledger.Operation, object uuid.UUID, key string, req []byte) *repeatable {
	o := &repeatable{at: now(), fingerprint: v.rows.Box.Idempotency(v.rows.ID, []byte("request"), req)}
	name := v.rows.Box.Idempotency(v.rows.ID, []byte("key"), []byte(op.Name), object[:], []byte(key))
	due := o.at.Add(v.opts.IdempotencyTTL)
	o.key = store.Record{Kind: kindIdempotency, ID: uuid.UUID(name[:16]), Account: v.rows.ID, Due: due}
	o.result = store.Record{Kind: kindAnswer, ID: o.key.ID, Account: v.rows.ID, Due: due, Version: 1}

	actor, _ := ctx.Value(actorKey{}).(Actor)
	o.mistakes = uuid.UUID(v.rows.Box.Idempotency(v.rows.ID, []byte("mistakes"), name, actor.RootKeyID[:])[:16])
	return o
}

// A firstCall is what the record of a key tells of the call that was made under it.
type firstCall struct {
	fingerprint []byte
	until       time.Time
	row         uuid.UUID
	refused     bool
	version     uint64
}

// repeats returns the call that was made under the key, and its result if that is still
// there; nil if there was none. For another request it returns ErrIdempotencyKeyReused,
// once that is counted: if it cannot be counted nobody gets to know.
func (o *repeatable) repeats(ctx context.Context, v *Vault) (first *firstCall, result *store.Record, err error) {
	for {
		var key, count *store.Record
		key, result, count, err = o.read(ctx, v)
		if key == nil || err != nil {
			return nil, nil, err
		}

		if first, err = v.readFirst(ctx, key); err != nil {
			return nil, nil, err
		}
		if !key.Due.After(o.at) { // that is authenticated by now: nothing is made twice because a row says so
			o.lapsed = key.Version
			return nil, nil, nil
		}

		n, err := v.readMistakes(ctx, count, o.at)
		switch {
		case err != nil:
			return nil, nil, err
		case n >= maxMistakes:
			return nil, nil, ErrIdempotencyKeyReused
		}

		// Whoever was wrong before is counted in advance, because other processes may be
		// asked at the same time; so is everybody while counting fails.
		advance := n > 0 || v.uncounted.Load()
		if advance {
			if count, err = o.storeMistakes(ctx, v, key, count, n+1); errors.Is(err, store.ErrConflict) {
				continue
			} else if err != nil {
				return nil, nil, err
			}
		}

		right := subtle.ConstantTimeCompare(first.fingerprint, o.fingerprint) == 1
		switch {
		case right && advance:
			// If this fails there was one mistake more.
			_, _ = o.storeMistakes(ctx, v, key, count, n)
		case !right && !advance:
			if _, err = o.storeMistakes(ctx, v, key, count, n+1); errors.Is(err, store.ErrConflict) {
				continue
			} else if err != nil {
				return nil, nil, err
			}
		}

		if !right {
			return nil, nil, ErrIdempotencyKeyReused
		}
		return first, result, nil
	}
}

// read returns the record of the key, and, if there is one, those of its result
// and of the mistakes under it, each nil if it is not there.
func (o *repeatable) read(ctx context.Context, v *Vault) (key, result, count *store.Record, err error) {
	err = v.rows.View(ctx, func(tx store.ReadTx) (err error) {
		if key, err = tx.Get(kindIdempotency, o.key.ID); err != nil {
			key = nil
			if errors.Is(err, store.ErrNotFound) {
				err = nil
			}
			return err
		}

		result, err = v.rows.Find(tx, kindAnswer, o.key.ID)
		if errors.Is(err, store.ErrNotFound) || errors.Is(err, ErrNotFound) {
			result, err = nil, nil // it goes with its token, and with a session
		}
		if err != nil {
			return err
		}

		count, err = tx.Get(kindMistakes, o.mistakes)
		if errors.Is(err, store.ErrNotFound) {
			count, err = nil, nil
		}
		return err
	})
	return key, result, count, err
}

func (v *Vault) readFirst(ctx context.Context, key *store.Record) (*firstCall, error) {
	r, err := v.rows.Read(ctx, key)
	if err != nil {
		return nil, err
	}

	first := &firstCall{version: key.Version}
	for r.Next() {
		switch r.Tag {
		case onceFingerprint:
			first.fingerprint = r.Value
		case onceLease:
			first.until = r.Time()
		case onceRow:
			copy(first.row[:], r.Value)
		case onceRefused:
			first.refused = r.Bool()
		}
	}

	if r.Err() != nil || first.fingerprint == nil {
		return nil, fmt.Errorf("%w: idempotency record cannot be read", ErrDamaged)
	}
	return first, nil
}

// readMistakes returns how many mistakes a record counts, which may be nil or lapsed.
func (v *Vault) readMistakes(ctx context.Context, count *store.Record, at time.Time) (n uint64, err error) {
	if count == nil || !ledger.Lives(count, at) {
		return 0, nil
	}

	r, err := v.rows.Read(ctx, count)
	if err != nil {
		return 0, err
	}

	for r.Next() {
		if r.Tag == mistakesCount {
			n = r.Uint()
		}
	}
	return n, ledger.ReadError(r)
}

// mistakesCount is the tag of the number in a record of mistakes.
const mistakesCount = 1

// storeMistakes stores how many mistakes there were, in place of the former count, which
// may be nil. It returns what it stored, and store.ErrConflict if somebody was faster.
// Whether the caller is still there does not matter.
func (o *repeatable) storeMistakes(ctx context.Context, v *Vault, key, former *store.Record, n uint64) (*store.Record, error) {
	r := &store.Record{Kind: kindMistakes, ID: o.mistakes, Account: v.rows.ID, Due: key.Due, Version: 1}
	if former != nil {
		r.Version = former.Version + 1
	}

	if err := v.rows.SealShown(r, tlv.AppendUint(nil, mistakesCount, n)); err != nil {
		return nil, err
	}

	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	err := v.rows.Update(ctx, opStep, func(tx store.Tx) error {
		tx.Put(r)
		return nil
	})

	if !errors.Is(err, store.ErrConflict) {
		v.uncounted.Store(err != nil)
	}
	return r, err
}

// newRow returns the row key of what the call makes: a new one, unless the call
// takes over from one that had begun.
func (o *repeatable) newRow(v *Vault) (uuid.UUID, error) {
	if o != nil && o.row != uuid.Nil {
		return o.row, nil
	}
	return v.rows.NewRow()
}

// claim stores that the call is being made, and the row key of what it makes, so
// that no other call makes it meanwhile and who takes over after a crash goes on
// where it was.
func (o *repeatable) claim(ctx context.Context, v *Vault, row uuid.UUID) error {
	if o == nil {
		return nil
	}
	return o.claimWith(ctx, v, opStep, row, func(store.Tx) error { return nil })
}

// claimWith stores the claim in one transaction with what write does. A nil
// repeatable has no claim.
func (o *repeatable) claimWith(ctx context.Context, v *Vault, op ledger.Operation, row uuid.UUID, write func(store.Tx) error) error {
	if o == nil {
		return v.rows.Update(ctx, op, write)
	}
	was := o.row
	o.row = row
	err := o.storeClaim(ctx, v, op, now().Add(claimLease), write)
	if err != nil {
		o.row = was
	}
	return err
}

// abandon ends a claim, so that the call can be repeated at once. If that fails
// the lease ends it.
func (o *repeatable) abandon(ctx context.Context, v *Vault) {
	if o == nil || o.held == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if err := o.storeClaim(ctx, v, opStep, o.at, func(store.Tx) error { return nil }); err != nil && !errors.Is(err, errRepeated) {
		v.log.Warn("idempotency key stays in progress for a minute", "error", err)
	}
}

// storeClaim stores a claim that ends at until, with what write does.
func (o *repeatable) storeClaim(ctx context.Context, v *Vault, op ledger.Operation, until time.Time, write func(store.Tx) error) error {
	b := tlv.Append(nil, onceFingerprint, o.fingerprint)
	b = tlv.Append(tlv.AppendTime(b, onceLease, until), onceRow, o.row[:])
	if err := o.sealKey(v, b); err != nil {
		return err
	}
	err := v.rows.Update(ctx, op, func(tx store.Tx) error {
		if err := o.putKey(tx); err != nil {
			return err
		}
		return write(tx)
	})
	if err != nil {
		return err
	}
	o.held = o.key.Version
	return nil
}

// seal keeps answer as the result of the call, which goes with the record
// whose id is parent.
func (o *repeatable) seal(v *Vault, answer []byte, parent uuid.UUID) error {
	return o.sealResult(v, answer, parent, false)
}

// sealRefusal keeps ErrNetworkTokenState as the result.
func (o *repeatable) sealRefusal(v *Vault, parent uuid.UUID) error {
	return o.sealResult(v, nil, parent, true)
}

func (o *repeatable) sealResult(v *Vault, answer []byte, parent uuid.UUID, refusal bool) error {
	b := tlv.Append(nil, onceFingerprint, o.fingerprint)
	if err := o.sealKey(v, tlv.AppendBool(b, onceRefused, refusal)); err != nil {
		return err
	}
	o.result.Parent = parent
	return v.rows.SealShown(&o.result, tlv.Pad(answer, 64, 64))
}

func (o *repeatable) sealKey(v *Vault, plain []byte) error {
	o.key.Version = o.held + 1
	return v.rows.SealShown(&o.key, plain)
}

// put writes key and result in the transaction of the effect.
func (o *repeatable) put(tx store.Tx) error {
	if o == nil {
		return nil
	}
	if err := o.putKey(tx); err != nil {
		return err
	}
	tx.Put(&o.result)
	return nil
}

// putKey writes the key unless another call was faster. Lapsed records under the
// same key make room.
func (o *repeatable) putKey(tx store.Tx) error {
	r, err := tx.Get(kindIdempotency, o.key.ID)
	none := errors.Is(err, store.ErrNotFound)
	if err != nil && !none {
		return err
	}
	lapsed := !none && !r.Due.After(o.at)
	switch {
	case o.held == 0 && (none || lapsed && o.lapsed > 0 && r.Version == o.lapsed):
		tx.Delete(kindIdempotency, o.key.ID)
		tx.Delete(kindAnswer, o.key.ID)
	case none || lapsed || r.Version != o.held:
		return errRepeated
	}
	tx.Put(&o.key)
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

// turns are taken by what must not be done twice at a time for one token.
// The zero value is ready.
type turns struct {
	mu    sync.Mutex
	taken map[uuid.UUID]chan struct{} // closed when the turn is over
}

// take waits for a turn and returns what ends it, nil if ctx ends before.
func (t *turns) take(ctx context.Context, row uuid.UUID) (over func()) {
	for {
		t.mu.Lock()
		former := t.taken[row]
		if former == nil {
			break
		}
		t.mu.Unlock()
		select {
		case <-former:
		case <-ctx.Done():
			return nil
		}
	}
	defer t.mu.Unlock()
	if t.taken == nil {
		t.taken = map[uuid.UUID]chan struct{}{}
	}
	ended := make(chan struct{})
	t.taken[row] = ended
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.taken, row)
		close(ended)
	}
}
