// Package payonetest is the provider's side of package payone, for tests and
// sandboxes.
package payonetest

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"slices"

	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/payone"
	"github.com/cardvault/cardvault/ppan"
)

const maxForm = 8 << 10 // bytes

// NewHandler returns the test system of a provider, on any path. Merchants are
// known by a hash under portalKey. Requests that are as documented are answered by
// p, which must not be nil; others with status ERROR. If p is the simulator,
// portalKey must be simnet.PortalKey, as it checks the hash again. The example of
// payone.New puts them together.
//
// A request without a valid form has an HTTP status of its own, and so has a request for
// which p fails, 500. The handler erases the request, and makes no string of a card number
// or a code. The server is responsible for the buffer of the connection, which net/http
// keeps until the next request.
func NewHandler(portalKey string, p ppan.Provider) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mediaType, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
		switch {
		case r.Method != http.MethodPost:
			w.Header().Set("Allow", http.MethodPost)
			w.WriteHeader(http.StatusMethodNotAllowed)
			return
		case err != nil || mediaType != "application/x-www-form-urlencoded":
			w.WriteHeader(http.StatusUnsupportedMediaType)
			return
		}

		var buf [maxForm + 1]byte
		defer clear(buf[:])
		n, err := io.ReadFull(r.Body, buf[:])
		switch {
		case err == nil:
			w.WriteHeader(http.StatusRequestEntityTooLarge)
			return
		case !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF):
			w.WriteHeader(http.StatusBadRequest)
			return
		}

		answer, err := check(r, portalKey, p, buf[:n])
		if err != nil {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}

		w.Header().Set("Content-Type", "application/json; charset=UTF-8")
		w.Header().Set("Cache-Control", "no-store")
		// A client that has gone receives no answer.
		_ = json.NewEncoder(w).Encode(wire{
			Status:             answer.Status.String(),
			PseudoPAN:          answer.PseudoPAN.Text(),
			TruncatedPAN:       answer.TruncatedPAN,
			CardType:           answer.CardType,
			CardExpiry:         answer.CardExpiry,
			TravelCard:         answer.TravelCard,
			TravelCardProvider: answer.TravelCardProvider,
			TravelCardInvoice:  answer.TravelCardInvoice,
			ErrorCode:          answer.ErrorCode,
			ErrorMessage:       answer.ErrorMessage,
			CustomerMessage:    answer.CustomerMessage,
		})
	})
}

type wire struct {
	Status             string `json:"status"`
	PseudoPAN          string `json:"pseudocardpan,omitempty"`
	TruncatedPAN       string `json:"truncatedcardpan,omitempty"`
	CardType           string `json:"cardtype,omitempty"`
	CardExpiry         string `json:"cardexpiredate,omitempty"`
	TravelCard         string `json:"tcdata,omitempty"`
	TravelCardProvider string `json:"tcprovider,omitempty"`
	TravelCardInvoice  string `json:"tcinvoice,omitempty"`
	ErrorCode          string `json:"errorcode,omitempty"`
	ErrorMessage       string `json:"errormessage,omitempty"`
	CustomerMessage    string `json:"customermessage,omitempty"`
}

// refused returns the answer to a request that is wrong.
func refused(code, message string) *ppan.Answer {
	return &ppan.Answer{
		Status:          ppan.Error,
		ErrorCode:       code,
		ErrorMessage:    message,
		CustomerMessage: "An error occurred while processing this transaction (wrong parameters).",
	}
}

// check answers a form, and keeps nothing of it.
func check(r *http.Request, portalKey string, p ppan.Provider, form []byte) (*ppan.Answer, error) {
	f, ok := parse(form)
	if !ok {
		return refused("1000", "Parameters are not as documented."), nil
	}

	for _, want := range rules {
		value, given := f[want.name]
		if !given && !want.optional || given && want.must != "" && string(value) != want.must {
			return refused("1000", "Parameter {"+want.name+"} faulty or missing."), nil
		}
	}

	expiry := f["cardexpiredate"]
	if len(expiry) != 4 || !digits(expiry) || !digits(f["cardpan"]) || !digits(f["cardcvc2"]) {
		return refused("1000", "Parameters of the card faulty."), nil
	}

	of := payone.HashParameters{
		AID: string(f["aid"]), MID: string(f["mid"]), PortalID: string(f["portalid"]),
		Sandbox: true, TravelCard: f["checktype"] != nil,
	}
	request := ppan.Request{
		Account:      ppan.Account{AID: of.AID, MID: of.MID, PortalID: of.PortalID, Hash: ppan.NewHash(f["hash"])},
		Sandbox:      of.Sandbox,
		PAN:          card.NewPAN(f["cardpan"]),
		Expiry:       card.Expiry{Month: number(expiry[2:]), Year: 2000 + number(expiry[:2])},
		SecurityCode: card.NewSecurityCode(f["cardcvc2"]),
	}
	defer request.Account.Hash.Wipe()
	defer request.PAN.Wipe()
	defer request.SecurityCode.Wipe()

	if !payone.Verify(portalKey, of, request.Account.Hash) {
		return refused("2006", "Parameter {hash} faulty or missing."), nil
	}
	return p.ObtainPPAN(r.Context(), &request)
}

// A rule checks a parameter. must is its value, if only one is allowed.
type rule struct {
	name, must string
	optional   bool
}

var rules = []rule{
	{name: "aid"},
	{name: "api_version", must: "3.11"},
	{name: "cardcvc2", optional: true},
	{name: "cardexpiredate"},
	{name: "cardpan"},
	{name: "checktype", must: "TC", optional: true},
	{name: "encoding", must: "UTF-8"},
	{name: "hash"},
	{name: "mid"},
	{name: "mode", must: "test"},
	{name: "portalid"},
	{name: "request", must: "creditcardcheck"},
	{name: "responsetype", must: "JSON"},
	{name: "storecarddata", must: "yes"},
}

// parse takes a form apart, in place. ok is whether it has documented parameters
// only, each once and with a value.
func parse(form []byte) (values map[string][]byte, ok bool) {
	values = make(map[string][]byte, len(rules))
	for pair := range bytes.SplitSeq(form, []byte("&")) {
		name, value, _ := bytes.Cut(pair, []byte("="))
		i := slices.IndexFunc(rules, func(r rule) bool { return r.name == string(name) })
		value, ok := unescape(value)
		if i < 0 || !ok || len(value) == 0 || values[rules[i].name] != nil {
			return nil, false
		}
		values[rules[i].name] = value
	}
	return values, true
}

// unescape undoes the escapes of a form, in place.
func unescape(b []byte) (plain []byte, ok bool) {
	plain = b[:0]
	for len(b) > 0 {
		c, size := b[0], 1
		switch {
		case c == '+':
			c = ' '
		case c == '%' && len(b) < 3:
			return nil, false
		case c == '%':
			high, ok1 := nibble(b[1])
			low, ok2 := nibble(b[2])
			if !ok1 || !ok2 {
				return nil, false
			}
			c, size = high<<4|low, 3
		}

		plain, b = append(plain, c), b[size:]
	}
	return plain, true
}

func nibble(c byte) (n byte, ok bool) {
	switch {
	case '0' <= c && c <= '9':
		return c - '0', true
	case 'A' <= c && c <= 'F':
		return c - 'A' + 10, true
	case 'a' <= c && c <= 'f':
		return c - 'a' + 10, true
	}
	return 0, false
}

func digits(b []byte) bool {
	for _, c := range b {
		if c < '0' || c > '9' {
			return false
		}
	}
	return true
}

// number returns the value of two digits.
func number(b []byte) int { return int(b[0]-'0')*10 + int(b[1]-'0') }
