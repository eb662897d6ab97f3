// Package idvtest proves that an [idv.Provider] keeps its contract.
//
// The author of one writes one test, against the test system of the service or a server of
// his own that answers as that does:
//
//	func TestProvider(t *testing.T) {
//		idvtest.Run(t, idvtest.Harness{
//			Open:   func(testing.TB) idv.Provider { return my3ds.New(testSystem) },
//			Scheme: card.VISA,
//			Card:   cardvault.Card{PAN: card.NewPAN([]byte("4111111111111111")), Expiry: expiry},
//		})
//	}
//
// Each subtest is one rule. When it fails it says the rule and why a vault depends on it.
package idvtest

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/idv"
	"github.com/cardvault/cardvault/internal/contract"
	"github.com/cardvault/cardvault/vaulttest"
	"github.com/google/uuid"
)

// A Harness says how to test a provider. Open, Card and Scheme are required.
type Harness struct {
	// Open returns the provider, a new one or the same each time: all know what any of
	// them has begun. It may skip or fail the test that it is given, and uses its Cleanup.
	Open func(t testing.TB) idv.Provider

	// Card can be identified any number of times.
	Card   cardvault.Card
	Scheme card.Scheme // of the cards

	// Answer acts as the shopper on a pending identification: it passes or fails it. If
	// nil, Card's are passed by themselves, within a minute, and failures are tested only
	// with Failing.
	Answer func(ctx context.Context, p idv.Provider, reference string, pass bool) error

	// Failing is a card whose identification fails, without Answer. If it has no number,
	// that is not tested.
	Failing cardvault.Card
}

// Run checks every rule of the contract.
func Run(t *testing.T, h Harness) { contract.Run(t, rules, h.suite) }

// A suite is a provider under test. All calls go through it.
type suite struct {
	Harness
	provider idv.Provider
}

func (h Harness) suite(t testing.TB) *suite {
	switch {
	case h.Open == nil:
		t.Fatal("idvtest: Harness.Open is missing")
	case h.Card.PAN.IsZero():
		t.Fatal("idvtest: Harness.Card has no number")
	}
	s := &suite{h, h.Open(t)}
	if s.provider == nil {
		t.Fatal("idvtest: Harness.Open returned nil")
	}
	return s
}

var rules = []contract.Rule[*suite]{{
	Name: "Info",
	Why: `Info is always the same. Its Name is 1 to 40 of a-z, 0-9, "_" and "-", beginning with a
letter or digit, and SandboxOnly keeps the provider from real cards: a vault asks when it opens.`,
	Check: info,
}, {
	Name: "Passed",
	Why: `A successful identification is Passed, with an Authentication that a token can show: a method,
and status, ECI and time in their form. The vault accepts no other answer.`,
	Check: passed,
}, {
	Name: "Failed",
	Why: `A failed identification is Failed, without an Authentication, and stays so. After an error the
shopper waits until the session expires.`,
	Check: failed,
}, {
	Name: "Again",
	Why: `Under an idempotency key that was used before, Identify returns the state of that
identification, even without the security code, and begins no other. A vault whose call was
cut off calls again, and otherwise the shopper would be asked twice.`,
	Check: again,
}, {
	Name: "AtOnce",
	Why: `The same holds for concurrent calls: after a deadline the vault repeats a call that the
provider may still be processing.`,
	Check: atOnce,
}, {
	Name: "Another",
	Why: `Another idempotency key is another identification, even of the same card: passing one must not
pass the identification of another shopper.`,
	Check: another,
}, {
	Name: "Restart",
	Why: `A second provider continues an identification of the first: another process may ask, and any
process may be restarted while a shopper is at a challenge.`,
	Check: restart,
}, {
	Name: "UnknownReference",
	Why: `LookupIdentification of an unknown reference is Failed, and never Passed or NotNeeded.
Otherwise a token would be made for a card whose holder was never identified.`,
	Check: unknown,
}, {
	Name: "ContextEnded",
	Why: `A call whose context has ended returns at once, with the error of the context: the vault calls
again. Failed would end the session of a shopper who did nothing wrong.`,
	Check: contextEnded,
}, {
	Name: "NoCardData",
	Why: `No answer and no error contains the card number: references are stored and URLs are shown. All
rules check this. This rule asks the provider about cards that it cannot know.`,
	Check: noCardData,
}, {
	Name:  "Concurrency",
	Why:   `All methods may be called concurrently. No call returns another call's result.`,
	Check: concurrency,
}}

// identify begins an identification and wipes the card, as a vault does.
func (s *suite) identify(ctx context.Context, t testing.TB, c cardvault.Card, key string) (*idv.Result, error) {
	t.Helper()
	r := &idv.Request{IdempotencyKey: key, Scheme: s.Scheme, Expiry: c.Expiry}
	var pan string
	c.PAN.Expose(func(digits []byte) { pan, r.PAN = string(digits), card.NewPAN(digits) })
	c.SecurityCode.Expose(func(digits []byte) { r.SecurityCode = card.NewSecurityCode(digits) })
	c.Name.Expose(func(text []byte) { r.Name = card.NewName(text) })
	c.Contact.Expose(func(object []byte) { r.Contact = card.NewContact(object) })

	got, err := s.provider.Identify(ctx, r)
	r.PAN.Wipe()
	r.SecurityCode.Wipe()
	r.Name.Wipe()
	r.Contact.Wipe()
	vaulttest.AssertNoLeak(t, []string{pan}, got, err)
	if err == nil {
		err = s.check(got)
	}
	return got, err
}

// begin is identify for Harness.Card and a key of its own.
func (s *suite) begin(t testing.TB, key string) *idv.Result {
	t.Helper()
	got, err := s.identify(t.Context(), t, s.Card, key)
	if err != nil {
		t.Fatalf("Identify of Harness.Card: %v", err)
	}
	if got.State == idv.NotNeeded {
		t.Fatal("Identify of Harness.Card: NotNeeded, want an identification")
	}
	return got
}

func (s *suite) lookup(ctx context.Context, p idv.Provider, reference string) (*idv.Result, error) {
	got, err := p.LookupIdentification(ctx, &idv.LookupRequest{Reference: reference})
	if err == nil {
		err = s.check(got)
	}
	return got, err
}

// end returns a result that is pending no more.
func (s *suite) end(t testing.TB, p idv.Provider, got *idv.Result, pass bool) *idv.Result {
	t.Helper()
	if got.State != idv.Pending {
		return got
	}
	reference := got.Reference
	if s.Answer != nil {
		if err := s.Answer(t.Context(), p, reference, pass); err != nil {
			t.Fatalf("Harness.Answer: %v", err)
		}
	}

	patience := contract.Promptness(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	for got.State == idv.Pending {
		select {
		case <-ctx.Done():
			t.Fatalf("an identification stays Pending for %v", patience)
		case <-look.C:
		}
		var err error
		if got, err = s.lookup(ctx, p, reference); err != nil {
			t.Fatalf("LookupIdentification: %v", err)
		}
	}
	return got
}

// check returns an error for a wrong result.
func (s *suite) check(got *idv.Result) error {
	what := ""
	switch {
	case got == nil:
		what = "neither a result nor an error"
	case got.State < idv.Pending || got.State > idv.Failed:
		what = "State is unknown"
	case got.State == idv.Pending && (got.Reference == "" || len(got.Reference) > 255):
		what = "Reference of a pending identification must have 1 to 255 bytes"
	case got.State == idv.Pending && got.ChallengeURL != "" && !s.challenge(got.ChallengeURL):
		what = "ChallengeURL must be https, in a sandbox also http on the loopback, of at most 2048 printable characters"
	case got.State == idv.Passed:
		return checkAuthentication(got.Authentication)
	case got.Authentication != nil:
		what = "Authentication is set, but State is not Passed"
	}
	if what != "" {
		return errors.New("idvtest: result: " + what)
	}
	return nil
}

func (s *suite) challenge(text string) bool {
	u, err := url.Parse(text)
	if err != nil || len(text) > 2048 || u.Hostname() == "" || u.User != nil || !regexp.MustCompile(`^[!-~]+$`).MatchString(text) {
		return false
	}
	local := slices.Contains([]string{"localhost", "127.0.0.1", "::1"}, u.Hostname())
	return u.Scheme == "https" || u.Scheme == "http" && local && s.provider.Info().SandboxOnly
}

func checkAuthentication(a *idv.Authentication) error {
	what := ""
	switch {
	case a == nil:
		what = "it is missing, but State is Passed"
	case !slices.Contains([]string{"three_ds", "security_code", "otp", "passkey"}, a.Method):
		what = "Method must be three_ds, security_code, otp or passkey"
	case !regexp.MustCompile(`^[A-Z]?$`).MatchString(a.Status):
		what = `Status must be a capital letter or ""`
	case !regexp.MustCompile(`^([0-9]{2})?$`).MatchString(a.ECI):
		what = `ECI must be two digits or ""`
	case a.DSTransactionID != "" && !isUUID(a.DSTransactionID):
		what = `DSTransactionID must be a UUID or ""`
	case time.Since(a.At) > 24*time.Hour || time.Until(a.At) > time.Hour:
		what = "At must be the time of the identification"
	}
	if what != "" {
		return errors.New("idvtest: Authentication: " + what)
	}
	return nil
}

func isUUID(text string) bool {
	id, err := uuid.Parse(text)
	return err == nil && id.String() == text
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

// passes ends an identification of Harness.Card well.
func (s *suite) passes(t testing.TB, p idv.Provider, got *idv.Result) *idv.Result {
	t.Helper()
	end := s.end(t, p, got, true)
	if end.State != idv.Passed {
		t.Fatalf("the identification of Harness.Card ends in state %d, want Passed", end.State)
	}
	return end
}

func passed(t testing.TB, s *suite) {
	key := uuid.NewString()
	end := s.passes(t, s.provider, s.begin(t, key))
	got, err := s.identify(t.Context(), t, s.Card, key)
	if err != nil || got.State != idv.Passed || !agree(got, end) {
		t.Errorf("Identify under the key of a passed identification: %+v, %v, want the same", got, err)
	}
}

func failed(t testing.TB, s *suite) {
	c, what := s.Failing, "Harness.Failing"
	if c.PAN.IsZero() {
		if s.Answer == nil {
			t.Log("not checked: there is neither Harness.Failing nor Harness.Answer")
			return
		}
		c, what = s.Card, "Harness.Card, which the shopper fails"
	}

	key := uuid.NewString()
	for range 2 {
		got, err := s.identify(t.Context(), t, c, key)
		if err != nil {
			t.Fatalf("Identify of %s: %v", what, err)
		}
		if end := s.end(t, s.provider, got, false); end.State != idv.Failed {
			t.Errorf("the identification of %s ends in state %d, want Failed", what, end.State)
		}
	}
}

func again(t testing.TB, s *suite) {
	key := uuid.NewString()
	first := s.begin(t, key)
	without := s.Card
	without.SecurityCode = card.SecurityCode{}
	got, err := s.identify(t.Context(), t, without, key)
	if err != nil {
		t.Fatalf("Identify under the same key, without the security code: %v", err)
	}
	if first.State != idv.Pending && got.State == idv.Pending || !agree(first, got) {
		t.Errorf("Identify under the same key begins another identification: %s, after %s", said(got), said(first))
	}
}

// agree reports whether two results can be of one identification, which may have ended meanwhile.
func agree(a, b *idv.Result) bool {
	switch {
	case a.State == idv.Pending && b.State == idv.Pending:
		return a.Reference == b.Reference
	case a.State == idv.Pending || b.State == idv.Pending:
		return true
	case a.State != b.State || a.Authentication == nil || b.Authentication == nil:
		return a.State == b.State
	}
	first, second := *a.Authentication, *b.Authentication
	if !first.At.Equal(second.At) {
		return false
	}
	first.At = second.At
	return first == second
}

// said describes a result.
func said(got *idv.Result) string {
	return fmt.Sprintf("state %d, %+v", got.State, got.Authentication)
}

func atOnce(t testing.TB, s *suite) {
	key := uuid.NewString()
	results := make([]*idv.Result, 16)
	contract.Parallel(t, len(results), func(i int) (err error) {
		results[i], err = s.identify(t.Context(), t, s.Card, key)
		return err
	})
	for i, got := range results {
		if slices.ContainsFunc(results[:i], func(other *idv.Result) bool { return !agree(got, other) }) {
			t.Fatal("calls of Identify at once under one key begin more than one identification")
		}
	}
}

func another(t testing.TB, s *suite) {
	first, second := s.begin(t, uuid.NewString()), s.begin(t, uuid.NewString())
	if first.State == idv.Pending && second.State == idv.Pending && first.Reference == second.Reference {
		t.Fatal("two keys have the same identification")
	}
	if s.Answer == nil || second.State != idv.Pending {
		return
	}
	s.passes(t, s.provider, first)
	if got, err := s.lookup(t.Context(), s.provider, second.Reference); err != nil || got.State != idv.Pending {
		t.Errorf("an unanswered identification: %+v, %v, want Pending", got, err)
	}
}

func restart(t testing.TB, s *suite) { s.passes(t, s.Open(t), s.begin(t, uuid.NewString())) }

func unknown(t testing.TB, s *suite) {
	references := []string{"", "x", uuid.NewString()}
	if got := s.begin(t, uuid.NewString()); got.State == idv.Pending {
		references = append(references, got.Reference+"0", got.Reference[1:])
	}
	for _, reference := range references {
		if got, err := s.lookup(t.Context(), s.provider, reference); err != nil || got.State != idv.Failed {
			t.Errorf("LookupIdentification of an unknown reference: %+v, %v, want Failed", got, err)
		}
	}
}

func contextEnded(t testing.TB, s *suite) {
	contract.Ended(t, "Identify", func(ctx context.Context) error {
		got, err := s.identify(ctx, t, s.Card, uuid.NewString())
		if err == nil && got.State == idv.Failed {
			err = errors.New("it is Failed")
		}
		return err
	})
	got := s.begin(t, uuid.NewString())
	if got.State != idv.Pending {
		return
	}
	contract.Ended(t, "LookupIdentification", func(ctx context.Context) error {
		got, err := s.lookup(ctx, s.provider, got.Reference)
		if err == nil && got.State == idv.Failed {
			err = errors.New("it is Failed")
		}
		return err
	})
}

func noCardData(t testing.TB, s *suite) {
	var pan string
	s.Card.PAN.Expose(func(d []byte) { pan = string(d) })
	wrong := pan[:len(pan)-1] + string('0'+(pan[len(pan)-1]-'0'+1)%10)
	for what, edit := range map[string]func(*cardvault.Card){
		"a number that fails the Luhn check": func(c *cardvault.Card) { c.PAN = card.NewPAN([]byte(wrong)) },
		"a card that has expired":            func(c *cardvault.Card) { c.Expiry.Year = 2001 },
		"a card without expiry":              func(c *cardvault.Card) { c.Expiry = card.Expiry{} },
	} {
		c := s.Card
		edit(&c)
		if _, err := s.identify(t.Context(), t, c, uuid.NewString()); err != nil {
			t.Logf("%s: %v", what, err)
		}
	}
}

func concurrency(t testing.TB, s *suite) {
	const callers = 16
	references := make([]string, callers)
	contract.Parallel(t, callers, func(i int) error {
		got, err := s.identify(t.Context(), t, s.Card, uuid.NewString())
		if err != nil || got.State != idv.Pending {
			return err
		}
		references[i] = got.Reference
		found, err := s.lookup(t.Context(), s.provider, got.Reference)
		if err == nil && found.State == idv.Pending && found.Reference != got.Reference {
			err = fmt.Errorf("LookupIdentification returns another identification")
		}
		return err
	})
	references = slices.DeleteFunc(references, func(r string) bool { return r == "" })
	if n := len(slices.Compact(slices.Sorted(slices.Values(references)))); n != len(references) {
		t.Errorf("%d identifications at once have %d references", len(references), n)
	}
}
