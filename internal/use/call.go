package use

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/internal/replay"
	"github.com/cardvault/cardvault/internal/tlv"
	"github.com/cardvault/cardvault/receive"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// MaxAnswer bounds the answers that are kept under a key, in bytes: a record holds one.
const MaxAnswer = 56 << 10

// patience bounds the work after a call: erasing the security code and keeping the result.
// It also bounds the work of the store for a credential.
const patience = 5 * time.Second

// slack is added to the time in which a call is in progress: for the store before and after
// it, and for clocks that differ between processes.
const slack = 2*patience + 5*time.Second

var (
	// ErrNoCode is returned for a call that needs a security code which is not kept.
	ErrNoCode = errors.New("cardvault: security code of the token is not kept")

	// ErrUnknown is returned for a repetition of a call whose process has ended without its
	// outcome. The call may have been made, and is never made again.
	ErrUnknown = replay.ErrUnknown

	errTooLong = errors.New("cardvault: answer is too long to be kept")
	errNothing = errors.New("cardvault: call returned neither an answer nor an error")
)

// A Call is a call of another system with the card of a token. It is made once at most
// under its key.
type Call struct {
	// Purpose names the use, such as "forward:" and the name of a destination.
	Purpose string

	// Admit is called first, with the account of the call. An error of it ends the call
	// before a key or a token is looked up.
	Admit func(account uuid.UUID) error

	Number bool // the card number is needed, which must not be stale
	Code   bool // the security code is needed

	// Key is the idempotency key, "" for none. Request returns what must be the same in a
	// repetition, besides the token.
	Key     string
	Request func() []byte

	// Timeout bounds Send.
	Timeout time.Duration

	// Send makes the call, once. Under a key its context does not end when the caller
	// leaves: a repetition needs the answer. c has the number and the code if the call needs
	// them. p is nil unless the call needs a credential. Both are wiped when Send has returned.
	//
	// Without a Sent, nothing has reached the other system: the call can be repeated under
	// the key. Any Sent is the result of the call, and is kept, also with an error.
	Send func(ctx context.Context, c *card.Used, p *receive.Credential) (*Sent, error)
}

// A Sent is the result of a call.
type Sent struct {
	// Answer returns the answer as it is kept under the key, of at most MaxAnswer bytes. It
	// is behind a function, which shows nothing.
	Answer func() []byte

	Consume  bool   // the security code has served: it is erased
	Detail   string // for the report, such as the status of an answer
	Replayed bool   // an earlier call under the key received the answer
}

// A Source connects a call with a vault and one of its tokens.
type Source struct {
	Calls     *replay.Calls
	Rows      ledger.Account
	Operation ledger.Operation
	Token     uuid.UUID
	Kind      store.Kind // of tokens
	Log       *slog.Logger

	// Card opens the card of the token, with number and code if they are needed.
	Card func(ctx context.Context, number, code bool) (*card.Used, error)

	// Credential asks another system for a credential of the token, within Wait. Nil if the
	// call asks for none.
	Credential func(context.Context) (*receive.Credential, error)
	Wait       time.Duration
	Check      func() error // checks the request for a credential, before the call; may be nil
}

// Make makes the call, or returns the result of the call that it repeats, and reports it.
//
// Errors: any of Admit, of the functions of the Source, of Send and of replay.Once;
// ErrUnknown; ErrNoCode.
func (c *Call) Make(ctx context.Context, s Source) (sent *Sent, err error) {
	op := s.Operation.For(c.Purpose)
	err = report(ctx, s.Rows, &op, s.Token, func() (err error) {
		if s.Check != nil {
			if err := s.Check(); err != nil {
				return err
			}
		}
		if err := c.Admit(s.Rows.ID); err != nil {
			return err
		}

		// The key is unique for all tokens of the account: the request names the token.
		request := func() []byte { return slices.Concat(s.Token[:], c.Request()) }
		r := replay.Request{Operation: s.Operation, Key: c.Key, Body: request}
		detailed := func(sent *Sent, err error) (*Sent, error) {
			if sent != nil {
				op.Detail = sent.Detail
			}
			return sent, err
		}
		again := func(kept []byte) (*Sent, error) { return detailed(repeated(kept)) }
		sent, err = replay.Once(ctx, s.Calls, s.Rows, r, again, func(under *replay.Call) (*Sent, error) {
			return detailed(c.make(ctx, s, under)) // of an error too, with which Once returns no Sent
		})
		return err
	})
	return sent, err
}

// repeated returns the result of an earlier call.
func repeated(kept []byte) (*Sent, error) {
	var answer []byte
	r := tlv.Read(kept)
	for r.Next() {
		if r.Tag == tagAnswer {
			answer = r.Value
		}
	}
	return &Sent{Answer: func() []byte { return answer }, Detail: "repetition", Replayed: true}, ledger.ReadError(&r)
}

// tagAnswer is the tag of the answer in a kept result, which is padded.
const tagAnswer = 1

// make makes the call under a key, or without one, which is nil.
func (c *Call) make(ctx context.Context, s Source, under *replay.Call) (*Sent, error) {
	used, err := s.Card(ctx, c.Number, c.Code)
	if err != nil {
		return nil, err
	}
	defer takeBack(used)
	if c.Code && used.SecurityCode.IsZero() {
		return nil, ErrNoCode
	}

	if err := under.ClaimOnce(ctx, ledger.Now().Add(c.Timeout+s.Wait+slack)); err != nil {
		return nil, err
	}
	consume := used.Consume // Send may wipe the card
	sent, err := c.send(ctx, s, under, used)
	if sent == nil {
		under.Abandon(ctx)
		return nil, last(err)
	}

	after, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	s.settle(after, under, consume, sent)
	return sent, last(err)
}

// send calls Send with the credential that the call asks for.
func (c *Call) send(ctx context.Context, s Source, under *replay.Call, used *card.Used) (*Sent, error) {
	if under != nil {
		ctx = context.WithoutCancel(ctx)
	}
	var credential *receive.Credential
	if s.Credential != nil {
		var err error
		if credential, err = s.credential(ctx); err != nil {
			return nil, err
		}
		defer takeBack(credential)
	}

	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	sent, err := c.Send(ctx, used, credential)
	if sent == nil && err == nil {
		err = errNothing
	}
	return sent, mark(err)
}

// credential calls Credential with a deadline of its own: without the caller's the store could
// take longer than the claim lasts.
func (s *Source) credential(ctx context.Context) (*receive.Credential, error) {
	ctx, cancel := context.WithTimeout(ctx, s.Wait+patience)
	defer cancel()
	return s.Credential(ctx)
}

// last returns an error after which the call is not made again.
func last(err error) error {
	if errors.Is(err, store.ErrConflict) || errors.Is(err, ledger.ErrAgain) {
		return fmt.Errorf("%w: %v", ledger.ErrUnavailable, err)
	}
	return err
}

// settle erases the security code after a call and keeps the result. It logs failures: the
// result itself counts more.
func (s *Source) settle(ctx context.Context, under *replay.Call, consume func(context.Context) error, sent *Sent) {
	if sent.Consume {
		if err := consume(ctx); err != nil {
			s.Log.Warn("security code has served, and could not be erased", "token", s.Token, "error", err)
		}
	}
	if err := s.keep(ctx, under, sent); err != nil {
		s.Log.Warn("result of a call could not be kept: a repetition will not have it", "token", s.Token, "error", err)
	}
}

// keep stores the result under the key. If the token was deleted meanwhile, nothing of the
// answer is kept, and a repetition is not found.
func (s *Source) keep(ctx context.Context, under *replay.Call, sent *Sent) error {
	if under == nil {
		return nil
	}
	answer := sent.Answer()
	if len(answer) > MaxAnswer {
		return errTooLong
	}
	row := s.Rows.Unmask(s.Kind, s.Token)
	if err := under.Seal(tlv.Append(nil, tagAnswer, answer), row); err != nil {
		return err
	}

	return s.Rows.Update(ctx, s.Operation, func(tx store.Tx) error {
		switch _, err := s.Rows.Find(tx, s.Kind, row); {
		case errors.Is(err, ledger.ErrNotFound), errors.Is(err, store.ErrNotFound):
			return under.PutKey(tx)
		case err != nil:
			return err
		}
		return under.Put(tx)
	})
}
