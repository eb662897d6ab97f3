package vaultsuite

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"reflect"
	"regexp"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/idv"
	"github.com/cardvault/cardvault/network"
	"github.com/cardvault/cardvault/receive"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/vaulttest"
	"github.com/google/uuid"
)

var vaultBehaviours = []behaviour{
	{"Closed", closed},
	{"Cancelled", cancelled},
	{"WrongKey", wrongKey},
	{"KeyProvider", keyProvider},
	{"OpenRace", openRace},
	{"Reopened", reopened},
	{"RotateKeys", rotateKeys},
	{"ChangeKeyring", changeKeyring},
}

// methodCall is a method of a vault, called so that it would do something.
type methodCall func(ctx context.Context, v *cardvault.Vault) error

// methods returns every method of a vault that reads or writes, by its name.
func methods(t testing.TB, v *cardvault.Vault) map[string]methodCall {
	ctx := t.Context()
	token := usable(t, v, 1)
	newSecret(t, v)
	session := must(v.CreateSession(ctx, nil))(t)
	refresh := must(v.RefreshSession(ctx, token.ID, nil))(t)
	merchant := must(v.PrimaryMerchant(ctx))(t)
	key, err := v.CreateAPIKey(ctx, canary, cardvault.AllScopes(), nil)
	noError(t, err)
	named := holder(canary)
	hook := newHook(t, v, receiver)

	payment := must(v.RequestPaymentData(ctx, token.ID, examplePayment))(t)

	rename(t, v, token, "renamed")
	event := must(v.ListDeliveries(ctx, hook.ID, nil))(t).Items[0].EventID
	all := map[string]methodCall{
		"Import": func(ctx context.Context, v *cardvault.Vault) error { return errorOf(v.Import(ctx, testCard(2), nil)) },
		"Get":    func(ctx context.Context, v *cardvault.Vault) error { return errorOf(v.Get(ctx, token.ID)) },
		"List":   func(ctx context.Context, v *cardvault.Vault) error { return errorOf(v.List(ctx, nil)) },
		"All":    func(ctx context.Context, v *cardvault.Vault) error { return errorOf(collect(ctx, v, nil)) },
		"Update": func(ctx context.Context, v *cardvault.Vault) error {
			return errorOf(v.Update(ctx, token.ID, cardvault.TokenUpdate{CardholderName: &named}))
		},
		"Delete":    func(ctx context.Context, v *cardvault.Vault) error { return v.Delete(ctx, token.ID) },
		"Provision": func(ctx context.Context, v *cardvault.Vault) error { return errorOf(v.Provision(ctx, token.ID, nil)) },
		"SuspendNetworkToken": func(ctx context.Context, v *cardvault.Vault) error {
			return errorOf(v.SuspendNetworkToken(ctx, token.ID))
		},
		"ResumeNetworkToken": func(ctx context.Context, v *cardvault.Vault) error {
			return errorOf(v.ResumeNetworkToken(ctx, token.ID))
		},
		"Notify": func(ctx context.Context, v *cardvault.Vault) error {
			return v.Notify(ctx, &network.Notice{
				ID: canary, Kind: network.NoticeSuspended, By: network.OwnerIssuer, OccurredAt: time.Now(),
				Token: network.Ref{ID: canary + token.ID.String() + ":1"},
			})
		},
		"CardArt": func(ctx context.Context, v *cardvault.Vault) error {
			return errorOf(v.CardArt(ctx, uuid.New()))
		},
		"RequestPaymentData": func(ctx context.Context, v *cardvault.Vault) error {
			return errorOf(v.RequestPaymentData(ctx, token.ID, examplePayment))
		},
		"PaymentData": func(ctx context.Context, v *cardvault.Vault) error {
			return errorOf(v.PaymentData(ctx, token.ID, payment.ID))
		},
		"ListPaymentData": func(ctx context.Context, v *cardvault.Vault) error {
			return errorOf(v.ListPaymentData(ctx, token.ID, nil))
		},
		"AllPaymentData": func(ctx context.Context, v *cardvault.Vault) error {
			return errorIn(v.AllPaymentData(ctx, token.ID, nil))
		},
		"CreateSession": func(ctx context.Context, v *cardvault.Vault) error { return errorOf(v.CreateSession(ctx, nil)) },
		"Tokenize": func(ctx context.Context, v *cardvault.Vault) error {
			return errorOf(v.Tokenize(ctx, session.ID, testCard(3)))
		},
		"Session":       func(ctx context.Context, v *cardvault.Vault) error { return errorOf(v.Session(ctx, session.ID)) },
		"SessionStatus": func(ctx context.Context, v *cardvault.Vault) error { return errorOf(v.SessionStatus(ctx, session.ID)) },
		"CompleteSession": func(ctx context.Context, v *cardvault.Vault) error {
			return errorOf(v.CompleteSession(ctx, session.ID, []byte("e30.e30.e30.e30.e30")))
		},
		"SecurityCodeStatus": func(ctx context.Context, v *cardvault.Vault) error {
			return errorOf(v.SecurityCodeStatus(ctx, token.ID))
		},
		"Consume": func(ctx context.Context, v *cardvault.Vault) error { return errorOf(v.Consume(ctx, token.ID, nil)) },
		"RefreshSession": func(ctx context.Context, v *cardvault.Vault) error {
			return errorOf(v.RefreshSession(ctx, token.ID, nil))
		},
		"Replace": func(ctx context.Context, v *cardvault.Vault) error {
			return errorOf(v.Replace(ctx, token.ID, testCard(4), nil))
		},
		"ReplaceSession": func(ctx context.Context, v *cardvault.Vault) error {
			return errorOf(v.ReplaceSession(ctx, token.ID, nil))
		},
		"RefreshSecurityCode": func(ctx context.Context, v *cardvault.Vault) error {
			return errorOf(v.RefreshSecurityCode(ctx, refresh.ID, codeOf("123")))
		},
		"Use": func(ctx context.Context, v *cardvault.Vault) error {
			return v.Use(ctx, token.ID, purpose, func(context.Context, *cardvault.UsedCard) error { return nil })
		},
		"UseCredential": func(ctx context.Context, v *cardvault.Vault) error {
			return v.UseCredential(ctx, token.ID, purpose, examplePayment, func(context.Context, *receive.Credential) error { return nil })
		},
		"Forward": func(ctx context.Context, v *cardvault.Vault) error {
			return errorOf(v.Forward(ctx, token.ID, new(branch).call("", canary), nil))
		},
		"ForwardCredentials": func(ctx context.Context, v *cardvault.Vault) error {
			if err := v.ForwardCredentials().Set(ctx, "psp", canary, []byte(canary)); err != nil {
				return err
			}
			return errorOf(v.ForwardCredentials().Get(ctx, "psp", canary))
		},
		"ObtainPPAN": func(ctx context.Context, v *cardvault.Vault) error {
			return errorOf(v.ObtainPPAN(ctx, token.ID, ppanAccount()))
		},
		"CreateAccount": func(ctx context.Context, v *cardvault.Vault) error { return errorOf(v.CreateAccount(ctx, canary, nil)) },
		"Account":       func(ctx context.Context, v *cardvault.Vault) error { return errorOf(v.Account(ctx)) },
		"ListAccounts":  func(ctx context.Context, v *cardvault.Vault) error { return errorOf(v.ListAccounts(ctx, nil)) },
		"UpdateAccount": func(ctx context.Context, v *cardvault.Vault) error {
			return errorOf(v.UpdateAccount(ctx, cardvault.AccountUpdate{Name: new(canary)}))
		},
		"FreezeAccount": ending((*cardvault.Vault).FreezeAccount),
		"ThawAccount":   ending((*cardvault.Vault).ThawAccount),
		"CloseAccount":  ending((*cardvault.Vault).CloseAccount),
		"CreateMerchant": func(ctx context.Context, v *cardvault.Vault) error {
			return errorOf(v.CreateMerchant(ctx, canary, nil))
		},
		"ListMerchants":   func(ctx context.Context, v *cardvault.Vault) error { return errorOf(v.ListMerchants(ctx, nil)) },
		"Merchant":        func(ctx context.Context, v *cardvault.Vault) error { return errorOf(v.Merchant(ctx, merchant.ID)) },
		"PrimaryMerchant": func(ctx context.Context, v *cardvault.Vault) error { return errorOf(v.PrimaryMerchant(ctx)) },
		"RotatePaymentSecret": func(ctx context.Context, v *cardvault.Vault) error {
			return errorOf(v.RotatePaymentSecret(ctx, merchant.ID, nil))
		},
		"RevokePreviousPaymentSecret": func(ctx context.Context, v *cardvault.Vault) error {
			return v.RevokePreviousPaymentSecret(ctx, merchant.ID)
		},
		"RevokePaymentSecret": func(ctx context.Context, v *cardvault.Vault) error {
			return v.RevokePaymentSecret(ctx, merchant.ID, "")
		},
		"CreateAPIKey": func(ctx context.Context, v *cardvault.Vault) error {
			_, err := v.CreateAPIKey(ctx, canary, cardvault.AllScopes(), nil)
			return err
		},
		"ListAPIKeys": func(ctx context.Context, v *cardvault.Vault) error { return errorOf(v.ListAPIKeys(ctx, nil)) },
		"APIKey":      func(ctx context.Context, v *cardvault.Vault) error { return errorOf(v.APIKey(ctx, key.ID)) },
		"UpdateAPIKey": func(ctx context.Context, v *cardvault.Vault) error {
			return errorOf(v.UpdateAPIKey(ctx, key.ID, cardvault.APIKeyUpdate{}))
		},
		"UpdateAPIKeyBy": func(ctx context.Context, v *cardvault.Vault) error {
			return errorOf(v.UpdateAPIKeyBy(ctx, key.ID, key.ID, cardvault.APIKeyUpdate{}))
		},
		"DeleteAPIKey": func(ctx context.Context, v *cardvault.Vault) error { return v.DeleteAPIKey(ctx, key.ID) },
		"DeleteAPIKeyBy": func(ctx context.Context, v *cardvault.Vault) error {
			return v.DeleteAPIKeyBy(ctx, key.ID, key.ID)
		},
		"Authenticate": func(ctx context.Context, v *cardvault.Vault) error {
			return errorOf(v.Authenticate(ctx, key.Text.Text()))
		},
		"CreateWebhook": func(ctx context.Context, v *cardvault.Vault) error {
			_, err := v.CreateWebhook(ctx, receiver, nil)
			return err
		},
		"Webhook":      func(ctx context.Context, v *cardvault.Vault) error { return errorOf(v.Webhook(ctx, hook.ID)) },
		"ListWebhooks": func(ctx context.Context, v *cardvault.Vault) error { return errorOf(v.ListWebhooks(ctx, nil)) },
		"UpdateWebhook": func(ctx context.Context, v *cardvault.Vault) error {
			return errorOf(v.UpdateWebhook(ctx, hook.ID, cardvault.WebhookUpdate{LegacyHMAC: new(true)}))
		},
		"DeleteWebhook": func(ctx context.Context, v *cardvault.Vault) error { return v.DeleteWebhook(ctx, hook.ID) },
		"RotateWebhookSecret": func(ctx context.Context, v *cardvault.Vault) error {
			return errorOf(v.RotateWebhookSecret(ctx, hook.ID, nil))
		},
		"RevokePreviousWebhookSecrets": func(ctx context.Context, v *cardvault.Vault) error {
			return v.RevokePreviousWebhookSecrets(ctx, hook.ID)
		},
		"TestWebhook":  func(ctx context.Context, v *cardvault.Vault) error { return errorOf(v.TestWebhook(ctx, hook.ID)) },
		"AllAccounts":  func(ctx context.Context, v *cardvault.Vault) error { return errorIn(v.AllAccounts(ctx, nil)) },
		"AllMerchants": func(ctx context.Context, v *cardvault.Vault) error { return errorIn(v.AllMerchants(ctx, nil)) },
		"AllAPIKeys":   func(ctx context.Context, v *cardvault.Vault) error { return errorIn(v.AllAPIKeys(ctx, nil)) },
		"AllWebhooks":  func(ctx context.Context, v *cardvault.Vault) error { return errorIn(v.AllWebhooks(ctx, nil)) },
		"AllDeliveries": func(ctx context.Context, v *cardvault.Vault) error {
			return errorIn(v.AllDeliveries(ctx, hook.ID, nil))
		},
		"ListDeliveries": func(ctx context.Context, v *cardvault.Vault) error {
			return errorOf(v.ListDeliveries(ctx, hook.ID, nil))
		},
		"EnsureMerchant": func(ctx context.Context, v *cardvault.Vault) error {
			return errorOf(v.EnsureMerchant(ctx, canary+"2", nil))
		},
		"EnsureAPIKey": func(ctx context.Context, v *cardvault.Vault) error {
			return errorOf(v.EnsureAPIKey(ctx, cardvault.GenerateAPIKeyText(v.Mode()), canary, cardvault.AllScopes(), nil))
		},
		"Redeliver":  func(ctx context.Context, v *cardvault.Vault) error { return errorOf(v.Redeliver(ctx, event, nil)) },
		"RotateKeys": func(ctx context.Context, v *cardvault.Vault) error { return errorOf(v.RotateKeys(ctx, nil)) },
		"RotateSeries": func(ctx context.Context, v *cardvault.Vault) error {
			return errorOf(v.RotateSeries(ctx, cardvault.SeriesAudit, nil))
		},
		"ChangeKeyring": func(ctx context.Context, v *cardvault.Vault) error {
			return v.ChangeKeyring(ctx, keyring(t, suiteKey))
		},
		"RetireTerm": func(ctx context.Context, v *cardvault.Vault) error {
			if err := v.RetireTerm(ctx, 1); !errors.Is(err, cardvault.ErrTermActive) {
				return err
			}
			return nil
		},
		"Reseal":    func(ctx context.Context, v *cardvault.Vault) error { return v.Reseal(ctx) },
		"KeyReport": func(ctx context.Context, v *cardvault.Vault) error { return errorOf(v.KeyReport(ctx)) },
		"Verify":    func(ctx context.Context, v *cardvault.Vault) error { return errorOf(v.Verify(ctx, nil)) },
		"BeginSums": func(ctx context.Context, v *cardvault.Vault) error { return v.BeginSums(ctx, nil) },
		"Repair":    func(ctx context.Context, v *cardvault.Vault) error { return errorOf(v.Repair(ctx, nil)) },
		"Scrub": func(ctx context.Context, v *cardvault.Vault) error {
			if err := v.Scrub(ctx); !errors.Is(err, cardvault.ErrNotEnabled) {
				return err
			}
			return nil
		},
		"Run":   func(ctx context.Context, v *cardvault.Vault) error { return v.Run(ctx) },
		"Drain": func(ctx context.Context, v *cardvault.Vault) error { return v.Drain(ctx) },
	}

	// Those neither read nor write, or need an audit log or a store that can be backed up,
	// which the vaults of the suite do not have.
	exempt := []string{
		"In", "Mode", "Check", "PPANEnabled", "Sender", "Close", "Backup",
		"AuditRecords", "AllAuditRecords", "ExportAudit", "AuditPublicKeys", "RecordRefusal", "LedgerReport",
	}
	for method := range reflect.TypeFor[*cardvault.Vault]().Methods() {
		if all[method.Name] == nil && !slices.Contains(exempt, method.Name) {
			t.Errorf("method %s is new: the suite must call it", method.Name)
		}
	}
	return all
}

// ending returns a call that ends an account, a new one each time.
func ending(call func(*cardvault.Vault, context.Context) (*cardvault.Account, error)) func(context.Context, *cardvault.Vault) error {
	return func(ctx context.Context, v *cardvault.Vault) error {
		id := uuid.New()
		if a, err := v.CreateAccount(ctx, canary, nil); err == nil {
			id = a.ID
		} else if !errors.Is(err, cardvault.ErrClosed) {
			return err
		}
		return errorOf(call(v.In(id), ctx))
	}
}

// errorIn returns the error of an iteration, which ends it.
func errorIn[T any](all iter.Seq2[T, error]) (err error) {
	for _, err = range all {
	}
	return err
}

// said matches the error of a method of a closed vault: it says what the method was doing.
var said = regexp.MustCompile(`^cardvault: [A-Za-z ]+: vault is closed`)

func closed(t *testing.T, s store.Store) {
	spy := &watched{Store: s}
	v, ctx := paying(t, spy, new(till)), t.Context()
	calls := methods(t, v)
	running := make(chan error, 1)
	go func() { running <- v.Run(ctx) }()
	noError(t, v.In(uuid.New()).Close()) // any handle closes all
	if err := v.Close(); err != nil {
		t.Errorf("closing again = %v", err)
	}

	fails(t, "Run after the vault was closed", <-running, cardvault.ErrClosed)
	wrote := spy.wrote(func() {
		for name, call := range calls {
			err := call(ctx, v)
			fails(t, name+" after Close", err, cardvault.ErrClosed)
			if !said.MatchString(fmt.Sprint(err)) {
				t.Errorf("%s after Close: error %q does not name the call", name, err)
			}
		}
		fails(t, "Delete of the zero id after Close", v.Delete(ctx, uuid.Nil), cardvault.ErrClosed)
	})
	if wrote != 0 {
		t.Errorf("a closed vault wrote %d times", wrote)
	}

	// The store is the caller's and still open.
	if p := must(vaultOn(t, s, nil).List(ctx, nil))(t); p.TotalItems != 1 {
		t.Errorf("%d tokens after reopening, want 1", p.TotalItems)
	}
}

func cancelled(t *testing.T, s store.Store) {
	v := paying(t, s, new(till))
	calls, underKeys := methods(t, v), keyedCalls(t, v)
	before := must(v.List(t.Context(), &cardvault.TokenListOptions{Ascending: true}))(t)
	keys := must(v.ListAPIKeys(t.Context(), nil))(t)
	account := must(v.Account(t.Context()))(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("the caller is gone"))

	for name, call := range calls {
		if name == "Run" {
			noError(t, call(ctx, v))
			continue
		}
		fails(t, name+" with a context that has ended", call(ctx, v), context.Canceled)
	}
	for name, call := range underKeys {
		_, err := call(ctx, v, canary+name)
		fails(t, name+" with a context that has ended and an idempotency key", err, context.Canceled)
	}

	if _, err := cardvault.New(ctx, s, keyring(t, suiteKey), &cardvault.Options{Mode: cardvault.Sandbox}); !errors.Is(err, context.Canceled) {
		t.Errorf("New with a context that has ended = %v", err)
	}

	checkListed(t, v, before.Items...)
	if got := must(v.ListAPIKeys(t.Context(), nil))(t); got.TotalItems != keys.TotalItems {
		t.Errorf("%d keys, want %d", got.TotalItems, keys.TotalItems)
	}
	if got := must(v.Account(t.Context()))(t); !reflect.DeepEqual(got, account) {
		t.Errorf("account %+v, want %+v", got, account)
	}

	// A call that was not made can be made under the same key.
	done := must(v.Import(t.Context(), testCard(2), &cardvault.ImportOptions{IdempotencyKey: canary + "Import"}))(t)
	if done.Replayed {
		t.Error("a call that was not made is replayed")
	}
}

func wrongKey(t *testing.T, s store.Store) {
	spy := &watched{Store: s}
	ctx := t.Context()
	token := importCard(t, vaultOn(t, spy, nil), testCard(1), nil)
	other := bytes.Repeat([]byte{8}, cardvault.KeySize)
	sandbox := &cardvault.Options{Mode: cardvault.Sandbox}

	wrote := spy.wrote(func() {
		for what, test := range map[string]struct {
			keys *cardvault.Keyring
			opts *cardvault.Options
			want error
		}{
			"another key":       {keyring(t, other), sandbox, cardvault.ErrWrongKey},
			"live":              {keyring(t, suiteKey), nil, cardvault.ErrWrongMode},
			"live, another key": {keyring(t, other), nil, cardvault.ErrWrongMode},
		} {
			v, err := cardvault.New(ctx, spy, test.keys, test.opts)
			fails(t, what, err, test.want)
			if v != nil {
				t.Errorf("%s: New returns a vault", what)
			}
			vaulttest.AssertNoLeak(t, []string{string(suiteKey), string(other)}, err)
		}

		for _, opts := range []cardvault.Options{
			{Mode: 2}, {IINLength: 7}, {SessionTTL: time.Second}, {SessionTTL: 2 * time.Hour},
			{SessionTTL: -1}, {IdempotencyTTL: time.Minute}, {IdempotencyTTL: 8 * 24 * time.Hour},
		} {
			if _, err := cardvault.New(ctx, spy, keyring(t, suiteKey), &opts); err == nil {
				t.Errorf("New takes %+v", opts)
			}
		}
	})
	if wrote != 0 {
		t.Errorf("vaults that could not be opened wrote %d times", wrote)
	}
	checkListed(t, vaultOn(t, spy, nil), token)
}

// A kms is a key provider that fails on demand. It hides nothing.
type kms struct {
	key string
	err error
}

func (*kms) KeyID() string { return "kms/1" }

func (k *kms) Wrap(_ context.Context, plaintext, aad []byte) ([]byte, error) {
	return slices.Concat(plaintext, aad, []byte(k.key)), k.err
}

func (k *kms) Unwrap(_ context.Context, wrapped, aad []byte) ([]byte, error) {
	plaintext, found := bytes.CutSuffix(wrapped, slices.Concat(aad, []byte(k.key)))
	if !found {
		return nil, fmt.Errorf("kms: %w", cardvault.ErrWrongKey)
	}
	return bytes.Clone(plaintext), k.err
}

func keyProvider(t *testing.T, s store.Store) {
	spy, k, ctx := &watched{Store: s}, &kms{key: "a"}, t.Context()
	open := func() (*cardvault.Vault, error) {
		return cardvault.New(ctx, spy, cardvault.WrappedBy(k), &cardvault.Options{Mode: cardvault.Sandbox})
	}

	failing := func(what string, cause, want error) {
		t.Helper()
		k.err = cause
		wrote := spy.wrote(func() {
			_, err := open()
			fails(t, what, err, want)
			fails(t, what, err, cause)
		})
		k.err = nil
		if wrote != 0 {
			t.Errorf("%s: written %d times", what, wrote)
		}
	}

	down := errors.New("no route to host")
	failing("making a vault", down, cardvault.ErrUnavailable)
	failing("making a vault", context.DeadlineExceeded, context.DeadlineExceeded)
	v := must(open())(t)
	token := importCard(t, v, testCard(1), nil)
	failing("opening a vault", down, cardvault.ErrUnavailable)
	failing("opening a vault", context.DeadlineExceeded, context.DeadlineExceeded)
	k.key = "b"
	fails(t, "another key with the same name", errorOf(open()), cardvault.ErrWrongKey)
	k.key = "a"

	k.err = down
	fails(t, "rotating", errorOf(v.RotateKeys(ctx, nil)), cardvault.ErrUnavailable)
	another := importCard(t, v, testCard(2), nil) // cards do not need the provider
	k.err = nil
	noError(t, errorOf(v.RotateKeys(ctx, nil)))
	checkListed(t, must(open())(t), token, another)
}

// openRace: concurrent calls that make a vault in one empty store all get the same.
func openRace(t *testing.T, s store.Store) {
	var mu sync.Mutex
	accounts := map[uuid.UUID]bool{}
	parallel(t, 8, func(i int) error {
		keys, err := cardvault.KeyBytes(suiteKey)
		if err != nil {
			return err
		}

		v, err := cardvault.New(t.Context(), s, keys, &cardvault.Options{Mode: cardvault.Sandbox})
		if err != nil {
			return err
		}
		if _, err := v.Import(t.Context(), testCard(i), nil); err != nil {
			return err
		}

		a, err := v.Account(t.Context())
		if err != nil {
			return err
		}

		mu.Lock()
		defer mu.Unlock()
		accounts[a.ID] = true
		return nil
	})

	p := must(vaultOn(t, s, nil).List(t.Context(), nil))(t)
	if len(accounts) != 1 || p.TotalItems != 8 {
		t.Errorf("%d default accounts and %d tokens, want 1 and 8", len(accounts), p.TotalItems)
	}
}

func reopened(t *testing.T, s store.Store) { outlives(t, s, func() store.Store { return s }) }

// outlives: what a vault has acknowledged is there for the next one, on the store that
// again returns.
func outlives(t *testing.T, s store.Store, again func() store.Store) {
	ctx := t.Context()
	first := vaultOn(t, s, nil)
	account := must(first.CreateAccount(ctx, canary, nil))(t)
	kept := []*cardvault.Token{importCard(t, first, testCard(1), nil), ephemeral(t, first, 2, 1000*time.Second)}
	theirs := importCard(t, first.In(account.ID), testCard(1), nil)
	kept = append(kept, must(first.Import(ctx, testCard(3), importUnderKey))(t))
	session := must(first.CreateSession(ctx, &cardvault.SessionOptions{BypassIdentification: true}))(t)
	key, err := first.CreateAPIKey(ctx, canary, cardvault.AllScopes(), nil)
	noError(t, err)

	merchant := must(first.CreateMerchant(ctx, canary, nil))(t)
	must(first.RotatePaymentSecret(ctx, merchant.ID, nil))(t)
	merchant = must(first.ListMerchants(ctx, nil))(t).Items[0]
	noError(t, first.Close())

	v := vaultOn(t, again(), nil)
	checkListed(t, v, kept...)
	checkListed(t, v.In(account.ID), theirs)
	if p := must(v.Authenticate(ctx, key.Text.Text()))(t); p.Key.ID != key.ID {
		t.Error("the key has changed")
	}
	if got := must(v.ListMerchants(ctx, nil))(t).Items[0]; got.ID != merchant.ID || got.Secrets[0].KeyID != merchant.Secrets[0].KeyID {
		t.Error("the merchant has changed")
	}

	repeated := must(v.Import(ctx, testCard(3), importUnderKey))(t)
	if same(t, "replayed", repeated, kept[2]); !repeated.Replayed {
		t.Error("not reported as a replay")
	}
	if token := must(v.Tokenize(ctx, session.ID, testCard(4)))(t); token.Identification != idv.Skipped {
		t.Error("the session has lost its options")
	}

	if again := importCard(t, v, testCard(1), nil); again.Fingerprint != kept[0].Fingerprint {
		t.Error("the fingerprint of a number has changed")
	}
}

func rotateKeys(t *testing.T, s store.Store) {
	ctx := t.Context()
	v, follower := vaultOn(t, s, nil), vaultOn(t, s, nil)
	tokens := []*cardvault.Token{importCard(t, v, testCard(0), nil)}
	text, err := v.CreateAPIKey(ctx, canary, cardvault.AllScopes(), nil)
	noError(t, err)
	tokens = append(tokens, must(v.Import(ctx, testCard(1), importUnderKey))(t))

	for i := range 3 {
		noError(t, errorOf([]*cardvault.Vault{v, follower}[i%2].RotateKeys(ctx, nil)))
		tokens = append(tokens, importCard(t, v, testCard(2+2*i), nil))
		// The other vault meets the new term, or still seals under the former.
		checkListed(t, follower, tokens...)
		tokens = append(tokens, importCard(t, follower, testCard(3+2*i), nil))
		checkListed(t, v, tokens...)
		key := fmt.Sprint(canary, i)
		tokens[0] = must(follower.Update(ctx, tokens[0].ID, cardvault.TokenUpdate{BusinessKey: &key}))(t)
		same(t, "updated under a new term", must(v.Get(ctx, tokens[0].ID))(t), tokens[0])
	}

	must(v.Authenticate(ctx, text.Text.Text()))(t)
	repeated := must(follower.Import(ctx, testCard(1), importUnderKey))(t)
	if same(t, "replayed", repeated, tokens[1]); !repeated.Replayed {
		t.Error("no replay after rotation")
	}
	if again := importCard(t, v, testCard(0), nil); again.Fingerprint != tokens[0].Fingerprint {
		t.Error("rotation changes fingerprints")
	} else {
		tokens = append(tokens, again)
	}

	parallel(t, 4, func(i int) error { return errorOf([]*cardvault.Vault{v, follower}[i%2].RotateKeys(ctx, nil)) })
	checkListed(t, vaultOn(t, s, nil), tokens...)
}

// changeKeyring: vaults on one store that change to other keys and rotate, one after another
// and at once, stay one vault. Only the last key opens it.
func changeKeyring(t *testing.T, s store.Store) {
	ctx := t.Context()
	var keys [4]*cardvault.Keyring
	for i := range keys {
		keys[i] = keyring(t, bytes.Repeat([]byte{byte(i + 1)}, cardvault.KeySize))
	}
	open := func(first *cardvault.Keyring, others ...*cardvault.Keyring) (*cardvault.Vault, error) {
		return cardvault.New(ctx, s, cardvault.JoinKeyrings(first, others...), &cardvault.Options{Mode: cardvault.Sandbox})
	}
	v := must(open(keys[0]))(t)
	follower := must(open(keys[0], keys[1:]...))(t)
	tokens := []*cardvault.Token{importCard(t, v, testCard(0), nil)}

	for i, next := range keys[1:] {
		noError(t, v.ChangeKeyring(ctx, next))
		fails(t, "opening with the former key", errorOf(open(keys[i])), cardvault.ErrWrongKey)
		checkListed(t, must(open(next))(t), tokens...)
		tokens = append(tokens, importCard(t, follower, testCard(3*i+1), nil))
		must(v.RotateKeys(ctx, nil))(t)
		tokens = append(tokens, importCard(t, v, testCard(3*i+2), nil))
		checkListed(t, follower, tokens...)
		must(follower.RotateKeys(ctx, nil))(t)
		tokens = append(tokens, importCard(t, follower, testCard(3*i+3), nil))
		checkListed(t, v, tokens...)
	}

	all := cardvault.JoinKeyrings(keys[0], keys[1:]...)
	noError(t, v.ChangeKeyring(ctx, all))
	parallel(t, 8, func(i int) error {
		changed := keys[i%2]
		switch i % 4 {
		case 0:
			return errorOf(v.RotateKeys(ctx, nil))
		case 1:
			return follower.ChangeKeyring(ctx, cardvault.JoinKeyrings(changed, keys[(i+1)%2], keys[2], keys[3]))
		case 2:
			return errorOf(follower.RotateKeys(ctx, nil))
		default:
			return v.ChangeKeyring(ctx, cardvault.JoinKeyrings(changed, keys[(i+1)%2], keys[2], keys[3]))
		}
	})

	opened := 0
	for _, k := range keys {
		last, err := open(k)
		if errors.Is(err, cardvault.ErrWrongKey) {
			continue
		}
		noError(t, err)
		opened++
		checkListed(t, last, tokens...)
	}
	if opened != 1 {
		t.Errorf("%d keys open the vault", opened)
	}
	for _, open := range []*cardvault.Vault{v, follower} {
		checkListed(t, open, tokens...)
	}
}
