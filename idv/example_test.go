package idv_test

import (
	"context"
	"fmt"
	"log"
	"sync"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/idv"
	"github.com/cardvault/cardvault/store/memstore"
)

// A phone service calls the cardholder, who says yes or no. This is the skeleton of an
// adapter: it keeps in memory the state of a real service.
type phone struct {
	call func(reference string) *idv.Result // pending while it rings

	mu    sync.Mutex
	calls map[string]*idv.Result // by reference
}

var _ idv.Provider = (*phone)(nil)

func (p *phone) Info() idv.Info { return idv.Info{Name: "phone", SandboxOnly: true} }

// Identify calls once. The idempotency key is the reference, so that a repetition finds the
// first call.
func (p *phone) Identify(ctx context.Context, r *idv.Request) (*idv.Result, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if ctx.Err() == nil && p.calls[r.IdempotencyKey] == nil {
		p.calls[r.IdempotencyKey] = p.call(r.IdempotencyKey)
	}
	return p.calls[r.IdempotencyKey], ctx.Err()
}

// LookupIdentification returns Failed for an unknown reference.
func (p *phone) LookupIdentification(ctx context.Context, r *idv.LookupRequest) (*idv.Result, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if known := p.calls[r.Reference]; known != nil {
		return known, ctx.Err()
	}
	return &idv.Result{State: idv.Failed}, ctx.Err()
}

// sayYes is a cardholder who answers the call at once.
func sayYes(string) *idv.Result {
	return &idv.Result{State: idv.Passed, Authentication: &idv.Authentication{Method: "otp", At: time.Now()}}
}

// The card of a session becomes a token once its holder is identified.
func ExampleProvider() {
	ctx := context.Background()
	keys, err := cardvault.KeyBytes(make([]byte, cardvault.KeySize)) // use a random key
	if err != nil {
		log.Fatal(err)
	}
	service := &phone{call: sayYes, calls: map[string]*idv.Result{}}
	v, err := cardvault.New(ctx, memstore.New(), keys, &cardvault.Options{Mode: cardvault.Sandbox, IDV: service})
	if err != nil {
		log.Fatal(err)
	}
	defer v.Close()
	session, err := v.CreateSession(ctx, nil)
	if err != nil {
		log.Fatal(err)
	}

	token, err := v.Tokenize(ctx, session.ID, cardvault.Card{
		PAN:    card.NewPAN([]byte("4242424242424242")),
		Expiry: card.Expiry{Month: 12, Year: 2090},
	})
	if err != nil { // ErrIdentificationPending while it rings: poll Session
		log.Fatal(err)
	}
	fmt.Println(token.Identification, token.Authentication.Method)
	// Output: checked otp
}
