package renewal

import (
	"encoding/binary"
	"slices"
	"time"

	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/internal/rowkey"
	"github.com/cardvault/cardvault/internal/tlv"
	"github.com/google/uuid"
)

// roundsEach is the number of rounds in a period.
const roundsEach = 30

// A round goes through the tokens of all accounts, and submits the tokens that have their turn. A
// token's turn comes when it is made, and a period later each time. So no token has a due
// time of its own, imports write nothing more, and submissions spread over the period.
type round struct {
	updater string    // name of the updater; another one begins anew
	last    time.Time // when the former round began; zero: all tokens have their turn
	began   time.Time // zero: it has not begun

	at      place
	waiting []place // accounts whose submission has failed, and which wait for the next try
	cards   uint64  // that were submitted
}

// A place is where a round is in the tokens of an account.
type place struct {
	account uuid.UUID // row key
	from    uuid.UUID // row key of the token to go on from
	pending uuid.UUID // row key of the next submission, zero without one
	tries   uint64    // failures of that
	due     time.Time // of the next try
}

// mostWaiting bounds the accounts that wait. If so many do, the updater is down, and the round
// goes no further.
const mostWaiting = 8

const (
	roundUpdater = iota + 1
	roundLast
	roundBegan
	roundAccount
	roundFrom
	roundPending
	roundTries
	roundCards

	waitingAccount
	waitingFrom
	waitingPending
	waitingTries
	waitingDue // ends one
)

func (r *round) fields(f *tlv.Fields) {
	tlv.Text(f, roundUpdater, &r.updater)
	f.Time(roundLast, &r.last)
	f.Time(roundBegan, &r.began)
	r.at.fields(f, roundAccount)
	tlv.Uint(f, roundCards, &r.cards)
	tlv.Items(f, waitingAccount, waitingDue, &r.waiting, func(p *place, f *tlv.Fields) {
		p.fields(f, waitingAccount)
		f.Time(waitingDue, &p.due)
	})
}

// fields are the fields of a place, from a tag on.
func (p *place) fields(f *tlv.Fields, first byte) {
	f.Array(first, p.account[:])
	f.Array(first+1, p.from[:])
	f.Array(first+2, p.pending[:])
	tlv.Uint(f, first+3, &p.tries)
}

func (r *round) encode() []byte { return tlv.Encode(r.fields) }

func decodeRound(plain []byte) (*round, error) {
	r := new(round)
	return r, ledger.Decode(plain, r.fields)
}

// margin is the age of tokens that a round looks for. A younger one may not be stored yet, or
// come from a process whose clock is behind. The first round looks for all.
const margin = time.Minute

// wait returns the time from when a token was made to when the next one was made whose turn
// it is in this round: 0 if it is this token's. The result is negative if no later token has
// its turn.
func (r *round) wait(made time.Time, period time.Duration) time.Duration {
	end, window := r.began, period
	if !r.last.IsZero() {
		end = end.Add(-margin)
		window = min(period, r.began.Sub(r.last))
	}

	age := end.Sub(made)
	if age < 0 {
		return -1
	}
	if over := age%period - window; over >= 0 {
		return over + time.Microsecond
	}
	return 0
}

// next returns the place where the round goes on: an account that has waited, or the next
// account. It is nil if the round waits, until a time.
func (r *round) next(now time.Time) (p *place, until time.Time) {
	if len(r.waiting) > 0 {
		p = &r.waiting[0]
		for i := range r.waiting {
			if r.waiting[i].due.Before(p.due) {
				p = &r.waiting[i]
			}
		}
		if !p.due.After(now) {
			return p, p.due
		}
		until = p.due
	}
	if len(r.waiting) < mostWaiting {
		return &r.at, until
	}
	return nil, until
}

// late reports whether the round takes longer than until the next one should begin.
func (r *round) late(now time.Time, period time.Duration) bool {
	return now.Sub(r.began) >= period/roundsEach
}

// pass goes on with the next account: the one of p waits until due.
func (r *round) pass(p *place, due time.Time) {
	p.due = due
	if p == &r.at {
		r.waiting = append(r.waiting, *p)
		r.at = place{account: rowkey.Above(p.account)}
	}
}

// leave ends the work for an account in this round.
func (r *round) leave(p *place) {
	if p == &r.at {
		r.at = place{account: rowkey.Above(p.account)}
		return
	}
	r.waiting = slices.DeleteFunc(r.waiting, func(w place) bool { return w.account == p.account })
}

// end returns the state between this round and the next one, and when that begins.
func (r *round) end(period time.Duration) (next *round, due time.Time) {
	return &round{updater: r.updater, last: r.began}, r.began.Add(period / roundsEach)
}

// A submission holds the cards that are submitted together.
type submission struct {
	updater string
	cards   []entry
}

// An entry is a submitted card.
type entry struct {
	row uuid.UUID // of its token
	Card
}

// A Card is the part of a token that decides what is submitted.
type Card struct {
	Edition uint64 // of the number: another number of the token has another edition
	Scheme  card.Scheme
	Expiry  card.Expiry
}

const (
	submissionUpdater = iota + 1
	submissionRow
	submissionEdition
	submissionScheme
	submissionMonth
	submissionYear // ends one entry
)

func (s *submission) fields(f *tlv.Fields) {
	tlv.Text(f, submissionUpdater, &s.updater)
	tlv.Items(f, submissionRow, submissionYear, &s.cards, func(e *entry, f *tlv.Fields) {
		f.Array(submissionRow, e.row[:])
		tlv.Uint(f, submissionEdition, &e.Edition)
		tlv.Uint(f, submissionScheme, &e.Scheme)
		tlv.Uint(f, submissionMonth, &e.Expiry.Month)
		tlv.Uint(f, submissionYear, &e.Expiry.Year)
	})
}

// bound returns the bytes that bind the reference of an entry, besides its account.
func (s *submission) bound(of uuid.UUID, e *entry) []byte {
	b := append(of[:], e.row[:]...)
	b = binary.BigEndian.AppendUint64(b, e.Edition)
	return append(b, s.updater...)
}
