package outbox

import (
	"context"
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

// waits takes a place for a token of an account once there is one. Meanwhile it renews the
// shift, and looks for deliveries of other accounts. It returns false if the shift is over.
func (s *shift) waits(ctx context.Context, of *share) bool {
	for !s.enters(of) {
		if !s.goesOn() || !s.stays(ctx) {
			return false
		}
		if s.sink && time.Since(s.looked) >= sendPoll {
			s.lookPast(ctx)
			s.looked = time.Now()
		}

		select {
		case <-s.freed:
		case <-time.After(sendPoll):
		}
	}
	return true
}

// lookPast starts deliveries behind the present page, of accounts that have a place for them.
// Once an account has none for one delivery, those behind it are left to their page: the
// order of a token's deliveries stays.
func (s *shift) lookPast(ctx context.Context) {
	for range pastPages {
		if s.beyond == uuid.Nil {
			s.beyond = s.next
			return
		}
		p, err := s.page(ctx, s.beyond)
		if err != nil {
			s.fail(err)
			return
		}

		chains, err := s.chains(ctx, p)
		if err != nil {
			s.fail(err)
			return
		}

		for _, chain := range chains {
			account := chain[0].Account
			if s.passed[account] || s.delayed(chain[0].Token, chain[len(chain)-1].rec) {
				continue
			}
			if of := s.shareOf(account); s.enters(of) {
				s.begin(ctx, of, chain)
			} else {
				s.passed[account] = true
			}
		}
		s.beyond = p.next
	}
}

// anew forgets what is known of the pages, as the first one is read again.
func (s *shift) anew() {
	clear(s.late)
	clear(s.passed)
	for account, of := range s.shares {
		if len(of.tokens) == 0 {
			delete(s.shares, account)
		}
	}
}
