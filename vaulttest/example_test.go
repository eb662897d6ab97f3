package vaulttest_test

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"testing"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/vaulttest"
)

// A checkout is the program under test.
type checkout struct {
	vault *cardvault.Vault
	log   *slog.Logger
}

func (c *checkout) remember(ctx context.Context, number, holder string) error {
	token, err := c.vault.Import(ctx, cardvault.Card{
		PAN:    card.NewPAN([]byte(number)),
		Expiry: card.Expiry{Month: 12, Year: 2030},
		Name:   card.NewName([]byte(holder)),
	}, nil)
	c.log.InfoContext(ctx, "card stored", "token", token, "error", err)
	return err
}

// The real vault in a test, and a proof that the program logs no card data.
func Example() {
	_ = func(t *testing.T) {
		var logged bytes.Buffer
		c := &checkout{vaulttest.New(t), slog.New(slog.NewJSONHandler(&logged, nil))}
		number, holder := "4242424242424242", "Zoë Example"
		if err := c.remember(t.Context(), number, holder); err != nil {
			t.Fatal(err)
		}
		vaulttest.AssertNoLeak(t, []string{number, holder}, logged.Bytes())
	}
}

// After the test, no file in a folder contains anything like a card number.
func ExampleAssertNoCardNumber() {
	_ = func(t *testing.T, dir string) {
		allow := []string{"4242424242424242"} // in the documentation
		vaulttest.AssertNoCardNumber(t, allow, os.DirFS(dir))
	}
}

func TestExample(t *testing.T) {
	var logged bytes.Buffer
	c := &checkout{vaulttest.New(t), slog.New(slog.NewJSONHandler(&logged, nil))}
	if err := c.remember(t.Context(), pan, name); err != nil {
		t.Fatal(err)
	}
	if logged.Len() < 100 {
		t.Errorf("logged %q", logged.String())
	}
	vaulttest.AssertNoLeak(t, []string{pan, name}, logged.Bytes())
	vaulttest.AssertNoCardNumber(t, nil, logged.Bytes())
}
