package httpapi

import (
	"context"
	"net/http"
	"net/netip"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/internal/wire"
	"github.com/google/uuid"
)

// A call is one request to an endpoint.
type call struct {
	ctx         context.Context
	vault       *cardvault.Vault     // in the account of the principal
	principal   *cardvault.Principal // nil if none is asked for
	request     *http.Request
	client      netip.Addr                       // zero if it is not known
	id          uuid.UUID                        // of the path; zero, which no object has, if it is no UUID
	body        []byte                           // raw; empty if there was none
	answer      []byte                           // appended to by serve; nothing for 204 and 304
	contentType []string                         // of the answer
	unchanged   bool                             // 304
	refused     bool                             // a card was, though with 200
	component   bool                             // the answer is a file of the card-entry component
	origins     func(account uuid.UUID) []string // Options.AccountOrigins
	header      http.Header
}

// read lets what read the members of the body and the parameters of the query,
// and check what they mean together. It returns all that is wrong with them.
func (c *call) read(what func(fields, *query) error) error {
	var v violations
	f := fields{violations: &v}
	if len(c.body) > 0 {
		var err error
		if f, err = readJSON(c.body, &v); err != nil {
			return malformedRequest
		}
	}
	q, err := readQuery(c.request.URL.RawQuery, &v)
	if err != nil {
		return malformedRequest
	}
	v.merge(what(f, q))
	f.done()
	q.done()
	if len(v) > 0 {
		return invalid(v)
	}
	return nil
}

// readNothing checks that a request has neither members nor parameters.
func (c *call) readNothing() error {
	return c.read(func(fields, *query) error { return nil })
}

// readPage reads which part of a list is wanted, in which order.
func readPage(q *query, o *cardvault.ListOptions) {
	limit, page := q.page()
	o.Limit, o.Page, o.Ascending = int(limit), int(page), q.ascending()
}

// token answers with a token.
func (c *call) token(t *cardvault.Token, err error) error {
	if err != nil {
		return err
	}
	c.answer = c.appendToken(c.answer, t)
	return nil
}

// appendToken appends a token as the API key may see it.
func (c *call) appendToken(b []byte, t *cardvault.Token) []byte {
	if !c.principal.Key.Has(cardvault.ScopeFingerprintsRead) {
		t.Fingerprint = cardvault.Fingerprint{}
	}
	return wire.AppendToken(b, t)
}

// session answers with the id of a session.
func (c *call) session(id cardvault.SessionID, err error) error {
	if err != nil {
		return err
	}
	answer := wire.Object{B: c.answer}
	answer.Open()
	answer.ID("session_id", id.UUID())
	answer.Close()
	c.answer = answer.B
	return nil
}

// webhook answers with a webhook, and its secret if there is one to be shown.
func (c *call) webhook(w *cardvault.Webhook, secret cardvault.WebhookSecret, err error) error {
	if err != nil {
		return err
	}
	c.answer = appendWebhook(c.answer, w, secret)
	return nil
}
