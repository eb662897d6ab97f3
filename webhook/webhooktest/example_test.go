package webhooktest_test

import (
	"context"
	"fmt"
	"log"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/store/memstore"
	"github.com/cardvault/cardvault/webhook/webhooktest"
)

// The events of a vault arrive at a receiver in memory. The vault comes from package
// vaulttest.
func ExampleNewSender() {
	ctx := context.Background()
	hook := webhooktest.New()
	keys, err := cardvault.KeyBytes(make([]byte, cardvault.KeySize))
	if err != nil {
		log.Fatal(err)
	}
	v, err := cardvault.New(ctx, memstore.New(), keys, &cardvault.Options{
		Mode: cardvault.Sandbox, Webhooks: webhooktest.NewSender(hook),
	})
	if err != nil {
		log.Fatal(err)
	}
	defer v.Close()

	webhook, err := v.CreateWebhook(ctx, "https://shop.example/hook", nil)
	if err != nil {
		log.Fatal(err)
	}
	hook.Trust(webhook.Secret)

	token, err := v.Import(ctx, cardvault.Card{
		PAN:    card.NewPAN([]byte("4242424242424242")),
		Expiry: card.Expiry{Month: 12, Year: 2040},
	}, nil)
	if err != nil {
		log.Fatal(err)
	}
	if err := v.Drain(ctx); err != nil {
		log.Fatal(err)
	}
	for _, d := range hook.Deliveries() {
		fmt.Println(d.Event.Type, d.Event.TokenID == token.ID, d.Err)
	}
	// Output:
	// token.created true <nil>
}
