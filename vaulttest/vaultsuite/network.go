package vaultsuite

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/network"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/vaulttest"
	"github.com/google/uuid"
)

var networkBehaviours = []behaviour{
	{"NetworkToken", networkToken},
	{"NetworkTokenNotices", networkTokenNotices},
	{"NetworkTokenShared", networkTokenShared},
	{"NetworkTokenDeletedMeanwhile", networkTokenDeletedMeanwhile},
	{"NetworkTokenRace", networkTokenRace},
	{"NetworkTokenActivation", networkTokenActivation},
	{"NetworkTokenDamaged", networkTokenDamaged},
	{"PaymentAccountReference", accountReference},
	{"CardArt", cardArt},
}

// A bureau is a network that issues active tokens, one for each idempotency key
// or, if shared, for each card. Its zero value is ready. All that it says is a
// canary.
type bureau struct {
	name   string      // "bureau" if ""
	lost   atomic.Bool // the answer to Provision is lost
	shared bool
	art    string              // of every new network token
	images map[string][]byte   // by art
	par    string              // of every card
	during func(r network.Ref) // runs while Provision is under way

	mu    sync.Mutex
	ids   map[string]string // by idempotency key or card
	lives map[string]bool   // by id: whether it is not deleted
}

func (n *bureau) Info() network.Info {
	return network.Info{Name: cmp.Or(n.name, "bureau"), ArtFetcher: true}
}

func (*bureau) Eligible(*network.EligibilityRequest) error { return nil }

func (n *bureau) Provision(_ context.Context, r *network.ProvisionRequest) (*network.Token, error) {
	id := n.issue(r)
	if n.during != nil {
		n.during(network.Ref{ID: id, IdempotencyKey: r.IdempotencyKey})
	}
	if n.lost.Load() {
		return nil, errors.New("the answer is lost")
	}
	return n.token(id), nil
}

func (n *bureau) issue(r *network.ProvisionRequest) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.ids == nil {
		n.ids, n.lives = map[string]string{}, map[string]bool{}
	}
	key := r.IdempotencyKey
	if n.ids[key] == "" && n.shared {
		r.PAN.Expose(func(d []byte) { key = string(d) })
	}
	if id := n.ids[key]; !n.lives[id] && (id == "" || key != r.IdempotencyKey) {
		n.ids[key] = fmt.Sprint(canary, "token ", len(n.lives)+1)
		n.lives[n.ids[key]] = true
	}
	n.ids[r.IdempotencyKey] = n.ids[key]
	return n.ids[key]
}

func (n *bureau) token(id string) *network.Token {
	n.mu.Lock()
	defer n.mu.Unlock()
	t := &network.Token{ID: id, State: network.Active, Art: n.art, PaymentAccountReference: n.par}
	if !n.lives[id] {
		t.State = network.Deleted
	}
	return t
}

func (n *bureau) Lookup(_ context.Context, ref network.Ref) (*network.Token, error) {
	n.mu.Lock()
	id := ref.ID
	if id == "" {
		id = n.ids[ref.IdempotencyKey]
	}
	_, known := n.lives[id]
	n.mu.Unlock()
	if !known {
		return nil, network.ErrUnknown
	}
	return n.token(id), nil
}

func (*bureau) Cryptogram(context.Context, *network.CryptogramRequest) (*network.Cryptogram, error) {
	return nil, errors.New("not supported by this network")
}

func (n *bureau) Delete(_ context.Context, ref network.Ref) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.lives[ref.ID] = false
	return nil
}

func (n *bureau) CardArt(_ context.Context, r *network.ArtRequest) (*network.Art, error) {
	return &network.Art{MediaType: "image/png", Image: n.images[r.ID]}, nil
}

// left returns the ids of the network tokens that are not deleted.
func (n *bureau) left() (ids []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for id, lives := range n.lives {
		if lives {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// remains checks how many network tokens are left at the network.
func (n *bureau) remains(t testing.TB, want int) {
	t.Helper()
	if left := n.left(); len(left) != want {
		t.Errorf("the network holds %q, want %d", left, want)
	}
}

// provisioning returns a sandbox on s with a network.
func provisioning(t testing.TB, s store.Store, n *bureau) *cardvault.Vault {
	t.Helper()
	return vaultOn(t, s, &cardvault.Options{Mode: cardvault.Sandbox, Network: n, BaseURL: "https://vault.example"})
}

// checkState checks the network token of a token, as it is read and as it is listed.
func checkState(t testing.TB, v *cardvault.Vault, id uuid.UUID, want network.Status, code network.Code) {
	t.Helper()
	token := must(v.Get(t.Context(), id))(t)
	var got network.Code
	if r := token.NetworkTokenStatusReason; r != nil {
		got = r.Code
	}
	if token.NetworkTokenStatus != want || got != code {
		t.Errorf("network token is %v for %q, want %v for %q", token.NetworkTokenStatus, got, want, code)
	}
	for status := range network.Failed + 1 {
		p := must(v.List(t.Context(), &cardvault.TokenListOptions{Limit: cardvault.MaxLimit, NetworkTokenStatus: []network.Status{status}}))(t)
		if listed := slices.Contains(idsOf(p.Items), id); listed != (status == want) {
			t.Errorf("the token is %v, and among those that are %v: %v", want, status, listed)
		}
	}
}

func drain(t testing.TB, v *cardvault.Vault) {
	t.Helper()
	noError(t, v.Drain(t.Context()))
}

func suspended(n int, at time.Time, id string) *network.Notice {
	return &network.Notice{
		ID: fmt.Sprint(canary, "notice ", n), Kind: network.NoticeSuspended, By: network.OwnerIssuer, OccurredAt: at,
		Token: network.Ref{ID: id}, SchemeCode: canary,
	}
}

// networkToken leads one through its life.
func networkToken(t *testing.T, s store.Store) {
	n := &bureau{}
	v, ctx := provisioning(t, s, n), t.Context()
	id := importCard(t, v, testCard(1), nil).ID
	checkState(t, v, id, network.Pending, "")
	drain(t, v)
	checkState(t, v, id, network.Active, "")
	must(v.Provision(ctx, id, nil))(t)
	checkState(t, v, id, network.Active, "")
	noError(t, v.Notify(ctx, suspended(1, time.Now(), n.left()[0])))
	checkState(t, provisioning(t, s, n), id, network.Inactive, "suspended_by_issuer")

	fails(t, "Provision", errorOf(v.Provision(ctx, id, nil)), cardvault.ErrNetworkTokenState)
	resumed := suspended(2, time.Now(), n.left()[0])
	resumed.Kind = network.NoticeResumed
	noError(t, v.Notify(ctx, resumed))
	checkState(t, v, id, network.Active, "")
	dead := suspended(3, time.Now(), n.left()[0])
	dead.Kind = network.NoticeInvalidated
	noError(t, v.Notify(ctx, dead))
	checkState(t, v, id, network.Deleted, "account_closed")
	if token := must(v.Get(ctx, id))(t); token.Status != cardvault.StatusInvalid {
		t.Errorf("status %v", token.Status)
	}

	noError(t, v.Delete(ctx, id))
	drain(t, v)
	n.remains(t, 0)
	checkListed(t, v)
}

// networkTokenNotices: each counts once, in the order in which it came to pass.
func networkTokenNotices(t *testing.T, s store.Store) {
	n := &bureau{}
	v, ctx := provisioning(t, s, n), t.Context()
	fails(t, "a notice for an unknown network token", v.Notify(ctx, suspended(0, time.Now(), canary)), cardvault.ErrNotFound)
	id := importCard(t, v, testCard(1), nil).ID
	drain(t, v)
	at, handle := time.Now(), n.left()[0]
	notices := []*network.Notice{suspended(1, at, handle), suspended(2, at.Add(time.Second), handle), suspended(3, at.Add(2*time.Second), handle)}
	notices[1].Kind = network.NoticeResumed
	notices[2].By = network.OwnerCardholder
	for _, i := range []int{1, 0, 2, 2, 0, 1} {
		noError(t, v.Notify(ctx, notices[i]))
	}

	checkState(t, v, id, network.Inactive, "suspended_by_cardholder")
	notices[0].OccurredAt = at.Add(time.Minute) // known by its id
	noError(t, provisioning(t, s, n).Notify(ctx, notices[0]))
	checkState(t, v, id, network.Inactive, "suspended_by_cardholder")

	// The same ones at once, from two vaults.
	vaults := []*cardvault.Vault{v, provisioning(t, s, n)}
	parallel(t, 8, func(i int) error {
		notice := suspended(10+i/2, at.Add(time.Duration(10+i/2)*time.Second), handle)
		notice.By = network.OwnerCardholder
		if i/2%2 == 1 {
			notice.Kind = network.NoticeResumed
		}
		return vaults[i%2].Notify(ctx, notice)
	})

	checkState(t, v, id, network.Active, "")
}

// networkTokenShared: it goes with its last holder, and a notice reaches all.
func networkTokenShared(t *testing.T, s store.Store) {
	n := &bureau{shared: true}
	v, ctx := provisioning(t, s, n), t.Context()
	other := v.In(must(v.CreateAccount(ctx, canary, nil))(t).ID)
	vaults := []*cardvault.Vault{v, v, other}
	var holders []uuid.UUID
	for _, v := range vaults {
		holders = append(holders, importCard(t, v, testCard(1), nil).ID)
	}

	drain(t, v)
	n.remains(t, 1)
	noError(t, v.Notify(ctx, suspended(1, time.Now(), n.left()[0])))
	for i, v := range vaults {
		checkState(t, v, holders[i], network.Inactive, "suspended_by_issuer")
	}

	for i, v := range vaults {
		n.remains(t, 1)
		noError(t, v.Delete(ctx, holders[i]))
		drain(t, v)
	}

	n.remains(t, 0)
	fails(t, "a notice later", v.Notify(ctx, suspended(2, time.Now(), canary+"token 2")), cardvault.ErrNotFound)
}

// networkTokenDeletedMeanwhile: a network token that arrives for a deleted token is given
// back.
func networkTokenDeletedMeanwhile(t *testing.T, s store.Store) {
	n := &bureau{}
	v, ctx := provisioning(t, s, n), t.Context()
	gone := importCard(t, v, testCard(1), nil)
	stays := importCard(t, v, testCard(2), nil)
	n.during = func(ref network.Ref) {
		if ref.IdempotencyKey == gone.ID.String()+":1" {
			if err := v.Delete(ctx, gone.ID); err != nil {
				t.Errorf("Delete: %v", err)
			}
		}
	}
	drain(t, v)
	n.remains(t, 1)
	checkState(t, v, stays.ID, network.Active, "")
	fails(t, "Get", errorOf(v.Get(ctx, gone.ID)), cardvault.ErrNotFound)
}

// networkTokenRace imports, deletes, works and notifies from two vaults at once.
// In the end there are as many network tokens as tokens.
func networkTokenRace(t *testing.T, s store.Store) {
	n := &bureau{}
	vaults := []*cardvault.Vault{provisioning(t, s, n), provisioning(t, s, n)}
	ctx := t.Context()
	var mu sync.Mutex
	var kept []uuid.UUID

	parallel(t, 8, func(worker int) error {
		r := rand.New(rand.NewPCG(9, uint64(worker)))
		v := vaults[worker%2]
		for i := range 15 {
			token, err := v.Import(ctx, testCard(worker*20+i), nil)
			if err != nil {
				return err
			}
			if r.IntN(2) == 0 {
				if err := v.Drain(ctx); err != nil {
					return err
				}
			}

			for _, id := range n.left() {
				if r.IntN(20) > 0 {
					continue
				}
				err := v.Notify(ctx, suspended(r.Int(), time.Now(), id))
				if err != nil && !errors.Is(err, cardvault.ErrNotFound) {
					return err
				}
			}

			if r.IntN(3) == 0 {
				if err := v.Delete(ctx, token.ID); err != nil {
					return err
				}
				continue
			}

			mu.Lock()
			kept = append(kept, token.ID)
			mu.Unlock()
		}

		return nil
	})

	for _, v := range vaults {
		drain(t, v)
	}

	n.remains(t, len(kept))
	for _, id := range kept {
		if token := must(vaults[0].Get(ctx, id))(t); token.NetworkTokenStatus != network.Active && token.NetworkTokenStatus != network.Inactive {
			t.Errorf("network token is %v", token.NetworkTokenStatus)
		}
	}

	parallel(t, len(kept), func(i int) error { return vaults[i%2].Delete(ctx, kept[i]) })
	for _, v := range vaults {
		drain(t, v)
	}
	n.remains(t, 0)
}

// networkTokenActivation queues the tokens of an account, and of no other.
func networkTokenActivation(t *testing.T, s store.Store) {
	n := &bureau{}
	v, ctx := provisioning(t, s, n), t.Context()
	account := must(v.CreateAccount(ctx, canary, &cardvault.AccountOptions{ImportApproved: new(false), NetworkTokensActive: new(false)}))(t)
	late := v.In(account.ID)
	const many = 300
	tokens := make([]uuid.UUID, many)

	parallel(t, 16, func(worker int) error {
		for i := worker; i < many; i += 16 {
			token, err := late.Import(ctx, testCard(i), nil)
			if err != nil {
				return err
			}
			tokens[i] = token.ID
		}
		return nil
	})

	idle := v.In(must(v.CreateAccount(ctx, canary, &cardvault.AccountOptions{ImportApproved: new(false), NetworkTokensActive: new(false)}))(t).ID)
	other := importCard(t, idle, testCard(1), nil)
	checkState(t, late, tokens[0], network.NotAvailable, "network_tokens_not_activated")
	drain(t, v)
	n.remains(t, 0)
	must(late.UpdateAccount(ctx, cardvault.AccountUpdate{ImportApproved: new(false), NetworkTokensActive: new(true)}))(t)
	drain(t, v)
	n.remains(t, many)
	p := must(late.List(ctx, &cardvault.TokenListOptions{NetworkTokenStatus: []network.Status{network.Active}}))(t)
	if p.TotalItems != many {
		t.Errorf("%d tokens are active", p.TotalItems)
	}

	checkState(t, idle, other.ID, network.NotAvailable, "network_tokens_not_activated")
}

// networkTokenDamaged does to the record of a network token what damagedToken
// does to tokens.
func networkTokenDamaged(t *testing.T, s store.Store) {
	n := &bureau{}
	spy := &watched{Store: s}
	v, ctx := provisioning(t, spy, n), t.Context()
	row := func(i int) (uuid.UUID, *store.Record) {
		id := importCard(t, v, testCard(i), nil).ID
		return id, spy.last()[len(spy.last())-1]
	}

	id, record := row(1)
	_, other := row(2)
	for what, change := range shownDamage(record, other) {
		spoiled := record.Clone()
		change(spoiled)
		overwrite(t, s, record, spoiled)
		fails(t, what+": Provision", errorOf(v.Provision(ctx, id, nil)), cardvault.ErrDamaged)
		overwrite(t, s, spoiled, record)
	}

	spoiled := record.Clone()
	spoiled.Shown[9] ^= 1
	overwrite(t, s, record, spoiled)
	fails(t, "Drain", v.Drain(ctx), cardvault.ErrDamaged)
	n.remains(t, 1) // the other one
	noError(t, v.Delete(ctx, id))
	fails(t, "Get", errorOf(v.Get(ctx, id)), cardvault.ErrNotFound)
	drain(t, v)
}

// accountReference: a token keeps the reference of its number, and no text that cannot be one. No
// event has it.
func accountReference(t *testing.T, s store.Store) {
	const reference = "V0010013021293752946528134567"
	n := &bureau{par: "v" + reference[1:]}
	var sink vaulttest.Recorder
	v, ctx := vaultOn(t, s, &cardvault.Options{Mode: cardvault.Sandbox, Network: n, Events: &sink}), t.Context()
	has := func(v *cardvault.Vault, id uuid.UUID, want string) {
		t.Helper()
		list := must(v.List(ctx, nil))(t)
		for _, got := range append(list.Items, must(v.Get(ctx, id))(t)) {
			if got.ID == id && got.PaymentAccountReference != want {
				t.Errorf("payment account reference %q, want %q", got.PaymentAccountReference, want)
			}
		}
	}

	for _, garbage := range []string{"v" + reference[1:], reference + "0", reference[1:], canary, cardNumber(canaryNumber, 16, 1) + "ABCDEFGHIJKLM"} {
		n.par = garbage
		id := importCard(t, v, testCard(1), nil).ID
		drain(t, v)
		checkState(t, v, id, network.Active, "")
		has(v, id, "")
	}

	n.par = reference[:9] + "X" + reference[10:18] + "Y" + reference[19:]
	id := importCard(t, v, testCard(2), nil).ID
	drain(t, v)
	has(v, id, n.par)
	has(provisioning(t, s, n), id, n.par)
	dead := suspended(1, time.Now(), n.left()[len(n.left())-1])
	dead.Kind = network.NoticeDeleted
	noError(t, v.Notify(ctx, dead))
	checkState(t, v, id, network.Deleted, "deleted_by_issuer")
	has(v, id, n.par)

	drain(t, v)
	told := 0
	for _, e := range sink.Events() {
		if e.TokenID == id && e.Token != nil && e.Token.NetworkTokenStatus != network.Pending {
			told++
		}
		if e.Token != nil && e.Token.PaymentAccountReference != "" {
			t.Error("an event has the payment account reference")
		}
	}
	if told == 0 {
		t.Error("no event is of the token when it had the reference")
	}
}

// cardArt is kept once, in parts, until no token shows it.
func cardArt(t *testing.T, s store.Store) {
	image := slices.Concat([]byte("\x89PNG\r\n\x1a\n"), bytes.Repeat([]byte(canary), network.MaxCardArt/len(canary)-1))
	n := &bureau{art: canary, images: map[string][]byte{canary: image}}
	v, ctx := provisioning(t, s, n), t.Context()
	tokens := []uuid.UUID{importCard(t, v, testCard(1), nil).ID, importCard(t, v, testCard(2), nil).ID, importCard(t, v, testCard(3), nil).ID}
	drain(t, v)
	url := must(v.Get(ctx, tokens[0]))(t).CardArtURL
	id, err := uuid.Parse(path.Base(url))
	noError(t, err)

	for _, token := range tokens {
		if got := must(v.Get(ctx, token))(t).CardArtURL; got != url {
			t.Errorf("card art at %q and %q", got, url)
		}
		if got := must(v.CardArt(ctx, id))(t); got.MediaType != "image/png" || !bytes.Equal(got.Image, image) {
			t.Errorf("another image, of %d bytes and type %q", len(got.Image), got.MediaType)
		}
		noError(t, v.Delete(ctx, token))
	}

	fails(t, "CardArt after the last token", errorOf(v.CardArt(ctx, id)), cardvault.ErrNotFound)
}
