package forward_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/forward"
	"github.com/cardvault/cardvault/store/memstore"
	"github.com/google/uuid"
)

// psp is a payment provider for the examples: it answers with what it was sent.
func psp() *httptest.Server {
	return httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", r.Header.Get("Content-Type"))
		_, _ = io.Copy(w, r.Body)
	}))
}

// stored returns a vault and the token of a card in it.
func stored(ctx context.Context) (*cardvault.Vault, uuid.UUID) {
	keys, err := cardvault.KeyBytes(make([]byte, cardvault.KeySize)) // use a random key
	if err != nil {
		log.Fatal(err)
	}
	v, err := cardvault.New(ctx, memstore.New(), keys, &cardvault.Options{Mode: cardvault.Sandbox})
	if err != nil {
		log.Fatal(err)
	}
	token, err := v.Import(ctx, cardvault.Card{
		PAN:    card.NewPAN([]byte("4242424242424242")),
		Expiry: card.Expiry{Month: 12, Year: 2090},
	}, nil)
	if err != nil {
		log.Fatal(err)
	}
	return v, token.ID
}

// A payment with a stored card: the request has placeholders, and the answer is masked.
func Example() {
	ctx := context.Background()
	v, token := stored(ctx)
	defer v.Close()
	provider := psp()
	defer provider.Close()

	f, err := forward.New(v, []forward.Destination{{Name: "psp", URL: provider.URL + "/v1"}}, &forward.Options{AllowLoopback: true})
	if err != nil {
		log.Fatal(err)
	}
	defer f.Close()

	resp, err := f.Client(token, nil).Post(provider.URL+"/v1/charges", "application/json",
		strings.NewReader(`{"number":"{{ account_number }}","month":"{{ expiry_month | number }}","amount":1999}`))
	if err != nil {
		log.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(resp.Status, string(body))
	// Output: 200 OK {"number":"424242******4242","month":12,"amount":1999}
}

// A library that builds its own requests, or a text that a shopper has typed: random
// placeholders.
func ExampleForwarder_With() {
	ctx := context.Background()
	v, token := stored(ctx)
	defer v.Close()
	provider := psp()
	defer provider.Close()
	f, err := forward.New(v, []forward.Destination{{Name: "psp", URL: provider.URL}}, &forward.Options{AllowLoopback: true})
	if err != nil {
		log.Fatal(err)
	}
	defer f.Close()
	client := f.Client(uuid.Nil, nil) // one for all tokens, such as for the library

	ctx, card := f.With(ctx, token, nil)
	form := "number=" + card.AccountNumber + "&note={{ account_number }}"
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, provider.URL+"/charges", strings.NewReader(form))
	if err != nil {
		log.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	resp, err := client.Do(r)
	if err != nil {
		log.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(string(body))
	// Output: number=424242******4242&note={{ account_number }}
}

// A request for any destination, as POST /forward makes it, once under its key.
func ExampleForwarder_Do() {
	ctx := context.Background()
	v, token := stored(ctx)
	defer v.Close()
	provider := psp()
	defer provider.Close()
	f, err := forward.New(v, []forward.Destination{{Name: "psp", URL: provider.URL}}, &forward.Options{AllowLoopback: true})
	if err != nil {
		log.Fatal(err)
	}
	defer f.Close()

	for range 2 {
		answer, err := f.Do(ctx, token, &forward.Request{
			Method: http.MethodPost,
			URL:    provider.URL + "/charges",
			Header: http.Header{"Content-Type": {"application/json"}},
			Body:   []byte(`{"card":"{{ account_number }}"}`),
		}, &forward.CallOptions{IdempotencyKey: "order 4711"})
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(answer.StatusCode, string(answer.Body), answer.Redacted, answer.Replayed)
	}
	// Output:
	// 200 {"card":"424242******4242"} true false
	// 200 {"card":"424242******4242"} true true
}
