package cardvault

import (
	"testing"

	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/store/memstore"
)

// TestClosedCodes: Close erases the security codes that a vault keeps.
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
		PAN: card.NewPAN([]byte("4242424242424242")), Expiry: card.Expiry{Month: 12, Year: 2030}, SecurityCode: card.NewSecurityCode([]byte("737")),
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if s, err := v.SecurityCodeStatus(t.Context(), token.ID); err != nil || !s.Available {
		t.Fatal(s, err)
	}
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	if kept := v.codes.Find(t.Context(), v.rows, token.ID); len(kept.Digits()) != 0 {
		t.Error("the code still exists after Close")
	}
}
