package httpapi

import (
	"errors"
	"math"
	"slices"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/internal/wire"
	"github.com/cardvault/cardvault/invalid"
	"github.com/google/uuid"
)

var initiatorNames = namesOf[cardvault.Initiator]()

// maxAmount is the largest amount of a payment, as in the vault.
const maxAmount = 1<<53 - 1

var requestPaymentData = &endpoint{
	scope:      cardvault.ScopePaymentDataCreate,
	repeatable: true,
	needsBody:  true,
	serve: func(c *call) error {
		r := cardvault.PaymentRequest{IdempotencyKey: c.idempotencyKey}
		err := c.read(func(f fields, _ *query) error {
			return c.readPayment(f, &r)
		})
		if err != nil {
			return err
		}

		p, err := c.vault.RequestPaymentData(c.ctx, c.id, r)
		if err != nil {
			return err
		}
		c.answer = wire.Append(c.answer, p)
		return nil
	},
}

// readPayment reads the members of a payment, and returns a FieldError for each rule that
// they break.
func (c *call) readPayment(f fields, r *cardvault.PaymentRequest) error {
	r.Amount, _ = f.integer("amount", required, 0, maxAmount)
	if currency, ok := f.text("currency_code", required, 1, math.MaxInt); ok {
		r.Currency = string(currency)
	}
	r.Merchant, _ = f.id("merchant_id", optional)
	if reference, ok := f.text("reference", required, 1, math.MaxInt); ok {
		r.Reference = string(reference)
	}

	if initiator, ok := f.text("initiator", optional, 1, math.MaxInt); ok {
		if chosen, ok := choose(f.violations, f.prefix+"initiator", initiator, initiatorNames, nil); ok {
			r.Initiator = cardvault.Initiator(slices.Index(initiatorNames, chosen[0]))
		}
	}
	if transaction, ok := f.text("network_transaction_id", optional, 1, math.MaxInt); ok {
		r.NetworkTransactionID = string(transaction)
	}
	return errors.Join(r.Check(), c.checkMerchant(r.Merchant))
}

// checkMerchant returns a FieldError if the account does not have a merchant that is named.
func (c *call) checkMerchant(id uuid.UUID) error {
	if id == uuid.Nil {
		return nil
	}
	_, err := c.vault.Merchant(c.ctx, id)
	if errors.Is(err, cardvault.ErrNotFound) {
		err = &cardvault.FieldError{Field: "Merchant", Code: invalid.UnknownMerchant, Message: "must be a merchant of the account"}
	}
	return err
}

var getPaymentData = &endpoint{
	scope: cardvault.ScopePaymentDataRead,
	serve: bare(func(c *call) error {
		p, err := c.vault.PaymentData(c.ctx, c.id, c.partID)
		if err != nil {
			return err
		}
		c.answer = wire.Append(c.answer, p)
		return nil
	}),
}

var listPaymentData = &endpoint{
	scope: cardvault.ScopePaymentDataRead,
	serve: func(c *call) error {
		o, err := c.readList(nil)
		if err != nil {
			return err
		}
		p, err := c.vault.ListPaymentData(c.ctx, c.id, o)
		return answerPage(c, p, err)
	},
}
