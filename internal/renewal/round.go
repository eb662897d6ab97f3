package renewal

import (
	"encoding/binary"
	"time"

	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/internal/ledger"
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

	account uuid.UUID // row key of the account to go on from
	from    uuid.UUID // row key of the token to go on from, in that account

	pending uuid.UUID // row key of the next submission, zero without one
	tries   uint64    // failures of that
	cards   uint64    // that were submitted
}

const (
	roundUpdater = iota + 1
	roundLast
	roundBegan
	roundAccount
	roundFrom
	roundPending
	roundTries
	roundCards
)

func (r *round) fields(f *tlv.Fields) {
	tlv.Text(f, roundUpdater, &r.updater)
	f.Time(roundLast, &r.last)
	f.Time(roundBegan, &r.began)
	f.Array(roundAccount, r.account[:])
	f.Array(roundFrom, r.from[:])
	f.Array(roundPending, r.pending[:])
	tlv.Uint(f, roundTries, &r.tries)
	tlv.Uint(f, roundCards, &r.cards)
}

func (r *round) encode() []byte { return tlv.Pad(tlv.Encode(r.fields), 64, 0) }

func decodeRound(plain []byte) (*round, error) {
	var f tlv.Fields
	f.From(plain)
	r := new(round)
	r.fields(&f)
	return r, ledger.FieldsError(&f)
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
