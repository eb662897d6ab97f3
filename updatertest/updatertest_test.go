package updatertest_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/internal/contract"
	"github.com/cardvault/cardvault/simnet"
	"github.com/cardvault/cardvault/store/memstore"
	"github.com/cardvault/cardvault/updater"
	"github.com/cardvault/cardvault/updatertest"
)

func testCard(scenario int) cardvault.Card {
	return cardvault.Card{PAN: simnet.ScenarioPAN(card.VISA, scenario), Expiry: card.Expiry{Month: 12, Year: 2090}}
}

// cards has a card of each kind.
var cards = map[updater.Kind]cardvault.Card{
	updater.Updated: testCard(90), updater.ExpiryChanged: testCard(91), updater.Closed: testCard(92),
	updater.ContactCardholder: testCard(93), updater.OptedOut: testCard(94), updater.NoMatch: testCard(0),
}

type sink = func(context.Context, *updater.Outcome) error

// A mutant is the simulator with a fault in one of its methods.
type mutant struct {
	updater.Provider
	info   func() updater.Info
	submit func(ctx context.Context, r *updater.SubmitRequest) error
	feed   func(ctx context.Context, s sink) error
}

func (m *mutant) Info() updater.Info {
	if m.info != nil {
		return m.info()
	}
	return m.Provider.Info()
}

func (m *mutant) Submit(ctx context.Context, r *updater.SubmitRequest) error {
	if m.submit != nil {
		return m.submit(ctx, r)
	}
	return m.Provider.Submit(ctx, r)
}

func (m *mutant) Feed(ctx context.Context, s sink) error {
	if m.feed != nil {
		return m.feed(ctx, s)
	}
	return m.Provider.Feed(ctx, s)
}

// passing changes outcomes of a kind.
func passing(kind updater.Kind, edit func(*updater.Outcome)) func(*mutant) {
	return func(m *mutant) {
		m.feed = func(ctx context.Context, s sink) error {
			return m.Provider.Feed(ctx, func(ctx context.Context, o *updater.Outcome) error {
				if o.Kind == kind {
					edit(o)
				}
				return s(ctx, o)
			})
		}
	}
}

// submitting changes submissions. calls counts them.
func submitting(edit func(r *updater.SubmitRequest, calls int)) func(*mutant) {
	return func(m *mutant) {
		var mu sync.Mutex
		calls := 0
		m.submit = func(ctx context.Context, r *updater.SubmitRequest) error {
			mu.Lock()
			calls++
			edit(r, calls)
			mu.Unlock()
			return m.Provider.Submit(ctx, r)
		}
	}
}

// twice passes each outcome also under a second ID, for a card that was submitted again.
func twice(m *mutant) {
	var mu sync.Mutex
	asked := map[string]int{}
	m.submit = func(ctx context.Context, r *updater.SubmitRequest) error {
		mu.Lock()
		for _, c := range r.Cards {
			asked[c.Reference]++
		}
		mu.Unlock()
		return m.Provider.Submit(ctx, r)
	}
	m.feed = func(ctx context.Context, s sink) error {
		return m.Provider.Feed(ctx, func(ctx context.Context, o *updater.Outcome) error {
			mu.Lock()
			again := asked[o.Reference] > 1
			mu.Unlock()
			if again {
				second := *o
				second.ID += "-2"
				if err := s(ctx, &second); err != nil {
					return err
				}
			}
			return s(ctx, o)
		})
	}
}

var errDown = errors.New("mutant: no connection")

// faults lists faults, each with a rule that must detect it.
var faults = []struct {
	fault, rule string
	seed        func(m *mutant)
}{
	{"the name has a space", "Info", func(m *mutant) { m.info = func() updater.Info { return updater.Info{Name: "my vau"} } }},
	{"SandboxOnly changes", "Info", func(m *mutant) {
		n := 0
		m.info = func() updater.Info { n++; return updater.Info{Name: "vau", SandboxOnly: n%2 == 0} }
	}},
	{"another kind", "Outcomes", passing(updater.Closed, func(o *updater.Outcome) { o.Kind = updater.NoMatch })},
	{"a kind that does not exist", "Outcomes", passing(updater.NoMatch, func(o *updater.Outcome) { o.Kind = 99 })},
	{"no ID", "Outcomes", passing(updater.NoMatch, func(o *updater.Outcome) { o.ID = "" })},
	{"a long ID", "Outcomes", passing(updater.NoMatch, func(o *updater.Outcome) { o.ID = strings.Repeat("x", 256) })},
	{"the reference is cut", "Outcomes", passing(updater.NoMatch, func(o *updater.Outcome) { o.Reference = o.Reference[:20] })},
	{"the reference is in upper case", "Outcomes", passing(updater.NoMatch, func(o *updater.Outcome) { o.Reference = strings.ToUpper(o.Reference) })},
	{"the number of before", "Outcomes", passing(updater.Updated, func(o *updater.Outcome) { o.PAN = testCard(90).PAN })},
	{"only the last four digits", "Outcomes", passing(updater.Updated, func(o *updater.Outcome) { o.PAN = card.NewPAN([]byte("4242")) })},
	{"no expiry", "Outcomes", passing(updater.Updated, func(o *updater.Outcome) { o.Expiry = card.Expiry{} })},
	{"an expiry of two digits", "Outcomes", passing(updater.ExpiryChanged, func(o *updater.Outcome) { o.Expiry.Year %= 100 })},
	{"an expiry that is past", "Outcomes", passing(updater.ExpiryChanged, func(o *updater.Outcome) { o.Expiry.Year = 2001 })},
	{"the expiry of before", "Outcomes", passing(updater.ExpiryChanged, func(o *updater.Outcome) { o.Expiry = testCard(91).Expiry })},
	{"a number without an update", "Outcomes", passing(updater.NoMatch, func(o *updater.Outcome) { o.PAN = testCard(0).PAN })},
	{"no outcome at all", "Outcomes", func(m *mutant) {
		m.feed = func(ctx context.Context, s sink) error {
			return m.Provider.Feed(ctx, func(ctx context.Context, o *updater.Outcome) error { return s(ctx, nil) })
		}
	}},
	{"cards without news have no outcome", "Outcomes", func(m *mutant) {
		m.feed = func(ctx context.Context, s sink) error {
			return m.Provider.Feed(ctx, func(ctx context.Context, o *updater.Outcome) error {
				if o.Kind == updater.NoMatch {
					return nil
				}
				return s(ctx, o)
			})
		}
	}},
	{"a repetition asks again", "Again", twice},
	{"a repetition is an error", "Again", func(m *mutant) {
		keys := sync.Map{}
		m.submit = func(ctx context.Context, r *updater.SubmitRequest) error {
			if _, used := keys.LoadOrStore(r.IdempotencyKey, true); used {
				return errDown
			}
			return m.Provider.Submit(ctx, r)
		}
	}},
	{"a concurrent repetition asks again", "AtOnce", twice},
	{"one submission of a card", "Another", func(m *mutant) {
		known := map[string]bool{}
		m.submit = func(ctx context.Context, r *updater.SubmitRequest) error {
			r.Cards = slices.DeleteFunc(r.Cards, func(c updater.CardRef) bool {
				again := false
				c.PAN.Expose(func(d []byte) { again, known[string(d)] = known[string(d)], true })
				return again
			})
			if len(r.Cards) == 0 {
				return nil
			}
			return m.Provider.Submit(ctx, r)
		}
	}},
	{"the ID is the kind", "Another", passing(updater.NoMatch, func(o *updater.Outcome) { o.ID = o.Kind.String() })},
	{"an outcome that failed is lost", "PassedAgain", func(m *mutant) {
		m.feed = func(ctx context.Context, s sink) error {
			return m.Provider.Feed(ctx, func(ctx context.Context, o *updater.Outcome) error {
				_ = s(ctx, o)
				return nil
			})
		}
	}},
	{"an outcome that failed has another ID", "PassedAgain", func(m *mutant) {
		n := 0
		passing(updater.NoMatch, func(o *updater.Outcome) { n++; o.ID = fmt.Sprint(o.ID, n) })(m)
	}},
	{"half of the batch", "Batch", submitting(func(r *updater.SubmitRequest, _ int) {
		r.Cards = r.Cards[:max(1, len(r.Cards)/2)]
	})},
	{"Submit waits", "ContextEnded", func(m *mutant) {
		m.submit = func(ctx context.Context, r *updater.SubmitRequest) error {
			<-time.After(30 * time.Second)
			return ctx.Err()
		}
	}},
	{"Feed returns the error of its context", "ContextEnded", func(m *mutant) {
		m.feed = func(ctx context.Context, s sink) error {
			if err := m.Provider.Feed(ctx, s); err != nil {
				return err
			}
			return ctx.Err()
		}
	}},
	{"Feed ends", "Outcomes", func(m *mutant) {
		m.feed = func(context.Context, sink) error { return nil }
	}},
	{"the error quotes the card", "NoCardData", func(m *mutant) {
		m.submit = func(ctx context.Context, r *updater.SubmitRequest) (err error) {
			r.Cards[0].PAN.Expose(func(d []byte) { err = fmt.Errorf("mutant: bad card %s", d) })
			return err
		}
	}},
	{"cards are mixed up", "Concurrency", submitting(func(r *updater.SubmitRequest, calls int) {
		if last := len(r.Cards) - 1; calls%2 == 0 {
			r.Cards[0].Reference, r.Cards[last].Reference = r.Cards[last].Reference, r.Cards[0].Reference
		}
	})},
}

func simulator(t testing.TB) *simnet.Network {
	sim, err := simnet.New(t.Context(), memstore.New(), nil)
	if err != nil {
		t.Fatal(err)
	}
	return sim
}

func harness(t testing.TB, patience time.Duration, open func(testing.TB, *simnet.Network) updater.Provider) updatertest.Harness {
	sim := simulator(t)
	return updatertest.Harness{
		Open:   func(t testing.TB) updater.Provider { return open(t, sim) },
		Scheme: card.VISA,
		Cards:  cards,

		Patience: patience,
		Answer:   func(context.Context, updater.Provider) error { sim.Advance(2 * time.Second); return nil },
	}
}

// Every rule must detect its faults.
func TestRulesCanFail(t *testing.T) {
	noticed := contract.Faults(t, updatertest.Names())
	for _, f := range faults {
		noticed(f.rule, f.fault, func(t *testing.T) []string {
			return updatertest.Failures(t, f.rule, harness(t, time.Second, func(_ testing.TB, sim *simnet.Network) updater.Provider {
				m := &mutant{Provider: sim.Updater()}
				f.seed(m)
				return m
			}))
		})
	}
	noticed("Restart", "the second knows nothing", func(t *testing.T) []string {
		return updatertest.Failures(t, "Restart", harness(t, time.Second, func(t testing.TB, _ *simnet.Network) updater.Provider {
			return simulator(t).Updater()
		}))
	})
}

// The simulator passes, so that a failure is due to the fault.
func TestRulesPassWithoutFault(t *testing.T) {
	updatertest.Run(t, harness(t, 0, func(_ testing.TB, sim *simnet.Network) updater.Provider { return sim.Updater() }))
}
