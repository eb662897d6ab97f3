package vaultsuite

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/idv"
	"github.com/cardvault/cardvault/network"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

var tokenBehaviours = []behaviour{
	{"Import", importing},
	{"Schemes", schemes},
	{"Identifiers", identifiers},
	{"Update", updating},
	{"Delete", deleting},
	{"BIN", binLookup},
	{"IINLength", iinLength},
}

func importing(t *testing.T, s store.Store) {
	v, ctx := vaultOn(t, s, nil), t.Context()
	before := time.Now()
	c := testCard(1)
	c.Name, c.SecurityCode = holder(canary+"Zoë"), card.NewSecurityCode([]byte("737"))
	got := importCard(t, v, c, &cardvault.ImportOptions{BusinessKey: canary + "key", ImportProvider: "old-vault_1"})

	want := &cardvault.Token{
		ID: got.ID, CreatedAt: got.CreatedAt, UpdatedAt: got.CreatedAt, Fingerprint: got.Fingerprint,
		Status:              cardvault.StatusActive,
		CardholderName:      holder(canary + "Zoë"),
		Expiry:              card.Expiry{Month: 12, Year: 2090},
		IIN:                 "411111",
		LastFour:            "0011",
		AccountNumberLength: 16,
		MaskedAccountNumber: "411111******0011",
		Scheme:              card.VISA,
		NetworkTokenStatus:  network.NotAvailable,
		NetworkTokenStatusReason: &cardvault.Reason{
			Source: network.SourceConfiguration, Code: "no_network",
			Message: "No network is configured.", OccurredAt: got.CreatedAt,
		},
		Identification: idv.None,
		BusinessKey:    canary + "key", ImportProvider: "old-vault_1",
	}

	want.LastFour = cardNumber(canaryNumber, 16, 1)[12:]
	want.MaskedAccountNumber = "411111******" + want.LastFour
	same(t, "imported", got, want)
	if text := got.Fingerprint.String(); len(text) != 64 || strings.Trim(text, "0123456789abcdef") != "" {
		t.Errorf("fingerprint %q is not 64 hexadecimal digits", text)
	}
	if at := got.CreatedAt; at.Before(before.Add(-time.Microsecond)) || at.After(time.Now()) || at.Location() != time.UTC || at.Nanosecond()%1000 != 0 {
		t.Errorf("created at %v, want now, in UTC and whole microseconds", at)
	}

	same(t, "read", must(v.Get(ctx, got.ID))(t), want)

	// The least that a card needs; a past expiry; the same number again.
	least := cardOf(cardNumber(canaryNumber, 16, 1))
	least.Expiry = card.Expiry{Month: 1, Year: 2000}
	second := importCard(t, v, least, nil)
	if second.Fingerprint != got.Fingerprint || second.ID == got.ID {
		t.Error("one number imported twice must give two tokens with one fingerprint")
	}
	if r := second.NetworkTokenStatusReason; r == nil || r.Code != "card_expired" {
		t.Errorf("reason of an expired card = %+v", r)
	}

	if third := importCard(t, v, testCard(2), nil); third.Fingerprint == got.Fingerprint {
		t.Error("two numbers have one fingerprint")
	}

	p := must(v.List(ctx, nil))(t)
	if p.TotalItems != 3 || len(p.Items) != 3 || p.Items[2].ID != got.ID || p.Limit != cardvault.DefaultLimit || p.Page != 1 || p.TotalPages != 1 {
		t.Errorf("List = %d items of %d, page %d of %d, limit %d", len(p.Items), p.TotalItems, p.Page, p.TotalPages, p.Limit)
	}

	all := must(collect(ctx, v, nil))(t)
	if !slices.Equal(idsOf(all), idsOf(p.Items)) {
		t.Error("All and List differ")
	}
}

// schemeCards has a number of every scheme and of lengths at its bounds.
var schemeCards = []struct {
	scheme card.Scheme
	prefix string
	length int
}{
	{card.VISA, "4", 13},
	{card.VISA, "4", 16},
	{card.VISA, "4", 19},
	{card.Mastercard, "51", 16},
	{card.Mastercard, "5018", 12},
	{card.Mastercard, "5018", 19},
	{card.AmericanExpress, "34", 15},
	{card.Discover, "6011", 16},
	{card.DinersClub, "36", 14},
	{card.JCB, "3528", 16},
	{card.UnionPay, "62", 16},
	{card.UnknownScheme, "99", 12},
	{card.UnknownScheme, "99", 19},
}

func schemes(t *testing.T, s store.Store) {
	v, ctx := vaultOn(t, s, nil), t.Context()
	count := map[card.Scheme]int64{}
	for i, c := range schemeCards {
		digits := cardNumber(c.prefix, c.length, i)
		token := importCard(t, v, cardOf(digits), nil)
		got := must(v.Get(ctx, token.ID))(t)
		mask := digits[:6] + strings.Repeat("*", c.length-10) + digits[c.length-4:]
		if got.Scheme != c.scheme || got.AccountNumberLength != c.length || got.MaskedAccountNumber != mask ||
			got.IIN != digits[:6] || got.LastFour != digits[c.length-4:] {
			t.Errorf("%s with %d digits: %+v", c.scheme, c.length, flat(got))
		}
		count[c.scheme]++
	}

	for scheme, want := range count {
		p := must(v.List(ctx, &cardvault.TokenListOptions{Scheme: []card.Scheme{scheme}}))(t)
		if p.TotalItems != want || int64(len(p.Items)) != want {
			t.Errorf("%v: %d tokens, total %d, want %d", scheme, len(p.Items), p.TotalItems, want)
		}
	}
}

func identifiers(t *testing.T, s store.Store) {
	v := vaultOn(t, s, nil)
	var tokens []*cardvault.Token
	ascents := 0
	for i := range 64 {
		token := importCard(t, v, testCard(i), nil)
		if token.ID.Version() != 4 || token.ID.Variant() != uuid.RFC4122 {
			t.Fatalf("id %v is not a UUIDv4", token.ID)
		}
		if i > 0 {
			last := tokens[i-1]
			if token.CreatedAt.Before(last.CreatedAt) {
				t.Errorf("token %d is older than the previous one", i)
			}
			if token.ID.String() > last.ID.String() {
				ascents++
			}
		}
		tokens = append(tokens, token)
	}

	if ascents < 12 || ascents > 51 { // 31.5 on average, deviation 2.3
		t.Errorf("%d of 63 ids are above the one before: ids reveal the order of creation", ascents)
	}

	checkListed(t, v, tokens...)
	// Nothing else is the id of a token: not a neighbour, nor its row key.
	for i := range 16 {
		for bit := range 8 {
			id := tokens[0].ID
			id[i] ^= 1 << bit
			if _, err := v.Get(t.Context(), id); !errors.Is(err, cardvault.ErrNotFound) {
				t.Errorf("Get of another id (byte %d, bit %d): %v", i, bit, err)
			}
		}
	}
}

func updating(t *testing.T, s store.Store) {
	v, ctx := vaultOn(t, s, nil), t.Context()
	want := importCard(t, v, testCard(1), nil)
	text := func(s string) *string { return &s }
	named := func(s string) *card.Name { n := holder(s); return &n }

	for i, step := range []struct {
		update cardvault.TokenUpdate
		apply  func()
	}{
		{cardvault.TokenUpdate{CardholderName: named(canary + "A")}, func() { want.CardholderName = holder(canary + "A") }},
		{cardvault.TokenUpdate{BusinessKey: text(canary + "1"), ImportProvider: text("p")},
			func() { want.BusinessKey, want.ImportProvider = canary+"1", "p" }},
		{cardvault.TokenUpdate{Expiry: &card.Expiry{Month: 1, Year: 2001}}, func() { want.Expiry = card.Expiry{Month: 1, Year: 2001} }},
		{cardvault.TokenUpdate{ImportProvider: text("")}, func() { want.ImportProvider = "" }},
		{cardvault.TokenUpdate{BusinessKey: text("")}, func() { want.BusinessKey = "" }},
		{cardvault.TokenUpdate{CardholderName: &card.Name{}}, func() { want.CardholderName = card.Name{} }},
		{cardvault.TokenUpdate{CardholderName: named(longText(255)), BusinessKey: text(longText(255))},
			func() { want.CardholderName, want.BusinessKey = holder(longText(255)), longText(255) }},
	} {
		step.apply()
		got := must(v.Update(ctx, want.ID, step.update))(t)
		if !got.UpdatedAt.After(want.UpdatedAt) {
			t.Errorf("update %d: updated at %v, before that %v", i, got.UpdatedAt, want.UpdatedAt)
		}
		want.UpdatedAt = got.UpdatedAt
		same(t, fmt.Sprintf("update %d", i), got, want)
		same(t, fmt.Sprintf("read after update %d", i), must(v.Get(ctx, want.ID))(t), want)
		checkListed(t, v, want)
		for _, key := range []string{canary + "1", longText(255)} {
			p := must(v.List(ctx, &cardvault.TokenListOptions{BusinessKey: key}))(t)
			if found := p.TotalItems == 1; found != (want.BusinessKey == key) {
				t.Errorf("after update %d: found by a business key: %v", i, found)
			}
		}
	}

	_, err := v.Update(ctx, uuid.New(), cardvault.TokenUpdate{BusinessKey: text(canary)})
	fails(t, "updating an id that was never issued", err, cardvault.ErrNotFound)
}

func deleting(t *testing.T, s store.Store) {
	v, ctx := vaultOn(t, s, nil), t.Context()
	a, b := importCard(t, v, testCard(1), nil), importCard(t, v, testCard(2), &cardvault.ImportOptions{BusinessKey: canary + "b"})
	noError(t, v.Delete(ctx, b.ID))
	empty := ""
	for what, call := range map[string]func() error{
		"Get":    func() error { _, err := v.Get(ctx, b.ID); return err },
		"Delete": func() error { return v.Delete(ctx, b.ID) },
		"Update": func() error {
			_, err := v.Update(ctx, b.ID, cardvault.TokenUpdate{BusinessKey: &empty})
			return err
		},
	} {
		fails(t, what+" of a deleted token", call(), cardvault.ErrNotFound)
	}
	checkListed(t, v, a)
	if p := must(v.List(ctx, &cardvault.TokenListOptions{BusinessKey: canary + "b"}))(t); p.TotalItems != 0 {
		t.Error("a deleted token is found by its business key")
	}
}

// A binProvider returns a given answer and records its requests.
type binProvider struct {
	bin   *network.BIN
	err   error
	asked []string
}

func (p *binProvider) LookupBIN(_ context.Context, r *network.BINRequest) (*network.BIN, error) {
	p.asked = append(p.asked, string(r.IIN))
	return p.bin, p.err
}

func binLookup(t *testing.T, s store.Store) {
	p := &binProvider{}
	v := vaultOn(t, s, &cardvault.Options{Mode: cardvault.Sandbox, BIN: p})
	jcb := card.JCB
	bin := func(segment, kind, country string) *network.BIN {
		return &network.BIN{BankName: canary + "Bank", Segment: segment, Type: kind, CountryCode: country}
	}

	for i, test := range []struct {
		bin                          *network.BIN
		err                          error
		bank, segment, kind, country string
		scheme                       card.Scheme
	}{
		{bin("consumer", "credit", "DE"), nil, canary + "Bank", "consumer", "credit", "DE", card.VISA},
		{bin("business", "charge", "DE"), nil, canary + "Bank", "business", "credit", "DE", card.VISA},
		{bin("other", "prepaid", "DE"), nil, canary + "Bank", "other", "debit", "DE", card.VISA},
		{bin("vip", "gift", "XX"), nil, canary + "Bank", "", "", "", card.VISA},
		{bin("commercial", "debit", "de"), nil, canary + "Bank", "commercial", "debit", "", card.VISA},
		{&network.BIN{Scheme: &jcb}, nil, "", "", "", "", card.JCB},
		{&network.BIN{BankName: strings.Repeat("x", store.MaxRecord)}, nil, "", "", "", "", card.VISA},
		{bin("consumer", "credit", "DE"), errors.New("out of order"), "", "", "", "", card.VISA},
		{nil, nil, "", "", "", "", card.VISA},
	} {
		p.bin, p.err = test.bin, test.err
		token := importCard(t, v, testCard(i), nil)
		token = must(v.Get(t.Context(), token.ID))(t)
		got := [4]string{token.BankName, token.Segment, token.Type, token.CountryCode}
		if want := [4]string{test.bank, test.segment, test.kind, test.country}; got != want || token.Scheme != test.scheme {
			t.Errorf("answer %d gave %q, %v, want %q, %v", i, got, token.Scheme, want, test.scheme)
		}
	}

	importCard(t, v, cardOf(cardNumber("34", 15, 1)), nil)
	if n := len(p.asked); p.asked[0] != canaryNumber[:8] || p.asked[n-1] != "340000" {
		t.Errorf("asked for numbers of %d and %d digits, want the first 8 and 6", len(p.asked[0]), len(p.asked[n-1]))
	}
}

func iinLength(t *testing.T, s store.Store) {
	v := vaultOn(t, s, &cardvault.Options{Mode: cardvault.Sandbox, IINLength: 8})
	for digits, want := range map[string]string{cardNumber(canaryNumber, 16, 1): canaryNumber[:8], cardNumber("34", 15, 1): "340000"} {
		token := importCard(t, v, cardOf(digits), nil)
		token = must(v.Get(t.Context(), token.ID))(t)
		if token.IIN != want || token.MaskedAccountNumber[6] != '*' {
			t.Errorf("%d digits: IIN %s, mask %s", len(digits), token.IIN, token.MaskedAccountNumber)
		}
	}
}
