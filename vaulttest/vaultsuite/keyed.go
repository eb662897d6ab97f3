package vaultsuite

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// A keyedCall is a call that creates or rotates something, under an idempotency key.
type keyedCall func(ctx context.Context, v *cardvault.Vault, key string) (*keyedResult, error)

type keyedResult struct {
	made     string // names the result; "" if the call does not name it
	replayed bool
	secret   string // that is shown once; "" if the result has none
}

func keyed[T any](made T, err error, describe func(T) *keyedResult) (*keyedResult, error) {
	if err != nil {
		return nil, err
	}
	return describe(made), nil
}

func ofToken(t *cardvault.Token) *keyedResult { return &keyedResult{t.ID.String(), t.Replayed, ""} }

func ofSession(s *cardvault.CreatedSession) *keyedResult {
	return &keyedResult{s.ID.UUID().String(), s.Replayed, ""}
}

func ofWebhook(w *cardvault.Webhook) *keyedResult {
	return &keyedResult{w.ID.String(), w.Replayed, fmt.Sprint(w.Secret)}
}

func ofOutcome(o *cardvault.Outcome) *keyedResult { return &keyedResult{"", o.Replayed, ""} }

// keyedCalls returns every call that has an idempotency key, by its name.
func keyedCalls(t testing.TB, v *cardvault.Vault) map[string]keyedCall {
	ctx := t.Context()
	token, hook := usable(t, v, 1), newHook(t, v, receiver)
	other := importCard(t, v, testCard(76), nil)
	newSecret(t, v)
	merchant := must(v.PrimaryMerchant(ctx))(t)
	rename(t, v, token, "renamed")
	event := must(v.ListDeliveries(ctx, hook.ID, nil))(t).Items[0].EventID

	bare := func(key string) *cardvault.CallOptions { return &cardvault.CallOptions{IdempotencyKey: key} }
	return map[string]keyedCall{
		"Import": func(ctx context.Context, v *cardvault.Vault, key string) (*keyedResult, error) {
			made, err := v.Import(ctx, testCard(2), &cardvault.ImportOptions{IdempotencyKey: key})
			return keyed(made, err, ofToken)
		},
		"Provision": func(ctx context.Context, v *cardvault.Vault, key string) (*keyedResult, error) {
			made, err := v.Provision(ctx, token.ID, bare(key))
			return keyed(made, err, ofToken)
		},
		"RequestPaymentData": func(ctx context.Context, v *cardvault.Vault, key string) (*keyedResult, error) {
			r := examplePayment
			r.IdempotencyKey = key
			made, err := v.RequestPaymentData(ctx, token.ID, r)
			return keyed(made, err, func(p *cardvault.PaymentData) *keyedResult { return &keyedResult{p.ID.String(), p.Replayed, ""} })
		},
		"CreateSession": func(ctx context.Context, v *cardvault.Vault, key string) (*keyedResult, error) {
			made, err := v.CreateSession(ctx, &cardvault.SessionOptions{IdempotencyKey: key})
			return keyed(made, err, ofSession)
		},
		"RefreshSession": func(ctx context.Context, v *cardvault.Vault, key string) (*keyedResult, error) {
			made, err := v.RefreshSession(ctx, token.ID, bare(key))
			return keyed(made, err, ofSession)
		},
		"Replace": func(ctx context.Context, v *cardvault.Vault, key string) (*keyedResult, error) {
			made, err := v.Replace(ctx, other.ID, testCard(77), bare(key))
			return keyed(made, err, func(t *cardvault.Token) *keyedResult { return &keyedResult{t.UpdatedAt.String(), t.Replayed, ""} })
		},
		"ReplaceSession": func(ctx context.Context, v *cardvault.Vault, key string) (*keyedResult, error) {
			made, err := v.ReplaceSession(ctx, token.ID, bare(key))
			return keyed(made, err, ofSession)
		},
		"Consume": func(ctx context.Context, v *cardvault.Vault, key string) (*keyedResult, error) {
			made, err := v.Consume(ctx, token.ID, bare(key))
			return keyed(made, err, ofOutcome)
		},
		"Redeliver": func(ctx context.Context, v *cardvault.Vault, key string) (*keyedResult, error) {
			made, err := v.Redeliver(ctx, event, bare(key))
			return keyed(made, err, ofOutcome)
		},
		"CreateAccount": func(ctx context.Context, v *cardvault.Vault, key string) (*keyedResult, error) {
			made, err := v.CreateAccount(ctx, canary, &cardvault.AccountOptions{IdempotencyKey: key})
			return keyed(made, err, func(a *cardvault.Account) *keyedResult { return &keyedResult{a.ID.String(), a.Replayed, ""} })
		},
		"CreateMerchant": func(ctx context.Context, v *cardvault.Vault, key string) (*keyedResult, error) {
			made, err := v.CreateMerchant(ctx, canary, &cardvault.MerchantOptions{IdempotencyKey: key})
			return keyed(made, err, func(m *cardvault.Merchant) *keyedResult { return &keyedResult{m.ID.String(), m.Replayed, ""} })
		},
		"CreateAPIKey": func(ctx context.Context, v *cardvault.Vault, key string) (*keyedResult, error) {
			made, err := v.CreateAPIKey(ctx, canary, cardvault.AllScopes(), &cardvault.APIKeyOptions{IdempotencyKey: key})
			return keyed(made, err, func(k *cardvault.APIKey) *keyedResult {
				return &keyedResult{k.ID.String(), k.Replayed, k.Text.Text()}
			})
		},
		"CreateWebhook": func(ctx context.Context, v *cardvault.Vault, key string) (*keyedResult, error) {
			made, err := v.CreateWebhook(ctx, receiver, &cardvault.WebhookOptions{IdempotencyKey: key})
			return keyed(made, err, ofWebhook)
		},
		"RotatePaymentSecret": func(ctx context.Context, v *cardvault.Vault, key string) (*keyedResult, error) {
			made, err := v.RotatePaymentSecret(ctx, merchant.ID, &cardvault.PaymentSecretOptions{IdempotencyKey: key})
			return keyed(made, err, func(s *cardvault.PaymentSecret) *keyedResult {
				return &keyedResult{s.KeyID + s.ActivateAt.String(), s.Replayed, s.Secret.Text()}
			})
		},
		"RotateWebhookSecret": func(ctx context.Context, v *cardvault.Vault, key string) (*keyedResult, error) {
			made, err := v.RotateWebhookSecret(ctx, hook.ID, &cardvault.WebhookSecretOptions{IdempotencyKey: key})
			return keyed(made, err, ofWebhook)
		},
		"RotateKeys": func(ctx context.Context, v *cardvault.Vault, key string) (*keyedResult, error) {
			made, err := v.RotateKeys(ctx, bare(key))
			return keyed(made, err, ofOutcome)
		},
		"RotateSeries": func(ctx context.Context, v *cardvault.Vault, key string) (*keyedResult, error) {
			made, err := v.RotateSeries(ctx, cardvault.SeriesAudit, bare(key))
			return keyed(made, err, ofOutcome)
		},
	}
}

// tellsNothingNew are the calls whose result is the same whether they have done something
// or not.
var tellsNothingNew = map[string]bool{"Provision": true, "Consume": true, "Redeliver": true, "RotateWebhookSecret": true, "RotateKeys": true, "RotateSeries": true}

// showsSecret are the calls that show a secret once.
var showsSecret = map[string]bool{"CreateAPIKey": true, "CreateWebhook": true, "RotatePaymentSecret": true, "RotateWebhookSecret": true}

// replayEvery: a call is made once under a key, whichever vault on the store it comes to,
// and its secret is shown once.
func replayEvery(t *testing.T, s store.Store) {
	n, spy := new(till), &watched{Store: s}
	v, other, ctx := paying(t, spy, n), paying(t, spy, n), t.Context()
	for name, call := range keyedCalls(t, v) {
		first := must(call(ctx, v, idemKey))(t)
		if first.replayed || (first.secret != "") != showsSecret[name] {
			t.Errorf("%s: replayed %t, a secret is shown: %t", name, first.replayed, first.secret != "")
		}

		var again *keyedResult
		wrote := spy.wrote(func() { again = must(call(ctx, other, idemKey))(t) })
		if !again.replayed || again.made != first.made || again.secret != "" || wrote != 0 {
			t.Errorf("%s repeated: replayed %t, the same is returned: %t, a secret is shown: %t, %d writes",
				name, again.replayed, again.made == first.made, again.secret != "", wrote)
		}

		next := must(call(ctx, v, idemKey+"2"))(t)
		if next.replayed || next.made == first.made && !tellsNothingNew[name] {
			t.Errorf("%s under another key: replayed %t, the same is returned: %t", name, next.replayed, next.made == first.made)
		}

		_, err := call(ctx, v, "\n")
		refuses(t, name+" under an invalid key", err, "IdempotencyKey invalid_format")
	}
}

// replayOthers: another request under a key is refused and makes nothing, and a repetition
// brings back nothing that was deleted.
func replayOthers(t *testing.T, s store.Store) {
	v, ctx := paying(t, s, new(till)), t.Context()
	account := must(v.CreateAccount(ctx, canary, &cardvault.AccountOptions{IdempotencyKey: idemKey}))(t)
	merchant := must(v.CreateMerchant(ctx, canary, &cardvault.MerchantOptions{IdempotencyKey: idemKey}))(t)
	scopes := cardvault.AllScopes()
	keyOptions := cardvault.APIKeyOptions{IdempotencyKey: idemKey}
	key := must(v.CreateAPIKey(ctx, canary, scopes, &keyOptions))(t)
	hookOptions := cardvault.WebhookOptions{IdempotencyKey: idemKey}
	hook := must(v.CreateWebhook(ctx, receiver, &hookOptions))(t)
	must(v.RotatePaymentSecret(ctx, merchant.ID, &cardvault.PaymentSecretOptions{IdempotencyKey: idemKey}))(t)
	must(v.RotateWebhookSecret(ctx, hook.ID, &cardvault.WebhookSecretOptions{IdempotencyKey: idemKey}))(t)

	reused := func(what string, call func(ctx context.Context) error) {
		t.Helper()
		ctx := cardvault.WithActor(ctx, cardvault.Actor{RootKeyID: uuid.New()})
		fails(t, "same key, another "+what, call(ctx), cardvault.ErrIdempotencyKeyReused)
	}
	reused("name of an account", func(ctx context.Context) error {
		return errorOf(v.CreateAccount(ctx, "other", &cardvault.AccountOptions{IdempotencyKey: idemKey}))
	})
	reused("approval", func(ctx context.Context) error {
		return errorOf(v.In(account.ID).CreateAccount(ctx, canary, &cardvault.AccountOptions{IdempotencyKey: idemKey, ImportApproved: new(false), NetworkTokensActive: new(false)}))
	})
	reused("name of a merchant", func(ctx context.Context) error {
		return errorOf(v.CreateMerchant(ctx, "other", &cardvault.MerchantOptions{IdempotencyKey: idemKey}))
	})
	reused("label", func(ctx context.Context) error { return errorOf(v.CreateAPIKey(ctx, "other", scopes, &keyOptions)) })
	reused("scope", func(ctx context.Context) error { return errorOf(v.CreateAPIKey(ctx, canary, scopes[1:], &keyOptions)) })
	reused("creator", func(ctx context.Context) error {
		o := keyOptions
		o.Creator = key.ID
		return errorOf(v.CreateAPIKey(ctx, canary, scopes, &o))
	})
	reused("URL", func(ctx context.Context) error { return errorOf(v.CreateWebhook(ctx, receiver+"2", &hookOptions)) })
	reused("description", func(ctx context.Context) error {
		o := hookOptions
		o.Description = "other"
		return errorOf(v.CreateWebhook(ctx, receiver, &o))
	})
	reused("activation", func(ctx context.Context) error {
		o := &cardvault.PaymentSecretOptions{IdempotencyKey: idemKey, ActivateAt: merchant.CreatedAt}
		return errorOf(v.RotatePaymentSecret(ctx, merchant.ID, o))
	})

	noError(t, v.DeleteAPIKey(ctx, key.ID))
	fails(t, "repeated for a revoked API key", errorOf(v.CreateAPIKey(ctx, canary, scopes, &keyOptions)), cardvault.ErrNotFound)
	noError(t, v.DeleteWebhook(ctx, hook.ID))
	fails(t, "repeated for a deleted webhook", errorOf(v.CreateWebhook(ctx, receiver, &hookOptions)), cardvault.ErrNotFound)
	fails(t, "repeated rotation of a deleted webhook", errorOf(v.RotateWebhookSecret(ctx, hook.ID, &cardvault.WebhookSecretOptions{IdempotencyKey: idemKey})), cardvault.ErrNotFound)
	if n := must(v.ListAPIKeys(ctx, nil))(t).TotalItems; n != 0 {
		t.Errorf("%d API keys, want none", n)
	}
	if n := must(v.ListWebhooks(ctx, nil))(t).TotalItems; n != 0 {
		t.Errorf("%d webhooks, want none", n)
	}
}

// replayEveryRace: of calls on two vaults at once under one key one is made.
func replayEveryRace(t *testing.T, s store.Store) {
	n := new(till)
	vaults := []*cardvault.Vault{paying(t, s, n), paying(t, s, n)}
	for name, call := range keyedCalls(t, vaults[0]) {
		var firsts, secrets atomic.Int32
		var results [8]*keyedResult
		parallel(t, len(results), func(i int) (err error) {
			for results[i] == nil {
				results[i], err = call(t.Context(), vaults[i%2], idemKey)
				if err != nil && !errors.Is(err, cardvault.ErrIdempotencyInProgress) {
					return fmt.Errorf("%s: %w", name, err)
				}
			}
			if !results[i].replayed {
				firsts.Add(1)
			}
			if results[i].secret != "" {
				secrets.Add(1)
			}
			return nil
		})

		if firsts.Load() != 1 || (secrets.Load() == 1) != showsSecret[name] {
			t.Errorf("%s: %d of %d calls were made, %d have shown a secret", name, firsts.Load(), len(results), secrets.Load())
		}
		for _, r := range results {
			if r.made != results[0].made {
				t.Errorf("%s: two results under one key", name)
			}
		}
	}
}

// replayUnknown: a call whose outcome is unknown is repeated under its key, and was made.
func replayUnknown(t *testing.T, s store.Store) {
	lossy := &lossyStore{Store: s}
	v, ctx := paying(t, lossy, new(till)), t.Context()
	for name, call := range keyedCalls(t, v) {
		if name == "RequestPaymentData" || name == "Consume" {
			continue // they store a claim first, which lasts for a minute
		}
		must(v.CreateSession(ctx, nil))(t)
		lossy.lossy.Store(true)
		_, err := call(ctx, v, idemKey)
		lossy.lossy.Store(false)
		fails(t, name+" of an unknown outcome", err, cardvault.ErrOutcomeUnknown)
		if again := must(call(ctx, v, idemKey))(t); !again.replayed || again.secret != "" {
			t.Errorf("%s repeated: replayed %t, a secret is shown: %t", name, again.replayed, again.secret != "")
		}
		if name == "RotateKeys" || name == "RotateSeries" {
			// A read hears of the rotation a second later. Then a session has seals granted, which
			// must not be a lost outcome: a failure of that lasts for a second too.
			time.Sleep(1100 * time.Millisecond)
			must(v.Account(ctx))(t)
		}
	}
}

// A lossyStore does not learn the outcome of its writes while it is lossy.
type lossyStore struct {
	store.Store
	lossy atomic.Bool
}

func (s *lossyStore) Update(ctx context.Context, fn func(store.Tx) error) error {
	err := s.Store.Update(ctx, fn)
	if err == nil && s.lossy.Load() {
		err = store.ErrOutcomeUnknown
	}
	return err
}

// bootstrap: replicas that start together make one merchant and one API key, and start
// again with these.
func bootstrap(t *testing.T, s store.Store) {
	const replicas = 10
	ctx, scopes := t.Context(), []cardvault.Scope{cardvault.ScopeTokensRead, cardvault.ScopeTokensImport}
	var vaults [replicas]*cardvault.Vault
	parallel(t, replicas, func(i int) (err error) {
		vaults[i], err = cardvault.New(ctx, s, keyring(t, suiteKey), &cardvault.Options{Mode: cardvault.Sandbox, Replicas: replicas})
		return err
	})
	defer func() {
		for _, v := range vaults {
			noError(t, v.Close())
		}
	}()

	text := cardvault.GenerateAPIKeyText(cardvault.Sandbox)
	var made atomic.Int32
	var merchants, keys [replicas]uuid.UUID
	start := func(i int) error {
		m, err := vaults[i].EnsureMerchant(ctx, canary, nil)
		if err != nil {
			return err
		}
		k, err := vaults[i].EnsureAPIKey(ctx, text, canary, scopes, nil)
		if err != nil {
			return err
		}
		for _, found := range []bool{m.Replayed, k.Replayed} {
			if !found {
				made.Add(1)
			}
		}
		if !k.Text.IsZero() {
			return errors.New("EnsureAPIKey returns a text")
		}
		merchants[i], keys[i] = m.ID, k.ID
		return nil
	}
	parallel(t, replicas, start)
	parallel(t, replicas, start)

	v := vaults[0]
	for i := range replicas {
		if merchants[i] != merchants[0] || keys[i] != keys[0] {
			t.Error("replicas have different merchants or API keys")
		}
	}
	merchantsNow, keysNow := must(v.ListMerchants(ctx, nil))(t), must(v.ListAPIKeys(ctx, nil))(t)
	if made.Load() != 2 || merchantsNow.TotalItems != 2 || keysNow.TotalItems != 1 {
		t.Errorf("%d were made; %d merchants, want the primary one and this; %d API keys", made.Load(), merchantsNow.TotalItems, keysNow.TotalItems)
	}
	p := must(vaults[1].Authenticate(ctx, text.Text()))(t)
	if p.Key.ID != keys[0] || len(p.Key.Scopes) != 2 || p.Key.Root != keys[0] {
		t.Errorf("the text authenticates %+v", p.Key)
	}
}

// ensureMerchant: the oldest merchant with the name is the one.
func ensureMerchant(t *testing.T, s store.Store) {
	v, ctx := vaultOn(t, s, nil), t.Context()
	first := must(v.CreateMerchant(ctx, canary, nil))(t)
	must(v.CreateMerchant(ctx, canary, nil))(t)
	if m := must(v.EnsureMerchant(ctx, canary, nil))(t); m.ID != first.ID || !m.Replayed || m.Name != canary {
		t.Errorf("%+v, want the oldest of the name", m)
	}
	primary := must(v.PrimaryMerchant(ctx))(t)
	if m := must(v.EnsureMerchant(ctx, primary.Name, nil))(t); m.ID != primary.ID {
		t.Error("the primary merchant is not found by its name")
	}

	other := v.In(must(v.CreateAccount(ctx, canary, nil))(t).ID)
	theirs := must(other.EnsureMerchant(ctx, canary, nil))(t)
	if theirs.ID == first.ID || theirs.Replayed || must(other.EnsureMerchant(ctx, canary, nil))(t).ID != theirs.ID {
		t.Error("the merchant of another account")
	}

	refuses(t, "no name", errorOf(v.EnsureMerchant(ctx, "", nil)), "Name empty_string")
	refuses(t, "an idempotency key", errorOf(v.EnsureMerchant(ctx, canary, &cardvault.MerchantOptions{IdempotencyKey: idemKey})), "IdempotencyKey invalid_format")
	fails(t, "no account", errorOf(v.In(uuid.New()).EnsureMerchant(ctx, canary, nil)), cardvault.ErrNotFound)
}

// ensureAPIKey: one text is one key, and none once that is revoked.
func ensureAPIKey(t *testing.T, s store.Store) {
	v, ctx := vaultOn(t, s, nil), t.Context()
	scopes := []cardvault.Scope{cardvault.ScopeTokensRead}
	text := cardvault.GenerateAPIKeyText(v.Mode())
	ensure := func(v *cardvault.Vault, text cardvault.APIKeyText, scopes []cardvault.Scope, creator uuid.UUID) error {
		return errorOf(v.EnsureAPIKey(ctx, text, canary, scopes, &cardvault.APIKeyOptions{Creator: creator}))
	}

	key := must(v.EnsureAPIKey(ctx, text, canary, scopes, nil))(t)
	noError(t, ensure(v, text, append(scopes, scopes...), uuid.Nil))
	noError(t, ensure(vaultOn(t, s, nil), text, scopes, uuid.Nil))
	other := v.In(must(v.CreateAccount(ctx, canary, nil))(t).ID)
	fails(t, "other scopes", ensure(v, text, cardvault.AllScopes(), uuid.Nil), cardvault.ErrAPIKeyDiffers)
	fails(t, "another creator", ensure(v, text, scopes, key.ID), cardvault.ErrAPIKeyDiffers)
	fails(t, "another account", ensure(other, text, scopes, uuid.Nil), cardvault.ErrAPIKeyDiffers)
	if p := must(v.Authenticate(ctx, text.Text()))(t); len(p.Key.Scopes) != 1 || p.Key.ID != key.ID {
		t.Errorf("a differing call has changed the key: %+v", p.Key)
	}

	// A key below another is revoked with it.
	below := cardvault.GenerateAPIKeyText(v.Mode())
	noError(t, ensure(v, below, scopes, key.ID))
	noError(t, ensure(v, below, scopes, key.ID))
	lacking := ensure(v, cardvault.GenerateAPIKeyText(v.Mode()), cardvault.AllScopes(), key.ID)
	fails(t, "a creator with fewer scopes", lacking, cardvault.ErrInsufficientScope)

	noError(t, v.DeleteAPIKey(ctx, key.ID))
	for what, text := range map[string]cardvault.APIKeyText{"revoked": text, "below a revoked key": below} {
		fails(t, what, ensure(v, text, scopes, uuid.Nil), cardvault.ErrAPIKeyRevoked)
		fails(t, what, errorOf(v.Authenticate(ctx, text.Text())), cardvault.ErrUnauthenticated)
	}
	if n := must(v.ListAPIKeys(ctx, nil))(t).TotalItems; n != 0 {
		t.Errorf("%d API keys, want none", n)
	}

	created := must(v.CreateAPIKey(ctx, canary, scopes, nil))(t)
	for what, text := range map[string]cardvault.APIKeyText{
		"no text":                      {},
		"a word":                       cardvault.NewAPIKeyText([]byte("secret")),
		"the text of CreateAPIKey":     created.Text,
		"the text of the other mode":   cardvault.GenerateAPIKeyText(cardvault.Live),
		"a truncated text":             cardvault.NewAPIKeyText([]byte(text.Text()[:65])),
		"a text with a changed letter": cardvault.NewAPIKeyText([]byte(text.Text()[:30] + "_" + text.Text()[31:])),
		"a text with a suffix":         cardvault.NewAPIKeyText([]byte(text.Text() + "\n")),
	} {
		refuses(t, what, ensure(v, text, scopes, uuid.Nil), "Text invalid_format")
	}
	refuses(t, "all at once", errorOf(v.EnsureAPIKey(ctx, cardvault.APIKeyText{}, "", nil, &cardvault.APIKeyOptions{IdempotencyKey: idemKey})),
		"Text invalid_format", "Label empty_string", "Scopes too_short", "IdempotencyKey invalid_format")
	fails(t, "no account", ensure(v.In(uuid.New()), cardvault.GenerateAPIKeyText(v.Mode()), scopes, uuid.Nil), cardvault.ErrNotFound)
}
