package simnet

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"strconv"
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
	Expiry    card.Expiry  `json:"expiry"` // as it was submitted
	Kind      updater.Kind `json:"kind"`
	Card      numbered     `json:"card"`             // as it is from now on
	Reports   int          `json:"reports,omitzero"` // outcomes after the first
	Tries     int          `json:"tries,omitzero"`   // failed deliveries
}

// An inquired card number was submitted, or its next submission has a plan.
type inquired struct {
	Plan updater.Kind `json:"kind,omitzero"`
	Rows []uuid.UUID  `json:"rows,omitempty"` // of its latest submissions, of all tokens

	record *store.Record
}

// submissions bounds the Rows of an inquired card number.
const submissions = 100

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
	numbers := make([]uuid.UUID, len(r.Cards))
	for i := range r.Cards {
		r.Cards[i].PAN.Expose(func(digits []byte) {
			all[i], numbers[i] = report(&r.Cards[i], digits), u.n.inquiredID(u.n.accountReference(digits))
		})
	}

	err := u.n.store.Update(ctx, func(tx store.Tx) error {
		inquiries := map[uuid.UUID]*inquired{} // reads do not see the writes of this function
		for i, s := range all {
			if err := u.n.submit(tx, s, numbers[i], inquiries, due); err != nil {
				return err
			}
		}
		for _, q := range inquiries {
			if err := q.put(tx); err != nil {
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

// submit puts a submitted card, unless that was done before, and notes it in the inquiries of
// its number. A plan comes to its end.
func (n *Network) submit(tx store.Tx, s submitted, number uuid.UUID, inquiries map[uuid.UUID]*inquired, due time.Time) (err error) {
	row := uuid.UUID(n.mac("submitted", []byte(s.Reference))[:16])
	if _, err := tx.Get(kindSubmitted, row); !errors.Is(err, store.ErrNotFound) {
		return err
	}

	q := inquiries[number]
	if q == nil {
		if q, err = getInquired(tx, number); err != nil {
			return err
		}
		inquiries[number] = q
	}
	n.decide(&s, cmp.Or(q.Plan, s.Kind))
	q.Plan, q.Rows = 0, append(q.Rows, row)
	q.Rows = q.Rows[max(0, len(q.Rows)-submissions):]
	return putSubmitted(tx, &store.Record{Kind: kindSubmitted, ID: row, Due: due}, &s)
}

// decide makes k the outcome of a submitted card, if the card can have it.
func (n *Network) decide(s *submitted, k updater.Kind) {
	s.Kind, s.Card.Expiry = k, n.renewed(k, s.Expiry)
	if s.Card.Expiry == s.Expiry || s.Scheme == scheme(card.UnknownScheme) && k == updater.Updated {
		s.Kind = updater.NoMatch
	}
}

// getInquired returns the inquiries about a card number.
func getInquired(tx store.ReadTx, id uuid.UUID) (*inquired, error) {
	r, err := tx.Get(kindInquired, id)
	if errors.Is(err, store.ErrNotFound) {
		return &inquired{record: &store.Record{Kind: kindInquired, ID: id}}, nil
	}
	if err != nil {
		return nil, err
	}
	q := &inquired{record: r}
	return q, decode(r, q)
}

func (q *inquired) put(tx store.Tx) (err error) {
	q.record.Version++
	if q.record.Shown, err = json.Marshal(q); err == nil {
		tx.Put(q.record)
	}
	return err
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

// report returns the outcome of a card by its scenario. Digits that make no card do not match.
func report(c *updater.CardRef, digits []byte) submitted {
	s := submitted{Reference: c.Reference, Scheme: scheme(c.Scheme), Expiry: c.Expiry, Kind: updater.NoMatch}
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

// Report decides what the updater reports about a card number, instead of what its scenario
// says: at once for its last 100 submissions, whichever token they were for, or for the next
// submission if it is the first.
func (c *Control) Report(ctx context.Context, pan card.PAN, k updater.Kind) error {
	var reference string
	pan.Expose(func(digits []byte) { reference = c.n.accountReference(digits) })
	return c.ReportAccount(ctx, reference, k)
}

// ReportAccount is Report for the card number with a payment account reference, as the
// network tokens of the simulator have it.
func (c *Control) ReportAccount(ctx context.Context, reference string, k updater.Kind) error {
	if k < updater.Updated || k > updater.NoMatch {
		return errors.New("simnet: updaters report no such kind of outcome")
	}

	due := time.UnixMicro(c.n.now())
	err := c.n.store.Update(ctx, func(tx store.Tx) error {
		q, err := getInquired(tx, c.n.inquiredID(reference))
		if err != nil {
			return err
		}
		if len(q.Rows) == 0 {
			q.Plan = k
			return q.put(tx)
		}
		for _, row := range q.Rows {
			if err := c.n.reportAgain(tx, row, k, due); err != nil {
				return err
			}
		}
		return nil
	})
	c.n.wake()
	return err
}

// reportAgain gives a submitted card another outcome, of another id, that is due at a time.
func (n *Network) reportAgain(tx store.Tx, row uuid.UUID, k updater.Kind, due time.Time) error {
	r, err := tx.Get(kindSubmitted, row)
	if err != nil {
		return err
	}
	var s submitted
	if err := decode(r, &s); err != nil {
		return err
	}
	n.decide(&s, k)
	s.Tries = 0
	s.Reports++
	r.Due = due
	return putSubmitted(tx, r, &s)
}

// inquiredID is the id of the card number with a payment account reference.
func (n *Network) inquiredID(reference string) uuid.UUID {
	return uuid.UUID(n.mac("inquired", []byte(reference))[:16])
}

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
	if s.Reports > 0 {
		o.ID += "-" + strconv.Itoa(s.Reports)
	}
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
