package cardvault

import (
	"cmp"
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"time"

	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/idv"
	"github.com/cardvault/cardvault/internal/codes"
	"github.com/cardvault/cardvault/internal/hiding"
	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/internal/paymentdata"
	"github.com/cardvault/cardvault/internal/plausible"
	"github.com/cardvault/cardvault/internal/replay"
	"github.com/cardvault/cardvault/network"
	"github.com/cardvault/cardvault/receive"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// Replace gives a token another card, and returns the token. Its id and its context stay: the
// business key, the time of creation and the expiry of the token. So does the cardholder's
// name, unless c has one. All else is the new card's: a token whose card was invalidated is
// active again, and an identification of before counts no more. opts may be nil.
//
// The network token of before is deleted at the network, and another is asked for. The
// security code of before is erased, and so are encrypted payment data and idempotent answers
// that show the card of before: repeating such a call is ErrNotFound. A use of the card that
// is under way goes on with the card of before.
//
// Of several calls at the same time one replaces the card. The others return ErrCardReplaced.
//
// Errors: FieldErrors; ErrNotFound; ErrTooManyNumbers; ErrCardReplaced; for the number that
// the token has already ErrCardDataStale or ErrTokenInvalidated, if its scheme has replaced or
// invalidated it; ErrIdempotencyKeyReused.
func (v *Vault) Replace(ctx context.Context, id uuid.UUID, c Card, opts *CallOptions) (_ *Token, err error) {
	defer v.doing(ctx, "replace card", &err, id)
	if err := v.Check(c, nil); err != nil {
		return nil, err
	}

	before, err := v.Get(ctx, id)
	if err != nil {
		return nil, err
	}
	canonical := func() []byte { return new(ImportOptions).canonical(c) }
	r := replay.Request{Operation: opReplace, Object: id, Key: opts.key(), Body: canonical}.At(ctx)
	looked := false
	return ledger.Retry(ctx, func() (*Token, error) {
		call, answer, err := v.calls.BeginKeyed(ctx, v.rows, r)
		if answer != nil && err == nil {
			return v.decodeAnswer(ctx, answer)
		}

		p := &replacement{card: c, edition: before.edition, why: receive.ReasonCardReplaced, call: call}
		if err := cmp.Or(v.takeNumber(ctx, c.PAN, v.fingerprint(c.PAN)), err); err != nil {
			return nil, err
		}
		t, err := v.replace(ctx, opReplace, id, p)
		if errors.Is(err, ErrCardReplaced) && call != nil && !looked { // perhaps by the same call
			looked, err = true, ledger.ErrAgain
		}
		return t, err
	})
}

// A replacement is another card for a token.
type replacement struct {
	card    Card   // checked, and its number counted
	edition uint64 // of the number that it replaces
	why     receive.EventReason

	// The following may be zero.
	call    *replay.Call         // of a caller
	also    func(store.Tx) error // writes what belongs to it
	entered Token                // how the card was entered: identification, authentication and session
	until   time.Time            // end of its security code, if that is earlier than usual
}

// replace gives a token another card, unless its number is no longer the one that p replaces,
// which is ErrCardReplaced. It returns ledger.ErrAgain if a call under the key of p.call was
// faster.
func (v *Vault) replace(ctx context.Context, op ledger.Operation, id uuid.UUID, p *replacement) (*Token, error) {
	row := v.rows.Unmask(kindToken, id)
	bin := plausible.BIN(ctx, v.opts.BIN, p.card.PAN, v.log)

	var freed *store.Record // the release of the network token of before
	var number uint64       // of the first security code of the new card
	t, err := v.change(ctx, op, row, func(h *holding) (func(store.Tx) error, error) {
		if err := p.suits(v, h.token); err != nil {
			return nil, err
		}
		rec, drop, err := v.dropNetworkToken(ctx, id, row, h.net, h.due)
		if err != nil {
			return nil, err
		}
		shown, err := shownBefore(ctx, v, row)
		if err != nil {
			return nil, err
		}
		if err := p.exchange(ctx, v, h, bin); err != nil {
			return nil, err
		}

		freed, number = rec, h.token.codes
		h.why, h.call = p.why, p.call
		return func(tx store.Tx) error {
			if err := h.token.printed(tx); err != nil {
				return err
			}
			for _, k := range shown {
				tx.Delete(k.Kind, k.ID)
			}
			if p.also != nil {
				if err := p.also(tx); err != nil {
					return err
				}
			}
			return drop(tx)
		}, nil
	})
	// Erased even if the outcome is unknown, but no code of a later replacement.
	if errors.Is(err, ErrOutcomeUnknown) || err == nil && p.card.SecurityCode.IsZero() {
		v.codes.DropBefore(ctx, v.rows, id, number)
	}
	if err != nil {
		return nil, err
	}

	v.jobs.Due(freed)
	if p.card.SecurityCode.IsZero() {
		return t, nil
	}
	if err := keepCode(ctx, v, t, p.card.SecurityCode, p.until); err != nil {
		v.log.Warn("security code of another card is not kept", "token", id, "error", err)
	}
	return t, nil
}

// suits returns why p is no card for a token, or nil.
func (p *replacement) suits(v *Vault, t *Token) error {
	same, _ := t.isOf(v, p.card.PAN)
	switch {
	case t.edition != p.edition:
		return ErrCardReplaced
	case !same:
		return nil
	case t.AccountNumberStale:
		return ErrCardDataStale
	case t.Status == StatusInvalid:
		return ErrTokenInvalidated
	}
	return nil
}

// exchange makes the card of p the card of h, whose network token is asked for anew.
func (p *replacement) exchange(ctx context.Context, v *Vault, h *holding, bin *network.BIN) error {
	t := h.token
	switch {
	case !t.AccountNumberStale:
		t.former = t.LastFour
	case t.former == "": // stale since before that was noted
		if err := h.noteFormer(ctx, v); err != nil {
			return err
		}
	}
	if !p.card.Name.IsZero() {
		t.CardholderName = card.NewName(hiding.Of(p.card.Name))
	}
	t.Expiry = p.card.Expiry
	t.print(v, p.card.PAN)
	t.describe(hiding.Of(p.card.PAN), v.opts.IINLength, bin)

	t.Status, t.InvalidatedAt, t.AccountNumberStale = StatusActive, time.Time{}, false
	t.Identification, t.Authentication, t.session = p.entered.Identification, p.entered.Authentication, p.entered.session
	t.PaymentAccountReference, t.staleExpiry = "", card.Expiry{}
	t.codes++ // the former code is one of the past

	t.edition = rand.Uint64N(math.MaxUint64) + 1
	if err := sealNumber(v.rows, h.card, p.card.PAN, t.edition); err != nil {
		return err
	}
	return p.askAnew(ctx, v, h)
}

// noteFormer notes the last four digits of the stored number, if it can be read.
func (h *holding) noteFormer(ctx context.Context, v *Vault) error {
	number, err := v.openPAN(ctx, h.card, h.token)
	defer number.Wipe()
	if errors.Is(err, ErrDamaged) {
		return nil
	}
	if digits := hiding.Of(number); err == nil {
		h.token.former = string(digits[len(digits)-4:])
	}
	return err
}

// askAnew makes h pending without a network token, or not available if the configuration
// allows none. A provisioning that is under way has an earlier number: it cannot attach.
func (p *replacement) askAnew(ctx context.Context, v *Vault, h *holding) error {
	at := now()
	reason, err := v.unavailable(ctx, h.token, at)
	if err != nil {
		return err
	}

	h.token.NetworkTokenStatus, h.token.NetworkTokenStatusReason = network.NotAvailable, reason
	h.leave()
	if reason != nil {
		return nil
	}

	h.net.scheme = h.token.Scheme
	v.answered(h, networkAnswer{kind: answerRequested, network: v.opts.powers.For(h.token.Scheme)}, at)
	if !p.card.SecurityCode.IsZero() {
		h.due = h.due.Add(codes.Wait) // the code is kept once the card is stored
	}
	if h.record == nil {
		h.record = newNetworkRecord(h.card)
	}
	return sealContact(v.rows, h.record, p.card.Contact)
}

// leave parts h from its network token, which was released. An answer that is under way has an
// earlier attempt then.
func (h *holding) leave() {
	t := h.token
	t.SupportsDeviceBinding, t.artID, t.CardArtURL = false, uuid.Nil, ""
	h.net, h.due = &networkToken{attempt: h.net.attempt}, time.Time{}
	if h.record != nil {
		h.net.attempt++
		h.record.Secret = nil // the contact
	}
}

// shownMost bounds the answers, and the encrypted payment data, that are erased with the
// number they belong to. What is beyond is of no use from then on, and lapses.
const shownMost = ledger.FamilyRows / 2

// shownBefore returns the keys of a token's children that show its card.
func shownBefore(ctx context.Context, v *Vault, row uuid.UUID) ([]store.Key, error) {
	answers, err := v.calls.AnswersOf(ctx, v.rows, row, shownMost)
	if err != nil {
		return nil, err
	}
	jwes, err := paymentdata.Records{Account: v.rows, Data: kindPaymentData, JWEs: kindPaymentJWE}.LatestJWEs(ctx, row, shownMost)
	return append(answers, jwes...), err
}

// ReplaceSession returns the id of a new session in which the shopper enters another card for
// a token: see [Vault.Replace]. The session completes as one of [Vault.CreateSession]; so
// [Options.IDV] identifies the cardholder, unless the token has idv.Skipped. It gives the
// token the card whatever card that has by then, and ends with the token. opts may be nil.
//
// Errors: ErrNotFound, ErrQuotaExceeded, ErrIdempotencyKeyReused.
func (v *Vault) ReplaceSession(ctx context.Context, id uuid.UUID, opts *CallOptions) (_ *CreatedSession, err error) {
	defer v.doing(ctx, "replace session", &err, id)
	call := replay.Request{Operation: opReplaceSession, Object: id, Key: opts.key()}
	return once(ctx, v, call, repeatedSession, func(c *replay.Call) (*CreatedSession, error) {
		row := v.rows.Unmask(kindToken, id)
		t, err := tokenAt(ctx, v, row)
		if err != nil {
			return nil, err
		}
		return v.newSession(ctx, opReplaceSession, &session{replace: row, bypass: t.Identification == idv.Skipped}, c)
	})
}

// replacing returns the replacement of a token's card by the one that is entered in the
// session, and the token's id.
func (s *visit) replacing(ctx context.Context, c Card) (uuid.UUID, *replacement, error) {
	t, err := tokenAt(ctx, s.vault, s.replace)
	if err != nil {
		return uuid.Nil, nil, err
	}
	p := &replacement{card: c, edition: t.edition, why: receive.ReasonCardReplaced}
	return t.ID, p, p.suits(s.vault, t)
}

// replaceCard is tokenize for a session that gives a token another card.
func (s *visit) replaceCard(ctx context.Context, c Card, entered *Token, until time.Time, also []*store.Record) (*Token, error) {
	id, p, err := s.replacing(ctx, c)
	if err != nil {
		return nil, err
	}
	next, ended := *s.record, *s.session
	ended.token = s.replace
	next.Version++
	if err := (&visit{vault: s.vault, session: &ended}).seal(&next); err != nil {
		return nil, err
	}

	p.entered, p.until = *entered, until
	p.entered.session = s.id
	p.also = func(tx store.Tx) error {
		if !ledger.Lives(&next, now()) {
			return ErrNotFound
		}
		return ledger.PutNext(tx, append(also, &next)...)
	}
	t, err := s.vault.replace(ctx, opReplace, id, p)
	if err == nil {
		*s.session = ended
	}
	return t, err
}
