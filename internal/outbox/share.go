package outbox

import (
	"context"
	"slices"
	"time"

	"github.com/google/uuid"
)

// A share bounds the places that one account has in a shift. The sink's shift has places for
// two full shares: an account whose events all hang holds up no other.
type share struct {
	tokens chan struct{} // holds a value for each token that is worked on
	slots  chan struct{} // holds a value for each attempt under way
}

// shareOf returns the share of an account. The goroutine of deliver alone calls it.
func (s *shift) shareOf(account uuid.UUID) *share {
	of := s.shares[account]
	if of == nil {
		of = &share{make(chan struct{}, sendTokens), make(chan struct{}, s.workers)}
		s.shares[account] = of
	}
	return of
}

// enters takes a place for a token of an account, and reports whether there was one.
func (s *shift) enters(of *share) bool {
	select {
	case of.tokens <- struct{}{}:
	default:
		return false
	}

	select {
	case s.tokens <- struct{}{}:
		return true
	default:
		<-of.tokens
		return false
	}
}

// leaves gives up a place.
func (s *shift) leaves(of *share) {
	<-s.tokens
	<-of.tokens
	select {
	case s.freed <- struct{}{}:
	default:
	}
}

// waits waits until there may be a place for deliveries of the present page. Meanwhile it
// renews the shift, and looks for deliveries of other accounts. It returns false if the
// shift has ended.
func (s *shift) waits(ctx context.Context) bool {
	if !s.goesOn() || !s.stays(ctx) {
		return false
	}
	if s.sink && time.Since(s.looked) >= lookPause {
		if err := s.lookPast(ctx); err != nil {
			s.fail(err)
			return false
		}
		s.looked = time.Now()
	}

	select {
	case <-s.freed:
	case <-time.After(lookPause):
	}
	return true
}

// lookPast starts deliveries behind the present page, of accounts that have a place for them.
// It goes round all of them, a few pages a call, however often the first page is read again.
// Then it goes on with accounts that had no place, each from where that was.
func (s *shift) lookPast(ctx context.Context) (err error) {
	s.forgetShares()
	if precedes(s.beyond, s.behind) {
		s.beyond = s.behind
	}
	for range lookPages {
		if s.full() || len(s.passed) >= passedMost {
			break
		}
		if s.beyond, err = s.startPast(ctx, s.beyond); err != nil {
			return err
		}
		if s.beyond == uuid.Nil {
			break
		}
	}

	for range lookPages {
		account, from := s.spared()
		if account == uuid.Nil || s.full() {
			break
		}
		delete(s.passed, account)
		if precedes(from, s.behind) {
			from = s.behind
		}
		next, err := s.startPast(ctx, from)
		if err != nil {
			return err
		}

		_, again := s.passed[account]
		met := !precedes(s.beyond, from) && !precedes(next, s.beyond) // the round goes on from there
		if !again && next != uuid.Nil && !met {
			s.passed[account] = next
		}
	}
	return nil
}

// startPast starts the deliveries of a page behind the present one whose accounts have a
// place, and returns where the next page begins. Once an account has no place for one
// delivery, the account's later deliveries are left: the order of a token's deliveries
// stays. Where a token was busy instead, missed handles that.
func (s *shift) startPast(ctx context.Context, from uuid.UUID) (next uuid.UUID, err error) {
	p, err := s.page(ctx, from)
	if err != nil {
		return uuid.Nil, err
	}
	chains, err := s.chains(ctx, p)
	if err != nil {
		return uuid.Nil, err
	}

	for _, chain := range chains {
		account, first := chain[0].Account, chain[0].rec.ID
		if at, passed := s.passed[account]; passed && precedes(at, first) || s.delayed(chain) {
			continue
		}
		if of := s.shareOf(account); s.enters(of) {
			s.begin(ctx, of, chain)
		} else {
			s.passed[account] = first
		}
	}
	return p.next, nil
}

// spared returns an account that had no place and has one now, and where that was. It
// leaves out accounts for which the present page waits.
func (s *shift) spared() (account, from uuid.UUID) {
	for account, from := range s.passed {
		of, waits := s.shares[account], func(c []*pending) bool { return c[0].Account == account }
		if (of == nil || len(of.tokens) < cap(of.tokens)) && !slices.ContainsFunc(s.crowded, waits) {
			return account, from
		}
	}
	return uuid.Nil, uuid.Nil
}

// full reports whether there is no place for any account.
func (s *shift) full() bool { return len(s.tokens) == cap(s.tokens) }

// forgetShares drops accounts without a token at work.
func (s *shift) forgetShares() {
	for account, of := range s.shares {
		if len(of.tokens) == 0 {
			delete(s.shares, account)
		}
	}
}
