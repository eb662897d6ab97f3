// Package keytext makes and reads the texts of API keys:
//
//	vk_live_ 0a1b2c3d _ 43 characters of secret, 6 of checksum
//	prefix   short id
//
// The secret is 256 random bits in base62. The checksum is the CRC-32 of all before it, so
// that a mistyped key costs no read.
package keytext

import (
	"crypto/rand"
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
	var random [32]byte
	rand.Read(random[:])
	secret = base62(new(big.Int).SetBytes(random[:]), secretLen)
	head := prefix + Short(id) + "_" + secret
	return head + checksum(head), secret
}

// Parse returns the short id and the secret of a text, and false for a text that New never
// makes.
func Parse(prefix, text string) (short, secret string, ok bool) {
	rest, ok := strings.CutPrefix(text, prefix)
	if !ok || len(rest) != shortLen+1+secretLen+checksumLen || rest[shortLen] != '_' {
		return "", "", false
	}
	if checksum(text[:len(text)-checksumLen]) != text[len(text)-checksumLen:] {
		return "", "", false
	}
	return rest[:shortLen], rest[shortLen+1 : shortLen+1+secretLen], true
}

const digits = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"

func checksum(head string) string {
	n := crc32.ChecksumIEEE([]byte(head))
	var c [checksumLen]byte
	for i := range c {
		c[len(c)-1-i] = digits[n%62]
		n /= 62
	}
	return string(c[:])
}

func base62(n *big.Int, width int) string {
	text := n.Text(62)
	return strings.Repeat("0", width-len(text)) + text
}
