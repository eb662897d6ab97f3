package memstore_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/google/uuid"

	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/memstore"
)

// Two records that are written together or not at all. A vault writes sealed records this
// way.
func ExampleNew() {
	ctx := context.Background()
	s := memstore.New()
	defer s.Close()

	order, item := uuid.UUID{1}, uuid.UUID{2}
	write := func(tx store.Tx) error {
		tx.Put(&store.Record{Kind: 1, ID: order, Version: 1, Shown: []byte("sealed")})
		tx.Put(&store.Record{Kind: 2, ID: item, Version: 1, Parent: order, Class: 1})
		return nil
	}
	if err := s.Update(ctx, write); err != nil {
		log.Fatal(err)
	}
	fmt.Println(errors.Is(s.Update(ctx, write), store.ErrConflict)) // whose version is 1 already

	if err := s.View(ctx, func(tx store.ReadTx) error {
		items, err := tx.List(&store.Query{Kind: 2, Parent: order, Count: true})
		if err == nil {
			fmt.Println(items.Total)
		}
		return err
	}); err != nil {
		log.Fatal(err)
	}
	// Output:
	// true
	// 1
}
