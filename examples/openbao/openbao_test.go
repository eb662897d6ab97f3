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
	"sync/atomic"
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

// TestNobodyElse: neither a redirect nor http over a network gets a key or the token.
func TestNobodyElse(t *testing.T) {
	var reached atomic.Bool
	elsewhere := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		reached.Store(true)
		transit(w, r)
	}))
	t.Cleanup(elsewhere.Close)
	for _, status := range []int{http.StatusFound, http.StatusTemporaryRedirect, http.StatusPermanentRedirect} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, elsewhere.URL+r.URL.Path, status)
		}))
		t.Cleanup(server.Close)
		k := &openbao.Key{Address: server.URL, Token: "token", Name: "cardvault"}
		if _, err := k.Wrap(t.Context(), []byte("key"), nil); err == nil || reached.Load() {
			t.Errorf("status %d: %v, followed: %v", status, err, reached.Load())
		}
	}

	for _, address := range []string{"http://192.0.2.1:8200", "http://localhost.example", "ftp://127.0.0.1", "127.0.0.1:8200", "https:", ""} {
		k := &openbao.Key{Address: address, Token: "token", Name: "cardvault"}
		if _, err := k.Wrap(t.Context(), []byte("key"), nil); err == nil || !strings.Contains(err.Error(), "https") {
			t.Errorf("address %q: %v", address, err)
		}
	}
}

// An answer may come before all of the request is sent. The race detector watches.
func TestEarlyAnswer(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusForbidden)
	}))
	t.Cleanup(server.Close)
	k := &openbao.Key{Address: server.URL, Token: "token", Name: "cardvault"}
	for range 20 {
		if _, err := k.Wrap(t.Context(), make([]byte, 1<<20), nil); err == nil {
			t.Fatal("a refusal is no error")
		}
	}
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
