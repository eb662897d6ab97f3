package keywrappers_test

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	awskms "github.com/aws/aws-sdk-go-v2/service/kms"
	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/examples/keywrappers"
	"github.com/cardvault/cardvault/keytest"
	"github.com/tink-crypto/tink-go/v2/aead"
	"github.com/tink-crypto/tink-go/v2/keyset"
	"google.golang.org/api/option"
)

func TestTink(t *testing.T) {
	open := func() func(testing.TB) cardvault.KeyWrapper {
		keys, err := keyset.NewHandle(aead.AES256GCMKeyTemplate())
		if err != nil {
			t.Fatal(err)
		}
		return func(t testing.TB) cardvault.KeyWrapper {
			w, err := keywrappers.Tink("cards", keys)
			if err != nil {
				t.Fatal(err)
			}
			return w
		}
	}
	keytest.Run(t, keytest.Harness{Open: open(), Other: open()})
}

// A cloud answers over TLS like a KMS, or with a fault.
type cloud struct {
	*httptest.Server

	mu    sync.Mutex
	fault http.HandlerFunc
	aads  []string // of requests, in their order
}

func newCloud(t testing.TB, serve func(c *cloud, w http.ResponseWriter, r *http.Request)) *cloud {
	c := &cloud{}
	c.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.mu.Lock()
		fault := c.fault
		c.mu.Unlock()
		if fault != nil {
			fault(w, r)
			return
		}
		serve(c, w, r)
	}))
	c.Config.ErrorLog = log.New(t.Output(), "", 0)
	c.StartTLS()
	t.Cleanup(c.Close)
	return c
}

func (c *cloud) breaks(fault http.HandlerFunc) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fault = fault
}

func (c *cloud) sees(aad string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.aads = append(c.aads, aad)
}

// seal and unseal encrypt for the services: each name has a key.
func seal(name string, text, aad []byte) []byte { return gcm(name).Seal(nil, nil, text, aad) }

func unseal(name string, sealed, aad []byte) ([]byte, error) {
	return gcm(name).Open(nil, nil, sealed, aad)
}

func gcm(name string) cipher.AEAD {
	sum := sha256.Sum256([]byte(name))
	block, err := aes.NewCipher(sum[:])
	if err != nil {
		panic(err)
	}
	sealer, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		panic(err)
	}
	return sealer
}

const (
	arn      = "arn:aws:kms:eu-central-1:111122223333:key/cards"
	otherARN = "arn:aws:kms:eu-central-1:111122223333:key/other"
	secret   = "wJalrXUtnFEMI"
)

// authorization is that of AWS Signature Version 4.
var authorization = regexp.MustCompile(`^AWS4-HMAC-SHA256 Credential=AKID/(\d{8}/eu-central-1/kms/aws4_request), SignedHeaders=([a-z0-9;-]+), Signature=([0-9a-f]{64})$`)

// signed reports whether a request has the signature of its content under the secret.
func signed(r *http.Request, body []byte) bool {
	form := authorization.FindStringSubmatch(r.Header.Get("Authorization"))
	if form == nil || !strings.HasPrefix(r.Header.Get("X-Amz-Date"), form[1][:8]) {
		return false
	}
	headers := ""
	for name := range strings.SplitSeq(form[2], ";") {
		value := r.Header.Get(name)
		switch name {
		case "host":
			value = r.Host
		case "content-length":
			value = fmt.Sprint(r.ContentLength)
		}
		headers += name + ":" + strings.TrimSpace(value) + "\n"
	}
	request := strings.Join([]string{r.Method, r.URL.EscapedPath(), r.URL.RawQuery, headers, form[2], digest(body)}, "\n")
	text := strings.Join([]string{"AWS4-HMAC-SHA256", r.Header.Get("X-Amz-Date"), form[1], digest([]byte(request))}, "\n")

	key := []byte("AWS4" + secret)
	for _, part := range append(strings.Split(form[1], "/"), text) {
		mac := hmac.New(sha256.New, key)
		mac.Write([]byte(part))
		key = mac.Sum(nil)
	}
	return hex.EncodeToString(key) == form[3] && slices.Contains(strings.Split(form[2], ";"), "x-amz-target")
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// serveAWS answers like AWS KMS. Its ciphertexts begin with the name of the key.
func serveAWS(c *cloud, w http.ResponseWriter, r *http.Request) {
	fail := func(kind string) {
		w.WriteHeader(http.StatusBadRequest)
		_ = json.NewEncoder(w).Encode(map[string]string{"__type": kind, "message": kind})
	}
	var q struct {
		KeyId                     string
		Plaintext, CiphertextBlob []byte
		EncryptionContext         map[string]string
	}
	body, err := io.ReadAll(r.Body)
	switch {
	case err != nil || r.Method != http.MethodPost || r.URL.Path != "/" || json.Unmarshal(body, &q) != nil:
		fail("ValidationException")
		return
	case !signed(r, body):
		fail("InvalidSignatureException")
		return
	case q.KeyId != arn && q.KeyId != otherARN:
		fail("NotFoundException")
		return
	}

	c.sees(q.EncryptionContext["associatedData"])
	aad, _ := json.Marshal(q.EncryptionContext) // in the order of the names
	name, sealed, _ := bytes.Cut(q.CiphertextBlob, []byte(" "))
	switch r.Header.Get("X-Amz-Target") {
	case "TrentService.Encrypt":
		if len(q.Plaintext) == 0 || len(q.Plaintext) > 4096 {
			fail("ValidationException")
			return
		}
		text := append([]byte(q.KeyId+" "), seal(q.KeyId, q.Plaintext, aad)...)
		_ = json.NewEncoder(w).Encode(map[string]any{"KeyId": q.KeyId, "CiphertextBlob": text})
	case "TrentService.Decrypt":
		text, err := unseal(q.KeyId, sealed, aad)
		switch {
		case len(q.CiphertextBlob) == 0 || len(q.CiphertextBlob) > 6144:
			fail("ValidationException")
		case bytes.HasPrefix(name, []byte("arn:aws:kms:")) && string(name) != q.KeyId:
			fail("IncorrectKeyException")
		case err != nil || string(name) != q.KeyId:
			fail("InvalidCiphertextException")
		default:
			_ = json.NewEncoder(w).Encode(map[string]any{"KeyId": q.KeyId, "Plaintext": text})
		}
	default:
		fail("UnknownOperationException")
	}
}

// clientOf returns a client of AWS KMS with a secret.
func clientOf(c *cloud, with string) *awskms.Client {
	return awskms.New(awskms.Options{
		BaseEndpoint: &c.URL,
		HTTPClient:   c.Client(),
		Region:       "eu-central-1",
		Retryer:      aws.NopRetryer{},
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "AKID", SecretAccessKey: with}, nil
		}),
	})
}

func openAWS(t testing.TB, c *cloud, name, with string) cardvault.KeyWrapper {
	t.Helper()
	w, err := keywrappers.AWS(t.Context(), name, clientOf(c, with))
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func TestAWS(t *testing.T) {
	c := newCloud(t, serveAWS)
	keytest.Run(t, keytest.Harness{
		Open:  func(t testing.TB) cardvault.KeyWrapper { return openAWS(t, c, arn, secret) },
		Other: func(t testing.TB) cardvault.KeyWrapper { return openAWS(t, c, otherARN, secret) },
	})
}

const keyName = "projects/shop/locations/europe-west3/keyRings/vault/cryptoKeys/"

// serveGoogle answers like Google Cloud KMS.
func serveGoogle(c *cloud, w http.ResponseWriter, r *http.Request) {
	fail := func(status int, kind string) {
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(map[string]any{"error": map[string]any{"code": status, "status": kind, "message": kind}})
	}
	var q struct {
		Plaintext, Ciphertext, AdditionalAuthenticatedData                   string
		PlaintextCrc32c, CiphertextCrc32c, AdditionalAuthenticatedDataCrc32c int64 `json:",string"`
	}
	name, operation, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/v1/"), ":")
	err := json.NewDecoder(r.Body).Decode(&q)
	aad, plain, sealed := fromBase64(q.AdditionalAuthenticatedData), fromBase64(q.Plaintext), fromBase64(q.Ciphertext)
	switch {
	case r.Header.Get("Authorization") != "Bearer ya29.token":
		fail(http.StatusUnauthorized, "UNAUTHENTICATED")
		return
	case r.Method != http.MethodPost || !strings.HasPrefix(name, keyName) || !strings.HasPrefix(r.URL.Path, "/v1/"):
		fail(http.StatusNotFound, "NOT_FOUND")
		return
	case err != nil || q.AdditionalAuthenticatedDataCrc32c != sum(aad):
		fail(http.StatusBadRequest, "INVALID_ARGUMENT")
		return
	}

	c.sees(hex.EncodeToString(aad))
	switch text, err := []byte(nil), error(nil); operation {
	case "encrypt":
		if q.PlaintextCrc32c != sum(plain) {
			fail(http.StatusBadRequest, "INVALID_ARGUMENT")
			return
		}
		text = seal(name, plain, aad)
		_ = json.NewEncoder(w).Encode(map[string]any{"name": name + "/cryptoKeyVersions/1", "ciphertext": text, "ciphertextCrc32c": fmt.Sprint(sum(text)),
			"verifiedPlaintextCrc32c": true, "verifiedAdditionalAuthenticatedDataCrc32c": true})
	case "decrypt":
		if text, err = unseal(name, sealed, aad); err != nil || q.CiphertextCrc32c != sum(sealed) {
			fail(http.StatusBadRequest, "INVALID_ARGUMENT")
			return
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"plaintext": text, "plaintextCrc32c": fmt.Sprint(sum(text))})
	default:
		fail(http.StatusNotFound, "NOT_FOUND")
	}
}

// fromBase64 takes both alphabets, as Google does.
func fromBase64(text string) []byte {
	b, err := base64.StdEncoding.DecodeString(strings.NewReplacer("-", "+", "_", "/").Replace(text))
	if err != nil {
		return nil
	}
	return b
}

func sum(b []byte) int64 { return int64(crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli))) }

// bearer adds the token of an account, as the library of Google does.
type bearer struct {
	token string
	next  http.RoundTripper
}

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+b.token)
	return b.next.RoundTrip(r)
}

func openGoogle(t testing.TB, c *cloud, name, token string) cardvault.KeyWrapper {
	t.Helper()
	w, client, err := keywrappers.Google(t.Context(), keyName+name,
		option.WithHTTPClient(&http.Client{Transport: bearer{token, c.Client().Transport}}), option.WithEndpoint(c.URL))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return w
}

func TestGoogle(t *testing.T) {
	c := newCloud(t, serveGoogle)
	keytest.Run(t, keytest.Harness{
		Open:  func(t testing.TB) cardvault.KeyWrapper { return openGoogle(t, c, "cards", "ya29.token") },
		Other: func(t testing.TB) cardvault.KeyWrapper { return openGoogle(t, c, "other", "ya29.token") },
	})
}

var dataKey = bytes.Repeat([]byte{7}, 32)

// TestAssociatedData: the service receives the associated data and refuses others itself.
func TestAssociatedData(t *testing.T) {
	for name, open := range map[string]func(c *cloud) cardvault.KeyWrapper{
		"aws":    func(c *cloud) cardvault.KeyWrapper { return openAWS(t, c, arn, secret) },
		"google": func(c *cloud) cardvault.KeyWrapper { return openGoogle(t, c, "cards", "ya29.token") },
	} {
		c := newCloud(t, map[string]func(*cloud, http.ResponseWriter, *http.Request){"aws": serveAWS, "google": serveGoogle}[name])
		w := open(c)
		wrapped, err := w.Wrap(t.Context(), dataKey, []byte("live"))
		if err != nil {
			t.Fatal(err)
		}
		c.aads = nil
		if _, err := w.Unwrap(t.Context(), wrapped, []byte("live")); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		_, err = w.Unwrap(t.Context(), wrapped, []byte("sandbox"))
		if live, sandbox := hex.EncodeToString([]byte("live")), hex.EncodeToString([]byte("sandbox")); !errors.Is(err, cardvault.ErrWrongKey) ||
			len(c.aads) < 2 || c.aads[0] != live || c.aads[1] != sandbox {
			t.Errorf("%s received %v: %v", name, c.aads, err)
		}
	}
}

// TestFaults: a service that does not work, denies access or answers with garbage is not a
// wrong key, and Wrap returns nothing that would not unwrap.
func TestFaults(t *testing.T) {
	amazon, google := newCloud(t, serveAWS), newCloud(t, serveGoogle)
	answer := func(status int, text string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			_, _ = io.WriteString(w, text)
		}
	}
	another := base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{8}, 48))
	wrappers := map[string]cardvault.KeyWrapper{"aws": openAWS(t, amazon, arn, secret), "google": openGoogle(t, google, "cards", "ya29.token")}
	wrapped := map[string][]byte{}
	fails := func(what string) {
		t.Helper()
		for name, w := range wrappers {
			// Another wrapper has not checked the service yet.
			fresh := map[string]func() cardvault.KeyWrapper{
				"aws":    func() cardvault.KeyWrapper { return openAWS(t, amazon, arn, secret) },
				"google": func() cardvault.KeyWrapper { return openGoogle(t, google, "cards", "ya29.token") },
			}[name]()
			if _, err := w.Unwrap(t.Context(), wrapped[name], nil); err == nil || errors.Is(err, cardvault.ErrWrongKey) {
				t.Errorf("%s, %s: Unwrap: %v", name, what, err)
			}
			if _, err := fresh.Wrap(t.Context(), dataKey, nil); err == nil || errors.Is(err, cardvault.ErrWrongKey) {
				t.Errorf("%s, %s: Wrap: %v", name, what, err)
			}
		}
	}
	for name, w := range wrappers {
		var err error
		if wrapped[name], err = w.Wrap(t.Context(), dataKey, nil); err != nil {
			t.Fatal(err)
		}
	}

	for what, fault := range map[string]http.HandlerFunc{
		"access denied":    answer(400, `{"__type":"AccessDeniedException","message":"denied"}`),
		"disabled":         answer(400, `{"__type":"DisabledException","message":"disabled"}`),
		"forbidden":        answer(403, `{"error":{"code":403,"status":"PERMISSION_DENIED"}}`),
		"too many":         answer(429, `{"error":{"code":429,"status":"RESOURCE_EXHAUSTED"}}`),
		"internal error":   answer(500, `{"__type":"KMSInternalException"}`),
		"unavailable":      answer(503, ``),
		"garbage":          answer(200, `<html>`),
		"nothing":          answer(200, `{}`),
		"truncated answer": answer(200, `{"Plaintext":"AAAA`),
	} {
		amazon.breaks(fault)
		google.breaks(fault)
		fails(what)
	}

	// Another ciphertext than the key's, such as after an alias moved: it does not unwrap.
	swap := func(serve func(*cloud, http.ResponseWriter, *http.Request), c *cloud, decrypts func(*http.Request) bool, text string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if decrypts(r) {
				serve(c, w, r)
				return
			}
			_, _ = io.WriteString(w, text)
		}
	}
	amazon.breaks(swap(serveAWS, amazon, func(r *http.Request) bool { return r.Header.Get("X-Amz-Target") == "TrentService.Decrypt" },
		fmt.Sprintf(`{"KeyId":%q,"CiphertextBlob":%q}`, otherARN, another)))
	google.breaks(swap(serveGoogle, google, func(r *http.Request) bool { return strings.HasSuffix(r.URL.Path, ":decrypt") },
		fmt.Sprintf(`{"ciphertext":%q,"ciphertextCrc32c":"%d","verifiedPlaintextCrc32c":true,"verifiedAdditionalAuthenticatedDataCrc32c":true}`, another, sum(fromBase64(another)))))
	for name, w := range map[string]cardvault.KeyWrapper{"aws": openAWS(t, amazon, arn, secret), "google": openGoogle(t, google, "cards", "ya29.token")} {
		if _, err := w.Wrap(t.Context(), dataKey, nil); err == nil || errors.Is(err, cardvault.ErrWrongKey) {
			t.Errorf("%s, an answer of another key: %v", name, err)
		}
	}

	amazon.Close()
	google.Close()
	fails("not there")
}

// TestAuthentication: an unknown caller is refused, and the key is not a wrong one.
func TestAuthentication(t *testing.T) {
	amazon, google := newCloud(t, serveAWS), newCloud(t, serveGoogle)
	for name, open := range map[string]func(known bool) cardvault.KeyWrapper{
		"aws": func(known bool) cardvault.KeyWrapper {
			return openAWS(t, amazon, arn, map[bool]string{true: secret, false: "another"}[known])
		},
		"google": func(known bool) cardvault.KeyWrapper {
			return openGoogle(t, google, "cards", map[bool]string{true: "ya29.token", false: "another"}[known])
		},
	} {
		wrapped, err := open(true).Wrap(t.Context(), dataKey, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := open(false).Unwrap(t.Context(), wrapped, nil); err == nil || errors.Is(err, cardvault.ErrWrongKey) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
