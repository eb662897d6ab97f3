package httpapi

import (
	"context"
	"net/http"
	"net/netip"
	"slices"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/internal/wire"
	"github.com/google/uuid"
)

// A call is one request to an endpoint, and its answer.
type call struct {
	ctx       context.Context
	request   *http.Request
	requestID string
	buffers   *buffers // of body and answer

	opts         *Options // of the handler
	unauthorized *failure // likewise

	// What the checks find.
	client    netip.Addr // zero if it is not known
	address   string     // client as text, "" if it is not known
	route     *route     // of the path; nil if none has it
	endpoint  *endpoint
	open      bool        // it needs no API key
	principal *Principal  // nil if open
	answered  func(error) // if set, is called with the outcome
	leave     func()      // if set, is called when the answer is written
	pathID    string      // the first id in the path
	id        uuid.UUID   // pathID; zero, which no object has, if that is not a UUID
	partID    uuid.UUID   // the second id in the path, of a part of the first, likewise
	body      []byte      // raw; empty if absent

	idempotencyKey string // "" if absent, or if the endpoint honours none

	query      query // of read, which is called once
	violations violations

	received *received // what a repetition under that key must equal, nil without one

	vault *cardvault.Vault // in the account of the principal

	header      http.Header // of the answer
	contentType []string
	answer      []byte // appended to by the endpoint; nothing for 204 and 304
	file        []byte // in place of answer, if not nil; sent as it is, neither changed nor kept
	lines       lines  // in place of answer, if not nil
	unchanged   bool   // 304
	refused     bool   // a card was, though with 200
	damaged     error  // of items that the answer leaves out, though with 200
	recorded    bool   // the audit log has the refusal
	component   bool   // the answer is a file of the card-entry component
}

// bare returns the handler of an endpoint that takes neither members nor parameters.
func bare(serve func(*call) error) func(*call) error {
	return func(c *call) error {
		if err := c.read(func(fields, *query) error { return nil }); err != nil {
			return err
		}
		return serve(c)
	}
}

// read lets parse read the members of the body and the parameters of the query, and
// check their combination. It returns all violations as one failure.
func (c *call) read(parse func(fields, *query) error) error {
	f, q, v := fields{violations: &c.violations}, &c.query, &c.violations
	if len(c.body) > 0 {
		var err error
		if f, err = readJSON(c.body, v); err != nil {
			return malformedRequest
		}
	}
	if err := q.read(c.request.URL.RawQuery, v); err != nil {
		return malformedRequest
	}

	f.lenient = c.opts.IgnoreUnknown
	v.merge("", parse(f, q))
	if !f.lenient {
		f.done()
		q.done()
	}
	if len(*v) > 0 {
		return unprocessable(*v)
	}
	c.forget(f)
	return nil
}

// readList reads the wanted part and order of a list. more reads parameters beyond those of
// every list, and may be nil.
func (c *call) readList(more func(*query)) (*cardvault.ListOptions, error) {
	var o cardvault.ListOptions
	err := c.read(func(_ fields, q *query) error {
		limit, page := q.page()
		o.Limit, o.Page, o.Ascending = int(limit), int(page), q.ascending("created_at")
		if more != nil {
			more(q)
		}
		return nil
	})
	return &o, err
}

// answerPage answers with a page of a list. Damaged items are named in the answer, and
// logged.
func answerPage[T any](c *call, p *cardvault.Page[T], err error) error {
	if p == nil {
		return ofList(err)
	}
	c.damaged = err
	c.answer = slices.Grow(c.answer, 1<<10*(len(p.Items)+1)) // at once, not by the half

	w := wire.Page[T]{Items: p.Items, Damaged: damagedIDs(err), Pagination: wire.Pagination{Page: p.Page, Limit: p.Limit, TotalItems: p.TotalItems, TotalPages: p.TotalPages}}
	c.answer = wire.Append(c.answer, &w)
	return nil
}

// ofList returns the error of a list, whose fields are parameters.
func ofList(err error) error {
	var v violations
	if v.merge("query.", err); len(v) > 0 {
		return unprocessable(v)
	}
	return err
}

// damagedIDs returns the ids of the damaged items in the error of a page.
func damagedIDs(err error) (ids []uuid.UUID) {
	for _, d := range cardvault.Damaged(err) {
		if d.ID != uuid.Nil {
			ids = append(ids, d.ID)
		}
	}
	return ids
}

// token answers with a token.
func (c *call) token(t *cardvault.Token, err error) error {
	if err != nil {
		return err
	}
	c.limit(t)
	c.answer = wire.Append(c.answer, t)
	return nil
}

// limit leaves of a token what the API key may see.
func (c *call) limit(t *cardvault.Token) {
	if !c.principal.has(cardvault.ScopeFingerprintsRead) {
		t.Fingerprint, t.PaymentAccountReference = cardvault.Fingerprint{}, ""
	}
}

// session answers with the id of a session.
func (c *call) session(s *cardvault.CreatedSession, err error) error {
	if err != nil {
		return err
	}
	c.answer = appendSessionID(c.answer, s.ID)
	return nil
}

// webhook answers with a webhook, and its secret if there is one to be shown.
func (c *call) webhook(w *cardvault.Webhook, err error) error {
	if err != nil {
		return err
	}
	c.answer = appendWebhook(c.answer, w)
	return nil
}
