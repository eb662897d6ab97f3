package openbao_test

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/examples/openbao"
	"github.com/cardvault/cardvault/keytest"
)

func TestKey(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(transit))
	t.Cleanup(server.Close)
	open := func(name string) func(testing.TB) cardvault.KeyWrapper {
		return func(testing.TB) cardvault.KeyWrapper {
			return &openbao.Key{Address: server.URL, Token: "token", Name: name}
		}
	}
	keytest.Run(t, keytest.Harness{Open: open("cardvault"), Other: open("other")})
}

// transit answers as the engine does. Each name has a key.
func transit(w http.ResponseWriter, r *http.Request) {
	operation, name, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/v1/transit/"), "/")
	sum := sha256.Sum256([]byte(name))
	block, _ := aes.NewCipher(sum[:])
	aead, _ := cipher.NewGCMWithRandomNonce(block)
	var q map[string][]byte
	fail := func(message string) {
		w.WriteHeader(http.StatusBadRequest)
		_ = json.NewEncoder(w).Encode(map[string][]string{"errors": {message}})
	}

	data := map[string]any{}
	switch operation {
	case "encrypt":
		if json.NewDecoder(r.Body).Decode(&q) != nil {
			fail("no JSON")
			return
		}
		data["ciphertext"] = "vault:v1:" + base64.StdEncoding.EncodeToString(aead.Seal(nil, nil, q["plaintext"], q["associated_data"]))
	case "decrypt":
		var d struct {
			Associated []byte `json:"associated_data"`
			Ciphertext string
		}
		err := json.NewDecoder(r.Body).Decode(&d)
		sealed, found := strings.CutPrefix(d.Ciphertext, "vault:v1:")
		bytes, badText := base64.StdEncoding.DecodeString(sealed)
		if err != nil || !found || badText != nil || len(bytes) < aead.Overhead() {
			fail("invalid ciphertext: could not decode")
			return
		}
		plain, err := aead.Open(nil, nil, bytes, d.Associated)
		if err != nil {
			fail("cipher: message authentication failed")
			return
		}
		data["plaintext"] = plain
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"data": data})
}
