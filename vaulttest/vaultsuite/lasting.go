package vaultsuite

import (
	"errors"
	"testing"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/storetest"
)

// A lastingBehaviour is what a vault does on a store that has been opened before. again opens
// what s has kept. It returns nil if that is locked, as it may be for a second process.
type lastingBehaviour struct {
	name  string
	needs string // a field of storetest.Harness
	how   func(h storetest.Harness) func(t testing.TB, s store.Store) (store.Store, error)
	check func(t *testing.T, s store.Store, again func() store.Store)
}

type opener = func(t testing.TB, s store.Store) (store.Store, error)

var lastingBehaviours = []lastingBehaviour{
	{"OutlivesClose", "Reopen", func(h storetest.Harness) opener { return h.Reopen }, outlives},
	{"DeletedStaysDeleted", "Reopen", func(h storetest.Harness) opener { return h.Reopen }, staysDeleted},
	{"OutlivesPowerCut", "Crash", func(h storetest.Harness) opener { return h.Crash }, outlives},
	{"DeletedBeforePowerCut", "Crash", func(h storetest.Harness) opener { return h.Crash }, staysDeleted},
	{"SecondProcess", "Second", func(h storetest.Harness) opener { return h.Second }, secondProcess},
}

func (b *lastingBehaviour) run(t *testing.T, h storetest.Harness, wrap func(store.Store) store.Store) {
	open := b.how(h)
	if open == nil {
		t.Logf("Not proved, because Harness.%s is nil", b.needs)
		return
	}

	s := h.Open(t)
	b.check(t, watch(t, s, wrap), func() store.Store {
		if b.needs == "Reopen" {
			noError(t, s.Close())
		}
		again, err := open(t, s)
		if b.needs == "Second" && errors.Is(err, store.ErrLocked) {
			return nil
		}
		noError(t, err)
		return watch(t, again, wrap)
	})
}

// staysDeleted: deletions, revocations and new keys hold for the next vault too.
func staysDeleted(t *testing.T, s store.Store, again func() store.Store) {
	ctx := t.Context()
	first := vaultOn(t, s, nil)
	gone, kept := importCard(t, first, testCard(1), nil), importCard(t, first, testCard(2), nil)
	key := must(first.CreateAPIKey(ctx, canary, cardvault.AllScopes(), nil))(t)
	text := cardvault.GenerateAPIKeyText(first.Mode())
	given := must(first.EnsureAPIKey(ctx, text, canary, cardvault.AllScopes(), nil))(t)
	must(first.RotateKeys(ctx, nil))(t)
	later := importCard(t, first, testCard(3), nil)
	noError(t, first.Delete(ctx, gone.ID))
	noError(t, first.DeleteAPIKey(ctx, key.ID))
	noError(t, first.DeleteAPIKey(ctx, given.ID))
	noError(t, first.Close())

	v := vaultOn(t, again(), nil)
	checkListed(t, v, kept, later)
	fails(t, "Get of a token that was deleted", errorOf(v.Get(ctx, gone.ID)), cardvault.ErrNotFound)
	fails(t, "Authenticate with a key that was deleted", errorOf(v.Authenticate(ctx, key.Text.Text())), cardvault.ErrUnauthenticated)
	ensured := errorOf(v.EnsureAPIKey(ctx, text, canary, cardvault.AllScopes(), nil))
	fails(t, "EnsureAPIKey with the text of a key that was deleted", ensured, cardvault.ErrAPIKeyRevoked)
	importCard(t, v, testCard(4), nil)
}

// secondProcess: two vaults on one store in two processes are one to their clients.
func secondProcess(t *testing.T, s store.Store, again func() store.Store) {
	ctx := t.Context()
	v := vaultOn(t, s, nil)
	token := importCard(t, v, testCard(1), nil)
	opened := again()
	if opened == nil {
		must(v.Get(ctx, token.ID))(t)
		return
	}

	other := vaultOn(t, opened, nil)
	same(t, "read by another process", must(other.Get(ctx, token.ID))(t), token)
	theirs := importCard(t, other, testCard(2), nil)
	checkListed(t, v, token, theirs)
	must(other.RotateKeys(ctx, nil))(t)
	checkListed(t, v, token, theirs)
	noError(t, other.Delete(ctx, token.ID))
	fails(t, "Get of a token that another process has deleted", errorOf(v.Get(ctx, token.ID)), cardvault.ErrNotFound)
	importCard(t, v, testCard(3), nil)
}
