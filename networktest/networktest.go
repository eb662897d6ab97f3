// Package networktest proves that an adapter of a token service keeps the
// contract of [network.Provider].
//
// The author of an adapter writes one test, against the sandbox of the service or against a
// server that imitates the service:
//
//	func TestNetwork(t *testing.T) {
//		networktest.Run(t, networktest.Harness{
//			Open:   func(testing.TB) network.Provider { return mynet.New(sandbox) },
//			Scheme: card.VISA,
//			Card: cardvault.Card{
//				PAN:    card.NewPAN([]byte("4111111111111111")),
//				Expiry: card.Expiry{Month: 12, Year: 2030},
//			},
//		})
//	}
//
// Each subtest is one rule of the contract. When it fails it states the rule and why a
// vault depends on it. Run the suite with -race too. It makes a few hundred calls and
// leaves network tokens behind.
package networktest

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/internal/contract"
	"github.com/cardvault/cardvault/internal/iin"
	"github.com/cardvault/cardvault/internal/plausible"
	"github.com/cardvault/cardvault/network"
	"github.com/cardvault/cardvault/vaulttest"
	"github.com/google/uuid"
)

// A Harness says how to test a network. Open, Card and Scheme are required.
type Harness struct {
	// Open returns the network, a new one or the same each time. It may skip or
	// fail the test that it is given, and uses its Cleanup.
	Open func(t testing.TB) network.Provider

	// Card can be provisioned any number of times, even after a deletion, and its network
	// tokens become active.
	Card   cardvault.Card
	Scheme card.Scheme // of the cards

	Merchant uuid.UUID // an enrolled one; defaults to a random one
	Currency string    // of the payments; defaults to "EUR"

	// Refused is a refused card, at once or after a while. If it has no number,
	// refusals are not tested.
	Refused cardvault.Card

	// Activate makes a pending network token active. If nil, Card's become active by
	// themselves, within a minute.
	Activate func(ctx context.Context, n network.Provider, ref network.Ref) error
}

// Run checks every rule of the contract, including the optional interfaces that the network
// implements.
func Run(t *testing.T, h Harness) {
	for _, r := range rules {
		t.Run(r.name, func(t *testing.T) {
			t.Cleanup(func() {
				if t.Failed() {
					t.Logf("The rule: %s", r.why)
				}
			})
			r.check(newSuite(t, h))
		})
	}
}

// A rule is a sentence of the contract and a check that fails where it is broken.
type rule struct {
	name  string
	why   string
	check func(s *suite)
}

// patience ends a call that hangs. It is longer than the default of
// cardvault.Options.NetworkTimeout, so that a slow machine fails no rule.
const patience = time.Minute

// A suite is a network under test. All calls go through it, and whatever the
// network answers is searched for the card number.
type suite struct {
	testing.TB
	Harness
	network network.Provider
	asked   network.Info // of the network that a vault asks for the cards: one of several, or the only one
	numbers []string     // of the cards
}

func newSuite(t testing.TB, h Harness) *suite {
	if h.Open == nil {
		t.Fatal("networktest: Harness.Open is missing")
	}
	s := &suite{TB: t, Harness: h, network: h.Open(t)}
	for _, given := range []cardvault.Card{h.Card, h.Refused} {
		if !given.PAN.IsZero() {
			s.numbers = append(s.numbers, string(digits(given.PAN)))
		}
	}

	switch {
	case h.Card.PAN.IsZero():
		t.Fatal("networktest: Harness.Card has no number")
	case s.network == nil:
		t.Fatal("networktest: Harness.Open returned nil")
	}

	said := s.network.Info()
	for _, i := range said.Networks() {
		if i.Name == said.For(s.Scheme) {
			s.asked = i
		}
	}

	if s.Merchant == uuid.Nil {
		s.Merchant = uuid.New()
	}
	if s.Currency == "" {
		s.Currency = "EUR"
	}
	return s
}

// ref returns the name of a network token as a vault has it.
func (s *suite) ref(id, idempotencyKey string) network.Ref {
	return network.Ref{Network: s.asked.Name, ID: id, IdempotencyKey: idempotencyKey}
}

// digits returns a copy of a number.
func digits(p card.PAN) (d []byte) {
	p.Expose(func(value []byte) { d = slices.Clone(value) })
	return d
}

// key returns an idempotency key of a token: of the greatest length, and equal to another
// attempt's except at its end.
func key(token uuid.UUID, attempt int) string { return fmt.Sprintf("%s:%027d", token, attempt) }

// request returns a request for the n-th network token of a token.
func (s *suite) request(given cardvault.Card, token uuid.UUID, n int) *network.ProvisionRequest {
	r := &network.ProvisionRequest{
		Network:        s.asked.Name,
		IdempotencyKey: key(token, n),
		TokenID:        token,
		Merchant:       s.Merchant,
		Scheme:         s.Scheme,
		PAN:            card.NewPAN(digits(given.PAN)),
		Expiry:         given.Expiry,
	}
	given.Name.Expose(func(text []byte) { r.Name = card.NewName(text) })
	given.SecurityCode.Expose(func(code []byte) { r.SecurityCode = card.NewSecurityCode(code) })
	return r
}

// provision asks for a network token and wipes the card, as a vault does.
func (s *suite) provision(ctx context.Context, r *network.ProvisionRequest) (*network.Token, error) {
	s.Helper()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	four := string(digits(r.PAN)[max(0, len(digits(r.PAN))-4):])
	got, err := s.network.Provision(ctx, r)
	r.PAN.Wipe()
	r.Name.Wipe()
	r.SecurityCode.Wipe()
	vaulttest.AssertNoLeak(s, s.numbers, got, err)
	if err == nil {
		err = checkToken(got)
	}
	if err == nil && got.Card != nil && got.Card.LastFour != "" && got.Card.LastFour != four {
		err = errors.New("networktest: Provision: Card.LastFour belongs to another card")
	}
	return got, err
}

func (s *suite) lookup(ctx context.Context, ref network.Ref) (*network.Token, error) {
	s.Helper()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	got, err := s.network.Lookup(ctx, ref)
	vaulttest.AssertNoLeak(s, s.numbers, got, err)
	if err == nil {
		err = checkToken(got)
	}
	if err == nil && ref.ID != "" && got.ID != ref.ID {
		err = errors.New("networktest: Lookup: ID differs from the ID in the request")
	}
	return got, err
}

func (s *suite) payment(ref network.Ref, k string) *network.CryptogramRequest {
	return &network.CryptogramRequest{
		IdempotencyKey: k,
		Token:          ref,
		Scheme:         s.Scheme,
		Merchant:       s.Merchant,
		Amount:         1099,
		Currency:       s.Currency,
		Reference:      "networktest",
	}
}

// cryptogram asks for a cryptogram and returns its value.
func (s *suite) cryptogram(ctx context.Context, ref network.Ref, k string) (value string, err error) {
	s.Helper()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	got, err := s.network.Cryptogram(ctx, s.payment(ref, k))
	vaulttest.AssertNoLeak(s, s.numbers, got, err)
	if err == nil {
		err = s.checkCryptogram(got, ref)
	}
	if err != nil {
		return "", err
	}
	got.Value.Expose(func(text []byte) { value = string(text) })
	return value, nil
}

// credential asks for a network token without a cryptogram.
func (s *suite) credential(ctx context.Context, n network.Credentialer, ref network.Ref) (*network.Credential, error) {
	s.Helper()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	got, err := n.Credential(ctx, &network.CredentialRequest{Token: ref, Scheme: s.Scheme, Merchant: s.Merchant})
	vaulttest.AssertNoLeak(s, s.numbers, got, err)
	if err == nil {
		err = s.checkCredential(got, ref)
	}
	return got, err
}

func (s *suite) delete(ctx context.Context, ref network.Ref) error {
	s.Helper()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	err := s.network.Delete(ctx, ref)
	vaulttest.AssertNoLeak(s, s.numbers, err)
	return err
}

// active returns a network token of Card that can be used.
func (s *suite) active() network.Ref {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), patience)
	defer cancel()
	r := s.request(s.Card, uuid.New(), 1)
	got, err := s.provision(ctx, r)
	if err != nil {
		s.Fatalf("Provision of Harness.Card: %v", err)
	}
	ref := s.ref(got.ID, r.IdempotencyKey)
	if got.State == network.Pending && s.Activate != nil {
		if err := s.Activate(ctx, s.network, ref); err != nil {
			s.Fatalf("Harness.Activate: %v", err)
		}
	}
	if got, err = s.settled(ctx, got, ref); err != nil || got.State != network.Active {
		s.Fatalf("the network token of Harness.Card does not become active: %v, %v", state(got), err)
	}
	return ref
}

// settled returns a network token when it is not pending any more.
func (s *suite) settled(ctx context.Context, got *network.Token, ref network.Ref) (*network.Token, error) {
	look := time.NewTicker(50 * time.Millisecond)
	defer look.Stop()
	for got.State == network.Pending {
		select {
		case <-ctx.Done():
			return got, ctx.Err()
		case <-look.C:
		}
		var err error
		if got, err = s.lookup(ctx, ref); err != nil {
			return nil, err
		}
	}
	return got, nil
}

// state returns the state of an answer that may be nil.
func state(got *network.Token) string {
	if got == nil {
		return "no answer"
	}
	return got.State.String()
}

// promptly calls f, and fails s at once if that takes longer than Promptness.
func (s *suite) promptly(what string, f func()) {
	s.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	s.await(done, what)
}

func (s *suite) await(done <-chan struct{}, what string) {
	s.Helper()
	select {
	case <-done:
	case <-time.After(contract.Promptness(s.TB)):
		s.Fatalf("%s: still waiting after %v", what, contract.Promptness(s.TB))
	}
}

// maxText is what a vault keeps of ids and codes, in bytes.
const maxText = 255

// checkToken returns an error for a wrong answer.
func checkToken(got *network.Token) error {
	const (
		pending  = network.Pending
		inactive = network.Inactive
		gone     = network.Deleted
	)

	what := ""
	switch {
	case got == nil:
		what = "neither an answer nor an error"
	case got.ID == "" || len(got.ID) > maxText:
		what = "ID must have 1 to 255 bytes"
	case got.State != pending && got.State != network.Active && got.State != inactive && got.State != gone:
		what = "State must be pending, active, inactive or deleted"
	case got.StateAt.After(time.Now().Add(time.Hour)):
		what = "StateAt is in the future, so that changes until then look older and are dropped"
	case got.SuspendedBy != 0 && got.State != inactive:
		what = "SuspendedBy is set, but State is not inactive"
	case got.SuspendedBy&^network.OwnersOf(network.OwnerIssuer, network.OwnerScheme, network.OwnerCardholder) != 0:
		what = "SuspendedBy has an owner that does not exist"
	case got.Invalidated && got.State != gone:
		what = "Invalidated is set, but State is not deleted"
	case len(got.Reason) > maxText:
		what = "Reason must have at most 255 bytes"
	case len(got.Art) > maxText:
		what = "Art must have at most 255 bytes"
	case got.PaymentAccountReference != "" && !plausible.AccountReference(got.PaymentAccountReference):
		what = `PaymentAccountReference must be 29 of A-Z and 0-9, or ""`
	case got.Card == nil:
	case got.Card.LastFour != "" && (len(got.Card.LastFour) != 4 || !number(got.Card.LastFour)):
		what = "Card.LastFour must be four digits or empty"
	case got.Card.Expiry != card.Expiry{} && !month(got.Card.Expiry):
		what = "Card.Expiry must be a month and a year of four digits, or zero"
	}

	if what != "" {
		return errors.New("networktest: network token: " + what)
	}
	return nil
}

// checkCryptogram returns an error for a wrong answer.
func (s *suite) checkCryptogram(got *network.Cryptogram, ref network.Ref) error {
	what := ""
	if got == nil {
		what = "neither an answer nor an error"
	} else {
		var value string
		got.Value.Expose(func(text []byte) { value = string(text) })

		switch {
		case s.wrong(got.TokenID, got.Number, got.Expiry, ref) != "":
			what = s.wrong(got.TokenID, got.Number, got.Expiry, ref)
		case len(value) < 12 || len(value) > 64 || !encoded(value):
			what = "Value must be 12 to 64 characters of base64 or hexadecimal digits"
		case got.ECI != "" && (len(got.ECI) != 2 || !number(got.ECI)):
			what = `ECI must be two digits, or "" if there is none`
		}
	}

	if what != "" {
		return errors.New("networktest: cryptogram: " + what)
	}
	return nil
}

// checkCredential returns an error for a wrong answer.
func (s *suite) checkCredential(got *network.Credential, ref network.Ref) error {
	what := "neither an answer nor an error"
	if got != nil {
		what = s.wrong(got.TokenID, got.Number, got.Expiry, ref)
	}
	if what != "" {
		return errors.New("networktest: credential: " + what)
	}
	return nil
}

// wrong returns how the network token of an answer cannot be the one of ref, or "".
func (s *suite) wrong(id string, n card.PAN, expiry card.Expiry, ref network.Ref) string {
	switch d := string(digits(n)); {
	case id != ref.ID:
		return "TokenID belongs to another network token than requested"
	case len(d) < 13 || len(d) > 19 || !iin.Luhn([]byte(d)):
		return "Number must be 13 to 19 digits that pass the Luhn check"
	case slices.Contains(s.numbers, d):
		return "Number is the number of the card"
	case !month(expiry) || expiry.Expired(time.Now()):
		return "Expiry must be a month and a year of four digits, not in the past"
	}
	return ""
}

func encoded(text string) bool {
	if _, err := hex.DecodeString(text); err == nil {
		return true
	}
	_, err := base64.StdEncoding.DecodeString(text)
	return err == nil
}

func number(text string) bool {
	for _, c := range []byte(text) {
		if c < '0' || c > '9' {
			return false
		}
	}
	return true
}

func month(e card.Expiry) bool {
	return e.Month >= 1 && e.Month <= 12 && e.Year >= 2000 && e.Year <= 2099
}

// codes are what a network can refuse a provisioning for.
var codes = map[network.Source][]network.Code{
	network.SourceScheme: {
		network.CodeCardNotEligible, network.CodeCardNotAllowed, network.CodeCardVerificationFailed, network.CodeDeclined, network.CodeInvalidCardData,
		network.CodeProvisionNotAllowed, network.CodeProvisionDataExpired, network.CodeIssuerUnavailable, network.CodeSchemeUnavailable, network.CodeTimeout,
	},
	network.SourceConfiguration: {
		network.CodeNetworkTokensNotActivated, network.CodeSchemeNotEnabled, network.CodeMerchantNotEnrolled, network.CodeCardExpired, network.CodeInvalidRequest,
	},
}

// checkRefusal returns an error unless err is a proper refusal of a provisioning.
func checkRefusal(err error) error {
	var e *network.Error
	what := ""
	switch {
	case err == nil:
		what = "there is no error"
	case !errors.As(err, &e):
		return fmt.Errorf("networktest: refusal: the error is not a *network.Error: %w", err)
	case codes[e.Source] == nil:
		what = "Source must be SourceScheme or SourceConfiguration"
	case !slices.Contains(codes[e.Source], e.Code):
		what = "Code is not a reason of this Source for a missing network token"
	case len(e.SchemeCode) > maxText:
		what = "SchemeCode must have at most 255 characters"
	case e.RetryAfter < 0:
		what = "RetryAfter is negative"
	}

	if what != "" {
		return errors.New("networktest: refusal: " + what)
	}
	return nil
}
