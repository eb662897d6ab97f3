// Package signature signs and verifies deliveries of webhooks as Standard Webhooks 1.0 has it.
//
// A signature is "v1," and the base64 of an HMAC-SHA-256 of id, timestamp and body, joined by
// dots. The text of a secret is "whsec_" and the base64 of its key.
package signature

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"strings"
)

// MaxSecrets limits the secrets that sign a delivery.
const MaxSecrets = 8

// MaxList bounds the signatures of a delivery, in bytes of their header.
const MaxList = 4 << 10

const minKey, maxKey = 24, 64 // bytes

// ErrSecret is returned for a text that is not a secret.
var ErrSecret = errors.New("secret is not whsec_ and the base64 of 24 to 64 bytes")

// Check returns ErrSecret for a text that is not a secret.
func Check(secret []byte) error {
	key, err := decode(secret)
	clear(key)
	return err
}

// decode returns the key of the text of a secret.
func decode(secret []byte) (key []byte, err error) {
	encoded, found := bytes.CutPrefix(secret, []byte("whsec_"))
	key, err = base64.StdEncoding.Strict().AppendDecode(nil, encoded)
	if !found || err != nil || len(key) < minKey || len(key) > maxKey ||
		len(encoded) != base64.StdEncoding.EncodedLen(len(key)) { // the decoder skips line breaks
		clear(key)
		return nil, ErrSecret
	}
	return key, nil
}

// Sign returns the signature of a delivery under the text of a secret.
func Sign(secret []byte, id, timestamp string, body []byte) (string, error) {
	key, err := decode(secret)
	if err != nil {
		return "", err
	}
	defer clear(key)

	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(id + "." + timestamp + "."))
	mac.Write(body)
	return "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil)), nil
}

// Match reports whether the signature of a delivery is in the list of its header, which is
// separated by blanks. It takes the same time for any list of a length.
func Match(list, signature string) bool {
	if len(list) > MaxList {
		return false
	}
	found := false
	for s := range strings.SplitSeq(list, " ") {
		found = hmac.Equal([]byte(s), []byte(signature)) || found
	}
	return found
}
