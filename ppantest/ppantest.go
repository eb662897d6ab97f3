// Package ppantest proves that a [ppan.Provider] keeps its contract.
//
// The author of one writes one test, against the test system of the payment provider or a
// server of his own that answers as that does:
//
//	func TestProvider(t *testing.T) {
//		ppantest.Run(t, ppantest.Harness{
//			Open:    func(testing.TB) ppan.Provider { return mypsp.New(testSystem) },
//			Account: ppan.Account{AID: aid, MID: mid, PortalID: portal, Hash: hash},
//			Card:    cardvault.Card{PAN: card.NewPAN([]byte("4111111111111111")), Expiry: expiry},
//		})
//	}
//
// Each subtest is one rule. When it fails it says the rule and why a vault depends on it.
package ppantest

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/internal/contract"
	"github.com/cardvault/cardvault/internal/plausible"
	"github.com/cardvault/cardvault/ppan"
	"github.com/cardvault/cardvault/vaulttest"
)

// A Harness says how to test a provider. Open, Account and Card are required.
type Harness struct {
	// Open returns the provider, a new one or the same each time. It may skip or fail the
	// test that it is given, and uses its Cleanup.
	Open func(t testing.TB) ppan.Provider

	Account ppan.Account   // known to the provider, with the right hash
	Card    cardvault.Card // receives a pseudo card number on every request

	// Refused is a card that the provider does not take. If it has no number, that is not
	// tested.
	Refused cardvault.Card

	// Stranger is an account that the provider does not know. If it is zero, that is not
	// tested.
	Stranger ppan.Account
}

// Run checks every rule of the contract.
func Run(t *testing.T, h Harness) { contract.Run(t, rules, h.suite) }

// A suite is a provider under test. All calls go through it.
type suite struct {
	Harness
	provider ppan.Provider
}

func (h Harness) suite(t testing.TB) *suite {
	switch {
	case h.Open == nil:
		t.Fatal("ppantest: Harness.Open is missing")
	case h.Card.PAN.IsZero():
		t.Fatal("ppantest: Harness.Card has no number")
	}
	s := &suite{h, h.Open(t)}
	if s.provider == nil {
		t.Fatal("ppantest: Harness.Open returned nil")
	}
	return s
}

var rules = []contract.Rule[*suite]{{
	Name: "Info",
	Why: `Info is always the same. Its Name is 1 to 40 of a-z, 0-9, "_" and "-", beginning with a
letter or digit, and SandboxOnly keeps the provider from real cards: a vault asks when it opens.`,
	Check: info,
}, {
	Name: "Valid",
	Why: `A card that the provider accepts is Valid, with a pseudo card number of 16 to 19 digits that
is not the card's number. Texts have at most 255 characters. The vault accepts no other
answer.`,
	Check: valid,
}, {
	Name: "Refused",
	Why: `A card that the provider refuses is an Answer with the status Invalid, without a pseudo card
number and with the reason. After an error the shop would not know whether the card was
accepted.`,
	Check: refused,
}, {
	Name: "Stranger",
	Why: `A request that the provider refuses, for example for an unknown account, is an Answer with the
status Error, whatever its HTTP status was.`,
	Check: stranger,
}, {
	Name: "NoCardData",
	Why: `No text of an answer and no error contains the card number, the security code or the hash. A
truncated number shows at most ten digits, or twelve of a long number. All of these are shown
to the shop and logged.`,
	Check: noCardData,
}, {
	Name: "Memory",
	Why: `The provider keeps nothing of the request: the vault wipes the card as soon as the call has
returned, and the answer must not change then.`,
	Check: memory,
}, {
	Name: "ContextEnded",
	Why: `A call whose context has ended sends nothing and returns at once, with the error of the
context. Any other error means that the outcome is unknown.`,
	Check: contextEnded,
}, {
	Name:  "Concurrency",
	Why:   `ObtainPPAN may be called concurrently. No call returns another call's result.`,
	Check: concurrency,
}}

// A sending is a request with the parts that nothing may show.
type sending struct {
	request *ppan.Request
	secrets []string
}

func (s *suite) sending(c cardvault.Card, a ppan.Account) *sending {
	out := &sending{request: &ppan.Request{Account: a, Sandbox: true, Expiry: c.Expiry}}
	c.PAN.Expose(func(digits []byte) {
		out.request.PAN = card.NewPAN(digits)
		out.secrets = append(out.secrets, string(digits))
	})
	c.SecurityCode.Expose(func(digits []byte) {
		out.request.SecurityCode = card.NewSecurityCode(digits)
		if len(digits) > 0 {
			out.secrets = append(out.secrets, string(digits))
		}
	})
	a.Hash.Expose(func(text []byte) {
		out.request.Account.Hash = ppan.NewHash(text)
		if len(text) >= 32 {
			out.secrets = append(out.secrets, string(text))
		}
	})
	return out
}

// obtain sends a request and wipes the card, as a vault does.
func (s *suite) obtain(ctx context.Context, t testing.TB, c cardvault.Card, a ppan.Account) (*ppan.Answer, error) {
	t.Helper()
	out := s.sending(c, a)
	got, err := s.provider.ObtainPPAN(ctx, out.request)
	out.request.PAN.Wipe()
	out.request.SecurityCode.Wipe()
	vaulttest.AssertNoLeak(t, out.secrets, got, err)
	if err == nil {
		err = check(got, s.sending(c, a)) // the provider may have altered its own
	}
	return got, err
}

// check returns an error for a wrong answer to a request.
func check(got *ppan.Answer, sent *sending) error {
	if got == nil {
		return errors.New("ppantest: neither an answer nor an error")
	}
	pseudo, pan := pseudoOf(got), sent.secrets[0]

	shown := 0
	for _, c := range []byte(got.TruncatedPAN) {
		if '0' <= c && c <= '9' {
			shown++
		}
	}
	texts := []string{
		got.TruncatedPAN, got.CardType, got.CardExpiry, got.TravelCard, got.TravelCardProvider, got.TravelCardInvoice,
		got.ErrorCode, got.ErrorMessage, got.CustomerMessage,
	}

	what := ""
	switch {
	case got.Status < ppan.Valid || got.Status > ppan.Error:
		what = "Status must be Valid, Invalid or Error"
	case pseudo == "" && got.Status == ppan.Valid:
		what = "PseudoPAN is missing, but Status is Valid"
	case pseudo != "" && got.Status != ppan.Valid:
		what = "PseudoPAN is set, but Status is not Valid"
	case pseudo != "" && !regexp.MustCompile(`^[0-9]{16,19}$`).MatchString(pseudo):
		what = "PseudoPAN must have 16 to 19 digits"
	case pseudo == pan:
		what = "PseudoPAN is the card number"
	case slices.ContainsFunc(texts, func(text string) bool { return utf8.RuneCountInString(text) > 255 }):
		what = "a text has more than 255 characters"
	case shown > 10 && (shown > 12 || len(pan) < 16):
		what = "TruncatedPAN shows so many digits that the others can be computed"
	case plausible.PPAN(got, sent.request) != nil:
		what = "a text, or PseudoPAN, contains data that was sent, or as many digits as a card number"
	}
	if what != "" {
		return errors.New("ppantest: answer: " + what)
	}
	return nil
}

func pseudoOf(got *ppan.Answer) (digits string) {
	got.PseudoPAN.Expose(func(d []byte) { digits = string(d) })
	return digits
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

func valid(t testing.TB, s *suite) {
	got, err := s.obtain(t.Context(), t, s.Card, s.Account)
	if err != nil || got.Status != ppan.Valid {
		t.Fatalf("ObtainPPAN of Harness.Card: %v, want Valid", said(got, err))
	}
}

// said describes an answer.
func said(got *ppan.Answer, err error) string {
	if err != nil || got == nil {
		return fmt.Sprint(err)
	}
	return strings.Join([]string{got.Status.String(), got.ErrorCode, got.ErrorMessage}, " ")
}

func refused(t testing.TB, s *suite) {
	if s.Refused.PAN.IsZero() {
		t.Log("not checked: there is no Harness.Refused")
		return
	}
	got, err := s.obtain(t.Context(), t, s.Refused, s.Account)
	if err != nil || got.Status != ppan.Invalid || got.ErrorCode == "" && got.ErrorMessage == "" {
		t.Errorf("ObtainPPAN of Harness.Refused: %v, want Invalid with ErrorCode or ErrorMessage", said(got, err))
	}
}

func stranger(t testing.TB, s *suite) {
	if s.Stranger.AID == "" {
		t.Log("not checked: there is no Harness.Stranger")
		return
	}
	got, err := s.obtain(t.Context(), t, s.Card, s.Stranger)
	if err != nil || got.Status != ppan.Error {
		t.Errorf("ObtainPPAN for Harness.Stranger: %v, want an answer whose Status is Error", said(got, err))
	}
}

func noCardData(t testing.TB, s *suite) {
	var pan string
	s.Card.PAN.Expose(func(d []byte) { pan = string(d) })
	wrong := pan[:len(pan)-1] + string('0'+(pan[len(pan)-1]-'0'+1)%10)
	for what, edit := range map[string]func(*cardvault.Card, *ppan.Account){
		"a number that fails the Luhn check": func(c *cardvault.Card, _ *ppan.Account) { c.PAN = card.NewPAN([]byte(wrong)) },
		"a number that is too short":         func(c *cardvault.Card, _ *ppan.Account) { c.PAN = card.NewPAN([]byte(pan[:12])) },
		"a card that has expired":            func(c *cardvault.Card, _ *ppan.Account) { c.Expiry.Year = 2001 },
		"a security code":                    func(c *cardvault.Card, _ *ppan.Account) { c.SecurityCode = card.NewSecurityCode([]byte("7391")) },
		"another hash": func(_ *cardvault.Card, a *ppan.Account) {
			a.Hash = ppan.NewHash([]byte(strings.Repeat("0123456789abcdef", 6)))
		},
	} {
		c, a := s.Card, s.Account
		edit(&c, &a)
		if got, err := s.obtain(t.Context(), t, c, a); err != nil && got != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func memory(t testing.TB, s *suite) {
	first, err := s.obtain(t.Context(), t, s.Card, s.Account)
	if err != nil {
		t.Fatalf("ObtainPPAN = %v", err)
	}
	before := pseudoOf(first)
	if _, err := s.obtain(t.Context(), t, s.Card, s.Account); err != nil {
		t.Fatalf("ObtainPPAN = %v", err)
	}
	if pseudoOf(first) != before {
		t.Error("an answer changes with the next call")
	}
}

func contextEnded(t testing.TB, s *suite) {
	contract.Ended(t, "ObtainPPAN", func(ctx context.Context) error {
		if _, err := s.obtain(ctx, t, s.Card, s.Account); err != nil {
			return err
		}
		return errors.New("it succeeds, so the card was sent")
	})
}

func concurrency(t testing.TB, s *suite) {
	var four string
	s.Card.PAN.Expose(func(d []byte) { four = string(d[len(d)-4:]) })
	contract.Parallel(t, 16, func(int) error {
		got, err := s.obtain(t.Context(), t, s.Card, s.Account)
		if err == nil && got.TruncatedPAN != "" && !strings.HasSuffix(got.TruncatedPAN, four) {
			err = errors.New("TruncatedPAN belongs to another card")
		}
		return err
	})
}
