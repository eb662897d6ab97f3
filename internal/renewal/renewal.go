// Package renewal submits the cards of a vault to an account updater, round by round, and
// finds the token that an outcome is about. What an outcome does to a token is its user's.
//
//	Renewals      the work of one vault
//	 ├ round      the job that goes through all tokens, one at a time in all processes
//	 └ submission the cards that are submitted together, stored before the updater sees them
//
// A submission that was interrupted is made again, under the same idempotency key. Its record
// stays as long as outcomes may come.
package renewal

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/internal/jobs"
	"github.com/cardvault/cardvault/internal/leak"
	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/internal/plausible"
	"github.com/cardvault/cardvault/internal/rowkey"
	"github.com/cardvault/cardvault/internal/tlv"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/updater"
	"github.com/google/uuid"
)

const (
	submitTimeout = 30 * time.Second    // of a call of Submit
	longest       = 45 * time.Second    // of a step of a round
	stepTime      = 20 * time.Second    // after which a round looks for no more cards before it stores its place
	answersFor    = 90 * 24 * time.Hour // how long after a submission its outcomes are accepted
)

// A Source is what renewals ask of their vault.
type Source interface {
	// Card returns the card of a token's record, or nil if it is not submitted. The shown
	// part of the record is opened in place.
	Card(ctx context.Context, r *store.Record) (*Card, error)

	// Number returns the number of a token's record, whose card is c.
	Number(ctx context.Context, r *store.Record, c *Card) (card.PAN, error)

	// Merchant returns the primary merchant of an account.
	Merchant(ctx context.Context, account uuid.UUID) (uuid.UUID, error)

	// Apply applies an outcome that changes the token of a row, if its card is still c. It
	// returns Config.Late if it is not.
	Apply(ctx context.Context, account, row uuid.UUID, c Card, o *updater.Outcome) error
}

// Kinds are the kinds of records that renewals use.
type Kinds struct {
	Token, Account store.Kind // of others

	Round      store.Kind // one record in a vault
	Submission store.Kind
	OptOut     store.Kind // that a cardholder wants no updates of a card; child of its token, with the same id
}

// A Config says what Renewals work with. All fields except AllowNonLuhn are needed.
type Config struct {
	Ledger       *ledger.Ledger
	Log          *slog.Logger
	Kinds        Kinds
	Source       Source
	Provider     updater.Provider
	Period       time.Duration
	AllowNonLuhn bool

	// Pauses follow the failures of a submission, as Pace changes them, the last one also each
	// further failure until the next round should begin. Then its cards, and later ones of the
	// account, wait for their next turn.
	Pauses []time.Duration
	Pace   func(time.Duration) time.Duration

	Late error // returned by Apply for an outcome of a former card

	// Guard calls the updater and turns a panic into an error.
	Guard func(who string, f func() error) error
}

var (
	opSubmit = ledger.Adds("card.submit").For("updater")
	opOptOut = ledger.Adds("card.opt_out")
)

// Renewals keep the cards of a vault up to date. Outcomes may come concurrently.
type Renewals struct {
	Config
	name   string        // of the updater
	jobs   *jobs.Engine  // set by Attach
	turns  chan struct{} // holds one token for each outcome that is being applied
	counts [updater.NoMatch + 1]atomic.Uint64
	warned ledger.Seldom
}

// together bounds the outcomes that are applied at a time: callers come first.
const together = 8

// New returns the Renewals of a vault. Call Attach before anything else except Work.
func New(c Config) *Renewals {
	return &Renewals{Config: c, name: c.Provider.Info().Name, turns: make(chan struct{}, together)}
}

// Work returns the background work that submits cards. n may be nil.
func (n *Renewals) Work() []jobs.Kind {
	if n == nil {
		return nil
	}
	return []jobs.Kind{{Records: n.Kinds.Round, Workers: 1, Longest: longest, Do: n.step}}
}

// roundID is the id of the round.
var roundID = uuid.UUID{15: 1}

// Attach sets the engine that does the work of Work, and stores the first round of the updater
// in a vault, unless there is one. The round of another updater ends: all processes on a
// store need the same. n may be nil.
func (n *Renewals) Attach(ctx context.Context, e *jobs.Engine) error {
	if n == nil {
		return nil
	}
	n.jobs = e
	// A process that still has another updater may go on with its round meanwhile.
	_, err := ledger.Retry(ctx, func() (struct{}, error) { return struct{}{}, n.begin(ctx) })
	return err
}

// begin stores the first round of the updater, unless it has one. A round that cannot be read
// begins anew: cards are submitted twice then, and the vault opens.
func (n *Renewals) begin(ctx context.Context) error {
	var r *store.Record
	var damage error
	err := n.whole().View(ctx, func(tx store.ReadTx) (err error) {
		damage = nil
		if r, err = tx.Get(n.Kinds.Round, roundID); ledger.Unreadable(err) {
			damage = err
		}
		if damage != nil || errors.Is(err, store.ErrNotFound) {
			r, err = &store.Record{Kind: n.Kinds.Round, ID: roundID}, nil
		}
		return err
	})
	if err != nil {
		return err
	}

	if r.Version > 0 {
		var former *round
		plain, err := n.Ledger.OpenShown(ctx, r)
		if err == nil {
			former, err = decodeRound(plain)
		}
		switch {
		case ledger.Unreadable(err):
			damage = err
		case err != nil || former.updater == n.name:
			return err
		}
	}
	if damage != nil {
		n.Log.Error("the place in the round of the account updater cannot be read, and a new round begins", "updater", n.name, "error", damage)
	}

	r.Version++
	r.Due = ledger.Now()
	if err := n.Ledger.SealShown(r, (&round{updater: n.name}).encode()); err != nil {
		return err
	}
	err = n.whole().Update(ctx, ledger.Step, func(tx store.Tx) error {
		if damage != nil && r.Version == 1 {
			tx.Delete(r.Kind, r.ID) // it has a version that cannot be read
		}
		tx.Put(r)
		return nil
	})
	if err == nil {
		n.jobs.Due(r)
	}
	return err
}

func (n *Renewals) whole() ledger.Account { return n.Ledger.In(uuid.Nil) }

// step does a part of a round: it stores the next submission, or makes the pending one.
func (n *Renewals) step(ctx context.Context, j *jobs.Job) error {
	r, err := decodeRound(j.Plain)
	if err != nil {
		return n.Ledger.Named(j.Record, err)
	}
	if r.updater != n.name {
		n.Log.Warn("another process has another account updater", "updater", r.updater)
		return n.again(ctx, j, r, ledger.Now().Add(time.Minute))
	}
	if r.began.IsZero() {
		r.began = ledger.Now()
	}

	switch p, until := r.next(ledger.Now()); {
	case p == nil:
		return n.again(ctx, j, r, until)
	case p.pending != uuid.Nil:
		return n.submit(ctx, j, r, p)
	default:
		return n.collect(ctx, j, r, p, until)
	}
}

// again stores how far a round has come.
func (n *Renewals) again(ctx context.Context, j *jobs.Job, r *round, due time.Time) error {
	if now := ledger.Now(); due.Before(now) {
		due = now
	}
	j.Record.Due = due
	return n.jobs.Again(ctx, j.Record, r.encode())
}

// collect goes on until there are cards to submit. After the last account it waits until the
// first try is due.
func (n *Renewals) collect(ctx context.Context, j *jobs.Job, r *round, p *place, until time.Time) error {
	for enough := time.Now().Add(stepTime); time.Now().Before(enough); {
		select {
		case <-j.Ending:
			return n.again(ctx, j, r, time.Time{})
		default:
		}

		ended, err := n.next(ctx, r, p)
		switch {
		case err != nil:
			return err // after the lease it goes on from where it was
		case ended && len(r.waiting) > 0:
			return n.again(ctx, j, r, until)
		case ended:
			return n.end(ctx, j, r)
		case p != &r.at || p.pending != uuid.Nil:
			return n.again(ctx, j, r, time.Time{})
		}
	}
	return n.again(ctx, j, r, time.Time{})
}

func (n *Renewals) end(ctx context.Context, j *jobs.Job, r *round) error {
	level := slog.LevelInfo
	if r.cards == 0 { // like most rounds of a small vault
		level = slog.LevelDebug
	}
	n.Log.Log(ctx, level, "a round of the account updater has ended", "updater", n.name, "cards", r.cards)
	next, due := r.end(n.Period)
	return n.again(ctx, j, next, due)
}

// next looks at the next tokens of a place, and stores a submission of tokens that have their
// turn. It reports whether there are no more accounts.
func (n *Renewals) next(ctx context.Context, r *round, p *place) (ended bool, err error) {
	q := &store.Query{Kind: n.Kinds.Account, Min: p.account, Limit: 1}
	q.Classes.Add(ledger.Standing) // others have their turn once they are thawed
	accounts, err := n.whole().List(ctx, q)
	if accounts == nil {
		return false, err
	}
	switch {
	case p == &r.at && len(accounts.Records) == 0:
		return true, nil
	case p == &r.at:
		p.account = accounts.Records[0].ID
	case len(accounts.Records) == 0 || accounts.Records[0].ID != p.account:
		r.leave(p)
		return false, nil
	}
	rows := n.Ledger.In(n.whole().Mask(n.Kinds.Account, p.account))

	due, more, err := n.turn(ctx, rows, r, p)
	if err != nil {
		return false, err
	}
	s, err := n.choose(ctx, rows, due)
	if err != nil {
		return false, err
	}
	if len(s.cards) > 0 {
		p.pending, err = n.put(ctx, rows, s)
	} else if !more {
		r.leave(p)
	}
	return false, err
}

// turn returns the next tokens of an account whose turn it is, and whether there may be more.
func (n *Renewals) turn(ctx context.Context, rows ledger.Account, r *round, p *place) (due []*store.Record, more bool, err error) {
	list, err := rows.List(ctx, &store.Query{Kind: n.Kinds.Token, Account: rows.ID, Min: p.from, Live: ledger.Now(), Limit: updater.MaxCards})
	if list == nil {
		return nil, false, err
	}
	for _, token := range list.Records {
		made := rowkey.Time(token.ID)
		switch wait := r.wait(made, n.Period); {
		case wait < 0:
			return due, false, nil
		case wait > 0 && len(due) == 0:
			p.from = rowkey.First(made.Add(wait))
			return nil, true, nil
		case wait > 0:
			return due, true, nil
		}
		due = append(due, token)
		p.from = rowkey.Above(token.ID)
	}
	return due, len(due) == updater.MaxCards, nil
}

// choose returns a submission of the tokens that have a card to submit. Tokens that cannot be
// read keep no other from being submitted.
func (n *Renewals) choose(ctx context.Context, rows ledger.Account, tokens []*store.Record) (*submission, error) {
	optOuts := map[uuid.UUID]*store.Record{}
	err := rows.View(ctx, func(tx store.ReadTx) error {
		for _, token := range tokens {
			switch r, err := tx.Get(n.Kinds.OptOut, token.ID); {
			case err == nil:
				optOuts[token.ID] = r
			case ledger.Unreadable(err):
				optOuts[token.ID] = &store.Record{Kind: n.Kinds.OptOut, ID: token.ID, Account: rows.ID} // damaged when it is opened
			case !errors.Is(err, store.ErrNotFound):
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}

	s := &submission{updater: n.name}
	for _, token := range tokens {
		c, problem := n.card(ctx, token, optOuts[token.ID])
		switch {
		case ledger.Unreadable(problem):
			n.Log.Error("card cannot be submitted to the account updater", "token", rows.Mask(n.Kinds.Token, token.ID), "error", problem)
		case problem != nil:
			return nil, problem
		case c != nil:
			s.cards = append(s.cards, entry{token.ID, *c})
		}
	}
	return s, nil
}

// card returns the card of a token, or nil if it is not submitted.
func (n *Renewals) card(ctx context.Context, token, optOut *store.Record) (*Card, error) {
	if ledger.Foreign(token) || token.Version == 0 {
		return nil, ledger.ErrDamaged
	}
	c, err := n.Source.Card(ctx, token)
	if c == nil || err != nil || optOut == nil {
		return c, err
	}
	var edition uint64
	err = n.Ledger.ReadFields(ctx, optOut, func(f *tlv.Fields) { tlv.Uint(f, optOutEdition, &edition) })
	if err != nil || edition == c.Edition {
		return nil, err
	}
	return c, nil
}

// optOutEdition is the tag of the edition whose holder wants no updates.
const optOutEdition = 1

// put stores a submission before it is made, and returns its row key.
func (n *Renewals) put(ctx context.Context, rows ledger.Account, s *submission) (uuid.UUID, error) {
	row, err := n.Ledger.NewRow()
	if err != nil {
		return uuid.Nil, err
	}
	r := &store.Record{Kind: n.Kinds.Submission, ID: row, Account: rows.ID, Due: ledger.Now().Add(answersFor), Version: 1}
	if err := n.Ledger.SealShown(r, tlv.Encode(s.fields)); err != nil {
		return uuid.Nil, err
	}
	return row, rows.Update(ctx, ledger.Step, func(tx store.Tx) error {
		tx.Put(r)
		return nil
	})
}

// submission reads a submission.
func (n *Renewals) submission(ctx context.Context, row uuid.UUID) (ledger.Account, *submission, error) {
	var rec *store.Record
	err := n.Ledger.View(ctx, func(tx store.ReadTx) (err error) {
		rec, err = tx.Get(n.Kinds.Submission, row)
		return err
	})
	if err == nil && !ledger.Lives(rec, ledger.Now()) {
		err = ledger.ErrNotFound
	}
	if err != nil {
		return ledger.Account{}, nil, err
	}
	s := new(submission)
	err = n.Ledger.ReadFields(ctx, rec, s.fields)
	return n.Ledger.In(rec.Account), s, err
}

// submit makes the pending submission of a place. If it fails, the account waits while the
// round goes on with others. If it still fails when the next round should begin, the cards of
// the account wait for their next turn.
func (n *Renewals) submit(ctx context.Context, j *jobs.Job, r *round, p *place) error {
	made, err := n.make(ctx, p.pending)
	switch {
	case errors.Is(err, ledger.ErrClosed):
		return err
	case err == nil, errors.Is(err, ledger.ErrNotFound), ledger.Unreadable(err):
		if err != nil {
			n.Log.Error("cards are not submitted to the account updater until their next turn", "updater", n.name, "error", leak.Printable(err))
		}
		p.pending, p.tries = uuid.Nil, 0
		r.cards += uint64(made)
		return n.again(ctx, j, r, time.Time{})
	}

	p.tries++
	last := uint64(len(n.Pauses))
	if now := ledger.Now(); p.tries <= last || !r.late(now, n.Period) {
		n.Log.Warn("cards could not be submitted to the account updater", "updater", n.name, "tries", p.tries, "error", leak.Printable(err))
		r.pass(p, now.Add(n.Pace(n.Pauses[min(p.tries, last)-1])))
	} else {
		n.Log.Error("cards are not submitted to the account updater until their next turn", "updater", n.name, "error", leak.Printable(err))
		r.leave(p)
	}
	return n.again(ctx, j, r, time.Time{})
}

// make makes a submission and returns the number of cards.
func (n *Renewals) make(ctx context.Context, row uuid.UUID) (int, error) {
	rows, s, err := n.submission(ctx, row)
	if err != nil {
		return 0, err
	}
	request, tokens, err := n.request(ctx, rows, row, s)
	cards := slices.Clone(request.Cards)
	defer func() {
		for _, c := range cards {
			c.PAN.Wipe()
		}
	}()
	if err != nil || len(tokens) == 0 {
		return 0, err
	}

	err = n.Guard("account updater", func() error {
		ctx, cancel := context.WithTimeout(ctx, submitTimeout)
		defer cancel()
		return n.Provider.Submit(ctx, request)
	})
	for _, c := range cards {
		err = plausible.Withhold(err, c.PAN)
	}
	for _, token := range tokens {
		rows.Wrote(ctx, opSubmit, token, err)
	}
	return len(tokens), err
}

// request returns the request of a submission, and the ids of its tokens: all whose card is
// as it was when the submission was stored.
func (n *Renewals) request(ctx context.Context, rows ledger.Account, row uuid.UUID, s *submission) (r *updater.SubmitRequest, tokens []uuid.UUID, err error) {
	r = &updater.SubmitRequest{IdempotencyKey: n.whole().Mask(n.Kinds.Submission, row).String()}
	if r.Merchant, err = n.Source.Merchant(ctx, rows.ID); err != nil {
		return r, nil, err
	}

	for i := range s.cards {
		e := &s.cards[i]
		pan, err := n.number(ctx, rows, e)
		switch {
		case ledger.Unreadable(err), errors.Is(err, ledger.ErrNotFound), errors.Is(err, n.Late):
			continue
		case err != nil:
			return r, nil, err
		}
		r.Cards = append(r.Cards, updater.CardRef{Reference: n.reference(rows, row, s, e), Scheme: e.Scheme, PAN: pan, Expiry: e.Expiry})
		tokens = append(tokens, rows.Mask(n.Kinds.Token, e.row))
	}
	return r, tokens, nil
}

// number returns the number of a card that is submitted, or Config.Late if the token has another
// card by now, or none that is submitted.
func (n *Renewals) number(ctx context.Context, rows ledger.Account, e *entry) (pan card.PAN, err error) {
	token, err := rows.GetRow(ctx, n.Kinds.Token, e.row)
	if err != nil {
		return pan, err
	}
	switch c, err := n.Source.Card(ctx, token); {
	case err != nil:
		return pan, err
	case c == nil || *c != e.Card:
		return pan, n.Late
	}
	return n.Source.Number(ctx, token, &e.Card)
}
