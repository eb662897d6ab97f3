package cardvault

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/cardvault/cardvault/internal/erase"
	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/internal/replay"
	"github.com/cardvault/cardvault/internal/tlv"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// How long a call waits for a cache of security codes: one that is about
// something else, and one that is about the code.
const (
	codesAside = 50 * time.Millisecond
	codesWait  = time.Second

	// refreshPatience bounds what a refresh does after it was stored.
	refreshPatience = 10 * time.Second
)

// SecurityCodeStatus reports whether the vault has the security code of a token,
// and until when. The code goes at that time, when it is consumed, when another
// takes its place or the token is deleted, and early if there is no room for it
// or its cache is lost. A cache that does not answer has none. What becomes of the
// card at its scheme does not matter.
//
// The error is ErrNotFound for an id that the account does not have.
func (v *Vault) SecurityCodeStatus(ctx context.Context, id uuid.UUID) (available bool, until time.Time, err error) {
	if _, err := v.rows.Get(ctx, kindToken, id); err != nil {
		return false, time.Time{}, err
	}
	code, until, err := v.securityCode(ctx, id)
	code.Wipe()
	return !code.IsZero(), until, err
}

// Consume ends the security code of a token: nobody gets it any more, whatever its cache
// does, and it is erased there. It is the caller's word that the payment was authorized:
// nothing else that uses the code consumes it. A token without one stays as it is.
//
// Errors: ErrNotFound; ErrUnavailable if the cache could not be reached, so that the
// code, which is of no use any more, may still be there; ErrIdempotencyKeyReused;
// ErrIdempotencyInProgress. Repeated under an idempotency key it does not end the code
// of a later refresh.
func (v *Vault) Consume(ctx context.Context, id uuid.UUID) error {
	once, answer, err := v.once(ctx, opConsume, id, func() []byte { return nil })
	if err != nil || answer != nil {
		return err
	}

	err = v.consume(ctx, id, once)
	if errors.Is(err, replay.ErrRepeated) {
		return v.Consume(ctx, id)
	}
	if err != nil {
		once.Abandon(ctx)
	}
	v.rows.Wrote(ctx, opConsume, id, err)
	return err
}

func (v *Vault) consume(ctx context.Context, id uuid.UUID, once *replay.Call) error {
	row, last, err := v.endCode(ctx, id, once)
	if err == nil && last {
		err = v.eraseCode(ctx, id)
	}
	if err != nil || once == nil {
		return err
	}

	if err := once.Seal(nil, row); err != nil {
		return err
	}
	return v.rows.Update(ctx, opConsume, func(tx store.Tx) error {
		if _, err := v.rows.Find(tx, kindToken, row); err != nil {
			return err
		}
		return once.Put(tx)
	})
}

// endCode makes the security code that is kept of a token one of the past, and stores the
// claim of the call with that: whoever takes over after a crash ends no later code. It
// returns the row key of the token, and whether there is no later code: only then may
// what the cache has be erased.
func (v *Vault) endCode(ctx context.Context, id uuid.UUID, once *replay.Call) (row uuid.UUID, last bool, err error) {
	for {
		card, err := v.rows.Get(ctx, kindToken, id)
		if err != nil {
			return uuid.Nil, false, err
		}
		t, err := v.openToken(ctx, card)
		if err != nil {
			return uuid.Nil, false, err
		}

		if former := once.Row(); former != uuid.Nil { // it is ended: see replay.Call.Claim
			number := binary.BigEndian.Uint64(former[8:])
			return card.ID, t.codes == number, once.Claim(ctx, former)
		}

		t.codes++
		if t.toldVersion == card.Version {
			t.toldVersion++ // nothing has changed that deliveries tell
		}
		card.Version++
		if err := v.sealToken(card, t); err != nil {
			return uuid.Nil, false, err
		}

		var which uuid.UUID
		binary.BigEndian.PutUint64(which[8:], t.codes)
		write := func(tx store.Tx) error {
			if _, err := v.rows.Find(tx, kindToken, card.ID); err != nil {
				return err
			}
			tx.Put(card)
			return nil
		}
		if once != nil {
			err = once.ClaimWith(ctx, opConsume, which, write)
		} else {
			err = v.rows.Update(ctx, opConsume, write)
		}
		if errors.Is(err, store.ErrConflict) {
			continue // somebody else was faster, so there is progress
		}
		return card.ID, true, err
	}
}

// RefreshSession returns the id of a new session in which the shopper enters the
// security code of a token's card anew: see [Vault.RefreshSecurityCode]. Until
// then the vault keeps the code that it has. The id is a credential like that of
// CreateSession, and the session ends with the token.
//
// Errors: ErrNotFound, ErrQuotaExceeded, ErrIdempotencyKeyReused.
func (v *Vault) RefreshSession(ctx context.Context, id uuid.UUID) (SessionID, error) {
	return ledger.Retry(ctx, func() (SessionID, error) {
		once, answer, err := v.once(ctx, opRefreshSession, id, func() []byte { return nil })
		switch {
		case err != nil:
			return SessionID{}, err
		case answer != nil:
			return sessionOf(answer)
		}

		card, err := v.rows.Get(ctx, kindToken, id)
		if err != nil {
			return SessionID{}, err
		}
		return v.newSession(ctx, opRefreshSession, &session{refresh: card.ID}, once)
	})
}

// RefreshSecurityCode keeps the security code that was entered in a session of
// RefreshSession, in place of the one before, and returns the token. It completes
// the session: of several calls at a time one does.
//
// Errors: FieldErrors; ErrNotFound for a session that is unknown, over, or of
// another account or a token that is gone; ErrSessionCompleted; ErrSessionKind;
// ErrUnavailable if the cache does not take the code or the store cannot be read
// then: the session is completed all the same, and no code is left.
func (v *Vault) RefreshSecurityCode(ctx context.Context, id SessionID, code SecurityCode) (*Token, error) {
	return ledger.Retry(ctx, func() (*Token, error) {
		r, s, err := v.openSession(ctx, id)
		if err != nil {
			return nil, err
		}

		if s.refresh == uuid.Nil {
			return nil, ErrSessionKind
		}
		if err := checkSecurityCode(code); err != nil {
			return nil, err
		}

		t, err := v.refreshCode(ctx, r, s, code)
		return t, err
	})
}

// refreshCode completes a session with a security code that was checked, and stores
// also with it. It returns store.ErrConflict if the session has changed.
func (v *Vault) refreshCode(ctx context.Context, r *store.Record, s *session, code SecurityCode, also ...*store.Record) (*Token, error) {
	card, err := v.rows.GetRow(ctx, kindToken, s.refresh)
	if err != nil {
		return nil, err
	}
	t, err := v.openToken(ctx, card)
	if err != nil {
		return nil, err
	}

	t.codes++ // the former code is one of the past, before its cache has the new one
	s.token = s.refresh
	r.Version++
	if err := v.sealSession(r, s); err != nil {
		return nil, err
	}

	event, err := v.newEvent(ctx, card, t, TokenUpdated, ReasonSecurityCodeRefreshed)
	if err != nil {
		return nil, err
	}
	card.Version++
	if err := v.sealToken(card, t); err != nil {
		return nil, err
	}

	err = v.rows.Write(ctx, opRefreshSecurityCode, t.ID, func(tx store.Tx) error {
		if _, err := v.rows.Find(tx, kindToken, s.refresh); err != nil {
			return err
		}
		tx.Put(card)
		tx.Put(r)
		for _, r := range also {
			tx.Put(r)
		}
		return event.put(tx)
	})
	if err != nil {
		return nil, err
	}

	event.written()

	// Only whoever completes the session gets to replace the code. The token may have been
	// deleted meanwhile, or the code consumed, perhaps before there was this code to erase.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), refreshPatience)
	defer cancel()
	if v.keepCode(ctx, t.ID, t.codes, code, v.codeUntil(t.ExpiresAt), codesWait) != nil {
		err = fmt.Errorf("%w: security code could not be kept", ErrUnavailable)
	} else {
		var is *Token
		if card, err = v.rows.GetRow(ctx, kindToken, s.refresh); err == nil {
			is, err = v.openToken(ctx, card)
		}
		if err == nil && is.codes != t.codes {
			// Of another refresh the code may be there by now, in place of this one.
			code, number, _ := v.keptCode(ctx, t.ID)
			if code.Wipe(); number == t.codes {
				v.dropCode(ctx, t.ID)
			}
		}
	}
	if err != nil {
		v.dropCode(ctx, t.ID)
		return nil, err
	}
	return t, nil
}

func checkSecurityCode(c SecurityCode) error {
	const field = "security_code"
	if c.IsZero() {
		return required(field)
	}
	return checkDigits(field, c.get(), minSecurityCode, maxSecurityCode)
}

// Tags of what is sealed of a security code.
const (
	codeUntil = iota + 1
	codeDigits
	codeNumber // Token.codes
)

// codeUntil returns until when a security code that was entered now is kept: not
// longer than end, if that is not zero.
func (v *Vault) codeUntil(end time.Time) time.Time {
	until := now().Add(v.opts.SecurityCodeTTL)
	if !end.IsZero() && end.Before(until) {
		return end
	}
	return until
}

// keepCode puts the security code of a token, or of the card that a session has, into
// the cache, in place of the one before: number is Token.codes, 0 in a session. The cache
// has the time wait for it.
func (v *Vault) keepCode(ctx context.Context, id uuid.UUID, number uint64, code SecurityCode, until time.Time, wait time.Duration) error {
	if code.IsZero() {
		return nil
	}
	var buf [96]byte
	plain := tlv.AppendTime(buf[:0], codeUntil, until)
	plain = tlv.AppendUint(plain, codeNumber, number)
	plain = tlv.Pad(tlv.Append(plain, codeDigits, code.get()), 32, 0)
	sealed := v.rows.Box.SealCode(v.codeKey, v.rows.ID, id, plain)
	clear(plain)
	erase.Registers()
	defer clear(sealed)
	err := v.withCodes(ctx, wait, func(ctx context.Context) error {
		return v.codes.Put(ctx, id, sealed, until.Sub(now()))
	})
	if err != nil {
		v.codesFailed("kept", err)
	}
	return err
}

// securityCode returns the security code of a token and until when it is kept, none if
// the cache has none, cannot be reached, or has one that was consumed or replaced. The
// token is read after the cache: a code that is returned had not been consumed when it was
// asked for.
func (v *Vault) securityCode(ctx context.Context, id uuid.UUID) (SecurityCode, time.Time, error) {
	code, number, until := v.keptCode(ctx, id)
	if code.IsZero() {
		return SecurityCode{}, time.Time{}, nil
	}
	t, err := v.Get(ctx, id)
	if err == nil && number == t.codes {
		return code, until, nil
	}
	code.Wipe()
	return SecurityCode{}, time.Time{}, err
}

// keptCode returns what the cache has under an id: a security code, its number, and until
// when it is kept. It has none if the cache has none or cannot be reached.
func (v *Vault) keptCode(ctx context.Context, id uuid.UUID) (SecurityCode, uint64, time.Time) {
	var sealed []byte
	err := v.withCodes(ctx, codesAside, func(ctx context.Context) (err error) {
		sealed, err = v.codes.Get(ctx, id)
		return err
	})
	if errors.Is(err, store.ErrNotFound) {
		return SecurityCode{}, 0, time.Time{}
	}

	defer clear(sealed) // it is opened in place
	var plain []byte
	if err == nil {
		plain, err = v.openCode(ctx, id, sealed)
	}
	if err != nil {
		v.codesFailed("read", err)
		return SecurityCode{}, 0, time.Time{}
	}

	var code SecurityCode
	var number uint64
	var until time.Time
	r := tlv.Read(plain)
	for r.Next() {
		switch r.Tag {
		case codeUntil:
			until = r.Time()
		case codeNumber:
			number = r.Uint()
		case codeDigits:
			code = NewSecurityCode(r.Value)
		}
	}

	if r.Err() != nil || !until.After(now()) { // a cache that keeps it too long is not believed
		code.Wipe()
		return SecurityCode{}, 0, time.Time{}
	}
	return code, number, until
}

func (v *Vault) openCode(ctx context.Context, id uuid.UUID, sealed []byte) ([]byte, error) {
	return v.rows.OpenCode(ctx, v.codeKey, id, sealed)
}

// eraseCode erases the security code of a token.
func (v *Vault) eraseCode(ctx context.Context, id uuid.UUID) error {
	err := v.withCodes(ctx, codesWait, func(ctx context.Context) error { return v.codes.Delete(ctx, id) })
	switch {
	case err == nil:
		return nil
	case v.ledger.Closed():
		return ErrClosed
	case ctx.Err() != nil:
		return ctx.Err()
	}
	v.codesFailed("erased", err)
	return fmt.Errorf("%w: security code could not be erased", ErrUnavailable)
}

// dropCode erases what is left of a token or session that is gone, or was never stored. If
// that fails it goes when its time is over; nothing leads to it.
func (v *Vault) dropCode(ctx context.Context, id uuid.UUID) {
	err := v.withCodes(context.WithoutCancel(ctx), codesWait, func(ctx context.Context) error { return v.codes.Delete(ctx, id) })
	if err != nil {
		v.codesFailed("erased", err)
	}
}

// withCodes calls the cache with a deadline, which that of this process does not need.
func (v *Vault) withCodes(ctx context.Context, wait time.Duration, f func(context.Context) error) error {
	if v.opts.Codes == nil {
		return f(ctx)
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	return f(ctx)
}

// codesFailed logs that a cache failed, once a minute at most.
func (c *core) codesFailed(what string, err error) {
	if c.ledger.Closed() || errors.Is(err, context.Canceled) {
		return
	}
	if c.codesTold.now() {
		c.log.Warn("security code could not be "+what, "error", printable(err))
	}
}

// codesEvicted logs that codes had to go for want of room.
func (c *core) codesEvicted(all uint64) {
	if c.codesTold.now() {
		c.log.Warn("security codes went early: Options.SecurityCodeCapacity is too small", "evicted", all)
	}
}
