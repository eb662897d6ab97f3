package updater_test

import (
	"context"
	"fmt"
	"log"
	"slices"
	"sync"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/receive"
	"github.com/cardvault/cardvault/store/memstore"
	"github.com/cardvault/cardvault/updater"
	"github.com/google/uuid"
)

// An adapter is the skeleton of an adapter to an account updater. In place of the queue of a
// real one it has a slice.
type adapter struct {
	mu       sync.Mutex
	asked    map[string]bool    // references that were submitted
	outcomes []*updater.Outcome // not passed on yet
	news     chan struct{}      // holds a token when there may be outcomes
}

var _ updater.Provider = (*adapter)(nil)

func newAdapter() *adapter {
	return &adapter{asked: map[string]bool{}, news: make(chan struct{}, 1)}
}

func (*adapter) Info() updater.Info { return updater.Info{Name: "adapter", SandboxOnly: true} }

// Submit asks about each card once, however often it is called.
func (a *adapter) Submit(ctx context.Context, r *updater.SubmitRequest) error {
	if err := ctx.Err(); err != nil {
		return err // nothing was sent
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, c := range r.Cards {
		if !a.asked[c.Reference] {
			a.asked[c.Reference] = true
			a.outcomes = append(a.outcomes, answer(c))
		}
	}
	a.wake()
	return nil
}

// answer is what a real updater finds out: here, that one card has a new number.
func answer(c updater.CardRef) *updater.Outcome {
	o := &updater.Outcome{ID: uuid.NewString(), Reference: c.Reference, Kind: updater.NoMatch}
	c.PAN.Expose(func(digits []byte) {
		if string(digits) == "4111111111111111" {
			o.Kind, o.PAN, o.Expiry = updater.Updated, card.NewPAN([]byte("4000000000000002")), card.Expiry{Month: 12, Year: 2094}
		}
	})
	return o
}

// Feed passes on what there is, and then waits for more.
func (a *adapter) Feed(ctx context.Context, sink func(context.Context, *updater.Outcome) error) error {
	for ctx.Err() == nil {
		var pause <-chan time.Time
		for _, o := range a.waiting() {
			if err := sink(ctx, o); err != nil {
				pause = time.After(time.Second) // it is passed again
			} else {
				a.drop(o)
			}
		}

		select {
		case <-ctx.Done():
		case <-a.news:
		case <-pause:
		}
	}
	return nil
}

func (a *adapter) wake() {
	select {
	case a.news <- struct{}{}:
	default:
	}
}

func (a *adapter) waiting() []*updater.Outcome {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.outcomes)
}

func (a *adapter) drop(o *updater.Outcome) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.outcomes = slices.DeleteFunc(a.outcomes, func(other *updater.Outcome) bool { return other == o })
}

// A bell passes the reasons of events on.
type bell chan receive.EventReason

func (b bell) Event(_ context.Context, e *cardvault.Event) error {
	b <- e.Reason
	return nil
}

// The issuer has replaced a stored card: its token receives the new number. Package
// updatertest tests an adapter.
func ExampleProvider() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	keys, err := cardvault.KeyBytes(make([]byte, cardvault.KeySize)) // use a random key
	if err != nil {
		log.Fatal(err)
	}
	events := make(bell, 2)
	v, err := cardvault.New(ctx, memstore.New(), keys, &cardvault.Options{Mode: cardvault.Sandbox, Updater: newAdapter(), Events: events})
	if err != nil {
		log.Fatal(err)
	}
	defer v.Close()
	token, err := v.Import(ctx, cardvault.Card{
		PAN:    card.NewPAN([]byte("4111111111111111")),
		Expiry: card.Expiry{Month: 12, Year: 2090},
	}, nil)
	if err != nil {
		log.Fatal(err)
	}

	go v.Run(ctx)
	fmt.Println(<-events)
	fmt.Println(<-events)
	if token, err = v.Get(ctx, token.ID); err != nil {
		log.Fatal(err)
	}
	fmt.Println(token.MaskedAccountNumber, token.Expiry)
	// Output:
	// imported
	// card_updated_by_issuer
	// 400000******0002 {12 2094}
}
