package cardvault_test

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/fips140"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/internal/replay"
	"github.com/cardvault/cardvault/network"
	"github.com/cardvault/cardvault/receive"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/vaulttest"
	"github.com/google/uuid"
)

const (
	networkNumber = "4895370012003478"
	cryptogram    = "AgAAAAAAAIR8CQrXcIhbQAAAAAA="
)

// A till is a lab whose network answers with cryptograms, for a merchant that has a shared
// secret.
type till struct {
	*lab
	merchant uuid.UUID
	secret   receive.SharedSecret

	mu     sync.Mutex
	asked  []network.CryptogramRequest
	answer func(context.Context, *network.Cryptogram) (*network.Cryptogram, error) // nil returns its argument
}

// tillNetwork is the scripted network with the cryptograms of a till.
type tillNetwork struct {
	*scripted
	*till
}

func (n tillNetwork) Info() network.Info { return n.scripted.Info() }

func (n tillNetwork) Cryptogram(ctx context.Context, r *network.CryptogramRequest) (*network.Cryptogram, error) {
	n.till.mu.Lock()
	n.till.asked = append(n.till.asked, *r)
	answer := n.till.answer
	n.till.mu.Unlock()
	if _, ok := ctx.Deadline(); !ok {
		return nil, errors.New("a call without a deadline")
	}
	c := &network.Cryptogram{
		TokenID: r.Token.ID,
		Number:  card.NewPAN([]byte(networkNumber)),
		Expiry:  card.Expiry{Month: 12, Year: 2030},
		Value:   card.NewCryptogramValue([]byte(cryptogram)),
		ECI:     "07",
	}
	if answer == nil {
		return c, nil
	}
	return answer(ctx, c)
}

func (t *till) answers(f func(context.Context, *network.Cryptogram) (*network.Cryptogram, error)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.answer = f
}

func (t *till) fails(err error) {
	t.answers(func(context.Context, *network.Cryptogram) (*network.Cryptogram, error) { return nil, err })
}

// requests returns the requests to the network since the last call.
func (t *till) requests() []network.CryptogramRequest {
	t.mu.Lock()
	defer t.mu.Unlock()
	asked := t.asked
	t.asked = nil
	return asked
}

func atTill(t *testing.T, opts *cardvault.Options, f func(*till)) {
	t.Helper()
	o := cardvault.Options{Mode: cardvault.Sandbox}
	if opts != nil {
		o = *opts
	}
	till, net := new(till), new(scripted)
	o.Network = tillNetwork{net, till}
	inLab(t, &o, func(l *lab) {
		l.net, till.lab = net, l
		m, err := l.PrimaryMerchant(l.Context())
		l.must(err)
		till.merchant = m.ID
		rotated, err := l.RotatePaymentSecret(l.Context(), m.ID, nil)
		l.must(err)
		till.secret = rotated.Secret
		f(till)
	})
}

var purchase = cardvault.PaymentRequest{Amount: 1099, Currency: "EUR", Reference: "order 7"}

func (t *till) pay(id uuid.UUID) *cardvault.PaymentData {
	t.Helper()
	p, err := t.RequestPaymentData(t.Context(), id, purchase)
	t.must(err)
	return p
}

// listed returns the payment data of a token, newest first.
func (t *till) listed(id uuid.UUID) []*cardvault.PaymentData {
	t.Helper()
	p, err := t.ListPaymentData(t.Context(), id, nil)
	t.must(err)
	if p.TotalItems != int64(len(p.Items)) {
		t.Errorf("%d items, %d in all", len(p.Items), p.TotalItems)
	}
	return p.Items
}

// lists checks the payment data of a token, newest first.
func (t *till) lists(id uuid.UUID, want ...*cardvault.PaymentData) {
	t.Helper()
	if got := t.listed(id); !slices.EqualFunc(got, want, func(a, b *cardvault.PaymentData) bool { return reflect.DeepEqual(a, b) }) {
		t.Errorf("listed:\n%+v\nwant:\n%+v", got, want)
	}
}

// opens checks that the secret of a merchant opens p.
func opens(t testing.TB, p *cardvault.PaymentData, secret receive.SharedSecret) {
	t.Helper()
	if !p.Success || p.Encrypted == "" || len(p.Failures) != 0 {
		t.Fatalf("no cryptogram: %+v", p)
	}
	c, err := receive.OpenPaymentData(p.Encrypted, secret)
	if err != nil {
		t.Fatal(err)
	}
	if got := exposed(c); got != networkNumber+" 12/2030 "+cryptogram+" 07" {
		t.Errorf("opened: %s", got)
	}
}

func exposed(c *receive.Credential) string {
	var number, value string
	c.Number.Expose(func(d []byte) { number = string(d) })
	c.Cryptogram.Expose(func(b []byte) { value = string(b) })
	return fmt.Sprintf("%s %d/%d %s %s", number, c.Expiry.Month, c.Expiry.Year, value, c.ECI)
}

// refusedFor checks that p is a failure of this source, code and scheme code.
func refusedFor(t testing.TB, p *cardvault.PaymentData, source network.Source, code, schemeCode string, retryable bool) {
	t.Helper()
	if p.Success || p.Encrypted != "" || len(p.Failures) != 1 {
		t.Fatalf("no failure: %+v", p)
	}
	f := p.Failures[0]
	if f.Message == "" {
		t.Errorf("%s has no message", f.Code)
	}
	f.Message = ""
	if want := (cardvault.Failure{Source: source, Code: network.Code(code), Retryable: retryable, SchemeCode: schemeCode}); f != want {
		t.Errorf("failure %+v, want %+v", f, want)
	}
}

func TestRequestPaymentData(t *testing.T) {
	atTill(t, nil, func(l *till) {
		id := l.become(active)
		account, err := l.Account(l.Context())
		l.must(err)
		l.pass(time.Second)
		p := l.pay(id)
		want := &cardvault.PaymentData{
			ID: p.ID, CreatedAt: time.Now().UTC(), TokenID: id, Merchant: l.merchant,
			Amount: 1099, Currency: "EUR", Reference: "order 7", Success: true, Encrypted: p.Encrypted,
		}
		if !reflect.DeepEqual(p, want) || p.ID.Version() != 4 {
			l.Errorf("got %+v, want %+v", p, want)
		}
		opens(l, p, l.secret)
		asked := l.requests()
		if len(asked) != 1 || asked[0] != (network.CryptogramRequest{
			IdempotencyKey: p.ID.String(),
			Token:          network.Ref{Network: "scripted", ID: "network-token-1", IdempotencyKey: id.String() + ":1"},
			Scheme:         card.VISA,
			Merchant:       l.merchant,
			Amount:         1099, Currency: "EUR", Reference: "order 7",
		}) {
			l.Errorf("asked: %+v", asked)
		}
		l.lists(id, p)

		// Each call asks the network again, here for a separate merchant.
		shop, err := l.CreateMerchant(l.Context(), "shop", nil)
		l.must(err)
		secret, err := l.RotatePaymentSecret(l.Context(), shop.ID, nil)
		l.must(err)
		request := purchase
		request.Merchant = shop.ID
		l.pass(time.Second)
		second, err := l.RequestPaymentData(l.Context(), id, request)
		l.must(err)
		opens(l, second, secret.Secret)
		if asked := l.requests(); len(asked) != 1 || asked[0].Merchant != shop.ID || second.Merchant != shop.ID || asked[0].IdempotencyKey != second.ID.String() || second.ID == p.ID {
			l.Errorf("asked: %+v for %+v", asked, second)
		}
		if _, err := receive.OpenPaymentData(second.Encrypted, l.secret); !errors.Is(err, receive.ErrPaymentData) {
			l.Errorf("another merchant opens it: %v", err)
		}
		l.lists(id, second, p)

		// Errors that do not depend on the network are reported without asking it.
		request.Merchant = uuid.New()
		if _, err := l.RequestPaymentData(l.Context(), id, request); !hasViolations(err, "Merchant unknown_merchant") {
			l.Errorf("an unknown merchant: %v", err)
		}
		other, err := l.CreateAccount(l.Context(), "other", nil)
		l.must(err)
		if other.ID == account.ID {
			l.Fatal("both accounts are the same")
		}
		for name, f := range map[string]func() error{
			"an unknown token": func() error {
				_, err := l.RequestPaymentData(l.Context(), uuid.New(), purchase)
				return err
			},
			"another account": func() error {
				_, err := l.In(other.ID).RequestPaymentData(l.Context(), id, purchase)
				return err
			},
			"the list of an unknown token": func() error { _, err := l.ListPaymentData(l.Context(), uuid.New(), nil); return err },
			"the list of another account":  func() error { _, err := l.In(other.ID).ListPaymentData(l.Context(), id, nil); return err },
		} {
			if err := f(); !errors.Is(err, cardvault.ErrNotFound) {
				l.Errorf("%s: %v", name, err)
			}
		}
		l.lists(id, second, p)
		l.must(l.Delete(l.Context(), id))
		if _, err := l.ListPaymentData(l.Context(), id, nil); !errors.Is(err, cardvault.ErrNotFound) {
			l.Errorf("the list of a deleted token: %v", err)
		}
		if n := len(l.stored(kindPaymentData)) + len(l.stored(kindPaymentJWE)); n != 0 {
			l.Errorf("%d records outlive their token", n)
		}
		if n := len(l.requests()); n != 0 {
			l.Errorf("the network was asked %d times", n)
		}
	})
}

// These are kinds of stored records.
const (
	kindToken       store.Kind = 5
	kindIdempotency store.Kind = 7
	kindAPIKey      store.Kind = 4
	kindAnswer      store.Kind = 8
	kindPaymentData store.Kind = 15
	kindPaymentJWE  store.Kind = 16
)

// stored returns the records of a kind that are due at some time, or listed
// under a token.
func (t *till) stored(kind store.Kind) (found []*store.Record) {
	t.Helper()
	account, err := t.Account(t.Context())
	t.must(err)
	t.must(t.store.View(t.Context(), func(tx store.ReadTx) error {
		if found, err = tx.Due(kind, store.AllShards, time.Now().AddDate(100, 0, 0), 1000); err != nil {
			return err
		}
		tokens, err := tx.List(&store.Query{Kind: kindToken, Account: account.ID, Limit: 1000})
		if err != nil {
			return err
		}
		for _, token := range tokens.Records {
			of, err := tx.List(&store.Query{Kind: kind, Parent: token.ID, Limit: 1000})
			if err != nil {
				return err
			}
			found = append(found, slices.DeleteFunc(of.Records, func(r *store.Record) bool { return !r.Due.IsZero() })...)
		}
		return nil
	}))
	return found
}

// hasViolations reports whether err contains exactly these violations, each written as field
// and code.
func hasViolations(err error, want ...string) bool {
	var got []string
	for _, e := range cardvault.FieldErrors(err) {
		got = append(got, e.Field+" "+string(e.Code))
	}
	return slices.Equal(got, want)
}

func TestPaymentRequestCheck(t *testing.T) {
	atTill(t, nil, func(l *till) {
		id := l.become(active)
		for _, test := range []struct {
			change func(*cardvault.PaymentRequest)
			want   string
		}{
			{func(r *cardvault.PaymentRequest) { r.Amount = -1 }, "Amount out_of_range"},
			{func(r *cardvault.PaymentRequest) { r.Amount = 1 << 53 }, "Amount out_of_range"},
			{func(r *cardvault.PaymentRequest) { r.Currency = "" }, "Currency invalid_format"},
			{func(r *cardvault.PaymentRequest) { r.Currency = "eur" }, "Currency invalid_format"},
			{func(r *cardvault.PaymentRequest) { r.Currency = "EURO" }, "Currency invalid_format"},
			{func(r *cardvault.PaymentRequest) { r.Currency = "ABC" }, "Currency unknown_currency"},
			{func(r *cardvault.PaymentRequest) { r.Reference = "" }, "Reference empty_string"},
			{func(r *cardvault.PaymentRequest) { r.Reference = " \t" }, "Reference blank"},
			{func(r *cardvault.PaymentRequest) { r.Reference = "a\n" }, "Reference invalid_format"},
			{func(r *cardvault.PaymentRequest) { r.Reference = strings.Repeat("é", 256) }, "Reference too_long"},
			{func(r *cardvault.PaymentRequest) { *r = cardvault.PaymentRequest{Amount: -1} },
				"Amount out_of_range, Currency invalid_format, Reference empty_string"},
		} {
			r := purchase
			test.change(&r)
			want := strings.Split(test.want, ", ")
			if err := r.Check(); !hasViolations(err, want...) {
				l.Errorf("%+v: Check = %v, want %s", r, err, test.want)
			}
			// This is checked before the token is looked up.
			if _, err := l.RequestPaymentData(l.Context(), uuid.New(), r); !hasViolations(err, want...) {
				l.Errorf("%+v: %v, want %s", r, err, test.want)
			}
		}
		for _, r := range []cardvault.PaymentRequest{
			{Amount: 0, Currency: "JPY", Reference: "r"},
			{Amount: 1<<53 - 1, Currency: "XTS", Reference: strings.Repeat("é", 255)},
		} {
			l.must(r.Check())
			p, err := l.RequestPaymentData(l.Context(), id, r)
			l.must(err)
			if p.Amount != r.Amount || p.Currency != r.Currency || p.Reference != r.Reference || !reflect.DeepEqual(l.listed(id)[0], p) {
				l.Errorf("got %+v, listed %+v", p, l.listed(id)[0])
			}
		}
	})
}

// TestPaymentRefused: requests that are refused without asking the network, and their
// failures.
func TestPaymentRefused(t *testing.T) {
	const scheme, configuration = network.SourceScheme, network.SourceConfiguration
	for name, test := range map[string]struct {
		state      network.Status
		change     func(l *till, r *cardvault.PaymentRequest)
		source     network.Source
		code       string
		schemeCode string
		retryable  bool
	}{
		"pending":       {state: pending, source: scheme, code: "network_token_pending", retryable: true},
		"inactive":      {state: inactive, source: scheme, code: "network_token_inactive"},
		"failed":        {state: failed, source: scheme, code: "network_token_failed"},
		"deleted":       {state: deleted, source: scheme, code: "network_token_deleted"},
		"not available": {state: notAvailable, source: configuration, code: "merchant_not_enrolled"},
		"invalid": {state: active, source: scheme, code: "token_invalidated", change: func(l *till, _ *cardvault.PaymentRequest) {
			l.notify(network.Notice{Kind: network.NoticeInvalidated})
		}},
		"not activated": {state: active, source: configuration, code: "network_tokens_not_activated", change: func(l *till, _ *cardvault.PaymentRequest) {
			l.activate(false)
		}},
		"no network": {state: active, source: configuration, code: "no_network", change: func(l *till, _ *cardvault.PaymentRequest) {
			l.opts.Network = nil
			l.restart()
		}},
		"another network": {state: active, source: configuration, code: "no_network", change: func(l *till, _ *cardvault.PaymentRequest) {
			l.opts.Network = renamed{l.opts.Network}
			l.restart()
		}},
		"no secret": {state: active, source: configuration, code: "no_encryption_key", change: func(l *till, r *cardvault.PaymentRequest) {
			m, err := l.CreateMerchant(l.Context(), "shop", nil)
			l.must(err)
			r.Merchant = m.ID
		}},
		"not enrolled": {state: active, source: configuration, code: "merchant_not_enrolled", schemeCode: "77", change: func(l *till, _ *cardvault.PaymentRequest) {
			l.net.ineligible = func(card.Scheme) error {
				return &network.Error{Source: configuration, Code: "merchant_not_enrolled", SchemeCode: "77"}
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			atTill(t, nil, func(l *till) {
				id := l.become(test.state)
				r := purchase
				if test.change != nil {
					test.change(l, &r)
				}
				l.pass(time.Second)
				p, err := l.RequestPaymentData(l.Context(), id, r)
				l.must(err)
				refusedFor(l, p, test.source, test.code, test.schemeCode, test.retryable)
				if p.TokenID != id || p.Amount != 1099 || p.Merchant == uuid.Nil || p.CreatedAt != time.Now().UTC() {
					l.Errorf("incomplete: %+v", p)
				}
				l.lists(id, p)
				if n := len(l.requests()); n != 0 {
					l.Errorf("the network was asked %d times", n)
				}
			})
		})
	}
	t.Run("reason", func(t *testing.T) {
		atTill(t, nil, func(l *till) {
			// A token that never had a network token gives its reason in full.
			session, err := l.CreateSession(l.Context(), &cardvault.SessionOptions{TokenTTL: time.Minute})
			l.must(err)
			token, err := l.Tokenize(l.Context(), session.ID, visa)
			l.must(err)
			p := l.pay(token.ID)
			refusedFor(l, p, configuration, "ephemeral_token", "", false)
			if p.Failures[0].Message != token.NetworkTokenStatusReason.Message {
				l.Errorf("message %q", p.Failures[0].Message)
			}
			l.lists(token.ID, p)
			l.pass(time.Minute)
			if _, err := l.RequestPaymentData(l.Context(), token.ID, purchase); !errors.Is(err, cardvault.ErrNotFound) {
				l.Errorf("for an expired token: %v", err)
			}
		})
	})
}

type renamed struct{ network.Provider }

func (renamed) Info() network.Info { return network.Info{Name: "another"} }

// TestPaymentFailures: answers of the network, and the failures reported to the caller.
func TestPaymentFailures(t *testing.T) {
	const scheme, configuration = network.SourceScheme, network.SourceConfiguration
	refusal := func(source network.Source, code, schemeCode string, retryable bool) error {
		return fmt.Errorf("adapter: %w", &network.Error{Source: source, Code: network.Code(code), SchemeCode: schemeCode, Retryable: retryable})
	}
	none := func(err error) func(context.Context, *network.Cryptogram) (*network.Cryptogram, error) {
		return func(context.Context, *network.Cryptogram) (*network.Cryptogram, error) { return nil, err }
	}
	garbage := func(change func(*network.Cryptogram)) func(context.Context, *network.Cryptogram) (*network.Cryptogram, error) {
		return func(_ context.Context, c *network.Cryptogram) (*network.Cryptogram, error) {
			change(c)
			return c, nil
		}
	}
	number := func(digits string) func(context.Context, *network.Cryptogram) (*network.Cryptogram, error) {
		return garbage(func(c *network.Cryptogram) { c.Number = card.NewPAN([]byte(digits)) })
	}
	value := func(text string) func(context.Context, *network.Cryptogram) (*network.Cryptogram, error) {
		return garbage(func(c *network.Cryptogram) { c.Value = card.NewCryptogramValue([]byte(text)) })
	}
	expiry := func(month, year int) func(context.Context, *network.Cryptogram) (*network.Cryptogram, error) {
		return garbage(func(c *network.Cryptogram) { c.Expiry = card.Expiry{Month: month, Year: year} })
	}
	for name, test := range map[string]struct {
		answer     func(context.Context, *network.Cryptogram) (*network.Cryptogram, error)
		source     network.Source
		code       string
		schemeCode string
		retryable  bool
		took       time.Duration
	}{
		"declined":                     {none(refusal(scheme, "declined", "05", false)), scheme, "cryptogram_declined", "05", false, 0},
		"declined, code alone":         {none(refusal(scheme, "declined", "", false)), scheme, "cryptogram_declined", "declined", false, 0},
		"declined, unknown code":       {none(refusal(scheme, "strange", "", false)), scheme, "cryptogram_declined", "strange", false, 0},
		"declined, no source":          {none(refusal(0, "strange", "", false)), scheme, "cryptogram_declined", "strange", false, 0},
		"declined, code is a number":   {none(refusal(scheme, networkNumber, "", false)), scheme, "cryptogram_declined", "", false, 0},
		"declined, code is not text":   {none(refusal(scheme, "x", "\x00", false)), scheme, "cryptogram_declined", "", false, 0},
		"retryable":                    {none(refusal(scheme, "issuer_unavailable", "91", true)), scheme, "scheme_unavailable", "91", true, 0},
		"configuration":                {none(refusal(configuration, "merchant_not_enrolled", "", false)), configuration, "merchant_not_enrolled", "", false, 0},
		"configuration, retryable":     {none(refusal(configuration, "scheme_not_enabled", "3", true)), configuration, "scheme_not_enabled", "3", false, 0},
		"configuration, unknown code":  {none(refusal(configuration, "no_such_mid", "", false)), configuration, "invalid_request", "no_such_mid", false, 0},
		"configuration, scheme's code": {none(refusal(configuration, "declined", "", false)), configuration, "invalid_request", "declined", false, 0},
		"unreachable":                  {none(errors.New("no route to host")), scheme, "scheme_unavailable", "", true, 0},
		"unknown to it":                {none(network.ErrUnknown), scheme, "scheme_unavailable", "", true, 0},
		"no refusal":                   {none((*network.Error)(nil)), scheme, "scheme_unavailable", "", true, 0},
		"nothing":                      {none(nil), scheme, "scheme_unavailable", "", true, 0},
		"panic": {func(context.Context, *network.Cryptogram) (*network.Cryptogram, error) {
			panic(networkNumber + cryptogram)
		}, scheme, "scheme_unavailable", "", true, 0},
		"deadline": {func(ctx context.Context, _ *network.Cryptogram) (*network.Cryptogram, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}, scheme, "timeout", "", true, 10 * time.Second},
		"deadline, in other words": {func(ctx context.Context, _ *network.Cryptogram) (*network.Cryptogram, error) {
			<-ctx.Done()
			return nil, errors.New("read: i/o timeout")
		}, scheme, "timeout", "", true, 10 * time.Second},

		"another token":      {garbage(func(c *network.Cryptogram) { c.TokenID = "network-token-2" }), scheme, "scheme_unavailable", "", true, 0},
		"no number":          {number(""), scheme, "scheme_unavailable", "", true, 0},
		"12 digits":          {number("489537001203"), scheme, "scheme_unavailable", "", true, 0},
		"20 digits":          {number("48953700120034712300"), scheme, "scheme_unavailable", "", true, 0},
		"wrong check digit":  {number("4895370012003479"), scheme, "scheme_unavailable", "", true, 0},
		"no digits":          {number("489537001200347\""), scheme, "scheme_unavailable", "", true, 0},
		"the card's number":  {number("4242424242424242"), scheme, "scheme_unavailable", "", true, 0},
		"no value":           {value(""), scheme, "scheme_unavailable", "", true, 0},
		"long value":         {value(strings.Repeat("A", 257)), scheme, "scheme_unavailable", "", true, 0},
		"no ASCII":           {value("Agé"), scheme, "scheme_unavailable", "", true, 0},
		"control character":  {value("A\n"), scheme, "scheme_unavailable", "", true, 0},
		"delete character":   {value("A\x7f"), scheme, "scheme_unavailable", "", true, 0},
		"one digit of ECI":   {garbage(func(c *network.Cryptogram) { c.ECI = "7" }), scheme, "scheme_unavailable", "", true, 0},
		"three of ECI":       {garbage(func(c *network.Cryptogram) { c.ECI = "070" }), scheme, "scheme_unavailable", "", true, 0},
		"letters in the ECI": {garbage(func(c *network.Cryptogram) { c.ECI = "0x" }), scheme, "scheme_unavailable", "", true, 0},
		"month 0":            {expiry(0, 2030), scheme, "scheme_unavailable", "", true, 0},
		"month 13":           {expiry(13, 2030), scheme, "scheme_unavailable", "", true, 0},
		"year 30":            {expiry(12, 30), scheme, "scheme_unavailable", "", true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			atTill(t, nil, func(l *till) {
				id := l.become(active)
				l.answers(test.answer)
				start := time.Now()
				p := l.pay(id)
				refusedFor(l, p, test.source, test.code, test.schemeCode, test.retryable)
				if took := time.Since(start); took != test.took {
					l.Errorf("took %v, want %v", took, test.took)
				}
				if n := len(l.requests()); n != 1 {
					l.Errorf("the network was asked %d times", n)
				}
				l.lists(id, p)
				if len(l.stored(kindPaymentJWE)) != 0 {
					l.Error("something is encrypted")
				}
				vaulttest.AssertNoLeak(l, []string{networkNumber, cryptogram, l.secret.Text(), "4242424242424242"}, l.log.text())
				vaulttest.AssertNoCardNumber(l, nil, l.log.text())
			})
		})
	}
}

// TestCryptograms: answers at the limits of acceptance.
func TestCryptograms(t *testing.T) {
	atTill(t, nil, func(l *till) {
		id := l.become(active)
		for _, c := range []struct{ number, value, eci, payload string }{
			{"4895370012006", "A", "", `{"network_token":{"token":"4895370012006","expiry_year":2030,"expiry_month":12},"cryptogram":"A","eci":null}`},
			{"4895370012003471238", `a "\` + strings.Repeat("~", 252), "00",
				`{"network_token":{"token":"4895370012003471238","expiry_year":2030,"expiry_month":12},"cryptogram":"a \"\\` + strings.Repeat("~", 252) + `","eci":"00"}`},
			{"4895370012003471238", strings.Repeat(`\`, 256), "99",
				`{"network_token":{"token":"4895370012003471238","expiry_year":2030,"expiry_month":12},"cryptogram":"` + strings.Repeat(`\`, 512) + `","eci":"99"}`},
		} {
			l.answers(func(_ context.Context, got *network.Cryptogram) (*network.Cryptogram, error) {
				got.Number, got.Value, got.ECI = card.NewPAN([]byte(c.number)), card.NewCryptogramValue([]byte(c.value)), c.eci
				return got, nil
			})
			p := l.pay(id)
			if _, payload := openByHand(l, p.Encrypted, l.secret.Text()); payload != c.payload {
				l.Errorf("payload %s, want %s", payload, c.payload)
			}
			opened, err := receive.OpenPaymentData(p.Encrypted, l.secret)
			l.must(err)
			if got, want := exposed(opened), c.number+" 12/2030 "+c.value+" "+c.eci; got != want {
				l.Errorf("opened %q, want %q", got, want)
			}
		}
	})
}

// TestDeclinedIsLookedUp: a declined network token is looked up soon. After other failures
// it is not.
func TestDeclinedIsLookedUp(t *testing.T) {
	atTill(t, nil, func(l *till) {
		id := l.become(active)
		l.net.set("network-token-1", func(t *network.Token) { t.State, t.StateAt = inactive, time.Time{} })
		l.fails(errors.New("no route to host"))
		l.pay(id)
		l.drain()
		l.is(id, active, "")
		l.fails(schemeError("declined"))
		l.run(func() {
			refusedFor(l, l.pay(id), network.SourceScheme, "cryptogram_declined", "declined", false)
			l.pass(time.Second)
		})
		l.is(id, inactive, "suspended_by_scheme")
		if n := len(l.net.asked("Lookup")); n != 1 {
			l.Errorf("looked up %d times", n)
		}
		refusedFor(l, l.pay(id), network.SourceScheme, "network_token_inactive", "", false)
	})
}

func TestPaymentCallerGone(t *testing.T) {
	atTill(t, nil, func(l *till) {
		id := l.become(active)
		for name, ctx := range map[string]func() (context.Context, context.CancelFunc){
			"cancelled": func() (context.Context, context.CancelFunc) {
				ctx, cancel := context.WithCancel(l.Context())
				time.AfterFunc(time.Second, cancel)
				return ctx, cancel
			},
			"deadline": func() (context.Context, context.CancelFunc) { return context.WithTimeout(l.Context(), time.Second) },
		} {
			for _, answer := range []func(context.Context, *network.Cryptogram) (*network.Cryptogram, error){
				func(ctx context.Context, _ *network.Cryptogram) (*network.Cryptogram, error) {
					<-ctx.Done()
					return nil, ctx.Err()
				},
				func(ctx context.Context, c *network.Cryptogram) (*network.Cryptogram, error) {
					<-ctx.Done()
					return c, nil // answers too late
				},
			} {
				l.answers(answer)
				ctx, cancel := ctx()
				r := purchase
				r.IdempotencyKey = uuid.NewString()
				_, err := l.RequestPaymentData(ctx, id, r)
				if err == nil || !errors.Is(err, ctx.Err()) {
					l.Errorf("%s: %v", name, err)
				}
				cancel()
				l.lists(id)
				if log := l.log.text(); log != "" {
					l.Errorf("%s is logged as a fault of the network: %s", name, log)
				}

				// The key is free, and the network is asked for the same cryptogram.
				l.answers(nil)
				p, err := l.RequestPaymentData(l.Context(), id, r)
				l.must(err)
				opens(l, p, l.secret)
				asked := l.requests()
				if len(asked) != 2 || asked[0] != asked[1] || p.Replayed {
					l.Errorf("%s: asked %+v, replayed %t", name, asked, p.Replayed)
				}
				l.lists(id, p)
				l.must(l.Delete(l.Context(), id))
				id = l.become(active)
			}
		}
	})
}

// TestPaymentConflict: if storing a cryptogram meets a conflict, the call fails as
// unavailable. It does not ask the network for a second cryptogram, and its key is free
// again.
func TestPaymentConflict(t *testing.T) {
	atTill(t, nil, func(l *till) {
		for _, key := range []string{"", "k"} {
			id, r := l.become(active), purchase
			r.IdempotencyKey = key
			l.answers(func(_ context.Context, c *network.Cryptogram) (*network.Cryptogram, error) {
				once := false
				l.store.hook(func() error {
					if once {
						return nil
					}
					once = true
					return store.ErrConflict
				})
				return c, nil
			})
			p, err := l.RequestPaymentData(l.Context(), id, r)
			if n := len(l.requests()); !errors.Is(err, cardvault.ErrUnavailable) || errors.Is(err, store.ErrConflict) || p != nil || n != 1 {
				l.Errorf("got %+v, %v; the network was asked %d times", p, err, n)
			}
			l.lists(id)

			l.answers(nil)
			p, err = l.RequestPaymentData(l.Context(), id, r)
			l.must(err)
			l.lists(id, p)
			l.requests()
		}
	})
}

func TestPaymentOfATokenDeletedMeanwhile(t *testing.T) {
	atTill(t, nil, func(l *till) {
		for _, key := range []string{"", "k"} {
			id, r := l.become(active), purchase
			r.IdempotencyKey = key
			l.answers(func(ctx context.Context, c *network.Cryptogram) (*network.Cryptogram, error) {
				return c, l.Delete(ctx, id)
			})
			if p, err := l.RequestPaymentData(l.Context(), id, r); !errors.Is(err, cardvault.ErrNotFound) || p != nil {
				l.Errorf("got %+v, %v", p, err)
			}
			l.answers(nil)
			if _, err := l.RequestPaymentData(l.Context(), id, r); !errors.Is(err, cardvault.ErrNotFound) {
				l.Errorf("again: %v", err)
			}
			if n := len(l.stored(kindPaymentJWE)); n != 0 {
				l.Errorf("%d records of a deleted token are left", n)
			}
		}
		if n := len(l.requests()); n != 2 {
			l.Errorf("the network was asked %d times", n)
		}
	})
}

// TestPaymentSecretRotation: during a rotation the receiver has two secrets, and kid names
// the one in use.
func TestPaymentSecretRotation(t *testing.T) {
	atTill(t, nil, func(l *till) {
		id, ctx := l.become(active), l.Context()
		kids := func() (kids []string) {
			m, err := l.PrimaryMerchant(ctx)
			l.must(err)
			for _, s := range m.Secrets {
				kids = append(kids, s.KeyID)
			}
			return kids
		}
		check := func(what string, secret receive.SharedSecret, kid string, others ...receive.SharedSecret) {
			l.Helper()
			p := l.pay(id)
			opens(l, p, secret)
			header, _ := openByHand(l, p.Encrypted, secret.Text())
			if header["kid"] != kid {
				l.Errorf("%s: kid %v, want %v", what, header["kid"], kid)
			}
			if _, err := receive.OpenPaymentData(p.Encrypted, others...); !errors.Is(err, receive.ErrPaymentData) {
				l.Errorf("%s: opened with other secrets: %v", what, err)
			}
			if _, err := receive.OpenPaymentData(p.Encrypted, append(others, secret)...); err != nil {
				l.Errorf("%s: not opened with all secrets: %v", what, err)
			}
		}
		first := l.secret
		check("one secret", first, kids()[0])
		second, err := l.RotatePaymentSecret(ctx, l.merchant, nil)
		l.must(err)
		check("rotated", first, kids()[0], second.Secret)
		l.pass(cardvault.SecretOverlap - time.Microsecond)
		check("just before it is used", first, kids()[0], second.Secret)
		l.pass(time.Microsecond)
		check("when it is used", second.Secret, kids()[1], first)
		third, err := l.RotatePaymentSecret(ctx, l.merchant, &cardvault.PaymentSecretOptions{ActivateAt: time.Now().Add(time.Hour)})
		l.must(err)
		check("rotated again", second.Secret, kids()[0], first, third.Secret)
		l.pass(time.Hour)
		check("after an hour", third.Secret, kids()[1], first, second.Secret)
		fourth, err := l.RotatePaymentSecret(ctx, l.merchant, &cardvault.PaymentSecretOptions{ActivateAt: time.Now()})
		l.must(err)
		check("replaced at once", fourth.Secret, kids()[0], first, second.Secret, third.Secret)
	})
}

func TestPaymentDataRetention(t *testing.T) {
	dropped := func(p *cardvault.PaymentData) *cardvault.PaymentData {
		without := *p
		without.Encrypted = ""
		return &without
	}
	for _, test := range []struct{ option, want time.Duration }{
		{0, 24 * time.Hour}, {time.Minute, time.Minute}, {30 * 24 * time.Hour, 30 * 24 * time.Hour}, {cardvault.NoRetention, 0},
	} {
		t.Run(test.option.String(), func(t *testing.T) {
			opts := &cardvault.Options{Mode: cardvault.Sandbox, PaymentDataRetention: test.option, IdempotencyTTL: 7 * 24 * time.Hour}
			atTill(t, opts, func(l *till) {
				id := l.become(active)
				r := purchase
				r.IdempotencyKey = "k"
				p, err := l.RequestPaymentData(l.Context(), id, r)
				l.must(err)
				opens(l, p, l.secret)
				replay := func(want *cardvault.PaymentData) {
					l.Helper()
					l.lists(id, want)
					if test.want > 7*24*time.Hour {
						return
					}
					got, err := l.RequestPaymentData(l.Context(), id, r)
					l.must(err)
					if !repeats(got, want) {
						l.Errorf("replayed %+v, want %+v", got, want)
					}
				}
				records := 0
				if test.want > 0 {
					records = 1
					replay(p)
					l.pass(test.want - time.Microsecond)
					replay(p)
					l.pass(time.Microsecond)
				}
				replay(dropped(p)) // before the sweep
				if n := len(l.stored(kindPaymentJWE)); n != records {
					l.Errorf("%d records before the sweep", n)
				}
				l.drain()
				replay(dropped(p))
				if n := len(l.stored(kindPaymentJWE)); n != 0 {
					l.Errorf("%d records after the sweep", n)
				}
				if n := len(l.requests()); n != 1 {
					l.Errorf("the network was asked %d times", n)
				}
			})
		})
	}
}

// TestPaymentDataLeaks: the store holds nothing usable for a payment in clear text, nor does
// a log or an error.
func TestPaymentDataLeaks(t *testing.T) {
	atTill(t, nil, func(l *till) {
		id := l.become(active)
		p := l.pay(id)
		var stored []any
		for kind := range store.Kind(32) {
			for _, r := range l.stored(kind) {
				stored = append(stored, bytes.NewReader(r.Shown), bytes.NewReader(r.Secret))
			}
		}
		if len(stored) < 6 {
			l.Fatalf("%d parts of records", len(stored))
		}
		secrets := []string{networkNumber, cryptogram, l.secret.Text(), p.Encrypted, purchase.Reference}
		vaulttest.AssertNoLeak(l, secrets, stored...)
		_, err := receive.OpenPaymentData(p.Encrypted, receive.NewSharedSecret([]byte(l.secret.Text()+"x")))
		opened, _ := receive.OpenPaymentData(p.Encrypted, l.secret)
		vaulttest.AssertNoLeak(l, secrets[:4], l.log.text(), err, opened)
	})
}

// repeats reports whether p is a replay of want.
func repeats(p, want *cardvault.PaymentData) bool {
	is, was := *p, *want
	is.Replayed, was.Replayed = false, false
	return p.Replayed && reflect.DeepEqual(is, was)
}

// TestPaymentIdempotency covers the idempotency of a call that waits for the network.
func TestPaymentIdempotency(t *testing.T) {
	call := func(l *till, id uuid.UUID, r cardvault.PaymentRequest) (*cardvault.PaymentData, error) {
		r.IdempotencyKey = "k"
		return l.RequestPaymentData(l.Context(), id, r)
	}
	replayed := func(l *till, id uuid.UUID, want *cardvault.PaymentData) {
		l.Helper()
		if p, err := call(l, id, purchase); err != nil || !repeats(p, want) {
			l.Errorf("replayed %+v, %v, want %+v", p, err, want)
		}
	}
	other := purchase
	other.Amount++

	t.Run("replay", func(t *testing.T) {
		atTill(t, nil, func(l *till) {
			id, second := l.become(active), l.become(active)
			p, err := call(l, id, purchase)
			if err != nil || p.Replayed {
				l.Fatalf("first: %v", err)
			}
			replayed(l, id, p)
			for _, change := range []func(*cardvault.PaymentRequest){
				func(r *cardvault.PaymentRequest) { r.Amount++ },
				func(r *cardvault.PaymentRequest) { r.Currency = "USD" },
				func(r *cardvault.PaymentRequest) { r.Reference += "x" },
				func(r *cardvault.PaymentRequest) { r.Merchant = l.merchant },
			} {
				r := purchase
				change(&r)
				if _, err := call(l, id, r); !errors.Is(err, cardvault.ErrIdempotencyKeyReused) {
					l.Errorf("another request: %v", err)
				}
			}
			if n := len(l.requests()); n != 1 {
				l.Errorf("the network was asked %d times", n)
			}
			// The same key may be used for another token.
			if q, err := call(l, second, other); err != nil || q.ID == p.ID {
				l.Errorf("another token: %v", err)
			}
			// A failure is stored as a result too.
			l.fails(errors.New("no route to host"))
			refused := purchase
			refused.IdempotencyKey = "2"
			f, err := l.RequestPaymentData(l.Context(), id, refused)
			l.must(err)
			l.answers(nil)
			again, err := l.RequestPaymentData(l.Context(), id, refused)
			l.must(err)
			if !repeats(again, f) || again.Success {
				l.Errorf("replayed %+v, want %+v", again, f)
			}
			l.pass(23 * time.Hour)
			replayed(l, id, p)
			// The result is deleted with the token.
			l.must(l.Delete(l.Context(), id))
			if _, err := call(l, id, purchase); !errors.Is(err, cardvault.ErrNotFound) {
				l.Errorf("after the token: %v", err)
			}
			l.pass(2 * time.Hour)
			q, err := call(l, second, other)
			if err != nil || q.Replayed || q.ID == p.ID {
				l.Errorf("when the key has lapsed: %+v, %v", q, err)
			}
		})
	})

	t.Run("refused here", func(t *testing.T) {
		atTill(t, nil, func(l *till) {
			id := l.become(inactive)
			p, err := call(l, id, purchase)
			l.must(err)
			refusedFor(l, p, network.SourceScheme, "network_token_inactive", "", false)
			l.notify(network.Notice{Kind: network.NoticeResumed})
			l.is(id, active, "")
			replayed(l, id, p)
		})
	})

	// Errors are not stored as results.
	t.Run("no result", func(t *testing.T) {
		atTill(t, nil, func(l *till) {
			id := l.become(active)
			bad := purchase
			bad.Merchant = uuid.New()
			for range 2 {
				if _, err := call(l, id, bad); !hasViolations(err, "Merchant unknown_merchant") {
					l.Errorf("an unknown merchant: %v", err)
				}
				if _, err := call(l, uuid.New(), purchase); !errors.Is(err, cardvault.ErrNotFound) {
					l.Errorf("unknown token: %v", err)
				}
			}
			if n := len(l.stored(kindIdempotency)); n != 0 {
				l.Errorf("%d keys are stored", n)
			}
			if p, err := call(l, id, purchase); err != nil || p.Replayed {
				l.Errorf("then: %v", err)
			}
		})
	})

	t.Run("in flight", func(t *testing.T) {
		atTill(t, nil, func(l *till) {
			id := l.become(active)
			answer := make(chan struct{})
			l.answers(func(_ context.Context, c *network.Cryptogram) (*network.Cryptogram, error) {
				<-answer
				return c, nil
			})
			first := make(chan *cardvault.PaymentData, 1)
			go func() {
				p, err := call(l, id, purchase)
				l.try(err)
				if p.Replayed {
					l.Error("the first call is a replay")
				}
				first <- p
			}()
			synctest.Wait()
			if _, err := call(l, id, purchase); !errors.Is(err, cardvault.ErrIdempotencyInProgress) {
				l.Errorf("a second call: %v", err)
			}
			if _, err := call(l, id, other); !errors.Is(err, cardvault.ErrIdempotencyKeyReused) {
				l.Errorf("another request: %v", err)
			}
			close(answer)
			replayed(l, id, <-first)
			if n := len(l.requests()); n != 1 {
				l.Errorf("the network was asked %d times", n)
			}
		})
	})

	t.Run("race", func(t *testing.T) {
		for _, state := range []network.Status{active, inactive} {
			atTill(t, nil, func(l *till) {
				id := l.become(state)
				l.answers(func(ctx context.Context, c *network.Cryptogram) (*network.Cryptogram, error) {
					<-time.After(time.Second)
					return c, nil
				})
				var group sync.WaitGroup
				var mu sync.Mutex
				results := map[uuid.UUID]int{}
				for range 16 {
					group.Go(func() {
						p, err := call(l, id, purchase)
						for errors.Is(err, cardvault.ErrIdempotencyInProgress) {
							<-time.After(100 * time.Millisecond)
							p, err = call(l, id, purchase)
						}
						if err != nil {
							l.Error(err)
							return
						}
						mu.Lock()
						defer mu.Unlock()
						results[p.ID]++
					})
				}
				group.Wait()
				want := 1
				if state == inactive {
					want = 0
				}
				if n := len(l.requests()); n != want || len(results) != 1 || len(l.listed(id)) != 1 {
					l.Errorf("%v: the network was asked %d times for %v", state, n, results)
				}
			})
		}
	})

	// A process dies after asking the network. The key is free after a minute, for one of the
	// waiting calls, which sends the network the same request.
	t.Run("killed", func(t *testing.T) {
		atTill(t, nil, func(l *till) {
			id := l.become(active)
			l.answers(func(_ context.Context, c *network.Cryptogram) (*network.Cryptogram, error) {
				l.store.set(errors.New("killed"), false)
				return c, nil
			})
			if _, err := call(l, id, purchase); err == nil {
				l.Fatal("the call succeeds")
			}
			l.restart()
			l.lists(id)
			l.pass(59 * time.Second)
			if _, err := call(l, id, purchase); !errors.Is(err, cardvault.ErrIdempotencyInProgress) {
				l.Errorf("within the lease: %v", err)
			}
			l.pass(time.Second)
			l.answers(func(_ context.Context, c *network.Cryptogram) (*network.Cryptogram, error) {
				<-time.After(time.Second)
				return c, nil
			})
			var group sync.WaitGroup
			var mu sync.Mutex
			var made []*cardvault.PaymentData
			for range 8 {
				group.Go(func() {
					p, err := call(l, id, purchase)
					if errors.Is(err, cardvault.ErrIdempotencyInProgress) {
						return
					}
					l.try(err)
					mu.Lock()
					defer mu.Unlock()
					made = append(made, p)
				})
			}
			group.Wait()
			asked := l.requests()
			if len(asked) != 2 || asked[0] != asked[1] || len(made) != 1 || made[0].ID.String() != asked[0].IdempotencyKey {
				l.Fatalf("asked %+v for %+v", asked, made)
			}
			opens(l, made[0], l.secret)
			l.lists(id, made...)
			replayed(l, id, made[0])
		})
	})

	// A commit fails, but its writes were stored.
	t.Run("unknown outcome", func(t *testing.T) {
		atTill(t, nil, func(l *till) {
			id := l.become(active)
			l.answers(func(_ context.Context, c *network.Cryptogram) (*network.Cryptogram, error) {
				l.store.set(store.ErrOutcomeUnknown, true)
				return c, nil
			})
			if _, err := call(l, id, purchase); !errors.Is(err, cardvault.ErrOutcomeUnknown) {
				l.Fatalf("got %v", err)
			}
			l.store.set(nil, false)
			replayed(l, id, l.listed(id)[0])
		})
	})

	// A call that takes longer than its lease is overtaken by another one.
	t.Run("overtaken", func(t *testing.T) {
		for _, wait := range []bool{false, true} {
			atTill(t, nil, func(l *till) {
				id := l.become(active)
				slow, second := make(chan struct{}), make(chan struct{})
				n := 0
				l.answers(func(_ context.Context, c *network.Cryptogram) (*network.Cryptogram, error) {
					if n++; n == 1 {
						<-slow // like an adapter that ignores its deadline
					} else {
						<-second
					}
					return c, nil
				})
				first, other := make(chan error, 1), make(chan error, 1)
				var results [2]*cardvault.PaymentData
				go func() {
					var err error
					results[0], err = call(l, id, purchase)
					first <- err
				}()
				l.pass(61 * time.Second)
				go func() {
					var err error
					results[1], err = call(l, id, purchase)
					other <- err
				}()
				synctest.Wait()
				if wait { // until the first call ends
					close(slow)
					if err := <-first; !errors.Is(err, cardvault.ErrIdempotencyInProgress) {
						l.Errorf("overtaken: %v", err)
					}
					close(second)
					l.must(<-other)
				} else {
					close(second)
					l.must(<-other)
					close(slow)
					l.must(<-first)
					if !repeats(results[0], results[1]) {
						l.Errorf("two results: %+v", results)
					}
				}
				asked := l.requests()
				if len(asked) != 2 || asked[0] != asked[1] {
					l.Errorf("asked %+v", asked)
				}
				l.lists(id, results[1])
			})
		}
	})
}

// TestProvisionRefusalIsReplayed: the only error stored as a result is this one of
// Provision.
func TestProvisionRefusalIsReplayed(t *testing.T) {
	atTill(t, nil, func(l *till) {
		id := l.become(inactive)
		try := func() (error, bool) {
			border := &replay.Border{Request: func() []byte { return nil }}
			_, err := l.Provision(replay.WithBorder(l.Context(), border), id, &cardvault.CallOptions{IdempotencyKey: "k"})
			return err, border.Replayed
		}
		if err, replayed := try(); !errors.Is(err, cardvault.ErrNetworkTokenState) || replayed {
			l.Errorf("first: %v, replayed %t", err, replayed)
		}
		l.notify(network.Notice{Kind: network.NoticeResumed})
		if err, replayed := try(); !errors.Is(err, cardvault.ErrNetworkTokenState) || !replayed {
			l.Errorf("again: %v, replayed %t", err, replayed)
		}
		if _, err := l.Provision(l.Context(), id, nil); err != nil {
			l.Errorf("without a key: %v", err)
		}
		l.must(l.Delete(l.Context(), id))
		if err, replayed := try(); !errors.Is(err, cardvault.ErrNotFound) || replayed {
			l.Errorf("for a deleted token: %v, replayed %t", err, replayed)
		}
	})
}

// shared is a test vector for implementations in other languages, with the key
// SHA-256("shared-secret").
const (
	vectorJWE     = "eyJhbGciOiJBMjU2R0NNS1ciLCJlbmMiOiJBMjU2R0NNIiwiaXYiOiJSY0pDbnl2QjV2c3d1anZrIiwidGFnIjoiczY4Y18yQlJ1R2Nid3hmRHFTU21lZyJ9.VcLwb9ALnoaMhqFK6gYw7xlY6FqdiZhKFaqg5apt3uk.xLUV4q4CWqPGsi4l.VI5pIlCsfZ9WH73K_GGqVPHghmXZgNWovR6wCOgBJ5OL4HRGtgeBm91b-83e4RXmJf74G5rYRBO83jDl8YIISTcqsDFK8VGP7RxyUEAAFs6s6imJjk02gkV0EMmNk43HtYpWqpguSBsrCCvmaQhmLCWiuessGQ.SiDVGLeHQMXr8xusq_SV9A"
	vectorSecret  = "shared-secret"
	vectorPayload = `{"network_token":{"token":"4895370000000000","expiry_year":2030,"expiry_month":12},"cryptogram":"AgAAAAAA","eci":null}`
)

func shared(texts []string) (secrets []receive.SharedSecret) {
	for _, text := range texts {
		secrets = append(secrets, receive.NewSharedSecret([]byte(text)))
	}
	return secrets
}

func TestOpenPaymentData(t *testing.T) {
	header, payload := openByHand(t, vectorJWE, vectorSecret)
	if payload != vectorPayload {
		t.Fatalf("the vector holds %s", payload)
	}
	opened := func(jwe string, secrets ...string) string {
		t.Helper()
		c, err := receive.OpenPaymentData(jwe, shared(secrets)...)
		if err != nil {
			t.Fatal(err)
		}
		return exposed(c)
	}
	const want = "4895370000000000 12/2030 AgAAAAAA "
	for _, secrets := range [][]string{{vectorSecret}, {"other", vectorSecret}, {vectorSecret, "other", ""}} {
		if got := opened(vectorJWE, secrets...); got != want {
			t.Errorf("the vector with %d secrets: %s", len(secrets), got)
		}
	}
	delete(header, "iv")
	delete(header, "tag")
	if got := opened(sealByHand(t, header, vectorPayload, vectorSecret), vectorSecret); got != want {
		t.Errorf("sealed by hand: %s", got)
	}

	with := func(name string, value any) map[string]any {
		h := maps.Clone(header)
		if h[name] = value; value == nil {
			delete(h, name)
		}
		return h
	}
	parts := strings.Split(vectorJWE, ".")
	replaced := func(i int, part string) string {
		p := slices.Clone(parts)
		p[i] = part
		return strings.Join(p, ".")
	}
	for name, jwe := range map[string]string{
		"nothing":           "",
		"dots":              "....",
		"four parts":        strings.Join(parts[:4], "."),
		"six parts":         vectorJWE + ".",
		"JSON":              `{"protected":"` + parts[0] + `"}`,
		"no base64":         replaced(3, "***"),
		"no header":         replaced(0, ""),
		"no key":            replaced(1, ""),
		"no IV":             replaced(2, ""),
		"no tag":            replaced(4, ""),
		"short tag":         replaced(4, parts[4][:16]),
		"another tag":       replaced(4, "A"+parts[4][1:]),
		"another header":    replaced(0, base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"A256GCMKW","enc":"A256GCM"}`))),
		"padding":           vectorJWE + "==",
		"too long":          sealByHand(t, with("kid", strings.Repeat("k", 7000)), vectorPayload, vectorSecret),
		"zip":               sealByHand(t, with("zip", "DEF"), vectorPayload, vectorSecret),
		"zip of nothing":    sealByHand(t, with("zip", ""), vectorPayload, vectorSecret),
		"crit":              sealByHand(t, with("crit", []string{"x"}), vectorPayload, vectorSecret),
		"dir":               sealByHand(t, with("alg", "dir"), vectorPayload, vectorSecret),
		"A256KW":            sealByHand(t, with("alg", "A256KW"), vectorPayload, vectorSecret),
		"A128GCM":           sealByHand(t, with("enc", "A128GCM"), vectorPayload, vectorSecret),
		"no alg":            sealByHand(t, with("alg", nil), vectorPayload, vectorSecret),
		"no JSON inside":    sealByHand(t, header, `no JSON`, vectorSecret),
		"nothing inside":    sealByHand(t, header, ``, vectorSecret),
		"another object":    sealByHand(t, header, `{}`, vectorSecret),
		"a number":          sealByHand(t, header, `{"network_token":{"token":4895370000000000},"cryptogram":"A"}`, vectorSecret),
		"no number":         sealByHand(t, header, `{"network_token":{"token":"48953700 00000000"},"cryptogram":"A"}`, vectorSecret),
		"no cryptogram":     sealByHand(t, header, `{"network_token":{"token":"4895370000000000"},"cryptogram":""}`, vectorSecret),
		"an ECI of another": sealByHand(t, header, `{"network_token":{"token":"4895370000000000"},"cryptogram":"A","eci":7}`, vectorSecret),
	} {
		if c, err := receive.OpenPaymentData(jwe, receive.NewSharedSecret([]byte(vectorSecret))); err != receive.ErrPaymentData || c != nil {
			t.Errorf("%s: %v, %v", name, c, err)
		}
	}
	for name, secrets := range map[string][]string{
		"no secret": nil, "another": {"shared-secre"}, "in other words": {strings.ToUpper(vectorSecret)},
	} {
		if c, err := receive.OpenPaymentData(vectorJWE, shared(secrets)...); err != receive.ErrPaymentData || c != nil {
			t.Errorf("%s: %v, %v", name, c, err)
		}
	}
	// The length limit applies to the whole text.
	long := sealByHand(t, with("kid", strings.Repeat("k", 5800)), vectorPayload, vectorSecret)
	if len(long) > 8192 || len(long) < 8000 {
		t.Fatalf("%d bytes", len(long))
	}
	if got := opened(long, vectorSecret); got != want {
		t.Errorf("one of %d bytes: %s", len(long), got)
	}
}

func FuzzOpenPaymentData(f *testing.F) {
	f.Add(vectorJWE)
	f.Add(strings.Replace(vectorJWE, ".", "..", 1))
	f.Add("eyJhbGciOiJBMjU2R0NNS1ciLCJlbmMiOiJBMjU2R0NNIn0....")
	f.Fuzz(func(t *testing.T, jwe string) {
		c, err := receive.OpenPaymentData(jwe, receive.NewSharedSecret([]byte(vectorSecret)))
		switch {
		case err == nil && exposed(c) == "4895370000000000 12/2030 AgAAAAAA ":
		case err != receive.ErrPaymentData || c != nil:
			t.Errorf("got %v, %v", c, err)
		}
	})
}

// TestPaymentDataElsewhere: other implementations open the vault's payment data. Its header
// has alg, enc, iv, tag and the kid of the secret (RFC 7516, RFC 7518 section 4.7).
func TestPaymentDataElsewhere(t *testing.T) {
	type sample struct {
		JWE    string `json:"jwe"`
		Secret string `json:"secret"`
	}
	samples := []sample{{vectorJWE, vectorSecret}}
	atTill(t, nil, func(l *till) {
		samples = append(samples, sample{l.pay(l.become(active)).Encrypted, l.secret.Text()})
		m, err := l.PrimaryMerchant(l.Context())
		l.must(err)
		header, _ := openByHand(l, samples[1].JWE, l.secret.Text())
		delete(header, "iv")
		delete(header, "tag")
		if want := map[string]any{"alg": "A256GCMKW", "enc": "A256GCM", "kid": m.Secrets[0].KeyID}; !maps.Equal(header, want) {
			l.Errorf("header %v besides iv and tag, want %v", header, want)
		}
	})
	want := []string{
		vectorPayload,
		`{"network_token":{"token":"4895370012003478","expiry_year":2030,"expiry_month":12},"cryptogram":"AgAAAAAAAIR8CQrXcIhbQAAAAAA=","eci":"07"}`,
	}
	for i, s := range samples {
		if _, payload := openByHand(t, s.JWE, s.Secret); payload != want[i] {
			t.Errorf("payload %s, want %s", payload, want[i])
		}
	}
	t.Run("node", func(t *testing.T) {
		node, err := exec.LookPath("node")
		if err != nil {
			t.Skip("Node.js is not installed: make deps")
		}
		input, err := json.Marshal(samples)
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), node, "-e", webCrypto)
		cmd.Stdin = bytes.NewReader(input)
		output, err := cmd.Output()
		if err != nil {
			t.Fatalf("node: %v", err)
		}
		var got []string
		if err := json.Unmarshal(output, &got); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got, want) {
			t.Errorf("node opens %q, want %q", got, want)
		}
	})
}

// webCrypto opens JWEs with WebCrypto, as a receiver in a browser or on Node.js
// would.
const webCrypto = `
const { subtle } = globalThis.crypto ?? require("crypto").webcrypto;
const bytes = (text) => Buffer.from(text, "base64url");
async function open({ jwe, secret }) {
	const [protectedHeader, key, iv, text, tag] = jwe.split(".");
	const header = JSON.parse(bytes(protectedHeader));
	const aes = (raw) => subtle.importKey("raw", raw, "AES-GCM", false, ["decrypt"]);
	const outer = await aes(await subtle.digest("SHA-256", Buffer.from(secret)));
	const inner = await aes(await subtle.decrypt({ name: "AES-GCM", iv: bytes(header.iv) }, outer,
		Buffer.concat([bytes(key), bytes(header.tag)])));
	const plain = await subtle.decrypt({ name: "AES-GCM", iv: bytes(iv), additionalData: Buffer.from(protectedHeader) }, inner,
		Buffer.concat([bytes(text), bytes(tag)]));
	return Buffer.from(plain).toString();
}
Promise.all(JSON.parse(require("fs").readFileSync(0)).map(open)).then((plain) => console.log(JSON.stringify(plain)));
`

// openByHand opens a JWE as in RFC 7516 and 7518, using only the standard library. It also
// returns the header.
func openByHand(t testing.TB, jwe, secret string) (header map[string]any, payload string) {
	t.Helper()
	var parts [5][]byte
	for i, part := range strings.Split(jwe, ".") {
		b, err := base64.RawURLEncoding.DecodeString(part)
		if err != nil {
			t.Fatal(err)
		}
		parts[i] = b
	}
	if err := json.Unmarshal(parts[0], &header); err != nil {
		t.Fatal(err)
	}
	decode := func(name string) []byte {
		b, err := base64.RawURLEncoding.DecodeString(header[name].(string))
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	key := sha256.Sum256([]byte(secret))
	fips140.WithoutEnforcement(func() {
		content, err := gcm(t, key[:]).Open(nil, decode("iv"), append(parts[1], decode("tag")...), nil)
		if err != nil {
			t.Fatal(err)
		}
		aad, _, _ := strings.Cut(jwe, ".")
		plain, err := gcm(t, content).Open(nil, parts[2], append(parts[3], parts[4]...), []byte(aad))
		if err != nil {
			t.Fatal(err)
		}
		payload = string(plain)
	})
	return header, payload
}

// sealByHand is the reverse of openByHand. It adds iv and tag to the given header.
func sealByHand(t testing.TB, header map[string]any, payload, secret string) string {
	t.Helper()
	text := base64.RawURLEncoding.EncodeToString
	key := sha256.Sum256([]byte(secret))
	content, iv, contentIV := make([]byte, 32), make([]byte, 12), make([]byte, 12)
	for _, b := range [][]byte{content, iv, contentIV} {
		rand.Read(b)
	}
	var jwe string
	fips140.WithoutEnforcement(func() {
		wrapped := gcm(t, key[:]).Seal(nil, iv, content, nil)
		h := maps.Clone(header)
		h["iv"], h["tag"] = text(iv), text(wrapped[32:])
		encoded, err := json.Marshal(h)
		if err != nil {
			t.Fatal(err)
		}
		aad := text(encoded)
		sealed := gcm(t, content).Seal(nil, contentIV, []byte(payload), []byte(aad))
		n := len(sealed) - 16
		jwe = strings.Join([]string{aad, text(wrapped[:32]), text(contentIV), text(sealed[:n]), text(sealed[n:])}, ".")
	})
	return jwe
}

func gcm(t testing.TB, key []byte) cipher.AEAD {
	t.Helper()
	block, err := aes.NewCipher(key)
	if err != nil {
		t.Fatal(err)
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		t.Fatal(err)
	}
	return aead
}
