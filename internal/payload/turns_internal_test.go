package payload

import (
	"context"
	"errors"
	"testing"

	"github.com/cardvault/cardvault/internal/ledger"
)

// TestTurns: a payload waits while as many as there are places are decrypted, no longer than
// its context.
func TestTurns(t *testing.T) {
	k := New(Config{Ledger: new(ledger.Ledger)})
	for range cap(k.turns) {
		k.turns <- struct{}{}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	open := func(ctx context.Context) error {
		_, err := k.decrypt(ctx, new(decryption), nil, []byte("a.b.c.d.e"))
		return err
	}
	if err := open(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("without a place: %v", err)
	}

	<-k.turns
	for range 2 {
		if err := open(t.Context()); !errors.Is(err, ErrUndecryptable) {
			t.Errorf("with a place: %v", err)
		}
	}
}
