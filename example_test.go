package cardvault_test

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/receive"
	"github.com/cardvault/cardvault/simnet"
	"github.com/cardvault/cardvault/store/memstore"
)

// inMemory returns a vault that ends with the program. Tests get theirs from package
// vaulttest.
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

	// The key is stored apart from the vault, so that no backup contains both.
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
		PAN:    card.NewPAN([]byte("4242424242424242")),
		Expiry: card.Expiry{Month: 12, Year: 2030},
	}, nil)
	if err != nil {
		log.Fatal(err)
	}
	token, err = v.Get(ctx, token.ID)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(token.Scheme, token.MaskedAccountNumber)

	page, err := v.List(ctx, &cardvault.TokenListOptions{Scheme: []card.Scheme{card.VISA}})
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
			PAN:    card.NewPAN([]byte(number)),
			Expiry: card.Expiry{Month: 12, Year: 2030},
		}, nil)
		if err != nil {
			log.Fatal(err)
		}
	}

	for token, err := range v.All(ctx, &cardvault.TokenListOptions{Ascending: true}) {
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

	// A session for the card of an order. The card is kept for an hour.
	session, err := v.CreateSession(ctx, &cardvault.SessionOptions{BusinessKey: "order 7", TokenTTL: time.Hour})
	if err != nil {
		log.Fatal(err)
	}
	given := cardvault.Card{
		PAN:          card.NewPAN([]byte("4242424242424242")),
		Expiry:       card.Expiry{Month: 12, Year: 2090},
		SecurityCode: card.NewSecurityCode([]byte("123")),
	}
	token, err := v.Tokenize(ctx, session.ID, given)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(token.BusinessKey, token.ExpiresAt.Sub(token.CreatedAt))

	// The order is placed, so the card is kept.
	if token, err = v.Update(ctx, token.ID, cardvault.TokenUpdate{ExpiresAt: new(time.Time)}); err != nil {
		log.Fatal(err)
	}
	fmt.Println(token.ExpiresAt.IsZero())

	// A session makes only one token.
	_, err = v.Tokenize(ctx, session.ID, given)
	fmt.Println(err)
	// Output:
	// order 7 1h0m0s
	// true
	// cardvault: tokenize card: session is completed
}

func ExampleFieldErrors() {
	ctx := context.Background()
	v := inMemory(ctx)
	defer v.Close()

	_, err := v.Import(ctx, cardvault.Card{
		PAN:    card.NewPAN([]byte("4242424242424241")),
		Expiry: card.Expiry{Month: 13, Year: 2030},
	}, nil)
	for _, e := range cardvault.FieldErrors(err) {
		fmt.Println(e.Field, e.Code)
	}
	// Output:
	// PAN luhn
	// Expiry.Month out_of_range
}

// If the outcome of a call is unknown, repeat the call with the same key.
func ExampleImportOptions_idempotencyKey() {
	ctx := context.Background()
	v := inMemory(ctx)
	defer v.Close()

	for range 2 {
		token, err := v.Import(ctx, cardvault.Card{
			PAN:    card.NewPAN([]byte("4242424242424242")),
			Expiry: card.Expiry{Month: 12, Year: 2030},
		}, &cardvault.ImportOptions{IdempotencyKey: "order 4711"})
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("replayed:", token.Replayed)
	}
	page, err := v.List(ctx, nil)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(page.TotalItems, "token")
	// Output:
	// replayed: false
	// replayed: true
	// 1 token
}

// Ten replicas start at once on one store, with one API key from a secret manager. One of
// them creates the merchant and the key, and the others find them.
func ExampleVault_EnsureAPIKey() {
	ctx, shared := context.Background(), memstore.New()
	keys, err := cardvault.KeyBytes(make([]byte, cardvault.KeySize))
	if err != nil {
		log.Fatal(err)
	}
	text := cardvault.GenerateAPIKeyText(cardvault.Live) // once, by the operator

	start := func() (*cardvault.Vault, error) {
		v, err := cardvault.New(ctx, shared, keys, &cardvault.Options{Replicas: 10})
		if err != nil {
			return nil, err
		}
		if _, err := v.EnsureMerchant(ctx, "shop", nil); err != nil {
			return nil, err
		}
		_, err = v.EnsureAPIKey(ctx, text, "shop", []cardvault.Scope{cardvault.ScopeTokensRead}, &cardvault.APIKeyOptions{TTL: cardvault.MaxAPIKeyTTL})
		return v, err
	}

	var replicas sync.WaitGroup
	for range 10 {
		replicas.Go(func() {
			v, err := start()
			if err != nil {
				log.Fatal(err)
			}
			v.Close()
		})
	}
	replicas.Wait()

	v, err := start()
	if err != nil {
		log.Fatal(err)
	}
	defer v.Close()
	merchants, err := v.ListMerchants(ctx, nil)
	if err != nil {
		log.Fatal(err)
	}
	made, err := v.ListAPIKeys(ctx, nil)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(merchants.TotalItems, "merchants with the primary one,", made.TotalItems, "API key")
	// Output:
	// 2 merchants with the primary one, 1 API key
}

// simulated returns a vault on a simulated network, and a function that closes both.
func simulated(ctx context.Context) (*cardvault.Vault, func()) {
	sim, err := simnet.New(ctx, memstore.New(), nil)
	if err != nil {
		log.Fatal(err)
	}
	keys, err := cardvault.KeyBytes(make([]byte, cardvault.KeySize))
	if err != nil {
		log.Fatal(err)
	}
	v, err := cardvault.New(ctx, memstore.New(), keys, &cardvault.Options{
		Mode:     cardvault.Sandbox,
		Network:  sim,
		Purposes: []string{"payment"},
	})
	if err != nil {
		log.Fatal(err)
	}
	return v, func() { v.Close(); sim.Close() }
}

// A refused network token is requested again.
func ExampleVault_Provision() {
	ctx := context.Background()
	v, closeAll := simulated(ctx)
	defer closeAll()

	// The simulator declines this card the first time.
	token, err := v.Import(ctx, cardvault.Card{
		PAN:    simnet.ScenarioPAN(card.VISA, 13),
		Expiry: card.Expiry{Month: 12, Year: 2030},
	}, nil)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(token.NetworkTokenStatus)

	// A server calls Run in the background instead.
	if err := v.Drain(ctx); err != nil {
		log.Fatal(err)
	}
	token, err = v.Get(ctx, token.ID)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(token.NetworkTokenStatus, token.NetworkTokenStatusReason.Code)

	if _, err = v.Provision(ctx, token.ID, nil); err != nil {
		log.Fatal(err)
	}
	if err := v.Drain(ctx); err != nil {
		log.Fatal(err)
	}
	token, err = v.Get(ctx, token.ID)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(token.NetworkTokenStatus)
	// Output:
	// pending
	// failed declined
	// active
}

// The program requests a payment cryptogram, and the merchant opens it.
func ExampleVault_RequestPaymentData() {
	ctx := context.Background()
	v, closeAll := simulated(ctx)
	defer closeAll()
	merchant, err := v.PrimaryMerchant(ctx)
	if err != nil {
		log.Fatal(err)
	}
	secret, err := v.RotatePaymentSecret(ctx, merchant.ID, nil) // given to the merchant
	if err != nil {
		log.Fatal(err)
	}
	token, err := v.Import(ctx, cardvault.Card{
		PAN:    card.NewPAN([]byte("4242424242424242")),
		Expiry: card.Expiry{Month: 12, Year: 2030},
	}, nil)
	if err != nil {
		log.Fatal(err)
	}
	if err := v.Drain(ctx); err != nil {
		log.Fatal(err)
	}

	data, err := v.RequestPaymentData(ctx, token.ID, cardvault.PaymentRequest{
		Amount:    1999,
		Currency:  "EUR",
		Reference: "order 7",
	})
	if err != nil {
		log.Fatal(err)
	}
	if !data.Success {
		log.Fatal(data.Failures[0].Message)
	}

	// At the merchant:
	credential, err := receive.OpenPaymentData(data.Encrypted, secret.Secret)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(credential.Expiry, credential.ECI)
	credential.Cryptogram.Expose(func(value []byte) { fmt.Println(len(value)) })
	// Output:
	// {12 2030} 07
	// 28
}

// The second month of a subscription is paid without the shopper, and without a cryptogram.
func ExampleVault_RequestPaymentData_merchant() {
	ctx := context.Background()
	v, closeAll := simulated(ctx)
	defer closeAll()
	merchant, err := v.PrimaryMerchant(ctx)
	if err != nil {
		log.Fatal(err)
	}
	secret, err := v.RotatePaymentSecret(ctx, merchant.ID, nil) // given to the merchant
	if err != nil {
		log.Fatal(err)
	}
	token, err := v.Import(ctx, cardvault.Card{
		PAN:    card.NewPAN([]byte("4242424242424242")),
		Expiry: card.Expiry{Month: 12, Year: 2030},
	}, nil)
	if err != nil {
		log.Fatal(err)
	}
	if err := v.Drain(ctx); err != nil {
		log.Fatal(err)
	}

	data, err := v.RequestPaymentData(ctx, token.ID, cardvault.PaymentRequest{
		Amount:               1999,
		Currency:             "EUR",
		Reference:            "order 7, second month",
		Initiator:            cardvault.InitiatorMerchant,
		NetworkTransactionID: "015221743720861", // of the payment that the shopper made
	})
	if err != nil {
		log.Fatal(err)
	}
	if !data.Success {
		log.Fatal(data.Failures[0].Message)
	}

	// At the merchant:
	credential, err := receive.OpenPaymentData(data.Encrypted, secret.Secret)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(data.Initiator, credential.Number.IsZero(), credential.Cryptogram.IsZero())
	// Output:
	// merchant false true
}

// A function has a stored card, for a purpose that the operator has listed.
func ExampleVault_Use() {
	ctx := context.Background()
	keys, err := cardvault.KeyBytes(make([]byte, cardvault.KeySize)) // use a random key
	if err != nil {
		log.Fatal(err)
	}
	v, err := cardvault.New(ctx, memstore.New(), keys, &cardvault.Options{
		Mode:     cardvault.Sandbox,
		Purposes: []string{"fraud-check"},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer v.Close()
	token, err := v.Import(ctx, cardvault.Card{
		PAN:    card.NewPAN([]byte("4242424242424242")),
		Expiry: card.Expiry{Month: 12, Year: 2030},
	}, nil)
	if err != nil {
		log.Fatal(err)
	}

	shared := []byte("a secret shared with the fraud service")
	check := func(_ context.Context, c *cardvault.UsedCard) error {
		mac := hmac.New(sha256.New, shared)
		c.PAN.Expose(func(digits []byte) { mac.Write(digits) }) // erased when the function has returned
		fmt.Printf("%s, %d: %x…\n", c.Masked, c.Expiry.Year, mac.Sum(nil)[:4])
		return nil
	}
	if err := v.Use(ctx, token.ID, "fraud-check", check); err != nil {
		log.Fatal(err)
	}
	fmt.Println(v.Use(ctx, token.ID, "marketing", check))
	// Output:
	// 424242******4242, 2030: ffa521c9…
	// cardvault: use card: Purpose must be one of Options.Purposes
}

// A bank has sent its customer a new card: the token of the old one goes on with it.
func ExampleVault_Replace() {
	ctx := context.Background()
	v, closeAll := simulated(ctx)
	defer closeAll()
	token, err := v.Import(ctx, cardvault.Card{
		PAN:    card.NewPAN([]byte("4242424242424242")),
		Expiry: card.Expiry{Month: 12, Year: 2030},
	}, &cardvault.ImportOptions{BusinessKey: "customer 7"})
	if err != nil {
		log.Fatal(err)
	}

	_, err = v.Replace(ctx, token.ID, cardvault.Card{
		PAN:    card.NewPAN([]byte("5555555555554444")),
		Expiry: card.Expiry{Month: 3, Year: 2034},
	}, &cardvault.CallOptions{IdempotencyKey: "customer 7, card 2"})
	if err != nil {
		log.Fatal(err)
	}
	if err := v.Drain(ctx); err != nil { // a server calls Run in the background instead
		log.Fatal(err)
	}

	token, err = v.Get(ctx, token.ID)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(token.BusinessKey, token.MaskedAccountNumber, token.Scheme, token.Expiry.Year)
	fmt.Println(token.NetworkTokenStatus, token.AccountNumberStale)
	// Output:
	// customer 7 555555******4444 Mastercard 2034
	// active false
}

// A function has the network token of a card with a cryptogram for one payment, to pay with
// a protocol of its own.
func ExampleVault_UseCredential() {
	ctx := context.Background()
	v, closeAll := simulated(ctx)
	defer closeAll()
	token, err := v.Import(ctx, cardvault.Card{
		PAN:    card.NewPAN([]byte("4242424242424242")),
		Expiry: card.Expiry{Month: 12, Year: 2030},
	}, nil)
	if err != nil {
		log.Fatal(err)
	}
	if err := v.Drain(ctx); err != nil { // a server calls Run in the background instead
		log.Fatal(err)
	}

	order := cardvault.PaymentRequest{Amount: 1999, Currency: "EUR", Reference: "order 7"}
	err = v.UseCredential(ctx, token.ID, "payment", order, func(_ context.Context, c *receive.Credential) error {
		fmt.Println(c.Expiry, c.ECI)
		c.Number.Expose(func(digits []byte) { fmt.Println(len(digits), "digits") })
		c.Cryptogram.Expose(func(value []byte) { fmt.Println(len(value), "characters") })
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output:
	// {12 2030} 07
	// 16 digits
	// 28 characters
}

// The JSON of a token is the same as in the REST API, and can be read back.
func ExampleToken_MarshalJSON() {
	token := &cardvault.Token{Status: cardvault.StatusActive, MaskedAccountNumber: "424242******4242", Scheme: card.VISA, Expiry: card.Expiry{Month: 12, Year: 2030}}
	text, err := json.Marshal(token)
	if err != nil {
		log.Fatal(err)
	}

	var got cardvault.Token
	if err := json.Unmarshal(text, &got); err != nil {
		log.Fatal(err)
	}
	fmt.Println(got.MaskedAccountNumber, got.Scheme, got.Expiry.Year)
	fmt.Println(json.Unmarshal([]byte(`{"scheme":"Visa"}`), &got))
	// Output:
	// 424242******4242 VISA 2030
	// cardvault: token: scheme is not one of its values
}
