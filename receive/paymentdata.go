package receive

import (
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/internal/credential"
	"github.com/cardvault/cardvault/internal/hiding"
)

// A SharedSecret opens payment data: 43 base64url characters. However it is printed, logged
// or encoded, nothing of it shows. The zero value is empty.
type SharedSecret struct{ hidden }

// NewSharedSecret returns a SharedSecret of a copy of text.
func NewSharedSecret(text []byte) SharedSecret { return SharedSecret{hiding.New(text)} }

// Text returns the secret itself, which nothing hides from then on.
func (s SharedSecret) Text() string { return string(hiding.Of(s)) }

// A merchant sends a Credential in place of a card number, for one payment.
type Credential struct {
	Number     card.PAN // of the network token
	Expiry     card.Expiry
	Cryptogram card.CryptogramValue // zero if the merchant initiates the payment
	ECI        string               // "" if none was assigned
}

// Wipe overwrites number and cryptogram with zeros.
func (c *Credential) Wipe() {
	c.Number.Wipe()
	c.Cryptogram.Wipe()
}

// ErrPaymentData is returned by OpenPaymentData.
var ErrPaymentData = credential.ErrOpen

// OpenPaymentData decrypts payment data with a shared secret of the merchant. During a
// rotation it takes the old and the new secret, and uses the one that fits.
//
// The error is ErrPaymentData, whatever the reason, and holds nothing of jwe.
func OpenPaymentData(jwe string, secrets ...SharedSecret) (*Credential, error) {
	texts := make([][]byte, len(secrets))
	for i, secret := range secrets {
		texts[i] = hiding.Of(secret)
	}
	opened, err := credential.Open(jwe, texts...)
	if err != nil {
		return nil, err
	}
	defer opened.Wipe()

	return &Credential{
		Number:     card.NewPAN(opened.Number()),
		Expiry:     card.Expiry{Month: opened.Month, Year: opened.Year},
		Cryptogram: card.NewCryptogramValue(opened.Cryptogram()),
		ECI:        opened.ECI,
	}, nil
}
