package cardvault_test

import (
	"context"
	"fmt"
	"log"
	"sync"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/store/memstore"
	"github.com/google/uuid"
)

// A notebook is the skeleton of an EventSink. It handles each event once, even if an event
// is passed again. A real program stores the ids in its database, in one transaction with
// the effect.
type notebook struct {
	mu   sync.Mutex
	seen map[uuid.UUID]bool
}

func (n *notebook) Event(_ context.Context, e *cardvault.Event) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.seen[e.ID] {
		n.seen[e.ID] = true
		fmt.Println(e.Type, e.Reason)
	}
	return nil
}

// The program is notified of changes to its tokens. Package sinktest tests an EventSink.
func ExampleEventSink() {
	ctx := context.Background()
	keys, err := cardvault.KeyBytes(make([]byte, cardvault.KeySize)) // use a random key
	if err != nil {
		log.Fatal(err)
	}
	v, err := cardvault.New(ctx, memstore.New(), keys, &cardvault.Options{
		Mode:   cardvault.Sandbox,
		Events: &notebook{seen: map[uuid.UUID]bool{}},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer v.Close()

	token, err := v.Import(ctx, cardvault.Card{
		PAN:    card.NewPAN([]byte("4242424242424242")),
		Expiry: card.Expiry{Month: 12, Year: 2090},
	}, nil)
	if err != nil {
		log.Fatal(err)
	}
	if err := v.Drain(ctx); err != nil { // or Run, in a goroutine
		log.Fatal(err)
	}
	if err := v.Delete(ctx, token.ID); err != nil {
		log.Fatal(err)
	}
	if err := v.Drain(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// token.created imported
	// token.deleted requested
}
