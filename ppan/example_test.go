package ppan_test

import (
	"context"
	"fmt"
	"log"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/ppan"
	"github.com/cardvault/cardvault/store/memstore"
)

// A psp is the skeleton of an adapter to a payment provider, here to a provider that
// accepts every card.
type psp struct{}

var _ ppan.Provider = psp{}

func (psp) Info() ppan.Info { return ppan.Info{Name: "psp", SandboxOnly: true} }

// ObtainPPAN sends the card, once, and returns the answer of the provider.
func (psp) ObtainPPAN(ctx context.Context, r *ppan.Request) (*ppan.Answer, error) {
	if err := ctx.Err(); err != nil {
		return nil, err // an error means that there is no answer
	}
	masked := ""
	r.PAN.Expose(func(digits []byte) { // this provider drops the number
		masked = string(digits[:6]) + "XXXXXX" + string(digits[len(digits)-4:])
	})
	return &ppan.Answer{
		Status:       ppan.Valid,
		PseudoPAN:    ppan.NewPseudoPAN([]byte("9410010000000000001")),
		TruncatedPAN: masked,
		CardType:     "V",
		CardExpiry:   fmt.Sprintf("%02d%02d", r.Expiry.Year%100, r.Expiry.Month),
	}, nil
}

// The card of a token is sent to a payment provider, which returns a pseudo card number.
func ExampleProvider() {
	ctx := context.Background()
	keys, err := cardvault.KeyBytes(make([]byte, cardvault.KeySize)) // use a random key
	if err != nil {
		log.Fatal(err)
	}
	v, err := cardvault.New(ctx, memstore.New(), keys, &cardvault.Options{Mode: cardvault.Sandbox, PPAN: psp{}})
	if err != nil {
		log.Fatal(err)
	}
	defer v.Close()
	token, err := v.Import(ctx, cardvault.Card{
		PAN:    card.NewPAN([]byte("4242424242424242")),
		Expiry: card.Expiry{Month: 12, Year: 2090},
	}, nil)
	if err != nil {
		log.Fatal(err)
	}

	answer, err := v.ObtainPPAN(ctx, token.ID, ppan.Account{
		AID: "22222", MID: "11111", PortalID: "3333333", Hash: ppan.NewHash([]byte("a hash of what is sent")),
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(answer.Status, answer.TruncatedPAN, answer.PseudoPAN) // the number itself is answer.PseudoPAN.Text()
	// Output: VALID 424242XXXXXX4242 ***
}
