// Package credential encrypts payment credentials for merchants.
//
// Payment data is a JWE in compact form (RFC 7516) with the algorithms A256GCMKW and A256GCM.
// Its key is the SHA-256 of the text of a shared secret, and kid names the secret. It holds
//
//	{"network_token":{"token":"4895…","expiry_year":2030,"expiry_month":12},
//	 "cryptogram":"AgAAAABB6qqnJd0oAmbuXgu8AAAA=","eci":"07"}
//
// in which eci is null if none was assigned. Key wrapping by AES-GCM takes an IV of the
// caller's, which FIPS 140-3 does not know.
package credential

import (
	"crypto/fips140"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"strconv"

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
// network token, nor the cryptogram, which has printable ASCII characters.
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

// Cryptogram returns the cryptogram, which is the Credential's own.
func (c *Credential) Cryptogram() []byte { return c.cryptogram() }

// Wipe overwrites number and cryptogram with zeros.
func (c *Credential) Wipe() {
	clear(c.Number())
	clear(c.Cryptogram())
}

// Seal returns c encrypted under the text of a secret, which has an id.
func (c *Credential) Seal(secret []byte, id string) (jwe string, err error) {
	key := sha256.Sum256(secret)
	defer clear(key[:])
	plain := c.encode()
	defer clear(plain)

	fips140.WithoutEnforcement(func() {
		to := jose.Recipient{Algorithm: jose.A256GCMKW, Key: key[:], KeyID: id}
		var e jose.Encrypter
		if e, err = jose.NewEncrypter(jose.A256GCM, to, nil); err != nil {
			return
		}
		var sealed *jose.JSONWebEncryption
		if sealed, err = e.Encrypt(plain); err == nil {
			jwe, err = sealed.CompactSerialize()
		}
	})
	return jwe, err
}

// encode returns the JSON text of c.
func (c *Credential) encode() []byte {
	b := make([]byte, 0, 2*MaxCryptogram+160) // never grown: nothing is left behind

	b = append(b, `{"network_token":{"token":"`...)
	b = append(b, c.Number()...)
	b = append(b, `","expiry_year":`...)
	b = strconv.AppendInt(b, int64(c.Year), 10)
	b = append(b, `,"expiry_month":`...)
	b = strconv.AppendInt(b, int64(c.Month), 10)

	b = append(b, `},"cryptogram":"`...)
	for _, char := range c.Cryptogram() {
		if char == '"' || char == '\\' {
			b = append(b, '\\')
		}
		b = append(b, char)
	}

	b = append(b, `","eci":`...)
	if c.ECI == "" {
		return append(b, `null}`...)
	}
	b = append(b, '"')
	b = append(b, c.ECI...)
	return append(b, `"}`...)
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
		Cryptogram text    `json:"cryptogram"`
		ECI        *string `json:"eci"`
	}

	err := json.Unmarshal(plain, &p)
	c := New(p.Token.Number, p.Token.Month, p.Token.Year, p.Cryptogram)
	if err != nil || len(c.Number()) == 0 || !allDigits(c.Number()) || len(c.Cryptogram()) == 0 {
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
