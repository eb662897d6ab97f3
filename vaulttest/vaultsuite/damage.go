package vaultsuite

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

var damageBehaviours = []behaviour{
	{"DamagedToken", damagedToken},
	{"Damaged", damaged},
	{"DamagedInLists", damagedInLists},
	{"DamagedElsewhere", damagedElsewhere},
}

// overwrite puts r in the place of old, as an attacker with write access to the store can.
// Both must be the first version.
func overwrite(t testing.TB, s store.Store, old, r *store.Record) {
	t.Helper()
	noError(t, s.Update(t.Context(), func(tx store.Tx) error {
		tx.Delete(old.Kind, old.ID)
		tx.Put(r)
		return nil
	}))
}

// shownDamage returns what can be done to the sealed part of r, given another
// record of its kind.
func shownDamage(r, other *store.Record) map[string]func(*store.Record) {
	damage := map[string]func(*store.Record){
		"nothing left":            func(r *store.Record) { r.Shown = nil },
		"cut short":               func(r *store.Record) { r.Shown = r.Shown[:len(r.Shown)-1] },
		"only the header":         func(r *store.Record) { r.Shown = r.Shown[:6] },
		"longer":                  func(r *store.Record) { r.Shown = append(r.Shown, 0) },
		"the part of another row": func(r *store.Record) { r.Shown = other.Shown },
	}
	for i := 0; i < len(r.Shown); i += 1 + i/8 {
		damage[fmt.Sprintf("byte %d changed", i)] = func(r *store.Record) { r.Shown[i] ^= 0x10 }
	}
	return damage
}

// tokenDamage returns changes to the row of a token, made from two other rows.
func tokenDamage(row, other, foreign *store.Record) map[string]func(*store.Record) {
	damage := shownDamage(row, other)
	for what, change := range map[string]func(*store.Record){
		"the part of the card":              func(r *store.Record) { r.Shown = r.Secret },
		"the part of another account":       func(r *store.Record) { r.Shown = foreign.Shown },
		"another class":                     func(r *store.Record) { r.Class += 2 },
		"an expiry":                         func(r *store.Record) { r.Due = time.Now().Add(time.Hour).Truncate(time.Microsecond) },
		"no business key":                   func(r *store.Record) { r.Lookup = nil },
		"the business key of another token": func(r *store.Record) { r.Lookup = other.Lookup },
		"a second business key":             func(r *store.Record) { r.Lookup = append(r.Lookup, other.Lookup...) },
		"a parent":                          func(r *store.Record) { r.Parent = other.ID },
		"another account":                   func(r *store.Record) { r.Account = foreign.Account },
		"the row of another token":          func(r *store.Record) { r.ID = other.ID },
	} {
		damage[what] = change
	}
	return damage
}

func damagedToken(t *testing.T, s store.Store) {
	spy := &watched{Store: s}
	v, ctx := vaultOn(t, spy, nil), t.Context()
	account := must(v.CreateAccount(ctx, canary, nil))(t)
	imported := func(v *cardvault.Vault, n int, key string) (*cardvault.Token, *store.Record) {
		token := importCard(t, v, testCard(n), &cardvault.ImportOptions{BusinessKey: key})
		return token, spy.last()[0]
	}

	a, row := imported(v, 1, canary+"a")
	b, other := imported(v, 2, canary+"b")
	_, foreign := imported(v.In(account.ID), 3, canary+"c")

	damage := tokenDamage(row, other, foreign)

	key := canary + "changed"
	refused := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, cardvault.ErrDamaged) && !errors.Is(err, cardvault.ErrNotFound) {
			t.Errorf("%s: %v, want %v or %v", what, err, cardvault.ErrDamaged, cardvault.ErrNotFound)
		}
	}

	for what, change := range damage {
		spoiled := row.Clone()
		change(spoiled)
		moved := spoiled.ID != row.ID
		if moved {
			overwrite(t, s, other, spoiled)
		} else {
			overwrite(t, s, row, spoiled)
		}

		victim := a
		if moved {
			victim = b
		}

		_, err := v.Get(ctx, victim.ID)
		refused(what+": Get", err)
		_, err = v.Update(ctx, victim.ID, cardvault.TokenUpdate{BusinessKey: &key})
		refused(what+": Update", err)

		for _, o := range []*cardvault.TokenListOptions{nil, {BusinessKey: canary + "a"}, {BusinessKey: canary + "b"}, {Scheme: []card.Scheme{a.Scheme}}} {
			notListed(t, what, v, o, victim.ID)
			notListed(t, what, v.In(account.ID), o, victim.ID)
		}

		if moved {
			overwrite(t, s, spoiled, other)
		} else {
			overwrite(t, s, spoiled, row)
		}
	}

	checkListed(t, v, a, b) // the restored row is whole

	// A row of the past is not the row of today.
	must(v.Update(ctx, a.ID, cardvault.TokenUpdate{BusinessKey: &key}))(t)
	past := row.Clone()
	past.Version = 3
	noError(t, s.Update(ctx, func(tx store.Tx) error { tx.Put(past); return nil }))
	fails(t, "a former row with the next version", errorOf(v.Get(ctx, a.ID)), cardvault.ErrDamaged)
	noError(t, v.Delete(ctx, a.ID)) // damaged tokens can be removed
	checkListed(t, v, b)
}

// notListed checks that a list returns all tokens that it counts, except one with a damaged
// row. It returns the records that the list names instead.
func notListed(t *testing.T, what string, v *cardvault.Vault, o *cardvault.TokenListOptions, victim uuid.UUID) []cardvault.DamagedRecord {
	t.Helper()
	p, err := v.List(t.Context(), o)
	if err != nil {
		fails(t, what+": List", err, cardvault.ErrDamaged)
	}
	named := cardvault.Damaged(err)
	if p == nil || slices.Contains(idsOf(p.Items), victim) || p.TotalItems != int64(len(p.Items)+len(named)) {
		t.Errorf("%s: List by %+v gives %+v, %v", what, o, p, err)
		return nil
	}

	tokens, errs := collectAll(t, v, o)
	if !slices.Equal(idsOf(tokens), idsOf(p.Items)) || !slices.Equal(cardvault.Damaged(errors.Join(errs...)), named) {
		t.Errorf("%s: All by %+v yields %d tokens and %v, List gives %d and %v", what, o, len(tokens), errs, len(p.Items), err)
	}
	return named
}

// collectAll returns what All yields when it goes on after errors.
func collectAll(t *testing.T, v *cardvault.Vault, o *cardvault.TokenListOptions) (tokens []*cardvault.Token, errs []error) {
	t.Helper()
	for token, err := range v.All(t.Context(), o) {
		if err == nil {
			tokens = append(tokens, token)
			continue
		}
		if token != nil {
			t.Error("All yields a token with an error")
		}
		errs = append(errs, err)
	}
	return tokens, errs
}

// damaged does to records of every other kind what damagedToken does to tokens.
func damaged(t *testing.T, s store.Store) {
	spy := &watched{Store: s}
	v, ctx := vaultOn(t, spy, nil), t.Context()

	// Each makes two objects, and returns the row of the first, the row of the second, and
	// a way to read the first.
	pair := func(create func(i int)) (row, other *store.Record) {
		create(0)
		row = spy.last()[0]
		create(1)
		return row, spy.last()[0]
	}

	var key [2]cardvault.APIKeyText
	keyRow, otherKey := pair(func(i int) {
		key[i] = must(v.CreateAPIKey(ctx, canary, cardvault.AllScopes()[:1+i], nil))(t).Text
	})

	made, err := v.CreateAPIKey(ctx, canary, cardvault.AllScopes()[:1], &cardvault.APIKeyOptions{Creator: must(v.Authenticate(ctx, key[0].Text()))(t).Key.ID})
	noError(t, err)
	merchantRow, otherMerchant := pair(func(i int) { must(v.CreateMerchant(ctx, fmt.Sprint(canary, i), nil))(t) })
	var account [2]*cardvault.Account
	accountRow, otherAccount := pair(func(i int) {
		account[i] = must(v.CreateAccount(ctx, canary, &cardvault.AccountOptions{ImportApproved: new(i > 0), NetworkTokensActive: new(false)}))(t)
	})

	var session [2]func() error
	sessionRow, otherSession := pair(func(i int) {
		id := must(v.CreateSession(ctx, &cardvault.SessionOptions{BypassIdentification: i > 0}))(t)
		session[i] = func() error { return errorOf(v.Tokenize(ctx, id.ID, testCard(1))) }
	})

	again := func(i int) error {
		return errorOf(v.Import(ctx, testCard(i), &cardvault.ImportOptions{IdempotencyKey: fmt.Sprint(idemKey, i)}))
	}

	var repeat [2][]*store.Record // key and answer
	for i := range repeat {
		noError(t, again(i))
		repeat[i] = spy.last()[1:]
	}

	for _, test := range []struct {
		what       string
		row, other *store.Record
		read       func() error
	}{
		{"an API key", keyRow, otherKey, func() error { return errorOf(v.Authenticate(ctx, key[0].Text())) }},
		{"the creator of an API key", keyRow, otherKey, func() error { return errorOf(v.Authenticate(ctx, made.Text.Text())) }},
		{"an API key in a list", keyRow, otherKey, func() error { return errorOf(v.ListAPIKeys(ctx, nil)) }},
		{"an API key that creates", keyRow, otherKey, func() error {
			p, err := v.Authenticate(ctx, key[0].Text())
			if err != nil {
				return err
			}
			_, err = v.CreateAPIKey(ctx, canary, p.Key.Scopes, &cardvault.APIKeyOptions{Creator: p.Key.ID})
			return err
		}},
		{"a merchant", merchantRow, otherMerchant, func() error { return errorOf(v.ListMerchants(ctx, nil)) }},
		{"an account", accountRow, otherAccount, func() error { return errorOf(v.In(account[0].ID).Account(ctx)) }},
		{"an account to approve", accountRow, otherAccount, func() error {
			return errorOf(v.In(account[0].ID).UpdateAccount(ctx, cardvault.AccountUpdate{ImportApproved: new(true)}))
		}},
		{"an idempotency key", repeat[0][0], repeat[1][0], func() error { return again(0) }},
		{"an answer", repeat[0][1], repeat[1][1], func() error { return again(0) }},
		{"a session", sessionRow, otherSession, session[0]},
	} {
		damagedRow(t, s, test.what, test.row, test.other, test.read)
	}
}

// damagedRow checks that read finds each damage to a row, and nothing wrong when the row
// is put back.
func damagedRow(t *testing.T, s store.Store, name string, row, other *store.Record, read func() error) {
	for what, change := range shownDamage(row, other) {
		spoiled := row.Clone()
		change(spoiled)
		overwrite(t, s, row, spoiled)
		fails(t, name+": "+what, read(), cardvault.ErrDamaged)
		overwrite(t, s, spoiled, row)
	}
	if err := read(); err != nil {
		t.Errorf("%s that was put back: %v", name, err)
	}
}
