// Package credential encrypts payment credentials for merchants.
//
// Payment data is a JWE in compact form (RFC 7516) with the algorithms A256GCMKW and A256GCM.
// Its key is the SHA-256 of the text of a shared secret, and kid names the secret. It holds
//
//	{"network_token":{"token":"4895…","expiry_year":2030,"expiry_month":12},
//	 "cryptogram":"AgAAAABB6qqnJd0oAmbuXgu8AAAA=","eci":"07"}
//
// in which eci is null if none was assigned, and cryptogram if the merchant initiates the
// payment. Key wrapping by AES-GCM takes an IV of the caller's, which FIPS 140-3 does not know.
package credential

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/fips140"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"strconv"
	"strings"

	"github.com/go-jose/go-jose/v4"
)

// MaxCryptogram bounds a cryptogram, in characters. The schemes' have 28.
const MaxCryptogram = 256

// maxSize bounds what Open looks at. Seal makes about 700 bytes.
const maxSize = 8 << 10

// ErrOpen is returned by Open, whatever the reason. It holds nothing of the data.
var ErrOpen = errors.New("receive: payment data cannot be opened with these secrets")

// A Credential is what a merchant sends in place of a card number.
type Credential struct {
	Month, Year int
	ECI         string // "" if none was assigned

	number, cryptogram func() []byte // fmt and encoders cannot look into a closure
}

// New returns a Credential without an ECI. It does not copy the digits of the
// network token, nor the cryptogram, which has printable ASCII characters or is empty.
func New(number []byte, month, year int, cryptogram []byte) *Credential {
	return &Credential{
		Month:      month,
		Year:       year,
		number:     func() []byte { return number },
		cryptogram: func() []byte { return cryptogram },
	}
}

// Number returns the digits of the network token, which are the Credential's own.
func (c *Credential) Number() []byte { return c.number() }

// Cryptogram returns the cryptogram, which is the Credential's own: empty if it has none.
func (c *Credential) Cryptogram() []byte { return c.cryptogram() }

// Wipe overwrites number and cryptogram with zeros.
func (c *Credential) Wipe() {
	clear(c.Number())
	clear(c.Cryptogram())
}

// Seal returns c encrypted under the text of a secret, which has an id of printable ASCII
// characters. go-jose would make five times as much work of it.
func (c *Credential) Seal(secret []byte, id string) (jwe string, err error) {
	plain := c.encode()
	defer clear(plain)
	var key, content [sha256.Size]byte
	defer clear(content[:])
	defer clear(key[:])
	key = sha256.Sum256(secret)

	// Nonces of the key and of the content. None of these reads fails.
	var wrapping, nonce [nonceSize]byte
	for _, random := range [][]byte{content[:], wrapping[:], nonce[:]} {
		_, _ = rand.Read(random)
	}

	fips140.WithoutEnforcement(func() {
		var wrapper, sealer cipher.AEAD
		if wrapper, err = newGCM(key[:]); err != nil {
			return
		}
		if sealer, err = newGCM(content[:]); err != nil {
			return
		}

		wrapped := wrapper.Seal(nil, wrapping[:], content[:], nil)
		wrapped, tag := wrapped[:len(content)], wrapped[len(content):]
		b := make([]byte, 0, 1024)
		b = appendBase64(b, header(id, wrapping[:], tag))
		sealed := sealer.Seal(nil, nonce[:], plain, b)
		sealed, tag = sealed[:len(plain)], sealed[len(plain):]
		for _, part := range [][]byte{wrapped, nonce[:], sealed, tag} {
			b = appendBase64(append(b, '.'), part)
		}
		jwe = string(b)
	})
	return jwe, err
}

const nonceSize = 12

func newGCM(key []byte) (cipher.AEAD, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(block)
}

// header returns the protected header, with the nonce and tag of the wrapped key.
func header(id string, nonce, tag []byte) []byte {
	b := make([]byte, 0, 256)
	b = append(b, `{"alg":"A256GCMKW","enc":"A256GCM","iv":"`...)
	b = appendBase64(b, nonce)
	b = append(b, `","kid":`...)
	b = appendText(b, []byte(id))
	b = append(b, `,"tag":"`...)
	b = appendBase64(b, tag)
	return append(b, `"}`...)
}

func appendBase64(b, data []byte) []byte { return base64.RawURLEncoding.AppendEncode(b, data) }

// encode returns the JSON text of c.
func (c *Credential) encode() []byte {
	b := make([]byte, 0, 2*MaxCryptogram+160) // never grown: nothing is left behind

	b = append(b, `{"network_token":{"token":"`...)
	b = append(b, c.Number()...)
	b = append(b, `","expiry_year":`...)
	b = strconv.AppendInt(b, int64(c.Year), 10)
	b = append(b, `,"expiry_month":`...)
	b = strconv.AppendInt(b, int64(c.Month), 10)

	b = append(b, `},"cryptogram":`...)
	b = appendText(b, c.Cryptogram())
	b = append(b, `,"eci":`...)
	b = appendText(b, []byte(c.ECI))
	return append(b, '}')
}

// appendText appends printable ASCII text in JSON, or null for an empty one.
func appendText(b, value []byte) []byte {
	if len(value) == 0 {
		return append(b, `null`...)
	}
	b = append(b, '"')
	for _, char := range value {
		if char == '"' || char == '\\' {
			b = append(b, '\\')
		}
		b = append(b, char)
	}
	return append(b, '"')
}

// SecretID returns the id of the secret under which Seal has made a JWE, "" of another text.
func SecretID(jwe string) string {
	protected, _, _ := strings.Cut(jwe, ".")
	decoded, err := base64.RawURLEncoding.DecodeString(protected)
	var h struct {
		ID string `json:"kid"`
	}
	if err != nil || json.Unmarshal(decoded, &h) != nil {
		return ""
	}
	return h.ID
}

// Open returns the plaintext of a JWE that was sealed under one of the secrets. The caller
// wipes it.
func Open(jwe string, secrets ...[]byte) (*Credential, error) {
	if len(jwe) > maxSize {
		return nil, ErrOpen
	}

	sealed, err := jose.ParseEncryptedCompact(jwe, []jose.KeyAlgorithm{jose.A256GCMKW}, []jose.ContentEncryption{jose.A256GCM})
	if err != nil {
		return nil, ErrOpen
	}
	if _, ok := sealed.Header.ExtraHeaders["zip"]; ok {
		return nil, ErrOpen
	}

	for _, secret := range secrets {
		key := sha256.Sum256(secret)
		var plain []byte
		fips140.WithoutEnforcement(func() { plain, err = sealed.Decrypt(key[:]) })
		clear(key[:])
		if err == nil {
			defer clear(plain)
			return parse(plain)
		}
	}
	return nil, ErrOpen
}

func parse(plain []byte) (*Credential, error) {
	var p struct {
		Token struct {
			Number text `json:"token"`
			Year   int  `json:"expiry_year"`
			Month  int  `json:"expiry_month"`
		} `json:"network_token"`
		Cryptogram *text   `json:"cryptogram"`
		ECI        *string `json:"eci"`
	}

	p.Cryptogram = new(text) // it is empty still if the member is missing
	err := json.Unmarshal(plain, &p)
	none := p.Cryptogram == nil // null
	if none {
		p.Cryptogram = new(text)
	}
	c := New(p.Token.Number, p.Token.Month, p.Token.Year, *p.Cryptogram)
	if err != nil || len(c.Number()) == 0 || !allDigits(c.Number()) || len(c.Cryptogram()) == 0 && !none {
		c.Wipe()
		return nil, ErrOpen
	}
	if p.ECI != nil {
		c.ECI = *p.ECI
	}
	return c, nil
}

// A text is a JSON string that can be overwritten.
type text []byte

func (t *text) UnmarshalText(b []byte) error {
	*t = append(text(nil), b...)
	return nil
}

func allDigits(b []byte) bool {
	for _, c := range b {
		if c < '0' || c > '9' {
			return false
		}
	}
	return true
}
