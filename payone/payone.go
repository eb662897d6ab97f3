// Package payone obtains pseudo card numbers (PPAN) from a payment provider over HTTP. The
// provider's interface is of the kind "creditcardcheck": a form is posted, and the answer
// is JSON.
//
//	provider, err := payone.New("https://provider.example/client-api/", nil)
//	v, err := cardvault.Open(ctx, "vault", keys, &cardvault.Options{PPAN: provider})
//	pseudo, err := v.ObtainPPAN(ctx, token.ID, ppan.Account{
//		AID: aid, MID: mid, PortalID: portal, Hash: hash,
//	})
//
// # The hash
//
// The provider recognizes its merchant by a hash that the vault's caller computes, once:
// the vault never has the portal key. It is the HMAC-SHA-384 under the portal key, in
// lower-case hexadecimal digits. The message is the values of these parameters one after
// the other, in the order of their names:
//
//	aid            of the merchant
//	api_version    3.11
//	checktype      TC, only with Options.TravelCard
//	encoding       UTF-8
//	mid            of the merchant
//	mode           live, or test for a sandbox vault
//	portalid       of the merchant
//	request        creditcardcheck
//	responsetype   JSON
//	storecarddata  yes
//
// [Hash] does that. So does a shell, for a sandbox, an aid of 22222, a mid of 11111
// and a portalid of 3333333:
//
//	printf 222223.11UTF-811111test3333333creditcardcheckJSONyes |
//		openssl dgst -sha384 -hmac "$PORTAL_KEY" -r | cut -d' ' -f1
//
// With the portal key secretTestKey that is 72a4a5acd535aa5e…1f0999e30d68.
//
// # Requests and stored data
//
// Besides what the hash covers and the hash: cardpan, cardexpiredate (YYMM) and, if
// the vault has the security code, cardcvc2. The answer is a JSON object with the
// status VALID, INVALID or ERROR. VALID comes with pseudocardpan, of 16 to 19
// digits, and may come with truncatedcardpan, cardtype (such as V for VISA, M for
// Mastercard, A for American Express, D for Diners Club and Discover, J for JCB, P
// for UnionPay, O for Maestro) and cardexpiredate; the others with errorcode,
// errormessage and customermessage. Any other answer is an error.
//
// A request is sent once. It is not repeated once a byte of it was written, and no redirect
// is followed: the outcome of a request without an answer is unknown.
//
// Card number, security code and hash are in one buffer of this package and in the
// write buffer of a connection while they are sent, and both are erased. Errors
// hold nothing of the request and of the answer.
package payone

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
	"sync/atomic"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/cardvault/cardvault/internal/hiding"
	"github.com/cardvault/cardvault/internal/rule"
	"github.com/cardvault/cardvault/ppan"
)

// Options are the optional parts of a client.
type Options struct {
	// TravelCard asks for the extended check of travel cards, and keeps what the
	// answer says of it. It changes the hash: see [HashParameters].
	TravelCard bool

	// TLS says whom to trust, such as a private CA. If nil, the roots of the system.
	TLS *tls.Config

	// Proxy returns the http proxy through which to tunnel, or nil for a direct connection.
	// It is called for each connection to an https provider, only with the provider's
	// address. If nil, every connection is direct; http.ProxyFromEnvironment uses the proxy
	// of the environment.
	Proxy func(*http.Request) (*url.URL, error)
}

// A Client is a [ppan.Provider]. Its methods may be called concurrently.
type Client struct {
	url        *url.URL
	travelCard bool
	tls        *tls.Config
	proxy      func(*http.Request) (*url.URL, error)
	dial       func(ctx context.Context, network, address string) (net.Conn, error)
	transport  *http.Transport
	closed     atomic.Bool
}

var _ ppan.Provider = (*Client)(nil)

const (
	timeout     = 10 * time.Second // of a call without a deadline, and of making a connection
	idleTimeout = 30 * time.Second
	maxIdle     = 16
	writeBuffer = 8 << 10 // more than the longest request, which so is one write
	maxHeader   = 16 << 10
	maxAnswer   = 64 << 10
	maxText     = 255 // characters
)

// New returns a client of the provider at an address, which is https, or http on a
// loopback host for sandbox vaults, and has neither user nor query nor fragment. In
// a live vault every call to one with http fails.
// opts may be nil. It connects to nothing yet.
func New(address string, opts *Options) (*Client, error) {
	if opts == nil {
		opts = &Options{}
	}

	u, err := url.Parse(address)
	switch {
	case err != nil || u.Hostname() == "":
		return nil, errors.New("payone: address is not a URL with a host")
	case u.User != nil || u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		return nil, errors.New("payone: address must have neither user nor query nor fragment")
	case u.Scheme != "https" && (u.Scheme != "http" || !loopback(u.Hostname())):
		return nil, errors.New("payone: address must be https, or http on a loopback host")
	}

	c := &Client{url: u, travelCard: opts.TravelCard, tls: &tls.Config{}, proxy: opts.Proxy, dial: new(net.Dialer).DialContext}
	if opts.TLS != nil {
		c.tls = opts.TLS.Clone()
	}
	c.tls.NextProtos = []string{"http/1.1"}

	var protocols http.Protocols
	protocols.SetHTTP1(true)
	c.transport = &http.Transport{
		DialContext:            c.connect,
		DialTLSContext:         c.connectTLS,
		DisableCompression:     true,
		IdleConnTimeout:        idleTimeout,
		MaxIdleConns:           maxIdle,
		MaxIdleConnsPerHost:    maxIdle,
		MaxResponseHeaderBytes: maxHeader,
		Protocols:              &protocols,
		WriteBufferSize:        writeBuffer,
	}
	return c, nil
}

func loopback(host string) bool {
	return host == "localhost" || net.ParseIP(host).IsLoopback()
}

// Close closes the connections, when no call is under way any more. Later calls
// fail.
func (c *Client) Close() {
	c.closed.Store(true)
	c.transport.CloseIdleConnections()
}

// Info implements [ppan.Provider].
func (c *Client) Info() ppan.Info { return ppan.Info{Name: "payone"} }

// ObtainPPAN implements [ppan.Provider]. Without a deadline of ctx it has
// ten seconds.
//
// Errors: one for an account that lacks a field; context.DeadlineExceeded and
// context.Canceled, wrapped; others, which name the step that failed.
func (c *Client) ObtainPPAN(ctx context.Context, r *ppan.Request) (*ppan.Answer, error) {
	switch {
	case c.closed.Load():
		return nil, errors.New("payone: client is closed")
	case r.PAN.IsZero():
		return nil, errors.New("payone: no card number")
	case !r.Sandbox && c.url.Scheme != "https":
		return nil, errors.New("payone: a live vault needs a provider with https")
	}
	if err := checkAccount(&r.Account); err != nil {
		return nil, err
	}

	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}

	f := newForm(r, c.travelCard)
	defer f.wipe()
	answer, err := c.post(ctx, f)
	if err != nil {
		return nil, err
	}

	r.PAN.Expose(func(digits []byte) {
		if bytes.Contains(answer, digits) {
			err = unusable("it holds the card number")
		}
	})
	if err != nil {
		return nil, err
	}
	return c.decode(answer)
}

// checkAccount returns an error that names each field that cannot be sent.
func checkAccount(a *ppan.Account) error {
	var errs []error
	for _, f := range []struct {
		name string
		text []byte
	}{
		{"AID", []byte(a.AID)},
		{"Hash", hiding.Of(a.Hash)},
		{"MID", []byte(a.MID)},
		{"PortalID", []byte(a.PortalID)},
	} {
		if b := rule.Header(f.text); b != nil {
			errs = append(errs, fmt.Errorf("payone: Account.%s %s", f.name, b.Message))
		}
	}
	return errors.Join(errs...)
}

// post sends the form and returns the body of the answer. It goes past http.Client,
// which would follow redirects.
func (c *Client) post(ctx context.Context, f *form) ([]byte, error) {
	body, err := f.body()
	if err != nil {
		return nil, err
	}

	resp, err := c.transport.RoundTrip((&http.Request{
		Method:        http.MethodPost,
		URL:           c.url,
		Header:        http.Header{"Content-Type": {"application/x-www-form-urlencoded"}, "Accept": {"application/json"}},
		Body:          body,
		GetBody:       f.body, // asked for if an idle connection turns out to be closed before a byte is written
		ContentLength: int64(len(f.text)),
	}).WithContext(ctx))
	if err != nil {
		return nil, failure(ctx, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("payone: provider answers with status %d", resp.StatusCode)
	}

	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	switch {
	case err != nil || ctx.Err() != nil: // giving up can look like an end of the answer
		return nil, failure(ctx, err)
	case len(answer) > maxAnswer:
		return nil, unusable("it is too long")
	}
	return answer, nil
}

// failure returns an error without the words of net/http, which quotes malformed answers.
func failure(ctx context.Context, err error) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("payone: no answer: %w", err)
	}
	if e, ok := errors.AsType[*connectError](err); ok {
		return e
	}
	if e, ok := errors.AsType[*net.OpError](err); ok { // its own text has addresses
		return fmt.Errorf("payone: %s: %w", e.Op, e.Err)
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("payone: read: %w", io.ErrUnexpectedEOF)
	}
	return errors.New("payone: read: answer is not HTTP, or the connection is lost")
}

// unusable returns an error about an answer.
func unusable(why string) error { return errors.New("payone: answer cannot be used: " + why) }

// decode reads the answer of a provider.
func (c *Client) decode(answer []byte) (*ppan.Answer, error) {
	var members map[string]json.RawMessage
	if !utf8.Valid(answer) || json.Unmarshal(answer, &members) != nil {
		return nil, unusable("it is not a JSON object")
	}

	var p ppan.Answer
	var status, number string
	type member struct {
		name string
		to   *string
	}
	wanted := []member{
		{"status", &status},
		{"pseudocardpan", &number},
		{"truncatedcardpan", &p.TruncatedPAN},
		{"cardtype", &p.CardType},
		{"cardexpiredate", &p.CardExpiry},
		{"errorcode", &p.ErrorCode},
		{"errormessage", &p.ErrorMessage},
		{"customermessage", &p.CustomerMessage},
	}

	if c.travelCard {
		wanted = append(wanted,
			member{"tcdata", &p.TravelCard},
			member{"tcprovider", &p.TravelCardProvider},
			member{"tcinvoice", &p.TravelCardInvoice},
		)
	}

	for _, m := range wanted {
		var ok bool
		if *m.to, ok = scalar(members[m.name]); !ok {
			return nil, unusable(m.name + " is not a text or number, too long, or has control characters")
		}
	}

	switch status {
	case "VALID":
		p.Status = ppan.Valid
		p.ErrorCode, p.ErrorMessage, p.CustomerMessage = "", "", ""
	case "INVALID":
		p.Status = ppan.Invalid
	case "ERROR":
		p.Status = ppan.Error
	default:
		return nil, unusable("its status is missing or unknown")
	}

	if (p.Status == ppan.Valid || number != "") && !pseudo(number) {
		return nil, unusable("its pseudo card number does not have 16 to 19 digits")
	}
	p.PseudoPAN = ppan.NewPseudoPAN([]byte(number))
	return &p, nil
}

// scalar returns the value of a member, or "" if it is absent or null.
func scalar(raw json.RawMessage) (s string, ok bool) {
	switch {
	case raw == nil || string(raw) == "null":
		return "", true
	case raw[0] == '"':
		if json.Unmarshal(raw, &s) != nil {
			return "", false
		}
	case raw[0] == '-' || '0' <= raw[0] && raw[0] <= '9':
		s = string(raw)
	default:
		return "", false
	}

	if utf8.RuneCountInString(s) > maxText {
		return "", false
	}
	for _, c := range s {
		if unicode.IsControl(c) {
			return "", false
		}
	}
	return s, true
}

func pseudo(s string) bool {
	for _, c := range s {
		if c < '0' || c > '9' {
			return false
		}
	}
	return len(s) >= 16 && len(s) <= 19
}
