package httpapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/audit"
	"github.com/cardvault/cardvault/internal/wire"
	"github.com/google/uuid"
)

// operations names the operations of endpoints in the audit log as the vault does. Endpoints
// that answer everyone with a file have none.
var operations = map[*endpoint]string{
	createSession: "session.create", importCard: "token.import", listTokens: "token.list",
	getToken: "token.read", updateToken: "token.update", deleteToken: "token.delete", getCardArt: "card_art.read",
	listPaymentData: "payment_data.list", requestPaymentData: "payment_data.create", getPaymentData: "payment_data.read",
	provisionToken: "token.provision", getSecurityCode: "security_code.read", refreshSession: "session.refresh",
	replaceCard: "token.replace", replaceSession: "session.replace", consumeToken: "security_code.consume",
	forwardCard: "card.forward", getSession: "session.read", completeSession: "token.tokenize", preflight: "session.read",
	listMerchants: "merchant.list", rotatePaymentSecret: "merchant.rotate_secret", revokePaymentSecret: "merchant.revoke_previous_secret",
	getAPIKey: "api_key.read", revokeSecrets: "webhook.revoke_previous_secrets",
	listAPIKeys: "api_key.list", createAPIKey: "api_key.create", updateAPIKey: "api_key.update", deleteAPIKey: "api_key.delete",
	listWebhooks: "webhook.list", createWebhook: "webhook.create", getWebhook: "webhook.read", updateWebhook: "webhook.update",
	deleteWebhook: "webhook.delete", rotateSecret: "webhook.rotate_secret", testWebhook: "webhook.test",
	listAuditRecords: "audit.read", listDeliveries: "delivery.list", redeliverEvent: "event.redeliver",
}

// operation returns the operation of a request in the audit log.
func (c *call) operation() string {
	switch name := operations[c.endpoint]; {
	case name != "":
		return name
	case c.route != nil && c.route.path[0] == "integrations":
		return "ppan.obtain"
	}
	return "request" // without an endpoint, or for a file
}

// recorded reports whether an error comes from a call of the vault, which has recorded it.
func recorded(err error) bool {
	if err == nil {
		return false
	}
	var of interface{ Recorded() }
	return errors.As(err, &of)
}

// record records a request in the audit log that was refused before it became a call of the
// vault.
func (h *handler) record(c *call, err error) {
	if !h.audited || err == nil || c.recorded || recorded(err) {
		return
	}
	f := failed(err)
	outcome := audit.Refused
	if f.status >= http.StatusInternalServerError {
		outcome = audit.Failed
	}
	var account uuid.UUID
	if c.principal != nil {
		account = c.principal.Account.ID
	}
	ctx := cardvault.WithActor(c.ctx, c.actor())
	h.vault.In(account).RecordRefusal(ctx, c.operation(), outcome, f.classifier)
}

// maxStreams bounds the streams of audit records that are under way. An account may have a
// quarter.
const maxStreams = 16

// listAuditRecords answers with a page of the account's audit records or, to a client that
// accepts them, with all as lines. A key sees what all keys of the account have done.
var listAuditRecords = &endpoint{
	scope:   cardvault.ScopeAuditRead,
	enabled: auditEnabled,
	serve: func(c *call) error {
		q, err := c.readAudit()
		if err != nil {
			return err
		}
		if acceptsLines(c.request) {
			return c.streamAudit(q)
		}

		p, err := c.vault.AuditRecords(c.ctx, q)
		if p == nil {
			return ofList(err)
		}
		c.damaged = err
		if q.Limit == 0 {
			q.Limit = cardvault.DefaultLimit
		}
		c.answer = wire.Append(c.answer, &auditPage{p.Records, damagedIDs(err), cursor{q.Limit, p.Next}})
		return nil
	},
}

func auditEnabled(h *handler) error {
	if !h.audited {
		return fmt.Errorf("%w: Options.Audit of the vault is nil", auditDisabled)
	}
	return nil
}

// An auditPage is a page of audit records, whose number is not known.
type auditPage struct {
	Records    []*audit.Record `wire:"data"`
	Damaged    []uuid.UUID     `wire:"damaged,left_out"`
	Pagination cursor          `wire:"pagination"`
}

// A cursor says where the next page begins, nowhere if that is zero.
type cursor struct {
	Limit int       `wire:"page_size"`
	Next  uuid.UUID `wire:"next"`
}

// damages are the ids of damaged records in a stream.
type damages struct {
	IDs []uuid.UUID `wire:"damaged"`
}

// readAudit reads which audit records are wanted. Limit is 0 if none is given.
func (c *call) readAudit() (*cardvault.AuditQuery, error) {
	var q cardvault.AuditQuery
	err := c.read(func(_ fields, from *query) error {
		q.Limit, q.Ascending = int(from.integer("limit", 1, cardvault.MaxLimit, 0)), from.ascending("at")
		q.From, q.To = from.span()
		q.Operation, _ = from.text("operation", 1, maxText)
		q.ObjectID, q.After = from.id("object_id"), from.id("after")
		return nil
	})
	return &q, err
}

// streamAudit has the answer be lines, one for each record that is written by now. Memory holds
// one page of them.
func (c *call) streamAudit(q *cardvault.AuditQuery) error {
	if now := time.Now(); q.To.IsZero() || q.To.After(now) {
		q.To = now // reading writes more
	}
	left := q.Limit
	next := func(ctx context.Context) (*cardvault.AuditPage, error) {
		q.Limit = cardvault.MaxLimit
		if left > 0 {
			q.Limit = min(left, q.Limit)
		}
		p, err := c.vault.AuditRecords(ctx, q)
		if p == nil {
			return nil, ofList(err)
		}
		q.After = p.Next
		if left > 0 && len(p.Records) == left {
			q.After = uuid.Nil
		} else if left > 0 {
			left -= len(p.Records)
		}
		c.damaged = errors.Join(err, c.damaged)
		return p, err
	}

	p, err := next(c.ctx)
	if p == nil {
		return err
	}
	c.lines = func(ctx context.Context) (bool, error) {
		if p == nil {
			if p, err = next(ctx); p == nil {
				return false, err
			}
		}
		for _, r := range p.Records {
			c.answer = append(wire.Append(c.answer, r), '\n')
		}
		if ids := damagedIDs(err); len(ids) > 0 {
			c.answer = append(wire.Append(c.answer, &damages{ids}), '\n')
		}
		p = nil
		return q.After != uuid.Nil, nil
	}
	return nil
}
