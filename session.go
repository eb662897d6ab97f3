package cardvault

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/internal/enum"
	"github.com/cardvault/cardvault/internal/hiding"
	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/internal/replay"
	"github.com/cardvault/cardvault/internal/tlv"
	"github.com/cardvault/cardvault/invalid"
	"github.com/cardvault/cardvault/receive"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// SessionOptions are the optional parts of a token session.
type SessionOptions struct {
	// BypassIdentification skips identification and verification: the token has
	// IdentificationSkipped then. If it is false, [Options.IDV] decides whether the
	// cardholder is identified, and the token has IdentificationNone or
	// IdentificationChecked.
	BypassIdentification bool

	// TokenTTL is the time until the token expires, a second to [MaxTokenTTL]. 0: never. A
	// token that expires has no network token.
	TokenTTL time.Duration

	// BusinessKey and ImportProvider become the token's, under the rules of
	// [ImportOptions]. They are sealed in the session: the shopper neither sees nor changes
	// them.
	BusinessKey    string
	ImportProvider string

	IdempotencyKey string // see the package comment
}

// Check returns a FieldError for each rule that CreateSession would report, or nil.
func (o *SessionOptions) Check() error {
	if o == nil {
		return nil
	}
	return errors.Join(append(checkOrigin(o.BusinessKey, o.ImportProvider), checkTTL("TokenTTL", o.TokenTTL, MaxTokenTTL))...)
}

// A SessionID is the id of a session, and a credential: its holder can use the session
// until it ends. However it is printed, logged or encoded, nothing of it shows. The zero
// value names no session.
type SessionID struct{ hidden }

// NewSessionID returns the SessionID of an id that [SessionID.UUID] gave.
func NewSessionID(id uuid.UUID) SessionID { return SessionID{hiding.New(id[:])} }

// UUID returns the id itself, which nothing hides from then on. Give it to the page of the
// shop.
func (id SessionID) UUID() (u uuid.UUID) {
	copy(u[:], hiding.Of(id))
	return u
}

// A CreatedSession is the result of CreateSession, RefreshSession and ReplaceSession.
type CreatedSession struct {
	ID       SessionID
	Replayed bool // the session was made before: see the package comment
}

// CreateSession makes a session, in which one card becomes a token. opts may be nil. The
// session ends after [Options.SessionTTL].
//
// Errors: FieldErrors; ErrQuotaExceeded; ErrIdempotencyKeyReused; ErrNotFound for a handle
// on an account that does not exist.
func (v *Vault) CreateSession(ctx context.Context, opts *SessionOptions) (_ *CreatedSession, err error) {
	defer v.doing(ctx, "create session", &err)
	if err := opts.Check(); err != nil {
		return nil, err
	}
	if opts == nil {
		opts = new(SessionOptions)
	}

	s := session{bypass: opts.BypassIdentification, ttl: opts.TokenTTL.Truncate(time.Microsecond), businessKey: opts.BusinessKey, provider: opts.ImportProvider}
	call := replay.Request{Operation: opCreateSession, Key: opts.IdempotencyKey, Body: s.encode}
	return once(ctx, v, call, repeatedSession, func(c *replay.Call) (*CreatedSession, error) {
		if err := v.rows.Exists(ctx); err != nil {
			return nil, err
		}
		return v.newSession(ctx, opCreateSession, &s, c)
	})
}

// newSession stores a session under a new id, and that as the result of c.
func (v *Vault) newSession(ctx context.Context, op ledger.Operation, s *session, c *replay.Call) (*CreatedSession, error) {
	id := uuid.New() // no row key: a credential has no structure
	row := v.sessionRow(id)
	r := &store.Record{
		Kind:    kindSession,
		ID:      row,
		Lookup:  [][]byte{row[:]}, // shows that there was a session, if its record is lost
		Account: v.rows.ID,
		Due:     now().Add(v.opts.SessionTTL),
		Version: 1,
	}
	if err := (&visit{vault: v, session: s}).seal(r); err != nil {
		return nil, err
	}

	// The answer under the idempotency key is the credential itself.
	if c != nil {
		c.KeepUntil(r.Due) // a credential is not kept longer than it is one
		if err := c.Seal(id[:], s.of()); err != nil {
			return nil, err
		}
	}

	// Readers of the log must not be able to use the session.
	err := v.withinQuota(ctx, op, quotaOpenSessions, kindSession, func(room func(store.Tx) error) error {
		return v.rows.Write(ctx, op, uuid.Nil, func(tx store.Tx) error {
			if of := s.of(); of != uuid.Nil {
				if _, err := v.rows.Find(tx, kindToken, of); err != nil {
					return err
				}
			}
			if err := room(tx); err != nil {
				return err
			}
			tx.Put(r)
			return c.Put(tx)
		})
	})
	return &CreatedSession{ID: NewSessionID(id)}, err
}

// repeatedSession returns the session of an answer that was kept.
func repeatedSession(answer []byte) (*CreatedSession, error) {
	id, err := replay.AnsweredID(answer)
	return &CreatedSession{NewSessionID(id), true}, err
}

// A visit is a session as it was read.
type visit struct {
	vault  *Vault // a handle on the account of the session
	id     SessionID
	record *store.Record // with its columns as they are stored
	*session
}

// readSession returns a session: of any account, for a handle on none.
func (v *Vault) readSession(ctx context.Context, id SessionID) (*visit, error) {
	if v.ledger.Closed() {
		return nil, ErrClosed
	}

	var r *store.Record
	row := v.sessionRow(id.UUID())
	err := v.rows.View(ctx, func(tx store.ReadTx) (err error) {
		r, err = tx.Get(kindSession, row)
		if errors.Is(err, store.ErrNotFound) && !ledger.Unreadable(err) {
			if _, damaged := tx.Lookup(kindSession, row[:], 1); damaged != nil {
				err = damaged
			}
		}
		if err != nil {
			return err
		}
		return v.In(r.Account).rows.Belongs(tx, r)
	})
	if err == nil && (v.rows.ID != uuid.Nil && v.rows.ID != r.Account || !ledger.Lives(r, now())) {
		err = ErrNotFound
	}
	if err != nil {
		return nil, err
	}

	plain, err := v.rows.OpenShown(ctx, r)
	if err != nil {
		return nil, err
	}

	s, err := decodeSession(plain)
	if err != nil {
		return nil, v.rows.Named(r, err)
	}
	read := &visit{v.In(r.Account), id, r, s}
	if err := read.vault.rows.Usable(ctx); errors.Is(err, ErrAccountFrozen) {
		return nil, ErrNotFound // a shopper learns nothing of the account
	} else if err != nil {
		return nil, err
	}
	return read, read.lives(ctx)
}

// lives returns ErrNotFound for a session that has ended with its token or, if it is for the
// security code of a card, with that card. It is in the list of the account, so that it counts
// there, and no child of the token.
func (s *visit) lives(ctx context.Context) error {
	switch of := s.of(); {
	case of == uuid.Nil:
		return nil
	case s.refresh == uuid.Nil || s.finished():
		_, err := s.vault.rows.GetRow(ctx, kindToken, of)
		return err
	}
	t, err := tokenAt(ctx, s.vault, s.refresh)
	if err == nil && t.edition != s.edition {
		err = ErrNotFound
	}
	return err
}

// openSession is readSession for one of this account that is not finished.
func (v *Vault) openSession(ctx context.Context, id SessionID) (*visit, error) {
	if v.rows.ID == uuid.Nil {
		return nil, ErrNotFound
	}
	s, err := v.readSession(ctx, id)
	if err == nil && s.finished() {
		err = ErrSessionCompleted
	}
	return s, err
}

// sessionRow returns the row key of a session: a keyed hash, so that readers of the store
// cannot use the session.
func (v *Vault) sessionRow(id uuid.UUID) uuid.UUID {
	return uuid.UUID(v.rows.Box.Stable(uuid.Nil, "session", id[:]))
}

// A Session is the public state of a session, as the holder of its id sees it.
type Session struct {
	State SessionState
	Kind  SessionKind

	// Key is the encryption key while State is SessionOpen, else nil.
	Key *SessionKey

	// MaskedAccountNumber and Scheme describe the card whose code is entered again, or that is
	// replaced, while State is SessionOpen.
	MaskedAccountNumber string
	Scheme              card.Scheme

	TokenID uuid.UUID // of SessionSucceeded

	// ReasonCode is why the card was refused, "" if none was: of SessionFailed, and
	// of SessionOpen from CompleteSession.
	ReasonCode Refusal

	// ChallengeURL is the page on which the shopper proves who they are, of
	// SessionIdentifying: show it in a frame, and read the session again. If "", just read it
	// again.
	ChallengeURL string
}

// A SessionKind says what is entered in a session. It is the action by which REST completes
// the session.
type SessionKind string

const (
	SessionTokenizes SessionKind = "tokenize_card"         // a card, which becomes a token
	SessionRefreshes SessionKind = "refresh_security_code" // the security code of a token's card
	SessionReplaces  SessionKind = "replace_card"          // another card for a token
)

// A SessionKey is the public key under which a browser encrypts its input for a session:
// RSA of 2048 bits with the exponent 65537, for RSA-OAEP-256.
type SessionKey struct {
	ID string // of the key, for the header kid
	N  []byte // modulus, big-endian
}

// A Refusal says why a session has refused a card.
type Refusal string

const (
	RefusedAccountNumber  Refusal = "invalid_account_number"
	RefusedExpiryDate     Refusal = "invalid_expiry_date"
	RefusedExpired        Refusal = "card_expired"
	RefusedSecurityCode   Refusal = "invalid_security_code"
	RefusedScheme         Refusal = "unsupported_scheme"
	RefusedIdentification Refusal = "identification_failed"
	RefusedAttempts       Refusal = "too_many_attempts" // the last of five cards
)

// A SessionState says how far a session is.
type SessionState uint8

const (
	SessionOpen        SessionState = iota + 1 // waits for a card or code
	SessionIdentifying                         // has a card, and waits for the identification of its holder
	SessionSucceeded                           // has served its purpose; final
	SessionFailed                              // too many cards were refused, or the cardholder was not identified; final
)

// String returns "open", "identifying", "succeeded" or "failed".
func (s SessionState) String() string { return sessionStates.Of(uint8(s)) }

var sessionStates = enum.Names{SessionOpen: "open", SessionIdentifying: "identifying", SessionSucceeded: "succeeded", SessionFailed: "failed"}

// MarshalText returns the name, nothing for zero, and an error for a number without a name.
func (s SessionState) MarshalText() ([]byte, error) { return enum.Text(s, SessionState.String) }

// UnmarshalText reads what MarshalText writes.
func (s *SessionState) UnmarshalText(text []byte) error {
	return enum.Read(text, s, SessionState.String)
}

// Session returns a session, by an id that is its credential: a handle on no account,
// In(uuid.Nil), finds the sessions of all accounts. It can be read until it lapses, even
// when it is finished. Reading a session in state SessionIdentifying asks the idv.Provider,
// once a second at most, and completes the session, even after ctx has ended. A session
// that is never read loses its card when it expires.
//
// The error is ErrNotFound for a session that is unknown, expired, or of another account,
// or for a token that was deleted.
func (v *Vault) Session(ctx context.Context, id SessionID) (_ *Session, err error) {
	defer v.doing(ctx, "get session", &err)
	return ledger.Retry(ctx, func() (*Session, error) {
		s, err := v.readSession(ctx, id)
		if err == nil {
			err = s.advance(ctx)
		}
		if err == nil {
			return s.describe(ctx)
		}
		return nil, err
	})
}

// A SessionStatus is the result of [Vault.SessionStatus].
type SessionStatus struct {
	Account  uuid.UUID
	State    SessionState
	Refusals int // cards that were refused
}

// SessionStatus returns how far a session is. Unlike [Vault.Session] it asks no
// idv.Provider and completes nothing, and costs one read. The error is ErrNotFound for a
// session that is unknown, ended, or of another account.
func (v *Vault) SessionStatus(ctx context.Context, id SessionID) (_ *SessionStatus, err error) {
	defer v.doing(ctx, "get session status", &err)
	s, err := v.readSession(ctx, id)
	if err != nil {
		return nil, err
	}
	return &SessionStatus{s.record.Account, s.state(), int(s.refused)}, nil
}

func (s *visit) describe(ctx context.Context) (*Session, error) {
	d := &Session{State: s.state(), Kind: s.kind(), ReasonCode: s.failed}

	switch d.State {
	case SessionSucceeded:
		d.TokenID = s.vault.rows.Mask(kindToken, s.token)
		return d, nil
	case SessionFailed:
		return d, nil
	case SessionIdentifying:
		d.ChallengeURL = s.idv.challenge
		return d, nil
	}

	if of := s.of(); of != uuid.Nil {
		t, err := tokenAt(ctx, s.vault, of)
		if err != nil {
			return nil, err
		}
		d.MaskedAccountNumber, d.Scheme = t.MaskedAccountNumber, t.Scheme
	}

	k, err := s.vault.payloads.Current(ctx)
	if err != nil {
		return nil, err
	}
	d.Key = &SessionKey{ID: k.ID, N: k.N()}
	return d, nil
}

// CompleteSession takes the payload that a browser has encrypted under the key of an open
// session, as a compact JWE, and returns the session in its new state. A refused card
// leaves it open, with ReasonCode; the fifth fails it. Nothing of a refused card is kept.
// If several calls come at once, one completes the session. While the holder of a card is
// identified other payloads are not opened: the session is returned as it is.
//
// Errors: a FieldError of result.enc_payload for a payload that cannot be opened, was used
// in another session, or lacks a claim; ErrNotFound; ErrSessionCompleted;
// ErrTooManyNumbers and ErrCardReplaced, which leave the session open and are not counted as a
// refused card; for a refreshed security code the errors of RefreshSecurityCode.
func (v *Vault) CompleteSession(ctx context.Context, id SessionID, payload []byte) (_ *Session, err error) {
	defer v.doing(ctx, "complete session", &err)
	return ledger.Retry(ctx, func() (*Session, error) {
		s, err := v.readSession(ctx, id)
		if err != nil {
			return nil, err
		}

		switch {
		case s.finished():
			return nil, ErrSessionCompleted
		case s.idv != nil:
			return s.describe(ctx)
		}

		claims, used, err := s.vault.openPayload(ctx, id.UUID(), s.record.ID, payload)
		if err != nil {
			return nil, err
		}

		d, err := s.complete(ctx, claims, used)
		clear(claims)
		return d, err
	})
}

// complete does with a session what the claims of a payload ask for. It returns
// store.ErrConflict if the session, or the use of the payload, has changed.
func (s *visit) complete(ctx context.Context, claims []byte, used []*store.Record) (*Session, error) {
	refresh := s.refresh != uuid.Nil
	c, err := readClaims(claims, refresh)
	defer c.Wipe()
	if err != nil {
		return nil, s.vault.refusePayload(ctx, used, err)
	}

	reason := s.vault.opts.refuses(c, refresh)
	if reason == "" {
		if refresh {
			_, err = s.refreshCode(ctx, c.SecurityCode, used...)
		} else {
			_, err = s.enter(ctx, c, used...)
		}
		switch {
		case s.failed != "": // the card was refused after the identification of its holder
			return s.describe(ctx)
		case errors.Is(err, errScheme):
			reason = RefusedScheme
		case errors.Is(err, ErrCardDataStale), errors.Is(err, ErrTokenInvalidated): // the card that is replaced
			reason = RefusedAccountNumber
		case errors.Is(err, ErrTooManyNumbers):
			return nil, s.vault.refusePayload(ctx, used, err)
		case errors.Is(err, ErrIdentificationPending), errors.Is(err, ErrIdentificationFailed):
			return s.describe(ctx)
		case err != nil:
			return nil, err
		default:
			return s.describe(ctx)
		}
	}

	if s.refused++; s.refused >= maxRefusals {
		s.failed, reason = RefusedAttempts, RefusedAttempts
	}

	// Before the card is counted: a counted card has an answer.
	d, err := s.describe(ctx)
	if err != nil {
		return nil, err
	}
	d.ReasonCode = reason
	if err := s.put(ctx, opRefuseCard, used...); err != nil {
		return nil, err
	}
	return d, nil
}

// Tokenize stores a card in a session and returns its token. A session makes one token, or
// gives one token another card, whatever races for it.
//
// With [Options.IDV] the cardholder is identified first, unless the session was made
// to bypass that. If it takes longer than one call of the provider, Tokenize returns
// ErrIdentificationPending: the session has the card, and goes on whenever
// [Vault.Session] is called.
//
// Errors: FieldErrors, with the code card_expired for a card that has expired; ErrNotFound
// for a session that is unknown, ended, or of another account; ErrSessionCompleted;
// ErrSessionKind; ErrIdentificationPending; ErrTooManyNumbers and, of a session of
// ReplaceSession, those of Replace, which leave the session open; ErrIdentificationFailed,
// which ends it, as do errors of Replace after the identification.
func (v *Vault) Tokenize(ctx context.Context, id SessionID, c Card) (_ *Token, err error) {
	defer v.doing(ctx, "tokenize card", &err)
	return ledger.Retry(ctx, func() (*Token, error) {
		s, err := v.openSession(ctx, id)
		if err != nil {
			return nil, err
		}

		switch {
		case s.refresh != uuid.Nil:
			return nil, ErrSessionKind
		case s.idv != nil:
			return nil, ErrIdentificationPending
		}

		if err := c.checkEntered(v.opts.AllowNonLuhn); err != nil {
			return nil, err
		}
		return s.enter(ctx, c)
	})
}

// errScheme is returned for a card whose scheme Options.Schemes does not have.
var errScheme = &FieldError{"PAN", invalid.Enum, "must be of an accepted scheme"}

// tokenize completes a session with a card that was checked: it makes t its token,
// and stores also with it. The security code is kept for the usual time, or until the
// time given. It returns store.ErrConflict if the session has changed: completed, or gone.
func (s *visit) tokenize(ctx context.Context, c Card, t *Token, until time.Time, also ...*store.Record) (*Token, error) {
	if s.replace != uuid.Nil {
		return s.replaceCard(ctx, c, t, until, also)
	}
	for {
		made, next := *t, *s.record
		made.BusinessKey, made.ImportProvider, made.session = s.businessKey, s.provider, s.id
		records, event, err := s.vault.newToken(ctx, c, &made, s.ttl, receive.ReasonTokenized)
		if err != nil {
			return nil, err
		}

		s.token = records[0].ID
		next.Version++
		if err := s.seal(&next); err != nil {
			return nil, err
		}

		err = s.vault.writeToken(ctx, opTokenize, &made, c.SecurityCode, until, func(tx store.Tx) error {
			if err := made.printed(tx); err != nil {
				return err
			}
			if !ledger.Lives(&next, now()) {
				return ErrNotFound
			}
			tx.Put(&next)
			for _, r := range records {
				tx.Put(r)
			}
			for _, r := range also {
				tx.Put(r)
			}
			return event.Put(tx)
		})
		if errors.Is(err, errStale) || ledger.Rehash(err) {
			continue
		}
		if err != nil {
			return nil, err
		}

		s.vault.jobs.Due(records...)
		event.Written()
		return &made, nil
	}
}

// A session is the sealed part of a session's record.
type session struct {
	bypass  bool
	ttl     time.Duration // of the token; 0: for ever
	refresh uuid.UUID     // row key of the token whose security code is entered anew, if it is for that
	edition uint64        // of the card number of that token
	replace uuid.UUID     // row key of the token whose card is replaced, if it is for that
	token   uuid.UUID     // row key of the token that was made, refreshed, or has another card
	refused uint64        // cards
	failed  Refusal       // why it has failed for good; "" if it has not

	businessKey, provider string // of the token

	idv *identification // of the cardholder whose card it has; nil if it has none
}

func (s *session) state() SessionState {
	switch {
	case s.token != uuid.Nil:
		return SessionSucceeded
	case s.failed != "":
		return SessionFailed
	case s.idv != nil:
		return SessionIdentifying
	}
	return SessionOpen
}

// of returns the row key of the token that the session changes, zero if it makes one.
func (s *session) of() uuid.UUID { return cmp.Or(s.refresh, s.replace) }

func (s *session) kind() SessionKind {
	switch {
	case s.refresh != uuid.Nil:
		return SessionRefreshes
	case s.replace != uuid.Nil:
		return SessionReplaces
	}
	return SessionTokenizes
}

func (s *session) finished() bool { return s.token != uuid.Nil || s.failed != "" }

// sessionOpen is the class of the sessions that count: the unfinished ones.
const sessionOpen = 1

// seal sets the columns of r that follow from s.
func (s *visit) seal(r *store.Record) error {
	r.Class = sessionOpen
	if s.finished() {
		r.Class = 0
	}
	return s.vault.rows.SealShown(r, s.encode())
}

const (
	sessionBypass = iota + 1
	sessionTTL
	sessionToken
	sessionRefresh
	sessionRefused
	sessionFailed
	sessionIDVKey
	sessionIDVScheme
	sessionIDVSince
	sessionIDVNext
	sessionIDVReference
	sessionIDVChallenge
	sessionBusinessKey
	sessionProvider
	sessionReplace
	sessionEdition
)

func (s *session) fields(f *tlv.Fields) {
	f.Bool(sessionBypass, &s.bypass)
	tlv.Uint(f, sessionTTL, &s.ttl)
	tlv.ID(f, sessionToken, &s.token)
	tlv.ID(f, sessionRefresh, &s.refresh)
	tlv.Uint(f, sessionEdition, &s.edition)
	tlv.ID(f, sessionReplace, &s.replace)
	tlv.Uint(f, sessionRefused, &s.refused)
	tlv.Text(f, sessionFailed, &s.failed)
	tlv.Text(f, sessionBusinessKey, &s.businessKey)
	tlv.Text(f, sessionProvider, &s.provider)

	if f.Has(sessionIDVKey, s.idv != nil) {
		if s.idv == nil {
			s.idv = new(identification)
		}
		f.Array(sessionIDVKey, s.idv.key[:])
		tlv.Uint(f, sessionIDVScheme, &s.idv.scheme)
		f.Time(sessionIDVSince, &s.idv.since)
		f.Time(sessionIDVNext, &s.idv.next)
		tlv.Text(f, sessionIDVReference, &s.idv.reference)
		tlv.Text(f, sessionIDVChallenge, &s.idv.challenge)
	}
}

func (s *session) encode() []byte { return tlv.Encode(s.fields) }

func decodeSession(plain []byte) (*session, error) {
	s := new(session)
	return s, ledger.Decode(plain, s.fields)
}
