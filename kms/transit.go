package kms

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/kms/internal/remote"
)

// TransitOptions are the settings of [Transit] that have a default.
type TransitOptions struct {
	// Mount is the path of the engine. If empty, it is transit.
	Mount string

	// Namespace is the namespace of the engine. If empty, it is the root namespace.
	Namespace string

	// KeyVersion is the version of the key that wraps. If zero, it is the latest. Each
	// version that has wrapped unwraps, unless min_decryption_version forbids it.
	KeyVersion int

	// Context is the context of a key that was made with derived=true, and must be the same
	// whenever the vault is opened. Other keys have none.
	Context []byte

	// TLS has the certificate authority of the server, or a client certificate. If nil, the
	// authorities of the system count.
	TLS *tls.Config
}

// Transit returns a wrapper of a key of the transit engine of OpenBao or HashiCorp Vault. The
// key has a type with associated data, such as aes256-gcm96. The policy of the token lets it
// encrypt and decrypt with this key, and nothing else.
//
// The address is https, except on a loopback address, where an agent may listen. Redirects
// are not followed. The key is named transit, namespace, mount and key in the store, in clear.
// The address is not part of the name.
//
// token returns the token for one request. It is called for each, so a renewed token is used
// at once.
//
// ErrWrongKey means that the engine refuses the text or has no such key. A missing permission,
// a sealed or standby server and a version below min_decryption_version are other errors.
// Their text has the status, and nothing of the request or of the answer.
func Transit(address, key string, token func(ctx context.Context) (string, error), o *TransitOptions) (cardvault.KeyWrapper, error) {
	if o == nil {
		o = &TransitOptions{}
	}
	mount := strings.Trim(o.Mount, "/")
	if mount == "" {
		mount = "transit"
	}
	namespace := strings.Trim(o.Namespace, "/")
	base, err := url.Parse(address)
	switch {
	case err != nil || base.Host == "" || base.User != nil || base.RawQuery != "" || base.Fragment != "" || !private(base):
		return nil, errors.New("kms: address of the transit engine: want https://host:port")
	case !isPath(mount) || namespace != "" && !isPath(namespace):
		return nil, errors.New("kms: mount or namespace of the transit engine is not a path")
	case !isPath(key) || strings.Contains(key, "/"):
		return nil, errors.New("kms: name of a transit key has characters other than letters, digits, dots, dashes and underscores")
	case o.KeyVersion < 0:
		return nil, errors.New("kms: version of a transit key is negative")
	case token == nil:
		return nil, errors.New("kms: the transit engine needs a token")
	}

	connections := http.DefaultTransport.(*http.Transport).Clone()
	connections.TLSClientConfig = o.TLS.Clone()
	connections.IdleConnTimeout = 30 * time.Second
	connections.MaxConnsPerHost = 2 * maxCalls
	connections.MaxResponseHeaderBytes = maxAnswer
	t := &transit{
		base: base.JoinPath("v1", mount), key: key, token: token, namespace: namespace,
		version: o.KeyVersion, context: bytes.Clone(o.Context),
		client: &http.Client{Transport: connections, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }},
	}
	return remote.New(strings.Join(strings.Fields("transit "+namespace+" "+mount+" "+key), "/"), t.encrypt, t.decrypt), nil
}

// private reports whether no other machine reads requests to u.
func private(u *url.URL) bool {
	return u.Scheme == "https" || u.Scheme == "http" && net.ParseIP(u.Hostname()).IsLoopback()
}

var element = regexp.MustCompile(`^[A-Za-z0-9_.-]*[A-Za-z0-9_-][A-Za-z0-9_.-]*$`) // not only dots

func isPath(path string) bool {
	for name := range strings.SplitSeq(path, "/") {
		if !element.MatchString(name) {
			return false
		}
	}
	return true
}

// maxAnswer limits an answer of the engine, in bytes.
const maxAnswer = 128 << 10

// A transit is a client of one key.
type transit struct {
	base      *url.URL
	key       string
	token     func(context.Context) (string, error)
	namespace string
	version   int
	context   []byte
	client    *http.Client
}

// A message is a request or an answer, with bytes in base64 as JSON has them.
type message struct {
	Plaintext  []byte `json:"plaintext,omitempty"`
	Ciphertext string `json:"ciphertext,omitempty"`
	Associated []byte `json:"associated_data,omitempty"`
	Context    []byte `json:"context,omitempty"`
	KeyVersion int    `json:"key_version,omitempty"`
}

var wrapping = regexp.MustCompile(`^vault:v([1-9][0-9]{0,8}):[A-Za-z0-9+/=]+$`)

func (t *transit) encrypt(ctx context.Context, text, aad []byte) ([]byte, error) {
	a, err := t.do(ctx, "encrypt", &message{Plaintext: text, Associated: aad, Context: t.context, KeyVersion: t.version})
	if err != nil {
		if errors.Is(err, cardvault.ErrWrongKey) { // which says of Unwrap that another key may be right
			err = errors.New("kms: transit engine has no such key, or the key has another type")
		}
		return nil, err
	}

	form := wrapping.FindStringSubmatch(a.Ciphertext)
	if form == nil {
		return nil, errors.New("kms: answer of the transit engine is not a ciphertext")
	}
	if version, err := strconv.Atoi(form[1]); err != nil || t.version != 0 && version != t.version {
		return nil, fmt.Errorf("kms: transit engine wrapped under version %s of the key, not %d", form[1], t.version)
	}
	return []byte(a.Ciphertext), nil
}

func (t *transit) decrypt(ctx context.Context, text, aad []byte) ([]byte, error) {
	if !wrapping.Match(text) {
		return nil, cardvault.ErrWrongKey
	}
	a, err := t.do(ctx, "decrypt", &message{Ciphertext: string(text), Associated: aad, Context: t.context})
	if err != nil {
		return nil, err
	}
	if len(a.Plaintext) == 0 {
		return nil, errors.New("kms: answer of the transit engine has no plaintext")
	}
	return a.Plaintext, nil
}

// do makes one request. Its errors hold nothing of request and answer, because servers have
// quoted requests in errors.
func (t *transit) do(ctx context.Context, operation string, q *message) (*message, error) {
	token, err := t.token(ctx)
	if err != nil {
		return nil, fmt.Errorf("kms: token for the transit engine: %w", err)
	}
	body, err := json.Marshal(q)
	if err != nil {
		return nil, err
	}

	r, err := http.NewRequestWithContext(ctx, http.MethodPost, t.base.JoinPath(operation, t.key).String(), bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("X-Vault-Token", strings.TrimSpace(token))
	r.Header.Set("X-Vault-Request", "true") // agents may ask for it, since no page can send it
	if t.namespace != "" {
		r.Header.Set("X-Vault-Namespace", t.namespace)
	}

	w, err := t.client.Do(r)
	if err != nil {
		return nil, fmt.Errorf("kms: transit engine: %w", err)
	}
	defer w.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(w.Body, maxAnswer+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("kms: answer of the transit engine: %w", err)
	case len(answer) > maxAnswer:
		return nil, errors.New("kms: answer of the transit engine is too long")
	case w.StatusCode != http.StatusOK:
		return nil, failure(w.StatusCode, answer)
	}

	var a struct{ Data *message }
	if json.Unmarshal(answer, &a) != nil || a.Data == nil {
		return nil, errors.New("kms: answer of the transit engine is not of its form")
	}
	return a.Data, nil
}

// failure returns the error of an answer. The engine distinguishes failures of one status in
// words alone.
func failure(status int, answer []byte) error {
	says := func(words ...string) bool {
		for _, w := range words {
			if bytes.Contains(bytes.ToLower(answer), []byte(w)) {
				return true
			}
		}
		return false
	}

	switch {
	case status == http.StatusBadRequest && says("too old"):
		return errors.New("kms: transit engine: the version of the key that wrapped is below min_decryption_version")
	case status == http.StatusForbidden:
		return errors.New("kms: transit engine: status 403, the token has expired or its policy lacks the key")
	case status == http.StatusNotFound:
		return errors.New("kms: transit engine: status 404, nothing is mounted at this path or namespace")
	case status == http.StatusServiceUnavailable:
		return errors.New("kms: transit engine: status 503, the server is sealed or starting")
	case (status == http.StatusBadRequest || status == http.StatusInternalServerError) &&
		says("message authentication failed", "invalid ciphertext", "encryption key not found"):
		return fmt.Errorf("%w: transit engine refuses the text, status %d", cardvault.ErrWrongKey, status)
	}
	return fmt.Errorf("kms: transit engine: status %d", status)
}
