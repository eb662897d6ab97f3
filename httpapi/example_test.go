package httpapi_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/httpapi"
	"github.com/cardvault/cardvault/store/memstore"
)

// The REST API under a prefix, and one import.
func ExampleNewHandler() {
	ctx := context.Background()
	keys, err := cardvault.KeyBytes(make([]byte, cardvault.KeySize)) // use a random key
	if err != nil {
		log.Fatal(err)
	}
	v, err := cardvault.New(ctx, memstore.New(), keys, &cardvault.Options{Mode: cardvault.Sandbox})
	if err != nil {
		log.Fatal(err)
	}
	defer v.Close()
	key, err := v.CreateAPIKey(ctx, "shop", []cardvault.Scope{cardvault.ScopeTokensImport}, nil)
	if err != nil {
		log.Fatal(err)
	}

	h, err := httpapi.NewHandler(v, nil)
	if err != nil {
		log.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("/vault/", http.StripPrefix("/vault", h))
	server := httptest.NewServer(mux)
	defer server.Close()

	r, err := http.NewRequest("POST", server.URL+"/vault/cde-import",
		strings.NewReader(`{"account_number":"4242424242424241","expiry_month":12,"expiry_year":2030}`))
	if err != nil {
		log.Fatal(err)
	}
	r.Header.Set("x-api-key", key.Text.Text())
	r.Header.Set("Content-Type", "application/json")
	w, err := http.DefaultClient.Do(r)
	if err != nil {
		log.Fatal(err)
	}
	defer w.Body.Close()
	answer, err := io.ReadAll(w.Body)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(w.StatusCode)
	fmt.Println(string(answer))
	// Output:
	// 422
	// {"status":"422","classifier":"VALIDATION_FAILED","message":"account_number must pass the Luhn check.","validation_errors":[{"field":"account_number","code":"luhn","message":"must pass the Luhn check"}]}
}
