package main

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/receive"
)

const (
	payments   = 3           // of a subscription
	mostTries  = 4           // of one of them
	billPeriod = time.Minute // between looks for subscriptions that are due
)

// A subscription is an order that is paid in several payments. The shopper makes the first,
// with a cryptogram. The shop makes the others without the shopper, and names the first.
type subscription struct {
	order string
	token string
	first string // id that the scheme has given to the first payment
	paid  int    // payments
	tries int    // of the next payment
	due   time.Time
}

// subscribe begins a subscription whose first payment was made.
func (s *shop) subscribe(o *order, transaction string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	keep(s.subscriptions, o.id, &subscription{order: o.id, token: o.token, first: transaction, paid: 1, due: time.Now().Add(s.period)})
}

// bill makes the payments that are due until ctx ends. A shop that runs twice needs a
// database here, and a lock for each subscription.
func (s *shop) bill(ctx context.Context) {
	tick := time.NewTicker(billPeriod)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}

		for _, sub := range s.due() {
			over, err := s.collect(ctx, sub)
			if err != nil {
				s.log.Error("a subscription could not be paid yet", "order", sub.order, "error", err)
			}
			if over {
				s.mu.Lock()
				delete(s.subscriptions, sub.order)
				s.mu.Unlock()
			}
		}
	}
}

// due returns the subscriptions with a payment that is due.
func (s *shop) due() (due []*subscription) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sub := range s.subscriptions {
		if !time.Now().Before(sub.due) {
			due = append(due, sub)
		}
	}
	return due
}

// collect makes the next payment of a subscription, and reports whether the subscription has
// ended. After an error it is tried again under the same keys, which pay once.
func (s *shop) collect(ctx context.Context, sub *subscription) (over bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, payTimeout)
	defer cancel()

	reference := fmt.Sprintf("%s-%d", sub.order, sub.paid+1)
	credential, why, err := s.credential(ctx, sub.token, fmt.Sprintf("%s-%d", reference, sub.tries), reference, sub.first)
	switch {
	case err != nil:
		return false, err
	case why != nil:
		sub.tries++
		over = !why.Retryable || sub.tries == mostTries
		return over, fmt.Errorf("there is no payment data: %s", why.Code)
	}
	defer credential.Wipe()

	if _, err := s.acquire(ctx, &charge{reference, price, credential, sub.first}); err != nil {
		sub.tries++
		return sub.tries == mostTries, fmt.Errorf("the acquirer refuses: %w", err)
	}

	sub.paid, sub.tries, sub.due = sub.paid+1, 0, sub.due.Add(s.period)
	s.log.Info("a subscription is paid", "order", sub.order, "payment", sub.paid)
	return sub.paid == payments, nil
}

// A charge is what an acquirer receives in place of a card: the number and expiry of the
// network token, the cryptogram and the ECI. Only Expose gives these values: nothing that
// formats or logs a credential has them.
type charge struct {
	// reference is unique for each payment: an acquirer charges it once, and reports the
	// outcome of a charge whose answer was lost.
	reference string

	cents      int
	credential *receive.Credential

	// first is the scheme's id of the payment by which the shopper has agreed to this one.
	// It is "" if the shopper pays, with a cryptogram.
	first string
}

// An acquirer stands for the API of the shop's acquirer.
type acquirer struct {
	mu           sync.Mutex
	transactions map[string]string // ids by reference
}

func newAcquirer() *acquirer { return &acquirer{transactions: map[string]string{}} }

// charge returns the id that the scheme gives to a payment. An error is a refusal.
func (a *acquirer) charge(_ context.Context, c *charge) (transaction string, err error) {
	digits := 0
	c.credential.Number.Expose(func(number []byte) { digits = len(number) })

	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case digits == 0:
		return "", errors.New("a number is missing")
	case c.first == "" && c.credential.Cryptogram.IsZero():
		return "", errors.New("a payment of the shopper needs a cryptogram")
	case c.first != "" && !a.knows(c.first):
		return "", errors.New("the first payment is unknown")
	}

	if a.transactions[c.reference] == "" {
		keep(a.transactions, c.reference, fmt.Sprintf("%015d", len(a.transactions)+1))
	}
	return a.transactions[c.reference], nil
}

// knows reports whether a transaction was made. Its caller holds the lock.
func (a *acquirer) knows(transaction string) bool {
	for _, id := range a.transactions {
		if id == transaction {
			return true
		}
	}
	return false
}

// shape describes a cryptogram without revealing it.
func shape(c card.CryptogramValue) (text string) {
	c.Expose(func(value []byte) {
		text = fmt.Sprintf("%d characters", len(value))
		if n, err := base64.StdEncoding.Decode(make([]byte, len(value)), value); err == nil {
			text += fmt.Sprintf(", %d bytes", n)
		}
	})
	return text
}

// terms says how an order is paid in several payments, "" if it is not.
func (s *shop) terms() string {
	if s.period == 0 {
		return ""
	}
	return fmt.Sprintf("A subscription: %s now, and %d times more, each after %v.", priceTag, payments-1, s.period)
}
