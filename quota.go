package cardvault

import (
	"context"
	"errors"
	"fmt"

	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/internal/quota"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// Quotas bound the objects of one account, so that none can fill the vault of all. Tokens
// have no quota. A field that is 0 stands for its default.
type Quotas struct {
	// APIKeys limits the API keys of the account, at most 100,000. Revoked and expired ones
	// count until they are erased, in seconds. Defaults to 1,000.
	APIKeys int

	// Webhooks limits the webhooks of the account, at most [MaxWebhooks]. Defaults to 16.
	Webhooks int

	// OpenSessions limits the sessions of the account that are neither finished nor
	// expired, at most 10,000,000. Defaults to 100,000.
	OpenSessions int

	// PaymentData limits the records of payment data of a token, at most 1,000,000. Beyond
	// it the oldest failures are erased, then the oldest whose encrypted data is no longer
	// kept: a request is never refused for it. Defaults to 10,000.
	PaymentData int
}

// A QuotaUpdate holds the changes to an account's quotas. A nil field stays; 0 restores the
// value of [Options.Quotas].
type QuotaUpdate struct {
	APIKeys, Webhooks, OpenSessions, PaymentData *int
}

// A QuotaError is returned by a call that would make more of something than a quota of
// its account allows. It is ErrQuotaExceeded.
type QuotaError struct {
	Quota string // the field of Quotas: APIKeys, Webhooks or OpenSessions
	Limit int
}

func (e *QuotaError) Error() string {
	return fmt.Sprintf("%v: %s, %d", ErrQuotaExceeded, e.Quota, e.Limit)
}

// Unwrap returns ErrQuotaExceeded.
func (e *QuotaError) Unwrap() error { return ErrQuotaExceeded }

// A quotaField is one field of Quotas.
type quotaField struct {
	name      string
	of        func(*Quotas) *int
	def, most int
}

var (
	quotaAPIKeys      = &quotaField{"APIKeys", func(q *Quotas) *int { return &q.APIKeys }, 1000, 100_000}
	quotaWebhooks     = &quotaField{"Webhooks", func(q *Quotas) *int { return &q.Webhooks }, 16, MaxWebhooks}
	quotaOpenSessions = &quotaField{"OpenSessions", func(q *Quotas) *int { return &q.OpenSessions }, 100_000, 10_000_000}
	quotaPaymentData  = &quotaField{"PaymentData", func(q *Quotas) *int { return &q.PaymentData }, 10_000, 1_000_000}

	// allQuotas is in the order in which accounts store theirs: new ones go last.
	allQuotas = []*quotaField{quotaAPIKeys, quotaWebhooks, quotaOpenSessions, quotaPaymentData}
)

// withDefaults sets the fields that are 0.
func (q *Quotas) withDefaults() error {
	for _, f := range allQuotas {
		n := f.of(q)
		if *n == 0 {
			*n = f.def
		}
		if *n < 1 || *n > f.most {
			return fmt.Errorf("cardvault: Options.Quotas.%s must be between 1 and %d", f.name, f.most)
		}
	}
	return nil
}

// or replaces zeros in q with the values in of.
func (q *Quotas) or(of *Quotas) {
	for _, f := range allQuotas {
		if n := f.of(q); *n == 0 {
			*n = *f.of(of)
		}
	}
}

// fields returns the fields of u in the order of allQuotas.
func (u *QuotaUpdate) fields() []*int {
	return []*int{u.APIKeys, u.Webhooks, u.OpenSessions, u.PaymentData}
}

func (u *QuotaUpdate) check() error {
	var errs []error
	for i, n := range u.fields() {
		if f := allQuotas[i]; n != nil {
			errs = append(errs, checkRange("Quotas."+f.name, *n, 0, f.most))
		}
	}
	return errors.Join(errs...)
}

func (u *QuotaUpdate) apply(q *Quotas) {
	for i, n := range u.fields() {
		set(allQuotas[i].of(q), n)
	}
}

// withinQuota calls write to make one more listed record of a kind, in the list of the
// account. write calls room in its transaction, and returns its error. Records that have
// lapsed and are not erased yet are erased when they are in the way, in the order in which
// they lapsed.
func (v *Vault) withinQuota(ctx context.Context, op ledger.Operation, q *quotaField, kind store.Kind, write func(room func(store.Tx) error) error) error {
	for {
		known, ok := v.standings.Load(v.rows.ID)
		if !ok {
			s, err := v.standing(ctx)
			if err != nil {
				return err
			}
			known = s
		}

		l := known.(*standing)
		limit := *q.of(&l.quotas)
		place, err := v.counts.Take(ctx, v.rows, kind, limit, q == quotaOpenSessions)
		if err != nil {
			return err
		}
		err = write(func(tx store.Tx) error {
			a, err := tx.Get(kindAccount, l.account)
			switch {
			case err != nil:
				return err
			case a.Version != l.version: // the quota may be another
				v.standings.CompareAndDelete(v.rows.ID, l)
				return errStale
			}
			return place.Room(tx)
		})
		place.Leave()

		switch {
		case errors.Is(err, errStale):
		case errors.Is(err, quota.ErrFull):
			// One batch at a time, so that each leaves less to erase.
			if n, err := v.eraser.Lapse(ctx, kind); n == 0 || err != nil {
				full := &QuotaError{q.name, limit}
				v.rows.Wrote(ctx, op, uuid.Nil, full)
				return errors.Join(full, err)
			}
		default:
			return err
		}
	}
}
