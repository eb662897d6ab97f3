// Embed stores a card in a vault inside the program, reads its token, lists
// and deletes it. First it makes what callers of the vault need.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
)

func main() {
	dir, err := os.MkdirTemp("", "cardvault-*")
	if err != nil {
		log.Fatal(err)
	}
	err = run(context.Background(), dir)
	os.RemoveAll(dir)
	if err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, dir string) error {
	keys, err := cardvault.KeyFile(filepath.Join(dir, "keys", "vault.key"), nil) // made on first use
	if err != nil {
		return err
	}
	v, err := cardvault.Open(ctx, filepath.Join(dir, "vault"), keys, nil)
	if err != nil {
		return err
	}
	defer v.Close()
	if err := bootstrap(ctx, v); err != nil {
		return err
	}

	token, err := v.Import(ctx, cardvault.Card{
		PAN:    card.NewPAN([]byte("4242424242424242")),
		Expiry: card.Expiry{Month: 12, Year: 2030},
		Name:   card.NewName([]byte("A Customer")),
	}, nil)
	if err != nil {
		return err
	}
	fmt.Println("imported", token.MaskedAccountNumber, token.Scheme)

	token, err = v.Get(ctx, token.ID)
	if err != nil {
		return err
	}
	fmt.Println("read    ", token.MaskedAccountNumber, token.CardholderName) // a name never prints

	for t, err := range v.All(ctx, nil) {
		if err != nil {
			return err
		}
		fmt.Println("listed  ", t.MaskedAccountNumber, t.NetworkTokenStatus)
	}
	if err := v.Delete(ctx, token.ID); err != nil {
		return err
	}
	page, err := v.List(ctx, nil)
	if err != nil {
		return err
	}
	fmt.Println("deleted:", page.TotalItems, "left")
	return nil
}

// bootstrap makes a merchant and an API key, unless they are there. A program does so at each
// start, in any number of replicas at once: the first one makes them, the others find them.
// The text of the key is from GenerateAPIKeyText, once, and then from a secret manager.
func bootstrap(ctx context.Context, v *cardvault.Vault) error {
	text := cardvault.NewAPIKeyText([]byte(os.Getenv("CARDVAULT_API_KEY")))
	if text.IsZero() {
		text = cardvault.GenerateAPIKeyText(v.Mode())
	}
	key, err := v.EnsureAPIKey(ctx, text, "shop", []cardvault.Scope{cardvault.ScopeTokensImport}, &cardvault.APIKeyOptions{TTL: cardvault.MaxAPIKeyTTL})
	if err != nil {
		return err
	}
	merchant, err := v.EnsureMerchant(ctx, "shop", nil)
	if err != nil {
		return err
	}
	fmt.Println("ready   ", merchant.Name, key.Label)
	return nil
}
