package plausible

import (
	"time"

	"github.com/cardvault/cardvault/internal/hiding"
	"github.com/cardvault/cardvault/internal/rule"
	"github.com/cardvault/cardvault/updater"
)

// Outcome returns ErrGarbage unless the vault can act on an outcome of an account updater.
// What a kind does not have is not looked at.
func Outcome(o *updater.Outcome, allowNonLuhn bool, at time.Time) error {
	ok := o != nil && len(o.ID) >= 1 && len(o.ID) <= rule.MaxText && o.Kind >= updater.Updated && o.Kind <= updater.NoMatch
	if ok && (o.Kind == updater.Updated || o.Kind == updater.ExpiryChanged) {
		ok = isExpiry(o.Expiry) && !o.Expiry.Expired(at)
	}
	if ok && o.Kind == updater.Updated {
		ok = rule.PAN(hiding.Of(o.PAN), !allowNonLuhn) == nil
	}
	if !ok {
		return ErrGarbage
	}
	return nil
}
