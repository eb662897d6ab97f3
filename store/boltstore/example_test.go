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

// A vault on a file of a name of its own. [cardvault.Open] opens the file, too.
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

		// The vault first: its store is the caller's.
		if err := errors.Join(v.Close(), s.Close()); err != nil {
			log.Fatal(err)
		}
	}
	// Output:
	// 1
	// 2
}

// Looking at all of a file, such as one that was restored from a backup.
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
