package forward

import (
	"bytes"
	"errors"
	"net/http"
	"net/textproto"
	"net/url"
	"slices"
	"strings"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/forward/internal/template"
	"github.com/cardvault/cardvault/internal/rule"
	"github.com/cardvault/cardvault/internal/tlv"
	"github.com/cardvault/cardvault/invalid"
)

// A Request is the template of a request. Nothing of it is kept or changed.
type Request struct {
	Method string
	URL    string

	// Header has names in any case. Host, Content-Length, the headers of a connection, and
	// headers such as X-HTTP-Method-Override, Accept-Encoding and Range have no effect.
	Header http.Header

	Body []byte // at most MaxBody; JSON, a form or XML if it has placeholders

	library bool // it comes from a library
}

// CallOptions are the optional parts of a forward.
type CallOptions struct {
	// IdempotencyKey makes a repetition of the forward return the answer of the first one,
	// for [cardvault.Options.IdempotencyTTL]. It is unique within the account. Headers are
	// compared in Do alone: libraries put random ids and times there. An answer of more than
	// 56 KiB is repeated without its body.
	IdempotencyKey string

	// Marker, of 16 to 64 letters and digits that the caller has made up for this request,
	// makes {{ MARKER.account_number }} the only form of a placeholder.
	Marker string

	// Payment asks for a cryptogram of the card's network token, for one payment, and writes
	// a record of payment data. Its IdempotencyKey must be "". If the merchant initiates the
	// payment there is no cryptogram, and no placeholder for it may be in the request.
	Payment *cardvault.PaymentRequest

	// Consume ends the security code after an answer with a status of 200 to 299.
	Consume bool
}

const (
	maxHeaders     = 100      // values
	maxHeaderSize  = 32 << 10 // of names and values together
	maxFilledSize  = 64 << 10 // of the values with the card and credentials in them
	maxCredentials = 8        // names
)

// notForwarded are the headers that concern a connection, or are the sender's own, and
// headers that ask for an answer in a form in which the card would not be found.
var notForwarded = []string{
	"Accept-Encoding", "Connection", "Content-Length", "Expect", "Forwarded", "Host", "Keep-Alive", "Proxy", "Proxy-Authenticate",
	"Proxy-Authorization", "Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade",
	"Accept-Charset", "If-Range", "Range",
}

// overriding begin the names of headers that take the place of the method, the host or the
// path, which the destination limits.
var overriding = []string{"X-Forwarded-", "X-Host", "X-Http-", "X-Method-", "X-Original-", "X-Rewrite-"}

// isForwarded reports whether a header of a canonical name is the caller's. For some
// systems an underscore is a hyphen.
func isForwarded(name string) bool {
	name = textproto.CanonicalMIMEHeaderKey(strings.ReplaceAll(name, "_", "-"))
	return !slices.Contains(notForwarded, name) &&
		!slices.ContainsFunc(overriding, func(begin string) bool { return strings.HasPrefix(name, begin) })
}

// A header is a value of a header, with its placeholders.
type header struct {
	name     string // canonical
	text     string
	template *template.Template
}

// A message is a request that was checked.
type message struct {
	method      string
	url         *url.URL
	header      []header
	body        *template.Template // nil if there is no body
	names       template.Names     // of the placeholders in header and body
	credentials []string

	codeElsewhere bool // see template.Template
}

// parse checks a request and finds its placeholders. The error is a FieldError for each
// field that breaks a rule, or ErrTooLarge.
func parse(r *Request, opts *CallOptions, syntax template.Syntax) (*message, error) {
	if len(r.Body) > MaxBody {
		return nil, ErrTooLarge
	}
	m := &message{method: r.Method}
	var errs []error
	check := func(field string, broken *rule.Broken) {
		if broken != nil {
			errs = append(errs, &cardvault.FieldError{Field: field, Code: broken.Code, Message: broken.Message})
		}
	}

	check("Marker", syntax.Check())
	if opts.IdempotencyKey != "" {
		check("IdempotencyKey", rule.Key(opts.IdempotencyKey))
	}
	switch {
	case r.Method == "":
		check("Method", rule.Required())
	case !isMethod(r.Method):
		check("Method", &rule.Broken{Code: invalid.Enum, Message: "must be one of " + methodsAllowed})
	}
	check("URL", m.parseURL(r.URL, syntax))
	check("Header", m.parseHeader(r.Header, syntax))
	if len(r.Body) > 0 {
		var broken *rule.Broken
		m.body, broken = syntax.Body(contentType(r.Header), r.Body)
		if broken == nil {
			m.names |= m.body.Names
			m.codeElsewhere = m.codeElsewhere || m.body.CodeElsewhere
			broken = missing(m.body, opts)
		}
		check("Body", broken)
	}
	for i := range m.header {
		if broken := missing(m.header[i].template, opts); broken != nil {
			check("Header", broken)
			break
		}
	}
	return m, errors.Join(errs...)
}

// missing returns the rule that a template has no placeholder of payment data that was not
// asked for, or that the payment does not have.
func missing(t *template.Template, opts *CallOptions) *rule.Broken {
	switch p := opts.Payment; {
	case p == nil && t.Names.Any(ofPayment):
		return &rule.Broken{Code: invalid.UnknownPlaceholder, Message: "has a placeholder that needs payment data"}
	case p != nil && p.Initiator == cardvault.InitiatorMerchant && t.Names.Any(ofCryptogram):
		return &rule.Broken{Code: invalid.PlaceholderNotAllowed, Message: "has a cryptogram, and the merchant initiates the payment"}
	}
	return nil
}

var (
	ofNumber     = template.Of(template.AccountNumber, template.ExpiryMonth, template.ExpiryYear, template.ExpiryYY)
	ofCode       = template.Of(template.SecurityCode)
	ofCryptogram = template.Of(template.Cryptogram)
	ofPayment    = template.Of(template.NetworkToken, template.NetworkTokenExpiryMonth, template.NetworkTokenExpiryYear, template.Cryptogram, template.ECI)
)

func (m *message) parseURL(text string, syntax template.Syntax) *rule.Broken {
	if text == "" {
		return rule.Required()
	}
	if broken := syntax.None([]byte(text), "a URL"); broken != nil {
		return broken
	}
	u, err := parseURL(text)
	if err != nil {
		return &rule.Broken{Code: invalid.Format, Message: err.Error()}
	}
	m.url = u
	return nil
}

// parseHeader fills m.header in the order of the names.
func (m *message) parseHeader(h http.Header, syntax template.Syntax) *rule.Broken {
	size := 0
	for _, name := range slices.Sorted(keys(h)) {
		broken := syntax.None([]byte(name), "the name of a header")
		if broken == nil && !isToken(name) {
			broken = &rule.Broken{Code: invalid.Format, Message: "must have names of letters, digits and hyphens"}
		}
		if broken != nil {
			return broken
		}
		canonical := textproto.CanonicalMIMEHeaderKey(name)
		if !isForwarded(canonical) {
			continue
		}

		for _, value := range h[name] {
			if size += len(name) + len(value); len(m.header) == maxHeaders || size > maxHeaderSize {
				return &rule.Broken{Code: invalid.TooLong, Message: "must have at most 100 values and 32 KiB"}
			}
			t, broken := headerValue(canonical, value, syntax)
			if broken != nil {
				return &rule.Broken{Code: broken.Code, Message: said(canonical) + broken.Message}
			}
			m.names |= t.Names
			m.codeElsewhere = m.codeElsewhere || t.CodeElsewhere
			m.header = append(m.header, header{canonical, value, t})
			for _, c := range t.Credentials {
				if !slices.Contains(m.credentials, c) {
					m.credentials = append(m.credentials, c)
				}
			}
			if len(m.credentials) > maxCredentials {
				return &rule.Broken{Code: invalid.TooLong, Message: "must have at most 8 credentials"}
			}
		}
	}
	return nil
}

func headerValue(name, value string, syntax template.Syntax) (*template.Template, *rule.Broken) {
	switch {
	case !isHeaderValue(value):
		return nil, &rule.Broken{Code: invalid.Format, Message: "must not have line breaks or other control characters"}
	case strings.Contains(value, "vk_test_") || strings.Contains(value, "vk_live_"):
		return nil, &rule.Broken{Code: invalid.Format, Message: "must not be an API key of the vault"}
	}
	return syntax.Header(name, []byte(value))
}

// said returns how a message names a header, which could be anything.
func said(name string) string {
	digits := 0
	for _, c := range []byte(name) {
		if '0' <= c && c <= '9' {
			digits++
		}
	}
	if digits >= 8 || len(name) > 40 {
		return "? "
	}
	return name + " "
}

func keys(h http.Header) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for name := range h {
			if !yield(name) {
				return
			}
		}
	}
}

func isToken(name string) bool {
	for _, c := range []byte(name) {
		if (c|' ' < 'a' || c|' ' > 'z') && (c < '0' || c > '9') && !strings.ContainsRune("!#$%&'*+-.^_`|~", rune(c)) {
			return false
		}
	}
	return name != ""
}

func isHeaderValue(value string) bool {
	for _, c := range []byte(value) {
		if c < ' ' && c != '\t' || c == 0x7f {
			return false
		}
	}
	return true
}

// contentType returns the media type of a request, "" if it is not clear.
func contentType(h http.Header) (found string) {
	for name, values := range h {
		if textproto.CanonicalMIMEHeaderKey(name) != "Content-Type" {
			continue
		}
		if len(values) != 1 || found != "" {
			return ""
		}
		found = values[0]
	}
	return found
}

// canonical returns what must be the same in a repetition, without a random marker.
func (m *message) canonical(r *Request, opts *CallOptions, syntax template.Syntax) []byte {
	body := r.Body
	if syntax.Bare {
		body = bytes.ReplaceAll(body, []byte(syntax.Marker), nil)
	}
	b := tlv.Append(nil, 1, m.method)
	b = tlv.Append(b, 2, m.url.String())
	b = tlv.Append(b, 3, opts.Marker)
	b = tlv.AppendBool(b, 4, opts.Consume)

	if p := opts.Payment; p != nil {
		b = tlv.AppendUint(b, 5, uint64(p.Amount))
		b = tlv.Append(b, 6, p.Currency)
		b = tlv.Append(b, 7, p.Reference)
		b = tlv.Append(b, 8, p.Merchant[:])
		if p.Initiator != cardvault.InitiatorCustomer {
			b = tlv.AppendUint(b, 12, uint64(p.Initiator))
			b = tlv.Append(b, 13, p.NetworkTransactionID)
		}
	}
	if !r.library {
		for _, h := range m.header {
			b = tlv.Append(tlv.Append(b, 9, h.name), 10, h.text)
		}
	}
	return append(tlv.AppendBool(b, 11, true), body...) // at the end, since a field has less room
}
