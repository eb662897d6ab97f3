package httpapi

import (
	"errors"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/invalid"
)

var createAPIKey = &endpoint{
	scope:     cardvault.ScopeAPIKeysWrite,
	ofKeys:    true,
	needsBody: true,
	serve: func(c *call) error {
		var label string
		var scopes []cardvault.Scope
		o := cardvault.APIKeyOptions{Creator: c.principal.Key.ID, NotAfter: c.principal.Key.ExpiresAt}

		err := c.read(func(f fields, _ *query) error {
			text, _ := f.text("label", required, 1, maxText)
			label = string(text)
			var listed bool
			scopes, listed = literals(f, "scopes", required, cardvault.AllScopes())
			o.TTL = readTTL(f, cardvault.MaxAPIKeyTTL)
			if listed && len(scopes) == 0 {
				f.violations.note(violation{"scopes", invalid.TooShort, "must name at least one scope"})
			}
			return nil
		})
		if err != nil {
			return err
		}

		for _, s := range scopes {
			if !c.principal.has(s) {
				return lacksScope(s)
			}
		}

		k, err := c.vault.CreateAPIKey(c.ctx, label, scopes, &o)
		switch {
		case errors.Is(err, cardvault.ErrNotFound):
			return c.unauthorized // its creator was revoked meanwhile, or is not a key of the vault
		case err != nil:
			return err
		}

		c.answer = appendAPIKey(c.answer, k)
		return nil
	},
}

var listAPIKeys = &endpoint{
	scope:  cardvault.ScopeAPIKeysRead,
	ofKeys: true,
	serve: func(c *call) error {
		o, err := c.readList(nil)
		if err != nil {
			return err
		}
		p, err := c.vault.ListAPIKeys(c.ctx, o)
		return answerPage(c, p, err)
	},
}

var deleteAPIKey = &endpoint{
	scope:  cardvault.ScopeAPIKeysWrite,
	ofKeys: true,
	serve: bare(func(c *call) error {
		return c.vault.DeleteAPIKeyBy(c.ctx, c.principal.Key.ID, c.id)
	}),
}
