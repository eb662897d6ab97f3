package simnet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/internal/iin"
	"github.com/cardvault/cardvault/payone"
	"github.com/cardvault/cardvault/ppan"
)

// PortalKey is the key of the hash with which the simulator, as a provider of
// pseudo card numbers, knows its merchants, whatever their ids.
const PortalKey = "secretTestKey"

// PPAN returns the simulator as a provider of pseudo card numbers, which answers as the
// test system of a provider would: see the scenarios. It accepts the hashes of both kinds
// of [payone.HashParameters]; with TravelCard the answer says that the card is not one. A
// card always has the same pseudo card number, which has the prefix of no scheme.
func (n *Network) PPAN() ppan.Provider { return provider{n} }

// A provider is a Network as a ppan.Provider.
type provider struct{ n *Network }

func (provider) Info() ppan.Info { return ppan.Info{Name: simulator, SandboxOnly: true} }

func (s provider) ObtainPPAN(ctx context.Context, r *ppan.Request) (p *ppan.Answer, err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if !r.Sandbox {
		return nil, errors.New("simnet: a live vault requests a pseudo card number")
	}
	h := payone.HashParameters{AID: r.Account.AID, MID: r.Account.MID, PortalID: r.Account.PortalID, Sandbox: r.Sandbox}
	plain := payone.Verify(PortalKey, h, r.Account.Hash)
	h.TravelCard = true
	travel := payone.Verify(PortalKey, h, r.Account.Hash)
	if !plain && !travel {
		return notPPAN(ppan.Error, "2006", "Parameter {hash} faulty or missing."), nil
	}
	r.PAN.Expose(func(digits []byte) { p = s.n.ppan(digits, r.Expiry) })
	if travel && p.Status == ppan.Valid {
		p.TravelCard = "no"
	}
	return p, nil
}

func (n *Network) ppan(digits []byte, e card.Expiry) *ppan.Answer {
	of, lengthOK := iin.Detect(digits)
	switch scenarioOf(card.Scheme(of), digits) {
	case 81:
		return notPPAN(ppan.Invalid, "4", "Card not approved.")
	case 82:
		return notPPAN(ppan.Error, "2003", "Merchant not found or without rights.")
	}

	kind := cardType(of, digits)
	switch {
	case !lengthOK || !iin.Luhn(digits):
		return notPPAN(ppan.Invalid, "14", "Invalid card.")
	case kind == "":
		return notPPAN(ppan.Invalid, "31", "Card type not supported.")
	case e.Month < 1 || e.Month > 12 || e.Expired(time.UnixMicro(n.now())):
		return notPPAN(ppan.Invalid, "33", "Expiry date invalid.")
	}

	pseudo := []byte("9410010000000000000")
	for i, b := range n.mac("ppan", digits)[:13] {
		pseudo[6+i] = '0' + b%10
	}

	end := len(digits) - 4
	return &ppan.Answer{
		Status:       ppan.Valid,
		PseudoPAN:    ppan.NewPseudoPAN(pseudo),
		TruncatedPAN: string(digits[:6]) + string(bytes.Repeat([]byte("X"), end-6)) + string(digits[end:]),
		CardType:     kind,
		CardExpiry:   fmt.Sprintf("%02d%02d", e.Year%100, e.Month),
	}
}

// notPPAN returns the answer to a request that has none.
func notPPAN(s ppan.Status, code, message string) *ppan.Answer {
	customer := "The card could not be checked. Please check what you have entered, or take another card."
	if s == ppan.Error {
		customer = "An error occurred. Please try again later."
	}
	return &ppan.Answer{Status: s, ErrorCode: code, ErrorMessage: message, CustomerMessage: customer}
}

// cardType returns the provider's code of a card, "" if it takes none such.
func cardType(s iin.Scheme, digits []byte) string {
	if s == iin.Mastercard && digits[0] != '2' && (digits[0] != '5' || digits[1] < '1' || digits[1] > '5') {
		return "O" // Maestro
	}
	return [...]string{
		iin.Unknown: "", iin.VISA: "V", iin.Mastercard: "M", iin.AmericanExpress: "A",
		iin.Discover: "D", iin.DinersClub: "D", iin.JCB: "J", iin.UnionPay: "P",
	}[s]
}
