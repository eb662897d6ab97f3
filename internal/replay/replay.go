// Package replay makes calls repeatable. A caller names a call with a key of its own, and
// repeating it under the key has the effect and the result of the first call.
//
// Three kinds of records keep that. The key holds a keyed hash of the request, never the
// request. The answer is sealed, and belongs to the record that the call made: it is deleted
// with that. Both are written with the effect of the call. Mistakes count how often one
// root has sent another request under the key, so that no request is found out by guessing.
//
// A call that waits for another system stores the key first, as a claim: see [Call.Claim].
// A call that may reach the other system once only stores a claim that no call takes over:
// see [Call.ClaimOnce].
package replay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/internal/tlv"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// Errors of Begin. Package cardvault documents them: they are its own.
var (
	ErrReused     = errors.New("cardvault: idempotency key was used for another request")
	ErrInProgress = errors.New("cardvault: a call under the idempotency key is in progress")
)

// ErrUnknown is returned by Begin for a call of ClaimOnce whose process has ended without
// its result.
var ErrUnknown = errors.New("cardvault: call under the idempotency key was made, and its outcome is unknown")

// ErrRepeated is returned in a transaction that finds the same call made, or being made,
// since Begin has looked.
var ErrRepeated = fmt.Errorf("%w: call was repeated", ledger.ErrAgain)

// claimLease limits how long a claim keeps others out: longer than a call waits for a
// network.
const claimLease = time.Minute

// A Config says what Calls work with. All fields are needed.
type Config struct {
	Keys, Answers, Mistakes store.Kind

	Keep time.Duration // how long a key and its answer are kept
	Log  *slog.Logger

	// Needed by Once and BeginKeyed alone.
	Check   func(key string) error              // returns the fault of a key
	Root    func(ctx context.Context) uuid.UUID // returns whose mistakes count together
	Refused error                               // of a repetition of a call that was refused
}

// Calls are the repeatable calls of one vault. All methods may be called concurrently.
type Calls struct {
	config    Config
	turns     turns
	uncounted atomic.Bool // whether the last mistake could not be counted
}

// New returns the Calls of a vault.
func New(c Config) *Calls { return &Calls{config: c} }

// A Request is a call as its caller names it.
type Request struct {
	Operation ledger.Operation
	Object    uuid.UUID     // that the call concerns; the key is unique for both
	Key       string        // "" for none
	Body      func() []byte // must be the same in a repetition; it is not kept, and behind a function, which shows nothing
	Root      uuid.UUID     // whose mistakes count together; set by Once and BeginKeyed

	border *Border // nil for none; set by At
}

// An Answer is the result of an earlier call under the same key.
type Answer struct {
	Result  func() []byte // as it was sealed, with zeros appended; behind a function, which shows nothing
	Refused bool          // the call was sealed by SealRefusal
}

// A Call is a call that is being made under a key. It is for one goroutine. A nil Call has
// no key, and its methods do nothing, except the methods that require one.
type Call struct {
	calls *Calls
	rows  ledger.Account

	key, result store.Record
	mistakes    uuid.UUID // id of the record that counts the root's mistakes
	fingerprint []byte
	at          time.Time
	lapsed      uint64    // version of a lapsed record under the key, which was opened; 0: absent
	held        uint64    // version of the claim that this call has or takes over; 0: absent
	row         uuid.UUID // row key of the record that the call makes, from that claim
	once        bool      // no other call may take over that claim
}

// Begin returns the Call to make, or the answer of the call that this one repeats.
//
// Errors: ErrReused for another request under the key; ErrInProgress while another call
// makes it; ErrUnknown once that should have ended, if it may be made once only;
// ledger.ErrNotFound if the answer is gone with the record that it belongs to.
func (c *Calls) Begin(ctx context.Context, rows ledger.Account, r Request) (*Call, *Answer, error) {
	call := c.newCall(rows, r)

	// One at a time, so that mistakes made side by side are all counted.
	over := c.turns.take(ctx, call.mistakes)
	if over == nil {
		return nil, nil, ctx.Err()
	}
	defer over()

	first, result, err := call.repeats(ctx)
	switch {
	case err != nil:
		return nil, nil, err
	case first == nil:
		return call, nil, nil
	case first.until.After(call.at):
		return nil, nil, ErrInProgress
	case !first.until.IsZero() && first.once:
		return nil, nil, ErrUnknown
	case !first.until.IsZero():
		call.held, call.row = first.version, first.row // its process is gone
		return call, nil, nil
	case result == nil:
		return nil, nil, ledger.ErrNotFound
	}

	plain, err := rows.OpenShown(ctx, result)
	if err != nil {
		return nil, nil, err
	}
	return nil, &Answer{func() []byte { return plain }, first.refused}, nil
}

// newCall returns a call with the records that it writes, not sealed yet.
func (c *Calls) newCall(rows ledger.Account, r Request) *Call {
	call := &Call{calls: c, rows: rows, at: ledger.Now()}
	call.fingerprint = rows.Box.Idempotency(rows.ID, []byte("request"), r.Body())

	name := rows.Box.Idempotency(rows.ID, []byte("key"), []byte(r.Operation.Name), r.Object[:], []byte(r.Key))
	call.mistakes = uuid.UUID(rows.Box.Idempotency(rows.ID, []byte("mistakes"), name, r.Root[:])[:16])

	due := call.at.Add(c.config.Keep)
	call.key = store.Record{Kind: c.config.Keys, ID: uuid.UUID(name[:16]), Account: rows.ID, Due: due}
	call.result = store.Record{Kind: c.config.Answers, ID: call.key.ID, Account: rows.ID, Due: due, Version: 1}
	return call
}

// Row returns the row key of the record that a former process has begun to make, and that
// this call continues to make. It is zero if the record is new, and for a nil Call.
func (c *Call) Row() uuid.UUID {
	if c == nil {
		return uuid.Nil
	}
	return c.row
}

// Claim stores that the call is being made, and the row key of the record that it makes.
// No other call makes it meanwhile, and a call that takes over after a crash goes on from
// that record.
func (c *Call) Claim(ctx context.Context, row uuid.UUID) error {
	if c == nil {
		return nil
	}
	return c.ClaimWith(ctx, ledger.Step, row, func(store.Tx) error { return nil })
}

// ClaimWith is Claim in one transaction with write. It needs a Call.
func (c *Call) ClaimWith(ctx context.Context, op ledger.Operation, row uuid.UUID, write func(store.Tx) error) error {
	was := c.row
	c.row = row
	err := c.storeClaim(ctx, op, ledger.Now().Add(claimLease), write)
	if err != nil {
		c.row = was
	}
	return err
}

// ClaimOnce is Claim for a call that must not be made twice, and that ends before a time. A
// repetition is in progress until then. From then on it is ErrUnknown, as long as the key is
// kept, unless the call has put its result or was abandoned.
func (c *Call) ClaimOnce(ctx context.Context, until time.Time) error {
	if c == nil {
		return nil
	}
	c.once = true
	return c.storeClaim(ctx, ledger.Step, until, func(store.Tx) error { return nil })
}

// Abandon ends a claim, so that the call can be repeated at once. If that fails the claim
// stays until its time has passed.
func (c *Call) Abandon(ctx context.Context) {
	if c == nil || c.held == 0 {
		return
	}

	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	c.once = false
	err := c.storeClaim(ctx, ledger.Step, c.at, func(store.Tx) error { return nil })
	if err != nil && !errors.Is(err, ErrRepeated) {
		c.calls.config.Log.Warn("idempotency key stays in progress until its time has passed", "error", err)
	}
}

// storeClaim stores a claim that ends at until, in one transaction with write.
func (c *Call) storeClaim(ctx context.Context, op ledger.Operation, until time.Time, write func(store.Tx) error) error {
	b := tlv.Append(nil, keyFingerprint, c.fingerprint)
	b = tlv.Append(tlv.AppendTime(b, keyLease, until), keyRow, c.row[:])
	b = tlv.AppendBool(b, keyOnce, c.once)
	if err := c.sealKey(b); err != nil {
		return err
	}

	err := c.rows.Update(ctx, op, func(tx store.Tx) error {
		if err := c.putKey(tx); err != nil {
			return err
		}
		return write(tx)
	})
	if err != nil {
		return err
	}
	c.held = c.key.Version
	return nil
}

// KeepUntil keeps the result until a time, and not as long as others. It needs a Call.
func (c *Call) KeepUntil(t time.Time) { c.result.Due = t }

// Seal keeps answer as the result of the call. The answer belongs to the record whose row
// key is parent, if that is not zero.
func (c *Call) Seal(answer []byte, parent uuid.UUID) error {
	if c == nil {
		return nil
	}
	return c.seal(answer, parent, false)
}

// SealRefusal keeps as the result that the call was refused. It needs a Call.
func (c *Call) SealRefusal(parent uuid.UUID) error { return c.seal(nil, parent, true) }

func (c *Call) seal(answer []byte, parent uuid.UUID, refused bool) error {
	b := tlv.Append(nil, keyFingerprint, c.fingerprint)
	if err := c.sealKey(tlv.AppendBool(b, keyRefused, refused)); err != nil {
		return err
	}
	c.result.Parent = parent
	return c.rows.SealShown(&c.result, tlv.Pad(answer, 64, 64))
}

func (c *Call) sealKey(plain []byte) error {
	c.key.Version = c.held + 1
	return c.rows.SealShown(&c.key, plain)
}

// Put writes key and result, which were sealed, in the transaction of the effect. It
// returns ErrRepeated if another call was faster.
func (c *Call) Put(tx store.Tx) error {
	if err := c.PutKey(tx); err != nil || c == nil {
		return err
	}
	tx.Put(&c.result)
	return nil
}

// PutKey is Put without the result, which is as if it had been deleted.
func (c *Call) PutKey(tx store.Tx) error {
	if c == nil {
		return nil
	}
	return c.putKey(tx)
}

// putKey writes the key unless another call was faster. Lapsed records under the same key
// make room.
func (c *Call) putKey(tx store.Tx) error {
	r, err := ledger.Again(tx, &c.key) // the transaction may be of another account
	none := errors.Is(err, store.ErrNotFound)
	if err != nil && !none {
		return err
	}

	lapsed := !none && !r.Due.After(c.at)
	switch {
	case c.held == 0 && (none || lapsed && c.lapsed > 0 && r.Version == c.lapsed):
		ledger.Delete(tx, &c.key)
		ledger.Delete(tx, &c.result)
	case none || lapsed || r.Version != c.held:
		return ErrRepeated
	}
	tx.Put(&c.key)
	return nil
}
