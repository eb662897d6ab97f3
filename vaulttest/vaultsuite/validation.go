package vaultsuite

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/network"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/vaulttest"
)

var validationBehaviours = []behaviour{
	{"BadCard", badCard},
	{"BadOptions", badOptions},
	{"NonLuhn", nonLuhn},
}

// badCards breaks each rule for a card, by itself and together.
var badCards = []struct {
	what  string
	spoil func(*cardvault.Card)
	want  []string // field and code
}{
	{"no number", setPAN(""), []string{"PAN required"}},
	{"letters", setPAN("41111100000000zz"), []string{"PAN invalid_format"}},
	{"full-width digits", setPAN("４１１１１１"), []string{"PAN invalid_format"}},
	{"a space", setPAN("4111110000000 05"), []string{"PAN invalid_format"}},
	{"11 digits", setPAN("41111100000"), []string{"PAN too_short"}},
	{"20 digits", setPAN("41111100000000000000"), []string{"PAN too_long"}},
	{"14 digits of VISA", setPAN(cardNumber("4", 14, 0)), []string{"PAN invalid_format"}},
	{"16 digits of American Express", setPAN(cardNumber("34", 16, 0)), []string{"PAN invalid_format"}},
	{"wrong last digit", setPAN("4111110000000006"), []string{"PAN luhn"}},
	{"month 0", setExpiry(0, 2030), []string{"Expiry.Month out_of_range"}},
	{"month 13", setExpiry(13, 2030), []string{"Expiry.Month out_of_range"}},
	{"year 1999", setExpiry(1, 1999), []string{"Expiry.Year out_of_range"}},
	{"year 2100", setExpiry(1, 2100), []string{"Expiry.Year out_of_range"}},
	{"no expiry", setExpiry(0, 0), []string{"Expiry.Month out_of_range", "Expiry.Year out_of_range"}},
	{"code of 2 digits", setCode("73"), []string{"SecurityCode too_short"}},
	{"code of 5 digits", setCode("73737"), []string{"SecurityCode too_long"}},
	{"code with a letter", setCode("73x"), []string{"SecurityCode invalid_format"}},
	{"blank name", setName(" \u00a0 "), []string{"Name blank"}},
	{"long name", setName(longText(256)), []string{"Name too_long"}},
	{"name with a line break", setName(canary + "\n"), []string{"Name invalid_format"}},
	{"name that is not UTF-8", setName(canary + "\xff"), []string{"Name invalid_format"}},
	{"name with a number", setName(canary + cardNumber(canaryNumber, 16, 1)), []string{"Name looks_like_pan"}},
	{"all", func(c *cardvault.Card) {
		setPAN("1")(c)
		setExpiry(99, 9)(c)
		setCode("1")(c)
		setName(" ")(c)
	}, []string{"PAN too_short", "Expiry.Month out_of_range", "Expiry.Year out_of_range", "SecurityCode too_short", "Name blank"}},
}

func setPAN(s string) func(*cardvault.Card) {
	return func(c *cardvault.Card) { c.PAN = card.NewPAN([]byte(s)) }
}
func setCode(s string) func(*cardvault.Card) {
	return func(c *cardvault.Card) { c.SecurityCode = card.NewSecurityCode([]byte(s)) }
}
func setName(s string) func(*cardvault.Card) {
	return func(c *cardvault.Card) { c.Name = holder(s) }
}
func setExpiry(month, year int) func(*cardvault.Card) {
	return func(c *cardvault.Card) { c.Expiry = card.Expiry{Month: month, Year: year} }
}

func badCard(t *testing.T, s store.Store) {
	spy := &watched{Store: s}
	v, ctx := vaultOn(t, spy, nil), t.Context()
	session := must(v.CreateSession(ctx, nil))(t)
	var errs []error

	wrote := spy.wrote(func() {
		for _, bad := range badCards {
			c := testCard(1)
			bad.spoil(&c)
			_, err := v.Import(ctx, c, nil)
			refuses(t, "Import: "+bad.what, err, bad.want...)
			refuses(t, "Check: "+bad.what, v.Check(c, nil), bad.want...)
			_, err = v.Tokenize(ctx, session.ID, c)
			refuses(t, "Tokenize: "+bad.what, err, bad.want...)
			errs = append(errs, err)
		}
		c := testCard(1)
		c.Expiry = card.Expiry{Month: 1, Year: 2001}
		_, err := v.Tokenize(ctx, session.ID, c)
		refuses(t, "Tokenize of an expired card", err, "Expiry.Month card_expired")
	})
	if wrote != 0 {
		t.Errorf("bad cards made the vault write %d times", wrote)
	}

	vaulttest.AssertNoLeak(t, []string{"41111100000000", "3400000", "canary", "73737"}, errors.Join(errs...))
	checkListed(t, v)
	must(v.Tokenize(ctx, session.ID, testCard(1)))(t) // bad cards do not use a session up
}

func badOptions(t *testing.T, s store.Store) {
	spy := &watched{Store: s}
	v, ctx := vaultOn(t, spy, nil), t.Context()
	token := importCard(t, v, testCard(1), nil)
	key := must(v.CreateAPIKey(ctx, canary, cardvault.AllScopes(), nil))(t)
	text := func(s string) *string { return &s }

	importWith := func(o cardvault.ImportOptions) error { _, err := v.Import(ctx, testCard(2), &o); return err }
	update := func(u cardvault.TokenUpdate) error { _, err := v.Update(ctx, token.ID, u); return err }
	session := func(ttl time.Duration) error {
		_, err := v.CreateSession(ctx, &cardvault.SessionOptions{TokenTTL: ttl})
		return err
	}

	apiKey := func(label string, scopes []cardvault.Scope, ttl time.Duration) error {
		_, err := v.CreateAPIKey(ctx, label, scopes, &cardvault.APIKeyOptions{TTL: ttl, Creator: key.ID})
		return err
	}

	idempotent := func(key string) error {
		_, err := v.Import(ctx, testCard(2), &cardvault.ImportOptions{IdempotencyKey: key})
		return err
	}

	named := card.NewName([]byte{0})
	scopes := cardvault.AllScopes()
	spoiledCard := testCard(2)
	setPAN("")(&spoiledCard)
	_, spoiled := v.Import(ctx, spoiledCard, &cardvault.ImportOptions{BusinessKey: " ", ImportProvider: "É"})

	wrote := spy.wrote(func() {
		refusesAll(t, []refusal{
			{importWith(cardvault.ImportOptions{BusinessKey: longText(256)}), "BusinessKey too_long"},
			{importWith(cardvault.ImportOptions{BusinessKey: "\t\t"}), "BusinessKey blank"},
			{importWith(cardvault.ImportOptions{BusinessKey: "  "}), "BusinessKey blank"},
			{importWith(cardvault.ImportOptions{ImportProvider: "p"}), "BusinessKey depends_on"},
			{importWith(cardvault.ImportOptions{BusinessKey: canary, ImportProvider: "P"}), "ImportProvider invalid_format"},
			{importWith(cardvault.ImportOptions{BusinessKey: canary, ImportProvider: "_p"}), "ImportProvider invalid_format"},
			{importWith(cardvault.ImportOptions{BusinessKey: canary, ImportProvider: strings.Repeat("p", 41)}), "ImportProvider invalid_format"},
			{spoiled, "PAN required, BusinessKey blank, ImportProvider invalid_format"},
			{idempotent(strings.Repeat("k", 256)), "IdempotencyKey invalid_format"},
			{idempotent("k\n"), "IdempotencyKey invalid_format"},
			{idempotent("é"), "IdempotencyKey invalid_format"},

			{update(cardvault.TokenUpdate{}), "TokenUpdate empty_patch"},
			{update(cardvault.TokenUpdate{CardholderName: &named}), "CardholderName invalid_format"},
			{update(cardvault.TokenUpdate{BusinessKey: text(" "), Expiry: &card.Expiry{}}),
				"BusinessKey blank, Expiry.Month out_of_range, Expiry.Year out_of_range"},
			{update(cardvault.TokenUpdate{ImportProvider: text("-")}), "ImportProvider invalid_format"},
			{update(cardvault.TokenUpdate{ImportProvider: text("p")}), "BusinessKey depends_on"},

			{session(-1), "TokenTTL out_of_range"},
			{session(time.Second - 1), "TokenTTL out_of_range"},
			{session(cardvault.MaxTokenTTL + 1), "TokenTTL out_of_range"},

			{apiKey("", scopes, 0), "Label empty_string"},
			{apiKey(longText(256), scopes, 0), "Label too_long"},
			{apiKey(canary, nil, 0), "Scopes too_short"},
			{apiKey(canary, []cardvault.Scope{"tokens:steal"}, 0), "Scopes invalid_enum"},
			{apiKey(canary, scopes, -1), "TTL out_of_range"},
			{apiKey(" ", nil, cardvault.MaxAPIKeyTTL+1), "Label blank, Scopes too_short, TTL out_of_range"},

			{errorOf(v.CreateAccount(ctx, " ", nil)), "Name blank"},
			{errorOf(v.CreateMerchant(ctx, "", nil)), "Name empty_string"},
		})
		refusesAll(t, badLists(ctx, v))
	})
	if wrote != 0 {
		t.Errorf("bad input made the vault write %d times", wrote)
	}
	checkListed(t, v, token)
}

// badLists asks for lists with options that are refused.
func badLists(ctx context.Context, v *cardvault.Vault) []refusal {
	list := func(o cardvault.TokenListOptions) error { return errorOf(v.List(ctx, &o)) }

	return []refusal{
		{list(cardvault.TokenListOptions{Limit: -1}), "Limit out_of_range"},
		{list(cardvault.TokenListOptions{Limit: 501}), "Limit out_of_range"},
		{list(cardvault.TokenListOptions{Page: -1}), "Page out_of_range"},
		{list(cardvault.TokenListOptions{Limit: 501, Page: -1, From: time.UnixMicro(2), To: time.UnixMicro(1)}),
			"Limit out_of_range, Page out_of_range, From invalid_range"},
		{list(cardvault.TokenListOptions{Scheme: []card.Scheme{99}}), "Scheme invalid_enum"},
		{list(cardvault.TokenListOptions{NetworkTokenStatus: []network.Status{99}}), "NetworkTokenStatus invalid_enum"},
		{errorOf(v.ListMerchants(ctx, &cardvault.ListOptions{Limit: 501})), "Limit out_of_range"},
		{errorOf(v.ListAPIKeys(ctx, &cardvault.ListOptions{Page: -1})), "Page out_of_range"},
		{errorOf(v.ListAccounts(ctx, &cardvault.ListOptions{Page: -1})), "Page out_of_range"},
		{list(cardvault.TokenListOptions{Fingerprint: cardvault.Fingerprint{1}, Limit: -1}), "Limit out_of_range, Fingerprint out_of_range"},
		{errorOf(collect(ctx, v, &cardvault.TokenListOptions{From: time.UnixMicro(2), To: time.UnixMicro(1)})), "From invalid_range"},
	}
}

// A refusal is an error that a call has returned, and the violations that it must report.
type refusal struct {
	err  error
	want string
}

// refusesAll checks refusals, and that none of them repeats its input.
func refusesAll(t *testing.T, all []refusal) {
	for i, r := range all {
		refuses(t, fmt.Sprintf("row %d", i), r.err, strings.Split(r.want, ", ")...)
		vaulttest.AssertNoLeak(t, []string{"canary", "tokens:steal"}, r.err)
	}
}

// errorOf returns the error of a call.
func errorOf[T any](_ T, err error) error { return err }

func nonLuhn(t *testing.T, s store.Store) {
	v := vaultOn(t, s, &cardvault.Options{Mode: cardvault.Sandbox, AllowNonLuhn: true})
	c := testCard(1)
	setPAN("4111110000000006")(&c)
	importCard(t, v, c, nil)
	setPAN("41111100000000")(&c)
	_, err := v.Import(t.Context(), c, nil)
	refuses(t, "an invalid length for VISA", err, "PAN invalid_format")
}
