package vaultsuite

import (
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

var accountEndBehaviours = []behaviour{
	{"AccountFrozen", accountFrozen},
	{"AccountFreezeRace", func(t *testing.T, s store.Store) { accountEndRace(t, s, false) }},
	{"AccountClosed", accountClosed},
	{"AccountCloseRace", func(t *testing.T, s store.Store) { accountEndRace(t, s, true) }},
	{"AccountOverdue", accountOverdue},
}

// accountFrozen: nothing inside a frozen account works, in another vault on the store either,
// and after the thaw all is as it was.
func accountFrozen(t *testing.T, s store.Store) {
	v, second, ctx := vaultOn(t, s, nil), vaultOn(t, s, nil), t.Context()
	id := must(v.CreateAccount(ctx, canary, nil))(t).ID
	a := v.In(id)
	bystander := importCard(t, v, testCard(1), nil)
	token, session := importCard(t, a, testCard(1), nil), must(a.CreateSession(ctx, nil))(t)
	key := must(a.CreateAPIKey(ctx, canary, cardvault.AllScopes(), nil))(t)
	keyID, merchant := key.ID, must(a.PrimaryMerchant(ctx))(t).ID
	right := map[string]uuid.UUID{
		"Tokenize": session.ID.UUID(), "DeleteAPIKey": keyID, "CreateAPIKey": keyID,
		"RotatePaymentSecret": merchant, "RevokePreviousPaymentSecret": merchant, "RevokePaymentSecret": merchant,
	}
	calls := callsByID(ctx)
	delete(calls, "In")
	calls["Import"] = func(v *cardvault.Vault, _ uuid.UUID) error { return errorOf(v.Import(ctx, testCard(2), nil)) }
	calls["List"] = func(v *cardvault.Vault, _ uuid.UUID) error { return errorOf(v.List(ctx, nil)) }
	calls["UpdateAccount"] = func(v *cardvault.Vault, _ uuid.UUID) error {
		return errorOf(v.UpdateAccount(ctx, cardvault.AccountUpdate{ImportApproved: new(true)}))
	}
	noError(t, calls["Get"](second.In(id), token.ID)) // it knows the account

	began := must(a.FreezeAccount(ctx))(t)
	if began.State != cardvault.AccountFrozen || began.Since.IsZero() {
		t.Errorf("a frozen account: %+v", began)
	}
	for _, v := range []*cardvault.Vault{v, second} {
		for name, call := range calls {
			of, ok := right[name]
			if !ok {
				of = token.ID
			}
			fails(t, name+" in a frozen account", call(v.In(id), of), cardvault.ErrAccountFrozen)
		}
		fails(t, "a key of a frozen account", errorOf(v.Authenticate(ctx, key.Text.Text())), cardvault.ErrAccountFrozen)
		fails(t, "a session of a frozen account", errorOf(v.In(uuid.Nil).Session(ctx, session.ID)), cardvault.ErrNotFound)
		same(t, "another account's token", must(v.Get(ctx, bystander.ID))(t), bystander)
		if got := must(v.In(id).Account(ctx))(t); got.State != cardvault.AccountFrozen || !got.Since.Equal(began.Since) || got.Name != canary {
			t.Errorf("read while it is frozen: %+v", got)
		}
	}
	if again := must(second.In(id).FreezeAccount(ctx))(t); !again.Since.Equal(began.Since) {
		t.Error("frozen again, and the time is another")
	}

	if got := must(second.In(id).ThawAccount(ctx))(t); got.State != cardvault.AccountOpen {
		t.Errorf("thawed: %+v", got)
	}
	same(t, "after the thaw", must(a.Get(ctx, token.ID))(t), token)
	must(v.Authenticate(ctx, key.Text.Text()))(t)
	must(v.In(uuid.Nil).Session(ctx, session.ID))(t)
	must(a.Tokenize(ctx, session.ID, testCard(2)))(t)
	fails(t, "freezing no account", errorOf(v.In(uuid.New()).FreezeAccount(ctx)), cardvault.ErrNotFound)
	fails(t, "freezing what belongs to no account", errorOf(v.In(uuid.Nil).FreezeAccount(ctx)), cardvault.ErrNotFound)
}

// accountEndRace: once an account has ended, no call that began before adds anything.
func accountEndRace(t *testing.T, s store.Store, close bool) {
	v, ctx := vaultOn(t, s, nil), t.Context()
	vaults := []*cardvault.Vault{v, vaultOn(t, s, nil)}
	id := must(v.CreateAccount(ctx, canary, nil))(t).ID
	tokens := func() (n int) {
		for key := range rowsOf(t, s) {
			if key.Kind == kindToken {
				n++
			}
		}
		return n
	}

	var done atomic.Int64
	var frozen, reads atomic.Bool
	var counted int
	parallel(t, 9, func(i int) error {
		if i == 8 {
			for done.Load() < 16 && !t.Failed() {
				time.Sleep(time.Millisecond)
			}
			ends, want := v.In(id).FreezeAccount, cardvault.ErrAccountFrozen
			if close {
				ends, want = v.In(id).CloseAccount, cardvault.ErrNotFound
			}
			_, err := ends(ctx)
			frozen.Store(true)
			counted = tokens()
			for _, v := range vaults {
				fails(t, "a read once the account has ended", errorOf(v.In(id).List(ctx, nil)), want)
			}
			return err
		}
		for n := 0; ; n++ {
			late := frozen.Load()
			_, err := vaults[i%2].In(id).Import(ctx, testCard(100*i+n), nil)
			switch {
			case err == nil && late:
				return errors.New("an import that began after the end has been stored")
			case err == nil:
				done.Add(1)
			case errors.Is(err, cardvault.ErrAccountFrozen) && !close, errors.Is(err, cardvault.ErrNotFound) && close:
				reads.Store(true)
				return nil
			default:
				return err
			}
		}
	})
	if now := tokens(); now != counted || now != int(done.Load()) {
		t.Errorf("%d tokens when the account had ended, %d later, %d imports succeeded", counted, now, done.Load())
	}
}

// keptKinds are the kinds of records that a closed account keeps: hashes of API keys whose texts
// were given.
var keptKinds = []store.Kind{29}

// accountClosed: a closed account is refused at once and leaves nothing, and the others stay.
func accountClosed(t *testing.T, s store.Store) {
	fillKinds(t, s)
	ctx, n := t.Context(), gallery{new(till)}
	v := vaultOn(t, s, &cardvault.Options{Mode: cardvault.Sandbox, Network: n})
	own, key := must(v.Account(ctx))(t), must(v.CreateAPIKey(ctx, canary, cardvault.AllScopes(), nil))(t)
	other := v.In(must(v.CreateAccount(ctx, canary, nil))(t).ID)
	token := importCard(t, other, testCard(9), nil)
	drain(t, v)
	token = must(other.Get(ctx, token.ID))(t)
	of := func() (kinds []store.Kind) {
		for key, r := range rowsOf(t, s) {
			if r.Account == own.ID && !slices.Contains(keptKinds, key.Kind) && !slices.Contains(kinds, key.Kind) {
				kinds = append(kinds, key.Kind)
			}
		}
		return kinds
	}
	if kinds := of(); len(kinds) < 18 {
		t.Errorf("the account has records of the kinds %v only", kinds)
	}

	if a := must(v.CloseAccount(ctx))(t); a.State != cardvault.AccountClosing {
		t.Errorf("closed: %+v", a)
	}
	refused := func(when string) {
		fails(t, "List "+when, errorOf(v.List(ctx, nil)), cardvault.ErrNotFound)
		fails(t, "Import "+when, errorOf(v.Import(ctx, testCard(3), nil)), cardvault.ErrNotFound)
		fails(t, "FreezeAccount "+when, errorOf(v.FreezeAccount(ctx)), cardvault.ErrNotFound)
		fails(t, "ThawAccount "+when, errorOf(v.ThawAccount(ctx)), cardvault.ErrNotFound)
		fails(t, "Authenticate "+when, errorOf(v.Authenticate(ctx, key.Text.Text())), cardvault.ErrUnauthenticated)
	}
	refused("while the account is closing")
	for range 3 { // work that is under way is waited for, and looked for again a minute later
		drain(t, v)
		if len(of()) <= 2 {
			break
		}
	}
	for _, kind := range of() {
		if kind != kindRelease && kind != kindClosing {
			t.Errorf("the account still has records of kind %d", kind)
		}
	}
	refused("when the account is empty")
	must(v.CloseAccount(ctx))(t)
	same(t, "another account's token", must(other.Get(ctx, token.ID))(t), token)
}

// accountOverdue: tokens whose retention has ended are deleted, and no others.
func accountOverdue(t *testing.T, s store.Store) {
	v, ctx := vaultOn(t, s, nil), t.Context()
	token := importCard(t, v, testCard(1), nil)
	for _, d := range []time.Duration{-time.Hour, time.Minute, cardvault.MaxTokenRetention + time.Hour} {
		refuses(t, "a retention of "+d.String(), errorOf(v.UpdateAccount(ctx, cardvault.AccountUpdate{TokenRetention: &d})), "TokenRetention out_of_range")
	}
	if a := must(v.UpdateAccount(ctx, cardvault.AccountUpdate{TokenRetention: new(time.Hour)}))(t); a.TokenRetention != time.Hour {
		t.Errorf("retention %v", a.TokenRetention)
	}
	drain(t, v)
	same(t, "a token within its retention", must(v.Get(ctx, token.ID))(t), token)
}
