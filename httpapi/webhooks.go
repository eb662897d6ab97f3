package httpapi

import (
	"fmt"
	"math"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/internal/rule"
	"github.com/cardvault/cardvault/invalid"
	"github.com/cardvault/cardvault/receive"
)

// The endpoints to which the events of an account are delivered, and their deliveries.

var createWebhook = &endpoint{
	scope:     cardvault.ScopeWebhooksWrite,
	also:      cardvault.ScopeTokensRead, // events hold tokens
	enabled:   webhooksEnabled,
	needsBody: true,
	serve: func(c *call) error {
		var url string
		var o cardvault.WebhookOptions
		err := c.read(func(f fields, _ *query) error {
			text, _ := f.text("url", required, 1, math.MaxInt)
			url = string(text)
			o.Events = readEventTypes(f)
			text, _ = f.text("description", optional, 1, math.MaxInt)
			o.Description = string(text)
			o.LegacyHMAC, _ = f.boolean("legacy_hmac", optional)
			c.checkWebhook(f, &url, &o.Description)
			return nil
		})
		if err != nil {
			return err
		}
		return c.webhook(c.vault.CreateWebhook(c.ctx, url, &o))
	},
}

// checkWebhook notes the faults of a webhook that the vault would refuse. A nil field is
// absent.
func (c *call) checkWebhook(f fields, url, description *string) {
	if url != nil {
		refused := c.vault.Sender().Check(&cardvault.Target{URL: *url, Account: c.principal.Account.ID})
		f.violations.hold("url", rule.URL(*url, refused))
	}
	if description != nil && *description != "" {
		f.violations.hold("description", rule.Text([]byte(*description)))
	}
}

var listWebhooks = &endpoint{
	scope: cardvault.ScopeWebhooksRead,
	serve: func(c *call) error {
		o, err := c.readList(nil)
		if err != nil {
			return err
		}
		p, err := c.vault.ListWebhooks(c.ctx, o)
		return answerPage(c, p, err)
	},
}

var getWebhook = &endpoint{
	scope: cardvault.ScopeWebhooksRead,
	serve: bare(func(c *call) error {
		return c.webhook(c.vault.Webhook(c.ctx, c.id))
	}),
}

var updateWebhook = &endpoint{
	scope:     cardvault.ScopeWebhooksWrite,
	also:      cardvault.ScopeTokensRead, // the address is where events go
	enabled:   webhooksEnabled,
	needsBody: true,
	serve: func(c *call) error {
		var u cardvault.WebhookUpdate
		err := c.read(func(f fields, _ *query) error {
			if text, ok := f.text("url", nonNull, 1, math.MaxInt); ok {
				url := string(text)
				u.URL = &url
			}
			u.Events = readEventTypes(f)
			if f.null("events") {
				u.Events = []receive.EventType{} // all
			}
			if text, ok := f.text("description", optional, 1, math.MaxInt); ok || f.null("description") {
				description := string(text)
				u.Description = &description
			}
			if legacy, ok := f.boolean("legacy_hmac", optional); ok || f.null("legacy_hmac") {
				u.LegacyHMAC = &legacy
			}

			if text, ok := f.text("status", nonNull, 1, math.MaxInt); ok {
				if _, ok := choose(f.violations, "status", text, []string{enabled, disabled}, nil); ok {
					off := string(text) == disabled
					u.Disabled = &off
				}
			}

			if f.empty() {
				f.refuse("body", invalid.EmptyPatch)
			}
			c.checkWebhook(f, u.URL, u.Description)
			return nil
		})
		if err != nil {
			return err
		}

		return c.webhook(c.vault.UpdateWebhook(c.ctx, c.id, u))
	},
}

var deleteWebhook = &endpoint{
	scope: cardvault.ScopeWebhooksWrite,
	serve: bare(func(c *call) error {
		return c.vault.DeleteWebhook(c.ctx, c.id)
	}),
}

var rotateSecret = &endpoint{
	scope: cardvault.ScopeWebhooksWrite,
	serve: func(c *call) error {
		var o cardvault.WebhookSecretOptions
		err := c.read(func(f fields, _ *query) error {
			o.RevokePrevious, _ = f.boolean("revoke_previous", optional)
			return nil
		})
		if err != nil {
			return err
		}
		return c.webhook(c.vault.RotateWebhookSecret(c.ctx, c.id, &o))
	},
}

var revokeSecrets = &endpoint{
	scope: cardvault.ScopeWebhooksWrite,
	serve: bare(func(c *call) error {
		return c.vault.RevokePreviousWebhookSecrets(c.ctx, c.id)
	}),
}

var testWebhook = &endpoint{
	scope:   cardvault.ScopeWebhooksWrite,
	enabled: webhooksEnabled,
	serve: bare(func(c *call) error {
		result, err := c.vault.TestWebhook(c.ctx, c.id)
		if err != nil {
			return err
		}
		c.answer = appendWebhookTest(c.answer, result)
		return nil
	}),
}

var listDeliveries = &endpoint{
	scope: cardvault.ScopeWebhooksRead,
	serve: func(c *call) error {
		var from, to time.Time
		o, err := c.readList(func(q *query) { from, to = q.span() })
		if err != nil {
			return err
		}
		o.From, o.To = from, to
		p, err := c.vault.ListDeliveries(c.ctx, c.id, o)
		return answerPage(c, p, err)
	},
}

var redeliverEvent = &endpoint{
	scope:      cardvault.ScopeWebhooksWrite,
	repeatable: true,
	serve: bare(func(c *call) error {
		_, err := c.vault.Redeliver(c.ctx, c.id, c.options())
		return err
	}),
}

// Values of the status of a webhook.
const enabled, disabled = "enabled", "disabled"

// eventNames are the names of the types of events.
var eventNames = []string{string(receive.TokenCreated), string(receive.TokenUpdated), string(receive.TokenDeleted)}

// readEventTypes returns nil if no types are given. An empty list is refused: it
// reads like none, and would mean all.
func readEventTypes(f fields) (types []receive.EventType) {
	names, ok := literals(f, "events", optional, eventNames)
	if ok && len(names) == 0 {
		f.violations.note(violation{"events", invalid.TooShort, "must name at least one type"})
	}
	for _, name := range names {
		types = append(types, receive.EventType(name))
	}
	return types
}

func webhooksEnabled(h *handler) error {
	if h.vault.Sender() == nil {
		return fmt.Errorf("%w: Options.Webhooks of the vault is nil", webhooksDisabled)
	}
	return nil
}
