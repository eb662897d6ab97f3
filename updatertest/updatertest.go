// Package updatertest proves that an [updater.Provider] keeps its contract.
//
// The author of one writes one test, against the test system of the updater or a server of
// his own that answers as that does:
//
//	func TestProvider(t *testing.T) {
//		updatertest.Run(t, updatertest.Harness{
//			Open:   func(testing.TB) updater.Provider { return myvau.New(testSystem) },
//			Scheme: card.VISA,
//			Cards: map[updater.Kind]cardvault.Card{
//				updater.Updated: {PAN: card.NewPAN([]byte("4111111111111111")), Expiry: expiry},
//				updater.NoMatch: {PAN: card.NewPAN([]byte("4242424242424242")), Expiry: expiry},
//			},
//		})
//	}
//
// Each subtest is one rule. When it fails it says the rule and why a vault depends on it.
package updatertest

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/internal/contract"
	"github.com/cardvault/cardvault/internal/plausible"
	"github.com/cardvault/cardvault/updater"
	"github.com/cardvault/cardvault/vaulttest"
	"github.com/google/uuid"
)

// A Harness says how to test an updater. Open, Scheme and Cards are required.
type Harness struct {
	// Open returns the updater, a new one or the same each time: all know the submissions of
	// each. It may skip or fail the test that it is given, and uses its Cleanup.
	Open func(t testing.TB) updater.Provider

	Scheme card.Scheme // of the cards

	// Cards are one or more cards, each under the kind that the updater reports every time.
	// A kind without a card is not tested.
	Cards map[updater.Kind]cardvault.Card

	// Answer has the updater answer all submissions. If nil, it does so by itself.
	Answer func(ctx context.Context, p updater.Provider) error

	// Patience limits the wait for outcomes. Defaults to a minute.
	Patience time.Duration
}

// Run checks every rule of the contract.
func Run(t *testing.T, h Harness) { contract.Run(t, rules, h.suite) }

// grace is the time in which the suite looks for outcomes that must not come.
const grace = 2 * time.Second

// A suite is an updater under test. All calls go through it.
type suite struct {
	Harness
	provider updater.Provider
	numbers  []string // of the cards
}

func (h Harness) suite(t testing.TB) *suite {
	switch {
	case h.Open == nil:
		t.Fatal("updatertest: Harness.Open is missing")
	case len(h.Cards) == 0:
		t.Fatal("updatertest: Harness.Cards is empty")
	}
	h.Patience = cmp.Or(h.Patience, time.Minute)
	s := &suite{Harness: h, provider: h.Open(t)}
	if s.provider == nil {
		t.Fatal("updatertest: Harness.Open returned nil")
	}
	for kind, c := range h.Cards {
		if kind < updater.Updated || kind > updater.NoMatch || c.PAN.IsZero() {
			t.Fatal("updatertest: Harness.Cards has a kind that does not exist, or a card without a number")
		}
		s.numbers = append(s.numbers, digits(c.PAN))
	}
	return s
}

var rules = []contract.Rule[*suite]{{
	Name: "Info",
	Why: `Info is always the same. Its Name is 1 to 40 of a-z, 0-9, "_" and "-", beginning with a
letter or digit, and SandboxOnly keeps the updater from real cards: a vault asks when it opens.
The name is stored with every submission.`,
	Check: info,
}, {
	Name: "Outcomes",
	Why: `Every submitted card has an outcome, with the reference of its submission. An Updated card has
another number, and like an ExpiryChanged one an expiry that is not past. Other kinds have
neither. The vault refuses all else.`,
	Check: outcomes,
}, {
	Name: "Again",
	Why: `Submit under an idempotency key that was used before asks about no card twice, and returns nil
even if cards are missing. A vault that lost the answer repeats the call, without the tokens
that were deleted meanwhile.`,
	Check: again,
}, {
	Name: "AtOnce",
	Why: `The same holds for concurrent calls: after a deadline the vault repeats a call that the updater
may still be processing.`,
	Check: atOnce,
}, {
	Name: "Another",
	Why: `Another idempotency key is another submission, even of the same card. It has an outcome of its
own: tokens of two accounts may have the same card, and each card is submitted every month.`,
	Check: another,
}, {
	Name: "PassedAgain",
	Why: `An outcome for which sink returns an error is passed again, unchanged. The store of the vault was
not available, and the outcome would otherwise be lost.`,
	Check: passedAgain,
}, {
	Name:  "Batch",
	Why:   `Submit takes up to MaxCards cards, and each has its outcome.`,
	Check: batch,
}, {
	Name: "Restart",
	Why: `A second provider feeds what the first has submitted: the outcome comes weeks later, to a vault
that was restarted, or to another process.`,
	Check: restart,
}, {
	Name: "ContextEnded",
	Why: `Submit with a context that has ended returns at once, with the error of the context. Feed returns
nil when its context ends, and not before: the vault waits for it when it shuts down.`,
	Check: contextEnded,
}, {
	Name: "NoCardData",
	Why: `No error and no ID contains a card number: both are logged. All rules check this. This rule
submits cards that the updater cannot know.`,
	Check: noCardData,
}, {
	Name:  "Concurrency",
	Why:   `All methods may be called concurrently. No card gets the outcome of another.`,
	Check: concurrency,
}}

// digits returns a number.
func digits(p card.PAN) (d string) {
	p.Expose(func(value []byte) { d = string(value) })
	return d
}

// A submission is a request for cards of the harness, which can be made again.
type submission struct {
	key   string
	refs  []string
	cards []cardvault.Card
	kinds []updater.Kind // expected, one for each card; 0: none
}

// submission returns n cards of the harness in turn, or one of each kind if n is 0.
func (s *suite) submission(n int) *submission {
	out := &submission{key: uuid.NewString()}
	kinds := slices.Sorted(maps.Keys(s.Cards))
	if n == 0 {
		n = len(kinds)
	}
	for i := range n {
		out.add(s.Cards[kinds[i%len(kinds)]], kinds[i%len(kinds)])
	}
	return out
}

func (m *submission) add(c cardvault.Card, kind updater.Kind) {
	m.refs = append(m.refs, strings.ToLower(rand.Text()+rand.Text()))
	m.cards = append(m.cards, c)
	m.kinds = append(m.kinds, kind)
}

// submit submits the first n cards and wipes the numbers, as a vault does.
func (s *suite) submit(ctx context.Context, t testing.TB, m *submission, n int) error {
	t.Helper()
	r := &updater.SubmitRequest{IdempotencyKey: m.key, Merchant: uuid.New()}
	for i, c := range m.cards[:n] {
		ref := updater.CardRef{Reference: m.refs[i], Scheme: s.Scheme, PAN: card.NewPAN([]byte(digits(c.PAN))), Expiry: c.Expiry}
		r.Cards = append(r.Cards, ref)
	}
	err := s.provider.Submit(ctx, r)
	for _, c := range r.Cards {
		c.PAN.Wipe()
	}
	vaulttest.AssertNoLeak(t, s.numbers, err)
	return err
}

// accepted submits all cards.
func (s *suite) accepted(t testing.TB, m *submission) {
	t.Helper()
	if err := s.submit(t.Context(), t, m, len(m.cards)); err != nil {
		t.Fatalf("Submit of cards of the harness = %v", err)
	}
}

// A passed outcome is a copy that can be compared.
type passed struct {
	ID     string
	Kind   updater.Kind
	number string
	Expiry card.Expiry
}

// collect feeds from p until every card of some submissions has an outcome, and for a moment
// more. It returns the outcomes by reference. sink may be nil.
func (s *suite) collect(t testing.TB, p updater.Provider, sink func(*updater.Outcome) error, of ...*submission) map[string][]passed {
	t.Helper()
	if s.Answer != nil {
		if err := s.Answer(t.Context(), p); err != nil {
			t.Fatalf("Harness.Answer: %v", err)
		}
	}

	missing := map[string]bool{}
	for _, m := range of {
		for _, ref := range m.refs {
			missing[ref] = true
		}
	}
	var mu sync.Mutex // guards missing, got and broken
	got, broken := map[string][]passed{}, error(nil)
	all, once := make(chan struct{}), sync.Once{}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := feed(ctx, p, func(o *updater.Outcome) error {
		mu.Lock()
		defer mu.Unlock()
		if o == nil {
			broken = errors.New("updatertest: Feed passes no outcome")
			once.Do(func() { close(all) })
			return nil
		}
		vaulttest.AssertNoLeak(t, s.numbers, o.ID)
		got[o.Reference] = append(got[o.Reference], passed{o.ID, o.Kind, digits(o.PAN), o.Expiry})
		if sink != nil {
			if err := sink(o); err != nil {
				return err
			}
		}
		if delete(missing, o.Reference); len(missing) == 0 {
			once.Do(func() { close(all) })
		}
		return nil
	})

	await(t, all, ended, s.Patience)
	cancel()
	promptly(t, "Feed, after its context", ended)
	mu.Lock()
	defer mu.Unlock()
	if broken == nil && len(missing) > 0 {
		broken = fmt.Errorf("updatertest: %d of the submitted cards have no outcome after %v", len(missing), s.Patience)
	}
	if broken != nil {
		t.Fatal(broken)
	}
	return got
}

// await waits for all outcomes, and then a moment more.
func await(t testing.TB, all <-chan struct{}, ended <-chan error, patience time.Duration) {
	t.Helper()
	select {
	case <-all:
	case err := <-ended:
		t.Fatalf("Feed ends before its context: %v", err)
	case <-time.After(patience):
		return
	}
	select {
	case err := <-ended:
		t.Fatalf("Feed ends before its context: %v", err)
	case <-time.After(grace):
	}
}

// feed calls Feed and returns where its error comes.
func feed(ctx context.Context, p updater.Provider, sink func(*updater.Outcome) error) <-chan error {
	ended := make(chan error, 1)
	go func() {
		ended <- p.Feed(ctx, func(_ context.Context, o *updater.Outcome) error { return sink(o) })
	}()
	return ended
}

// promptly waits for a Feed whose context has ended.
func promptly(t testing.TB, what string, ended <-chan error) {
	t.Helper()
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("%s = %v, want nil", what, err)
		}
	case <-time.After(contract.Promptness(t)):
		t.Fatalf("%s: still running after %v", what, contract.Promptness(t))
	}
}

// check checks the outcomes of a submission: each card has its own.
func (m *submission) check(t testing.TB, got map[string][]passed) {
	t.Helper()
	for i, ref := range m.refs {
		for _, o := range got[ref] {
			if err := m.wrong(i, o); err != nil {
				t.Error(err)
			}
			if o.ID != got[ref][0].ID {
				t.Errorf("%v: a card has outcomes with two IDs", o.Kind)
			}
		}
	}
}

// wrong returns an error for an outcome that is not right for the i-th card.
func (m *submission) wrong(i int, o passed) error {
	c, kind := m.cards[i], m.kinds[i]
	outcome := &updater.Outcome{ID: o.ID, Kind: o.Kind, PAN: card.NewPAN([]byte(o.number)), Expiry: o.Expiry}
	dated := o.Kind == updater.Updated || o.Kind == updater.ExpiryChanged

	what := ""
	switch {
	case kind != 0 && o.Kind != kind:
		what = fmt.Sprintf("Kind is %v, want %v", o.Kind, kind)
	case o.ID == "" || len(o.ID) > 255:
		what = "ID must have 1 to 255 bytes"
	case o.Kind != updater.Updated && o.number != "":
		what = "PAN is set"
	case o.Kind == updater.Updated && o.number == digits(c.PAN):
		what = "PAN is the number of before"
	case !dated && o.Expiry != card.Expiry{}:
		what = "Expiry is set"
	case o.Kind == updater.ExpiryChanged && o.Expiry == c.Expiry:
		what = "Expiry is the expiry of before"
	case plausible.Outcome(outcome, false, time.Now()) != nil:
		what = "Kind does not exist, PAN is not a card number, or Expiry is not a month to come"
	}
	if what != "" {
		return fmt.Errorf("updatertest: outcome %v of a card: %s", kind, what)
	}
	return nil
}

func info(t testing.TB, s *suite) {
	first := s.provider.Info()
	if !regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,39}$`).MatchString(first.Name) {
		t.Error("Name is not 1 to 40 of a-z, 0-9, _ and -, beginning with a letter or digit")
	}
	if s.provider.Info() != first || s.Open(t).Info() != first {
		t.Error("Info changes")
	}
}

func outcomes(t testing.TB, s *suite) {
	m := s.submission(0)
	s.accepted(t, m)
	m.check(t, s.collect(t, s.provider, nil, m))
}

func again(t testing.TB, s *suite) {
	m := s.submission(0)
	s.accepted(t, m)
	s.accepted(t, m)
	if err := s.submit(t.Context(), t, m, 1); err != nil {
		t.Errorf("Submit, repeated with one of its cards, = %v", err)
	}
	got := s.collect(t, s.provider, nil, m)
	m.check(t, got)

	// The outcome of another card shows that the updater has answered since.
	s.accepted(t, m)
	other := s.submission(1)
	s.accepted(t, other)
	for ref, later := range s.collect(t, s.provider, nil, other) {
		if first := got[ref]; len(first) > 0 && first[0].ID != later[0].ID {
			t.Errorf("%v: Submit, repeated after the outcome, has an outcome with another ID", later[0].Kind)
		}
	}
}

func atOnce(t testing.TB, s *suite) {
	m := s.submission(0)
	contract.Parallel(t, 8, func(int) error { return s.submit(t.Context(), t, m, len(m.cards)) })
	m.check(t, s.collect(t, s.provider, nil, m))
}

func another(t testing.TB, s *suite) {
	first, second := s.submission(0), s.submission(0)
	s.accepted(t, first)
	s.accepted(t, second)
	got := s.collect(t, s.provider, nil, first, second)
	first.check(t, got)
	second.check(t, got)
	for i, ref := range first.refs {
		if got[ref][0].ID == got[second.refs[i]][0].ID {
			t.Errorf("%v: two submissions of a card have outcomes with the same ID", first.kinds[i])
		}
	}
}

func passedAgain(t testing.TB, s *suite) {
	m := s.submission(0)
	s.accepted(t, m)
	failed := map[string]bool{}
	got := s.collect(t, s.provider, func(o *updater.Outcome) error {
		if !failed[o.Reference] && slices.Contains(m.refs, o.Reference) {
			failed[o.Reference] = true
			return errors.New("updatertest: the store is not available")
		}
		return nil
	}, m)
	m.check(t, got)
	for i, ref := range m.refs {
		if n := len(got[ref]); n < 2 || got[ref][0] != got[ref][n-1] {
			t.Errorf("%v: an outcome for which sink failed is passed %d times, want again and unchanged", m.kinds[i], n)
		}
	}
}

func batch(t testing.TB, s *suite) {
	m := s.submission(updater.MaxCards)
	s.accepted(t, m)
	m.check(t, s.collect(t, s.provider, nil, m))
}

func restart(t testing.TB, s *suite) {
	m := s.submission(0)
	s.accepted(t, m)
	m.check(t, s.collect(t, s.Open(t), nil, m))
}

func contextEnded(t testing.TB, s *suite) {
	m := s.submission(0)
	contract.Ended(t, "Submit", func(ctx context.Context) error { return s.submit(ctx, t, m, len(m.cards)) })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	promptly(t, "Feed with a context that has ended", feed(ctx, s.provider, func(*updater.Outcome) error { return nil }))
}

func noCardData(t testing.TB, s *suite) {
	for _, c := range s.Cards {
		pan := digits(c.PAN)
		wrong := pan[:len(pan)-1] + string('0'+(pan[len(pan)-1]-'0'+1)%10)
		s.numbers = append(s.numbers, wrong, pan[:12])
		for what, edit := range map[string]func(*cardvault.Card){
			"a number that fails the Luhn check": func(c *cardvault.Card) { c.PAN = card.NewPAN([]byte(wrong)) },
			"a number that is too short":         func(c *cardvault.Card) { c.PAN = card.NewPAN([]byte(pan[:12])) },
			"a card that has expired":            func(c *cardvault.Card) { c.Expiry.Year = 2001 },
			"a card without expiry":              func(c *cardvault.Card) { c.Expiry = card.Expiry{} },
		} {
			m := &submission{key: uuid.NewString()}
			edit(&c)
			m.add(c, 0)
			if err := s.submit(t.Context(), t, m, 1); err != nil {
				t.Logf("%s: %v", what, err)
			}
		}
	}
}

func concurrency(t testing.TB, s *suite) {
	all := make([]*submission, 16)
	for i := range all {
		all[i] = s.submission(0)
	}
	contract.Parallel(t, len(all), func(i int) error { return s.submit(t.Context(), t, all[i], len(all[i].cards)) })
	got := s.collect(t, s.provider, nil, all...)
	for _, m := range all {
		m.check(t, got)
	}
}
