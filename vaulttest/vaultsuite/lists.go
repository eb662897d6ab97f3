package vaultsuite

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/network"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

var listBehaviours = []behaviour{
	{"Filters", filters},
	{"Pages", listPages},
	{"Bounds", bounds},
	{"ByFingerprint", byFingerprint},
	{"AllAscending", func(t *testing.T, s store.Store) { allTokens(t, s, true) }},
	{"AllDescending", func(t *testing.T, s store.Store) { allTokens(t, s, false) }},
}

// selects reports whether a list with o holds a token.
func selects(o *cardvault.TokenListOptions, token *cardvault.Token) bool {
	return (o.From.IsZero() || !token.CreatedAt.Before(o.From)) &&
		(o.To.IsZero() || !token.CreatedAt.After(o.To)) &&
		(len(o.Scheme) == 0 || slices.Contains(o.Scheme, token.Scheme)) &&
		(len(o.NetworkTokenStatus) == 0 || slices.Contains(o.NetworkTokenStatus, token.NetworkTokenStatus)) &&
		(o.AccountNumberStale == nil || *o.AccountNumberStale == token.AccountNumberStale) &&
		(o.BusinessKey == "" || o.BusinessKey == token.BusinessKey) &&
		(o.Fingerprint == cardvault.Fingerprint{} || o.Fingerprint == token.Fingerprint)
}

// expectedIDs returns the ids of the tokens, which are in the order of their
// creation, that a list with o holds.
func expectedIDs(o *cardvault.TokenListOptions, tokens []*cardvault.Token) []uuid.UUID {
	var want []uuid.UUID
	for _, token := range tokens {
		if selects(o, token) {
			want = append(want, token.ID)
		}
	}
	if !o.Ascending {
		slices.Reverse(want)
	}
	return want
}

// lists checks the page and the total that o asks for.
func lists(t testing.TB, v *cardvault.Vault, o cardvault.TokenListOptions, tokens []*cardvault.Token) {
	t.Helper()
	want := expectedIDs(&o, tokens)
	limit := cmp.Or(o.Limit, cardvault.DefaultLimit)
	from := min(len(want), (cmp.Or(o.Page, 1)-1)*limit)
	to := min(len(want), from+limit)
	p := must(v.List(t.Context(), &o))(t)
	if !slices.Equal(idsOf(p.Items), want[from:to]) {
		t.Errorf("%+v: %d items, want %d in another order or others", o, len(p.Items), to-from)
	}
	if pages := (len(want) + limit - 1) / limit; p.TotalItems != int64(len(want)) || p.TotalPages != int64(pages) ||
		p.Page != cmp.Or(o.Page, 1) || p.Limit != limit {
		t.Errorf("%+v: page %d of %d, limit %d, total %d; want %d pages, total %d", o, p.Page, p.TotalPages, p.Limit, p.TotalItems, pages, len(want))
	}
	got := must(collect(t.Context(), v, &o))(t)
	if want = want[min(len(want), (cmp.Or(o.Page, 1)-1)*cmp.Or(o.Limit, cardvault.MaxLimit)):]; !slices.Equal(idsOf(got), want) {
		t.Errorf("%+v: All yields %d tokens, want %d", o, len(got), len(want))
	}
}

// mixed imports n tokens of all schemes, some with one of three business keys.
func mixed(t testing.TB, v *cardvault.Vault, n int) []*cardvault.Token {
	t.Helper()
	tokens := make([]*cardvault.Token, n)
	for i := range tokens {
		c := schemeCards[i%len(schemeCards)]
		opts := &cardvault.ImportOptions{}
		if i%2 == 0 {
			opts.BusinessKey = fmt.Sprint(canary, i%3)
		}
		tokens[i] = importCard(t, v, cardOf(cardNumber(c.prefix, c.length, i)), opts)
	}
	return tokens
}

func filters(t *testing.T, s store.Store) {
	v := vaultOn(t, s, nil)
	tokens := mixed(t, v, 60)
	for _, i := range []int{3, 30, 31, 59} {
		noError(t, v.Delete(t.Context(), tokens[i].ID))
	}

	tokens = slices.DeleteFunc(tokens, func(token *cardvault.Token) bool {
		_, err := v.Get(t.Context(), token.ID)
		return err != nil
	})
	if len(tokens) != 56 {
		t.Fatalf("%d tokens left", len(tokens))
	}

	for i := range 150 {
		r := rand.New(rand.NewPCG(1, uint64(i)))
		o := cardvault.TokenListOptions{Ascending: r.IntN(2) == 0, Limit: 1 + r.IntN(60), Page: 1 + r.IntN(3)}
		for scheme := range card.Scheme(8) {
			if r.IntN(4) == 0 {
				o.Scheme = append(o.Scheme, scheme)
			}
		}

		for status := range network.Status(6) {
			if r.IntN(6) == 0 {
				o.NetworkTokenStatus = append(o.NetworkTokenStatus, status)
			}
		}

		if r.IntN(3) == 0 {
			o.BusinessKey = fmt.Sprint(canary, r.IntN(4))
		}

		near := func() time.Time {
			at := tokens[r.IntN(len(tokens))].CreatedAt
			return at.Add([]time.Duration{0, -time.Microsecond, time.Microsecond, -1, 1}[r.IntN(5)])
		}
		if r.IntN(2) == 0 {
			o.From = near()
		}
		if r.IntN(2) == 0 {
			o.To = near()
		}

		if !o.From.IsZero() && !o.To.IsZero() && o.From.After(o.To) {
			o.From, o.To = o.To, o.From
		}
		lists(t, v, o, tokens)
	}

	// No part of a business key, and no other case of it, is the key.
	for _, key := range []string{canary, canary + "00", "Canary 0", canary + "0 "} {
		lists(t, v, cardvault.TokenListOptions{BusinessKey: key}, tokens)
	}
}

func listPages(t *testing.T, s store.Store) {
	v := vaultOn(t, s, nil)
	lists(t, v, cardvault.TokenListOptions{}, nil)
	lists(t, v, cardvault.TokenListOptions{Page: cardvault.MaxPage, Limit: cardvault.MaxLimit}, nil)
	tokens := mixed(t, v, 53)
	lists(t, v, cardvault.TokenListOptions{}, tokens)
	for _, limit := range []int{1, 7, 53, cardvault.MaxLimit} {
		for page := 1; page <= 53/limit+2; page++ {
			lists(t, v, cardvault.TokenListOptions{Limit: limit, Page: page, Ascending: page%2 == 0}, tokens)
		}
	}
	lists(t, v, cardvault.TokenListOptions{Limit: 7, Page: cardvault.MaxPage}, tokens)
}

func bounds(t *testing.T, s store.Store) {
	v := vaultOn(t, s, nil)
	tokens := mixed(t, v, 5)
	at := tokens[2].CreatedAt

	for _, o := range []cardvault.TokenListOptions{
		{From: at, To: at},
		{From: at.Add(1)},
		{From: at.Add(-1)},
		{To: at.Add(-1)},
		{To: at.Add(time.Microsecond - 1)},
		{From: at.Add(-time.Microsecond + 1), To: at},
		{From: at.Add(1), To: at.Add(2)}, // within one microsecond, and none in between
		{From: at.In(time.FixedZone("", 3600))},
		{From: time.Unix(-1, 0), To: time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)},
		{From: time.Date(1, 1, 1, 0, 0, 1, 0, time.UTC)},
		{To: time.Date(1900, 1, 1, 0, 0, 0, 0, time.UTC)},
		{From: time.Date(300000, 1, 1, 0, 0, 0, 0, time.UTC)},
		{To: time.Date(300000, 1, 1, 0, 0, 0, 0, time.UTC)},
	} {
		lists(t, v, o, tokens)
	}
}

// importAtOnce imports n cards, 50 at a time, and returns the ids of their tokens.
func importAtOnce(t *testing.T, v *cardvault.Vault, n int) map[uuid.UUID]bool {
	var mu sync.Mutex
	known := map[uuid.UUID]bool{} // under mu

	parallel(t, 50, func(i int) error {
		for j := range n / 50 {
			token, err := v.Import(t.Context(), testCard(i*n/50+j), nil)
			if err != nil {
				return err
			}
			mu.Lock()
			known[token.ID] = true
			mu.Unlock()
		}
		return nil
	})
	return known
}

// byFingerprint finds the tokens of a card, of the account alone.
func byFingerprint(t *testing.T, s store.Store) {
	v, ctx := vaultOn(t, s, nil), t.Context()
	other := v.In(must(v.CreateAccount(ctx, canary, nil))(t).ID)
	var tokens []*cardvault.Token
	for i := range 12 {
		tokens = append(tokens, importCard(t, v, testCard(1+i%3), nil))
		importCard(t, other, testCard(1+i%3), nil)
	}

	mine := tokens[1].Fingerprint
	for _, o := range []cardvault.TokenListOptions{
		{Fingerprint: mine}, {Fingerprint: mine, Ascending: true, Limit: 2}, {Fingerprint: mine, From: tokens[5].CreatedAt}, {Fingerprint: cardvault.Fingerprint{1}},
	} {
		if got, want := must(collect(ctx, v, &o))(t), expectedIDs(&o, tokens); !slices.Equal(idsOf(got), want) {
			t.Errorf("%+v: %v, want %v", o, idsOf(got), want)
		}
	}
	if got := must(collect(ctx, other, &cardvault.TokenListOptions{Fingerprint: mine}))(t); len(got) != 0 {
		t.Errorf("another account has %d tokens with the fingerprint", len(got))
	}
}

// allTokens iterates over more than two reads while tokens come and go.
func allTokens(t *testing.T, s store.Store, ascending bool) {
	const n = 2*cardvault.MaxLimit + 50
	v, ctx := vaultOn(t, s, nil), t.Context()
	known := importAtOnce(t, v, n)

	o := &cardvault.TokenListOptions{Ascending: ascending}
	first := must(collect(ctx, v, o))(t)
	if len(first) != n || !slices.IsSortedFunc(first, func(a, b *cardvault.Token) int {
		if ascending {
			return a.CreatedAt.Compare(b.CreatedAt)
		}
		return b.CreatedAt.Compare(a.CreatedAt)
	}) {
		t.Fatalf("All yields %d tokens, want %d in order", len(first), n)
	}

	for _, token := range first {
		if !known[token.ID] {
			t.Fatal("All yields a token twice, or one that was not imported")
		}
		delete(known, token.ID)
	}
	late := must(collect(ctx, v, &cardvault.TokenListOptions{Ascending: ascending, Limit: 300, Page: 3}))(t)
	if !slices.Equal(idsOf(late), idsOf(first[600:])) {
		t.Errorf("All yields %d tokens from the page 3 of 300 on, want %d", len(late), n-600)
	}

	// Every tenth token is deleted: one seen before, and one further ahead than any read. A
	// new token is seen only if it is ahead.
	gone := map[uuid.UUID]bool{}
	var seen []uuid.UUID
	var added []*cardvault.Token
	i := 0

	for token, err := range v.All(ctx, o) {
		noError(t, err)
		seen = append(seen, token.ID)
		if i%10 == 0 && i < cardvault.MaxLimit {
			noError(t, v.Delete(ctx, first[i].ID))
			noError(t, v.Delete(ctx, first[i+cardvault.MaxLimit].ID))
			gone[first[i+cardvault.MaxLimit].ID] = true
			added = append(added, importCard(t, v, testCard(9999), nil))
		}
		i++
		if i > 2*n {
			t.Fatal("All does not end")
		}
	}

	want := slices.DeleteFunc(idsOf(first), func(id uuid.UUID) bool { return gone[id] })
	if ascending {
		want = append(want, idsOf(added)...)
	}
	if !slices.Equal(seen, want) {
		t.Errorf("All yields %d tokens while some come and go, want %d", len(seen), len(want))
	}

	count := 0
	for _, err := range v.All(ctx, o) {
		noError(t, err)
		if count++; count == 3 {
			break
		}
	}
	if count != 3 {
		t.Errorf("a loop that breaks saw %d tokens, want 3", count)
	}
}
