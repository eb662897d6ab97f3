package simnet

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/internal/iin"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/updater"
	"github.com/google/uuid"
)

// A submitted card has an outcome, which is kept without the number of the card. Times are
// microseconds of the simulator's clock.
type submitted struct {
	Reference string       `json:"reference"`
	Scheme    scheme       `json:"scheme"`
	Kind      updater.Kind `json:"kind"`
	Card      numbered     `json:"card"`           // as it is from now on
	Tries     int          `json:"tries,omitzero"` // failed deliveries
}

// A plan is what the updater reports about a card that is submitted next.
type plan struct {
	Kind updater.Kind `json:"kind"`
}

// Updater returns the simulator as an account updater. It answers two seconds after a
// submission, as the scenarios and [Control.Report] say. A new number has the test IIN of
// its scheme and ends in 4242, or in 2424 if the former one did: a number of no scenario.
func (n *Network) Updater() updater.Provider { return accountUpdater{n} }

// An accountUpdater is a Network as an updater.Provider.
type accountUpdater struct{ n *Network }

func (accountUpdater) Info() updater.Info { return updater.Info{Name: simulator, SandboxOnly: true} }

func (u accountUpdater) Submit(ctx context.Context, r *updater.SubmitRequest) error {
	if !keyOK(r.IdempotencyKey) || len(r.Cards) == 0 || len(r.Cards) > updater.MaxCards {
		return errors.New("simnet: submission needs an idempotency key and 1 to 100 cards")
	}
	due := time.UnixMicro(u.n.now()).Add(later)
	all := make([]submitted, len(r.Cards))
	plans := make([]uuid.UUID, len(r.Cards))
	for i := range r.Cards {
		r.Cards[i].PAN.Expose(func(digits []byte) {
			all[i], plans[i] = u.n.report(&r.Cards[i], digits), u.n.planOf(digits)
		})
	}

	err := u.n.store.Update(ctx, func(tx store.Tx) error {
		for i, s := range all {
			if err := u.n.submit(tx, s, r.Cards[i].Expiry, plans[i], due); err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil {
		u.n.wake()
	}
	return err
}

// submit puts a submitted card, unless that was done before. A plan for it comes to its end.
func (n *Network) submit(tx store.Tx, s submitted, e card.Expiry, planID uuid.UUID, due time.Time) error {
	row := uuid.UUID(n.mac("submitted", []byte(s.Reference))[:16])
	if _, err := tx.Get(kindSubmitted, row); !errors.Is(err, store.ErrNotFound) {
		return err
	}

	switch r, err := tx.Get(kindPlan, planID); {
	case err == nil:
		var p plan
		if err := decode(r, &p); err != nil {
			return err
		}
		s.Kind = p.Kind
		tx.Delete(kindPlan, planID)
	case !errors.Is(err, store.ErrNotFound):
		return err
	}

	s.Card.Expiry = n.renewed(s.Kind, e)
	if s.Card.Expiry == e || s.Scheme == scheme(card.UnknownScheme) && s.Kind == updater.Updated {
		s.Kind = updater.NoMatch
	}
	return putSubmitted(tx, &store.Record{Kind: kindSubmitted, ID: row, Due: due}, &s)
}

// renewed returns the expiry that an outcome reports.
func (n *Network) renewed(k updater.Kind, e card.Expiry) card.Expiry {
	years := map[updater.Kind]int{updater.Updated: replaceYears, updater.ExpiryChanged: renewYears}[k]
	if years == 0 {
		return card.Expiry{}
	}
	e.Year = max(e.Year, time.UnixMicro(n.now()).UTC().Year())
	return after(e, years)
}

// report returns what the scenario of a card says. What cannot be a card is no match.
func (n *Network) report(c *updater.CardRef, digits []byte) submitted {
	s := submitted{Reference: c.Reference, Scheme: scheme(c.Scheme), Kind: updater.NoMatch}
	if !known(c.Scheme) {
		s.Scheme = scheme(card.UnknownScheme)
	}
	if len(digits) < 12 || len(digits) > 19 || !iin.Luhn(digits) || c.Expiry.Month < 1 || c.Expiry.Month > 12 {
		return s
	}

	if kind := scenarios[scenarioOf(c.Scheme, digits)].reported; kind != 0 {
		s.Kind = kind
	}
	s.Card.LastFour = newLastFours[0]
	if string(digits[len(digits)-4:]) == newLastFours[0] {
		s.Card.LastFour = newLastFours[1]
	}
	return s
}

// Report decides what the updater reports about a card number the next time that it is
// submitted, instead of what its scenario says.
func (c *Control) Report(ctx context.Context, pan card.PAN, k updater.Kind) error {
	if k < updater.Updated || k > updater.NoMatch {
		return errors.New("simnet: updaters report no such kind of outcome")
	}
	var row uuid.UUID
	pan.Expose(func(digits []byte) { row = c.n.planOf(digits) })
	shown, err := json.Marshal(plan{k})
	if err != nil {
		return err
	}

	return c.n.store.Update(ctx, func(tx store.Tx) error {
		r, err := tx.Get(kindPlan, row)
		if errors.Is(err, store.ErrNotFound) {
			r = &store.Record{Kind: kindPlan, ID: row}
		} else if err != nil {
			return err
		}
		r.Version++
		r.Shown = shown
		tx.Put(r)
		return nil
	})
}

// planOf is the id of the plan of a card number.
func (n *Network) planOf(digits []byte) uuid.UUID { return uuid.UUID(n.mac("plan", digits)[:16]) }

// Feed passes each outcome once it is due. An outcome for which sink fails comes again as a
// notice does.
func (u accountUpdater) Feed(ctx context.Context, sink func(context.Context, *updater.Outcome) error) error {
	return u.n.feed(ctx, kindSubmitted, func(r *store.Record) error {
		var s submitted
		if err := decode(r, &s); err != nil {
			return err
		}
		err := sink(ctx, u.n.outcome(r.ID, &s))
		if err != nil && ctx.Err() != nil {
			return nil
		}

		// A delivery is stored even if ctx has ended since.
		return u.n.passed(context.WithoutCancel(ctx), r, &s, err == nil)
	})
}

// outcome returns an outcome as the vault receives it.
func (n *Network) outcome(row uuid.UUID, s *submitted) *updater.Outcome {
	o := &updater.Outcome{ID: tokenID(row), Reference: s.Reference, Kind: s.Kind, Expiry: s.Card.Expiry}
	if s.Kind == updater.Updated {
		o.PAN = n.replacement(row, s)
	}
	return o
}

// replacement returns the new number of a card. It is derived, and not kept.
func (n *Network) replacement(row uuid.UUID, s *submitted) card.PAN {
	is := issuers[s.Scheme]
	digits := make([]byte, is.cardDigits)
	drawn := n.mac("replacement", row[:])
	first, last := copy(digits, is.cards), len(digits)-len(s.Card.LastFour)
	for i := first; i < last; i++ {
		digits[i] = '0' + drawn[i]%10
	}
	digits[first] = '1' + drawn[first]%9 // scenarios have 0 there
	copy(digits[last:], s.Card.LastFour)

	for d := byte('0'); d <= '9' && !iin.Luhn(digits); d++ {
		digits[last-1] = d
	}
	return card.NewPAN(digits)
}

// passed stores the outcome of a delivery, unless another Feed was faster.
func (n *Network) passed(ctx context.Context, r *store.Record, s *submitted, done bool) error {
	next := *r
	if next.Due = (time.Time{}); !done {
		next.Due = time.UnixMicro(n.now()).Add(min(firstPause<<min(s.Tries, 16), lastPause))
		s.Tries++
	}

	return n.store.Update(ctx, func(tx store.Tx) error {
		now, err := tx.Get(r.Kind, r.ID)
		if err != nil || now.Version != r.Version {
			return err
		}
		written := next
		return putSubmitted(tx, &written, s)
	})
}

func putSubmitted(tx store.Tx, r *store.Record, s *submitted) (err error) {
	r.Version++
	if r.Shown, err = json.Marshal(s); err == nil {
		tx.Put(r)
	}
	return err
}
