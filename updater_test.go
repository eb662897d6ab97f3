package cardvault_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/internal/bubble"
	"github.com/cardvault/cardvault/simnet"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/boltstore"
	"github.com/cardvault/cardvault/store/memstore"
	"github.com/cardvault/cardvault/updater"
	"github.com/google/uuid"
)

// An office is an account updater that answers when the test says so.
type office struct {
	hook func(ctx context.Context, r *updater.SubmitRequest) error // after the cards are recorded; may be nil
	feed func(ctx context.Context) error                           // in place of Feed, unless it returns nil

	mu        sync.Mutex
	submitted []submittedCard
	sink      func(context.Context, *updater.Outcome) error
}

// A submittedCard was submitted at a time.
type submittedCard struct {
	key, reference, number string
	at                     time.Time
}

func (o *office) Info() updater.Info { return updater.Info{Name: "office"} }

func (o *office) Submit(ctx context.Context, r *updater.SubmitRequest) error {
	o.mu.Lock()
	for _, c := range r.Cards {
		c.PAN.Expose(func(d []byte) {
			o.submitted = append(o.submitted, submittedCard{r.IdempotencyKey, c.Reference, string(d), time.Now()})
		})
	}
	o.mu.Unlock()
	if o.hook != nil {
		return o.hook(ctx, r)
	}
	return nil
}

func (o *office) Feed(ctx context.Context, sink func(context.Context, *updater.Outcome) error) error {
	if o.feed != nil {
		if err := o.feed(ctx); err != nil {
			return err
		}
	}
	o.mu.Lock()
	o.sink = sink
	o.mu.Unlock()
	<-ctx.Done()
	return nil
}

// of returns the submissions of a card.
func (o *office) of(c cardvault.Card) (all []submittedCard) {
	o.mu.Lock()
	defer o.mu.Unlock()
	c.PAN.Expose(func(d []byte) {
		for _, s := range o.submitted {
			if s.number == string(d) {
				all = append(all, s)
			}
		}
	})
	return all
}

// pass passes an outcome about the last submission of a card.
func (o *office) pass(ctx context.Context, c cardvault.Card, out updater.Outcome) error {
	all := o.of(c)
	if len(all) == 0 {
		return errors.New("the card was not submitted")
	}
	out.ID, out.Reference = uuid.NewString(), all[len(all)-1].reference
	o.mu.Lock()
	sink := o.sink
	o.mu.Unlock()
	return sink(ctx, &out)
}

// days returns after how many days a card was submitted.
func (o *office) days(c cardvault.Card, since time.Time) (days []int) {
	for _, s := range o.of(c) {
		days = append(days, int(s.at.Sub(since)/(24*time.Hour)))
	}
	return days
}

const day = 24 * time.Hour

const number = "4242424242424242" // visa's

var amex = cardvault.Card{PAN: card.NewPAN([]byte("378282246310005")), Expiry: card.Expiry{Month: 1, Year: 2040}}

// inOffice runs f in a lab with an account updater.
func inOffice(t *testing.T, opts cardvault.Options, f func(l *lab, o *office)) {
	t.Helper()
	o := new(office)
	opts.Updater = o
	inLab(t, &opts, func(l *lab) { f(l, o) })
}

// days lets days pass, with background work on each.
func (l *lab) days(n int) {
	l.Helper()
	for range n {
		l.pass(day)
		l.drain()
	}
}

// TestUpdaterPeriod: each card is submitted in the first round after it was stored and once
// in each period, until the cardholder opts out. A card that replaces it is submitted again.
func TestUpdaterPeriod(t *testing.T) {
	inOffice(t, cardvault.Options{Mode: cardvault.Live}, func(l *lab, o *office) {
		start := time.Now()
		l.imports(visa)
		l.days(10)
		young, dead := l.imports(mastercard), l.imports(amex)
		l.days(1)
		l.run(func() { l.try(o.pass(l.Context(), amex, updater.Outcome{Kind: updater.Closed})) })
		l.days(64)
		if got := o.days(visa, start); !slices.Equal(got, []int{1, 31, 61}) {
			t.Errorf("the first card is submitted after days %v", got)
		}
		if got := o.days(mastercard, start); !slices.Equal(got, []int{11, 41, 71}) {
			t.Errorf("the second card is submitted after days %v", got)
		}
		if got := len(o.of(amex)); got != 1 || l.get(dead).Status != cardvault.StatusInvalid {
			t.Errorf("a card that was closed is submitted %d times", got)
		}

		// Another process goes on.
		l.restart()
		l.run(func() { l.try(o.pass(l.Context(), mastercard, updater.Outcome{Kind: updater.OptedOut})) })
		l.days(100)
		if got := len(o.of(mastercard)); got != 3 {
			t.Errorf("the card of a cardholder who has opted out is submitted %d times", got)
		}
		if got := len(o.of(visa)); got != 6 {
			t.Errorf("the first card is submitted %d times", got)
		}
		l.must2(l.Replace(l.Context(), young, amex, nil))
		before := len(o.of(amex))
		l.days(31)
		if got := len(o.of(amex)) - before; got != 1 {
			t.Errorf("the card that replaces it is submitted %d times", got)
		}

		keys := map[string]bool{}
		for _, s := range o.submitted {
			keys[s.reference] = true
		}
		if len(keys) != len(o.submitted) {
			t.Errorf("%d references for %d cards", len(keys), len(o.submitted))
		}
	})
}

// TestUpdaterBeforeExpiry: each card is submitted within a month before it expires.
func TestUpdaterBeforeExpiry(t *testing.T) {
	inOffice(t, cardvault.Options{Mode: cardvault.Sandbox}, func(l *lab, o *office) {
		c := visa
		end := time.Now().AddDate(0, 5, 0)
		c.Expiry = card.Expiry{Month: int(end.Month()), Year: end.Year()}
		l.imports(c)
		l.days(200)
		before := slices.ContainsFunc(o.of(c), func(s submittedCard) bool {
			return !c.Expiry.Expired(s.at) && c.Expiry.Expired(s.at.Add(31*day))
		})
		if !before {
			t.Errorf("submitted at %v, the card expires in %v", o.of(c), c.Expiry)
		}
	})
}

// TestUpdaterHangs: a submission that never ends is given up at its deadline and made again
// after a pause. When it still fails after a day, the card waits for its next turn.
func TestUpdaterHangs(t *testing.T) {
	inOffice(t, cardvault.Options{Mode: cardvault.Live}, func(l *lab, o *office) {
		o.hook = func(ctx context.Context, r *updater.SubmitRequest) error {
			<-ctx.Done()
			return ctx.Err()
		}
		l.imports(visa)
		l.run(func() { l.pass(2*day + 12*time.Hour) })
		o.hook = nil
		l.imports(mastercard)
		all := o.of(visa)
		if len(all) < 8 || len(all) > 11 {
			t.Fatalf("%d tries: %v", len(all), all)
		}
		pauses := []time.Duration{30 * time.Second, 2 * time.Minute, 10 * time.Minute, time.Hour}
		for len(pauses) < len(all)-1 {
			pauses = append(pauses, 6*time.Hour)
		}
		for i, pause := range pauses {
			if got := all[i+1].at.Sub(all[i].at) - 30*time.Second; got < pause*4/5 || got > pause*6/5+time.Minute {
				t.Errorf("pause %d is %v, want %v", i, got, pause)
			}
			if all[i+1].key != all[0].key || all[i+1].reference != all[0].reference {
				t.Error("a repetition has another key, or another reference")
			}
		}

		l.days(32)
		if len(o.of(mastercard)) == 0 || len(o.of(visa)) != len(all)+1 {
			t.Errorf("submitted: %v", o.submitted)
		}
		if log := l.log.text(); !strings.Contains(log, "cards are not submitted to the account updater until their next turn") {
			t.Error("the log does not show it")
		}
	})
}

// TestUpdaterRefusesMerchants: submissions of some accounts that fail keep no others from being
// submitted, in this round and in the next ones. Those that would have come after them wait.
func TestUpdaterRefusesMerchants(t *testing.T) {
	inOffice(t, cardvault.Options{Mode: cardvault.Live}, func(l *lab, o *office) {
		bulk := &cardvault.ImportOptions{Bulk: true}
		refused := map[uuid.UUID]bool{}
		accounts := []*cardvault.Vault{l.Vault}
		for range 9 {
			accounts = append(accounts, l.newAccount())
		}
		for i, v := range accounts {
			c := visa
			if i%2 == 0 {
				m, err := v.PrimaryMerchant(l.Context())
				l.must(err)
				refused[m.ID] = true
			} else {
				c = mastercard
			}
			for range 110 {
				l.must2(v.Import(l.Context(), c, bulk))
			}
		}
		calls := map[uuid.UUID]int{}
		o.hook = func(_ context.Context, r *updater.SubmitRequest) error {
			calls[r.Merchant]++
			if refused[r.Merchant] {
				return errors.New("this merchant has no contract")
			}
			return nil
		}

		l.pass(day) // then the next round begins
		start := time.Now()
		l.run(func() { l.pass(time.Hour) })
		if got := o.of(mastercard); len(got) != 5*110 || got[len(got)-1].at.Sub(start) > time.Minute {
			t.Errorf("%d cards of other accounts were submitted", len(got))
		}
		for i := range 35 {
			l.run(func() { l.pass(day) })
			for m := range refused {
				if calls[m] > 12*(i+1) {
					t.Fatalf("%d submissions for an account that is refused, on day %d", calls[m], i)
				}
			}
		}
		if got := len(o.of(mastercard)); got != 2*5*110 {
			t.Errorf("%d cards of other accounts were submitted in 35 days", got)
		}
	})
}

// TestUpdaterDown: when the updater is down for some hours, no card loses its turn.
func TestUpdaterDown(t *testing.T) {
	inOffice(t, cardvault.Options{Mode: cardvault.Live}, func(l *lab, o *office) {
		for i := range 20 {
			v := l.newAccount()
			for range 1 + 110*(i%2) {
				l.must2(v.Import(l.Context(), visa, &cardvault.ImportOptions{Bulk: true}))
			}
		}
		var up atomic.Bool
		var calls atomic.Int64
		o.hook = func(context.Context, *updater.SubmitRequest) error {
			if calls.Add(1); !up.Load() {
				return errors.New("down")
			}
			return nil
		}
		l.run(func() {
			l.pass(12 * time.Hour)
			if n := calls.Load(); n > 8*9 {
				t.Errorf("%d calls of an updater that is down", n)
			}
			up.Store(true)
			l.pass(day)
		})
		references := map[string]bool{}
		for _, s := range o.of(visa) {
			references[s.reference] = true
		}
		if len(references) != 10+10*111 {
			t.Errorf("%d of %d cards were submitted", len(references), 10+10*111)
		}
	})
}

// TestUpdaterFeed: a feed that fails, panics, ends or is down for a day is called again. An
// outcome of a submission before that counts.
func TestUpdaterFeed(t *testing.T) {
	inOffice(t, cardvault.Options{Mode: cardvault.Live}, func(l *lab, o *office) {
		start := time.Now()
		calls := 0
		o.feed = func(context.Context) error {
			switch calls++; {
			case calls == 1:
				panic(number)
			case calls == 2:
				return fmt.Errorf("feed: card %s", number)
			case time.Since(start) < day:
				return errors.New("feed: down")
			}
			return nil
		}
		id := l.imports(visa)
		l.run(func() {
			l.pass(day + 2*time.Minute)
			l.pass(time.Minute)
			l.try(o.pass(l.Context(), visa, updater.Outcome{Kind: updater.Updated, PAN: mastercard.PAN, Expiry: mastercard.Expiry}))
		})
		if calls < 1000 || calls > 1600 {
			t.Errorf("the feed is called %d times in a day", calls)
		}
		if token := l.get(id); token.Scheme != card.Mastercard || token.Expiry != mastercard.Expiry {
			t.Errorf("the token has %v", token.Scheme)
		}
		if log := l.log.text(); strings.Contains(log, number) || !strings.Contains(log, `feed failed and will be restarted" of="account updater" name=office`) {
			t.Errorf("the log: %s", log)
		}
	})
}

// TestUpdaterLog: an outcome is logged and counted, without what it holds. Refused outcomes
// are logged once a minute.
func TestUpdaterLog(t *testing.T) {
	inOffice(t, cardvault.Options{Mode: cardvault.Sandbox}, func(l *lab, o *office) {
		l.imports(visa)
		l.drain()
		l.run(func() {
			for range 2 {
				l.try(o.pass(l.Context(), visa, updater.Outcome{Kind: updater.ContactCardholder}))
			}
			for range 100 {
				l.try(o.pass(l.Context(), visa, updater.Outcome{Kind: 77}))
			}
			l.pass(2 * time.Minute)
			l.try(o.pass(l.Context(), visa, updater.Outcome{Kind: 77}))
			o.mu.Lock()
			reference := o.submitted[0].reference
			o.mu.Unlock()
			l.try(o.sink(l.Context(), &updater.Outcome{ID: "a " + number, Reference: reference, Kind: updater.OptedOut}))
		})
		log := l.log.text()
		if n := strings.Count(log, "outcome=contact_cardholder count="); n != 2 || !strings.Contains(log, "outcome=contact_cardholder count=2") {
			t.Errorf("%d lines about two outcomes", n)
		}
		if n := strings.Count(log, "are refused"); n != 2 || !strings.Contains(log, "count=101") {
			t.Errorf("%d lines about 101 refused outcomes", n)
		}
		if strings.Contains(log, number) || strings.Contains(log, o.submitted[0].reference) {
			t.Errorf("the log shows a number or a reference: %s", log)
		}
		if !strings.Contains(log, "card used") || !strings.Contains(log, "operation=card.submit") {
			t.Errorf("the log does not show that the card was submitted: %s", log)
		}
	})
}

// A doomed store dies at a write: that one and all later ones fail, as for a process that is
// killed.
type doomed struct {
	store.Store
	left int // writes before it dies
}

func (s *doomed) Update(ctx context.Context, fn func(store.Tx) error) error {
	if s.left--; s.left < 0 {
		return fmt.Errorf("%w: the process is dead", store.ErrUnavailable)
	}
	return s.Store.Update(ctx, fn)
}

// TestUpdaterKilled: wherever a process dies, another one submits each card, under the same
// reference if it was submitted before.
func TestUpdaterKilled(t *testing.T) {
	open := map[string]func(t *testing.T) store.Store{
		"memory": func(*testing.T) store.Store { return memstore.New() },
		"file": func(t *testing.T) store.Store {
			s, err := boltstore.Open(t.Context(), filepath.Join(t.TempDir(), "cardvault.db"), nil)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { s.Close() })
			return s
		},
	}
	for name, open := range open {
		t.Run(name, func(t *testing.T) {
			submissions := 0
			for writes := 0; writes < 100; writes++ {
				s := bubble.Outside(t, open(t))
				ended := false
				bubble.Test(t, func(t *testing.T) { ended = killedAfter(t, s, writes, &submissions) })
				if ended {
					break
				}
			}
			if submissions == 0 {
				t.Error("no process died between a submission and its record")
			}
		})
	}
}

// killedAfter has a process die after some writes, and reports whether it has ended its round
// before. repeated counts submissions that the next process repeats.
func killedAfter(t *testing.T, s store.Store, writes int, repeated *int) bool {
	o := new(office)
	l := &lab{TB: t, net: new(scripted), opts: cardvault.Options{Mode: cardvault.Sandbox, Updater: o}}
	l.Vault = l.on(s)
	cards := []cardvault.Card{visa, mastercard, amex}
	for _, c := range cards {
		l.imports(c)
	}
	l.pass(time.Second)

	process := &doomed{s, writes}
	first := l.on(process)
	_ = first.Drain(l.Context())
	first.Close()
	before := len(o.submitted)
	l.pass(5 * time.Minute)
	l.drain()

	for _, c := range cards {
		all := o.of(c)
		if len(all) == 0 {
			t.Fatalf("killed after %d writes: a card is never submitted", writes)
		}
		for _, one := range all {
			if one.key != all[0].key || one.reference != all[0].reference {
				t.Errorf("killed after %d writes: a card is submitted in two submissions", writes)
			}
		}
	}
	if before > 0 && len(o.submitted) > before {
		*repeated++
	}
	return process.left >= 0
}

// TestUpdaterOptions: a vault refuses an updater or a period that it cannot have.
func TestUpdaterOptions(t *testing.T) {
	sim, err := simnet.New(t.Context(), memstore.New(), nil)
	if err != nil {
		t.Fatal(err)
	}
	var none *office
	for what, opts := range map[string]*cardvault.Options{
		"a simulator in live mode": {Updater: sim.Updater()},
		"a nil pointer":            {Updater: none},
		"a short period":           {Updater: new(office), UpdaterPeriod: time.Hour - 1},
		"a long period":            {Updater: new(office), UpdaterPeriod: 91 * day},
	} {
		if _, err := newVault(t, opts); err == nil || !strings.Contains(err.Error(), "Options.Updater") {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestUpdaterSimulated: the outcomes of the simulator reach the tokens, those of the scenario
// whose notice leaves the new number out too.
func TestUpdaterSimulated(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		sim, err := simnet.New(t.Context(), memstore.New(), nil)
		if err != nil {
			t.Fatal(err)
		}
		l := &lab{TB: t, store: &frail{base: memstore.New()}}
		l.opts = cardvault.Options{Mode: cardvault.Sandbox, Network: sim, Updater: sim.Updater(), UpdaterPeriod: time.Hour}
		l.Vault = l.open()
		ids := map[int]uuid.UUID{}
		for _, scenario := range []int{0, 34, 90, 91, 92} {
			ids[scenario] = l.imports(cardvault.Card{PAN: simnet.ScenarioPAN(card.VISA, scenario), Expiry: card.Expiry{Month: 12, Year: 2090}})
		}
		l.run(func() { l.pass(10 * time.Minute) })

		for scenario, want := range map[int]string{0: "0005", 34: "4242", 90: "4242", 91: "0914", 92: "0922"} {
			token := l.get(ids[scenario])
			if token.LastFour != want || token.AccountNumberStale || (token.Status == cardvault.StatusInvalid) != (scenario == 92) {
				t.Errorf("scenario %d: %s, stale: %v, %v", scenario, token.MaskedAccountNumber, token.AccountNumberStale, token.Status)
			}
			if scenario != 92 && token.NetworkTokenStatus != active {
				t.Errorf("scenario %d: the network token is %v", scenario, token.NetworkTokenStatus)
			}
		}
	})
}
