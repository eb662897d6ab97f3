package codes

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"

	"github.com/cardvault/cardvault/internal/erase"
	"github.com/cardvault/cardvault/internal/leak"
	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/internal/seal"
	"github.com/cardvault/cardvault/internal/tlv"
	"github.com/cardvault/cardvault/store"
)

// How long a call waits for a shared cache.
const (
	Aside = 50 * time.Millisecond // if it is about something else
	Wait  = time.Second           // if it is about the code
)

// A Code is a security code in its stored form. The zero value is empty.
type Code struct {
	Number uint64 // of the codes of a token: a later one has a higher number
	Until  time.Time
	digits func() []byte // fmt and encoders cannot look into a closure
}

// NewCode returns a Code that has digits, which it does not copy.
func NewCode(digits []byte, number uint64, until time.Time) Code {
	return Code{number, until, func() []byte { return digits }}
}

// Digits returns the digits, which are the Code's own; none: there is no code.
func (c Code) Digits() []byte {
	if c.digits == nil {
		return nil
	}
	return c.digits()
}

// Wipe overwrites the digits with zeros.
func (c Code) Wipe() { clear(c.Digits()) }

// A Config says what a Keeper works with.
type Config struct {
	// Shared is the cache that several processes use. If nil, the Keeper makes one in the
	// memory of this process, for Capacity codes.
	Shared   store.CodeCache
	Capacity int

	Ledger *ledger.Ledger
	Log    *slog.Logger
}

// A Keeper keeps the security codes of one vault in a cache, sealed: in a shared one under
// the keys of the vault, else under a key that lives as long as this process. A cache that
// fails, or that keeps a code too long, costs codes only: it fails no call that is about
// something else.
type Keeper struct {
	config Config
	cache  store.CodeCache
	key    *seal.CodeKey // nil if the cache is shared
	warned ledger.Seldom // of a warning about the cache
}

// NewKeeper returns a Keeper.
func NewKeeper(c Config) *Keeper {
	k := &Keeper{config: c, cache: c.Shared}
	if k.cache == nil {
		k.key = seal.NewCodeKey()
		k.cache = New(c.Capacity, k.evicted)
	}
	return k
}

// Close erases the codes, unless the cache is shared.
func (k *Keeper) Close() error {
	if k.config.Shared != nil {
		return nil
	}
	return k.cache.Close()
}

// Tags of the sealed fields of a code.
const (
	codeUntil = iota + 1
	codeDigits
	codeNumber
)

// Keep puts a code under an id of the account, in place of the one before. The cache has the
// time wait for it. An error was logged. Keep does nothing without digits.
func (k *Keeper) Keep(ctx context.Context, rows ledger.Account, id uuid.UUID, c Code, wait time.Duration) error {
	if len(c.Digits()) == 0 {
		return nil
	}
	var buf [96]byte
	plain := tlv.AppendTime(buf[:0], codeUntil, c.Until)
	plain = tlv.AppendUint(plain, codeNumber, c.Number)
	plain = tlv.Pad(tlv.Append(plain, codeDigits, c.Digits()), 32, 0)
	sealed := rows.Box.SealCode(k.key, rows.ID, id, plain)
	clear(plain)
	erase.Registers()
	defer clear(sealed)

	err := k.call(ctx, wait, func(ctx context.Context) error {
		return k.cache.Put(ctx, id, sealed, c.Until.Sub(ledger.Now()))
	})
	if err != nil {
		k.failed("kept", err)
	}
	return err
}

// Find returns the code that the cache has under an id of the account, without digits if it
// has none or cannot be reached. The caller wipes it.
func (k *Keeper) Find(ctx context.Context, rows ledger.Account, id uuid.UUID) Code {
	var sealed []byte
	err := k.call(ctx, Aside, func(ctx context.Context) (err error) {
		sealed, err = k.cache.Get(ctx, id)
		return err
	})
	if errors.Is(err, store.ErrNotFound) {
		return Code{}
	}

	defer clear(sealed) // it is opened in place
	var plain []byte
	if err == nil {
		plain, err = rows.OpenCode(ctx, k.key, id, sealed)
	}
	if err != nil {
		k.failed("read", err)
		return Code{}
	}

	var c Code
	var digits []byte
	r := tlv.Read(plain)
	for r.Next() {
		switch r.Tag {
		case codeUntil:
			c.Until = r.Time()
		case codeNumber:
			c.Number = r.Uint()
		case codeDigits:
			digits = r.Value
		}
	}

	if r.Err() != nil || !c.Until.After(ledger.Now()) { // a cache that keeps it too long is not believed
		return Code{}
	}
	return NewCode(bytes.Clone(digits), c.Number, c.Until)
}

// Erase erases the code under an id of the account, unless its number is next or a later one. If
// that fails the error is ledger.ErrUnavailable.
func (k *Keeper) Erase(ctx context.Context, rows ledger.Account, id uuid.UUID, next uint64) error {
	if k.has(ctx, rows, id, next) {
		return nil
	}
	err := k.call(ctx, Wait, func(ctx context.Context) error { return k.cache.Delete(ctx, id) })
	switch {
	case err == nil:
		return nil
	case k.config.Ledger.Closed():
		return ledger.ErrClosed
	case ctx.Err() != nil:
		return ctx.Err()
	}
	k.failed("erased", err)
	return fmt.Errorf("%w: security code could not be erased", ledger.ErrUnavailable)
}

// has reports whether the cache has a code with a number, or a later one.
func (k *Keeper) has(ctx context.Context, rows ledger.Account, id uuid.UUID, number uint64) bool {
	c := k.Find(ctx, rows, id)
	c.Wipe()
	return len(c.Digits()) > 0 && c.Number >= number
}

// DropBefore is Drop for a code that is one of the past, unless its number is next or a later one.
func (k *Keeper) DropBefore(ctx context.Context, rows ledger.Account, id uuid.UUID, next uint64) {
	if ctx = context.WithoutCancel(ctx); !k.has(ctx, rows, id, next) {
		k.Drop(ctx, id)
	}
}

// Drop erases the code of a token or session that is gone, or was never stored. If that
// fails the code expires: nothing leads to it.
func (k *Keeper) Drop(ctx context.Context, id uuid.UUID) {
	err := k.call(context.WithoutCancel(ctx), Wait, func(ctx context.Context) error { return k.cache.Delete(ctx, id) })
	if err != nil {
		k.failed("erased", err)
	}
}

// call calls the cache with a deadline, which the cache of this process does not need.
func (k *Keeper) call(ctx context.Context, wait time.Duration, f func(context.Context) error) error {
	if k.config.Shared == nil {
		return f(ctx)
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	return f(ctx)
}

// failed logs that the cache failed, once a minute at most.
func (k *Keeper) failed(done string, err error) {
	if k.config.Ledger.Closed() || errors.Is(err, context.Canceled) {
		return
	}
	if k.warned.Now() {
		k.config.Log.Warn("security code could not be "+done, "error", leak.Printable(err))
	}
}

// evicted logs that codes had to go for want of room.
func (k *Keeper) evicted(all uint64) {
	if k.warned.Now() {
		k.config.Log.Warn("security codes were evicted early: Options.SecurityCodeCapacity is too small", "evicted", all)
	}
}
