package httpapi

import (
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/http"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/forward"
	"github.com/cardvault/cardvault/internal/wire"
	"github.com/cardvault/cardvault/invalid"
)

var forwardCard = &endpoint{
	scope:      cardvault.ScopeForwardCreate,
	repeatable: true,
	needsBody:  true,
	maxBody:    forward.MaxBody,
	enabled: func(h *handler) error {
		if h.opts.Forward == nil {
			return fmt.Errorf("%w: Options.Forward is nil", forwardsDisabled)
		}
		return nil
	},
	serve: func(c *call) error {
		to := c.opts.Forward.In(c.principal.Account.ID)
		r, o, err := c.readForward(to)
		if err != nil {
			return err
		}
		a, err := to.Do(c.ctx, c.id, r, o)
		if err != nil {
			return forwardFailure(err)
		}
		c.answer = appendForward(c.answer, a)
		return nil
	},
}

// readForward reads the body of a forward and checks it. Only if all its rules are kept, a
// destination that is not allowed counts.
func (c *call) readForward(to *forward.Forwarder) (*forward.Request, *forward.CallOptions, error) {
	r, o := new(forward.Request), &forward.CallOptions{IdempotencyKey: c.idempotencyKey}
	var lacks, refused error

	err := c.read(func(f fields, _ *query) error {
		c.id, _ = f.id("token_id", required)
		o.Consume, _ = f.boolean("consume", optional)
		if p, ok := f.object("payment_data", optional); ok {
			if !c.principal.has(cardvault.ScopePaymentDataCreate) {
				lacks = lacksScope(cardvault.ScopePaymentDataCreate)
			}
			o.Payment = new(cardvault.PaymentRequest)
			f.violations.merge("payment_data.", c.readPayment(p, o.Payment))
		}

		q, ok := f.object("request", required)
		if !ok || !q.readTemplate(r, o) {
			return nil
		}
		refused = to.Check(r, o)
		f.violations.merge("request.", refused)
		return nil
	})

	switch {
	case lacks != nil:
		return nil, nil, lacks
	case err != nil:
		return nil, nil, err
	}
	return r, o, refused
}

// readTemplate reads the request to the destination. It reports whether that can be checked.
func (f fields) readTemplate(r *forward.Request, o *forward.CallOptions) bool {
	method, hasMethod := f.text("method", required, 1, math.MaxInt)
	target, hasURL := f.text("url", required, 1, math.MaxInt)
	r.Method, r.URL = string(method), string(target)

	if n := f.get("marker", optional, `"`); n != nil {
		if o.Marker = string(n[0].Text); o.Marker == "" {
			f.refuse("marker", invalid.EmptyString) // it is not absent
		}
	}
	if n := f.get("body", optional, `"`); n != nil {
		r.Body = n[0].Text
	}

	r.Header = http.Header{}
	if h, ok := f.object("headers", optional); ok {
		for i := 0; i < len(h.members); i += h.members[i].Size {
			m := &h.members[i]
			m.Mark |= asked
			name := http.CanonicalHeaderKey(string(m.Name))
			switch {
			case m.Kind != '"':
				h.refuse(shown(m.Name), invalid.Type, wanted[`"`])
			case r.Header[name] != nil:
				h.refuse(shown(m.Name), invalid.DuplicateParameter)
			default:
				r.Header[name] = []string{string(m.Text)}
			}
		}
	}
	return hasMethod && hasURL
}

// forwardFailure returns how an error of a forward is answered: the destination may have the
// request, or certainly does not.
func forwardFailure(err error) error {
	var v violations
	if v.merge("request.", err); len(v) > 0 {
		return unprocessable(v)
	}
	f := unreachable
	switch unknown := errors.Is(err, forward.ErrOutcomeUnknown); {
	case unknown && errors.Is(err, cardvault.ErrProviderTimeout):
		f = forwardTimeout
	case unknown:
		f = forwardUnknown
	case !errors.Is(err, cardvault.ErrProviderUnavailable) && !errors.Is(err, cardvault.ErrProviderTimeout):
		return err
	}
	return fmt.Errorf("%w: %w", f, err)
}

// appendForward appends the answer of a destination.
func appendForward(b []byte, a *forward.Answer) []byte {
	o := wire.Object{B: b}
	o.Open()
	o.ID("id", a.ID)
	o.ID("token_id", a.TokenID)
	o.Int("status_code", int64(a.StatusCode))

	o.Name("headers")
	o.Open()
	for _, name := range slices.Sorted(maps.Keys(a.Header)) {
		o.Name(strings.ToLower(name))
		o.B = wire.AppendString(o.B, strings.Join(a.Header[name], ", "))
	}
	o.Close()

	switch {
	case a.Body == nil:
		o.Null("body")
		o.Null("body_encoding")
	case utf8.Valid(a.Body):
		o.Name("body")
		o.B = wire.AppendString(o.B, string(a.Body))
		o.Text("body_encoding", "utf-8")
	default:
		o.Name("body")
		o.B = append(base64.StdEncoding.AppendEncode(append(o.B, '"'), a.Body), '"')
		o.Text("body_encoding", "base64")
	}

	o.Bool("redacted", a.Redacted)
	o.Bool("truncated", a.Truncated)
	o.Int("duration_ms", a.Duration.Milliseconds())
	o.Close()
	return o.B
}
