package httpapi

import (
	"math"
	"slices"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/invalid"
	"github.com/cardvault/cardvault/network"
)

var createSession = &endpoint{
	scope:      cardvault.ScopeSessionsCreate,
	repeatable: true,
	serve: func(c *call) error {
		o := cardvault.SessionOptions{IdempotencyKey: c.idempotencyKey}
		err := c.read(func(f fields, _ *query) error {
			o.BypassIdentification, _ = f.boolean("bypass_identification", optional)
			o.TokenTTL = readTTL(f, optional, cardvault.MaxTokenTTL)
			o.BusinessKey, o.ImportProvider = readOrigin(f)
			return o.Check()
		})
		if err != nil {
			return err
		}
		return c.session(c.vault.CreateSession(c.ctx, &o))
	},
}

var importCard = &endpoint{
	scope:      cardvault.ScopeTokensImport,
	approved:   approvedForImport,
	repeatable: true,
	needsBody:  true,
	serve: func(c *call) error {
		var given cardvault.Card
		defer func() { given.Wipe() }()
		o := cardvault.ImportOptions{IdempotencyKey: c.idempotencyKey}

		err := c.read(func(f fields, _ *query) error {
			readCard(f, &given)
			o.BusinessKey, o.ImportProvider = readOrigin(f)
			o.TokenTTL = readTTL(f, optional, cardvault.MaxTokenTTL)
			return c.vault.Check(given, &o)
		})
		if err != nil {
			return err
		}

		return c.token(c.vault.Import(c.ctx, given, &o))
	},
}

var replaceCard = &endpoint{
	scope:      cardvault.ScopeTokensImport,
	approved:   approvedForImport,
	repeatable: true,
	needsBody:  true,
	serve: func(c *call) error {
		var given cardvault.Card
		defer func() { given.Wipe() }()

		err := c.read(func(f fields, _ *query) error {
			readCard(f, &given)
			return c.vault.Check(given, nil)
		})
		if err != nil {
			return err
		}

		return c.token(c.vault.Replace(c.ctx, c.id, given, c.options()))
	},
}

// replaceSession needs no approval, as no caller sends the number.
var replaceSession = &endpoint{
	scope:      cardvault.ScopeSessionsCreate,
	also:       cardvault.ScopeTokensUpdate,
	repeatable: true,
	serve: bare(func(c *call) error {
		return c.session(c.vault.ReplaceSession(c.ctx, c.id, c.options()))
	}),
}

var listTokens = &endpoint{
	scope: cardvault.ScopeTokensRead,
	serve: func(c *call) error {
		var o cardvault.TokenListOptions
		page, err := c.readList(func(q *query) {
			o.From, o.To = q.span()
			for _, name := range listOf(q, "network_token_status", statusNames) {
				o.NetworkTokenStatus = append(o.NetworkTokenStatus, network.Status(slices.Index(statusNames, name)))
			}
			for _, name := range listOf(q, "scheme", schemeNames) {
				o.Scheme = append(o.Scheme, card.Scheme(slices.Index(schemeNames, name)))
			}
			o.BusinessKey, _ = q.text("business_key", 1, maxText)
			o.AccountNumberStale = q.boolean("account_number_stale")
		})
		if err != nil {
			return err
		}
		o.Limit, o.Page, o.Ascending = page.Limit, page.Page, page.Ascending
		p, err := c.vault.List(c.ctx, &o)
		if p != nil {
			for _, t := range p.Items {
				c.limit(t)
			}
		}
		return answerPage(c, p, err)
	},
}

var getToken = &endpoint{
	scope: cardvault.ScopeTokensRead,
	serve: bare(func(c *call) error {
		return c.token(c.vault.Get(c.ctx, c.id))
	}),
}

var updateToken = &endpoint{
	scope:     cardvault.ScopeTokensUpdate,
	needsBody: true,
	serve: func(c *call) error {
		var u cardvault.TokenUpdate

		err := c.read(func(f fields, _ *query) error {
			if name, ok := f.text("cardholder_name", optional, 1, math.MaxInt); ok || f.null("cardholder_name") {
				n := card.NewName(name)
				u.CardholderName = &n
			}
			if key, ok := f.text("business_key", optional, 1, math.MaxInt); ok || f.null("business_key") {
				text := string(key)
				u.BusinessKey = &text
			}
			if provider, ok := f.text("import_provider", optional, 1, math.MaxInt); ok || f.null("import_provider") {
				text := string(provider)
				u.ImportProvider = &text
			}

			if f.get("expires_at", optional, ""); f.null("expires_at") {
				u.ExpiresAt = new(time.Time)
			}

			month, year := f.has("expiry_month"), f.has("expiry_year")
			if month || year {
				expiry := readExpiry(f, nonNull)
				u.Expiry = &expiry
			}
			if month != year {
				missing, given := "expiry_year", "expiry_month"
				if year {
					missing, given = given, missing
				}
				f.refuse(missing, invalid.DependsOn, given)
			}

			if u == (cardvault.TokenUpdate{}) && !f.empty() {
				return nil // their faults are noted
			}
			return u.Check()
		})
		if err != nil {
			return err
		}
		defer func() {
			if u.CardholderName != nil {
				u.CardholderName.Wipe()
			}
		}()
		return c.token(c.vault.Update(c.ctx, c.id, u))
	},
}

var deleteToken = &endpoint{
	scope: cardvault.ScopeTokensDelete,
	serve: bare(func(c *call) error {
		return c.vault.Delete(c.ctx, c.id)
	}),
}

var getSecurityCode = &endpoint{
	scope: cardvault.ScopeSecurityCodeRead,
	serve: bare(func(c *call) error {
		status, err := c.vault.SecurityCodeStatus(c.ctx, c.id)
		if err != nil {
			return err
		}
		c.answer = appendSecurityCode(c.answer, status)
		return nil
	}),
}

var refreshSession = &endpoint{
	scope:      cardvault.ScopeSecurityCodeRefresh,
	repeatable: true,
	serve: bare(func(c *call) error {
		return c.session(c.vault.RefreshSession(c.ctx, c.id, c.options()))
	}),
}

var consumeToken = &endpoint{
	scope:      cardvault.ScopeSecurityCodeConsume,
	repeatable: true,
	serve: bare(func(c *call) error {
		_, err := c.vault.Consume(c.ctx, c.id, c.options())
		return err
	}),
}

// maxText is the most characters of a text, as in the vault.
const maxText = 255

// Names of enumerations, by their numbers.
var schemeNames, statusNames = namesOf[card.Scheme](), namesOf[network.Status]()

// namesOf returns the names of all values of an enumeration from 0 on.
func namesOf[T interface {
	~uint8
	MarshalText() ([]byte, error)
}]() (all []string) {
	for v := T(0); ; v++ {
		name, err := v.MarshalText()
		if err != nil {
			return all
		}
		all = append(all, string(name))
	}
}

func approvedForImport(a *cardvault.Account) error {
	if !a.ImportApproved {
		return importNotApproved
	}
	return nil
}

// readCard reads a card that a caller sends. The caller of readCard wipes it.
func readCard(f fields, given *cardvault.Card) {
	if name, ok := f.text("cardholder_name", optional, 1, math.MaxInt); ok {
		given.Name = card.NewName(name)
	}
	given.Expiry = readExpiry(f, required)
	if pan, ok := f.text("account_number", required, 1, math.MaxInt); ok {
		given.PAN = card.NewPAN(pan)
	}
	if code, ok := f.text("security_code", optional, 1, math.MaxInt); ok {
		given.SecurityCode = card.NewSecurityCode(code)
	}
}

// readOrigin reads business key and provider of a new token.
func readOrigin(f fields) (businessKey, provider string) {
	key, _ := f.text("business_key", optional, 1, math.MaxInt)
	slug, _ := f.text("import_provider", optional, 1, math.MaxInt)
	return string(key), string(slug)
}

// readTTL reads how many seconds something lives, 0 if it has no end.
func readTTL(f fields, need presence, most time.Duration) time.Duration {
	n, _ := f.integer("expiration_time", need, 1, int64(most/time.Second))
	return time.Duration(n) * time.Second
}

func readExpiry(f fields, need presence) card.Expiry {
	month, _ := f.integer("expiry_month", need, 1, 12)
	year, _ := f.integer("expiry_year", need, 2000, 2099)
	return card.Expiry{Month: int(month), Year: int(year)}
}
