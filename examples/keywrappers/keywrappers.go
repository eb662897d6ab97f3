// Package keywrappers has the key of a vault held by Tink, by a service that gocloud.dev/secrets
// reaches, by AWS KMS, and by OpenBao or HashiCorp Vault. Package keytest proves each.
//
// The wrappers pass a data key on and map errors. ErrWrongKey sends the operator to look for
// another key, so it means that the key refuses the text. If a service is out of reach or
// denies access, the error is any other, and a later call may succeed.
package keywrappers

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"

	"github.com/aws/aws-sdk-go-v2/service/kms"
	"github.com/aws/aws-sdk-go-v2/service/kms/types"
	"github.com/cardvault/cardvault"
	"github.com/tink-crypto/tink-go/v2/tink"
	"gocloud.dev/gcerrors"
	"gocloud.dev/secrets"
)

// A wrapper is a KeyWrapper of two functions.
type wrapper struct {
	keyID            string
	encrypt, decrypt func(ctx context.Context, text, aad []byte) ([]byte, error)
}

func (w *wrapper) KeyID() string { return w.keyID }

func (w *wrapper) Wrap(ctx context.Context, key, aad []byte) ([]byte, error) {
	return call(ctx, w.encrypt, key, aad)
}

func (w *wrapper) Unwrap(ctx context.Context, wrapped, aad []byte) ([]byte, error) {
	return call(ctx, w.decrypt, wrapped, aad)
}

// call makes no call once ctx has ended: clients differ in that.
func call(ctx context.Context, f func(ctx context.Context, text, aad []byte) ([]byte, error), text, aad []byte) ([]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return f(ctx, text, aad)
}

func wrongKey(err error) error { return fmt.Errorf("%w: %w", cardvault.ErrWrongKey, err) }

// Tink wraps under a keyset of Tink in memory, by the AEAD that aead.New returns of it. The
// AEAD of a remote key would not do: it does not say whether the key was reached.
func Tink(name string, key tink.AEAD) cardvault.KeyWrapper {
	encrypt := func(_ context.Context, text, aad []byte) ([]byte, error) { return key.Encrypt(text, aad) }
	decrypt := func(_ context.Context, text, aad []byte) ([]byte, error) {
		plain, err := key.Decrypt(text, aad)
		if err != nil {
			return nil, wrongKey(err)
		}
		return plain, nil
	}
	return &wrapper{"tink/" + name, encrypt, decrypt}
}

// Cloud wraps under a key that gocloud.dev/secrets reaches. The name is stored in clear: it
// must not be the URL of the key, which may hold the key itself. These services have no
// associated data.
func Cloud(name string, key *secrets.Keeper) cardvault.KeyWrapper {
	encrypt := func(ctx context.Context, text, _ []byte) ([]byte, error) { return key.Encrypt(ctx, text) }
	works := func(ctx context.Context) bool {
		text, err := key.Encrypt(ctx, []byte("cardvault"))
		if err == nil {
			_, err = key.Decrypt(ctx, text)
		}
		return err == nil
	}

	decrypt := func(ctx context.Context, text, _ []byte) ([]byte, error) {
		plain, err := key.Decrypt(ctx, text)
		refused := gcerrors.InvalidArgument

		// Some drivers have no code for a refused text: they refuse it again while the key works.
		if gcerrors.Code(err) == gcerrors.Unknown && works(ctx) {
			refused = gcerrors.Unknown
			plain, err = key.Decrypt(ctx, text)
		}
		if gcerrors.Code(err) == refused {
			return nil, wrongKey(err)
		}
		return plain, err
	}
	return &wrapper{"gocloud/" + name, encrypt, decrypt}
}

// AWS wraps under a symmetric key of AWS KMS. The policy of the key and CloudTrail see the
// associated data as encryption context: mode, account and generation of the vault's keys.
func AWS(arn string, client *kms.Client) cardvault.KeyWrapper {
	bound := func(aad []byte) map[string]string {
		return map[string]string{"cardvault": base64.StdEncoding.EncodeToString(aad)}
	}
	encrypt := func(ctx context.Context, text, aad []byte) ([]byte, error) {
		a, err := client.Encrypt(ctx, &kms.EncryptInput{KeyId: &arn, Plaintext: text, EncryptionContext: bound(aad)})
		if err != nil {
			return nil, err
		}
		return a.CiphertextBlob, nil
	}

	decrypt := func(ctx context.Context, text, aad []byte) ([]byte, error) {
		if len(text) == 0 { // the service calls that an invalid request
			return nil, wrongKey(errors.New("keywrappers: nothing to decrypt"))
		}
		a, err := client.Decrypt(ctx, &kms.DecryptInput{KeyId: &arn, CiphertextBlob: text, EncryptionContext: bound(aad)})
		_, refused := errors.AsType[*types.InvalidCiphertextException](err)
		_, otherKey := errors.AsType[*types.IncorrectKeyException](err)
		switch {
		case refused || otherKey:
			return nil, wrongKey(err)
		case err != nil:
			return nil, err
		}
		return a.Plaintext, nil
	}
	return &wrapper{arn, encrypt, decrypt}
}

// OpenBao wraps under a key of the transit engine of OpenBao, or of HashiCorp Vault, of a type
// with associated data such as aes256-gcm96. The policy of the token lets it encrypt and decrypt
// with this key, and nothing else. The address is https, except on a loopback address.
func OpenBao(address, token, name string) cardvault.KeyWrapper {
	encrypt := func(ctx context.Context, text, aad []byte) ([]byte, error) {
		m, err := transit(ctx, address+"/v1/transit/encrypt/"+name, token, &message{Plaintext: text, Associated: aad})
		return []byte(m.Ciphertext), err
	}
	decrypt := func(ctx context.Context, text, aad []byte) ([]byte, error) {
		m, err := transit(ctx, address+"/v1/transit/decrypt/"+name, token, &message{Ciphertext: string(text), Associated: aad})
		return m.Plaintext, err
	}
	return &wrapper{"transit/" + name, encrypt, decrypt}
}

// A message is what the engine takes and returns, with bytes in base64 as JSON has them.
type message struct {
	Plaintext  []byte `json:"plaintext,omitempty"`
	Ciphertext string `json:"ciphertext,omitempty"`
	Associated []byte `json:"associated_data,omitempty"`
}

// direct sends keys and token to no other address than the given one.
var direct = &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}

// transit makes one request. Its errors hold nothing of it.
func transit(ctx context.Context, address, token string, q *message) (message, error) {
	text, err := json.Marshal(q)
	if err != nil {
		return message{}, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, address, bytes.NewReader(text))
	if err != nil || r.URL.Scheme != "https" && (r.URL.Scheme != "http" || !net.ParseIP(r.URL.Hostname()).IsLoopback()) {
		return message{}, errors.New("keywrappers: address of OpenBao must be https")
	}
	r.Header.Set("X-Vault-Token", token)
	w, err := direct.Do(r)
	if err != nil {
		return message{}, err
	}
	defer w.Body.Close()

	answer, err := io.ReadAll(io.LimitReader(w.Body, 1<<20))
	refused := bytes.Contains(answer, []byte("message authentication failed")) || bytes.Contains(answer, []byte("invalid ciphertext"))
	var a struct{ Data message }
	switch {
	case err != nil:
		return message{}, err
	case refused && w.StatusCode != http.StatusOK: // 400 or 500: the engine says it in words alone
		return message{}, fmt.Errorf("%w: OpenBao refuses the text", cardvault.ErrWrongKey)
	case w.StatusCode != http.StatusOK || json.Unmarshal(answer, &a) != nil || a.Data.Plaintext == nil && a.Data.Ciphertext == "":
		return message{}, fmt.Errorf("keywrappers: answer of OpenBao has status %d and no text", w.StatusCode)
	}
	return a.Data, nil
}
