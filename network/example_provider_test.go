package network_test

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"log"
	"sync"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/network"
	"github.com/cardvault/cardvault/store/memstore"
	"github.com/google/uuid"
)

// A service is the skeleton of an adapter to a token service: it keeps in memory the state
// of a real one.
type service struct {
	mu     sync.Mutex
	tokens map[string]*network.Token // by the idempotency key of Provision
}

var _ network.Provider = (*service)(nil)

func (*service) Info() network.Info { return network.Info{Name: "service", SandboxOnly: true} }

func (*service) Eligible(r *network.EligibilityRequest) error {
	if r.Scheme != card.VISA {
		return &network.Error{Source: network.SourceConfiguration, Code: network.CodeSchemeNotEnabled}
	}
	return nil
}

// Provision makes one network token under an idempotency key, however often it is called.
func (s *service) Provision(ctx context.Context, r *network.ProvisionRequest) (*network.Token, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ctx.Err() == nil && s.tokens[r.IdempotencyKey] == nil {
		s.tokens[r.IdempotencyKey] = &network.Token{ID: uuid.NewString(), State: network.Active}
	}
	return s.tokens[r.IdempotencyKey], ctx.Err()
}

// find finds a network token by its id, or by the idempotency key if the answer to
// Provision was lost.
func (s *service) find(ref network.Ref) (key string, t *network.Token) {
	for key, t := range s.tokens {
		if t.ID == ref.ID || ref.ID == "" && key == ref.IdempotencyKey {
			return key, t
		}
	}
	return "", nil
}

func (s *service) Lookup(ctx context.Context, ref network.Ref) (*network.Token, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, t := s.find(ref)
	if t == nil && ctx.Err() == nil {
		return nil, network.ErrUnknown
	}
	return t, ctx.Err()
}

// Cryptogram makes one cryptogram under an idempotency key, together with its number.
func (s *service) Cryptogram(ctx context.Context, r *network.CryptogramRequest) (*network.Cryptogram, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, t := s.find(r.Token)
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case t == nil || t.State != network.Active:
		return nil, &network.Error{Source: network.SourceScheme, Code: network.CodeDeclined}
	}

	sum := sha256.Sum256([]byte(t.ID + r.IdempotencyKey))
	return &network.Cryptogram{
		TokenID: t.ID,
		Number:  card.NewPAN([]byte("4000000000000002")),
		Expiry:  card.Expiry{Month: 12, Year: 2090},
		Value:   card.NewCryptogramValue([]byte(base64.StdEncoding.EncodeToString(sum[:20]))),
	}, nil
}

// Delete also succeeds for a deleted network token, whose key never makes another.
func (s *service) Delete(ctx context.Context, ref network.Ref) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if key, t := s.find(ref); t != nil && ctx.Err() == nil {
		s.tokens[key] = &network.Token{ID: t.ID, State: network.Deleted}
	}
	return ctx.Err()
}

// Each imported card receives a network token. Package networktest tests an adapter.
func ExampleProvider() {
	ctx := context.Background()
	keys, err := cardvault.KeyBytes(make([]byte, cardvault.KeySize)) // use a random key
	if err != nil {
		log.Fatal(err)
	}
	v, err := cardvault.New(ctx, memstore.New(), keys, &cardvault.Options{
		Mode:    cardvault.Sandbox,
		Network: &service{tokens: map[string]*network.Token{}},
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
	if token, err = v.Get(ctx, token.ID); err != nil {
		log.Fatal(err)
	}
	fmt.Println(token.NetworkTokenStatus)
	// Output: active
}
