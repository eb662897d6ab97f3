package keytext

import (
	"math/big"
	"strings"
	"testing"
)

// TestGiven: what Generate makes is taken, and what evidently is no random number is not.
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
		"zeros":            strings.Repeat("0", secretLen),
		"more than 256":    strings.Repeat("Z", secretLen),
		"a word again":     strings.Repeat("Passw0rd", 6)[:secretLen],
		"lower case":       strings.Repeat("0123456789abcdefghijklmnopqrstuvwxyz", 2)[:secretLen],
		"a small number":   base62(big.NewInt(1<<62), secretLen),
		"half of a number": base62(padded, secretLen),
		"a sign":           "-" + newSecret()[1:],
	} {
		if _, _, err := ParseGiven(prefix, join(prefix, shortOf(secret), secret)); err == nil {
			t.Errorf("%s is taken for 256 random bits", what)
		}
	}

	secret := newSecret()
	if _, _, err := ParseGiven(prefix, join(prefix, "0a1b2c3d", secret)); err == nil {
		t.Error("a text whose short id is of no hash is taken")
	}
}
