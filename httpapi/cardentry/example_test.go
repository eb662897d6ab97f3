package cardentry_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/cardvault/cardvault/httpapi/cardentry"
)

// The component is served by a server of its own, in front of the vault. Package httpapi
// can serve it too.
func ExampleNewHandler() {
	mux := http.NewServeMux()
	mux.Handle("/vault/", http.StripPrefix("/vault", cardentry.NewHandler([]string{"https://shop.example"})))

	r := httptest.NewRequest("GET", "https://vault.example/vault/sdk/v1/card-entry.js", nil)
	r.Header.Set("Origin", "https://shop.example")
	w := httptest.NewRecorder()
	mux.ServeHTTP(w, r)
	fmt.Println(w.Code, w.Header().Get("Content-Type"))
	fmt.Println(w.Header().Get("Access-Control-Allow-Origin"))
	// Output:
	// 200 text/javascript; charset=utf-8
	// https://shop.example
}
