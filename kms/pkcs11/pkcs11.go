// Package pkcs11 wraps the keys of a vault under an AES key in a hardware security module
// (HSM), which is reached through a PKCS #11 library.
//
// The HSM encrypts with AES-GCM, which binds the associated data. RSA is left out on purpose: an
// attacker with the public key could wrap keys of their own, and the vault would use them.
//
// The package needs cgo. Without it [Open] returns an error.
package pkcs11

import (
	"context"
	"errors"
	"fmt"
	"net/url"
)

// Options are the settings of [Open] that have a default.
type Options struct {
	// Sessions limits the sessions with the token that are in use. If zero, it is 4. One
	// more keeps the login.
	Sessions int

	// TokenIV is for HSMs that make the initialization vector themselves and write it into
	// the parameters, such as AWS CloudHSM. If false, the vector is random.
	TokenIV bool
}

// defaultSessions is enough for a vault, which wraps at starts and rotations.
const defaultSessions = 4

// A PIN is called for each login, and returns the PIN of the token's user. A line break at its
// end is ignored, as files have one. The caller erases the result. The library that logs in copies the PIN, and this copy is not erased.
type PIN func(ctx context.Context) ([]byte, error)

// ErrPIN is returned after the token has refused a PIN. A [Key] does not log in again then,
// because a token locks after a few wrong PINs.
var ErrPIN = errors.New("pkcs11: token refused the PIN, which is not tried again")

// checked returns o with its defaults, and the name of the key in the store.
func checked(module, token, key string, pin PIN, o *Options) (Options, string, error) {
	all := Options{}
	if o != nil {
		all = *o
	}
	if all.Sessions == 0 {
		all.Sessions = defaultSessions
	}

	keyID := "pkcs11:token=" + url.PathEscape(token) + ";object=" + url.PathEscape(key) // as RFC 7512
	switch {
	case module == "" || token == "" || key == "":
		return all, "", errors.New("pkcs11: module, token and key need a name each")
	case len(keyID) > 255:
		return all, "", fmt.Errorf("pkcs11: the names of token and key are too long: %d bytes, not 255", len(keyID))
	case pin == nil:
		return all, "", errors.New("pkcs11: a token needs a PIN")
	case all.Sessions < 0:
		return all, "", errors.New("pkcs11: number of sessions is negative")
	}
	return all, keyID, nil
}
