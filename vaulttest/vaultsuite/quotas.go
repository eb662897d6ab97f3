package vaultsuite

import (
	"errors"
	"testing"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

var quotaBehaviours = []behaviour{
	{"Quotas", quotas},
	{"QuotaRace", quotaRace},
}

// exceeds checks that err is for a quota.
func exceeds(t testing.TB, what string, err error, quota string, limit int) {
	t.Helper()
	var q *cardvault.QuotaError
	if !errors.As(err, &q) || !errors.Is(err, cardvault.ErrQuotaExceeded) || *q != (cardvault.QuotaError{Quota: quota, Limit: limit}) {
		t.Errorf("%s: error %v, want a used-up quota of %d %s", what, err, limit, quota)
	}
}

// Everything that a quota bounds, with a function that makes one.
var bounded = []struct {
	quota string
	set   func(n *int) cardvault.QuotaUpdate
	make  func(t testing.TB, v *cardvault.Vault) (undo func() error, err error)
}{
	{
		"APIKeys", func(n *int) cardvault.QuotaUpdate { return cardvault.QuotaUpdate{APIKeys: n} },
		func(t testing.TB, v *cardvault.Vault) (func() error, error) {
			k, err := v.CreateAPIKey(t.Context(), canary, cardvault.AllScopes(), nil)
			return func() error { return v.DeleteAPIKey(t.Context(), k.ID) }, err
		},
	},
	{
		"Webhooks", func(n *int) cardvault.QuotaUpdate { return cardvault.QuotaUpdate{Webhooks: n} },
		func(t testing.TB, v *cardvault.Vault) (func() error, error) {
			w, err := v.CreateWebhook(t.Context(), receiver, nil)
			return func() error { return v.DeleteWebhook(t.Context(), w.ID) }, err
		},
	},
	{
		"OpenSessions", func(n *int) cardvault.QuotaUpdate { return cardvault.QuotaUpdate{OpenSessions: n} },
		func(t testing.TB, v *cardvault.Vault) (func() error, error) {
			id, err := v.CreateSession(t.Context(), nil)
			return func() error { return errorOf(v.Tokenize(t.Context(), id.ID, testCard(1))) }, err
		},
	},
	{
		"OpenSessions", func(n *int) cardvault.QuotaUpdate { return cardvault.QuotaUpdate{OpenSessions: n} },
		func(t testing.TB, v *cardvault.Vault) (func() error, error) {
			token := importCard(t, v, testCard(1), nil)
			id, err := v.RefreshSession(t.Context(), token.ID, nil)
			return func() error { return errorOf(v.RefreshSecurityCode(t.Context(), id.ID, codeOf("999"))) }, err
		},
	},
}

func quotas(t *testing.T, s store.Store) {
	var mail mailbox
	opts := &cardvault.Options{Mode: cardvault.Sandbox, Webhooks: &mail, Quotas: cardvault.Quotas{APIKeys: 3, Webhooks: 3, OpenSessions: 3}}
	v, ctx := vaultOn(t, s, opts), t.Context()
	replica := vaultOn(t, s, opts)
	a := must(v.CreateAccount(ctx, canary, nil))(t)
	want := cardvault.Quotas{APIKeys: 3, Webhooks: 3, OpenSessions: 3, PaymentData: 10_000}
	if a.Quotas != want || must(v.Account(ctx))(t).Quotas != want {
		t.Errorf("quotas of accounts: %+v and %+v, want %+v", a.Quotas, must(v.Account(ctx))(t).Quotas, want)
	}

	for _, kind := range bounded {
		a, b := must(v.CreateAccount(ctx, canary, nil))(t), must(v.CreateAccount(ctx, canary, nil))(t)
		of, other := v.In(a.ID), v.In(b.ID)
		var undo func() error
		fill := func(v *cardvault.Vault, n int) {
			t.Helper()
			for range n {
				undo = must(kind.make(t, v))(t)
			}
		}

		full := func(what string, v *cardvault.Vault, limit int) {
			t.Helper()
			_, err := kind.make(t, v)
			exceeds(t, what, err, kind.quota, limit)
		}

		fill(of, 3)
		full("one too many", of, 3)
		full("one too many in another vault", replica.In(a.ID), 3)
		noError(t, undo())
		fill(replica.In(a.ID), 1)
		full("one too many after one was removed", of, 3)
		fill(other, 3) // of one account nothing counts for another

		set := func(n int) {
			noError(t, errorOf(of.UpdateAccount(ctx, cardvault.AccountUpdate{Quotas: kind.set(new(n))})))
		}
		set(5)
		fill(replica.In(a.ID), 2)
		full("one more than the operator has allowed", replica.In(a.ID), 5)
		full("one more than the operator has allowed another account", other, 3)
		set(4)
		full("above the quota", of, 4)
		noError(t, undo())
		full("at the new quota", of, 4)
		must(of.UpdateAccount(ctx, cardvault.AccountUpdate{}))(t)

		full("with the named quota unchanged", of, 4)
		set(0)
		full("at the usual quota again", of, 3)
	}

	must(v.In(a.ID).UpdateAccount(ctx, cardvault.AccountUpdate{ImportApproved: new(false), NetworkTokensActive: new(false)}))(t)
	must(v.In(a.ID).UpdateAccount(ctx, cardvault.AccountUpdate{Quotas: cardvault.QuotaUpdate{PaymentData: new(9)}}))(t)
	want.PaymentData = 9
	if got := must(replica.In(a.ID).Account(ctx))(t); got.Quotas != want || got.ImportApproved {
		t.Errorf("an account shows %+v, want %+v", got, want)
	}

	for what, u := range map[string]cardvault.QuotaUpdate{
		"APIKeys":      {APIKeys: new(100_001)},
		"Webhooks":     {Webhooks: new(cardvault.MaxWebhooks + 1)},
		"OpenSessions": {OpenSessions: new(-1)},
		"PaymentData":  {PaymentData: new(1_000_001)},
	} {
		refuses(t, what, errorOf(v.UpdateAccount(ctx, cardvault.AccountUpdate{Quotas: u})), "Quotas."+what+" out_of_range")
	}

	fails(t, "an unknown account", errorOf(v.In(uuid.New()).UpdateAccount(ctx, cardvault.AccountUpdate{})), cardvault.ErrNotFound)
}

// quotaRace: however many calls come at a time, an account gets its quota and no more.
func quotaRace(t *testing.T, s store.Store) {
	var mail mailbox
	const limit = 10
	opts := &cardvault.Options{Mode: cardvault.Sandbox, Webhooks: &mail, Quotas: cardvault.Quotas{APIKeys: limit, Webhooks: limit, OpenSessions: limit}}
	vaults := []*cardvault.Vault{vaultOn(t, s, opts), vaultOn(t, s, opts)}

	for _, kind := range bounded {
		a := must(vaults[0].CreateAccount(t.Context(), canary, nil))(t)
		made := make(chan struct{}, 64)
		parallel(t, 64, func(i int) error {
			_, err := kind.make(t, vaults[i%2].In(a.ID))
			switch {
			case err == nil:
				made <- struct{}{}
			case !errors.Is(err, cardvault.ErrQuotaExceeded):
				return err
			}
			return nil
		})
		if len(made) != limit {
			t.Errorf("64 calls at a time made %d %s, want %d", len(made), kind.quota, limit)
		}
	}
}
