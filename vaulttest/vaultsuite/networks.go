package vaultsuite

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"path"
	"sync"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/network"
	"github.com/cardvault/cardvault/networks"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

var routeBehaviours = []behaviour{
	{"NetworksApart", networksApart},
	{"NetworkRemoved", networkRemoved},
	{"SchemeMoved", schemeMoved},
	{"NetworksExchanged", networksExchanged},
	{"NetworksReplaced", networksReplaced},
}

// The names that two bureaus give to their network tokens are the same: only the name of the
// network tells them apart.
func bureaus() (one, other *bureau) { return &bureau{name: "one"}, &bureau{name: "other"} }

// mastercard returns the n-th card of a scheme other than testCard's.
func mastercard(n int) cardvault.Card { return cardOf(cardNumber("55555500000", 16, n)) }

// routing returns a sandbox on s with a network for each scheme, nil for none.
func routing(t testing.TB, s store.Store, visas, mastercards *bureau, former ...network.Provider) *cardvault.Vault {
	t.Helper()
	of := map[card.Scheme]network.Provider{card.VISA: visas, card.Mastercard: mastercards}
	maps.DeleteFunc(of, func(_ card.Scheme, n network.Provider) bool { return n == (*bureau)(nil) })
	return vaultOn(t, s, &cardvault.Options{
		Mode: cardvault.Sandbox, BaseURL: "https://vault.example", Network: networks.Route(of, former...),
	})
}

// artOf returns the image that a token shows.
func artOf(t testing.TB, v *cardvault.Vault, token uuid.UUID) []byte {
	t.Helper()
	id, err := uuid.Parse(path.Base(must(v.Get(t.Context(), token))(t).CardArtURL))
	noError(t, err)
	return must(v.CardArt(t.Context(), id))(t).Image
}

// eventually drains v until done. Work that failed is tried again within a second.
func eventually(t testing.TB, v *cardvault.Vault, done func() bool) {
	t.Helper()
	for end := time.Now().Add(5 * time.Minute); !done(); {
		if time.Now().After(end) {
			t.Fatal("the work of the vault does not end")
		}
		drain(t, v)
		<-time.After(20 * time.Millisecond)
	}
}

// networksApart: two networks whose network tokens and art have the same ids. A notice of one
// never touches tokens of the other.
func networksApart(t *testing.T, s store.Store) {
	one, other := bureaus()
	png := func(text string) []byte { return append([]byte("\x89PNG\r\n\x1a\n"), text...) }
	one.art, one.images = canary, map[string][]byte{canary: png(canary + "1")}
	other.art, other.images = canary, map[string][]byte{canary: png(canary + "2")}
	v, ctx := routing(t, s, one, other), t.Context()
	visa, master := importCard(t, v, testCard(1), nil).ID, importCard(t, v, mastercard(1), nil).ID
	drain(t, v)
	checkState(t, v, visa, network.Active, "")
	checkState(t, v, master, network.Active, "")
	one.remains(t, 1)
	other.remains(t, 1)
	if one.left()[0] != other.left()[0] {
		t.Fatal("the networks name their network tokens differently")
	}
	if bytes.Equal(artOf(t, v, visa), artOf(t, v, master)) {
		t.Error("a token shows the art of another network")
	}

	notice := suspended(1, time.Now(), one.left()[0])
	refuses(t, "a notice of no network", v.Notify(ctx, notice), "Token invalid_enum")
	notice.Token.Network = "third"
	refuses(t, "a notice of an unknown network", v.Notify(ctx, notice), "Token invalid_enum")
	notice.Token.Network = "one"
	noError(t, v.Notify(ctx, notice))
	checkState(t, v, visa, network.Inactive, "suspended_by_issuer")
	checkState(t, v, master, network.Active, "")
	notice.Token.Network = "other" // the same id of the notice
	noError(t, v.Notify(ctx, notice))
	checkState(t, v, master, network.Inactive, "suspended_by_issuer")

	second := importCard(t, v, mastercard(2), nil).ID
	drain(t, v)
	notice = suspended(2, time.Now(), other.left()[1])
	notice.Token.Network = "one" // which has no such network token
	noError(t, v.Notify(ctx, notice))
	checkState(t, v, second, network.Active, "")
	notice.Token.ID = canary + "unknown"
	fails(t, "a notice that neither network can mean", v.Notify(ctx, notice), cardvault.ErrNotFound)

	noError(t, v.Delete(ctx, visa))
	drain(t, v)
	one.remains(t, 0)
	other.remains(t, 2)
}

// networkRemoved: the tokens of a network that is left out wait for it, and no other network
// is asked in its place.
func networkRemoved(t *testing.T, s store.Store) {
	one, other := bureaus()
	v, ctx := routing(t, s, one, other), t.Context()
	visa, master, gone := importCard(t, v, testCard(1), nil).ID, importCard(t, v, mastercard(1), nil).ID, importCard(t, v, mastercard(2), nil).ID
	drain(t, v)
	other.remains(t, 2)

	without := routing(t, s, one, nil)
	checkState(t, without, master, network.Active, "")
	checkState(t, without, importCard(t, without, mastercard(3), nil).ID, network.NotAvailable, "scheme_not_enabled")
	if p := must(without.RequestPaymentData(ctx, master, examplePayment))(t); p.Success || p.Failures[0].Code != network.CodeNoNetwork {
		t.Errorf("a payment without the network: %+v", p)
	}
	notice := suspended(1, time.Now(), must(other.Lookup(ctx, network.Ref{IdempotencyKey: master.String() + ":1"}))(t).ID)
	notice.Token.Network = "other"
	refuses(t, "a notice of the network", without.Notify(ctx, notice), "Token invalid_enum")
	noError(t, without.Delete(ctx, gone))
	drain(t, without)
	one.remains(t, 1)
	other.remains(t, 2)

	eventually(t, v, func() bool { return len(other.left()) == 1 })
	noError(t, v.Notify(ctx, notice))
	checkState(t, v, master, network.Inactive, "suspended_by_issuer")
	checkState(t, v, visa, network.Active, "")
}

// schemeMoved: a provisioning that may have reached a network is repeated there. One that has
// not begun goes to the network to which the scheme has moved.
func schemeMoved(t *testing.T, s store.Store) {
	one, other := bureaus()
	v, ctx := routing(t, s, one, nil), t.Context()
	before := importCard(t, v, testCard(1), nil).ID
	drain(t, v)
	one.lost.Store(true)
	unsure := importCard(t, v, testCard(2), nil).ID
	drain(t, v)
	checkState(t, v, unsure, network.Pending, "")
	untried := importCard(t, v, testCard(3), nil).ID
	one.lost.Store(false)

	moved := routing(t, s, other, nil, one)
	eventually(t, moved, func() bool {
		return must(moved.Get(ctx, unsure))(t).NetworkTokenStatus != network.Pending && must(moved.Get(ctx, untried))(t).NetworkTokenStatus != network.Pending
	})
	for _, id := range []uuid.UUID{before, unsure, untried} {
		checkState(t, moved, id, network.Active, "")
	}
	one.asked(t, before.String()+":1", unsure.String()+":1")
	other.asked(t, untried.String()+":1")
	one.remains(t, 2)
	other.remains(t, 1)

	for _, id := range []uuid.UUID{before, unsure, untried} {
		noError(t, moved.Delete(ctx, id))
	}
	drain(t, moved)
	one.remains(t, 0)
	other.remains(t, 0)
}

// networksExchanged: two vaults on one store have the networks the other way round, while
// cards come and go and notices arrive. No idempotency key reaches both networks, and in the
// end each network has the network tokens that it should have.
func networksExchanged(t *testing.T, s store.Store) {
	one, other := bureaus()
	vaults := []*cardvault.Vault{routing(t, s, one, other), routing(t, s, other, one)}
	ctx := t.Context()
	var mu sync.Mutex
	kept := map[uuid.UUID]bool{}

	parallel(t, 8, func(worker int) error {
		r := rand.New(rand.NewPCG(23, uint64(worker)))
		for i := range 12 {
			v, of := vaults[r.IntN(2)], testCard
			if r.IntN(2) == 0 {
				of = mastercard
			}
			token, err := v.Import(ctx, of(worker*20+i), nil)
			if err == nil && r.IntN(2) == 0 {
				err = vaults[r.IntN(2)].Drain(ctx)
			}
			if err != nil {
				return err
			}
			for _, n := range []*bureau{one, other} {
				for _, id := range n.left() {
					if r.IntN(20) > 0 {
						continue
					}
					notice := suspended(r.Int(), time.Now(), id)
					notice.Token.Network = n.name
					if err := v.Notify(ctx, notice); err != nil && !errors.Is(err, cardvault.ErrNotFound) {
						return err
					}
				}
			}
			if r.IntN(3) == 0 {
				if err := v.Delete(ctx, token.ID); err != nil {
					return err
				}
				continue
			}
			mu.Lock()
			kept[token.ID] = true
			mu.Unlock()
		}
		return nil
	})

	eventually(t, vaults[0], func() bool {
		for id := range kept {
			if must(vaults[0].Get(ctx, id))(t).NetworkTokenStatus == network.Pending {
				return false
			}
		}
		return len(one.left())+len(other.left()) == len(kept)
	})
	for key := range one.keys() {
		if other.keys()[key] {
			t.Errorf("both networks were asked under %s", key)
		}
	}
	for id := range kept {
		if got := must(vaults[1].Get(ctx, id))(t); got.NetworkTokenStatus != network.Active && got.NetworkTokenStatus != network.Inactive {
			t.Errorf("network token is %v", got.NetworkTokenStatus)
		}
		noError(t, vaults[rand.IntN(2)].Delete(ctx, id))
	}
	eventually(t, vaults[1], func() bool { return len(one.left())+len(other.left()) == 0 })
}

// networksReplaced: a card that replaces one of another network has its network token there. A
// notice of the former network that is under way does not touch it, though the network tokens
// have the same id.
func networksReplaced(t *testing.T, s store.Store) {
	one, other := bureaus()
	m := &meddler{Store: s}
	v, ctx := routing(t, m, one, other), t.Context()
	token := importCard(t, v, testCard(1), nil).ID
	drain(t, v)
	one.remains(t, 1)
	id := one.left()[0]

	notice := suspended(1, time.Now().Add(time.Minute), id) // later than the new network token
	notice.Token.Network = "one"
	m.meddle = func() {
		must(v.Replace(ctx, token, mastercard(1), nil))(t)
		drain(t, v)
	}
	noError(t, v.Notify(ctx, notice))
	one.remains(t, 0)
	other.remains(t, 1)
	if other.left()[0] != id {
		t.Fatal("the networks name their network tokens differently")
	}
	checkState(t, v, token, network.Active, "")

	must(v.Replace(ctx, token, testCard(2), nil))(t)
	drain(t, v)
	checkState(t, v, token, network.Active, "")
	one.remains(t, 1)
	other.remains(t, 0)
	noError(t, v.Delete(ctx, token))
	drain(t, v)
	one.remains(t, 0)
}

// keys returns the idempotency keys under which network tokens were asked for.
func (n *bureau) keys() map[string]bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	keys := map[string]bool{}
	for key := range n.ids {
		keys[key] = true
	}
	return keys
}

// asked checks under which idempotency keys network tokens were asked for.
func (n *bureau) asked(t testing.TB, want ...string) {
	t.Helper()
	keys := n.keys()
	for _, key := range want {
		if !keys[key] {
			t.Errorf("network %s was not asked under %s", n.name, key)
		}
	}
	if len(keys) != len(want) {
		t.Errorf("network %s was asked under %v, want %v", n.name, fmt.Sprint(keys), want)
	}
}
