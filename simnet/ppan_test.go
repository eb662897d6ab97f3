package simnet_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/internal/iin"
	"github.com/cardvault/cardvault/payone"
	"github.com/cardvault/cardvault/ppan"
	"github.com/cardvault/cardvault/simnet"
	"github.com/cardvault/cardvault/store/memstore"
	"github.com/cardvault/cardvault/vaulttest"
)

var portal = payone.HashParameters{AID: "22222", MID: "11111", PortalID: "3333333", Sandbox: true}

// ppanRequest returns a request for a card, with the portal's hash.
func ppanRequest(number card.PAN) *ppan.Request {
	return &ppan.Request{
		Account: ppan.Account{
			AID: portal.AID, MID: portal.MID, PortalID: portal.PortalID, Hash: payone.Hash(simnet.PortalKey, portal),
		},
		Sandbox: true,
		PAN:     number,
		Expiry:  card.Expiry{Month: 2, Year: 2041},
	}
}

func obtainPPAN(t testing.TB, n *simnet.Network, r *ppan.Request) *ppan.Answer {
	t.Helper()
	p, err := n.PPAN().ObtainPPAN(t.Context(), r)
	if err != nil {
		t.Fatalf("ObtainPPAN = %v", err)
	}
	return p
}

func TestPPANScenarios(t *testing.T) {
	n := newNetwork(t, memstore.New(), nil)
	types := map[card.Scheme]string{
		card.VISA: "V", card.Mastercard: "M", card.AmericanExpress: "A",
		card.Discover: "D", card.DinersClub: "D", card.JCB: "J", card.UnionPay: "P",
	}
	for _, scheme := range all {
		for code, want := range map[int]ppan.Status{
			0: ppan.Valid, 10: ppan.Valid, 80: ppan.Valid, 83: ppan.Valid,
			81: ppan.Invalid, 82: ppan.Error,
		} {
			number := simnet.ScenarioPAN(scheme, code)
			p := obtainPPAN(t, n, ppanRequest(number))
			d := digits(number)
			switch {
			case p.Status != want:
				t.Errorf("%v %03d: %+v", scheme, code, p)
			case want == ppan.Valid:
				truncated := d[:6] + strings.Repeat("X", len(d)-10) + d[len(d)-4:]
				if fmt.Sprint(*p) != fmt.Sprint(ppan.Answer{
					Status: want, PseudoPAN: p.PseudoPAN, TruncatedPAN: truncated, CardType: types[scheme], CardExpiry: "4102",
				}) {
					t.Errorf("%v %03d: %+v", scheme, code, p)
				}
			default:
				if fmt.Sprint(*p) != fmt.Sprint(ppan.Answer{
					Status: want, ErrorCode: p.ErrorCode, ErrorMessage: p.ErrorMessage, CustomerMessage: p.CustomerMessage,
				}) || p.ErrorCode == "" || p.ErrorMessage == "" || p.CustomerMessage == "" {
					t.Errorf("%v %03d: %+v", scheme, code, p)
				}
			}
		}
	}
}

// A card always has the same pseudo card number, which cannot be mistaken for a card
// number.
func TestPseudoPAN(t *testing.T) {
	s := memstore.New()
	n := newNetwork(t, s, nil)
	seen := map[string]bool{}
	for code := range 1000 {
		number := simnet.ScenarioPAN(card.Mastercard, code)
		first := obtainPPAN(t, n, ppanRequest(number))
		if first.Status != ppan.Valid {
			continue
		}
		r := ppanRequest(number)
		r.Expiry.Year++
		r.SecurityCode = card.NewSecurityCode([]byte("737"))
		got := obtainPPAN(t, newNetwork(t, s, nil), r).PseudoPAN.Text()
		if got != first.PseudoPAN.Text() || seen[got] {
			t.Fatalf("pseudo card number %s after %s, of another card: %v", got, first.PseudoPAN, seen[got])
		}
		seen[got] = true
		if scheme, _ := iin.Detect([]byte(got)); len(got) != 19 || scheme != iin.Unknown || strings.Contains(got, digits(number)) {
			t.Fatalf("pseudo card number %s is of %v", got, scheme)
		}
		vaulttest.AssertNoCardNumber(t, nil, first)
	}
	other := newNetwork(t, memstore.New(), &simnet.Options{Seed: 7})
	if got := obtainPPAN(t, other, ppanRequest(simnet.ScenarioPAN(card.Mastercard, 0))).PseudoPAN.Text(); seen[got] {
		t.Error("the seed makes no difference")
	}
}

func TestPPANOtherCards(t *testing.T) {
	n := newNetwork(t, memstore.New(), nil)
	for _, c := range []struct {
		number    string // if "?", the check digit is added, also in truncated
		year      int
		want      string // type of the card, or the code of the error
		truncated string
	}{
		{"4242424242424242", 2041, "V", "424242XXXXXX4242"},
		{"4222222222222", 2041, "V", "422222XXX2222"},
		{"4111141011111111116", 2041, "V", "411114XXXXXXXXX1116"},
		{"2223003122003222", 2041, "M", "222300XXXXXX3222"},
		{"5555555555554444", 2041, "M", "555555XXXXXX4444"},
		{"675964982643845?", 2041, "O", "675964XXXXXX845?"},
		{"501800000000000?", 2041, "O", "501800XXXXXX000?"},
		{"56123456789?", 2041, "O", "561234XX789?"},
		{"220000000000000?", 2041, "31", ""}, // Mir
		{"500000000061?", 2041, "31", ""},
		{"4242424242424241", 2041, "14", ""},
		{"4242424242424?", 2041, "14", ""},
		{"4", 2041, "14", ""},
		{"", 2041, "14", ""},
		{"4242424242424242", 2020, "33", ""},
		{"4111110000000815", 2020, "4", ""},
	} {
		if front, ok := strings.CutSuffix(c.number, "?"); ok {
			check := string(iin.CheckDigit([]byte(front)))
			c.number, c.truncated = front+check, strings.Replace(c.truncated, "?", check, 1)
		}
		want := ppan.Invalid
		if c.truncated != "" {
			want = ppan.Valid
		}
		r := ppanRequest(card.NewPAN([]byte(c.number)))
		r.Expiry.Year = c.year
		p := obtainPPAN(t, n, r)
		if p.Status != want || p.CardType+p.ErrorCode != c.want || p.TruncatedPAN != c.truncated {
			t.Errorf("%s: %+v", c.number, p)
		}
	}
}

func TestPPANHash(t *testing.T) {
	n := newNetwork(t, memstore.New(), nil)
	travel := portal
	travel.TravelCard = true
	with := func(edit func(*ppan.Request)) *ppan.Request {
		r := ppanRequest(simnet.ScenarioPAN(card.VISA, 80))
		edit(r)
		return r
	}
	p := obtainPPAN(t, n, with(func(r *ppan.Request) { r.Account.Hash = payone.Hash(simnet.PortalKey, travel) }))
	if p.Status != ppan.Valid || p.TravelCard != "no" {
		t.Errorf("with TravelCard: %+v", p)
	}
	for name, r := range map[string]*ppan.Request{
		"another key": with(func(r *ppan.Request) { r.Account.Hash = payone.Hash("another", portal) }),
		"none":        with(func(r *ppan.Request) { r.Account.Hash = ppan.Hash{} }),
		"another aid": with(func(r *ppan.Request) { r.Account.AID = "1" }),
		"live": with(func(r *ppan.Request) {
			live := portal
			live.Sandbox = false
			r.Account.Hash = payone.Hash(simnet.PortalKey, live)
		}),
	} {
		if p := obtainPPAN(t, n, r); p.Status != ppan.Error || p.ErrorCode != "2006" {
			t.Errorf("%s: %+v", name, p)
		}
	}
	if _, err := n.PPAN().ObtainPPAN(t.Context(), with(func(r *ppan.Request) { r.Sandbox = false })); err == nil {
		t.Error("a live vault is given a pseudo card number")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := n.PPAN().ObtainPPAN(ctx, with(func(*ppan.Request) {})); !errors.Is(err, context.Canceled) {
		t.Errorf("ObtainPPAN = %v", err)
	}
}

// The simulator answers a sandbox vault directly.
func TestPPANOfVault(t *testing.T) {
	n := newNetwork(t, memstore.New(), nil)
	v := vaulttest.NewWith(t, &cardvault.Options{Mode: cardvault.Sandbox, PPAN: n.PPAN()})
	token, err := v.Import(t.Context(), cardvault.Card{
		PAN:    simnet.ScenarioPAN(card.VISA, 81),
		Expiry: card.Expiry{Month: 2, Year: 2041},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	p, err := v.ObtainPPAN(t.Context(), token.ID, ppanRequest(card.PAN{}).Account)
	if err != nil || p.Status != ppan.Invalid || p.ErrorCode != "4" {
		t.Errorf("ObtainPPAN = %+v, %v", p, err)
	}
}
