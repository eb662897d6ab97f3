package kms_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/keytest"
	"github.com/cardvault/cardvault/kms"
)

// An engine answers like the transit engine, over TLS. A key comes into being when it is
// first used to encrypt.
type engine struct {
	*httptest.Server
	namespace string
	latest    int // version of every key
	oldest    int // version that decrypts
	answer    atomic.Pointer[func(http.ResponseWriter, *http.Request)]
}

func newEngine(t testing.TB) *engine {
	e := &engine{latest: 2, oldest: 1}
	e.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if answer := e.answer.Load(); answer != nil {
			(*answer)(w, r)
			return
		}
		e.serve(w, r)
	}))
	e.Config.ErrorLog = log.New(t.Output(), "", 0)
	e.StartTLS()
	t.Cleanup(e.Close)
	return e
}

// tls returns the authority of the engine's certificate.
func (e *engine) tls() *tls.Config {
	pool := x509.NewCertPool()
	pool.AddCert(e.Certificate())
	return &tls.Config{RootCAs: pool}
}

// open returns a wrapper of a key of e.
func (e *engine) open(t testing.TB, key string, o kms.TransitOptions) cardvault.KeyWrapper {
	t.Helper()
	o.TLS = e.tls()
	w, err := kms.Transit(e.URL, key, token, &o)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func token(context.Context) (string, error) { return "s.token\n", nil }

func (e *engine) serve(w http.ResponseWriter, r *http.Request) {
	fail := func(status int, message string) {
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(map[string][]string{"errors": {message}})
	}
	var q struct {
		Plaintext  []byte
		Ciphertext string
		Associated []byte `json:"associated_data"`
		Context    []byte
		KeyVersion int `json:"key_version"`
	}
	path, mounted := strings.CutPrefix(r.URL.Path, "/v1/engines/transit/")
	operation, name, _ := strings.Cut(path, "/")
	switch err := json.NewDecoder(r.Body).Decode(&q); {
	case r.Method != http.MethodPost || r.Header.Get("X-Vault-Token") != "s.token" || r.Header.Get("X-Vault-Request") != "true":
		fail(http.StatusForbidden, "permission denied")
		return
	case !mounted || r.Header.Get("X-Vault-Namespace") != e.namespace:
		fail(http.StatusNotFound, "no handler for route")
		return
	case err != nil:
		fail(http.StatusBadRequest, "error parsing JSON")
		return
	}

	key := func(version int) string { return fmt.Sprint(name, version, string(q.Context)) }
	data := map[string]any{}
	switch version := 0; operation {
	case "encrypt":
		if version = q.KeyVersion; version == 0 {
			version = e.latest
		}
		text := gcm(key(version)).Seal(nil, nil, q.Plaintext, q.Associated)
		data["ciphertext"], data["key_version"] = fmt.Sprintf("vault:v%d:%s", version, base64.StdEncoding.EncodeToString(text)), version
	case "decrypt":
		var sealed string
		_, _ = fmt.Sscanf(q.Ciphertext, "vault:v%d:%s", &version, &sealed)
		text, err := base64.StdEncoding.DecodeString(sealed)
		switch {
		case err != nil || len(text) < gcm("").Overhead():
			fail(http.StatusBadRequest, "invalid ciphertext: could not decode base64")
			return
		case version > e.latest:
			fail(http.StatusBadRequest, "invalid ciphertext: version is too new")
			return
		case version < e.oldest:
			fail(http.StatusBadRequest, "ciphertext or signature version is disallowed by policy (too old)")
			return
		}
		if data["plaintext"], err = gcm(key(version)).Open(nil, nil, text, q.Associated); err != nil {
			fail(http.StatusBadRequest, "cipher: message authentication failed")
			return
		}
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"data": data})
}

func TestTransit(t *testing.T) {
	plain, derived := newEngine(t), newEngine(t)
	derived.namespace = "team/cards"
	for what, open := range map[string]func(t testing.TB, key string) cardvault.KeyWrapper{
		"key": func(t testing.TB, key string) cardvault.KeyWrapper {
			return plain.open(t, key, kms.TransitOptions{Mount: "engines/transit"})
		},
		"derived key in a namespace": func(t testing.TB, key string) cardvault.KeyWrapper {
			return derived.open(t, key, kms.TransitOptions{Mount: "/engines/transit/", Namespace: "team/cards/", Context: []byte("cardvault"), KeyVersion: 1})
		},
	} {
		t.Run(what, func(t *testing.T) {
			keytest.Run(t, keytest.Harness{
				Open:  func(t testing.TB) cardvault.KeyWrapper { return open(t, "cards") },
				Other: func(t testing.TB) cardvault.KeyWrapper { return open(t, "other") },
			})
		})
	}
}

// TestTransitName: the name that is stored has the key, and not the address.
func TestTransitName(t *testing.T) {
	for want, o := range map[string]kms.TransitOptions{
		"transit/transit/cards":                    {},
		"transit/team/a/engines/transit/cards":     {Mount: "engines/transit", Namespace: "team/a"},
		"transit/engines/transit/with-v_1.2/cards": {Mount: "/engines/transit/with-v_1.2/"},
	} {
		w, err := kms.Transit("https://bao.example:8200", "cards", token, &o)
		if err != nil || w.KeyID() != want {
			t.Errorf("%s: %v, %v", want, w, err)
		}
	}
}

// TestTransitSettings: a request goes to no other place than the given one.
func TestTransitSettings(t *testing.T) {
	try := func(address, key string, o *kms.TransitOptions) error {
		_, err := kms.Transit(address, key, token, o)
		return err
	}
	for _, address := range []string{"http://192.0.2.1:8200", "http://localhost", "http://localhost.example", "ftp://127.0.0.1", "127.0.0.1:8200", "https:", "",
		"https://user:secret@bao.example", "https://bao.example/?x=1", "https://bao.example/#x"} {
		if err := try(address, "cards", nil); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("address %q: %v", address, err)
		}
	}
	for _, name := range []string{"", ".", "..", "a/b", "../keys/cards", "cards?x", "cards%2f", "cards\n", "cards "} {
		if err := try("https://bao.example", name, nil); err == nil {
			t.Errorf("key %q is allowed", name)
		}
		o := &kms.TransitOptions{Mount: "a/" + name + "/b"}
		if name != "a/b" && try("https://bao.example", "cards", o) == nil {
			t.Errorf("mount %q is allowed", o.Mount)
		}
		if o = (&kms.TransitOptions{Namespace: "a/" + name + "/b"}); name != "a/b" && try("https://bao.example", "cards", o) == nil {
			t.Errorf("namespace %q is allowed", o.Namespace)
		}
	}
	if try("https://bao.example", "cards", &kms.TransitOptions{KeyVersion: -1}) == nil {
		t.Error("a negative version is allowed")
	}
	if _, err := kms.Transit("https://bao.example", "cards", nil, nil); err == nil {
		t.Error("a missing token is allowed")
	}
	for _, address := range []string{"https://bao.example:8200", "https://bao.example/behind/a/proxy", "http://127.0.0.1:8200", "http://[::1]:8200"} {
		if err := try(address, "cards", nil); err != nil {
			t.Errorf("address %q: %v", address, err)
		}
	}
}

// TestTransitRedirect: key and token follow no redirect.
func TestTransitRedirect(t *testing.T) {
	e, elsewhere := newEngine(t), newEngine(t)
	var reached atomic.Bool
	answer := func(http.ResponseWriter, *http.Request) { reached.Store(true) }
	elsewhere.answer.Store(&answer)
	for _, status := range []int{http.StatusFound, http.StatusTemporaryRedirect, http.StatusPermanentRedirect} {
		redirect := func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, elsewhere.URL+r.URL.Path, status)
		}
		e.answer.Store(&redirect)
		_, err := e.open(t, "cards", kms.TransitOptions{}).Wrap(t.Context(), dataKey, nil)
		if err == nil || reached.Load() {
			t.Errorf("status %d: %v, followed: %v", status, err, reached.Load())
		}
	}
}

var dataKey = bytes.Repeat([]byte{7}, 32)

// TestTransitTrust: a server whose certificate is not trusted gets neither key nor token.
func TestTransitTrust(t *testing.T) {
	e := newEngine(t)
	w, err := kms.Transit(e.URL, "cards", token, &kms.TransitOptions{Mount: "engines/transit"})
	if err != nil {
		t.Fatal(err)
	}
	_, err = w.Wrap(t.Context(), dataKey, nil)
	if certificate, _ := errors.AsType[*tls.CertificateVerificationError](err); certificate == nil {
		t.Error(err)
	}
}

// TestTransitFaults: ErrWrongKey means that the engine refuses the text. Every other fault
// may pass, and no error quotes what the server says.
func TestTransitFaults(t *testing.T) {
	e := newEngine(t)
	w := e.open(t, "cards", kms.TransitOptions{Mount: "engines/transit"})
	wrapped, err := w.Wrap(t.Context(), dataKey, []byte("live"))
	if err != nil {
		t.Fatal(err)
	}
	text := func(status int, text string) func(http.ResponseWriter, *http.Request) {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			_, _ = w.Write([]byte(text))
		}
	}
	for _, f := range []struct {
		what   string
		answer func(http.ResponseWriter, *http.Request)
		wrong  bool // Unwrap is ErrWrongKey
		says   string
	}{
		{"refused", text(400, `{"errors":["cipher: message authentication failed"]}`), true, ""},
		{"refused by an older server", text(500, `{"errors":["1 error occurred: invalid ciphertext: unable to decrypt"]}`), true, ""},
		{"no such key", text(400, `{"errors":["encryption key not found"]}`), true, ""},
		{"version too old", text(400, `{"errors":["ciphertext or signature version is disallowed by policy (too old)"]}`), false, "min_decryption_version"},
		{"expired token", text(403, `{"errors":["permission denied: hvs.CANARY"]}`), false, "status 403"},
		{"not mounted", text(404, `{"errors":["no handler for route"]}`), false, "status 404"},
		{"standby behind", text(412, `{"errors":["required index state not present"]}`), false, "status 412"},
		{"overloaded", text(429, `{"errors":["request path quota exceeded CANARY"]}`), false, "status 429"},
		{"standby", text(473, ``), false, "status 473"},
		{"internal error", text(500, `{"errors":["CANARY"]}`), false, "status 500"},
		{"sealed", text(503, `{"errors":["Vault is sealed"]}`), false, "status 503"},
		{"words of a proxy", text(502, `message authentication failed`), false, "status 502"},
		{"no content", text(204, ``), false, "status 204"},
		{"nothing", text(200, ``), false, "not of its form"},
		{"not JSON", text(200, `<html>CANARY</html>`), false, "not of its form"},
		{"no data", text(200, `{"data":null}`), false, "not of its form"},
		{"no text", text(200, `{"data":{}}`), false, "answer of the transit engine"},
		{"text that is not base64", text(200, `{"data":{"plaintext":"CANARY!","ciphertext":"CANARY"}}`), false, "not of its form"},
		{"too long", text(200, `{"data":{"plaintext":"`+strings.Repeat("A", 1<<20)), false, "too long"},
		{"cut off", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "1000")
			_, _ = w.Write([]byte(`{"data":`))
		}, false, "answer of the transit engine"},
		{"hung up", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, false, "transit engine"},
	} {
		e.answer.Store(&f.answer)
		_, wrapping := w.Wrap(t.Context(), dataKey, []byte("live"))
		_, unwrapping := w.Unwrap(t.Context(), wrapped, []byte("live"))
		if wrapping == nil || errors.Is(wrapping, cardvault.ErrWrongKey) {
			t.Errorf("Wrap, %s: %v", f.what, wrapping)
		}
		if unwrapping == nil || errors.Is(unwrapping, cardvault.ErrWrongKey) != f.wrong || !strings.Contains(unwrapping.Error(), f.says) {
			t.Errorf("Unwrap, %s: %v", f.what, unwrapping)
		}
		if all := fmt.Sprint(wrapping, unwrapping); strings.Contains(all, "CANARY") || strings.Contains(all, "s.token") {
			t.Errorf("%s: %s", f.what, all)
		}
	}

	e.answer.Store(nil)
	if got, err := w.Unwrap(t.Context(), wrapped, []byte("live")); err != nil || !bytes.Equal(got, dataKey) {
		t.Errorf("after all faults: %x, %v", got, err)
	}
	e.Close()
	if _, err := w.Unwrap(t.Context(), wrapped, []byte("live")); err == nil || errors.Is(err, cardvault.ErrWrongKey) {
		t.Errorf("not there: %v", err)
	}
}

// TestTransitSlow: a server that does not answer ends with the context of the call.
func TestTransitSlow(t *testing.T) {
	e := newEngine(t)
	asked, over := make(chan struct{}), make(chan struct{})
	t.Cleanup(func() { close(over) })
	hang := func(http.ResponseWriter, *http.Request) {
		asked <- struct{}{}
		<-over
	}
	e.answer.Store(&hang)
	w := e.open(t, "cards", kms.TransitOptions{Mount: "engines/transit"})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-asked
		cancel()
	}()
	if _, err := w.Wrap(ctx, dataKey, nil); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// TestTransitVersions: a new version wraps, old versions unwrap, and answers under another
// version than the given one are refused.
func TestTransitVersions(t *testing.T) {
	e := newEngine(t)
	unwraps := func(what string, wrapped []byte, wrong bool, says string) {
		t.Helper()
		got, err := e.open(t, "cards", kms.TransitOptions{Mount: "engines/transit"}).Unwrap(t.Context(), wrapped, nil)
		switch {
		case says == "" && (err != nil || !bytes.Equal(got, dataKey)):
			t.Errorf("%s: %v", what, err)
		case says != "" && (err == nil || errors.Is(err, cardvault.ErrWrongKey) != wrong || !strings.Contains(err.Error(), says)):
			t.Errorf("%s: %v", what, err)
		}
	}
	first, err := e.open(t, "cards", kms.TransitOptions{Mount: "engines/transit", KeyVersion: 1}).Wrap(t.Context(), dataKey, nil)
	if err != nil || !bytes.HasPrefix(first, []byte("vault:v1:")) {
		t.Fatalf("%s, %v", first, err)
	}
	second, err := e.open(t, "cards", kms.TransitOptions{Mount: "engines/transit"}).Wrap(t.Context(), dataKey, nil)
	if err != nil || !bytes.HasPrefix(second, []byte("vault:v2:")) {
		t.Fatalf("%s, %v", second, err)
	}
	unwraps("first version", first, false, "")
	unwraps("second version", second, false, "")

	e.oldest = 2
	unwraps("archived version", first, false, "min_decryption_version")
	e.latest, e.oldest = 1, 1
	unwraps("version that is not there", second, true, "refuses the text")

	w := e.open(t, "cards", kms.TransitOptions{Mount: "engines/transit", KeyVersion: 2})
	e.latest = 3
	replaced := func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write([]byte(`{"data":{"ciphertext":"vault:v3:AAAA"}}`))
	}
	e.answer.Store(&replaced)
	if _, err := w.Wrap(t.Context(), dataKey, nil); err == nil || !strings.Contains(err.Error(), "version 3 of the key, not 2") {
		t.Errorf("answer under another version: %v", err)
	}
}

// TestTransitIgnores: servers before associated data ignore the member. That is found
// before a vault relies on it.
func TestTransitIgnores(t *testing.T) {
	e := newEngine(t)
	old := func(w http.ResponseWriter, r *http.Request) {
		var q map[string]any
		_ = json.NewDecoder(r.Body).Decode(&q)
		delete(q, "associated_data")
		body, _ := json.Marshal(q)
		older := r.Clone(r.Context())
		older.Body = io.NopCloser(bytes.NewReader(body))
		e.serve(w, older)
	}
	e.answer.Store(&old)
	_, err := e.open(t, "cards", kms.TransitOptions{Mount: "engines/transit"}).Wrap(t.Context(), dataKey, []byte("live"))
	if err == nil || !strings.Contains(err.Error(), "ignores associated data") {
		t.Error(err)
	}
}

// TestTransitToken: each request has the token of its time.
func TestTransitToken(t *testing.T) {
	e := newEngine(t)
	current, errToken := "s.expired", errors.New("no token")
	w, err := kms.Transit(e.URL, "cards", func(context.Context) (string, error) {
		if current == "" {
			return "", errToken
		}
		return current, nil
	}, &kms.TransitOptions{Mount: "engines/transit", TLS: e.tls()})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Wrap(t.Context(), dataKey, nil); err == nil || !strings.Contains(err.Error(), "status 403") {
		t.Errorf("expired token: %v", err)
	}
	current = "s.token"
	if _, err := w.Wrap(t.Context(), dataKey, nil); err != nil {
		t.Errorf("renewed token: %v", err)
	}
	for _, current = range []string{"", "s.token\nX-Other: 1"} {
		if _, err := w.Wrap(t.Context(), dataKey, nil); err == nil || current == "" != errors.Is(err, errToken) || strings.Contains(err.Error(), "s.token") {
			t.Errorf("token %q: %v", current, err)
		}
	}
}

// The token is read from the file that an agent renews.
func ExampleTransit() {
	read := func(context.Context) (string, error) {
		text, err := os.ReadFile("/run/bao/token")
		return string(text), err
	}
	w, err := kms.Transit("https://bao.example:8200", "cards", read, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(w.KeyID())
	// Output: transit/transit/cards
}
