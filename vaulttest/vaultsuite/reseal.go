package vaultsuite

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/idv"
	"github.com/cardvault/cardvault/network"
	"github.com/cardvault/cardvault/receive"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/updater"
	"github.com/google/uuid"
)

var resealBehaviours = []behaviour{
	{"Reseal", resealed},
	{"ResealPast", resealedPast},
	{"ResealRace", resealRace},
}

// A gallery is a till with card art.
type gallery struct{ *till }

func (n gallery) Info() network.Info { return network.Info{Name: "gallery", ArtFetcher: true} }

func (n gallery) Provision(ctx context.Context, r *network.ProvisionRequest) (*network.Token, error) {
	got, err := n.till.Provision(ctx, r)
	got.Art = canary
	return got, err
}

func (gallery) CardArt(context.Context, *network.ArtRequest) (*network.Art, error) {
	return &network.Art{MediaType: "image/png", Image: []byte("\x89PNG\r\n\x1a\n" + canary)}, nil
}

// Kinds of records that a test names.
const (
	kindMerchant     = 3
	kindToken        = 5
	kindNetworkToken = 9
	kindRelease      = 10
	kindPaymentData  = 16
	kindReseal       = 38
	kindClosing      = 40
)

// fullKinds are the kinds that fillKinds makes records of.
var fullKinds = []store.Kind{2, 3, 4, 5, 6, 7, 8, 9, kindRelease, 11, 13, 14, 15, 16, 18, 19, 20, 21, 22, 23, 26, 27, 28, 29, 30, 31, 32, 33}

// fillKinds makes records of every kind, except for jobs that are done at once.
func fillKinds(t *testing.T, s store.Store) {
	ctx, updates := t.Context(), newOffice()
	v := vaultOn(t, s, &cardvault.Options{
		Mode: cardvault.Sandbox, Network: gallery{new(till)}, Webhooks: new(mailbox), Events: new(pickySink), Updater: updates, Purposes: []string{purpose},
	})
	other := v.In(must(v.CreateAccount(ctx, canary, nil))(t).ID)
	importCard(t, other, testCard(1), nil)
	must(other.EnsureAPIKey(ctx, cardvault.GenerateAPIKeyText(v.Mode()), canary, cardvault.AllScopes(), nil))(t)
	newHook(t, v, receiver)
	secret := newSecret(t, v)
	noError(t, v.ForwardCredentials().Set(ctx, "psp", "key", []byte(canary)))

	token := must(v.Import(ctx, testCard(2), importUnderKey))(t)
	fails(t, "another request", errorOf(v.Import(ctx, testCard(3), importUnderKey)), cardvault.ErrIdempotencyKeyReused)
	drain(t, v)
	pays(t, pay(t, v, token), secret)
	noError(t, v.Notify(ctx, &network.Notice{
		ID: canary, Kind: network.NoticeActivated, OccurredAt: token.CreatedAt, Token: network.Ref{ID: canary + token.ID.String() + ":1"},
	}))
	for _, key := range []string{canary + "a", canary + "b"} {
		rename(t, v, token, key)
		drain(t, v)
	}
	gone := usable(t, v, 4)

	stop := runs(t, v)
	updates.tells(t, "an opt-out", updates.outcome(t, 2, updater.OptedOut, 0, renewedTo))
	stop()
	deaf := vaultOn(t, s, nil) // it has no network to release the network token at
	noError(t, deaf.Delete(ctx, gone.ID))

	identifies := vaultOn(t, s, &cardvault.Options{Mode: cardvault.Sandbox, IDV: judge{idv.Passed}})
	id := must(identifies.CreateSession(ctx, nil))(t)
	payload := encrypted(t, must(identifies.Session(ctx, id.ID))(t), claimsOf(5, "737"))
	must(identifies.CompleteSession(ctx, id.ID, payload))(t)
	ephemeral(t, deaf, 6, 1e12)
}

// rowsOf returns all records of a store, except the keyring and counts of seals.
func rowsOf(t testing.TB, s store.Store) map[store.Key]*store.Record {
	t.Helper()
	all := map[store.Key]*store.Record{}

	noError(t, s.View(t.Context(), func(tx store.ReadTx) error {
		clear(all)
		for kind := store.Kind(2); kind != 0; kind++ {
			for from, more := uuid.Nil, true; more; {
				found, err := tx.Scan(kind, from, 100)
				if err != nil {
					return err
				}
				for _, r := range found {
					from = r.ID
					all[store.Key{Kind: kind, ID: r.ID}] = r
				}
				more = len(found) == 100
			}
		}
		return nil
	}))
	return all
}

// termsOf counts the records with a part under each term. Format and term are the first
// bytes of a part.
func termsOf(t testing.TB, s store.Store) map[uint32]int {
	t.Helper()
	terms := map[uint32]int{}
	for key, r := range rowsOf(t, s) {
		for _, part := range [][]byte{r.Shown, r.Secret} {
			switch {
			case len(part) == 0:
			case len(part) < 34 || part[0] != 1:
				t.Errorf("a part of kind %d has no term", key.Kind)
			default:
				terms[binary.BigEndian.Uint32(part[2:])]++
			}
		}
	}
	return terms
}

// oneTerm checks that all parts are under one term.
func oneTerm(t testing.TB, s store.Store, want uint32) {
	t.Helper()
	if terms := termsOf(t, s); len(terms) != 1 || terms[want] == 0 {
		t.Errorf("parts by term: %v, want all under %d", terms, want)
	}
}

// everythingOf returns the data that users of a vault read.
func everythingOf(t testing.TB, v *cardvault.Vault) (all []any) {
	ctx := t.Context()
	note := func(values ...any) { all = append(all, values...) }

	for _, a := range must(v.ListAccounts(ctx, nil))(t).Items {
		v := v.In(a.ID)
		page := must(v.List(ctx, nil))(t)
		note(*a, page.TotalItems)
		for _, token := range page.Items {
			note(flat(token), must(v.ListPaymentData(ctx, token.ID, nil))(t).Items)
			if token.CardArtURL != "" {
				note(token.CardArtURL)
			}
			noError(t, v.Use(ctx, token.ID, purpose, func(_ context.Context, c *cardvault.UsedCard) error {
				note(spelled(c))
				return nil
			}))
		}

		for _, m := range must(v.ListMerchants(ctx, nil))(t).Items {
			note(m.ID, m.Name, len(m.Secrets))
			for _, secret := range m.Secrets {
				note(secret.KeyID, secret.ActivateAt)
			}
		}
		for _, key := range must(v.ListAPIKeys(ctx, nil))(t).Items {
			note(key.ID, key.Label, key.Scopes, key.CreatedAt)
		}
		for _, w := range must(v.ListWebhooks(ctx, nil))(t).Items {
			note(w.ID, w.URL, w.Events, must(v.ListDeliveries(ctx, w.ID, nil))(t).Items)
		}
	}
	return append(all, string(must(v.ForwardCredentials().Get(ctx, "psp", "key"))(t)))
}

// resealed: after a rotation every record moves to the present term, and users read the same.
func resealed(t *testing.T, s store.Store) {
	fillKinds(t, s)
	ctx := t.Context()
	v := vaultOn(t, s, &cardvault.Options{Mode: cardvault.Sandbox, Purposes: []string{purpose}})
	before, was := rowsOf(t, s), everythingOf(t, v)
	for _, kind := range fullKinds {
		if !slices.ContainsFunc(slices.Collect(keysOf(before)), func(k store.Key) bool { return k.Kind == kind }) {
			t.Errorf("there is no record of kind %d", kind)
		}
	}
	oneTerm(t, s, 1)

	reports(t, v, before)
	must(v.RotateKeys(ctx, nil))(t)
	reports(t, v, before, nil)
	drain(t, v)
	oneTerm(t, s, 2)
	after := rowsOf(t, s)
	reports(t, v, nil, after)
	delete(after, store.Key{Kind: kindReseal, ID: uuid.UUID{15: 1}})
	if len(after) != len(before) {
		t.Errorf("%d records, were %d", len(after), len(before))
	}
	for key, r := range before {
		is := after[key]
		if is == nil {
			t.Errorf("a record of kind %d is gone", key.Kind)
			continue
		}
		next := uint64(1)
		if key.Kind == kindRelease || len(r.Shown)+len(r.Secret) == 0 {
			next = 0
		}
		if is.Account != r.Account || is.Parent != r.Parent || is.Class != r.Class || !is.Due.Equal(r.Due) || !reflect.DeepEqual(is.Lookup, r.Lookup) ||
			len(is.Shown) != len(r.Shown) || len(is.Secret) != len(r.Secret) || is.Version != r.Version+next {
			t.Errorf("a record of kind %d has version %d and %d and %d bytes, had %d and %d and %d, or other columns",
				key.Kind, is.Version, len(is.Shown), len(is.Secret), r.Version, len(r.Shown), len(r.Secret))
		}
		if len(r.Shown) > 0 && bytes.Equal(is.Shown, r.Shown) {
			t.Errorf("a record of kind %d is not sealed anew", key.Kind)
		}
	}

	for _, v := range []*cardvault.Vault{v, vaultOn(t, s, &cardvault.Options{Mode: cardvault.Sandbox, Purposes: []string{purpose}})} {
		is := everythingOf(t, v)
		for i := range was {
			if i >= len(is) || !reflect.DeepEqual(is[i], was[i]) {
				t.Fatalf("seen: %+v, was %+v", is[i:], was[i:])
			}
		}
		if again := must(v.Import(ctx, testCard(2), importUnderKey))(t); !again.Replayed {
			t.Error("no replay")
		}
		fails(t, "another request", errorOf(v.Import(ctx, testCard(3), importUnderKey)), cardvault.ErrIdempotencyKeyReused)
	}
}

// namesake has the kinds that a report counts under the name of another.
var namesake = map[store.Kind]store.Kind{14: 13, 16: 15, 25: 11, 27: 21}

// reports checks how many records a report counts in each term: of tokens, and of other kinds, whose
// names are not compared.
func reports(t testing.TB, v *cardvault.Vault, want ...map[store.Key]*store.Record) {
	t.Helper()
	report := must(v.KeyReport(t.Context()))(t)
	if len(report.Terms) != len(want) || report.Unreadable != 0 {
		t.Fatalf("%+v, want %d terms", report, len(want))
	}

	for i, term := range report.Terms {
		sealed := map[store.Kind]int64{}
		for key, r := range want[i] {
			if len(r.Shown)+len(r.Secret) > 0 {
				sealed[cmp.Or(namesake[key.Kind], key.Kind)]++
			}
		}
		counts, got := slices.Sorted(maps.Values(sealed)), slices.Sorted(maps.Values(term.Records))
		if !slices.Equal(got, counts) && !(i == 1 && want[1] == nil) || term.Records["token"] != sealed[5] {
			t.Errorf("term %d has %v, want %v", term.Number, term.Records, sealed)
		}
	}
}

func keysOf(rows map[store.Key]*store.Record) func(func(store.Key) bool) {
	return func(yield func(store.Key) bool) {
		for key := range rows {
			if !yield(key) {
				return
			}
		}
	}
}

// resealedPast: an event shows its token as it was then, also if the token was sealed anew
// between the event and the next one.
func resealedPast(t *testing.T, s store.Store) {
	var mail mailbox
	v, ctx := sending(t, s, &mail), t.Context()
	newHook(t, v, receiver)
	token := importCard(t, v, testCard(1), nil)
	drain(t, v)
	must(v.RotateKeys(ctx, nil))(t)
	drain(t, v)
	rename(t, v, token, "key")
	drain(t, v)
	must(v.RotateKeys(ctx, nil))(t)
	drain(t, v)
	oneTerm(t, s, 3)

	event := mail.at(receiver)[0].ID
	noError(t, errorOf(v.Redeliver(ctx, event, nil)))
	drain(t, v)
	events := mail.at(receiver)
	if len(events) != 3 || events[2].ID != event {
		t.Fatalf("%d events arrived, want 3", len(events))
	}
	sameTold(t, "the first event again", events[2].Token, token)
	if events[1].Type != receive.TokenUpdated || events[1].Token.BusinessKey != canary+"key" {
		t.Errorf("the second event: %+v", events[1])
	}
}

// resealRace: callers write while records are sealed anew, by two vaults and under one term
// after the other. Every acknowledged write is there, and no deleted token is.
func resealRace(t *testing.T, s store.Store) {
	const n, rotations = 12, 4
	ctx := t.Context()
	vaults := []*cardvault.Vault{vaultOn(t, s, nil), vaultOn(t, s, nil)}
	v := vaults[0]
	var ids []uuid.UUID
	for i := range n {
		ids = append(ids, importCard(t, v, testCard(i), nil).ID)
	}

	var over atomic.Bool
	last := make([]string, n)
	parallel(t, 6, func(worker int) error {
		r, v := rand.New(rand.NewPCG(11, uint64(worker))), vaults[worker%2]
		if worker >= 4 { // seals anew
			for range rotations {
				if err := errorOf(v.RotateKeys(ctx, nil)); err != nil {
					return err
				}
				if err := v.Drain(ctx); err != nil {
					return err
				}
			}
			over.Store(true)
			return nil
		}
		for step := 0; step < 20 || step < 500 && !over.Load(); step++ { // each leaves a record to seal anew, of the audit log
			i := worker + 4*r.IntN(n/4) // of this worker alone
			text := fmt.Sprint(canary, worker, " ", step)
			if err := errorOf(v.Update(ctx, ids[i], cardvault.TokenUpdate{BusinessKey: &text})); err != nil {
				return err
			}
			last[i] = text
			made, err := v.Import(ctx, testCard(n), nil)
			if err == nil {
				err = v.Delete(ctx, made.ID)
			}
			if err == nil && !errors.Is(errorOf(v.Get(ctx, made.ID)), cardvault.ErrNotFound) {
				err = errors.New("a deleted token is there")
			}
			if err != nil {
				return err
			}
		}
		return nil
	})

	for _, former := range vaults { // a vault may write under a former term until it hears of the present one: its audit log does
		noError(t, former.Close())
	}
	v = vaultOn(t, s, nil)
	must(v.RotateKeys(ctx, nil))(t)
	drain(t, v)
	oneTerm(t, s, 2+2*rotations)
	all := must(collect(ctx, v, &cardvault.TokenListOptions{Ascending: true}))(t)
	checkListed(t, v, all...)
	if !slices.Equal(idsOf(all), ids) {
		t.Errorf("%d tokens, want %d", len(all), n)
	}
	for i, token := range all {
		if token.BusinessKey != last[i] {
			t.Errorf("token %d has key %q, want %q", i, token.BusinessKey, last[i])
		}
		lists(t, v, cardvault.TokenListOptions{BusinessKey: token.BusinessKey, Ascending: true, Limit: 500}, all)
	}
}
