package vaultsuite

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"sync/atomic"
	"testing"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/store"
)

var raceBehaviours = []behaviour{
	{"Races", races},
	{"UpdateRace", updateRace},
	{"Between", between},
	{"BetweenNew", betweenNew},
}

// races changes the same few tokens from two vaults on one store at once.
func races(t *testing.T, s store.Store) {
	const n, workers, steps = 12, 8, 40
	v, ctx := vaultOn(t, s, nil), t.Context()
	vaults := []*cardvault.Vault{v, vaultOn(t, s, nil)}
	tokens := make([]*cardvault.Token, n)
	for i := range tokens {
		tokens[i] = importCard(t, v, testCard(i), &cardvault.ImportOptions{BusinessKey: canary + "start"})
	}

	var deleted [n]atomic.Int64
	var imported atomic.Int64
	parallel(t, workers, func(worker int) error {
		r := rand.New(rand.NewPCG(7, uint64(worker)))
		v := vaults[worker%2]
		for step := range steps {
			i := r.IntN(n)
			what := r.IntN(8)
			var err error
			switch {
			case what == 0 && i%3 == 0: // the others stay
				if err = v.Delete(ctx, tokens[i].ID); err == nil {
					deleted[i].Add(1)
				}
			case what == 1:
				if _, err = v.Import(ctx, testCard(n), nil); err == nil {
					imported.Add(1)
				}
			default:
				err = raceStep(ctx, v, tokens[i], what, fmt.Sprint(canary, worker, step))
			}
			if err != nil && !errors.Is(err, cardvault.ErrNotFound) {
				return err
			}
		}
		return nil
	})

	left := imported.Load()
	for i, token := range tokens {
		_, err := v.Get(ctx, token.ID)
		switch times := deleted[i].Load(); {
		case times > 1:
			t.Errorf("token %d was deleted %d times", i, times)
		case times == 1:
			fails(t, "Get of a deleted token", err, cardvault.ErrNotFound)
		default:
			noError(t, err)
			left++
		}
	}

	all := must(collect(ctx, v, &cardvault.TokenListOptions{Ascending: true}))(t)
	if int64(len(all)) != left {
		t.Errorf("%d tokens, want %d", len(all), left)
	}

	for _, v := range vaults {
		checkListed(t, v, all...)
		for _, token := range all {
			lists(t, v, cardvault.TokenListOptions{BusinessKey: token.BusinessKey, Ascending: true, Limit: 500}, all)
		}
	}
}

// raceStep reads or updates a token that another goroutine may have deleted.
func raceStep(ctx context.Context, v *cardvault.Vault, token *cardvault.Token, what int, text string) error {
	switch what {
	case 0, 2, 3, 4:
		got, err := v.Update(ctx, token.ID, cardvault.TokenUpdate{BusinessKey: &text})
		if err == nil && got.BusinessKey != text {
			err = errors.New("Update returns another key than was set")
		}
		return err

	case 5:
		named := holder(text)
		return errorOf(v.Update(ctx, token.ID, cardvault.TokenUpdate{CardholderName: &named}))

	case 6:
		return errorOf(v.List(ctx, &cardvault.TokenListOptions{BusinessKey: canary + "start"}))

	default:
		got, err := v.Get(ctx, token.ID)
		if err == nil && (got.ID != token.ID || got.Fingerprint != token.Fingerprint) {
			err = errors.New("Get returns another token")
		}
		return err
	}
}

// updateRace: of updates of different fields at the same time, none is lost.
func updateRace(t *testing.T, s store.Store) {
	v, ctx := vaultOn(t, s, nil), t.Context()
	id := importCard(t, v, testCard(1), nil).ID
	parallel(t, 3, func(worker int) error {
		for i := range 20 {
			var u cardvault.TokenUpdate
			switch worker {
			case 0:
				key := fmt.Sprint(canary, i)
				u.BusinessKey = &key
			case 1:
				named := holder(fmt.Sprint(canary, i))
				u.CardholderName = &named
			default:
				u.Expiry = &card.Expiry{Month: 1, Year: 2060 + i}
			}
			if _, err := v.Update(ctx, id, u); err != nil {
				return err
			}
		}
		return nil
	})

	token := must(v.Get(ctx, id))(t)
	var changed string
	token.CardholderName.Expose(func(b []byte) { changed = string(b) })
	if token.BusinessKey != canary+"19" || changed != canary+"19" || token.Expiry.Year != 2079 {
		t.Errorf("an update was lost: %+v", flat(token))
	}

	checkListed(t, v, token)
}

// A meddler is a store on which something else happens once, between the read and the write
// of the next call.
type meddler struct {
	store.Store
	meddle func()
}

func (m *meddler) Update(ctx context.Context, fn func(store.Tx) error) error {
	if f := m.meddle; f != nil {
		m.meddle = nil
		f()
	}
	return m.Store.Update(ctx, fn)
}

// between puts every call that reads first in the way of another.
func between(t *testing.T, s store.Store) {
	m := &meddler{Store: s}
	v, ctx := vaultOn(t, m, nil), t.Context()
	text := func(s string) *string { return &s }
	named := holder(canary)
	token := importCard(t, v, testCard(0), nil)
	merchant := must(v.PrimaryMerchant(ctx))(t)
	key := must(v.CreateAPIKey(ctx, canary, cardvault.AllScopes(), nil))(t)
	session := must(v.CreateSession(ctx, nil))(t)

	idempotent := func() (*cardvault.Token, error) { return v.Import(ctx, testCard(1), importUnderKey) }

	var first *cardvault.Token
	m.meddle = func() { first = must(idempotent())(t) }
	same(t, "Import while the same card is imported", must(idempotent())(t), first)

	var ensured *cardvault.Merchant
	m.meddle = func() { ensured = must(v.EnsureMerchant(ctx, canary, nil))(t) }
	if is := must(v.EnsureMerchant(ctx, canary, nil))(t); is.ID != ensured.ID {
		t.Error("EnsureMerchant while the same is ensured: there are two")
	}
	given, read := cardvault.GenerateAPIKeyText(v.Mode()), []cardvault.Scope{cardvault.ScopeTokensRead}
	var found *cardvault.APIKey
	m.meddle = func() { found = must(v.EnsureAPIKey(ctx, given, canary, read, nil))(t) }
	if is := must(v.EnsureAPIKey(ctx, given, canary, read, nil))(t); is.ID != found.ID {
		t.Error("EnsureAPIKey while the same is ensured: there are two")
	}

	m.meddle = func() {
		must(v.Update(ctx, token.ID, cardvault.TokenUpdate{BusinessKey: text(canary)}))(t)
	}

	got := must(v.Update(ctx, token.ID, cardvault.TokenUpdate{CardholderName: &named}))(t)
	if got.BusinessKey != canary || got.CardholderName.IsZero() {
		t.Error("Update while another field is updated: one of them is lost")
	}

	same(t, "read", must(v.Get(ctx, token.ID))(t), got)

	m.meddle = func() { noError(t, v.Delete(ctx, token.ID)) }
	_, err := v.Update(ctx, token.ID, cardvault.TokenUpdate{BusinessKey: text(canary)})
	fails(t, "Update while the token is deleted", err, cardvault.ErrNotFound)
	m.meddle = func() { noError(t, v.Delete(ctx, first.ID)) }
	fails(t, "Delete while it is deleted", v.Delete(ctx, first.ID), cardvault.ErrNotFound)
	checkListed(t, v)

	var tokenized *cardvault.Token
	m.meddle = func() { tokenized = must(v.Tokenize(ctx, session.ID, testCard(2)))(t) }
	_, err = v.Tokenize(ctx, session.ID, testCard(3))
	fails(t, "Tokenize while another call does", err, cardvault.ErrSessionCompleted)
	checkListed(t, v, tokenized)

	m.meddle = func() { noError(t, v.DeleteAPIKey(ctx, key.ID)) }
	_, err = v.CreateAPIKey(ctx, canary, cardvault.AllScopes(), &cardvault.APIKeyOptions{Creator: key.ID})
	fails(t, "CreateAPIKey while the creator is revoked", err, cardvault.ErrNotFound)

	m.meddle = func() { must(v.UpdateAccount(ctx, cardvault.AccountUpdate{NetworkTokensActive: new(false)}))(t) }
	a := must(v.UpdateAccount(ctx, cardvault.AccountUpdate{Name: new(canary + "new")}))(t)
	if got := must(v.Account(ctx))(t); !got.ImportApproved || got.NetworkTokensActive || got.Name != canary+"new" || !reflect.DeepEqual(a, got) {
		t.Errorf("UpdateAccount while another call does: %+v, read %+v", a, got)
	}

	m.meddle = func() { must(v.RotatePaymentSecret(ctx, merchant.ID, nil))(t) }
	must(v.RotatePaymentSecret(ctx, merchant.ID, nil))(t)
	if n := len(must(v.PrimaryMerchant(ctx))(t).Secrets); n != 2 {
		t.Errorf("RotatePaymentSecret while another call does: %d secrets, want 2", n)
	}

	m.meddle = func() { noError(t, errorOf(v.RotateKeys(ctx, nil))) }
	noError(t, errorOf(v.RotateKeys(ctx, nil)))
	checkListed(t, vaultOn(t, s, nil), tokenized)
}

func betweenNew(t *testing.T, s store.Store) {
	m := &meddler{Store: s}
	var first *cardvault.Vault
	m.meddle = func() { first = vaultOn(t, s, nil) }
	second := vaultOn(t, m, nil)
	token := importCard(t, first, testCard(1), nil)
	checkListed(t, second, token)
	if p := must(second.ListAccounts(t.Context(), nil))(t); p.TotalItems != 1 {
		t.Errorf("%d accounts, want one default", p.TotalItems)
	}
}
