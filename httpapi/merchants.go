package httpapi

import "github.com/cardvault/cardvault"

// The merchants of an account, and the secrets under which their payment data is encrypted.

var listMerchants = &endpoint{
	scope: cardvault.ScopeMerchantsRead,
	serve: func(c *call) error {
		o, err := c.readList(nil)
		if err != nil {
			return err
		}
		p, err := c.vault.ListMerchants(c.ctx, o)
		return answerPage(c, p, err)
	},
}

var rotatePaymentSecret = &endpoint{
	scope: cardvault.ScopePaymentSecretsWrite,
	serve: func(c *call) error {
		var o cardvault.PaymentSecretOptions
		err := c.read(func(f fields, _ *query) error {
			o.RevokePrevious, _ = f.boolean("revoke_previous", optional)
			return nil
		})
		if err != nil {
			return err
		}

		s, err := c.vault.RotatePaymentSecret(c.ctx, c.id, &o)
		if err != nil {
			return err
		}
		c.answer = appendPaymentSecret(c.answer, s)
		return nil
	},
}

var revokePaymentSecret = &endpoint{
	scope: cardvault.ScopePaymentSecretsWrite,
	serve: bare(func(c *call) error {
		return c.vault.RevokePreviousPaymentSecret(c.ctx, c.id)
	}),
}
