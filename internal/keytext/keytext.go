// Package keytext makes and reads the texts of API keys:
//
//	vk_live_ 0a1b2c3d _ 43 characters of secret, 6 of checksum
//	prefix   short id
//
// The secret is 256 random bits in base62. The checksum is the CRC-32 of all before it, so
// that a mistyped key costs no read. The short id belongs to the key or, in a text that is
// made before its key, is the first hexadecimal digits of the SHA-256 of the secret.
package keytext

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"hash/crc32"
	"math/big"
	"strings"

	"github.com/google/uuid"
)

const (
	shortLen    = 8
	secretLen   = 43
	checksumLen = 6
)

// Short returns the part of an id that is in the text of its key.
func Short(id uuid.UUID) string { return id.String()[:shortLen] }

// New returns the text of a new key with an id, and the secret in it.
func New(prefix string, id uuid.UUID) (text, secret string) {
	secret = newSecret()
	return join(prefix, Short(id), secret), secret
}

// Generate returns the text of a key that is made later.
func Generate(prefix string) string {
	secret := newSecret()
	for evident(secret) { // less than once in a million times
		secret = newSecret()
	}
	return join(prefix, shortOf(secret), secret)
}

func newSecret() string {
	var random [32]byte
	rand.Read(random[:])
	return base62(new(big.Int).SetBytes(random[:]), secretLen)
}

// Secret returns the text of a secret other than an API key: a prefix and 256 random bits.
func Secret(prefix string, encoding *base64.Encoding) []byte {
	var random [32]byte
	rand.Read(random[:])
	return append([]byte(prefix), encoding.AppendEncode(nil, random[:])...)
}

func join(prefix, short, secret string) string {
	head := prefix + short + "_" + secret
	sum := checksum(head)
	return head + string(sum[:])
}

// shortOf returns the short id in the text of a key that is made later.
func shortOf(secret string) string {
	sum := sha256.Sum256([]byte(secret))
	return hex.EncodeToString(sum[:])[:shortLen]
}

// Parse returns the short id and the secret of a text, and false for a text that New never
// makes.
func Parse(prefix, text string) (short, secret string, ok bool) {
	rest, ok := strings.CutPrefix(text, prefix)
	if !ok || len(rest) != shortLen+1+secretLen+checksumLen || rest[shortLen] != '_' {
		return "", "", false
	}
	if sum := checksum(text[:len(text)-checksumLen]); string(sum[:]) != text[len(text)-checksumLen:] {
		return "", "", false
	}
	return rest[:shortLen], rest[shortLen+1 : shortLen+1+secretLen], true
}

// ParseGiven is Parse of a text that Generate may have made. The error says what such a
// text must be.
func ParseGiven(prefix, text string) (short, secret string, err error) {
	short, secret, ok := Parse(prefix, text)
	if !ok || short != shortOf(secret) {
		return "", "", errors.New("must be a text from GenerateAPIKeyText for the mode of the vault")
	}
	if evident(secret) {
		return "", "", errors.New("must carry 256 random bits")
	}
	return short, secret, nil
}

// evident reports whether a secret evidently does not have 256 random bits: it repeats
// itself, as words, short numbers and padded keys do, or is the number of no 256 bits.
func evident(secret string) bool {
	n, ok := new(big.Int).SetString(secret, 62)
	if !ok || n.Sign() < 0 || n.BitLen() > 256 {
		return true
	}
	var bits [32]byte
	n.FillBytes(bits[:])
	return distinct([]byte(secret)) < 18 || distinct(bits[:]) < 20 ||
		secret == strings.ToLower(secret) || secret == strings.ToUpper(secret)
}

// distinct returns how many different bytes b has.
func distinct(b []byte) (n int) {
	var seen [256]bool
	for _, c := range b {
		if !seen[c] {
			seen[c] = true
			n++
		}
	}
	return n
}

const digits = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"

func checksum(head string) (c [checksumLen]byte) {
	n := crc32.ChecksumIEEE([]byte(head))
	for i := range c {
		c[len(c)-1-i] = digits[n%62]
		n /= 62
	}
	return c
}

func base62(n *big.Int, width int) string {
	text := n.Text(62)
	return strings.Repeat("0", width-len(text)) + text
}
