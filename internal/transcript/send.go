package transcript

import (
	"bufio"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/fips140"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"math/big"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// An Answer is the response to a request.
type Answer struct {
	Status int
	Header http.Header
	Body   string
}

// Send lets h answer a request that was read from the wire. A body has a
// Content-Type unless one is among the headers, which are names and values in turn.
func Send(t testing.TB, h http.Handler, method, target, body string, headers ...string) *Answer {
	t.Helper()
	return SendContext(t, t.Context(), h, method, target, body, headers...)
}

// SendContext is Send with a context of the request.
func SendContext(t testing.TB, ctx context.Context, h http.Handler, method, target, body string, headers ...string) *Answer {
	t.Helper()
	var b strings.Builder
	b.WriteString(method + " " + target + " HTTP/1.1\r\nHost: vault.example\r\n")
	typed, chunked := body == "", false
	for i := 0; i < len(headers); i += 2 {
		typed = typed || strings.EqualFold(headers[i], "Content-Type")
		chunked = chunked || strings.EqualFold(headers[i], "Transfer-Encoding")
		b.WriteString(headers[i] + ": " + headers[i+1] + "\r\n")
	}

	if !typed {
		b.WriteString("Content-Type: application/json\r\n")
	}
	switch {
	case chunked && body == "":
		body = "0\r\n\r\n"
	case chunked:
		body = strconv.FormatInt(int64(len(body)), 16) + "\r\n" + body + "\r\n0\r\n\r\n"
	case body != "":
		b.WriteString("Content-Length: " + strconv.Itoa(len(body)) + "\r\n")
	}

	b.WriteString("\r\n" + body)
	r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(b.String())))
	if err != nil {
		t.Fatalf("%s %s cannot be sent: %v", method, target, err)
	}

	r.RemoteAddr = "192.0.2.1:1234"
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r.WithContext(ctx))
	return &Answer{w.Code, w.Header(), w.Body.String()}
}

// Encrypt returns claims as a browser encrypts them under the key of a session: as a
// compact JWE. An sid may be "".
func Encrypt(t testing.TB, session *Answer, claims, sid string) string {
	t.Helper()
	var s struct {
		Data struct {
			JWK struct{ Kty, N, E, Alg, Use, Kid string }
		}
	}

	if err := json.Unmarshal([]byte(session.Body), &s); session.Status != http.StatusOK || err != nil {
		t.Fatalf("no session: %d %s, %v", session.Status, session.Body, err)
	}

	k, b64 := s.Data.JWK, base64.RawURLEncoding
	n, err := b64.DecodeString(k.N)
	if err != nil || k.Kty != "RSA" || k.E != "AQAB" || k.Alg != "RSA-OAEP-256" || k.Use != "enc" {
		t.Fatalf("key %+v: %v", k, err)
	}

	header := map[string]string{"alg": k.Alg, "enc": "A256GCM", "kid": k.Kid}
	if sid != "" {
		header["sid"] = sid
	}

	plain, err := json.Marshal(header)
	if err != nil {
		t.Fatal(err)
	}

	protected := b64.EncodeToString(plain)
	key := make([]byte, 32)
	rand.Read(key)
	var wrapped []byte

	// A browser knows nothing of FIPS 140-3, nor does the randomness of a bubble.
	fips140.WithoutEnforcement(func() {
		wrapped, err = rsa.EncryptOAEP(sha256.New(), rand.Reader, &rsa.PublicKey{N: new(big.Int).SetBytes(n), E: 65537}, key, nil)
	})
	if err != nil {
		t.Fatal(err)
	}

	block, err := aes.NewCipher(key)
	if err != nil {
		t.Fatal(err)
	}

	gcm, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		t.Fatal(err)
	}

	sealed := gcm.Seal(nil, nil, []byte(claims), []byte(protected))
	tag := len(sealed) - 16
	return strings.Join([]string{protected, b64.EncodeToString(wrapped), b64.EncodeToString(sealed[:12]),
		b64.EncodeToString(sealed[12:tag]), b64.EncodeToString(sealed[tag:])}, ".")
}

// Secrets that no answer or log may hold.
const (
	SecretPAN  = "4000056655665556"
	SecretCode = "9137"
)

// incidental is what may hold the digits of a code by chance.
var incidental = regexp.MustCompile(`0x[0-9a-f]+|vk_test_\w+|whsec_[\w+/=]+|[0-9a-f]{8}-[0-9a-f-]{27}|[0-9a-f]{64}|"[0-9a-f]{32}"|"[\w-]{342}"|eyJ[\w.-]+|\d{4}-\d\d-\d\dT[0-9:.]+|[0-9.]+[nµm]?s\b`)

// NoEcho checks that neither secret shows in answers and logs.
func NoEcho(t testing.TB, where string, texts ...string) {
	t.Helper()
	for _, text := range texts {
		clean := incidental.ReplaceAllString(text, "")
		if strings.Contains(text, SecretPAN) || strings.Contains(clean, SecretCode) {
			t.Errorf("%s shows a secret: %s", where, text)
		}
	}
}
