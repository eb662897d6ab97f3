package vaultsuite

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/network"
	"github.com/cardvault/cardvault/receive"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/updater"
	"github.com/cardvault/cardvault/vaulttest"
	"github.com/google/uuid"
)

var renewalBehaviours = []behaviour{
	{"Renewals", renewals},
	{"RenewalOutcomes", renewalOutcomes},
	{"RenewalRefused", renewalRefused},
	{"RenewalLate", renewalLate},
	{"RenewalSubmissionFails", renewalSubmissionFails},
	{"RenewalTwoVaults", renewalTwoVaults},
	{"RenewalRace", renewalRace},
	{"RenewalStale", renewalStale},
	{"RenewalOptOutDamaged", renewalOptOutDamaged},
	{"RenewalExchanged", renewalExchanged},
	{"RenewalRoundDamaged", renewalRoundDamaged},
}

// An inquiry is a card that was submitted.
type inquiry struct {
	key      string
	merchant uuid.UUID
	number   string
	updater.CardRef
}

// An office is an account updater that answers when the test says so.
type office struct {
	name   string
	submit func(call int, r *updater.SubmitRequest) error // after the cards are recorded; may be nil
	passes chan pass

	mu    sync.Mutex
	calls int
	cards []inquiry // also of repetitions
}

// A pass is an outcome on its way to the vault.
type pass struct {
	*updater.Outcome
	done chan error
}

func newOffice() *office { return &office{name: "office", passes: make(chan pass)} }

func (o *office) Info() updater.Info { return updater.Info{Name: o.name} }

func (o *office) Submit(ctx context.Context, r *updater.SubmitRequest) error {
	if _, ok := ctx.Deadline(); !ok || len(r.Cards) == 0 || len(r.Cards) > updater.MaxCards {
		return errors.New("no deadline, or a wrong number of cards")
	}
	o.mu.Lock()
	o.calls++
	call := o.calls
	for _, c := range r.Cards {
		o.cards = append(o.cards, inquiry{r.IdempotencyKey, r.Merchant, digitsOf(c.PAN), c})
	}
	o.mu.Unlock()
	if o.submit != nil {
		return o.submit(call, r)
	}
	return nil
}

func digitsOf(p card.PAN) (digits string) {
	p.Expose(func(b []byte) { digits = string(b) })
	return digits
}

func (o *office) Feed(ctx context.Context, sink func(context.Context, *updater.Outcome) error) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case p := <-o.passes:
			p.done <- sink(ctx, p.Outcome)
		}
	}
}

// tells passes an outcome to a vault that runs.
func (o *office) tells(t testing.TB, what string, outcome *updater.Outcome) {
	t.Helper()
	if err := o.pass(outcome); err != nil {
		t.Errorf("%s: %v", what, err)
	}
}

func (o *office) pass(outcome *updater.Outcome) error {
	p := pass{outcome, make(chan error, 1)}
	select {
	case o.passes <- p:
		return <-p.done
	case <-time.After(time.Minute):
		return errors.New("no vault feeds")
	}
}

// all returns the cards that were submitted.
func (o *office) all() []inquiry {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.cards)
}

// reference returns the last reference under which a card was submitted.
func (o *office) reference(t testing.TB, number string) string {
	t.Helper()
	reference := ""
	for _, c := range o.all() {
		if c.number == number {
			reference = c.Reference
		}
	}
	if reference == "" {
		t.Fatalf("card %s was not submitted", number[12:])
	}
	return reference
}

// outcome returns an outcome about a card that was submitted. Only Updated uses the number.
func (o *office) outcome(t testing.TB, n int, kind updater.Kind, is int, e card.Expiry) *updater.Outcome {
	t.Helper()
	out := &updater.Outcome{ID: fmt.Sprint(canary, uuid.New()), Reference: o.reference(t, suiteNumber(n)), Kind: kind, Expiry: e}
	if kind == updater.Updated {
		out.PAN = testCard(is).PAN
	}
	return out
}

func suiteNumber(n int) string { return cardNumber(canaryNumber, 16, n) }

// renewedTo is an expiry that no test card has.
var renewedTo = card.Expiry{Month: 11, Year: 2094}

// renewing returns a sandbox on s with an account updater.
func renewing(t testing.TB, s store.Store, o *office) *cardvault.Vault {
	t.Helper()
	return vaultOn(t, s, &cardvault.Options{Mode: cardvault.Sandbox, Updater: o, Purposes: []string{purpose}})
}

// runs runs a vault until the test ends, or the returned function is called.
func runs(t testing.TB, v *cardvault.Vault) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- v.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// shows checks the number and the expiry of a token, as they are read and used.
func shows(t testing.TB, v *cardvault.Vault, what string, id uuid.UUID, n int, e card.Expiry) {
	t.Helper()
	token := must(v.Get(t.Context(), id))(t)
	number := suiteNumber(n)
	if token.LastFour != number[12:] || token.Expiry != e {
		t.Errorf("%s: the token shows %s, %v, want %s, %v", what, token.LastFour, token.Expiry, number[12:], e)
	}
	err := v.Use(t.Context(), id, purpose, func(_ context.Context, c *cardvault.UsedCard) error {
		if digitsOf(c.PAN) != number || c.Expiry != e {
			t.Errorf("%s: another card is used than the token shows", what)
		}
		return nil
	})
	if token.Status == cardvault.StatusActive || !errors.Is(err, cardvault.ErrTokenInvalidated) {
		noError(t, err)
	}
}

// renewals: each card is submitted once, in batches of one account, and no card that expires
// with its token.
func renewals(t *testing.T, s store.Store) {
	const many = updater.MaxCards + 30
	plain, ctx := vaultOn(t, s, nil), t.Context()
	other := plain.In(must(plain.CreateAccount(ctx, canary, nil))(t).ID)
	parallel(t, 16, func(worker int) error {
		for i := worker; i < many; i += 16 {
			if _, err := plain.Import(ctx, testCard(i), nil); err != nil {
				return err
			}
		}
		return nil
	})
	importCard(t, other, testCard(1), nil)
	importCard(t, plain, testCard(many), &cardvault.ImportOptions{TokenTTL: time.Hour})

	o := newOffice()
	drain(t, renewing(t, s, o))
	drain(t, renewing(t, s, o))
	all := o.all()
	if len(all) != many+1 || o.calls != 3 {
		t.Errorf("%d cards in %d submissions, want %d in 3", len(all), o.calls, many+1)
	}
	merchants := map[uuid.UUID]int{}
	references, keys := map[string]bool{}, map[string]uuid.UUID{}
	for _, c := range all {
		merchants[c.merchant]++
		references[c.Reference] = true
		if of, known := keys[c.key]; known && of != c.merchant {
			t.Error("a submission has cards of two accounts")
		}
		keys[c.key] = c.merchant
		if c.number == suiteNumber(many) || len(c.Reference) != 52 || c.Scheme != card.VISA || c.Expiry != testCard(0).Expiry {
			t.Errorf("submitted: %v", c.CardRef)
		}
		if digitsOf(c.PAN) == c.number {
			t.Error("a number is not wiped after Submit")
		}
	}
	if len(references) != many+1 || len(keys) != 3 || merchants[must(other.PrimaryMerchant(ctx))(t).ID] != 1 || merchants[must(plain.PrimaryMerchant(ctx))(t).ID] != many {
		t.Errorf("%d references, %d keys, merchants %v", len(references), len(keys), merchants)
	}

	// Another updater has seen no card.
	another := newOffice()
	another.name = "another"
	drain(t, renewing(t, s, another))
	if len(another.all()) != many+1 {
		t.Errorf("another updater gets %d cards", len(another.all()))
	}
}

// A telling is a sink that passes the reasons of events on.
type telling chan receive.EventReason

func (c telling) Event(_ context.Context, e *cardvault.Event) error {
	c <- e.Reason
	return nil
}

// wait waits for these events, and no others.
func (c telling) wait(t testing.TB, want map[receive.EventReason]int) {
	t.Helper()
	for len(want) > 0 {
		select {
		case why := <-c:
			if want[why]--; want[why] < 0 {
				t.Fatalf("an event too many: %v", why)
			}
			if want[why] == 0 {
				delete(want, why)
			}
		case <-time.After(time.Minute):
			t.Fatalf("missing events: %v", want)
		}
	}
}

// renewalOutcomes: each kind of outcome has its effect.
func renewalOutcomes(t *testing.T, s store.Store) {
	o, n, ctx := newOffice(), new(bureau), t.Context()
	told := make(telling, 64)
	opts := &cardvault.Options{Mode: cardvault.Sandbox, Updater: o, Network: n, Purposes: []string{purpose}, Events: told}
	v := vaultOn(t, s, opts)
	var tokens []*cardvault.Token
	for i := range 6 {
		tokens = append(tokens, importCard(t, v, testCard(i), nil))
	}
	drain(t, v)
	runs(t, v)

	for i, kind := range []updater.Kind{updater.Updated, updater.ExpiryChanged, updater.Closed, updater.ContactCardholder, updater.OptedOut, updater.NoMatch} {
		tokens[i] = must(v.Get(ctx, tokens[i].ID))(t)
		o.tells(t, kind.String(), o.outcome(t, i, kind, 100, renewedTo))
	}
	told.wait(t, map[receive.EventReason]int{
		receive.ReasonImported: 6, receive.ReasonNetworkTokenStatusChanged: 7,
		receive.ReasonCardUpdated: 1, receive.ReasonCardUpdatedByIssuer: 1, receive.ReasonInvalidated: 1,
	})

	shows(t, v, "updated", tokens[0].ID, 100, renewedTo)
	checkState(t, v, tokens[0].ID, network.Active, "")
	shows(t, v, "expiry changed", tokens[1].ID, 1, renewedTo)
	dead := must(v.Get(ctx, tokens[2].ID))(t)
	checkState(t, v, dead.ID, network.Deleted, network.CodeAccountClosed)
	if dead.Status != cardvault.StatusInvalid || dead.InvalidatedAt.IsZero() {
		t.Errorf("the token of a closed account is %v since %v", dead.Status, dead.InvalidatedAt)
	}
	eventually(t, v, func() bool { return len(n.left()) == 5 }) // but not of the closed account, and not of the former card
	for i, what := range []string{"contact cardholder", "opted out", "no match"} {
		same(t, what, must(v.Get(ctx, tokens[3+i].ID))(t), tokens[3+i])
	}

	// The record of the cardholder who has opted out goes with the token.
	noError(t, v.Delete(ctx, tokens[4].ID))
	fails(t, "Get", errorOf(v.Get(ctx, tokens[4].ID)), cardvault.ErrNotFound)
}

// renewalRefused: an outcome that cannot be right changes nothing, and is not passed again.
func renewalRefused(t *testing.T, s store.Store) {
	o, ctx := newOffice(), t.Context()
	v := renewing(t, s, o)
	other := v.In(must(v.CreateAccount(ctx, canary, nil))(t).ID)
	mine, theirs := importCard(t, v, testCard(1), nil), importCard(t, other, testCard(2), nil)
	neighbour := importCard(t, v, testCard(3), nil)
	drain(t, v)
	runs(t, v)

	a, b, c := o.reference(t, suiteNumber(1)), o.reference(t, suiteNumber(2)), o.reference(t, suiteNumber(3))
	half := len(a) / 2
	edits := map[string]func(*updater.Outcome){
		"no ID":                     func(o *updater.Outcome) { o.ID = "" },
		"a long ID":                 func(o *updater.Outcome) { o.ID = strings.Repeat("x", 1<<20) },
		"no kind":                   func(o *updater.Outcome) { o.Kind = 0 },
		"an unknown kind":           func(o *updater.Outcome) { o.Kind = 99 },
		"no number":                 func(o *updater.Outcome) { o.PAN = card.PAN{} },
		"four digits":               func(o *updater.Outcome) { o.PAN = card.NewPAN([]byte("4242")) },
		"a wrong check digit":       func(o *updater.Outcome) { o.PAN = card.NewPAN([]byte("4242424242424241")) },
		"no digits":                 func(o *updater.Outcome) { o.PAN = card.NewPAN([]byte("4242x2424242424y")) },
		"a megabyte":                func(o *updater.Outcome) { o.PAN = card.NewPAN([]byte(strings.Repeat("4", 1<<20))) },
		"no expiry":                 func(o *updater.Outcome) { o.Expiry = card.Expiry{} },
		"month 13":                  func(o *updater.Outcome) { o.Expiry.Month = 13 },
		"a negative year":           func(o *updater.Outcome) { o.Expiry.Year = -1 },
		"a past expiry":             func(o *updater.Outcome) { o.Expiry.Year = 2001 },
		"no reference":              func(o *updater.Outcome) { o.Reference = "" },
		"no base32":                 func(o *updater.Outcome) { o.Reference = strings.Repeat("1", len(a)) },
		"an upper-case reference":   func(o *updater.Outcome) { o.Reference = strings.ToUpper(a) },
		"a cut reference":           func(o *updater.Outcome) { o.Reference = a[:half] },
		"a long reference":          func(o *updater.Outcome) { o.Reference = strings.Repeat(a, 1<<15) },
		"a guessed reference":       func(o *updater.Outcome) { o.Reference = strings.Repeat("a", len(a)) },
		"half another token's":      func(o *updater.Outcome) { o.Reference = a[:half+2] + strings.Repeat("a", half-2) },
		"half another account's":    func(o *updater.Outcome) { o.Reference = a[:half] + b[half:] },
		"half of another account's": func(o *updater.Outcome) { o.Reference = b[:half] + a[half:] },
	}
	for what, edit := range edits {
		for _, kind := range []updater.Kind{updater.Updated, updater.Closed} {
			out := o.outcome(t, 1, kind, 100, renewedTo)
			if edit(out); kind == updater.Closed && !strings.Contains(what, "reference") && !strings.Contains(what, "half") {
				continue // a closed card has neither number nor expiry
			}
			o.tells(t, what, out)
		}
	}
	o.tells(t, "no outcome", nil)
	for _, token := range []*cardvault.Token{mine, neighbour} {
		same(t, "a token after outcomes that are refused", must(v.Get(ctx, token.ID))(t), token)
	}
	same(t, "a token of another account", must(other.Get(ctx, theirs.ID))(t), theirs)

	// The reference of one token changes no other.
	o.tells(t, "closed", &updater.Outcome{ID: "1", Reference: c, Kind: updater.Closed})
	same(t, "another token of the submission", must(v.Get(ctx, mine.ID))(t), mine)
	if got := must(v.Get(ctx, neighbour.ID))(t); got.Status != cardvault.StatusInvalid {
		t.Errorf("the token of a closed account is %v", got.Status)
	}

	// A vault with another updater knows none of the references.
	another := newOffice()
	another.name = "another"
	w := renewing(t, s, another)
	runs(t, w)
	another.tells(t, "the reference of another updater", o.outcome(t, 1, updater.Closed, 0, card.Expiry{}))
	same(t, "after another updater's outcome", must(v.Get(ctx, mine.ID))(t), mine)
}

// renewalLate: an outcome counts once, and not for a card that the token had before.
func renewalLate(t *testing.T, s store.Store) {
	o, ctx := newOffice(), t.Context()
	v := renewing(t, s, o)
	var ids []uuid.UUID
	for i := range 7 {
		ids = append(ids, importCard(t, v, testCard(i), nil).ID)
	}
	drain(t, v)
	runs(t, v)
	was := testCard(0).Expiry
	sooner := card.Expiry{Month: 1, Year: 2093}

	// Twice, under the same ID and under another one; also after the first number is back.
	first := o.outcome(t, 0, updater.Updated, 100, renewedTo)
	o.tells(t, "updated", first)
	o.tells(t, "updated, again", first)
	o.tells(t, "updated to another number", o.outcome(t, 0, updater.Updated, 101, sooner))
	o.tells(t, "closed after it was updated", o.outcome(t, 0, updater.Closed, 0, card.Expiry{}))
	shows(t, v, "updated twice", ids[0], 100, renewedTo)
	must(v.Replace(ctx, ids[0], testCard(0), nil))(t)
	o.tells(t, "updated, again", first)
	shows(t, v, "updated again after the number is back", ids[0], 0, was)

	o.tells(t, "a new expiry", o.outcome(t, 1, updater.ExpiryChanged, 0, renewedTo))
	o.tells(t, "another new expiry", o.outcome(t, 1, updater.ExpiryChanged, 0, sooner))
	shows(t, v, "two expiries", ids[1], 1, renewedTo)

	must(v.Replace(ctx, ids[2], testCard(102), nil))(t)
	for _, kind := range []updater.Kind{updater.Updated, updater.ExpiryChanged, updater.Closed, updater.OptedOut} {
		o.tells(t, "after another replacement", o.outcome(t, 2, kind, 103, renewedTo))
	}
	shows(t, v, "replaced meanwhile", ids[2], 102, was)

	must(v.Update(ctx, ids[3], cardvault.TokenUpdate{Expiry: &sooner}))(t)
	o.tells(t, "a new expiry after another", o.outcome(t, 3, updater.ExpiryChanged, 0, renewedTo))
	o.tells(t, "closed after another expiry", o.outcome(t, 3, updater.Closed, 0, card.Expiry{}))
	shows(t, v, "expiry updated meanwhile", ids[3], 3, sooner)
	if got := must(v.Get(ctx, ids[3]))(t); got.Status != cardvault.StatusActive {
		t.Error("a card whose expiry was updated is closed by an older submission")
	}

	// The number of before is no new number.
	o.tells(t, "the same card", o.outcome(t, 4, updater.Updated, 4, was))
	shows(t, v, "the same card", ids[4], 4, was)
	o.tells(t, "the same number", o.outcome(t, 4, updater.Updated, 4, renewedTo))
	shows(t, v, "the same number", ids[4], 4, renewedTo)

	noError(t, v.Delete(ctx, ids[5]))
	for _, kind := range []updater.Kind{updater.Updated, updater.ExpiryChanged, updater.Closed, updater.OptedOut, updater.NoMatch} {
		o.tells(t, "after a deletion", o.outcome(t, 5, kind, 105, renewedTo))
	}
	fails(t, "Get of a token that was deleted", errorOf(v.Get(ctx, ids[5])), cardvault.ErrNotFound)

	o.tells(t, "closed", o.outcome(t, 6, updater.Closed, 0, card.Expiry{}))
	o.tells(t, "a new expiry after it was closed", o.outcome(t, 6, updater.ExpiryChanged, 0, renewedTo))
	if got := must(v.Get(ctx, ids[6]))(t); got.Status != cardvault.StatusInvalid || got.Expiry != was {
		t.Errorf("a card that was closed is %v until %v", got.Status, got.Expiry)
	}
	if p := must(v.List(ctx, nil))(t); p.TotalItems != 6 {
		t.Errorf("%d tokens, want 6", p.TotalItems)
	}
}

// renewalSubmissionFails: a submission whose outcome is unknown is made again under its key,
// without the tokens that were deleted or replaced meanwhile.
func renewalSubmissionFails(t *testing.T, s store.Store) {
	o, ctx := newOffice(), t.Context()
	v := renewing(t, s, o)
	var ids []uuid.UUID
	for i := range 4 {
		ids = append(ids, importCard(t, v, testCard(i), nil).ID)
	}
	accepted := make(chan struct{})
	o.submit = func(call int, r *updater.SubmitRequest) error {
		switch call {
		case 1: // it has accepted half of the cards
			return errors.Join(v.Delete(ctx, ids[0]), fmt.Errorf("card %s is not accepted", digitsOf(r.Cards[0].PAN)))
		case 2:
			_, err := v.Replace(ctx, ids[1], testCard(101), nil)
			panic(fmt.Sprint(err, digitsOf(r.Cards[0].PAN)))
		}
		close(accepted)
		return nil
	}
	stop := runs(t, v)
	select {
	case <-accepted:
	case <-time.After(time.Minute):
		t.Fatal("the submission is not made again")
	}
	stop()
	drain(t, v)

	var got []string
	references := map[string]string{}
	for _, c := range o.all() {
		if former := references[c.number]; former != "" && former != c.Reference || c.key != o.all()[0].key {
			t.Error("a repetition has another reference, or another key")
		}
		references[c.number] = c.Reference
		got = append(got, c.number[14:15])
	}
	if text := strings.Join(got, ""); text != "0123"+"123"+"23" {
		t.Errorf("cards of the three calls: %s", text)
	}
}

// renewalTwoVaults: two processes submit each card once.
func renewalTwoVaults(t *testing.T, s store.Store) {
	const many = 2*updater.MaxCards + 20
	plain, ctx := vaultOn(t, s, nil), t.Context()
	parallel(t, 16, func(worker int) error {
		for i := worker; i < many; i += 16 {
			if _, err := plain.Import(ctx, testCard(i), nil); err != nil {
				return err
			}
		}
		return nil
	})

	o := newOffice()
	vaults := []*cardvault.Vault{renewing(t, s, o), renewing(t, s, o), renewing(t, s, o)}
	parallel(t, len(vaults), func(i int) error { return vaults[i].Drain(ctx) })
	drain(t, vaults[0])

	references := map[string]string{}
	for _, c := range o.all() {
		if former := references[c.number]; former != "" && former != c.Reference {
			t.Error("a card is submitted twice")
		}
		references[c.number] = c.Reference
	}
	if len(references) != many {
		t.Errorf("%d cards are submitted, want %d", len(references), many)
	}
}

// renewalStale: a card whose number the scheme has replaced is submitted as it was. Its token
// lives on the next card, which only a new number concerns.
func renewalStale(t *testing.T, s store.Store) {
	o, n, sink, ctx := newOffice(), new(bureau), new(vaulttest.Recorder), t.Context()
	plain := vaultOn(t, s, &cardvault.Options{Mode: cardvault.Sandbox, Network: n})
	token := importCard(t, plain, testCard(0), nil)
	drain(t, plain)
	notice := suspended(1, time.Now(), n.left()[0])
	notice.Kind, notice.Card = network.NoticeCardReplaced, &network.CardState{LastFour: "9876", Expiry: renewedTo}
	noError(t, plain.Notify(ctx, notice))

	v := vaultOn(t, s, &cardvault.Options{Mode: cardvault.Sandbox, Network: n, Updater: o, Events: sink, Purposes: []string{purpose}})
	drain(t, v)
	runs(t, v)
	if all := o.all(); len(all) != 1 || all[0].number != suiteNumber(0) || all[0].Expiry != testCard(0).Expiry {
		t.Errorf("submitted: %v", all)
	}
	stale := must(v.Get(ctx, token.ID))(t)
	for _, kind := range []updater.Kind{updater.Closed, updater.ExpiryChanged} {
		o.tells(t, kind.String(), o.outcome(t, 0, kind, 0, card.Expiry{Month: 10, Year: 2095}))
		same(t, kind.String(), must(v.Get(ctx, token.ID))(t), stale)
	}
	o.tells(t, "updated", o.outcome(t, 0, updater.Updated, 100, renewedTo))
	shows(t, v, "updated", token.ID, 100, renewedTo)
	eventually(t, v, func() bool { return len(sink.Events()) > 0 && len(n.left()) == 1 })
	for _, e := range sink.Events() {
		if e.Reason == receive.ReasonCardUpdatedByIssuer && e.PreviousLastFour != token.LastFour {
			t.Errorf("the number before ended with %s", e.PreviousLastFour)
		}
	}
}

// A logged text may be written concurrently.
type logged struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logged) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// A blind store cannot read records of a kind.
type blind struct {
	store.Store
	kind store.Kind
}

func (s *blind) View(ctx context.Context, fn func(store.ReadTx) error) error {
	return s.Store.View(ctx, func(tx store.ReadTx) error { return fn(&blindTx{tx, s.kind}) })
}

type blindTx struct {
	store.ReadTx
	kind store.Kind
}

func (tx *blindTx) Get(kind store.Kind, id uuid.UUID) (*store.Record, error) {
	r, err := tx.ReadTx.Get(kind, id)
	if kind == tx.kind && err == nil {
		return nil, fmt.Errorf("%w: row cannot be read", store.ErrDamaged)
	}
	return r, err
}

// renewalOptOutDamaged: of a card whose opt-out cannot be read the holder has opted out. It
// keeps no other card from being submitted.
func renewalOptOutDamaged(t *testing.T, s store.Store) {
	const kindOptOut store.Kind = 33
	o := newOffice()
	v := renewing(t, s, o)
	for i := range 3 {
		importCard(t, v, testCard(i), nil)
	}
	drain(t, v)
	stop := runs(t, v)
	o.tells(t, "opted out", o.outcome(t, 1, updater.OptedOut, 0, card.Expiry{}))
	stop()

	another := newOffice()
	another.name = "another"
	log := new(logged)
	blinded := vaultOn(t, &blind{s, kindOptOut}, &cardvault.Options{Mode: cardvault.Sandbox, Updater: another, Logger: slog.New(slog.NewTextHandler(log, nil))})
	drain(t, blinded)
	var numbers []string
	for _, c := range another.all() {
		numbers = append(numbers, c.number)
	}
	if slices.Sort(numbers); !slices.Equal(numbers, []string{suiteNumber(0), suiteNumber(2)}) {
		t.Errorf("submitted: %v", numbers)
	}
	if text := log.String(); strings.Count(text, "card cannot be submitted to the account updater") != 1 {
		t.Errorf("log: %s", text)
	}
}

// renewalRace: outcomes come while callers replace and delete the same tokens. Each token has
// the number that it shows.
func renewalRace(t *testing.T, s store.Store) {
	const many = 24
	o, ctx := newOffice(), t.Context()
	v := renewing(t, s, o)
	ids := make([]uuid.UUID, many)
	for i := range ids {
		ids[i] = importCard(t, v, testCard(i), nil).ID
	}
	drain(t, v)
	runs(t, v)

	parallel(t, 3*many, func(i int) error {
		switch n := i / 3; i % 3 {
		case 0:
			return o.pass(o.outcome(t, n, updater.Updated, 100+n, renewedTo))
		case 1:
			_, err := v.Replace(ctx, ids[n], testCard(200+n), nil)
			if errors.Is(err, cardvault.ErrCardReplaced) || n%4 == 0 && errors.Is(err, cardvault.ErrNotFound) {
				return nil
			}
			return err
		default:
			if n%4 == 0 {
				return v.Delete(ctx, ids[n])
			}
			return o.pass(o.outcome(t, n, updater.Closed, 0, card.Expiry{}))
		}
	})

	for n, id := range ids {
		token, err := v.Get(ctx, id)
		if n%4 == 0 {
			fails(t, "Get of a token that was deleted", err, cardvault.ErrNotFound)
			continue
		}
		noError(t, err)
		switch token.LastFour {
		case suiteNumber(n)[12:]:
			shows(t, v, "closed", id, n, testCard(n).Expiry)
		case suiteNumber(100 + n)[12:]:
			shows(t, v, "updated", id, 100+n, renewedTo)
		case suiteNumber(200 + n)[12:]:
			shows(t, v, "replaced", id, 200+n, testCard(n).Expiry)
		default:
			t.Errorf("the token shows %s", token.LastFour)
		}
	}
}

// An interrupting store lets something happen before the first write of a kind of record.
type interrupting struct {
	store.Store
	kind store.Kind
	then func()
}

var errInterrupted = errors.New("interrupted")

func (s *interrupting) Update(ctx context.Context, fn func(store.Tx) error) error {
	if s.then == nil {
		return s.Store.Update(ctx, fn)
	}
	err := s.Store.Update(ctx, func(tx store.Tx) error {
		var put []*store.Record
		if err := fn(watchedTx{tx, &put}); err != nil {
			return err
		}
		if slices.ContainsFunc(put, func(r *store.Record) bool { return r.Kind == s.kind }) {
			return errInterrupted
		}
		return nil
	})
	if errors.Is(err, errInterrupted) {
		then := s.then
		s.then = nil
		then()
		err = s.Store.Update(ctx, fn)
	}
	return err
}

const kindRound store.Kind = 31

// renewalExchanged: a vault opens with another updater while a process with the former one goes
// on with its round. All cards are submitted to the other one.
func renewalExchanged(t *testing.T, s store.Store) {
	former, next := newOffice(), newOffice()
	next.name = "next"
	old := renewing(t, s, former)
	for i := range 3 {
		importCard(t, old, testCard(i), nil)
	}

	v := renewing(t, &interrupting{Store: s, kind: kindRound, then: func() { drain(t, old) }}, next)
	drain(t, v)
	if len(former.all()) != 3 || len(next.all()) != 3 {
		t.Errorf("%d cards are submitted to the former updater, %d to the next", len(former.all()), len(next.all()))
	}
}

// renewalRoundDamaged: a vault opens although its place in the round of the updater cannot be
// read, and begins anew.
func renewalRoundDamaged(t *testing.T, s store.Store) {
	o := newOffice()
	v := renewing(t, s, o)
	importCard(t, v, testCard(0), nil)
	drain(t, v)

	noError(t, s.Update(t.Context(), func(tx store.Tx) error {
		rounds, err := tx.Scan(kindRound, uuid.Nil, 1)
		if err != nil {
			return err
		}
		r := rounds[0].Clone()
		r.Version++
		r.Shown[len(r.Shown)-1] ^= 1
		tx.Put(r)
		return nil
	}))
	drain(t, renewing(t, s, o))
	if all := o.all(); len(all) != 2 {
		t.Errorf("%d cards are submitted, want 2", len(all))
	}
}
