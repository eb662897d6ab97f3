package cardvault

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/idv"
	"github.com/cardvault/cardvault/internal/claims"
	"github.com/cardvault/cardvault/internal/codes"
	"github.com/cardvault/cardvault/internal/hiding"
	"github.com/cardvault/cardvault/internal/jsontext"
	"github.com/cardvault/cardvault/internal/leak"
	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/internal/plausible"
	"github.com/cardvault/cardvault/internal/tlv"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// An identification is a session's running identification of a cardholder. The card is the
// sealed secret of the session's record, its security code is in the cache under the key.
type identification struct {
	key       uuid.UUID // under which the provider knows it
	scheme    card.Scheme
	since     time.Time
	next      time.Time // earliest next call of the provider
	reference string    // "" until the provider has answered
	challenge string
}

const (
	// identificationPace is the least time between two calls of the provider.
	identificationPace = time.Second

	// identificationMargin is the time by which the lease outlasts a call of the provider.
	identificationMargin = 5 * time.Second

	// identificationPatience limits how long a provider may leave open whether it has
	// begun.
	identificationPatience = time.Minute
)

// Tags of the card in a session.
const (
	enteredNumber = iota + 1
	enteredMonth
	enteredYear
	enteredName
	enteredContact
)

// fields has the card as a session holds it, without its security code.
func (c *Card) fields(f *tlv.Fields) {
	number := f.Value(enteredNumber, hiding.Of(c.PAN))
	tlv.Uint(f, enteredMonth, &c.Expiry.Month)
	tlv.Uint(f, enteredYear, &c.Expiry.Year)
	name := f.Value(enteredName, hiding.Of(c.Name))
	contact := f.Value(enteredContact, hiding.Of(c.Contact))
	if f.Reading() {
		c.PAN, c.Name, c.Contact = card.NewPAN(number), card.NewName(name), card.NewContact(contact)
	}
}

// enter makes the token of a card that was checked, or begins the identification
// of its holder, and stores also with it.
//
// Errors: errScheme; ErrTooManyNumbers; ErrIdentificationPending;
// ErrIdentificationFailed; store.ErrConflict if the session has changed.
func (s *visit) enter(ctx context.Context, c Card, also ...*store.Record) (*Token, error) {
	if err := s.vault.takeNumber(ctx, c.PAN, s.vault.fingerprint(c.PAN)); err != nil {
		return nil, err
	}

	if s.replace != uuid.Nil { // its holder is not identified in vain
		if _, _, err := s.replacing(ctx, c); err != nil {
			return nil, err
		}
	}

	identifies := !s.bypass && s.vault.opts.IDV != nil
	scheme := card.UnknownScheme
	if identifies || len(s.vault.opts.Schemes) > 0 {
		scheme = s.vault.opts.schemeOf(ctx, c.PAN)
	}
	if len(s.vault.opts.Schemes) > 0 && !slices.Contains(s.vault.opts.Schemes, scheme) {
		return nil, errScheme
	}

	if !identifies {
		t := &Token{}
		if s.bypass {
			t.Identification = idv.Skipped
		}
		return s.tokenize(ctx, c, t, time.Time{}, also...)
	}

	var f tlv.Fields
	f.To(make([]byte, 0, 512+len(hiding.Of(c.Name))+len(hiding.Of(c.Contact)))) // so that it does not grow
	c.fields(&f)
	b := tlv.Pad(f.Bytes(), 64, 0)
	err := s.vault.rows.SealSecret(s.record, b)
	clear(b)
	if err != nil {
		return nil, err
	}

	s.idv = &identification{key: uuid.New(), scheme: scheme, since: now()}
	// Logged; the cardholder may be identified without.
	_ = s.vault.codes.Keep(ctx, s.vault.rows, s.idv.key, codes.NewCode(hiding.Of(c.SecurityCode), 0, s.vault.opts.codeUntil(s.record.Due)), codes.Aside)

	if err := s.lease(ctx, also...); err != nil {
		s.vault.codes.Drop(ctx, s.idv.key)
		return nil, err
	}
	return s.identify(ctx, c)
}

// lease keeps others from calling the provider until it must have answered.
func (s *visit) lease(ctx context.Context, also ...*store.Record) error {
	s.idv.next = now().Add(s.vault.opts.IDVTimeout + identificationMargin)
	return s.put(ctx, opIdentify, also...)
}

// put stores a session that has changed.
func (s *visit) put(ctx context.Context, op ledger.Operation, also ...*store.Record) error {
	s.record.Version++
	if err := s.seal(s.record); err != nil {
		return err
	}
	return s.vault.rows.Write(ctx, op, uuid.Nil, func(tx store.Tx) error {
		if !ledger.Lives(s.record, now()) {
			return ErrNotFound
		}
		tx.Put(s.record)
		for _, r := range also {
			tx.Put(r)
		}
		return nil
	})
}

// advance asks the provider for the state of a session's identification, unless another
// call has just done so.
func (s *visit) advance(ctx context.Context) error {
	if s.idv == nil || now().Before(s.idv.next) {
		return nil
	}

	err := s.lease(ctx)
	if err == nil {
		var c Card
		if c, err = s.entered(ctx); err == nil {
			_, err = s.identify(ctx, c)
			c.Wipe()
		}
	}

	if errors.Is(err, ErrIdentificationPending) || s.failed != "" {
		return nil
	}
	return err
}

// identify asks the provider about the holder of the card in a session, and stores the
// consequences, even if the caller has left: an identification must not begin again and
// again. Its caller has the lease.
func (s *visit) identify(ctx context.Context, c Card) (*Token, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.vault.opts.IDVTimeout+identificationMargin)
	defer cancel()

	begun := s.idv
	got, failure := s.vault.askIdentification(ctx, begun, c)
	switch {
	case failure == nil && (got.State == idv.Passed || got.State == idv.NotNeeded):
		t := &Token{}
		if got.State == idv.Passed {
			auth := *got.Authentication // the provider may keep its own
			auth.At = auth.At.UTC().Truncate(time.Microsecond)
			t.Identification, t.Authentication = idv.Checked, &auth
		}
		secret := s.record.Secret
		s.idv, s.record.Secret = nil, nil
		t, err := s.tokenize(ctx, c, t, begun.since.Add(s.vault.opts.SecurityCodeTTL))
		switch {
		case errors.Is(err, ErrCardDataStale), errors.Is(err, ErrTokenInvalidated): // since the card was entered
			return nil, s.fail(ctx, begun, RefusedAccountNumber, err)
		case !errors.Is(err, ErrCardReplaced):
			s.dropCode(ctx, begun, err)
			return t, err
		}
		s.idv, s.record.Secret = begun, secret // it replaces the present card the next time

	case failure == nil && got.State == idv.Failed,
		failure != nil && begun.reference == "" && now().Sub(begun.since) >= identificationPatience:
		return nil, s.fail(ctx, begun, RefusedIdentification, ErrIdentificationFailed)
	case failure == nil:
		begun.reference, begun.challenge = got.Reference, got.ChallengeURL
	}

	begun.next = now().Add(identificationPace)
	if err := s.put(ctx, opIdentify); err != nil {
		return nil, err
	}
	return nil, ErrIdentificationPending
}

// fail ends a session for good because of why, and returns that once it is stored.
func (s *visit) fail(ctx context.Context, begun *identification, reason Refusal, why error) error {
	s.failed, s.idv, s.record.Secret = reason, nil, nil
	err := s.put(ctx, opIdentify)
	if s.dropCode(ctx, begun, err); err != nil {
		return err
	}
	return why
}

// dropCode erases the security code of a session that has ended, or may have.
func (s *visit) dropCode(ctx context.Context, begun *identification, err error) {
	if err == nil || errors.Is(err, ErrOutcomeUnknown) {
		s.vault.codes.Drop(ctx, begun.key)
	}
}

// entered returns the card in a session.
func (s *visit) entered(ctx context.Context) (c Card, err error) {
	plain, err := s.vault.rows.CopySecret(ctx, s.record)
	if err != nil {
		return Card{}, err
	}
	defer clear(plain)

	var f tlv.Fields
	f.From(plain)
	c.fields(&f)
	if f.Err() != nil || c.PAN.IsZero() {
		c.Wipe()
		return Card{}, fmt.Errorf("%w: card of a session cannot be read", ErrDamaged)
	}

	kept := s.vault.codes.Find(ctx, s.vault.rows, s.idv.key) // the only one there is under the key
	c.SecurityCode = card.NewSecurityCode(kept.Digits())
	kept.Wipe()
	return c, nil
}

// askIdentification calls the provider with a deadline and checks its answer.
func (v *Vault) askIdentification(ctx context.Context, begun *identification, c Card) (got *idv.Result, err error) {
	ctx, cancel := context.WithTimeout(ctx, v.opts.IDVTimeout)
	defer cancel()

	err = v.guard("idv.Provider", func() (err error) {
		switch {
		case v.opts.IDV == nil: // there was one when the card was entered
			err = notEnabled("Options.IDV is nil")
		case begun.reference != "":
			got, err = v.opts.IDV.LookupIdentification(ctx, &idv.LookupRequest{Reference: begun.reference})
		default:
			got, err = v.opts.IDV.Identify(ctx, &idv.Request{
				IdempotencyKey: begun.key.String(),
				Scheme:         begun.scheme,
				PAN:            c.PAN,
				Expiry:         c.Expiry,
				SecurityCode:   c.SecurityCode,
				Name:           c.Name,
				Contact:        c.Contact,
			})
		}
		return err
	})
	if err == nil {
		err = plausible.Identification(got, v.opts.Mode == Sandbox, c.PAN)
	}
	if err == nil {
		return got, nil
	}

	if v.identificationTold.Now() { // once a minute
		secrets := [][]byte{hiding.Of(c.SecurityCode), hiding.Of(c.Name)}
		_ = claims.EachContact(hiding.Of(c.Contact), func(_ string, m *jsontext.Value) { secrets = append(secrets, bytes.Clone(m.Text)) })
		v.log.Warn("identification of a cardholder has no answer", "error", leak.Printable(plausible.Withhold(err, c.PAN, secrets...)))
	}
	return nil, err
}
