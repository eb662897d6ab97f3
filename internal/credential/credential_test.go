package credential_test

import (
	"errors"
	"testing"

	"github.com/cardvault/cardvault/internal/credential"
)

func TestOpen(t *testing.T) {
	secret, other := []byte("0123456789012345678901234567890123456789012"), []byte("x123456789012345678901234567890123456789012")
	for cryptogram, eci := range map[string]string{"AgAAAABB6qqnJd0oAmbuXgu8AAAA=": "07", `a"b\c`: ""} {
		const number = "4895370012003478"
		c := credential.New([]byte(number), 12, 2030, []byte(cryptogram))
		c.ECI = eci
		jwe, err := c.Seal(secret, "id")
		if err != nil {
			t.Fatal(err)
		}
		got, err := credential.Open(jwe, other, secret)
		if err != nil {
			t.Fatal(err)
		}
		if string(got.Number()) != number || got.Month != 12 || got.Year != 2030 || string(got.Cryptogram()) != cryptogram || got.ECI != eci {
			t.Errorf("%s: opened as another credential", cryptogram)
		}
		if _, err := credential.Open(jwe, other); !errors.Is(err, credential.ErrOpen) {
			t.Errorf("with another secret: %v", err)
		}
		if _, err := credential.Open(jwe+"x", secret); !errors.Is(err, credential.ErrOpen) {
			t.Errorf("changed: %v", err)
		}
	}
}
