package httpapi

import (
	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/internal/etag"
)

var provisionToken = &endpoint{
	scope:      cardvault.ScopeNetworkTokensProvision,
	repeatable: true,
	serve: bare(func(c *call) error {
		return c.token(c.vault.Provision(c.ctx, c.id, c.options()))
	}),
}

// Values of headers of an image, which a page of any origin may show.
var (
	anyOrigin = []string{"cross-origin"}
	inert     = []string{"default-src 'none'"}
	forever   = []string{"public, max-age=31536000, immutable"}
	forOne    = []string{"private, max-age=31536000, immutable"}
)

var getCardArt = &endpoint{
	scope:  cardvault.ScopeTokensRead,
	public: true,
	serve: bare(func(c *call) error {
		art, err := c.vault.CardArt(c.ctx, c.id)
		if err != nil {
			return err
		}

		tag := etag.Of(art.Image)
		h := c.header
		h["Etag"] = []string{tag}
		h["Cross-Origin-Resource-Policy"] = anyOrigin
		h["Content-Security-Policy"] = inert
		h["Cache-Control"] = forever
		if c.principal != nil {
			h["Cache-Control"] = forOne
		}

		if etag.Match(c.request.Header["If-None-Match"], tag) {
			c.unchanged = true
			return nil
		}

		c.contentType = []string{art.MediaType}
		c.file = art.Image
		return nil
	}),
}
