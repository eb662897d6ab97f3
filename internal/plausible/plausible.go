// Package plausible checks what adapters answer: a vault stores and shows none of it before.
package plausible

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/idv"
	"github.com/cardvault/cardvault/internal/credential"
	"github.com/cardvault/cardvault/internal/hiding"
	"github.com/cardvault/cardvault/internal/iin"
	"github.com/cardvault/cardvault/internal/iso"
	"github.com/cardvault/cardvault/internal/leak"
	"github.com/cardvault/cardvault/internal/rule"
	"github.com/cardvault/cardvault/network"
	"github.com/cardvault/cardvault/ppan"
	"github.com/google/uuid"
)

// ErrGarbage is returned for an answer that cannot be right.
var ErrGarbage = errors.New("cardvault: adapter returned an impossible answer")

// NetworkToken returns ErrGarbage unless got can be the answer for a card whose last
// four digits are known.
func NetworkToken(got *network.Token, lastFour string) error {
	ok := got != nil && len(got.ID) >= 1 && len(got.ID) <= rule.MaxText && len(got.Art) <= rule.MaxText
	if ok {
		switch got.State {
		case network.Pending, network.Active, network.Inactive, network.Deleted:
		default:
			ok = false
		}
	}
	if ok && got.Card != nil {
		ok = CardState(got.Card) && (lastFour == "" || got.Card.LastFour == "" || got.Card.LastFour == lastFour)
	}
	if !ok {
		return ErrGarbage
	}
	return nil
}

// CardState reports whether c can be the state of a card. Empty fields are unknown.
func CardState(c *network.CardState) bool {
	four := c.LastFour == "" || len(c.LastFour) == 4 && rule.AllDigits([]byte(c.LastFour))
	return four && (c.Expiry == card.Expiry{} || isExpiry(c.Expiry))
}

// Cryptogram reports whether c can be an answer.
func Cryptogram(c *network.Cryptogram) bool {
	if c == nil {
		return false
	}
	value := hiding.Of(c.Value)
	return Credential(c.Number, c.Expiry) &&
		len(value) >= 1 && len(value) <= credential.MaxCryptogram &&
		!slices.ContainsFunc(value, func(b byte) bool { return b < ' ' || b > '~' }) &&
		(c.ECI == "" || len(c.ECI) == 2 && rule.AllDigits([]byte(c.ECI)))
}

// Credential reports whether a network token can have this number and expiry.
func Credential(number card.PAN, expiry card.Expiry) bool {
	digits := hiding.Of(number)
	return len(digits) >= 13 && len(digits) <= rule.MaxPAN && iin.Luhn(digits) && isExpiry(expiry)
}

// AccountReference reports whether text can be a payment account reference. One with as many
// digits in a row as a card number is none: it is shown in the clear.
func AccountReference(text string) bool {
	return len(text) == 29 && !leak.MayHoldPAN(text) &&
		!strings.ContainsFunc(text, func(c rune) bool { return (c < 'A' || c > 'Z') && (c < '0' || c > '9') })
}

func isExpiry(e card.Expiry) bool {
	return rule.Range(e.Month, 1, 12) == nil && rule.Range(e.Year, rule.MinYear, rule.MaxYear) == nil
}

// firstAuthentication is before any.
var firstAuthentication = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

var authenticationMethods = []string{"three_ds", "security_code", "otp", "passkey"}

// Identification returns ErrGarbage unless the vault can act on an answer.
func Identification(got *idv.Result, sandbox bool, pan card.PAN) error {
	if got == nil {
		return ErrGarbage
	}

	switch got.State {
	case idv.Pending:
		if n := len(got.Reference); n < 1 || n > rule.MaxText || leak.Holds(got.Reference, hiding.Of(pan)) ||
			got.ChallengeURL != "" && (!isChallenge(got.ChallengeURL, sandbox) || leak.Holds(got.ChallengeURL, hiding.Of(pan))) {
			return ErrGarbage
		}
	case idv.Passed:
		a := got.Authentication
		if a == nil || !slices.Contains(authenticationMethods, a.Method) ||
			a.At.Before(firstAuthentication) || a.At.After(time.Now().Add(time.Hour)) ||
			len(a.Status) > 1 || len(a.Status) == 1 && (a.Status[0] < 'A' || a.Status[0] > 'Z') ||
			a.ECI != "" && (len(a.ECI) != 2 || !rule.AllDigits([]byte(a.ECI))) {
			return ErrGarbage
		}

		if id, err := uuid.Parse(a.DSTransactionID); a.DSTransactionID != "" &&
			(err != nil || id.String() != a.DSTransactionID || leak.Holds(a.DSTransactionID, hiding.Of(pan))) {
			return ErrGarbage
		}
	case idv.NotNeeded, idv.Failed:
	default:
		return ErrGarbage
	}
	return nil
}

// isChallenge reports whether a page of this address may be shown to a shopper.
func isChallenge(text string, sandbox bool) bool {
	if len(text) > 2048 || strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return false
	}
	u, err := url.Parse(text)
	if err != nil || u.Hostname() == "" || u.User != nil {
		return false
	}
	addr, _ := netip.ParseAddr(u.Hostname())
	return u.Scheme == "https" ||
		u.Scheme == "http" && sandbox && (u.Hostname() == "localhost" || addr.IsLoopback())
}

// PPAN returns ErrGarbage unless p can be the answer to a request: a provider that
// sends back the card number, the code or the hash does not get it past here.
func PPAN(p *ppan.Answer, r *ppan.Request) error {
	if p == nil || p.Status < ppan.Valid || p.Status > ppan.Error {
		return ErrGarbage
	}

	pan, hash, code := hiding.Of(r.PAN), hiding.Of(r.Account.Hash), hiding.Of(r.SecurityCode)
	guessed := len(hash) < 32 // too short for a hash, and may be in any text
	for _, text := range []string{
		p.TruncatedPAN, p.CardType, p.CardExpiry, p.TravelCard, p.TravelCardProvider, p.TravelCardInvoice,
		p.ErrorCode, p.ErrorMessage, p.CustomerMessage,
	} {
		if utf8.RuneCountInString(text) > rule.MaxText || leak.MayHoldPAN(text) || leak.Holds(text, pan) || !guessed && bytes.Contains([]byte(text), hash) {
			return ErrGarbage
		}
	}

	// Other texts can be the same as a code by chance.
	if leak.HoldsRun(p.ErrorMessage, code) || leak.HoldsRun(p.CustomerMessage, code) {
		return ErrGarbage
	}

	shown := 0
	for _, c := range []byte(p.TruncatedPAN) {
		if c >= '0' && c <= '9' {
			shown++
		}
	}
	if most := 6 + 4; shown > most && (shown > 8+4 || len(pan) < 16) {
		return ErrGarbage // the hidden digits could be computed
	}

	pseudo := hiding.Of(p.PseudoPAN)
	n := len(pseudo)
	if !rule.AllDigits(pseudo) || leak.Holds(string(pseudo), pan) ||
		(n > 0 || p.Status == ppan.Valid) && (n < 16 || n > rule.MaxPAN) {
		return ErrGarbage
	}
	return nil
}

// BIN returns a provider's data about a card, or nil if it is unknown.
func BIN(ctx context.Context, from network.BINProvider, p card.PAN, log *slog.Logger) *network.BIN {
	if from == nil {
		return nil
	}

	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()

	prefix := hiding.Of(p)
	prefix = append([]byte(nil), prefix[:6+2*min(1, len(prefix)/16)]...)

	got, err := from.LookupBIN(ctx, &network.BINRequest{IIN: prefix})
	if err != nil || got == nil {
		if err != nil {
			log.WarnContext(ctx, "BIN look-up failed", "error", leak.Printable(err))
		}
		return nil
	}

	// An answer outside the lists of the vault is treated as unknown.
	bin := *got
	if rule.Text([]byte(bin.BankName)) != nil {
		bin.BankName = ""
	}
	switch bin.Type {
	case "charge":
		bin.Type = "credit"
	case "prepaid":
		bin.Type = "debit"
	case "credit", "debit", "":
	default:
		bin.Type = ""
	}

	switch bin.Segment {
	case "business", "consumer", "commercial", "other", "":
	default:
		bin.Segment = ""
	}

	if bin.CountryCode != "" && !iso.Country(bin.CountryCode) {
		log.WarnContext(ctx, "BIN look-up returned a country that is not in ISO 3166-1", "iin", string(prefix[:6]))
		bin.CountryCode = ""
	}

	return &bin
}
