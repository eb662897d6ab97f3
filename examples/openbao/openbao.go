// Package openbao wraps the keys of a vault under a key of the transit engine of OpenBao, or of
// HashiCorp Vault: an example of a [cardvault.KeyWrapper].
package openbao

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"

	"github.com/cardvault/cardvault"
)

const maxAnswer = 1 << 20 // bytes of an answer that are read

// client sends keys and the token to nobody but the Address.
var client = &http.Client{
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

// A Key is a key of the transit engine, of a type with associated data such as aes256-gcm96.
type Key struct {
	Address string // such as https://bao.example:8200; http only on a loopback address
	Token   string // of a policy that may encrypt and decrypt with this key, and nothing else
	Name    string // of the key; it is stored with what the key has wrapped
}

var _ cardvault.KeyWrapper = (*Key)(nil)

// A message is the request or the answer of encrypt and decrypt. encoding/json has bytes in
// base64, as the engine does.
type message struct {
	Plaintext  []byte `json:"plaintext,omitempty"`
	Ciphertext string `json:"ciphertext,omitempty"`
	Associated []byte `json:"associated_data,omitempty"`
}

// KeyID implements [cardvault.KeyWrapper].
func (k *Key) KeyID() string { return "transit/" + k.Name }

// Wrap implements [cardvault.KeyWrapper].
func (k *Key) Wrap(ctx context.Context, plaintext, aad []byte) ([]byte, error) {
	m, err := k.call(ctx, "encrypt", &message{Plaintext: plaintext, Associated: aad})
	if err != nil {
		return nil, err
	}
	return []byte(m.Ciphertext), nil
}

// Unwrap implements [cardvault.KeyWrapper].
func (k *Key) Unwrap(ctx context.Context, wrapped, aad []byte) ([]byte, error) {
	m, err := k.call(ctx, "decrypt", &message{Ciphertext: string(wrapped), Associated: aad})
	if err != nil {
		return nil, err
	}
	return m.Plaintext, nil
}

// call makes one request. Its errors hold nothing of it.
func (k *Key) call(ctx context.Context, operation string, q *message) (*message, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, k.Address+"/v1/transit/"+operation+"/"+k.Name, nil)
	if err != nil || !safe(r.URL) {
		return nil, errors.New("openbao: Address must be an https URL")
	}
	text, err := json.Marshal(q)
	if err != nil {
		return nil, err
	}
	r.Body, r.ContentLength = newBody(text), int64(len(text))
	r.Header.Set("X-Vault-Token", k.Token)
	w, err := client.Do(r)
	if err != nil {
		return nil, err
	}
	defer w.Body.Close()

	answer, err := io.ReadAll(io.LimitReader(w.Body, maxAnswer))
	defer clear(answer)
	var a struct {
		Data   message  `json:"data"`
		Errors []string `json:"errors"`
	}
	switch {
	case err != nil:
		return nil, err
	case json.Unmarshal(answer, &a) != nil:
		return nil, fmt.Errorf("openbao: answer with status %d is no JSON", w.StatusCode)
	case operation == "decrypt" && isWrongKey(a.Errors):
		return nil, fmt.Errorf("%w: transit key %s", cardvault.ErrWrongKey, k.Name)
	case w.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("openbao: answer with status %d", w.StatusCode)
	case a.Data.Plaintext == nil && a.Data.Ciphertext == "":
		return nil, errors.New("openbao: empty answer")
	}
	return &a.Data, nil
}

// A body is wiped when it is closed: net/http may read it after Do has returned.
type body struct {
	mu   sync.Mutex // HTTP/2 may close it during a Read
	left bytes.Reader
	text []byte
}

func newBody(text []byte) *body {
	return &body{left: *bytes.NewReader(text), text: text}
}

func (b *body) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.left.Read(p)
}

func (b *body) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	clear(b.text)
	b.left.Reset(nil)
	return nil
}

// safe reports whether nobody on the way reads what is sent to a URL.
func safe(u *url.URL) bool {
	host := u.Hostname()
	return host != "" && (u.Scheme == "https" || u.Scheme == "http" && (host == "localhost" || net.ParseIP(host).IsLoopback()))
}

// isWrongKey reports whether a ciphertext was refused. The engine says so in words alone,
// with the status 400 or, in some versions, 500.
func isWrongKey(errs []string) bool {
	all := strings.Join(errs, " ")
	return strings.Contains(all, "message authentication failed") || strings.Contains(all, "invalid ciphertext")
}
