package keytext

import (
	"math/big"
	"strings"
	"testing"
)

// TestGiven: keys from Generate are accepted. A secret that is evidently not a random number
// is refused.
func TestGiven(t *testing.T) {
	const prefix = "vk_live_"
	for range 1000 {
		text := Generate(prefix)
		if short, secret, err := ParseGiven(prefix, text); err != nil || text != join(prefix, short, secret) {
			t.Fatal("a text that was generated is refused:", err)
		}
	}

	padded := new(big.Int).Lsh(new(big.Int).SetBytes([]byte("0123456789abcdef")), 128) // 128 bits and zeros
	for what, secret := range map[string]string{
		"zeros":              strings.Repeat("0", secretLen),
		"more than 256 bits": strings.Repeat("Z", secretLen),
		"a repeated word":    strings.Repeat("Passw0rd", 6)[:secretLen],
		"lower case":         strings.Repeat("0123456789abcdefghijklmnopqrstuvwxyz", 2)[:secretLen],
		"a small number":     base62(big.NewInt(1<<62), secretLen),
		"half a number":      base62(padded, secretLen),
		"a sign":             "-" + newSecret()[1:],
	} {
		if _, _, err := ParseGiven(prefix, join(prefix, shortOf(secret), secret)); err == nil {
			t.Errorf("accepted as 256 random bits: %s", what)
		}
	}

	secret := newSecret()
	if _, _, err := ParseGiven(prefix, join(prefix, "0a1b2c3d", secret)); err == nil {
		t.Error("a text whose short id is not a hash of its secret is accepted")
	}
}
