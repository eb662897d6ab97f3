package keywrappers_test

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/kms"
	"github.com/aws/aws-sdk-go-v2/service/kms/types"
	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/examples/keywrappers"
	"github.com/cardvault/cardvault/keytest"
	"github.com/tink-crypto/tink-go/v2/aead"
	"github.com/tink-crypto/tink-go/v2/keyset"
	"gocloud.dev/gcerrors"
	"gocloud.dev/secrets"
	"gocloud.dev/secrets/localsecrets"
)

func TestTink(t *testing.T) {
	open := func() func(testing.TB) cardvault.KeyWrapper {
		keys, err := keyset.NewHandle(aead.AES256GCMKeyTemplate())
		if err != nil {
			t.Fatal(err)
		}
		return func(t testing.TB) cardvault.KeyWrapper {
			key, err := aead.New(keys)
			if err != nil {
				t.Fatal(err)
			}
			return keywrappers.Tink("cards", key)
		}
	}
	keytest.Run(t, keytest.Harness{Open: open(), Other: open()})
}

func TestCloud(t *testing.T) {
	open := func() func(testing.TB) cardvault.KeyWrapper {
		key, err := localsecrets.NewRandomKey()
		if err != nil {
			t.Fatal(err)
		}
		return func(t testing.TB) cardvault.KeyWrapper {
			keeper := localsecrets.NewKeeper(key)
			t.Cleanup(func() { keeper.Close() })
			return keywrappers.Cloud("cards", keeper)
		}
	}
	keytest.Run(t, keytest.Harness{Open: open(), Other: open(), Unbound: true})
}

func TestAWS(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(awsKMS))
	t.Cleanup(server.Close)
	open := func(arn string) func(testing.TB) cardvault.KeyWrapper {
		return func(testing.TB) cardvault.KeyWrapper { return keywrappers.AWS(arn, awsClient(server.URL)) }
	}
	keytest.Run(t, keytest.Harness{Open: open("arn:aws:kms:eu-central-1:1:key/cards"), Other: open("arn:aws:kms:eu-central-1:1:key/other")})
}

func TestOpenBao(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(openBao))
	t.Cleanup(server.Close)
	open := func(name string) func(testing.TB) cardvault.KeyWrapper {
		return func(testing.TB) cardvault.KeyWrapper { return keywrappers.OpenBao(server.URL, "token", name) }
	}
	keytest.Run(t, keytest.Harness{Open: open("cards"), Other: open("other")})
}

func awsClient(url string) *kms.Client {
	return kms.New(kms.Options{
		BaseEndpoint: &url,
		Region:       "eu-central-1",
		Retryer:      aws.NopRetryer{},
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "id", SecretAccessKey: "secret"}, nil
		}),
	})
}

// TestNotWrong: denied access, overload or an unreachable service does not mean that the
// key is wrong. The vault may try again, and does not look for another key.
func TestNotWrong(t *testing.T) {
	var mode atomic.Int32 // status of all answers, unless zero
	aws, bao := http.HandlerFunc(awsKMS), http.HandlerFunc(openBao)
	serve := func(h http.Handler) *httptest.Server {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch status := int(mode.Load()); status {
			case 0:
				h.ServeHTTP(w, r)
			case http.StatusBadRequest:
				w.WriteHeader(status)
				_, _ = w.Write([]byte(`{"__type":"AccessDeniedException","errors":["permission denied"]}`))
			default:
				w.WriteHeader(status)
			}
		}))
		t.Cleanup(s.Close)
		return s
	}
	awsServer, baoServer := serve(aws), serve(bao)
	key, err := localsecrets.NewRandomKey()
	if err != nil {
		t.Fatal(err)
	}
	var down atomic.Bool

	wrappers := []cardvault.KeyWrapper{
		keywrappers.AWS("arn:aws:kms:eu-central-1:1:key/cards", awsClient(awsServer.URL)),
		keywrappers.OpenBao(baoServer.URL, "token", "cards"),
		keywrappers.Cloud("cards", secrets.NewKeeper(&service{localsecrets.NewKeeper(key), &down})),
	}
	wrapped := map[cardvault.KeyWrapper][]byte{}
	for _, w := range wrappers {
		if wrapped[w], err = w.Wrap(t.Context(), []byte("keys"), nil); err != nil {
			t.Fatal(err)
		}
	}
	down.Store(true)

	fails := func(what string) {
		t.Helper()
		for _, w := range wrappers {
			if _, err := w.Unwrap(t.Context(), wrapped[w], nil); err == nil || errors.Is(err, cardvault.ErrWrongKey) {
				t.Errorf("%s, %s: %v", w.KeyID(), what, err)
			}
		}
	}
	for _, status := range []int{http.StatusBadRequest, http.StatusForbidden, http.StatusTooManyRequests, http.StatusServiceUnavailable} {
		mode.Store(int32(status))
		fails(http.StatusText(status))
	}
	awsServer.Close()
	baoServer.Close()
	fails("not there")
}

// A service behind gocloud.dev has no error codes, and may be unreachable.
type service struct {
	*secrets.Keeper
	down *atomic.Bool
}

func (s *service) Encrypt(ctx context.Context, text []byte) ([]byte, error) {
	if s.down.Load() {
		return nil, errors.New("down")
	}
	return s.Keeper.Encrypt(ctx, text)
}

func (s *service) Decrypt(ctx context.Context, text []byte) ([]byte, error) {
	if s.down.Load() {
		return nil, errors.New("down")
	}
	return s.Keeper.Decrypt(ctx, text)
}

func (*service) ErrorAs(error, any) bool            { return false }
func (*service) ErrorCode(error) gcerrors.ErrorCode { return gcerrors.Unknown }

// TestBlip: a service that is unreachable for one call does not make the key a wrong one.
func TestBlip(t *testing.T) {
	key, err := localsecrets.NewRandomKey()
	if err != nil {
		t.Fatal(err)
	}
	s := &blip{service: service{localsecrets.NewKeeper(key), new(atomic.Bool)}}
	k := keywrappers.Cloud("cards", secrets.NewKeeper(s))
	wrapped, err := k.Wrap(t.Context(), []byte("keys"), nil)
	if err != nil {
		t.Fatal(err)
	}
	s.fails.Store(true)
	if text, err := k.Unwrap(t.Context(), wrapped, nil); string(text) != "keys" {
		t.Error(err)
	}
}

// A blip is a service whose next Decrypt may fail.
type blip struct {
	service
	fails atomic.Bool
}

func (b *blip) Decrypt(ctx context.Context, text []byte) ([]byte, error) {
	if b.fails.Swap(false) {
		return nil, errors.New("connection reset")
	}
	return b.service.Decrypt(ctx, text)
}

// TestEncryptionContext: AWS KMS receives the name of the vault's keys as encryption
// context, and refuses any other itself.
func TestEncryptionContext(t *testing.T) {
	var asked []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body)
		var q struct{ EncryptionContext map[string]string }
		_ = json.Unmarshal(text, &q)
		aad, _ := base64.StdEncoding.DecodeString(q.EncryptionContext["cardvault"])
		asked = append(asked, string(aad))
		r.Body = io.NopCloser(bytes.NewReader(text))
		awsKMS(w, r)
	}))
	t.Cleanup(server.Close)
	k := keywrappers.AWS("arn:aws:kms:eu-central-1:1:key/cards", awsClient(server.URL))
	wrapped, err := k.Wrap(t.Context(), []byte("keys"), []byte("live"))
	if err != nil {
		t.Fatal(err)
	}
	_, err = k.Unwrap(t.Context(), wrapped, []byte("sandbox"))
	if refused, _ := errors.AsType[*types.InvalidCiphertextException](err); refused == nil || !slices.Equal(asked, []string{"live", "sandbox"}) {
		t.Errorf("KMS was asked for %q, %v", asked, err)
	}
}

// TestNobodyElse: keys and the token follow no redirect, and are not sent over http to
// another machine.
func TestNobodyElse(t *testing.T) {
	var reached atomic.Bool
	elsewhere := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		reached.Store(true)
		openBao(w, r)
	}))
	t.Cleanup(elsewhere.Close)
	for _, status := range []int{http.StatusFound, http.StatusTemporaryRedirect, http.StatusPermanentRedirect} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, elsewhere.URL+r.URL.Path, status)
		}))
		t.Cleanup(server.Close)
		k := keywrappers.OpenBao(server.URL, "token", "cards")
		if _, err := k.Wrap(t.Context(), []byte("key"), nil); err == nil || reached.Load() {
			t.Errorf("status %d: %v, followed: %v", status, err, reached.Load())
		}
	}

	for _, address := range []string{"http://192.0.2.1:8200", "http://localhost", "http://localhost.example", "ftp://127.0.0.1", "127.0.0.1:8200", "https:", ""} {
		k := keywrappers.OpenBao(address, "token", "cards")
		if _, err := k.Wrap(t.Context(), []byte("key"), nil); err == nil || !strings.Contains(err.Error(), "https") {
			t.Errorf("address %q: %v", address, err)
		}
	}
}

// seal and unseal encrypt for the services below: each name has a key.
func seal(name string, text, aad []byte) []byte { return gcm(name).Seal(nil, nil, text, aad) }

func unseal(name string, sealed, aad []byte) ([]byte, error) {
	return gcm(name).Open(nil, nil, sealed, aad)
}

func gcm(name string) cipher.AEAD {
	sum := sha256.Sum256([]byte(name))
	block, _ := aes.NewCipher(sum[:])
	aead, _ := cipher.NewGCMWithRandomNonce(block)
	return aead
}

// awsKMS answers like AWS KMS. Its ciphertexts begin with the name of the key.
func awsKMS(w http.ResponseWriter, r *http.Request) {
	var q struct {
		KeyId                     string
		Plaintext, CiphertextBlob []byte
		EncryptionContext         map[string]string
	}
	fail := func(kind string) {
		w.WriteHeader(http.StatusBadRequest)
		_ = json.NewEncoder(w).Encode(map[string]string{"__type": kind, "message": kind})
	}
	if json.NewDecoder(r.Body).Decode(&q) != nil || q.KeyId == "" || !strings.HasPrefix(r.Header.Get("Authorization"), "AWS4-HMAC-SHA256 ") {
		fail("ValidationException")
		return
	}
	aad, _ := json.Marshal(q.EncryptionContext) // in the order of the names

	operation := r.Header.Get("X-Amz-Target")
	switch name, sealed, found := bytes.Cut(q.CiphertextBlob, []byte(" ")); {
	case operation == "TrentService.Encrypt" && 0 < len(q.Plaintext) && len(q.Plaintext) <= 4096 && len(q.EncryptionContext) > 0:
		text := append([]byte(q.KeyId+" "), seal(q.KeyId, q.Plaintext, aad)...)
		_ = json.NewEncoder(w).Encode(map[string]any{"KeyId": q.KeyId, "CiphertextBlob": text})
	case operation != "TrentService.Decrypt" || len(q.CiphertextBlob) == 0 || len(q.CiphertextBlob) > 6144:
		fail("ValidationException")
	case found && bytes.HasPrefix(name, []byte("arn:aws:kms:")) && string(name) != q.KeyId:
		fail("IncorrectKeyException")
	default:
		text, err := unseal(q.KeyId, sealed, aad)
		if err != nil || string(name) != q.KeyId {
			fail("InvalidCiphertextException")
			return
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"KeyId": q.KeyId, "Plaintext": text})
	}
}

// openBao answers like the transit engine.
func openBao(w http.ResponseWriter, r *http.Request) {
	operation, name, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/v1/transit/"), "/")
	var q struct {
		Plaintext  []byte
		Ciphertext string
		Associated []byte `json:"associated_data"`
	}
	fail := func(message string) {
		w.WriteHeader(http.StatusBadRequest)
		_ = json.NewEncoder(w).Encode(map[string][]string{"errors": {message}})
	}
	if json.NewDecoder(r.Body).Decode(&q) != nil || r.Header.Get("X-Vault-Token") != "token" {
		fail("permission denied")
		return
	}

	const prefix = "vault:v1:"
	data := map[string]any{}
	switch operation {
	case "encrypt":
		data["ciphertext"] = prefix + base64.StdEncoding.EncodeToString(seal(name, q.Plaintext, q.Associated))
	case "decrypt":
		sealed, found := strings.CutPrefix(q.Ciphertext, prefix)
		text, err := base64.StdEncoding.DecodeString(sealed)
		if err != nil || !found || len(text) < gcm(name).Overhead() {
			fail("invalid ciphertext: could not decode")
			return
		}
		if data["plaintext"], err = unseal(name, text, q.Associated); err != nil {
			fail("cipher: message authentication failed")
			return
		}
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"data": data})
}
