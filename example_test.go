package cardvault_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/store/memstore"
)

// inMemory returns a vault that is gone with the program. Tests take theirs
// from package vaulttest.
func inMemory(ctx context.Context) *cardvault.Vault {
	keys, err := cardvault.KeyBytes(make([]byte, cardvault.KeySize))
	if err != nil {
		log.Fatal(err)
	}
	v, err := cardvault.New(ctx, memstore.New(), keys, &cardvault.Options{Mode: cardvault.Sandbox})
	if err != nil {
		log.Fatal(err)
	}
	return v
}

func Example() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)

	// The key is kept apart from the vault, so that no backup takes both.
	keys, err := cardvault.KeyFile(filepath.Join(dir, "keys", "vault.key"), nil)
	if err != nil {
		log.Fatal(err)
	}
	v, err := cardvault.Open(ctx, filepath.Join(dir, "vault"), keys, &cardvault.Options{Mode: cardvault.Sandbox})
	if err != nil {
		log.Fatal(err)
	}
	defer v.Close()

	token, err := v.Import(ctx, cardvault.Card{
		PAN:    cardvault.NewPAN([]byte("4242424242424242")),
		Expiry: cardvault.Expiry{Month: 12, Year: 2030},
	}, nil)
	if err != nil {
		log.Fatal(err)
	}
	token, err = v.Get(ctx, token.ID)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(token.Scheme, token.MaskedAccountNumber)

	page, err := v.List(ctx, &cardvault.ListOptions{Scheme: []cardvault.Scheme{cardvault.SchemeVISA}})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(page.TotalItems, "token")

	if err := v.Delete(ctx, token.ID); err != nil {
		log.Fatal(err)
	}
	_, err = v.Get(ctx, token.ID)
	fmt.Println(errors.Is(err, cardvault.ErrNotFound))
	// Output:
	// VISA 424242******4242
	// 1 token
	// true
}

func ExampleVault_All() {
	ctx := context.Background()
	v := inMemory(ctx)
	defer v.Close()
	for _, number := range []string{"4242424242424242", "5555555555554444", "378282246310005"} {
		_, err := v.Import(ctx, cardvault.Card{
			PAN:    cardvault.NewPAN([]byte(number)),
			Expiry: cardvault.Expiry{Month: 12, Year: 2030},
		}, nil)
		if err != nil {
			log.Fatal(err)
		}
	}

	for token, err := range v.All(ctx, &cardvault.ListOptions{Ascending: true}) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(token.MaskedAccountNumber, token.Scheme)
	}
	// Output:
	// 424242******4242 VISA
	// 555555******4444 Mastercard
	// 378282*****0005 American Express
}

func ExampleVault_CreateSession() {
	ctx := context.Background()
	v := inMemory(ctx)
	defer v.Close()

	// A guest's card, kept for an hour.
	session, err := v.CreateSession(ctx, &cardvault.SessionOptions{ExpirationTime: 3600})
	if err != nil {
		log.Fatal(err)
	}
	card := cardvault.Card{
		PAN:          cardvault.NewPAN([]byte("4242424242424242")),
		Expiry:       cardvault.Expiry{Month: 12, Year: 2090},
		SecurityCode: cardvault.NewSecurityCode([]byte("123")),
	}
	token, err := v.Tokenize(ctx, session, card)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(token.ExpiresAt.Sub(token.CreatedAt))

	// A session makes one token.
	_, err = v.Tokenize(ctx, session, card)
	fmt.Println(err)
	// Output:
	// 1h0m0s
	// cardvault: session is completed
}

func ExampleFieldErrors() {
	ctx := context.Background()
	v := inMemory(ctx)
	defer v.Close()

	_, err := v.Import(ctx, cardvault.Card{
		PAN:    cardvault.NewPAN([]byte("4242424242424241")),
		Expiry: cardvault.Expiry{Month: 13, Year: 2030},
	}, nil)
	for _, e := range cardvault.FieldErrors(err) {
		fmt.Println(e.Field, e.Code)
	}
	// Output:
	// account_number luhn
	// expiry_month out_of_range
}

func ExampleWithIdempotencyKey() {
	ctx := context.Background()
	v := inMemory(ctx)
	defer v.Close()

	// Whoever does not know whether a call took place makes it again.
	for range 2 {
		_, err := v.Import(cardvault.WithIdempotencyKey(ctx, "order 4711"), cardvault.Card{
			PAN:    cardvault.NewPAN([]byte("4242424242424242")),
			Expiry: cardvault.Expiry{Month: 12, Year: 2030},
		}, nil)
		if err != nil {
			log.Fatal(err)
		}
	}
	page, err := v.List(ctx, nil)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(page.TotalItems, "token")
	// Output:
	// 1 token
}
