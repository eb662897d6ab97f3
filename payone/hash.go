package payone

import (
	"crypto/fips140"
	"crypto/hmac"
	"crypto/sha512"
	"crypto/subtle"
	"encoding/hex"

	"github.com/cardvault/cardvault/ppan"
)

// HashParameters are those parameters of a request that the hash covers and that
// differ between merchants.
type HashParameters struct {
	AID, MID, PortalID string // as in ppan.Account

	// Sandbox is whether the vault is in sandbox mode.
	Sandbox bool

	// TravelCard is whether the client of the vault has [Options.TravelCard].
	TravelCard bool
}

// Hash returns the hash of the requests of a merchant. It is the same for every card, so it
// is computed once, by the holder of the portal key, which is never the vault. See the
// package comment for how other programs compute it.
func Hash(portalKey string, p HashParameters) ppan.Hash {
	return ppan.NewHash(digest(portalKey, p.list()))
}

// Verify reports whether given is the hash that [Hash] returns, in constant time.
func Verify(portalKey string, p HashParameters, given ppan.Hash) (ok bool) {
	want := digest(portalKey, p.list())
	given.Expose(func(text []byte) { ok = subtle.ConstantTimeCompare(text, want) == 1 })
	return ok
}

// A parameter with no value is not sent, and not hashed.
type parameter struct {
	name  string
	value []byte
}

// list returns everything that the hash covers, in the order of the names.
func (p HashParameters) list() []parameter {
	mode, check := "live", ""
	if p.Sandbox {
		mode = "test"
	}
	if p.TravelCard {
		check = "TC"
	}

	return []parameter{
		{"aid", []byte(p.AID)},
		{"api_version", []byte("3.11")},
		{"checktype", []byte(check)},
		{"encoding", []byte("UTF-8")},
		{"mid", []byte(p.MID)},
		{"mode", []byte(mode)},
		{"portalid", []byte(p.PortalID)},
		{"request", []byte("creditcardcheck")},
		{"responsetype", []byte("JSON")},
		{"storecarddata", []byte("yes")},
	}
}

// digest returns the hash of parameters under a portal key, in hexadecimal.
func digest(portalKey string, list []parameter) (text []byte) {
	// Portal keys are shorter than FIPS 140 wants a key to be.
	fips140.WithoutEnforcement(func() {
		mac := hmac.New(sha512.New384, []byte(portalKey))
		for _, p := range list {
			mac.Write(p.value)
		}
		text = hex.AppendEncode(nil, mac.Sum(nil))
	})
	return text
}
