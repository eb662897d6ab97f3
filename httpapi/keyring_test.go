package httpapi_test

import (
	"bytes"
	"net/http"
	"testing"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
)

// TestKeyringChanged: a process without the key that another has changed to says that it is
// unavailable, so that clients ask another one, for records that it cannot open.
func TestKeyringChanged(t *testing.T) {
	r := newRig(t, nil, nil)
	other := r.open(t)
	next, err := cardvault.KeyBytes(bytes.Repeat([]byte{8}, cardvault.KeySize))
	if err != nil {
		t.Fatal(err)
	}
	before := r.importCard(t)
	if err := other.ChangeKeyring(t.Context(), next); err != nil {
		t.Fatal(err)
	}
	if _, err := other.RotateKeys(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	after, err := other.Import(t.Context(), cardvault.Card{PAN: card.NewPAN([]byte(pan)), Expiry: card.Expiry{Month: 4, Year: 2031}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for id, status := range map[string]int{before: http.StatusOK, after.ID.String(): http.StatusServiceUnavailable} {
		if w := r.do(t, "GET", "/tokens/"+id, ""); w.status != status {
			t.Errorf("status %d, want %d: %s", w.status, status, w.body)
		}
	}
}
