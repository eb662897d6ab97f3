package cardvault

import (
	"errors"
	"testing"

	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/memstore"
)

// TestClosedCodes: the security codes that a vault keeps go with it.
func TestClosedCodes(t *testing.T) {
	keys, err := KeyBytes(make([]byte, KeySize))
	if err != nil {
		t.Fatal(err)
	}
	v, err := New(t.Context(), memstore.New(), keys, nil)
	if err != nil {
		t.Fatal(err)
	}
	token, err := v.Import(t.Context(), Card{
		PAN: NewPAN([]byte("4242424242424242")), Expiry: Expiry{12, 2030}, SecurityCode: NewSecurityCode([]byte("737")),
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := v.codes.Get(t.Context(), token.ID); err != nil {
		t.Fatal(err)
	}
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := v.codes.Get(t.Context(), token.ID); !errors.Is(err, store.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}
