// Forward pays with a stored card at a payment provider. The request has placeholders in
// place of the card, and the answer is masked.
//
//	go run ./examples/forward
//
// The provider is a small one of this program. It answers with the card that it has received.
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/forward"
	"github.com/google/uuid"
)

func main() {
	psp := httptest.NewServer(http.HandlerFunc(charge))
	dir, err := os.MkdirTemp("", "cardvault-*")
	if err != nil {
		log.Fatal(err)
	}
	err = run(context.Background(), dir, psp.URL, os.Stdout)
	os.RemoveAll(dir)
	psp.Close()
	if err != nil {
		log.Fatal(err)
	}
}

// run stores a card and pays with it.
func run(ctx context.Context, dir, psp string, out io.Writer) error {
	keys, err := cardvault.KeyFile(filepath.Join(dir, "keys", "vault.key"), nil)
	if err != nil {
		return err
	}
	v, err := cardvault.Open(ctx, filepath.Join(dir, "vault"), keys, &cardvault.Options{Mode: cardvault.Sandbox})
	if err != nil {
		return err
	}
	defer v.Close()
	token, err := v.Import(ctx, cardvault.Card{
		PAN:    card.NewPAN([]byte("4242424242424242")),
		Expiry: card.Expiry{Month: 12, Year: 2030},
	}, nil)
	if err != nil {
		return err
	}
	return pay(v, token.ID, psp, out)
}

// pay charges the card of a token and writes the answer.
func pay(v *cardvault.Vault, token uuid.UUID, psp string, out io.Writer) error {
	f, err := forward.New(v, []forward.Destination{{Name: "psp", URL: psp + "/v1/"}}, &forward.Options{AllowLoopback: true})
	if err != nil {
		return err
	}
	defer f.Close()
	resp, err := f.Client(token, nil).Post(psp+"/v1/charges", "application/json", strings.NewReader(
		`{"number":"{{ account_number }}","month":"{{ expiry_month | number }}","year":"{{ expiry_year | number }}","amount":1999}`))
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	fmt.Fprintln(out, resp.Status)
	_, err = io.Copy(out, resp.Body)
	return err
}

// charge is the payment provider.
func charge(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprint(w, `{"status":"succeeded","received":`)
	_, _ = io.Copy(w, r.Body)
	fmt.Fprintln(w, "}")
}
