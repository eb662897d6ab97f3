package httpapi

import (
	"errors"
	"net/netip"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/internal/addresses"
	"github.com/cardvault/cardvault/internal/wire"
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
			need := optional
			if c.vault.Mode() == cardvault.Live {
				need = required
			}
			o.TTL = readTTL(f, need, cardvault.MaxAPIKeyTTL)
			o.AddressRanges = readRanges(f, c.principal.Key.AddressRanges)
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

// readRanges reads the address ranges of a key below one with the ranges outer. An empty
// list is refused: it reads like none, and would mean everywhere.
func readRanges(f fields, outer []netip.Prefix) []netip.Prefix {
	const name = "address_ranges"
	items := f.get(name, optional, "[")
	if items == nil {
		return nil
	}
	var ranges []netip.Prefix
	for i := 1; i < len(items) && len(ranges) <= addresses.Max; i += items[i].Size {
		if items[i].Kind != '"' {
			f.refuse(name, invalid.Type, wanted["["])
			return nil
		}
		ranges = append(ranges, addresses.Parse(items[i].Text))
	}

	tidy, broken := addresses.Tidy(ranges)
	f.violations.hold(name, broken)
	switch {
	case broken != nil:
		return nil
	case len(tidy) == 0:
		f.violations.note(violation{name, invalid.TooShort, "must name at least one range"})
	case !addresses.Within(tidy, outer):
		f.violations.note(violation{name, invalid.OutOfRange, "must lie within the ranges of the API key"})
	}
	return tidy
}

var getAPIKey = &endpoint{
	scope:  cardvault.ScopeAPIKeysRead,
	ofKeys: true,
	serve: bare(func(c *call) error {
		k, err := c.vault.APIKey(c.ctx, c.id)
		if err != nil {
			return err
		}
		c.answer = wire.Append(c.answer, k)
		return nil
	}),
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

var updateAPIKey = &endpoint{
	scope:     cardvault.ScopeAPIKeysWrite,
	ofKeys:    true,
	needsBody: true,
	serve: func(c *call) error {
		var u cardvault.APIKeyUpdate
		err := c.read(func(f fields, _ *query) error {
			u.AddressRanges = readRanges(f, nil) // the vault knows what bounds the key
			if f.empty() {
				f.refuse("body", invalid.EmptyPatch)
			}
			return nil
		})
		if err != nil {
			return err
		}
		k, err := c.vault.UpdateAPIKeyBy(c.ctx, c.principal.Key.ID, c.id, u)
		if err != nil {
			return err
		}
		c.answer = wire.Append(c.answer, k)
		return nil
	},
}

var deleteAPIKey = &endpoint{
	scope:  cardvault.ScopeAPIKeysWrite,
	ofKeys: true,
	serve: bare(func(c *call) error {
		return c.vault.DeleteAPIKeyBy(c.ctx, c.principal.Key.ID, c.id)
	}),
}
