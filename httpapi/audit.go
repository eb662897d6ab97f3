package httpapi

import (
	"errors"
	"net/http"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/audit"
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
	listDeliveries: "delivery.list", redeliverEvent: "event.redeliver",
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
