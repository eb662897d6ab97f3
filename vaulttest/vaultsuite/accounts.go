package vaultsuite

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/vaulttest"
	"github.com/google/uuid"
)

var accountBehaviours = []behaviour{
	{"Accounts", func(t *testing.T, s store.Store) { accountsIn(t, s, cardvault.Sandbox) }},
	{"AccountsLive", func(t *testing.T, s store.Store) { accountsIn(t, s, cardvault.Live) }},
	{"Isolation", isolation},
	{"Merchants", merchantSecrets},
	{"APIKeys", apiKeys},
	{"APIKeyTexts", apiKeyTexts},
	{"APIKeyCreators", apiKeyCreators},
	{"APIKeyChain", apiKeyChain},
	{"DeleteAPIKeyBy", deleteAPIKeyBy},
	{"APIKeyNotAfter", apiKeyNotAfter},
	{"NothingInClear", nothingInClear},
}

func accountsIn(t *testing.T, s store.Store, mode cardvault.Mode) {
	v, ctx := vaultOn(t, s, &cardvault.Options{Mode: mode}), t.Context()
	granted := mode == cardvault.Sandbox
	text, err := v.CreateAPIKey(ctx, canary, cardvault.AllScopes(), &cardvault.APIKeyOptions{TTL: time.Hour})
	noError(t, err)
	if v.Mode() != mode || !strings.HasPrefix(text.Text.Text(), map[bool]string{true: "vk_test_", false: "vk_live_"}[granted]) {
		t.Errorf("mode %v, want %v, or a key of the other", v.Mode(), mode)
	}

	own := must(v.Account(ctx))(t)
	if own.Name != "default" || own.ImportApproved != granted || own.NetworkTokensActive != granted {
		t.Errorf("default account: %+v", own)
	}

	a := must(v.CreateAccount(ctx, canary+"A", nil))(t)
	b := must(v.CreateAccount(ctx, "", &cardvault.AccountOptions{ImportApproved: new(true), NetworkTokensActive: new(false)}))(t)
	if a.ID.Version() != 4 || a.ImportApproved != granted || a.NetworkTokensActive != granted || a.Name != canary+"A" {
		t.Errorf("account: %+v", a)
	}
	if !b.ImportApproved || b.NetworkTokensActive || b.Name != "" {
		t.Errorf("account with one approval: %+v", b)
	}

	if got := must(v.In(a.ID).Account(ctx))(t); !reflect.DeepEqual(got, a) {
		t.Errorf("read: %+v, want %+v", got, a)
	}

	must(v.In(a.ID).UpdateAccount(ctx, cardvault.AccountUpdate{ImportApproved: new(false), NetworkTokensActive: new(true)}))(t)
	if got := must(v.In(a.ID).Account(ctx))(t); got.ImportApproved || !got.NetworkTokensActive || got.Name != a.Name {
		t.Errorf("after UpdateAccount: %+v", got)
	}

	// Fields that are not named stay.
	must(v.In(b.ID).UpdateAccount(ctx, cardvault.AccountUpdate{Name: new(canary + "B"), Quotas: cardvault.QuotaUpdate{Webhooks: new(5)}}))(t)
	b = must(v.In(b.ID).UpdateAccount(ctx, cardvault.AccountUpdate{NetworkTokensActive: new(true)}))(t)
	if got := must(v.In(b.ID).Account(ctx))(t); !b.ImportApproved || !b.NetworkTokensActive || b.Name != canary+"B" || b.Quotas.Webhooks != 5 || !reflect.DeepEqual(got, b) {
		t.Errorf("after two updates: %+v, read %+v", b, got)
	}

	p := must(v.In(b.ID).ListAccounts(ctx, &cardvault.ListOptions{Ascending: true, Limit: 2}))(t)
	if p.TotalItems != 3 || len(p.Items) != 2 || p.Items[0].ID != own.ID || p.Items[1].ID != a.ID {
		t.Errorf("%d of %d accounts listed", len(p.Items), p.TotalItems)
	}
	if p := must(v.ListAccounts(ctx, nil))(t); p.Items[0].ID != b.ID || !p.Items[0].CreatedAt.Equal(b.CreatedAt) {
		t.Error("the account made last is not listed first")
	}
}

// isolation: nothing of one account is seen, used or changed through another,
// and an account that does not exist is not there for any call.
func isolation(t *testing.T, s store.Store) {
	v, ctx := vaultOn(t, s, nil), t.Context()
	other := must(v.CreateAccount(ctx, canary, nil))(t)
	a, b := v, v.In(other.ID)
	opts := &cardvault.ImportOptions{BusinessKey: canary}
	token, theirs := importCard(t, a, testCard(1), opts), importCard(t, b, testCard(1), opts)
	if token.Fingerprint == theirs.Fingerprint {
		t.Error("two accounts have the same fingerprint for a number")
	}

	session := must(a.CreateSession(ctx, nil))(t)
	key, err := a.CreateAPIKey(ctx, canary, cardvault.AllScopes(), nil)
	noError(t, err)
	merchant := must(a.CreateMerchant(ctx, canary, nil))(t)
	if p := must(b.Authenticate(ctx, key.Text.Text()))(t); p.Account.ID == other.ID || p.Key.Account != p.Account.ID || p.Key.ID != key.ID {
		t.Error("a key authenticates for the account of the handle, not for its own")
	}

	calls := callsByID(ctx)
	own := map[string][]string{ // the calls for which an id of a kind is right
		"token": {"Get", "Delete", "Update"}, "session": {"Tokenize"}, "key": {"DeleteAPIKey", "CreateAPIKey"},
		"merchant": {"RotatePaymentSecret", "RevokePreviousPaymentSecret", "RevokePaymentSecret"}, "account": {"In"}, "none": nil, "zero": nil,
	}

	for kind, id := range map[string]uuid.UUID{
		"token": token.ID, "session": session.ID.UUID(), "key": key.ID, "merchant": merchant.ID,
		"account": must(v.Account(ctx))(t).ID, "none": uuid.New(), "zero": uuid.Nil,
	} {
		for name, call := range calls {
			if name == "CreateAPIKey" && kind == "zero" {
				continue // no creator
			}
			if !slices.Contains(own[kind], name) {
				fails(t, fmt.Sprintf("%s of id of %s", name, kind), call(a, id), cardvault.ErrNotFound)
			}
			if name != "In" {
				fails(t, fmt.Sprintf("%s of another account's %s", name, kind), call(b, id), cardvault.ErrNotFound)
			}
		}
	}

	checkListed(t, a, token)
	checkListed(t, b, theirs)
	if got := must(collect(ctx, b, nil))(t); len(got) != 1 {
		t.Errorf("All yields %d tokens, want 1", len(got))
	}

	lists(t, b, cardvault.TokenListOptions{BusinessKey: canary}, []*cardvault.Token{theirs})
	if keys, merchants := must(b.ListAPIKeys(ctx, nil))(t), must(b.ListMerchants(ctx, nil))(t); keys.TotalItems != 0 || merchants.TotalItems != 1 {
		t.Errorf("%d keys and %d merchants, want only the account's", keys.TotalItems, merchants.TotalItems)
	}

	must(a.Tokenize(ctx, session.ID, testCard(3)))(t)

	noAccount(t, v, token.ID, session.ID)
}

// callsByID returns calls that take an id, by name.
func callsByID(ctx context.Context) map[string]func(v *cardvault.Vault, id uuid.UUID) error {
	business := canary + "x"

	return map[string]func(v *cardvault.Vault, id uuid.UUID) error{
		"Get":    func(v *cardvault.Vault, id uuid.UUID) error { _, err := v.Get(ctx, id); return err },
		"Delete": func(v *cardvault.Vault, id uuid.UUID) error { return v.Delete(ctx, id) },
		"Update": func(v *cardvault.Vault, id uuid.UUID) error {
			_, err := v.Update(ctx, id, cardvault.TokenUpdate{BusinessKey: &business})
			return err
		},
		"Tokenize": func(v *cardvault.Vault, id uuid.UUID) error {
			_, err := v.Tokenize(ctx, cardvault.NewSessionID(id), testCard(2))
			return err
		},
		"DeleteAPIKey": func(v *cardvault.Vault, id uuid.UUID) error { return v.DeleteAPIKey(ctx, id) },
		"CreateAPIKey": func(v *cardvault.Vault, id uuid.UUID) error {
			_, err := v.CreateAPIKey(ctx, canary, cardvault.AllScopes(), &cardvault.APIKeyOptions{Creator: id})
			return err
		},
		"RotatePaymentSecret": func(v *cardvault.Vault, id uuid.UUID) error {
			_, err := v.RotatePaymentSecret(ctx, id, nil)
			return err
		},
		"RevokePreviousPaymentSecret": func(v *cardvault.Vault, id uuid.UUID) error {
			return v.RevokePreviousPaymentSecret(ctx, id)
		},
		"RevokePaymentSecret": func(v *cardvault.Vault, id uuid.UUID) error { return v.RevokePaymentSecret(ctx, id, "") },
		"In": func(v *cardvault.Vault, id uuid.UUID) error {
			_, err := v.In(id).Import(ctx, testCard(2), nil)
			return err
		},
	}
}

// noAccount checks that no call works in an account that does not exist.
func noAccount(t *testing.T, v *cardvault.Vault, token uuid.UUID, session cardvault.SessionID) {
	ctx := t.Context()

	for what, handle := range map[string]*cardvault.Vault{"unknown": v.In(uuid.New()), "no": v.In(uuid.Nil)} {
		for name, err := range map[string]error{
			"Import":          errorOf(handle.Import(ctx, testCard(1), nil)),
			"CreateSession":   errorOf(handle.CreateSession(ctx, nil)),
			"Tokenize":        errorOf(handle.Tokenize(ctx, session, testCard(1))),
			"Get":             errorOf(handle.Get(ctx, token)),
			"Delete":          handle.Delete(ctx, token),
			"List":            errorOf(handle.List(ctx, nil)),
			"All":             errorOf(collect(ctx, handle, nil)),
			"Account":         errorOf(handle.Account(ctx)),
			"UpdateAccount":   errorOf(handle.UpdateAccount(ctx, cardvault.AccountUpdate{})),
			"CreateMerchant":  errorOf(handle.CreateMerchant(ctx, canary, nil)),
			"ListMerchants":   errorOf(handle.ListMerchants(ctx, nil)),
			"PrimaryMerchant": errorOf(handle.PrimaryMerchant(ctx)),
			"ListAPIKeys":     errorOf(handle.ListAPIKeys(ctx, nil)),
			"CreateAPIKey": func() error {
				_, err := handle.CreateAPIKey(ctx, canary, cardvault.AllScopes(), nil)
				return err
			}(),
		} {
			fails(t, name+" in "+what+" account", err, cardvault.ErrNotFound)
		}
	}
}

func merchantSecrets(t *testing.T, s store.Store) {
	v, ctx := vaultOn(t, s, nil), t.Context()
	primary := must(v.PrimaryMerchant(ctx))(t)
	shop := must(v.CreateMerchant(ctx, canary+"shop", nil))(t)
	if !primary.Primary || shop.Primary || shop.Name != canary+"shop" || len(shop.Secrets) != 0 || shop.ID.Version() != 4 {
		t.Errorf("merchants %+v, %+v", primary, shop)
	}

	read := func() *cardvault.Merchant {
		p := must(v.ListMerchants(ctx, nil))(t)
		if p.TotalItems != 2 || p.Items[0].ID != shop.ID || p.Items[1].ID != primary.ID {
			t.Fatalf("%d merchants listed", p.TotalItems)
		}
		return p.Items[0]
	}

	base64url := regexp.MustCompile(`^[0-9A-Za-z_-]{43}$`)
	var secrets, ids []string
	rotate := func(at time.Time) {
		secret := must(v.RotatePaymentSecret(ctx, shop.ID, &cardvault.PaymentSecretOptions{ActivateAt: at}))(t).Secret.Text()
		if !base64url.MatchString(secret) || slices.Contains(secrets, secret) {
			t.Errorf("secret of %d characters is not 43 of base64url, or was issued before", len(secret))
		}
		secrets = append(secrets, secret)
	}

	state := func(what string, want ...time.Duration) { // from now, -1 for: in use
		t.Helper()
		got := read().Secrets
		if len(got) != len(want) {
			t.Fatalf("%s: %d secrets, want %d", what, len(got), len(want))
		}
		for i, secret := range got {
			in := time.Until(secret.ActivateAt)
			if used := in <= 0; used != (want[i] < 0) || !used && (in > want[i] || in < want[i]-time.Minute) {
				t.Errorf("%s: secret %d is used in %v, want %v", what, i, in, want[i])
			}
			if !slices.Contains(ids, secret.KeyID) {
				ids = append(ids, secret.KeyID)
			}
		}
		vaulttest.AssertNoLeak(t, secrets, got, read())
	}

	if n := len(read().Secrets); n != 0 {
		t.Errorf("a new merchant has %d secrets", n)
	}

	rotate(time.Now().Add(time.Hour)) // unusable until then
	state("first rotation", -1)
	rotate(time.Time{})
	state("second rotation", -1, cardvault.SecretOverlap)
	rotate(time.Now().Add(time.Hour))
	state("a waiting secret is replaced", -1, time.Hour)
	rotate(time.Now().Add(-time.Hour))
	state("from a past time", -1)
	if len(ids) != 4 {
		t.Errorf("%d key ids for 4 secrets", len(ids))
	}

	if got := must(v.PrimaryMerchant(ctx))(t); len(got.Secrets) != 0 || got.ID != primary.ID {
		t.Error("the rotation of one merchant's secret changed another")
	}
}

var keyShape = regexp.MustCompile(`^vk_(test|live)_[0-9a-f]{8}_[0-9A-Za-z]{43}[0-9A-Za-z]{6}$`)

// checksum is what a key ends with: CRC-32 of all before, in six digits.
func checksum(head string) string {
	const digits = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
	text := make([]byte, 6)
	n := crc32.ChecksumIEEE([]byte(head))
	for i := range text {
		text[5-i] = digits[n%62]
		n /= 62
	}
	return string(text)
}

func apiKeys(t *testing.T, s store.Store) {
	v, ctx := vaultOn(t, s, nil), t.Context()
	scopes := []cardvault.Scope{cardvault.ScopeTokensRead, cardvault.ScopeSessionsCreate, cardvault.ScopeTokensRead}
	key, err := v.CreateAPIKey(ctx, canary, scopes, &cardvault.APIKeyOptions{TTL: 1000 * time.Second})
	noError(t, err)
	text := key.Text.Text()
	account := must(v.Account(ctx))(t)
	if key.Label != canary || key.ID.Version() != 4 || key.Account != account.ID || len(key.Scopes) != 2 ||
		!key.Has(cardvault.ScopeTokensRead) || !key.Has(cardvault.ScopeSessionsCreate) || key.Has(cardvault.ScopeTokensImport) ||
		!key.ExpiresAt.Equal(key.CreatedAt.Add(1000*time.Second)) {
		t.Errorf("key %+v", key)
	}

	if !keyShape.MatchString(text) || !strings.HasPrefix(text, "vk_test_"+key.ID.String()[:8]+"_") || checksum(text[:len(text)-6]) != text[len(text)-6:] {
		t.Error("the text of the key has another form")
	}

	// What a caller makes of a principal stays the caller's.
	p := must(v.Authenticate(ctx, text))(t)
	p.Key.Scopes[0], p.Key.Label, p.Account.Name = cardvault.ScopeTokensImport, "", ""

	p = must(v.Authenticate(ctx, text))(t)
	if !reflect.DeepEqual(p.Account, account) || p.Key.ID != key.ID || p.Key.Label != key.Label || !slices.Equal(p.Key.Scopes, key.Scopes) ||
		!p.Key.ExpiresAt.Equal(key.ExpiresAt) || !p.Key.CreatedAt.Equal(key.CreatedAt) {
		t.Errorf("principal %+v, %+v", p.Account, p.Key)
	}

	list := must(v.ListAPIKeys(ctx, nil))(t)
	if list.TotalItems != 1 || list.Items[0].ID != key.ID || !slices.Equal(list.Items[0].Scopes, key.Scopes) {
		t.Errorf("%d keys listed", list.TotalItems)
	}

	vaulttest.AssertNoLeak(t, []string{text, text[17:60]}, key, list.Items[0], p.Key)

	// Approvals are judged at each call.
	must(v.UpdateAccount(ctx, cardvault.AccountUpdate{ImportApproved: new(false), NetworkTokensActive: new(false)}))(t)
	if p := must(v.Authenticate(ctx, text))(t); p.Account.ImportApproved {
		t.Error("a withdrawn approval is still given")
	}

	noError(t, v.DeleteAPIKey(ctx, key.ID))
	_, err = v.Authenticate(ctx, text)
	fails(t, "revoked key", err, cardvault.ErrUnauthenticated)
	fails(t, "revoking again", v.DeleteAPIKey(ctx, key.ID), cardvault.ErrNotFound)
	if list := must(v.ListAPIKeys(ctx, nil))(t); list.TotalItems != 0 || len(list.Items) != 0 {
		t.Error("a revoked key is listed")
	}
}

func apiKeyTexts(t *testing.T, s store.Store) {
	v, ctx := vaultOn(t, s, nil), t.Context()
	made, err := v.CreateAPIKey(ctx, canary, cardvault.AllScopes(), nil)
	noError(t, err)
	text := made.Text.Text()
	must(v.Authenticate(ctx, text))(t)
	bad := []string{"", " ", text + " ", " " + text, text + "0", text[1:], strings.ToUpper(text), strings.Repeat("x", 1<<20), text + "\x00"}

	for i := range text {
		bad = append(bad, text[:i], text[:i]+text[i+1:])
		for _, c := range "0aZ_" {
			if altered := text[:i] + string(c) + text[i+1:]; altered != text {
				bad = append(bad, altered)
			}
		}
		// The same with a checksum that fits: the secret itself must be right.
		if i < len(text)-6 {
			c := "b"
			if text[i] == 'b' {
				c = "c"
			}
			head := text[:i] + c + text[i+1:len(text)-6]
			bad = append(bad, head+checksum(head))
		}
	}

	live := "vk_live" + text[len("vk_test"):len(text)-6]
	bad = append(bad, live+checksum(live))
	for i, altered := range bad {
		_, err := v.Authenticate(ctx, altered)
		fails(t, fmt.Sprintf("altered key %d", i), err, cardvault.ErrUnauthenticated)
		if err != nil && err.Error() != "cardvault: authenticate: no valid API key" {
			t.Errorf("altered key %d: the error reveals the reason", i)
		}
	}
}

func apiKeyCreators(t *testing.T, s store.Store) {
	v, ctx := vaultOn(t, s, nil), t.Context()
	type made struct {
		*cardvault.APIKey
		text string
	}

	create := func(by *made, ttl time.Duration, scopes ...cardvault.Scope) (*made, error) {
		opts := &cardvault.APIKeyOptions{TTL: ttl}
		if by != nil {
			opts.Creator = by.ID
		}
		key, err := v.CreateAPIKey(ctx, canary, scopes, opts)
		if err != nil {
			return nil, err
		}
		return &made{key, key.Text.Text()}, nil
	}

	read, write := cardvault.ScopeTokensRead, cardvault.ScopeAPIKeysWrite
	root := must(create(nil, 1000*time.Second, read, write))(t)
	child := must(create(root, 0, read, write))(t)
	short := must(create(root, 10*time.Second, read))(t)
	long := must(create(root, 2000*time.Second, read))(t)
	grandchild := must(create(child, 0, read))(t)
	stranger := must(create(nil, 0, read))(t)
	for name, key := range map[string]*made{"no expiry": child, "a later expiry": long, "a grandchild": grandchild} {
		if !key.ExpiresAt.Equal(root.ExpiresAt) {
			t.Errorf("%s: the key ends at %v, its creator at %v", name, key.ExpiresAt, root.ExpiresAt)
		}
	}

	if !short.ExpiresAt.Equal(short.CreatedAt.Add(10 * time.Second)) {
		t.Errorf("an earlier expiry became %v", short.ExpiresAt)
	}

	_, err := create(child, 0, read, cardvault.ScopeTokensDelete)
	fails(t, "a scope that the creator lacks", err, cardvault.ErrInsufficientScope)

	noError(t, v.DeleteAPIKey(ctx, root.ID))
	for name, key := range map[string]*made{"creator": root, "child": child, "second child": short, "third child": long, "grandchild": grandchild} {
		_, err := v.Authenticate(ctx, key.text)
		fails(t, name+" of a revoked key", err, cardvault.ErrUnauthenticated)
	}

	must(v.Authenticate(ctx, stranger.text))(t)
	if p := must(v.ListAPIKeys(ctx, nil))(t); p.TotalItems != 1 {
		t.Errorf("%d keys left, want 1", p.TotalItems)
	}

	_, err = create(root, 0, read)
	fails(t, "a revoked creator", err, cardvault.ErrNotFound)
}

// A link is a key of a chain in which each key made the next.
type link struct {
	*cardvault.APIKey
	text string
	row  *store.Record
}

// chain makes a chain of n keys.
func chain(t *testing.T, v *cardvault.Vault, spy *watched, n int) (keys []link) {
	t.Helper()
	for range n {
		opts := new(cardvault.APIKeyOptions)
		if len(keys) > 0 {
			opts.Creator = keys[len(keys)-1].ID
		}
		key, err := v.CreateAPIKey(t.Context(), canary, cardvault.AllScopes(), opts)
		noError(t, err)
		keys = append(keys, link{key, key.Text.Text(), spy.last()[0]})
	}
	return keys
}

// apiKeyChain: a key is worth what all keys of its chain are worth.
func apiKeyChain(t *testing.T, s store.Store) {
	spy := &watched{Store: s}
	v, ctx := vaultOn(t, spy, nil), t.Context()
	keys := chain(t, v, spy, cardvault.MaxAPIKeyDepth)
	last := keys[len(keys)-1]
	_, err := v.CreateAPIKey(ctx, canary, cardvault.AllScopes(), &cardvault.APIKeyOptions{Creator: last.ID})
	fails(t, "a key below the maximum depth", err, cardvault.ErrAPIKeyDepth)
	_, err = v.CreateAPIKey(ctx, canary, cardvault.AllScopes(), &cardvault.APIKeyOptions{Creator: keys[len(keys)-2].ID})
	noError(t, err)
	for i, key := range keys {
		p := must(v.Authenticate(ctx, key.text))(t)
		if key.Root != keys[0].ID || p.Key.Root != keys[0].ID {
			t.Errorf("key %d: root %v and %v, want %v", i, key.Root, p.Key.Root, keys[0].ID)
		}
	}

	for _, key := range must(v.ListAPIKeys(ctx, nil))(t).Items {
		if key.Root != keys[0].ID {
			t.Errorf("root of a listed key is %v", key.Root)
		}
	}

	// With any one of them gone, and nothing else done, all below are worth nothing.
	for i, gone := range keys {
		noError(t, s.Update(ctx, func(tx store.Tx) error { tx.Delete(gone.row.Kind, gone.row.ID); return nil }))
		for j, key := range keys {
			_, err := v.Authenticate(ctx, key.text)
			_, made := v.CreateAPIKey(ctx, canary, key.Scopes, &cardvault.APIKeyOptions{Creator: key.ID})
			switch {
			case j < i:
				noError(t, err)
				noError(t, made)
			default:
				fails(t, fmt.Sprintf("key %d without key %d", j, i), err, cardvault.ErrUnauthenticated)
				fails(t, fmt.Sprintf("key %d makes another without key %d", j, i), made, cardvault.ErrNotFound)
			}
		}
		noError(t, s.Update(ctx, func(tx store.Tx) error { tx.Put(gone.row); return nil }))
	}

	// A row with other creators than its key is not a key.
	for what, change := range map[string]func(*store.Record){
		"no creator":                  func(r *store.Record) { r.Lookup = r.Lookup[:1] },
		"one creator less":            func(r *store.Record) { r.Lookup = slices.Delete(r.Lookup, 3, 4) },
		"creators in the wrong order": func(r *store.Record) { r.Lookup[2], r.Lookup[3] = r.Lookup[3], r.Lookup[2] },
	} {
		spoiled := last.row.Clone()
		change(spoiled)
		overwrite(t, s, last.row, spoiled)
		fails(t, what, errorOf(v.Authenticate(ctx, last.text)), cardvault.ErrDamaged)
		overwrite(t, s, spoiled, last.row)
	}

	must(v.Authenticate(ctx, last.text))(t)
}

// deleteAPIKeyBy: a key revokes itself and its descendants, and nothing else.
func deleteAPIKeyBy(t *testing.T, s store.Store) {
	spy := &watched{Store: s}
	v, ctx := vaultOn(t, spy, nil), t.Context()
	keys := chain(t, v, spy, 4)
	stranger := chain(t, v, spy, 2)
	sister, err := v.CreateAPIKey(ctx, canary, cardvault.AllScopes(), &cardvault.APIKeyOptions{Creator: keys[0].ID})
	noError(t, err)
	all := map[string]link{"above": keys[0], "beside": {sister, sister.Text.Text(), nil}, "a stranger": stranger[0], "below a stranger": stranger[1]}
	for name, key := range all {
		fails(t, name, v.DeleteAPIKeyBy(ctx, keys[1].ID, key.ID), cardvault.ErrNotFound)
		must(v.Authenticate(ctx, key.text))(t)
	}

	for name, by := range map[string]uuid.UUID{"no creator": uuid.Nil, "no key": uuid.New()} {
		fails(t, name, v.DeleteAPIKeyBy(ctx, by, keys[1].ID), cardvault.ErrNotFound)
	}

	fails(t, "an invalid id", v.DeleteAPIKeyBy(ctx, keys[1].ID, uuid.New()), cardvault.ErrNotFound)

	noError(t, v.DeleteAPIKeyBy(ctx, keys[1].ID, keys[3].ID)) // descendants of its descendants
	fails(t, "again", v.DeleteAPIKeyBy(ctx, keys[1].ID, keys[3].ID), cardvault.ErrNotFound)
	must(v.Authenticate(ctx, keys[2].text))(t)
	noError(t, v.DeleteAPIKeyBy(ctx, keys[1].ID, keys[1].ID)) // itself
	for _, key := range keys[1:] {
		fails(t, "revoked", errorOf(v.Authenticate(ctx, key.text)), cardvault.ErrUnauthenticated)
	}

	must(v.Authenticate(ctx, keys[0].text))(t)
	if p := must(v.ListAPIKeys(ctx, nil))(t); p.TotalItems != 4 {
		t.Errorf("%d keys left, want 4", p.TotalItems)
	}
}

// apiKeyNotAfter: the maker of a key can bound its life.
func apiKeyNotAfter(t *testing.T, s store.Store) {
	v, ctx := vaultOn(t, s, nil), t.Context()
	soon, late := time.Now().Add(time.Hour).UTC().Truncate(time.Microsecond), time.Now().Add(9*time.Hour).UTC().Truncate(time.Microsecond)
	creator, err := v.CreateAPIKey(ctx, canary, cardvault.AllScopes(), &cardvault.APIKeyOptions{NotAfter: late})
	noError(t, err)

	for _, test := range []struct {
		what string
		opts cardvault.APIKeyOptions
		want time.Time
	}{
		{"no expiry", cardvault.APIKeyOptions{NotAfter: soon}, soon},
		{"a later expiry", cardvault.APIKeyOptions{NotAfter: soon, TTL: 2 * time.Hour}, soon},
		{"a creator that expires later", cardvault.APIKeyOptions{NotAfter: soon, Creator: creator.ID}, soon},
		{"a creator that expires earlier", cardvault.APIKeyOptions{NotAfter: late.Add(time.Hour), Creator: creator.ID}, late},
	} {
		key, err := v.CreateAPIKey(ctx, canary, cardvault.AllScopes(), &test.opts)
		noError(t, err)
		if !key.ExpiresAt.Equal(test.want) {
			t.Errorf("%s: the key ends at %v, want %v", test.what, key.ExpiresAt, test.want)
		}
	}

	text, err := v.CreateAPIKey(ctx, canary, cardvault.AllScopes(), &cardvault.APIKeyOptions{NotAfter: time.Now().Add(-time.Hour)})
	noError(t, err)
	fails(t, "an expiry in the past", errorOf(v.Authenticate(ctx, text.Text.Text())), cardvault.ErrUnauthenticated)
}

// A keeper is a store that keeps a copy of every byte that is put.
type keeper struct {
	store.Store
	bytes []byte
}

func (k *keeper) Update(ctx context.Context, fn func(store.Tx) error) error {
	return k.Store.Update(ctx, func(tx store.Tx) error {
		var put []*store.Record
		err := fn(watchedTx{tx, &put})
		for _, r := range put {
			for _, part := range append(r.Lookup, r.Shown, r.Secret, r.ID[:], r.Account[:], r.Parent[:]) {
				k.bytes = append(append(k.bytes, part...), 0)
			}
		}
		return err
	})
}

// nothingInClear looks for secrets that are only known once they are made.
func nothingInClear(t *testing.T, s store.Store) {
	k := &keeper{Store: s}
	v, ctx := vaultOn(t, k, nil), t.Context()
	c := testCard(1)
	c.Name, c.SecurityCode = holder(canary), card.NewSecurityCode([]byte("737373"[:4]))
	token := must(v.Import(ctx, c, &cardvault.ImportOptions{BusinessKey: canary + "key", IdempotencyKey: idemKey}))(t)
	session := must(v.CreateSession(t.Context(), nil))(t)
	must(v.Tokenize(t.Context(), session.ID, c))(t)
	text := must(v.CreateAPIKey(t.Context(), canary, cardvault.AllScopes(), &cardvault.APIKeyOptions{IdempotencyKey: idemKey}))(t).Text.Text()
	given := cardvault.GenerateAPIKeyText(v.Mode())
	must(v.EnsureAPIKey(ctx, given, canary, cardvault.AllScopes(), nil))(t)
	rotated := must(v.RotatePaymentSecret(t.Context(), must(v.PrimaryMerchant(t.Context()))(t).ID, &cardvault.PaymentSecretOptions{IdempotencyKey: idemKey}))(t)
	secret := rotated.Secret.Text()
	noError(t, errorOf(v.RotateKeys(t.Context(), nil)))

	vaulttest.AssertNoLeak(t, []string{
		cardNumber(canaryNumber, 16, 1), canary, text, text[17:60], given.Text(), given.Text()[17:60], secret, idemKey, token.Fingerprint.String(),
		string(token.ID[:]), string(suiteKey), token.MaskedAccountNumber,
	}, k.bytes)
	if !errors.Is(errorOf(v.Get(t.Context(), uuid.New())), cardvault.ErrNotFound) || len(k.bytes) < 1000 {
		t.Errorf("only %d bytes were put: the test proves nothing", len(k.bytes))
	}
}
