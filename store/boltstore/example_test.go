package boltstore_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/store/boltstore"
)

// A vault on a file with a name of its own. [cardvault.Open] would also open the file.
func ExampleOpen() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	keys, err := cardvault.KeyBytes(make([]byte, cardvault.KeySize)) // use a random key
	if err != nil {
		log.Fatal(err)
	}

	file := filepath.Join(dir, "vault", "cards.db")
	for range 2 { // the second time the first card is there
		s, err := boltstore.Open(ctx, file, nil)
		if err != nil {
			log.Fatal(err)
		}
		v, err := cardvault.New(ctx, s, keys, &cardvault.Options{Mode: cardvault.Sandbox})
		if err != nil {
			log.Fatal(err)
		}
		if _, err := v.Import(ctx, cardvault.Card{
			PAN:    card.NewPAN([]byte("4242424242424242")),
			Expiry: card.Expiry{Month: 12, Year: 2040},
		}, nil); err != nil {
			log.Fatal(err)
		}
		page, err := v.List(ctx, nil)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(page.TotalItems)

		// Close the vault first: its store belongs to the caller.
		if err := errors.Join(v.Close(), s.Close()); err != nil {
			log.Fatal(err)
		}
	}
	// Output:
	// 1
	// 2
}

// Checking a whole file, for example one restored from a backup.
func ExampleStore_Check() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)

	s, err := boltstore.Open(ctx, filepath.Join(dir, "cards.db"), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()
	fmt.Println(s.Check(ctx))
	// Output: <nil>
}
