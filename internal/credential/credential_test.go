package credential_test

import (
	"crypto/fips140"
	"crypto/sha256"
	"errors"
	"strings"
	"testing"

	"github.com/cardvault/cardvault/internal/credential"
	"github.com/go-jose/go-jose/v4"
)

func TestOpen(t *testing.T) {
	secret, other := []byte("0123456789012345678901234567890123456789012"), []byte("x123456789012345678901234567890123456789012")
	for cryptogram, eci := range map[string]string{"AgAAAABB6qqnJd0oAmbuXgu8AAAA=": "07", `a"b\c`: "", "": "06"} {
		const number = "4895370012003478"
		c := credential.New([]byte(number), 12, 2030, []byte(cryptogram))
		c.ECI = eci
		jwe, err := c.Seal(secret, "id")
		if err != nil {
			t.Fatal(err)
		}
		again, err := c.Seal(secret, "id")
		if err != nil || shared(jwe, again) != 0 {
			t.Errorf("sealed again: %v, with %d parts as before", err, shared(jwe, again))
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

// TestOpenIncomplete: a cryptogram may be null, and neither missing nor empty.
func TestOpenIncomplete(t *testing.T) {
	secret := []byte("0123456789012345678901234567890123456789012")
	for payload, whole := range map[string]bool{
		`{"network_token":{"token":"4895370012003478","expiry_year":2030,"expiry_month":12},"cryptogram":null,"eci":null}`: true,
		`{"network_token":{"token":"4895370012003478","expiry_year":2030,"expiry_month":12},"cryptogram":"","eci":null}`:   false,
		`{"network_token":{"token":"4895370012003478","expiry_year":2030,"expiry_month":12},"eci":null}`:                   false,
		`{"network_token":{"token":null,"expiry_year":2030,"expiry_month":12},"cryptogram":null,"eci":null}`:               false,
	} {
		key := sha256.Sum256(secret)
		var jwe string
		fips140.WithoutEnforcement(func() {
			e, err := jose.NewEncrypter(jose.A256GCM, jose.Recipient{Algorithm: jose.A256GCMKW, Key: key[:]}, nil)
			if err != nil {
				t.Fatal(err)
			}
			sealed, err := e.Encrypt([]byte(payload))
			if err != nil {
				t.Fatal(err)
			}
			jwe, _ = sealed.CompactSerialize()
		})
		if _, err := credential.Open(jwe, secret); (err == nil) != whole {
			t.Errorf("%s: %v", payload, err)
		}
	}
}

// TestHeader: the header names the secret, whatever characters its id has.
func TestHeader(t *testing.T) {
	secret := []byte("0123456789012345678901234567890123456789012")
	const id = `a"b\c`
	jwe, err := credential.New([]byte("4895370012003478"), 12, 2030, []byte("AgAAAABB6qqnJd0oAmbuXgu8AAAA=")).Seal(secret, id)
	if err != nil {
		t.Fatal(err)
	}
	sealed, err := jose.ParseEncryptedCompact(jwe, []jose.KeyAlgorithm{jose.A256GCMKW}, []jose.ContentEncryption{jose.A256GCM})
	if err != nil || sealed.Header.KeyID != id || sealed.Header.Algorithm != "A256GCMKW" {
		t.Errorf("%+v, %v", sealed.Header, err)
	}
}

// shared returns how many parts of two JWEs are equal.
func shared(a, b string) (n int) {
	other := strings.Split(b, ".")
	for i, part := range strings.Split(a, ".") {
		if part == other[i] {
			n++
		}
	}
	return n
}

// BenchmarkSeal compares with go-jose.
func BenchmarkSeal(b *testing.B) {
	secret := []byte("0123456789012345678901234567890123456789012")
	c := credential.New([]byte("4895370012003478"), 12, 2030, []byte("AgAAAABB6qqnJd0oAmbuXgu8AAAA="))
	b.Run("Seal", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := c.Seal(secret, "id"); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("go-jose", func(b *testing.B) {
		b.ReportAllocs()
		key, plain := sha256.Sum256(secret), make([]byte, 141)
		for b.Loop() {
			e, err := jose.NewEncrypter(jose.A256GCM, jose.Recipient{Algorithm: jose.A256GCMKW, Key: key[:], KeyID: "id"}, nil)
			if err != nil {
				b.Fatal(err)
			}
			sealed, err := e.Encrypt(plain)
			if err != nil {
				b.Fatal(err)
			}
			if _, err := sealed.CompactSerialize(); err != nil {
				b.Fatal(err)
			}
		}
	})
}
