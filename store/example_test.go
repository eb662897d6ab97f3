package store_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/google/uuid"

	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/memstore"
)

// A change of a record: of two writers that read it, the second to write fails and reads
// again.
func ExampleStore() {
	ctx := context.Background()
	s := memstore.New()
	defer s.Close()
	id := uuid.UUID{1}
	if err := s.Update(ctx, func(tx store.Tx) error {
		tx.Put(&store.Record{Kind: 1, ID: id, Version: 1})
		return nil
	}); err != nil {
		log.Fatal(err)
	}

	var read *store.Record
	if err := s.View(ctx, func(tx store.ReadTx) (err error) {
		read, err = tx.Get(1, id)
		return err
	}); err != nil {
		log.Fatal(err)
	}
	read.Version++
	change := func(tx store.Tx) error { tx.Put(read); return nil }
	fmt.Println(s.Update(ctx, change))
	fmt.Println(errors.Is(s.Update(ctx, change), store.ErrConflict))
	// Output:
	// <nil>
	// true
}
