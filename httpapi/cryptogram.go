package httpapi

import (
	"math"

	"github.com/cardvault/cardvault"
)

// maxAmount is the largest amount of a payment, as in the vault.
const maxAmount = 999999999999

var requestPaymentData = &endpoint{
	scope:      cardvault.ScopePaymentDataCreate,
	repeatable: true,
	needsBody:  true,
	serve: func(c *call) error {
		var r cardvault.PaymentRequest
		err := c.read(func(f fields, _ *query) error {
			r.Amount, _ = f.integer("amount", required, 0, maxAmount)
			if currency, ok := f.text("currency_code", required, 1, math.MaxInt); ok {
				r.Currency = string(currency)
			}
			r.Merchant, _ = f.id("merchant_id", optional)
			if reference, ok := f.text("reference", required, 1, math.MaxInt); ok {
				r.Reference = string(reference)
			}
			return c.vault.CheckPayment(c.ctx, r)
		})
		if err != nil {
			return err
		}
		p, err := c.vault.RequestPaymentData(c.ctx, c.id, r)
		if err != nil {
			return err
		}
		c.answer = appendPaymentData(c.answer, p)
		return nil
	},
}

var listPaymentData = &endpoint{
	scope: cardvault.ScopePaymentDataRead,
	serve: func(c *call) error {
		var o cardvault.ListOptions
		err := c.read(func(_ fields, q *query) error {
			readPage(q, &o)
			return nil
		})
		if err != nil {
			return err
		}
		page, err := c.vault.ListPaymentData(c.ctx, c.id, &o)
		if err != nil {
			return err
		}
		c.answer = appendPage(c.answer, page, appendPaymentData)
		return nil
	},
}
