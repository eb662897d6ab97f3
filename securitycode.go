package cardvault

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/internal/codes"
	"github.com/cardvault/cardvault/internal/hiding"
	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/internal/replay"
	"github.com/cardvault/cardvault/receive"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// refreshPatience bounds what a refresh does after it was stored.
const refreshPatience = 10 * time.Second

// A SecurityCodeStatus says whether the vault has the security code of a token.
type SecurityCodeStatus struct {
	Available bool
	ExpiresAt time.Time // zero unless it is available
}

// SecurityCodeStatus reports whether the vault has the security code of a token, and until
// when. The code is erased at that time, when it is consumed or replaced, or when the token
// is deleted. It is lost early if there is no room for it or its cache is lost. A cache
// that does not answer has no code. Events of the card at its scheme do not matter.
//
// The error is ErrNotFound for an id that the account does not have.
func (v *Vault) SecurityCodeStatus(ctx context.Context, id uuid.UUID) (_ *SecurityCodeStatus, err error) {
	defer v.doing(ctx, "get security code status", &err, id)
	t, err := v.Get(ctx, id)
	if err != nil {
		return nil, err
	}
	code, until, err := v.securityCode(ctx, t)
	if err != nil {
		return nil, err
	}
	defer code.Wipe()
	return &SecurityCodeStatus{!code.IsZero(), until}, nil
}

// Consume ends the security code of a token: it is never used again, whatever its cache
// does, and is erased there. With it the caller states that the payment was authorized:
// nothing else that uses the code consumes it. A token without a code stays as it is. opts
// may be nil.
//
// Errors: ErrNotFound; ErrUnavailable if the cache could not be reached, so that the code,
// now useless, may still be there; ErrIdempotencyKeyReused; ErrIdempotencyInProgress.
// Repeated under an idempotency key it does not end the code of a later refresh.
func (v *Vault) Consume(ctx context.Context, id uuid.UUID, opts *CallOptions) (_ *Outcome, err error) {
	defer v.doing(ctx, "consume security code", &err, id)
	call := replay.Request{Operation: opConsume, Object: id, Key: opts.key()}
	return once(ctx, v, call, replayed, func(c *replay.Call) (*Outcome, error) {
		err := v.consume(ctx, id, c, nil)
		if errors.Is(err, replay.ErrRepeated) { // not an outcome
			return nil, err
		}
		if err != nil {
			c.Abandon(ctx)
		}
		v.rows.Wrote(ctx, opConsume, id, err)
		return new(Outcome), err
	})
}

// consume ends the present security code, or no other than the one with a number, if only is
// not nil.
func (v *Vault) consume(ctx context.Context, id uuid.UUID, c *replay.Call, only *uint64) error {
	row, next, err := v.endCode(ctx, id, c, only)
	if err == nil {
		err = v.codes.Erase(ctx, v.rows, id, next)
	}
	if err != nil || c == nil {
		return err
	}

	if err := c.Seal(nil, row); err != nil {
		return err
	}
	return v.rows.Update(ctx, opConsume, func(tx store.Tx) error {
		if _, err := v.rows.Find(tx, kindToken, row); err != nil {
			return err
		}
		return c.Put(tx)
	})
}

// endCode invalidates the present security code of a token, and stores the claim of the
// call with that: a call that takes over after a crash ends no later code. It returns the
// row key of the token, and the number of the next code: the cache may have that already.
func (v *Vault) endCode(ctx context.Context, id uuid.UUID, c *replay.Call, only *uint64) (row uuid.UUID, next uint64, err error) {
	for {
		rec, err := v.rows.Get(ctx, kindToken, id)
		if err != nil {
			return uuid.Nil, 0, err
		}
		t, err := v.openToken(ctx, rec)
		if err != nil {
			return uuid.Nil, 0, err
		}

		if former := c.Row(); former != uuid.Nil { // it is ended: see replay.Call.Claim
			return rec.ID, binary.BigEndian.Uint64(former[8:]), c.Claim(ctx, former)
		}
		if only != nil && t.codes != *only {
			return rec.ID, *only + 1, nil // it has ended meanwhile
		}

		t.codes++
		if err := sealAgain(v, rec, t); err != nil {
			return uuid.Nil, 0, err
		}

		var which uuid.UUID
		binary.BigEndian.PutUint64(which[8:], t.codes)
		write := func(tx store.Tx) error {
			if _, err := v.rows.Find(tx, kindToken, rec.ID); err != nil {
				return err
			}
			tx.Put(rec)
			return nil
		}
		if c != nil {
			err = c.ClaimWith(ctx, opConsume, which, write)
		} else {
			err = v.rows.Update(ctx, opConsume, write)
		}
		if errors.Is(err, store.ErrConflict) {
			continue // another call was faster, so there is progress
		}
		return rec.ID, t.codes, err
	}
}

// RefreshSession returns the id of a new session in which the shopper enters the security
// code of a token's card again: see [Vault.RefreshSecurityCode]. Until then the vault keeps
// its present code. The id is a credential as in CreateSession. The session ends with the
// token, and when the card is replaced: the code of one card never becomes another's. opts may
// be nil.
//
// Errors: ErrNotFound, ErrQuotaExceeded, ErrIdempotencyKeyReused.
func (v *Vault) RefreshSession(ctx context.Context, id uuid.UUID, opts *CallOptions) (_ *CreatedSession, err error) {
	defer v.doing(ctx, "refresh session", &err, id)
	call := replay.Request{Operation: opRefreshSession, Object: id, Key: opts.key()}
	return once(ctx, v, call, repeatedSession, func(c *replay.Call) (*CreatedSession, error) {
		row := v.rows.Unmask(kindToken, id)
		t, err := tokenAt(ctx, v, row)
		if err != nil {
			return nil, err
		}
		return v.newSession(ctx, opRefreshSession, &session{refresh: row, edition: t.edition}, c)
	})
}

// RefreshSecurityCode keeps the security code that was entered in a session of
// RefreshSession, in place of the one before, and returns the token. It completes the
// session: of several concurrent calls one does.
//
// Errors: FieldErrors; ErrNotFound for a session that is unknown, ended, or of another
// account, a deleted token or a card that was replaced; ErrSessionCompleted; ErrSessionKind;
// ErrUnavailable if the cache refuses the code or the store cannot be read then: the session is completed all the
// same, and no code is left.
func (v *Vault) RefreshSecurityCode(ctx context.Context, id SessionID, code card.SecurityCode) (_ *Token, err error) {
	defer v.doing(ctx, "refresh security code", &err)
	return ledger.Retry(ctx, func() (*Token, error) {
		s, err := v.openSession(ctx, id)
		if err != nil {
			return nil, err
		}

		if s.refresh == uuid.Nil {
			return nil, ErrSessionKind
		}
		if err := checkSecurityCode(code); err != nil {
			return nil, err
		}

		t, err := s.refreshCode(ctx, code)
		return t, err
	})
}

// refreshCode completes a session with a security code that was checked, and stores
// also with it. It returns store.ErrConflict if the session has changed.
func (s *visit) refreshCode(ctx context.Context, code card.SecurityCode, also ...*store.Record) (*Token, error) {
	rec, err := s.vault.rows.GetRow(ctx, kindToken, s.refresh)
	if err != nil {
		return nil, err
	}
	t, err := s.vault.openToken(ctx, rec)
	if err != nil {
		return nil, err
	}

	if t.edition != s.edition { // its card was replaced since the session was read
		return nil, ErrNotFound
	}

	t.codes++ // the former code is one of the past, before its cache has the new one
	s.token = s.refresh
	s.record.Version++
	if err := s.seal(s.record); err != nil {
		return nil, err
	}

	event, err := s.vault.newEvent(ctx, rec, t, receive.TokenUpdated, receive.ReasonSecurityCodeRefreshed)
	if err != nil {
		return nil, err
	}
	rec.Version++
	if err := s.vault.sealToken(rec, t); err != nil {
		return nil, err
	}

	err = s.vault.rows.Write(ctx, opRefreshSecurityCode, t.ID, func(tx store.Tx) error {
		if _, err := s.vault.rows.Find(tx, kindToken, s.refresh); err != nil {
			return err
		}
		tx.Put(rec)
		tx.Put(s.record)
		for _, r := range also {
			tx.Put(r)
		}
		return event.Put(tx)
	})
	if err != nil {
		return nil, err
	}

	event.Written()
	if err := keepCode(ctx, s.vault, t, code, time.Time{}); err != nil {
		return nil, err
	}
	return t, nil
}

// keepCode keeps the security code of a token as it was just stored, with a code of its own.
// It is kept for the usual time, or until the given time, if that is earlier. Only the call
// that has stored the token so may replace the code. The token may have been deleted
// meanwhile, or the code consumed, perhaps before there was this code to erase. With an error
// no code is left.
func keepCode(ctx context.Context, v *Vault, t *Token, code card.SecurityCode, until time.Time) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), refreshPatience)
	defer cancel()
	if end := v.opts.codeUntil(t.ExpiresAt); until.IsZero() || until.After(end) {
		until = end
	}

	err := v.codes.Keep(ctx, v.rows, t.ID, codes.NewCode(hiding.Of(code), t.codes, until), codes.Wait)
	var is *Token
	if err != nil {
		err = fmt.Errorf("%w: security code could not be kept", ErrUnavailable)
	} else {
		is, err = v.Get(ctx, t.ID)
	}
	if err != nil || is.codes != t.codes {
		v.codes.DropBefore(ctx, v.rows, t.ID, t.codes+1) // a later code may be there by now
	}
	return err
}

// codeUntil returns until when a security code that was entered now is kept: not
// longer than end, if that is not zero.
func (o *Options) codeUntil(end time.Time) time.Time {
	until := now().Add(o.SecurityCodeTTL)
	if !end.IsZero() && end.Before(until) {
		return end
	}
	return until
}

// securityCode returns the security code of a token's card, as it was read, and the end of
// its time. It returns none if the cache has none, cannot be reached, or has one that was
// consumed or replaced, or is of another card. The token is read after the cache: a returned
// code had not been consumed at the time of the call.
func (v *Vault) securityCode(ctx context.Context, of *Token) (card.SecurityCode, time.Time, error) {
	kept := v.codes.Find(ctx, v.rows, of.ID)
	defer kept.Wipe()
	if len(kept.Digits()) == 0 {
		return card.SecurityCode{}, time.Time{}, nil
	}
	t, err := v.Get(ctx, of.ID)
	if err == nil && kept.Number == t.codes && t.edition == of.edition {
		return card.NewSecurityCode(kept.Digits()), kept.Until, nil
	}
	return card.SecurityCode{}, time.Time{}, err
}
