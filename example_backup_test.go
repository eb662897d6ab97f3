package cardvault_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/store/memstore"
)

// A vault moves to another store, of any sort. The stream may also go to a file or an object
// store.
func ExampleRestore() {
	ctx := context.Background()
	keys, err := cardvault.KeyBytes(make([]byte, cardvault.KeySize)) // in production, a random key
	if err != nil {
		log.Fatal(err)
	}
	v, err := cardvault.New(ctx, memstore.New(), keys, nil)
	if err != nil {
		log.Fatal(err)
	}
	t, err := v.Import(ctx, cardvault.Card{
		PAN:    card.NewPAN([]byte("4242424242424242")),
		Expiry: card.Expiry{Month: 12, Year: 2060},
	}, nil)
	if err != nil {
		log.Fatal(err)
	}

	var stream bytes.Buffer
	if _, err := v.Backup(ctx, &stream, nil); err != nil {
		log.Fatal(err)
	}
	if err := v.Close(); err != nil { // the twin of the restored vault works no more
		log.Fatal(err)
	}

	s := memstore.New()
	report, err := cardvault.Restore(ctx, s, keys, &stream, nil)
	if err != nil {
		log.Fatal(err)
	}
	_, err = cardvault.New(ctx, s, keys, nil)
	fmt.Println(errors.Is(err, cardvault.ErrFrozen))

	restored, err := cardvault.New(ctx, s, keys, &cardvault.Options{Thaw: report.ID})
	if err != nil {
		log.Fatal(err)
	}
	defer restored.Close()
	same, err := restored.Get(ctx, t.ID)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(same.ID == t.ID)
	// Output:
	// true
	// true
}
