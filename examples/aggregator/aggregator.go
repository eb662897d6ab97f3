// Package aggregator is an adapter to a token service: an example of how to write and prove
// one. The service speaks JSON over HTTP, takes the number of a card once, and answers with
// a handle for the network token that the scheme has issued.
//
// Three things take more than translation. A card number is written into the body by hand
// and wiped, so that no string of it stays behind. A missing answer is not a refusal: its
// error is not a [network.Error], and the vault asks again under the same key. And no error
// quotes an answer, since it may repeat the request.
package aggregator

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/network"
)

// A Client is a [network.Provider]. Get one from [New].
type Client struct {
	base, key string
	schemes   []card.Scheme
}

var _ network.Provider = (*Client)(nil)

// New returns the adapter for the service at an https URL, which knows the program by a key
// and has contracts with some schemes.
func New(base, key string, schemes ...card.Scheme) (*Client, error) {
	if u, err := url.Parse(base); err != nil || u.Host == "" || u.Scheme != "https" && u.Hostname() != "127.0.0.1" {
		return nil, errors.New("aggregator: base must be an https URL")
	}
	return &Client{base, key, schemes}, nil
}

// direct follows no redirect: the card number must reach no other host.
var direct = &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}

// Info implements [network.Provider].
func (*Client) Info() network.Info { return network.Info{Name: "aggregator"} }

// Eligible implements [network.Provider].
func (c *Client) Eligible(r *network.EligibilityRequest) error {
	if !slices.Contains(c.schemes, r.Scheme) {
		return &network.Error{Source: network.SourceConfiguration, Code: "scheme_not_enabled"}
	}
	return nil
}

// Provision implements [network.Provider].
func (c *Client) Provision(ctx context.Context, r *network.ProvisionRequest) (*network.Token, error) {
	// Room for all of it: nothing is left behind where append would move it.
	text := append(make([]byte, 0, 256), `{"number":"`...)
	r.PAN.Expose(func(digits []byte) { text = append(text, digits...) })
	text = fmt.Appendf(text, `","expiry_month":%d,"expiry_year":%d`, r.Expiry.Month, r.Expiry.Year)
	if !r.SecurityCode.IsZero() {
		text = append(text, `,"security_code":"`...)
		r.SecurityCode.Expose(func(digits []byte) { text = append(text, digits...) })
		text = append(text, '"')
	}
	return c.token(ctx, http.MethodPost, "/network-tokens", r.IdempotencyKey, append(text, '}'))
}

// Lookup implements [network.Provider].
func (c *Client) Lookup(ctx context.Context, ref network.Ref) (*network.Token, error) {
	return c.token(ctx, http.MethodGet, pathOf(ref), "", nil)
}

// Delete implements [network.Provider].
func (c *Client) Delete(ctx context.Context, ref network.Ref) error {
	err := c.call(ctx, http.MethodDelete, pathOf(ref), "", nil, nil)
	if errors.Is(err, network.ErrUnknown) {
		return nil
	}
	return err
}

// Cryptogram implements [network.Provider].
func (c *Client) Cryptogram(ctx context.Context, r *network.CryptogramRequest) (*network.Cryptogram, error) {
	text, err := json.Marshal(map[string]any{"amount": r.Amount, "currency": r.Currency, "reference": r.Reference})
	if err != nil {
		return nil, err
	}

	var a struct {
		Token      string          `json:"token"`
		Number     json.RawMessage `json:"number"` // with its quotes, as bytes that can be wiped
		Month      int             `json:"expiry_month"`
		Year       int             `json:"expiry_year"`
		Cryptogram json.RawMessage `json:"cryptogram"`
		ECI        string          `json:"eci"`
	}
	err = c.call(ctx, http.MethodPost, pathOf(r.Token)+"/cryptograms", r.IdempotencyKey, text, &a)
	defer clear(a.Number)
	defer clear(a.Cryptogram)
	if err != nil {
		return nil, err
	}
	return &network.Cryptogram{
		TokenID: a.Token,
		Number:  card.NewPAN(bytes.Trim(a.Number, `"`)),
		Expiry:  card.Expiry{Month: a.Month, Year: a.Year},
		Value:   card.NewCryptogramValue(bytes.Trim(a.Cryptogram, `"`)),
		ECI:     a.ECI,
	}, nil
}

// pathOf returns the path of a network token, by its handle or by the key under which it was
// asked for.
func pathOf(ref network.Ref) string {
	if ref.ID == "" {
		return "/network-tokens/by-key/" + url.PathEscape(ref.IdempotencyKey)
	}
	return "/network-tokens/" + url.PathEscape(ref.ID)
}

// token calls the service for an answer about a network token.
func (c *Client) token(ctx context.Context, method, path, key string, text []byte) (*network.Token, error) {
	var a struct {
		ID       string         `json:"id"`
		State    network.Status `json:"state"`
		Since    time.Time      `json:"since"`
		LastFour string         `json:"last_four"`
	}
	if err := c.call(ctx, method, path, key, text, &a); err != nil {
		return nil, err
	}
	if a.State == network.NotAvailable { // the zero value: no text of a network token has it
		return nil, errors.New("aggregator: answer without a state")
	}
	return &network.Token{ID: a.ID, State: a.State, StateAt: a.Since, Card: &network.CardState{LastFour: a.LastFour}}, nil
}

// call makes one request, and wipes its text. A refusal of the service is a [network.Error], an unknown network
// token ErrUnknown, and any other error says that the outcome is unknown.
func (c *Client) call(ctx context.Context, method, path, key string, text []byte, result any) error {
	r, err := http.NewRequestWithContext(ctx, method, c.base+path, nil)
	if err != nil {
		clear(text)
		return err
	}
	if len(text) > 0 {
		r.Body, r.ContentLength = wiped(text), int64(len(text))
	}
	r.Header.Set("Authorization", "Bearer "+c.key)
	r.Header.Set("Idempotency-Key", key)
	w, err := direct.Do(r)
	if err != nil {
		return err
	}
	defer w.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(w.Body, 64<<10))
	defer clear(answer)

	switch {
	case err != nil:
		return err
	case w.StatusCode == http.StatusNoContent && result == nil:
		return nil
	case w.StatusCode == http.StatusNotFound:
		return network.ErrUnknown
	case w.StatusCode == http.StatusUnprocessableEntity:
		return refusal(answer, w.Header)
	case w.StatusCode != http.StatusOK || result == nil:
		return fmt.Errorf("aggregator: answer with status %d", w.StatusCode)
	case json.Unmarshal(answer, result) != nil:
		return errors.New("aggregator: answer is not the expected JSON")
	}
	return nil
}

// wiped returns a body of text, and clears the text when net/http has read or closed the
// body, which may be after Do has returned.
func wiped(text []byte) io.ReadCloser {
	r, w := io.Pipe()
	go func() {
		_, err := w.Write(text)
		clear(text)
		w.CloseWithError(err)
	}()
	return r
}

// refusal returns the service's refusal and its reason. Its codes are the vault's; a real
// service has its own, which are translated here.
func refusal(text []byte, h http.Header) error {
	var a struct {
		Code  network.Code `json:"code"`
		Retry bool         `json:"retry"`
	}
	if json.Unmarshal(text, &a) != nil || network.SourceOf(a.Code) == 0 {
		return errors.New("aggregator: refusal without a known code")
	}
	after, _ := strconv.Atoi(h.Get("Retry-After")) // zero if it is absent
	return &network.Error{Source: network.SourceOf(a.Code), Code: a.Code, Retryable: a.Retry, RetryAfter: time.Duration(max(after, 0)) * time.Second}
}
