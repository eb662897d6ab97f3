package forward

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/forward/internal/exchange"
	"github.com/cardvault/cardvault/forward/internal/redact"
	"github.com/cardvault/cardvault/forward/internal/template"
	"github.com/cardvault/cardvault/internal/hiding"
	"github.com/cardvault/cardvault/internal/leak"
	"github.com/cardvault/cardvault/internal/use"
	"github.com/cardvault/cardvault/receive"
	"github.com/google/uuid"
)

// Check returns what Do returns before it looks at the token: a [*cardvault.FieldError] for
// each field that breaks a rule, ErrTooLarge, or ErrDestination. opts may be nil.
func (f *Forwarder) Check(r *Request, opts *CallOptions) error {
	_, err := f.prepare(r, opts, syntaxOf(opts))
	return err
}

// Do sends a request with the card of a token and returns any answer of the destination. opts
// may be nil. The most that it takes is [Destination.Timeout] and, for a payment, the time of
// the network.
//
// Errors: the errors of Check; cardvault.ErrNotFound; ErrTokenInvalidated and ErrCardDataStale;
// ErrNoSecurityCode; *DeclinedError if there is no cryptogram; ErrIdempotencyInProgress and
// ErrIdempotencyKeyReused; ErrProviderUnavailable and ErrProviderTimeout, with
// ErrOutcomeUnknown once a byte was sent.
func (f *Forwarder) Do(ctx context.Context, token uuid.UUID, r *Request, opts *CallOptions) (*Answer, error) {
	return f.do(ctx, token, r, opts, syntaxOf(opts))
}

func syntaxOf(opts *CallOptions) template.Syntax {
	if opts == nil {
		return template.Syntax{}
	}
	return template.Syntax{Marker: opts.Marker}
}

// A call is one forward.
type call struct {
	*message
	to      *destination
	opts    *CallOptions
	vault   *cardvault.Vault
	account uuid.UUID
	kept    *allowance
	answer  *Answer // once there is one
}

// prepare checks a request.
func (f *Forwarder) prepare(r *Request, opts *CallOptions, syntax template.Syntax) (*call, error) {
	if opts == nil {
		opts = new(CallOptions)
	}
	m, err := parse(r, opts, syntax)
	if err != nil {
		return nil, err
	}
	to, err := find(f.destinations, m.method, m.url)
	if err != nil {
		return nil, err
	}
	return &call{message: m, to: to, opts: opts, vault: f.vault, kept: f.kept}, nil
}

func (f *Forwarder) do(ctx context.Context, token uuid.UUID, r *Request, opts *CallOptions, syntax template.Syntax) (*Answer, error) {
	c, err := f.prepare(r, opts, syntax)
	if err != nil {
		return nil, err
	}

	sent, err := f.vault.Forward(ctx, token, &use.Call{
		Purpose: "forward:" + c.to.Name,
		Admit: func(account uuid.UUID) error {
			c.account = account
			return c.to.admits(account)
		},
		Number:  c.names.Any(ofNumber),
		Code:    c.names.Any(ofCode),
		Key:     c.opts.IdempotencyKey,
		Request: func() []byte { return c.canonical(r, c.opts, syntax) },
		Timeout: c.to.Timeout,
		Send:    c.send,
	}, c.opts.Payment)
	switch {
	case errors.Is(err, use.ErrUnknown):
		return nil, unknown(cardvault.ErrProviderUnavailable, errors.New("the process that made the call has ended"))
	case err != nil:
		return nil, err
	case sent.Replayed:
		c.answer, err = decodeAnswer(sent.Answer())
		if err != nil {
			return nil, err
		}
		c.answer.Replayed = true
	}
	c.answer.TokenID = token
	return c.answer, nil
}

// unknown returns the error of a request that may have arrived.
func unknown(class, cause error) error {
	return fmt.Errorf("%w: %w: %w", class, ErrOutcomeUnknown, cause)
}

// send makes the call, once.
func (c *call) send(ctx context.Context, used *card.Used, payment *receive.Credential) (*use.Sent, error) {
	start := time.Now()
	redactor := new(redact.Redactor)
	defer redactor.Wipe()
	values := valuesOf(used, payment)
	defer wipe(values)
	if err := c.addCredentials(ctx, values); err != nil {
		return nil, err
	}
	c.setUp(redactor, used, payment, values)

	out, wipeAll, err := c.fill(values)
	if err != nil {
		return nil, err
	}
	defer wipeAll()
	resp, err := c.to.client.Do(ctx, out)
	if err == nil {
		c.answer, err = c.read(ctx, resp, redactor)
	}
	if err != nil {
		return c.failed(ctx, err)
	}
	c.answer.Duration = time.Since(start)
	sent := &use.Sent{
		Consume: c.opts.Consume && c.answer.StatusCode/100 == 2,
		Detail:  c.method + " " + strconv.Itoa(c.answer.StatusCode),
	}

	if c.opts.IdempotencyKey != "" {
		kept, short := c.encoded()
		sent.Answer = func() []byte { return kept }
		if short {
			sent.Detail += ", kept in short"
		}
	}
	return sent, nil
}

// failed returns the result of a call without an answer.
func (c *call) failed(ctx context.Context, err error) (*use.Sent, error) {
	class, kept := cardvault.ErrProviderUnavailable, failedUnavailable
	if errors.Is(err, context.DeadlineExceeded) {
		class, kept = cardvault.ErrProviderTimeout, failedTimeout
	}
	if f, ok := errors.AsType[*exchange.Failure](err); ok && !f.Written {
		if errors.Is(ctx.Err(), context.Canceled) {
			return nil, ctx.Err() // the caller has left
		}
		return nil, fmt.Errorf("%w: nothing was sent: %w", cardvault.ErrProviderUnavailable, err)
	}
	return &use.Sent{Answer: func() []byte { return encodeFailure(kept) }, Detail: c.method + " without an answer"}, unknown(class, err)
}

// valuesOf returns the values for placeholders. The slices belong to the card.
func valuesOf(used *card.Used, payment *receive.Credential) *template.Values {
	v := new(template.Values)
	v.Of[template.AccountNumber] = hiding.Of(used.PAN)
	v.Of[template.CardholderName] = hiding.Of(used.Name)
	v.Of[template.SecurityCode] = hiding.Of(used.SecurityCode)
	if e := used.Expiry; e.Month > 0 {
		v.Of[template.ExpiryMonth] = fmt.Appendf(nil, "%02d", e.Month)
		v.Of[template.ExpiryYear] = fmt.Appendf(nil, "%04d", e.Year)
		v.Of[template.ExpiryYY] = fmt.Appendf(nil, "%02d", e.Year%100)
	}
	if payment != nil {
		v.Of[template.NetworkToken] = hiding.Of(payment.Number)
		v.Of[template.NetworkTokenExpiryMonth] = fmt.Appendf(nil, "%02d", payment.Expiry.Month)
		v.Of[template.NetworkTokenExpiryYear] = fmt.Appendf(nil, "%04d", payment.Expiry.Year)
		v.Of[template.Cryptogram] = hiding.Of(payment.Cryptogram)
		v.Of[template.ECI] = []byte(payment.ECI)
	}
	return v
}

// wipe erases the credentials.
func wipe(v *template.Values) {
	for _, text := range v.Credentials {
		clear(text)
	}
}

// guarded calls a function of the operator, whose error and panic may hold anything.
func guarded(name string, f func() error) (err error) {
	defer func() {
		if recover() != nil {
			err = fmt.Errorf("forward: %s panicked", name)
		}
	}()
	if err := f(); err != nil {
		return fmt.Errorf("forward: %s: %s", name, leak.Printable(err))
	}
	return nil
}

// setUp has everything masked that the request has, or could have.
func (c *call) setUp(r *redact.Redactor, used *card.Used, payment *receive.Credential, v *template.Values) {
	r.Number([]byte(used.Masked)) // a Redactor needs no other digits
	if c.names.Any(ofCode) {
		r.Code(len(v.Of[template.SecurityCode]), c.codeElsewhere)
	}
	if payment != nil {
		r.Number(v.Of[template.NetworkToken])
		r.Secret(v.Of[template.Cryptogram])
		if n := len(v.Of[template.Cryptogram]); n < redact.MinSecret && c.names.Any(ofCryptogram) {
			r.Code(n, false) // such as a code that a network has made for one payment
		}
	}
	for _, text := range v.Credentials {
		r.Secret(text)
	}
}

// fill returns the request with the values, and a function that erases them.
func (c *call) fill(v *template.Values) (*exchange.Request, func(), error) {
	out := &exchange.Request{Method: c.method, Target: c.url}
	var filled []*template.Filled
	var inHeader [][]byte
	var whole []byte // for Sign
	wipeAll := func() {
		for _, f := range filled {
			f.Wipe()
		}
		for _, value := range inHeader {
			clear(value)
		}
		clear(whole)
	}

	size := int64(0)
	for i := range c.header {
		f := c.header[i].template.Fill(v)
		if size += f.Size(); size > maxFilledSize {
			f.Wipe()
			wipeAll()
			return nil, nil, ErrTooLarge
		}
		value := f.Bytes()
		f.Wipe()
		inHeader = append(inHeader, value)
		out.Header = append(out.Header, exchange.Field{Name: c.header[i].name, Value: value})
	}
	if c.body != nil {
		f := c.body.Fill(v)
		filled = append(filled, f)
		out.Body, out.Size = f.Reader(), f.Size()
		if f.Size() > MaxBody {
			wipeAll()
			return nil, nil, ErrTooLarge
		}
		if c.to.Sign != nil {
			whole = f.Bytes()
			out.Body = bytes.NewReader(whole)
		}
	}

	if c.to.Sign != nil {
		if err := c.sign(out, whole); err != nil {
			wipeAll()
			return nil, nil, err
		}
	}
	addDefaults(out)
	return out, wipeAll, nil
}

// addDefaults adds the headers that are not the caller's.
func addDefaults(out *exchange.Request) {
	agent := false
	for _, f := range out.Header {
		agent = agent || f.Name == "User-Agent"
	}
	if !agent {
		out.Header = append(out.Header, exchange.Field{Name: "User-Agent", Value: []byte("cardvault")})
	}
	out.Header = append(out.Header, exchange.Field{Name: "Accept-Encoding", Value: []byte("gzip")})
}

// sign has Sign add headers to a request.
func (c *call) sign(out *exchange.Request, body []byte) error {
	r := &http.Request{Method: c.method, URL: c.url, Host: c.to.url.Host, Header: http.Header{}}
	at := map[string][]byte{} // values that were filled in, by name and template
	for i, f := range out.Header {
		r.Header.Add(f.Name, c.header[i].text)
		at[f.Name+"\n"+c.header[i].text] = f.Value
	}
	again := *c.url
	r.URL = &again
	if err := guarded("Destination.Sign", func() error { return c.to.Sign(r, body) }); err != nil {
		return err
	}

	signed := &message{}
	if broken := signed.parseHeader(r.Header, template.Syntax{Marker: neverAMarker}); broken != nil {
		return fmt.Errorf("forward: Destination.Sign: header %s", broken.Message)
	}
	out.Header = nil
	for _, h := range signed.header {
		value, ok := at[h.name+"\n"+h.text]
		if !ok {
			value = []byte(h.text)
		}
		out.Header = append(out.Header, exchange.Field{Name: h.name, Value: value})
	}
	return nil
}

// neverAMarker is not a marker: a header of Sign has no placeholders.
const neverAMarker = "\x00"
