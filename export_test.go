package cardvault

import (
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// ExhaustSeals seals until the limit is reached.
func (v *Vault) ExhaustSeals() {
	r := &store.Record{Kind: 255, ID: uuid.New(), Account: v.rows.ID}
	for v.rows.SealShown(r, nil) == nil {
	}
}
