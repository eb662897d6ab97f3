package paymentdata_test

import (
	"errors"
	"reflect"
	"testing"

	"github.com/cardvault/cardvault/internal/paymentdata"
)

func TestOpen(t *testing.T) {
	secret, other := []byte("0123456789012345678901234567890123456789012"), []byte("x123456789012345678901234567890123456789012")
	for _, c := range []paymentdata.Credential{
		{Number: []byte("4895370012003478"), Month: 12, Year: 2030, Cryptogram: []byte("AgAAAABB6qqnJd0oAmbuXgu8AAAA="), ECI: "07"},
		{Number: []byte("4895370012003478"), Month: 1, Year: 2030, Cryptogram: []byte(`a"b\c`)},
	} {
		jwe, err := c.Seal(secret, "id")
		if err != nil {
			t.Fatal(err)
		}
		got, err := paymentdata.Open(jwe, other, secret)
		if err != nil || !reflect.DeepEqual(*got, c) {
			t.Errorf("%s: %+v, %v", c.Cryptogram, got, err)
		}
		if _, err := paymentdata.Open(jwe, other); !errors.Is(err, paymentdata.ErrOpen) {
			t.Errorf("with another secret: %v", err)
		}
		if _, err := paymentdata.Open(jwe+"x", secret); !errors.Is(err, paymentdata.ErrOpen) {
			t.Errorf("changed: %v", err)
		}
	}
}
