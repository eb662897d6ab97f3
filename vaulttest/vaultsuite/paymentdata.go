package vaultsuite

import (
	"context"
	"errors"
	"fmt"
	"reflect"
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
	"github.com/google/uuid"
)

var paymentBehaviours = []behaviour{
	{"PaymentData", paymentData},
	{"PaymentDataOfAccounts", paymentDataOfAccounts},
	{"PaymentDataPages", paymentDataPages},
	{"PaymentDataReplay", paymentDataReplay},
	{"PaymentDataOfMerchant", paymentDataOfMerchant},
	{"PaymentDataRace", paymentDataRace},
	{"PaymentDataDeleteRace", paymentDataDeleteRace},
	{"ProvisionReplay", provisionReplay},
	{"PaymentSecretRevoked", paymentSecretRevoked},
}

// A till is a network on which every card becomes active at once and every examplePayment
// receives a cryptogram. Everything it returns is a canary.
type till struct {
	mu     sync.Mutex
	asked  []string // idempotency keys
	refuse error    // what Cryptogram and Credential answer instead
	lends  bool     // it is a network.Credentialer
	during func()   // called in the next Cryptogram, if set
}

const tillECI = "05"

var (
	tillNumber = cardNumber(canaryNumber, 16, 9999) // of a network token; no test stores this card
	tillExpiry = card.Expiry{Month: 6, Year: 2091}
)

func (n *till) Info() network.Info { return network.Info{Name: "till", Credentialer: n.lends} }

func (*till) Eligible(*network.EligibilityRequest) error { return nil }

func (*till) Provision(_ context.Context, r *network.ProvisionRequest) (*network.Token, error) {
	return &network.Token{ID: canary + r.IdempotencyKey, State: network.Active}, nil
}

func (*till) Lookup(_ context.Context, ref network.Ref) (*network.Token, error) {
	return &network.Token{ID: canary + ref.IdempotencyKey, State: network.Active}, nil
}

func (n *till) Cryptogram(_ context.Context, r *network.CryptogramRequest) (*network.Cryptogram, error) {
	n.mu.Lock()
	during := n.during
	n.during = nil
	n.mu.Unlock()
	if during != nil {
		during()
	}

	n.mu.Lock()
	defer n.mu.Unlock()
	n.asked = append(n.asked, r.IdempotencyKey)
	return &network.Cryptogram{
		TokenID: r.Token.ID,
		Number:  card.NewPAN([]byte(tillNumber)),
		Expiry:  tillExpiry,
		Value:   card.NewCryptogramValue([]byte(canary + r.IdempotencyKey)),
		ECI:     tillECI,
	}, n.refuse
}

func (n *till) Credential(_ context.Context, r *network.CredentialRequest) (*network.Credential, error) {
	return &network.Credential{TokenID: r.Token.ID, Number: card.NewPAN([]byte(tillNumber)), Expiry: tillExpiry}, n.refuse
}

func (*till) Delete(context.Context, network.Ref) error { return nil }

// calls returns how often a cryptogram was asked for.
func (n *till) calls() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.asked)
}

// paying returns a sandbox on s with a till.
func paying(t testing.TB, s store.Store, n *till) *cardvault.Vault {
	t.Helper()
	return vaultOn(t, s, &cardvault.Options{Mode: cardvault.Sandbox, Purposes: []string{purpose}, Network: n, PPAN: desk{}, Webhooks: new(mailbox)})
}

// usable imports the n-th card and provisions it.
func usable(t testing.TB, v *cardvault.Vault, n int) *cardvault.Token {
	t.Helper()
	token := importCard(t, v, testCard(n), nil)
	noError(t, v.Drain(t.Context()))
	token = must(v.Get(t.Context(), token.ID))(t)
	if token.NetworkTokenStatus != network.Active {
		t.Fatalf("network token is %v", token.NetworkTokenStatus)
	}
	return token
}

// newSecret makes a shared secret for the account's primary merchant.
func newSecret(t testing.TB, v *cardvault.Vault) string {
	t.Helper()
	m := must(v.PrimaryMerchant(t.Context()))(t)
	return must(v.RotatePaymentSecret(t.Context(), m.ID, nil))(t).Secret.Text()
}

var examplePayment = cardvault.PaymentRequest{Amount: 1099, Currency: "EUR", Reference: canary + "reference"}

func pay(t testing.TB, v *cardvault.Vault, token *cardvault.Token) *cardvault.PaymentData {
	t.Helper()
	return must(v.RequestPaymentData(t.Context(), token.ID, examplePayment))(t)
}

// pays checks that p is a success and opens under a secret.
func pays(t testing.TB, p *cardvault.PaymentData, secret string) {
	t.Helper()
	if !p.Success || len(p.Failures) > 0 {
		t.Fatalf("no cryptogram: %+v", p.Failures)
	}
	c := must(receive.OpenPaymentData(p.Encrypted, receive.NewSharedSecret([]byte(secret))))(t)
	var number, value string
	c.Number.Expose(func(b []byte) { number = string(b) })
	c.Cryptogram.Expose(func(b []byte) { value = string(b) })
	if number != tillNumber || c.Expiry != tillExpiry || value != canary+p.ID.String() || c.ECI != tillECI {
		t.Error("the payment data differs from the answer of the network")
	}
}

// paid checks that the vault lists just this payment data of a token, newest first.
func paid(t testing.TB, v *cardvault.Vault, token *cardvault.Token, want ...*cardvault.PaymentData) {
	t.Helper()
	p := must(v.ListPaymentData(t.Context(), token.ID, nil))(t)
	if p.TotalItems != int64(len(want)) || !slices.EqualFunc(p.Items, want, equalPayments) {
		t.Errorf("payment data, of %d:\n got %+v\nwant %+v", p.TotalItems, p.Items, want)
	}
	for _, one := range want {
		if got := must(v.PaymentData(t.Context(), token.ID, one.ID))(t); !equalPayments(got, one) {
			t.Errorf("payment data:\n got %+v\nwant %+v", got, one)
		}
	}
}

func equalPayments(a, b *cardvault.PaymentData) bool {
	one, other := *a, *b
	one.Replayed, other.Replayed = false, false
	return reflect.DeepEqual(one, other)
}

func paymentData(t *testing.T, s store.Store) {
	n := new(till)
	v, ctx := paying(t, s, n), t.Context()
	token, other := usable(t, v, 1), usable(t, v, 2)
	early := pay(t, v, token)
	if early.Success || early.Failures[0].Code != "no_encryption_key" || n.calls() != 0 {
		t.Errorf("without a secret: %+v", early)
	}

	secret := newSecret(t, v)
	success := pay(t, v, token)
	pays(t, success, secret)
	if success.TokenID != token.ID || success.ID.Version() != 4 || success.Amount != examplePayment.Amount ||
		success.Currency != examplePayment.Currency || success.Reference != examplePayment.Reference || success.Merchant == uuid.Nil {
		t.Errorf("record %+v", success)
	}

	n.refuse = &network.Error{Source: network.SourceScheme, Code: "declined", SchemeCode: canary + "05"}
	declined := pay(t, v, token)
	want := cardvault.Failure{Source: network.SourceScheme, Code: "cryptogram_declined", Message: "The scheme declined the request.", SchemeCode: canary + "05"}
	if declined.Success || declined.Encrypted != "" || !slices.Equal(declined.Failures, []cardvault.Failure{want}) {
		t.Errorf("declined: %+v", declined)
	}

	n.refuse = nil
	if n.calls() != 2 || n.asked[0] != success.ID.String() || n.asked[1] != declined.ID.String() {
		t.Errorf("the network was asked for %v", n.asked)
	}

	paid(t, v, token, declined, success, early)
	paid(t, v, other)

	// They are there for another vault, under another term, and not without
	// their token.
	noError(t, errorOf(v.RotateKeys(ctx, nil)))
	again := paying(t, s, n)
	paid(t, again, token, declined, success, early)
	last := pay(t, again, token)
	pays(t, last, secret)
	paid(t, v, token, last, declined, success, early)
	noError(t, v.Delete(ctx, token.ID))
	_, err := v.ListPaymentData(ctx, token.ID, nil)
	fails(t, "the list of a deleted token", err, cardvault.ErrNotFound)
	_, err = v.PaymentData(ctx, token.ID, last.ID)
	fails(t, "payment data of a deleted token", err, cardvault.ErrNotFound)
	_, err = v.RequestPaymentData(ctx, token.ID, examplePayment)
	fails(t, "a payment with a deleted token", err, cardvault.ErrNotFound)
	paid(t, v, other)
}

func paymentDataOfAccounts(t *testing.T, s store.Store) {
	n := new(till)
	mine, ctx := paying(t, s, n), t.Context()
	theirs := mine.In(must(mine.CreateAccount(ctx, canary, nil))(t).ID)
	newSecret(t, mine)
	token := usable(t, mine, 1)
	p := pay(t, mine, token)
	_, err := theirs.ListPaymentData(ctx, token.ID, nil)
	fails(t, "the list of another account's token", err, cardvault.ErrNotFound)
	_, err = theirs.PaymentData(ctx, token.ID, p.ID)
	fails(t, "payment data of another account's token", err, cardvault.ErrNotFound)
	_, err = mine.PaymentData(ctx, usable(t, mine, 2).ID, p.ID)
	fails(t, "payment data of another token", err, cardvault.ErrNotFound)
	_, err = theirs.RequestPaymentData(ctx, token.ID, examplePayment)
	fails(t, "a payment with another account's token", err, cardvault.ErrNotFound)

	r := examplePayment
	r.Merchant = must(theirs.PrimaryMerchant(ctx))(t).ID
	_, err = mine.RequestPaymentData(ctx, token.ID, r)
	refuses(t, "another account's merchant", err, "Merchant unknown_merchant")
	_, err = mine.RequestPaymentData(ctx, token.ID, cardvault.PaymentRequest{Amount: -1, Currency: "ABC"})
	refuses(t, "an invalid request", err, "Amount out_of_range", "Currency unknown_currency", "Reference empty_string")
	paid(t, mine, token, p)
	if n.calls() != 1 {
		t.Errorf("the network was asked %d times, want once", n.calls())
	}
}

// paymentDataOfMerchant: a payment that the merchant initiates has the network token without a
// cryptogram, if the network gives it.
func paymentDataOfMerchant(t *testing.T, s store.Store) {
	n := &till{lends: true}
	v, without, ctx := paying(t, s, n), paying(t, s, new(till)), t.Context()
	secret := newSecret(t, v)
	token := usable(t, v, 1)
	renewal := examplePayment
	renewal.Initiator, renewal.NetworkTransactionID = cardvault.InitiatorMerchant, canary+" ~1"

	none := must(without.RequestPaymentData(ctx, token.ID, renewal))(t)
	if f := none.Failures; none.Success || none.Encrypted != "" || len(f) != 1 || f[0].Code != network.CodeNotSupported || f[0].Source != network.SourceConfiguration {
		t.Errorf("without a Credentialer: %+v", none)
	}

	key := renewal
	key.IdempotencyKey = idemKey
	first := must(v.RequestPaymentData(ctx, token.ID, key))(t)
	lends(t, first, secret)
	again := must(v.RequestPaymentData(ctx, token.ID, key))(t)
	if !again.Replayed || !equalPayments(again, first) {
		t.Errorf("repeated: %+v", again)
	}
	for what, change := range map[string]func(*cardvault.PaymentRequest){
		"the customer":        func(r *cardvault.PaymentRequest) { r.Initiator, r.NetworkTransactionID = 0, "" },
		"another transaction": func(r *cardvault.PaymentRequest) { r.NetworkTransactionID = "" },
	} {
		other := key
		change(&other)
		fails(t, "same key, "+what, errorOf(v.RequestPaymentData(ctx, token.ID, other)), cardvault.ErrIdempotencyKeyReused)
	}

	renewal.NetworkTransactionID = ""
	second := must(v.RequestPaymentData(ctx, token.ID, renewal))(t)
	lends(t, second, secret)
	n.refuse = &network.Error{Source: network.SourceScheme, Code: network.CodeDeclined}
	declined := must(v.RequestPaymentData(ctx, token.ID, renewal))(t)
	if declined.Success || declined.Failures[0].Code != network.CodeCryptogramDeclined {
		t.Errorf("declined: %+v", declined)
	}
	n.refuse = nil
	if n.calls() != 0 {
		t.Errorf("the network made %d cryptograms", n.calls())
	}
	customers := pay(t, v, token)
	pays(t, customers, secret)
	paid(t, v, token, customers, declined, second, first, none)
	if first.Initiator != cardvault.InitiatorMerchant || first.NetworkTransactionID != canary+" ~1" || customers.Initiator != cardvault.InitiatorCustomer {
		t.Errorf("records: %+v, %+v", first, customers)
	}

	noError(t, v.UseCredential(ctx, token.ID, purpose, renewal, func(_ context.Context, c *receive.Credential) error {
		if c.Number.IsZero() || c.Expiry != tillExpiry || !c.Cryptogram.IsZero() || c.ECI != "" {
			t.Error("the credential differs from the answer of the network")
		}
		return nil
	}))

	bad := renewal
	bad.Initiator, bad.NetworkTransactionID = cardvault.InitiatorCustomer, "1"
	refuses(t, "a customer's", errorOf(v.RequestPaymentData(ctx, token.ID, bad)), "Initiator depends_on")
	bad.Initiator, bad.NetworkTransactionID = cardvault.InitiatorMerchant+1, strings.Repeat("1", 65)
	refuses(t, "a bad one", errorOf(v.RequestPaymentData(ctx, token.ID, bad)), "Initiator invalid_enum", "NetworkTransactionID invalid_format")
	bad.Initiator, bad.NetworkTransactionID = cardvault.InitiatorMerchant, "Zoë"
	refuses(t, "no ASCII", errorOf(v.RequestPaymentData(ctx, token.ID, bad)), "NetworkTransactionID invalid_format")
}

// lends checks that p is a success, and opens under a secret as a network token without a
// cryptogram.
func lends(t testing.TB, p *cardvault.PaymentData, secret string) {
	t.Helper()
	if !p.Success || len(p.Failures) > 0 {
		t.Fatalf("no credential: %+v", p.Failures)
	}
	c := must(receive.OpenPaymentData(p.Encrypted, receive.NewSharedSecret([]byte(secret))))(t)
	var number string
	c.Number.Expose(func(b []byte) { number = string(b) })
	if number != tillNumber || c.Expiry != tillExpiry || !c.Cryptogram.IsZero() || c.ECI != "" {
		t.Error("the payment data differs from the answer of the network")
	}
}

func paymentDataPages(t *testing.T, s store.Store) {
	v, ctx := paying(t, s, new(till)), t.Context()
	newSecret(t, v)
	token, other := usable(t, v, 1), usable(t, v, 2)
	var all []*cardvault.PaymentData // oldest first
	for range 23 {
		all = append(all, pay(t, v, token))
		pay(t, v, other)
	}

	for _, o := range []cardvault.ListOptions{
		{}, {Ascending: true}, {Limit: 10}, {Limit: 10, Page: 3}, {Limit: 10, Page: 4}, {Limit: 1, Page: 23, Ascending: true},
		{From: all[5].CreatedAt}, {To: all[5].CreatedAt}, {From: all[5].CreatedAt, To: all[11].CreatedAt, Ascending: true, Limit: 3, Page: 2},
		{From: all[22].CreatedAt.Add(time.Microsecond)},
	} {
		var want []*cardvault.PaymentData
		for _, p := range all {
			if (o.From.IsZero() || !p.CreatedAt.Before(o.From)) && (o.To.IsZero() || !p.CreatedAt.After(o.To)) {
				want = append(want, p)
			}
		}
		if !o.Ascending {
			slices.Reverse(want)
		}
		p := must(v.ListPaymentData(ctx, token.ID, &o))(t)
		limit, from := p.Limit, min(len(want), (p.Page-1)*p.Limit)
		if o.Limit != 0 && limit != o.Limit || p.TotalItems != int64(len(want)) || p.TotalPages != int64((len(want)+limit-1)/limit) {
			t.Errorf("%+v: page %d of %d, limit %d, total %d, want %d", o, p.Page, p.TotalPages, p.Limit, p.TotalItems, len(want))
		}
		if want = want[from:min(len(want), from+limit)]; !slices.EqualFunc(p.Items, want, equalPayments) {
			t.Errorf("%+v: %d items, want %d in another order or others", o, len(p.Items), len(want))
		}
	}

	_, err := v.ListPaymentData(ctx, token.ID, &cardvault.ListOptions{Limit: 501, Page: -1})
	refuses(t, "an impossible page", err, "Limit out_of_range", "Page out_of_range")
}

func paymentDataReplay(t *testing.T, s store.Store) {
	n, spy := new(till), &watched{Store: s}
	v, again, ctx := paying(t, spy, n), paying(t, spy, n), t.Context()
	newSecret(t, v)
	token, other := usable(t, v, 1), usable(t, v, 2)
	call := func(v *cardvault.Vault, token *cardvault.Token, r cardvault.PaymentRequest) (*cardvault.PaymentData, bool, error) {
		r.IdempotencyKey = idemKey
		p, err := v.RequestPaymentData(ctx, token.ID, r)
		return p, err == nil && p.Replayed, err
	}

	first, replayed, err := call(v, token, examplePayment)
	noError(t, err)
	if replayed {
		t.Error("the first call is reported as a replay")
	}

	wrote := spy.wrote(func() {
		p, replayed, err := call(again, token, examplePayment)
		if err != nil || !replayed || !equalPayments(p, first) {
			t.Errorf("replayed %t: %+v, %v", replayed, p, err)
		}
		r := examplePayment
		r.Amount++
		_, replayed, err = call(v, token, r)
		if fails(t, "same key, other amount", err, cardvault.ErrIdempotencyKeyReused); replayed {
			t.Error("an error is reported as a replay")
		}
	})
	if wrote != 1 || n.calls() != 1 { // the other request is counted
		t.Errorf("repetitions made the vault write %d times; the network was asked %d times", wrote, n.calls())
	}

	second, replayed, err := call(v, other, examplePayment)
	if err != nil || replayed || second.ID == first.ID {
		t.Errorf("the key of another token: replayed %t, %v", replayed, err)
	}

	paid(t, v, token, first)
	noError(t, v.Delete(ctx, token.ID))
	_, replayed, err = call(again, token, examplePayment)
	if fails(t, "replay after the token is deleted", err, cardvault.ErrNotFound); replayed {
		t.Error("an error is reported as a replay")
	}
}

// paymentDataRace: of calls under one key on two vaults one asks the network.
func paymentDataRace(t *testing.T, s store.Store) {
	n := new(till)
	vaults := []*cardvault.Vault{paying(t, s, n), paying(t, s, n)}
	newSecret(t, vaults[0])
	token := usable(t, vaults[0], 1)
	first := make([]*cardvault.PaymentData, 16)

	parallel(t, len(first), func(i int) (err error) {
		r := examplePayment
		r.IdempotencyKey = idemKey
		for first[i] == nil {
			first[i], err = vaults[i%2].RequestPaymentData(t.Context(), token.ID, r)
			if err != nil && !errors.Is(err, cardvault.ErrIdempotencyInProgress) {
				return err
			}
		}
		return nil
	})

	if n.calls() != 1 {
		t.Errorf("the network was asked %d times", n.calls())
	}

	for _, p := range first {
		if !equalPayments(p, first[0]) {
			t.Errorf("two results under one key:\n%+v\n%+v", p, first[0])
		}
	}

	paid(t, vaults[1], token, first[0])
}

// paymentDataDeleteRace: payments and the deletion of their token.
func paymentDataDeleteRace(t *testing.T, s store.Store) {
	v := paying(t, s, new(till))
	newSecret(t, v)
	token := usable(t, v, 1)
	parallel(t, 8, func(i int) error {
		for step := range 10 {
			ctx, r := t.Context(), examplePayment
			if i == 7 && step == 3 {
				return v.Delete(ctx, token.ID)
			}
			if i%2 == 0 {
				r.IdempotencyKey = fmt.Sprint(canary, i, step)
			}
			p, err := v.RequestPaymentData(ctx, token.ID, r)
			if err == nil && !p.Success {
				return errors.New("no cryptogram")
			}
			if err != nil && !errors.Is(err, cardvault.ErrNotFound) {
				return err
			}
		}
		return nil
	})

	_, err := v.ListPaymentData(t.Context(), token.ID, nil)
	fails(t, "the list of the deleted token", err, cardvault.ErrNotFound)
}

// provisionReplay: the one error that is a result.
func provisionReplay(t *testing.T, s store.Store) {
	v, ctx := paying(t, s, new(till)), t.Context()
	token := usable(t, v, 1)
	notice := func(kind network.NoticeKind, id string) {
		noError(t, v.Notify(ctx, &network.Notice{
			ID: canary + id, Kind: kind, By: network.OwnerIssuer, OccurredAt: time.Now(),
			Token: network.Ref{ID: canary + token.ID.String() + ":1"},
		}))
	}

	notice(network.NoticeSuspended, "1")
	for i := range 3 {
		_, err := v.Provision(ctx, token.ID, underKey)
		fails(t, fmt.Sprint("provisioning a suspended network token, call ", i), err, cardvault.ErrNetworkTokenState)
		if i == 1 {
			notice(network.NoticeResumed, "2")
		}
	}

	must(v.Provision(ctx, token.ID, nil))(t)
	noError(t, v.Delete(ctx, token.ID))
	fails(t, "replay after the token is deleted", errorOf(v.Provision(ctx, token.ID, underKey)), cardvault.ErrNotFound)
}
