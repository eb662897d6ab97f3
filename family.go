package cardvault

import (
	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/internal/outbox"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// families says how records belong together. A kind that is missing has no parent.
var families = ledger.Families{
	kindAccount:     {Listed: true},
	kindToken:       {Listed: true},
	kindMerchant:    {Listed: true},
	kindWebhook:     {Listed: true},
	kindAPIKey:      {Listed: true, Made: createdBy, With: kindKeyUse},
	kindKeyUse:      {Beside: kindAPIKey},
	kindAnswer:      {Parent: kindToken},
	kindPaymentData: {Parent: kindToken},
	kindPaymentJWE:  {Parent: kindToken, Beside: kindPaymentData},
	kindEvent:       {Parent: kindToken},
	kindPast:        {Parent: kindToken},
	kindOptOut:      {Parent: kindToken},
	kindCardArtPart: {Parent: kindCardArt},
	kindQueue:       {Stands: webhookOf},
	kindDelivery:    {Parent: kindQueue},
}

// webhookOf returns the webhook of a queue: a queue that is missing is made anew as long
// as its webhook is there.
func webhookOf(row uuid.UUID) (store.Kind, uuid.UUID) { return kindWebhook, outbox.Beside(row) }
