package httpapi

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/internal/rule"
	"github.com/cardvault/cardvault/invalid"
	"github.com/cardvault/cardvault/ppan"
)

// neutralProvider stands for the name of the provider in documented paths and headers.
const neutralProvider = "provider"

func isProviderName(name string) bool {
	for _, c := range []byte(name) {
		if c != '-' && (c < '0' || c > '9') && (c < 'a' || c > 'z') {
			return false
		}
	}
	return len(name) <= 40 && name[0] != '-'
}

// ppanRoute is the route on which a provider of a name is asked for a pseudo card
// number.
func ppanRoute(name string) route {
	return route{[]string{"integrations", name, "obtain-ppan"}, map[string]*endpoint{"POST": obtainPPAN(name)}}
}

func obtainPPAN(name string) *endpoint {
	return &endpoint{
		scope:     cardvault.ScopePPANCreate,
		needsBody: true,
		enabled: func(h *handler) error {
			if !h.vault.PPANEnabled() {
				return fmt.Errorf("%w: Options.PPAN of the vault is nil", integrationDisabled)
			}
			return nil
		},
		serve: func(c *call) error {
			var a ppan.Account
			err := c.read(func(f fields, _ *query) error {
				a.AID = c.providerHeader(f, name, "aid")
				hash := []byte(c.providerHeader(f, name, "hash"))
				a.Hash = ppan.NewHash(hash)
				a.MID = c.providerHeader(f, name, "mid")
				a.PortalID = c.providerHeader(f, name, "portalid")
				c.id, _ = f.id("token_id", required)

				prefix := "header.x-" + name + "-"
				f.violations.hold(prefix+"aid", rule.Header([]byte(a.AID)))
				f.violations.hold(prefix+"hash", rule.Header(hash))
				f.violations.hold(prefix+"mid", rule.Header([]byte(a.MID)))
				f.violations.hold(prefix+"portalid", rule.Header([]byte(a.PortalID)))
				return nil
			})
			if err != nil {
				return err
			}

			p, err := c.vault.ObtainPPAN(c.ctx, c.id, a)
			if errors.Is(err, cardvault.ErrProviderAccount) {
				f := *integrationDisabled
				f.message = fmt.Sprintf("The provider integration is not enabled for the account that x-%[1]s-aid, x-%[1]s-mid and x-%[1]s-portalid name.", name)
				return &f
			}
			if err != nil {
				return err
			}

			c.answer = appendPPAN(c.answer, p)
			return nil
		},
	}
}

// providerHeader reads one of the four headers.
func (c *call) providerHeader(f fields, provider, name string) string {
	field := "x-" + provider + "-" + name
	values := c.request.Header[http.CanonicalHeaderKey(field)]
	switch {
	case len(values) > 1:
		f.violations.add("header."+field, invalid.DuplicateParameter)
	case len(values) == 1 && values[0] == "":
		f.violations.add("header."+field, invalid.EmptyString)
	case len(values) == 1:
		return values[0]
	}
	return ""
}
