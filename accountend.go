package cardvault

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/cardvault/cardvault/internal/jobs"
	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/internal/removal"
	"github.com/cardvault/cardvault/internal/rowkey"
	"github.com/cardvault/cardvault/receive"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// newCloser returns what erases the records of accounts that are closed.
func newCloser(v *Vault) *removal.Closer {
	// The audit log stays for its time, and the hashes of given API keys so that none is valid again.
	kept := []store.Kind{kindAuditRecord, kindAuditCheckpoint, kindAuditChain, kindAuditSegment, kindGivenKey}
	var erased []store.Kind
	for kind := kindAccount + 1; kind <= lastKind; kind++ {
		if homes[kind] != ledger.Nowhere && !slices.Contains(kept, kind) {
			erased = append(erased, kind)
		}
	}

	return removal.NewCloser(removal.Closing{
		Eraser:  v.eraser,
		Records: kindClosing,
		Awaited: []store.Kind{kindRelease},
		Kinds:   erased,
		Erase:   func(ctx context.Context, r *store.Record) (bool, error) { return eraseClosed(ctx, v.of(r.Account), r) },
		End: func(ctx context.Context, account uuid.UUID, also func(store.Tx) error) error {
			if err := reportClosed(ctx, v.core, account); err != nil {
				return fmt.Errorf("the end of a closed account could not be passed on: %w", err)
			}
			return v.of(account).changeAccount(ctx, opAccountClosed, account, func(a *Account) (func(store.Tx) error, error) {
				*a = Account{ID: a.ID, CreatedAt: a.CreatedAt, State: AccountClosed, Since: now()}
				return also, nil
			})
		},
	})
}

// eraseClosed erases a record of a closed account that needs more than its deletion.
func eraseClosed(ctx context.Context, v *Vault, r *store.Record) (bool, error) {
	d := deletion{vault: v, id: v.rows.Mask(kindToken, r.ID), row: r.ID, op: opDelete}
	switch {
	case r.Kind == kindNetworkToken: // without its token, which could not be read
		d.net = r
		return true, d.orphan(ctx)
	case r.Kind == kindToken && r.Version > 0:
		err := v.deleteToken(ctx, d)
		if !errors.Is(err, ErrNotFound) { // else it has lapsed, and its rest is erased as any record
			return true, err
		}
	}
	return false, nil
}

// reportClosed reports the end of an account to the sink before it is stored. The job that erases the
// account repeats the report, which needs no record of the account.
func reportClosed(ctx context.Context, v *core, account uuid.UUID) error {
	sink, ok := v.opts.Events.(AccountSink)
	if !ok {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, sendTimeout)
	defer cancel()
	return v.guard("event sink", func() error {
		return cmp.Or(sink.AccountClosed(ctx, account), ctx.Err()) // it may have taken it after the vault gave up
	})
}

const (
	retentionBatch = 256       // tokens that are deleted before the job is stored again
	retentionPause = time.Hour // at most, between two looks at the oldest token
)

// retain deletes the next tokens of the account that are older than its retention, as Delete
// does. It is done in the order of their import. A token that cannot be read stays, since an
// edited row may be another account's, and keeps no other.
func (v *Vault) retain(ctx context.Context, j *jobs.Job, held *removal.Retention) error {
	a, err := v.Account(ctx)
	if err != nil {
		return err
	}
	if a.TokenRetention == 0 {
		return v.jobs.Finish(ctx, j.Record)
	}

	at := now()
	list, err := v.rows.List(ctx, &store.Query{Kind: kindToken, Account: v.rows.ID, Min: held.From, Max: rowkey.Last(at.Add(-a.TokenRetention)), Limit: retentionBatch})
	if list == nil {
		return err
	}
	var stay atomic.Int64
	err = jobs.Each(list.Records, func(r *store.Record) error {
		if ledger.Foreign(r) {
			return nil
		}
		err := v.ledger.Authentic(ctx, r)
		if err == nil {
			err = v.deleteToken(ctx, deletion{id: v.rows.Mask(kindToken, r.ID), row: r.ID, op: opRetain, reason: receive.ReasonExpired})
		}
		switch {
		case errors.Is(err, ErrNotFound): // it has lapsed
			return nil
		case ledger.RowDamaged(err):
			stay.Add(1)
			return nil
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("tokens at the end of their retention are not all deleted: %w", err)
	}
	if n := stay.Load(); n > 0 {
		v.log.Error("tokens stay at the end of their retention: they cannot be read", "account", v.rows.ID, "tokens", n)
	}

	if n := len(list.Records); n == retentionBatch {
		j.Record.Due, held.From = at, rowkey.Above(list.Records[n-1].ID)
	} else {
		j.Record.Due, held.From = at.Add(min(retentionPause, a.TokenRetention)), uuid.Nil
	}
	return v.jobs.Again(ctx, j.Record, held.Encode())
}
