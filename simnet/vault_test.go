package simnet_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/idv"
	"github.com/cardvault/cardvault/internal/bubble"
	"github.com/cardvault/cardvault/network"
	"github.com/cardvault/cardvault/ppan"
	"github.com/cardvault/cardvault/simnet"
	"github.com/cardvault/cardvault/store/memstore"
	"github.com/cardvault/cardvault/vaulttest"
)

// The vault's view of each scenario.
func TestVault(t *testing.T) {
	for _, c := range []struct {
		code   int
		early  string // after a second
		status string // after two minutes
		reason string
		check  func(*cardvault.Token) bool
	}{
		{code: 0, early: "active", status: "active"},
		{code: 1, early: "pending", status: "active"},
		{code: 2, early: "pending", status: "active"},
		{code: 10, early: "failed", status: "failed", reason: "card_not_eligible"},
		{code: 11, early: "failed", status: "failed", reason: "card_not_allowed"},
		{code: 12, early: "failed", status: "failed", reason: "declined"},
		{code: 13, early: "failed", status: "failed", reason: "declined"},
		{code: 14, early: "pending", status: "active"},
		{code: 15, early: "pending", status: "failed", reason: "scheme_unavailable"},
		{code: 20, early: "not_available", status: "not_available", reason: "merchant_not_enrolled"},
		{code: 21, early: "not_available", status: "not_available", reason: "merchant_not_enrolled"},
		{code: 30, early: "active", status: "inactive", reason: "suspended_by_issuer"},
		{code: 31, early: "active", status: "active"},
		{code: 32, early: "active", status: "deleted", reason: "deleted_by_issuer"},
		{code: 33, early: "active", status: "deleted", reason: "account_closed",
			check: func(t *cardvault.Token) bool { return t.Status == cardvault.StatusInvalid }},
		{code: 34, early: "active", status: "active",
			check: func(t *cardvault.Token) bool { return t.LastFour == "4242" && t.Expiry.Year == 2034 }},
		{code: 35, early: "active", status: "active",
			check: func(t *cardvault.Token) bool { return t.LastFour != "4242" && t.Expiry.Year == 2033 }},
		{code: 36, early: "active", status: "active"},
		{code: 37, early: "active", status: "active"},
		{code: 50, early: "pending", status: "active"},
		{code: 51, early: "pending", status: "failed", reason: "timeout"},
		{code: 60, early: "active", status: "active"},
		{code: 61, early: "pending", status: "active"},
		{code: 70, early: "failed", status: "failed", reason: "card_verification_failed"},
		{code: 71, early: "active", status: "active",
			check: func(t *cardvault.Token) bool { return t.SupportsDeviceBinding }},
	} {
		t.Run(fmt.Sprintf("%03d", c.code), func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				v := vaulttest.NewWith(t, &cardvault.Options{
					Mode:    cardvault.Sandbox,
					BaseURL: "https://vault.example",
					Network: newNetwork(t, memstore.New(), nil),
				})
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan error)
				go func() { done <- v.Run(ctx) }()
				defer func() {
					cancel()
					if err := <-done; err != nil {
						t.Error(err)
					}
				}()
				first, err := v.Import(ctx, cardvault.Card{
					PAN:    simnet.ScenarioPAN(card.VISA, c.code),
					Expiry: card.Expiry{Month: 11, Year: 2030},
				}, nil)
				if err != nil {
					t.Fatal(err)
				}
				token := func() *cardvault.Token {
					synctest.Wait()
					got, err := v.Get(ctx, first.ID)
					if err != nil {
						t.Fatal(err)
					}
					return got
				}
				<-time.After(time.Second)
				early := token()
				if got := early.NetworkTokenStatus.String(); got != c.early {
					t.Errorf("status is %s after a second, want %s", got, c.early)
				}
				<-time.After(2 * time.Minute)
				got, reason := token(), ""
				if got.NetworkTokenStatusReason != nil {
					reason = string(got.NetworkTokenStatusReason.Code)
				}
				if got.NetworkTokenStatus.String() != c.status || reason != c.reason {
					t.Errorf("status is %v, %q, want %s, %q", got.NetworkTokenStatus, reason, c.status, c.reason)
				}
				if c.check != nil && !c.check(got) {
					t.Errorf("the token is %+v", got)
				}
				if invalid := got.Status == cardvault.StatusInvalid; invalid != (c.code == 33) {
					t.Errorf("the token is %v", got.Status)
				}
				if c.early == "active" && (early.CardArtURL == "" || (early.CardArtURL != got.CardArtURL) != (c.code == 36)) {
					t.Errorf("card art is %q, then %q", early.CardArtURL, got.CardArtURL)
				}
				if c.code == 13 || c.code == 21 {
					if _, err := v.Provision(ctx, first.ID, nil); err != nil {
						t.Fatal(err)
					}
					<-time.After(time.Second)
					if got := token().NetworkTokenStatus; got != network.Active {
						t.Errorf("status is %v after the next provisions", got)
					}
				}
			})
		})
	}
}

// TestReplacedVault: a card that its scheme has replaced pays again once the token has the new
// one.
func TestReplacedVault(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		v := vaulttest.NewWith(t, &cardvault.Options{Mode: cardvault.Sandbox, Purposes: []string{"test"}, Network: newNetwork(t, memstore.New(), nil)})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- v.Run(ctx) }()
		defer func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		}()
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}

		merchant, err := v.PrimaryMerchant(ctx)
		must(err)
		_, err = v.RotatePaymentSecret(ctx, merchant.ID, nil)
		must(err)
		expiry := card.Expiry{Month: 11, Year: 2030}
		token, err := v.Import(ctx, cardvault.Card{PAN: simnet.ScenarioPAN(card.VISA, 34), Expiry: expiry}, nil)
		must(err)
		<-time.After(3 * time.Second)
		stale, err := v.Get(ctx, token.ID)
		must(err)
		ofCard := func(context.Context, *cardvault.UsedCard) error { return nil }
		if err := v.Use(ctx, token.ID, "test", ofCard); !stale.AccountNumberStale || !errors.Is(err, cardvault.ErrCardDataStale) {
			t.Errorf("replaced by the scheme: %+v, %v", stale, err)
		}

		replaced, err := v.Replace(ctx, token.ID, cardvault.Card{PAN: simnet.ScenarioPAN(card.VISA, 0), Expiry: expiry}, nil)
		must(err)
		if replaced.AccountNumberStale || replaced.NetworkTokenStatus != network.Pending || replaced.Fingerprint == token.Fingerprint {
			t.Errorf("replaced: %+v", replaced)
		}
		<-time.After(time.Second)
		must(v.Use(ctx, token.ID, "test", ofCard))
		p, err := v.RequestPaymentData(ctx, token.ID, cardvault.PaymentRequest{Amount: 1999, Currency: "EUR", Reference: "order 7"})
		must(err)
		if !p.Success || p.Encrypted == "" {
			t.Errorf("payment data: %+v", p)
		}
	})
}

// A live vault refuses a simulator, inside any number of decorators.
func TestLiveVault(t *testing.T) {
	keys, err := cardvault.KeyBytes(make([]byte, cardvault.KeySize))
	if err != nil {
		t.Fatal(err)
	}

	type (
		nets  struct{ network.Provider }
		ppans struct{ ppan.Provider }
		idvs  struct{ idv.Provider }
	)
	sim := newNetwork(t, memstore.New(), nil)
	for name, opts := range map[string]cardvault.Options{
		"network":                {Network: sim},
		"network, in decorators": {Network: nets{nets{nets{sim}}}},
		"PPAN":                   {PPAN: sim.PPAN()},
		"PPAN, in decorators":    {PPAN: ppans{ppans{ppans{sim.PPAN()}}}},
		"IDV":                    {IDV: sim.IDV()},
		"IDV, in decorators":     {IDV: idvs{idvs{idvs{sim.IDV()}}}},
	} {
		if _, err := cardvault.New(t.Context(), memstore.New(), keys, &opts); !errors.Is(err, cardvault.ErrWrongMode) || !strings.Contains(err.Error(), "simulator") {
			t.Errorf("%s: New of a live vault = %v", name, err)
		}
	}
}

// A decorator with Unwrap keeps the simulator's capabilities. A decorator without it is
// refused.
func TestDecoratedSimulator(t *testing.T) {
	sim := newNetwork(t, memstore.New(), nil)
	v := vaulttest.NewWith(t, &cardvault.Options{Mode: cardvault.Sandbox, Network: counted{counted{sim}}})
	token, err := v.Import(t.Context(), cardvault.Card{PAN: simnet.ScenarioPAN(card.VISA, 0), Expiry: card.Expiry{Month: 2, Year: 2041}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := v.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got, err := v.SuspendNetworkToken(t.Context(), token.ID); err != nil || got.NetworkTokenStatus != network.Inactive {
		t.Errorf("SuspendNetworkToken = %v, %v", got, err)
	}

	keys, err := cardvault.KeyBytes(make([]byte, cardvault.KeySize))
	if err != nil {
		t.Fatal(err)
	}
	_, err = cardvault.New(t.Context(), memstore.New(), keys, &cardvault.Options{Mode: cardvault.Sandbox, Network: struct{ network.Provider }{sim}})
	for _, want := range []string{"network.Suspender", "network.Feeder", "network.ArtFetcher", "Unwrap() network.Provider"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("New with a decorator that hides powers = %v, want %s in it", err, want)
		}
	}
}

// A counted network is a decorator as for metrics.
type counted struct{ network.Provider }

func (c counted) Unwrap() network.Provider { return c.Provider }
