package cardvault

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/internal/claims"
	"github.com/cardvault/cardvault/internal/codes"
	"github.com/cardvault/cardvault/internal/hiding"
	"github.com/cardvault/cardvault/internal/jsontext"
	"github.com/cardvault/cardvault/internal/leak"
	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/internal/rule"
	"github.com/cardvault/cardvault/internal/tlv"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// An IDVProvider identifies and verifies the cardholder (ID&V) before a card that
// is entered in a session becomes a token: by 3-D Secure, a one-time password or
// what else the issuer asks for.
//
// Methods are called concurrently, with a deadline of [Options.IDVTimeout], also
// after whoever has entered the card has left. They bound what they read and keep no
// card data. An error says that the outcome is not known, and the vault calls again. It
// never holds anything of what was entered: it is logged.
//
// A provider that implements [SandboxOnly] is refused by a live vault.
type IDVProvider interface {
	// Identify begins an identification. Under an idempotency key that was used
	// before it tells how far that one is, and never begins another; the security
	// code may be missing then, if it was there before.
	Identify(ctx context.Context, r *IDVRequest) (*IDVResult, error)

	// LookupIdentification tells how far an identification is that was pending,
	// by its IDVResult.Reference. It is called about once a second for as long as
	// somebody asks for the session.
	LookupIdentification(ctx context.Context, reference string) (*IDVResult, error)
}

// An IDVRequest is a card whose holder is to be identified.
type IDVRequest struct {
	IdempotencyKey string // a UUID
	Scheme         card.Scheme
	PAN            card.PAN
	Expiry         card.Expiry
	SecurityCode   card.SecurityCode // may be none
	Name           card.Name         // may be none
	Contact        card.Contact      // may be none
}

// An IDVResult is how far an identification is.
type IDVResult struct {
	State IDVState

	// Reference is the provider's handle of an identification that is pending: 1
	// to 255 bytes, not secret.
	Reference string

	// ChallengeURL is a page on which the shopper proves who they are while the
	// identification is pending, shown in a frame of the shop's page: https, in a
	// sandbox also http on the loopback. "" if there is nothing to show (yet).
	ChallengeURL string

	// Authentication is what came of an identification that was passed.
	Authentication *Authentication
}

// An IDVState says how far an identification is.
type IDVState uint8

const (
	IDVPending   IDVState = iota + 1
	IDVPassed             // the cardholder is identified
	IDVNotNeeded          // nobody asks for it: the token is made without
	IDVFailed             // final: there is no token
)

// Authentication is what an identification came to, for the token that was made
// after it. It never holds an authentication value.
type Authentication struct {
	Method          string    // three_ds, security_code, otp or passkey
	Status          string    // of the transaction in EMV 3-D Secure, such as "Y": one letter; "" if there is none
	ECI             string    // two digits, or ""
	DSTransactionID string    // of the directory server: a UUID, or ""
	At              time.Time // in microseconds
}

// firstAuthentication is before any.
var firstAuthentication = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

var authenticationMethods = []string{"three_ds", "security_code", "otp", "passkey"}

// An identification is that of a cardholder, as a session has it while it is under
// way. The card is the sealed secret of the session's record, its security code is
// in the cache under the key.
type identification struct {
	key       uuid.UUID // under which the provider knows it
	scheme    card.Scheme
	since     time.Time
	next      time.Time // nobody asks the provider before
	reference string    // "" until the provider has answered
	challenge string
}

const (
	// identificationPace is how often the provider is asked at most.
	identificationPace = time.Second

	// identificationMargin is how much longer than a call of the provider its lease is.
	identificationMargin = 5 * time.Second

	// identificationPatience is how long a provider may leave open whether it has
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
			t.Identification = IdentificationSkipped
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

// lease makes sure that nobody else asks the provider until it must
// have answered.
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

// advance asks the provider how far the identification of a session is, unless
// somebody has just done so.
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

	if errors.Is(err, ErrIdentificationPending) || errors.Is(err, ErrIdentificationFailed) {
		return nil
	}
	return err
}

// identify asks the provider about the holder of the card in a session, and stores
// what follows, whether the caller is still there or not: an identification is not to
// be begun again and again. Whoever calls it has the lease.
func (s *visit) identify(ctx context.Context, c Card) (*Token, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.vault.opts.IDVTimeout+identificationMargin)
	defer cancel()

	idv := s.idv
	got, failure := s.vault.askIdentification(ctx, idv, c)
	switch {
	case failure == nil && (got.State == IDVPassed || got.State == IDVNotNeeded):
		t := &Token{}
		if got.State == IDVPassed {
			auth := *got.Authentication // the provider may keep its own
			auth.At = auth.At.UTC().Truncate(time.Microsecond)
			t.Identification, t.Authentication = IdentificationChecked, &auth
		}
		s.idv, s.record.Secret = nil, nil
		t, err := s.tokenize(ctx, c, t, idv.since.Add(s.vault.opts.SecurityCodeTTL))
		s.dropCode(ctx, idv, err)
		return t, err

	case failure == nil && got.State == IDVFailed,
		failure != nil && idv.reference == "" && now().Sub(idv.since) >= identificationPatience:
		s.failed, s.idv, s.record.Secret = "identification_failed", nil, nil
		err := s.put(ctx, opIdentify)
		if s.dropCode(ctx, idv, err); err != nil {
			return nil, err
		}
		return nil, ErrIdentificationFailed
	case failure == nil:
		idv.reference, idv.challenge = got.Reference, got.ChallengeURL
	}

	idv.next = now().Add(identificationPace)
	if err := s.put(ctx, opIdentify); err != nil {
		return nil, err
	}
	return nil, ErrIdentificationPending
}

// dropCode erases the security code of a session that has ended, or may have.
func (s *visit) dropCode(ctx context.Context, idv *identification, err error) {
	if err == nil || errors.Is(err, ErrOutcomeUnknown) {
		s.vault.codes.Drop(ctx, idv.key)
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
func (v *Vault) askIdentification(ctx context.Context, idv *identification, c Card) (got *IDVResult, err error) {
	ctx, cancel := context.WithTimeout(ctx, v.opts.IDVTimeout)
	defer cancel()

	err = v.guard("IDVProvider", func() (err error) {
		switch {
		case v.opts.IDV == nil: // there was one when the card was entered
			err = ErrNotEnabled
		case idv.reference != "":
			got, err = v.opts.IDV.LookupIdentification(ctx, idv.reference)
		default:
			got, err = v.opts.IDV.Identify(ctx, &IDVRequest{
				IdempotencyKey: idv.key.String(),
				Scheme:         idv.scheme,
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
		err = got.check(v.opts.Mode, c.PAN)
	}
	if err == nil {
		return got, nil
	}

	if v.identificationTold.Now() { // once a minute
		secrets := [][]byte{hiding.Of(c.SecurityCode), hiding.Of(c.Name)}
		_ = claims.EachContact(hiding.Of(c.Contact), func(_ string, m *jsontext.Value) { secrets = append(secrets, bytes.Clone(m.Text)) })
		v.log.Warn("identification of a cardholder has no answer", "error", leak.Printable(withhold(err, c.PAN, secrets...)))
	}
	return nil, err
}

// check returns errGarbage unless the vault can do with an answer what it says.
func (got *IDVResult) check(mode Mode, pan card.PAN) error {
	if got == nil {
		return errGarbage
	}

	switch got.State {
	case IDVPending:
		if n := len(got.Reference); n < 1 || n > maxText || leak.Holds(got.Reference, hiding.Of(pan)) ||
			got.ChallengeURL != "" && (!isChallenge(got.ChallengeURL, mode) || leak.Holds(got.ChallengeURL, hiding.Of(pan))) {
			return errGarbage
		}
	case IDVPassed:
		a := got.Authentication
		if a == nil || !slices.Contains(authenticationMethods, a.Method) ||
			a.At.Before(firstAuthentication) || a.At.After(now().Add(time.Hour)) ||
			len(a.Status) > 1 || len(a.Status) == 1 && (a.Status[0] < 'A' || a.Status[0] > 'Z') ||
			a.ECI != "" && (len(a.ECI) != 2 || !rule.AllDigits([]byte(a.ECI))) {
			return errGarbage
		}

		if id, err := uuid.Parse(a.DSTransactionID); a.DSTransactionID != "" &&
			(err != nil || id.String() != a.DSTransactionID || leak.Holds(a.DSTransactionID, hiding.Of(pan))) {
			return errGarbage
		}
	case IDVNotNeeded, IDVFailed:
	default:
		return errGarbage
	}
	return nil
}

// isChallenge reports whether a page of this address may be shown to a shopper.
func isChallenge(text string, mode Mode) bool {
	if len(text) > 2048 || strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return false
	}
	u, err := url.Parse(text)
	if err != nil || u.Hostname() == "" || u.User != nil {
		return false
	}
	addr, _ := netip.ParseAddr(u.Hostname())
	return u.Scheme == "https" ||
		u.Scheme == "http" && mode == Sandbox && (u.Hostname() == "localhost" || addr.IsLoopback())
}
